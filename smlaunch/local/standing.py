"""A standing endpoint: one process of its own per state directory, for many clients and for longer.

It holds a lock on the folder ``s3`` as long as it lives, so whether one is there depends neither on a pid
that may be another's by now, nor on a file that somebody may remove. Its address stands in ``endpoint.json``,
its pid also in ``standing.lock``; it makes them anew when they are gone. This is what its clients need, who
mostly ask where it is; the process itself is standing_process.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from smlaunch.errors import EndpointError
from smlaunch.local.damage import forbidden, unusable
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.state_dir import StateDir, default_root

if TYPE_CHECKING:
    from smlaunch.local.settings import Settings

_STOP_SLACK_SECONDS = 30.0
"""Beyond the jobs' own grace, for uploading what they left."""
_ADDRESS_SECONDS = 10.0
"""For a start, and for an endpoint that writes its address again, which it does each second."""
ENDING = "ending"
"""What follows the pid in the lock file once it takes no more work."""


def start(
    state_dir: Path | None = None,
    *,
    isolation: str | None = None,
    executor: str = "processes",
    settings: Settings | None = None,
    port: int = 0,
) -> EndpointInfo:
    """Starts it and returns once it serves. Raises EndpointError when it cannot, or one is there already."""
    from smlaunch.local.faults import from_environment
    from smlaunch.local.settings import CALL_LOG_VARIABLE, Settings

    state = StateDir(state_dir or default_root())
    there = status(state.root)
    if there is not None:
        raise EndpointError(
            f"an endpoint stands already at {there.url} (pid {there.pid}, home {state.root}); "
            "`smlaunch local stop` ends it"
        )
    chosen = settings or Settings()
    recorded = chosen.call_log or os.environ.get(CALL_LOG_VARIABLE)
    if recorded:  # it runs in another directory
        chosen = replace(chosen, call_log=str(Path(recorded).absolute()))
    orders = {
        "home": str(state.root),
        "isolation": isolation,
        "executor": executor,
        "settings": asdict(replace(chosen, faults=None)),
        # Read here, where a mistake can be told and a relative path means what the person meant.
        "faults": (chosen.faults or from_environment(os.environ)).to_json(),
        "port": port,
    }
    ready, ready_end = os.pipe()
    descriptor = os.open(state.standing_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(ready, "rb") as answer, os.fdopen(descriptor, "wb") as log:
        try:
            # In / and in a session of its own: neither this terminal nor this directory is held by it.
            process = subprocess.Popen(
                [sys.executable, "-m", "smlaunch.local.standing_process", str(ready_end)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(ready_end,),
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(ready_end)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stream:
            stream.write(json.dumps(orders).encode())
        text = answer.read()
    if text.startswith(b"{"):
        process.returncode = 0  # it lives on; nobody waits for it
        return EndpointInfo.from_json(text)
    process.wait()
    raise EndpointError(
        text.decode() or f"the endpoint ended before it served; its log is {state.standing_log}"
    )


def status(state_dir: Path | None = None) -> EndpointInfo | None:
    """None when none stands there, or when it is ending. Raises EndpointError for one that lives and does not
    say where."""
    state = _existing(state_dir)
    until = time.monotonic() + _ADDRESS_SECONDS
    while state is not None and is_held(state.root):
        there = _address(state)
        if there is not None:
            return there
        pid, ending = _pid(state)
        if ending:
            return None
        if time.monotonic() > until:
            raise EndpointError(
                f"an endpoint lives in {state.root}{f' (pid {pid})' if pid else ''} and has not written its "
                f"address to {state.address} within {_ADDRESS_SECONDS:.0f} s: it is starting, or cannot "
                f"write there; {_end_it(pid)}"
            )
        time.sleep(0.05)
    return None


def _address(state: StateDir) -> EndpointInfo | None:
    """None while it is starting, and for a moment after the file was removed."""
    try:
        return EndpointInfo.from_json(state.address.read_bytes())
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise forbidden(state.address) from error
    except (OSError, ValueError, TypeError) as error:
        raise unusable(
            state.address,
            f"is damaged ({error})",
            "the address of the endpoint that stands, which goes on serving",
            _end_it(_pid(state)[0]),
        ) from None


def _end_it(pid: int | None) -> str:
    if pid is None:
        return "stop its process, smlaunch.local.standing_process, and start another"
    return f"stop it and its jobs, then start another: `kill {pid}`"


def stop(state_dir: Path | None = None) -> EndpointInfo | None:
    """Ends it with all its jobs and returns what it was; None when none stood there. Raises EndpointError
    when it does not end."""
    from smlaunch.local.settings import Settings

    there = status(state_dir)
    if there is None:
        return None
    os.kill(there.pid, signal.SIGTERM)
    patience = Settings().close_grace_seconds + _STOP_SLACK_SECONDS
    waiting = threading.Thread(target=_wait_until_gone, args=(Path(there.home),), daemon=True)
    waiting.start()
    waiting.join(patience)
    if waiting.is_alive():
        raise EndpointError(
            f"the endpoint (pid {there.pid}) did not end within {patience:.0f} s; `kill -9 {there.pid}` ends "
            "it and its jobs"
        )
    return there


def _existing(state_dir: Path | None) -> StateDir | None:
    """Asking for the status makes no directory."""
    root = state_dir or default_root()
    return StateDir(root) if root.is_dir() else None


def _pid(state: StateDir) -> tuple[int | None, bool]:
    """Of the process that holds the lock, by what it wrote there, and whether it is ending."""
    try:
        number, _, ending = state.standing_lock.read_bytes().decode("ascii", "replace").strip().partition(" ")
    except OSError:
        return None, False
    return int(number) if number.isdecimal() else None, ending == ENDING


def is_held(root: Path) -> bool:
    """Whether a standing endpoint lives there, whichever of its files are left. Makes nothing."""
    return any(_is_locked(path) for path in lock_files(root))


def lock_files(root: Path) -> tuple[Path, Path]:
    """What a standing endpoint locks. The folder is private, and nothing works without it; but NFS locks no
    folders, and the release before knows only the file."""
    return root / "s3", root / "standing.lock"


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _wait_until_gone(root: Path) -> None:
    for path in lock_files(root):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            finally:
                os.close(descriptor)
