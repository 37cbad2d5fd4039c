"""Start, find and stop the background endpoint: one process per state directory that serves many clients.

The process locks the folder ``s3`` while it runs. So neither a pid that was reused nor a file that somebody
removed can mislead a client. The process writes its address to ``endpoint.json`` and its pid to
``endpoint.lock``, and writes both again when they are missing. This module is the clients' side; the process
itself is daemon_process.py.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from smlaunch.errors import EndpointError
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.host_files import UnexpectedFileType
from smlaunch.local.state_dir import StateDir, default_root
from smlaunch.local.state_errors import permission_error, unusable_file_error

if TYPE_CHECKING:
    from smlaunch.local.settings import Settings

_UPLOAD_GRACE_SECONDS = 30.0
"""Time for the uploads of stopped jobs, in addition to the jobs' own grace period."""
_ADDRESS_TIMEOUT_SECONDS = 10.0
"""How long a client waits for the address file. A running endpoint writes a missing file within a second."""
STOPPING_MARK = "ending"
"""Follows the pid in the lock file of an endpoint that accepts no more work."""


def start(
    state_dir: Path | None = None,
    *,
    isolation: str | None = None,
    executor: str = "processes",
    settings: Settings | None = None,
    port: int = 0,
) -> EndpointInfo:
    """Start the background endpoint and return when it serves. Raises EndpointError when it cannot start, or
    when one is running already."""
    from smlaunch.local.faults import read_fault_plan
    from smlaunch.local.settings import CALL_LOG_VARIABLE, Settings

    state = StateDir(state_dir or default_root())
    running = status(state.root)
    if running is not None:
        raise EndpointError(
            f"a background endpoint is already running at {running.url} (pid {running.pid}, home "
            f"{state.root}); `smlaunch local stop` stops it"
        )
    daemon_settings = settings or Settings()
    call_log = daemon_settings.call_log or os.environ.get(CALL_LOG_VARIABLE)
    if call_log:  # the process runs in another directory
        daemon_settings = replace(daemon_settings, call_log=str(Path(call_log).absolute()))
    configuration = {
        "home": str(state.root),
        "isolation": isolation,
        "executor": executor,
        "settings": asdict(replace(daemon_settings, faults=None)),
        # Read here: errors reach the user, and relative paths are relative to the user's directory.
        "faults": (daemon_settings.faults or read_fault_plan(os.environ)).to_json(),
        "port": port,
    }
    address_pipe, daemon_end = os.pipe()
    log_fd = os.open(state.endpoint_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(address_pipe, "rb") as address_stream, os.fdopen(log_fd, "wb") as log:
        try:
            # A session of its own in /, so that the process depends on neither this terminal nor this folder.
            process = subprocess.Popen(
                [sys.executable, "-m", "smlaunch.local.daemon_process", str(daemon_end)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(daemon_end,),
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(daemon_end)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stream:
            stream.write(json.dumps(configuration).encode())
        reply = address_stream.read()
    if reply.startswith(b"{"):
        process.returncode = 0  # silences Popen's warning: the process outlives this one
        return EndpointInfo.from_json(reply)
    process.wait()
    raise EndpointError(
        reply.decode() or f"the endpoint exited before it served; its log is {state.endpoint_log}"
    )


def status(state_dir: Path | None = None) -> EndpointInfo | None:
    """Return the running background endpoint, or None when there is none or it is stopping. Raises
    EndpointError for one that runs and does not write its address."""
    state = _existing_state_dir(state_dir)
    deadline = time.monotonic() + _ADDRESS_TIMEOUT_SECONDS
    while state is not None and is_running(state.root):
        running = _read_address(state)
        if running is not None:
            return running
        pid, is_stopping = _read_lock_file(state)
        if is_stopping:
            return None
        if time.monotonic() > deadline:
            raise EndpointError(
                f"an endpoint runs in {state.root}{f' (pid {pid})' if pid else ''} and has not written its "
                f"address to {state.address_file} within {_ADDRESS_TIMEOUT_SECONDS:.0f} s: it is starting, "
                f"or cannot write there; {_stop_instruction(pid)}"
            )
        time.sleep(0.05)
    return None


def _read_address(state: StateDir) -> EndpointInfo | None:
    """Return None while the endpoint is starting, and for a moment after the file was removed."""
    try:
        file_status = state.address_file.stat()
        if not stat.S_ISREG(file_status.st_mode):
            raise UnexpectedFileType(file_status)  # not opened: a FIFO would block
        return EndpointInfo.from_json(state.address_file.read_bytes())
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise permission_error(state.address_file) from error
    except (OSError, ValueError, TypeError) as error:
        raise unusable_file_error(
            state.address_file,
            f"is damaged ({error})",
            "the address of the background endpoint, which goes on serving",
            _stop_instruction(_read_lock_file(state)[0]),
        ) from None


def _stop_instruction(pid: int | None) -> str:
    if pid is None:
        return "stop its process, smlaunch.local.daemon_process, and start another"
    return f"stop it and its jobs, then start another: `kill {pid}`"


def stop(state_dir: Path | None = None) -> EndpointInfo | None:
    """Stop the background endpoint and all its jobs. Returns the endpoint that was stopped, None when
    none was running. Raises EndpointError when it does not exit in time."""
    from smlaunch.local.settings import Settings

    running = status(state_dir)
    if running is None:
        return None
    os.kill(running.pid, signal.SIGTERM)
    timeout_seconds = Settings().close_grace_seconds + _UPLOAD_GRACE_SECONDS
    exit_waiter = threading.Thread(target=_wait_for_exit, args=(Path(running.home),), daemon=True)
    exit_waiter.start()
    exit_waiter.join(timeout_seconds)
    if exit_waiter.is_alive():
        raise EndpointError(
            f"the endpoint (pid {running.pid}) did not exit within {timeout_seconds:.0f} s; "
            f"`kill -9 {running.pid}` ends it and its jobs"
        )
    return running


def _existing_state_dir(state_dir: Path | None) -> StateDir | None:
    """Return the state directory if it exists: to ask for the status must not create it."""
    root = state_dir or default_root()
    return StateDir(root) if root.is_dir() else None


def _read_lock_file(state: StateDir) -> tuple[int | None, bool]:
    """Return the pid that the endpoint wrote into its lock file, and whether it is stopping."""
    try:
        pid_text, _, mark = state.endpoint_lock.read_bytes().decode("ascii", "replace").strip().partition(" ")
    except OSError:
        return None, False
    return int(pid_text) if pid_text.isdecimal() else None, mark == STOPPING_MARK


def is_running(root: Path) -> bool:
    """Return whether a background endpoint runs in this state directory, also when its files were removed.
    Creates nothing."""
    return any(_is_locked(path) for path in lock_paths(root))


def lock_paths(root: Path) -> tuple[Path, Path]:
    """Return the paths that a background endpoint locks. The folder cannot be missing; but NFS has no locks
    on folders, so there is a file too."""
    return root / "s3", root / "endpoint.lock"


def _is_locked(path: Path) -> bool:
    """Return whether another process holds an exclusive lock on a file or folder; False if that cannot be
    found out."""
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


def _wait_for_exit(root: Path) -> None:
    for path in lock_paths(root):
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH)
            finally:
                os.close(descriptor)
