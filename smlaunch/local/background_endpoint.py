"""Start, find and stop the background endpoint: one process per state directory that serves many clients.

The process locks the folder ``s3`` while it runs. So neither a pid that was reused nor a file that somebody
removed can mislead a client. The process writes its address to ``endpoint.json`` and its pid to
``endpoint.lock``, and writes both again when they are missing. This module is the clients' side; the process
itself is background_process.py.
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
from typing import TYPE_CHECKING, Any

from smlaunch.errors import EndpointError
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.executors import DEFAULT_EXECUTOR
from smlaunch.local.state_dir import StateDir, default_root
from smlaunch.local.state_errors import permission_error, unusable_file_error
from smlaunch.local.untrusted_files import UnexpectedFileType

if TYPE_CHECKING:
    from smlaunch.local.endpoint_settings import Settings

_UPLOAD_GRACE_SECONDS = 30.0
"""Time for the uploads of stopped jobs, in addition to the jobs' own grace period."""
_ADDRESS_TIMEOUT_SECONDS = 10.0
"""How long a client waits for the address file. A running endpoint writes a missing file within a second."""
STOPPING_MARK = "ending"
"""Follows the pid in the lock file of an endpoint that accepts no more work."""


def start_endpoint(
    state_dir: Path | None = None,
    *,
    isolation: str | None = None,
    executor: str = DEFAULT_EXECUTOR,
    settings: Settings | None = None,
    port: int = 0,
) -> EndpointInfo:
    """Start the background endpoint in its own process and return when it serves. ``state_dir``: None for the
    default directory; ``isolation``: level of the hosts, None for the strongest that works; ``port``: 0 for a
    free one. Raises EndpointError when it cannot start, or when one is running already."""
    from smlaunch.local.endpoint_settings import Settings

    state = StateDir(state_dir or default_root())
    running_info = running_endpoint(state.root)
    if running_info is not None:
        raise EndpointError(
            f"a background endpoint is already running at {running_info.url} (pid {running_info.pid}, "
            f"home {state.root}); `smlaunch local stop` stops it"
        )
    configuration = {
        "home": str(state.root),
        "isolation": isolation,
        "executor": executor,
        "port": port,
        **_settings_to_json(settings or Settings()),
    }
    process, reply = _start_process(configuration, state.endpoint_log)
    # The process replies with its address as a JSON object, or with the text of an error.
    if reply.startswith(b"{"):
        process.returncode = 0  # silences Popen's warning: the process outlives this one
        return EndpointInfo.from_json(reply)
    process.wait()
    raise EndpointError(
        reply.decode() or f"the endpoint exited before it served; its log is {state.endpoint_log}"
    )


def _settings_to_json(settings: Settings) -> dict[str, Any]:
    """Return the fields of a background process's configuration that hold its settings. What depends on
    this process's directory or environment is read here, and its errors reach the user."""
    from smlaunch.local.endpoint_settings import CALL_LOG_VARIABLE
    from smlaunch.local.fault_injection import read_fault_plan

    call_log = settings.call_log or os.environ.get(CALL_LOG_VARIABLE)
    if call_log:
        settings = replace(settings, call_log=str(Path(call_log).absolute()))
    fault_plan = settings.faults or read_fault_plan(os.environ)
    # The fault plan has a JSON form of its own.
    return {"settings": asdict(replace(settings, faults=None)), "faults": fault_plan.to_json()}


def _start_process(configuration: dict[str, Any], log_path: Path) -> tuple[subprocess.Popen[bytes], bytes]:
    """Start background_process.py, and return the process and the reply that it sends when it serves or
    fails; b"" if it died without a reply."""
    reply_read_fd, reply_write_fd = os.pipe()
    log_fd = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(reply_read_fd, "rb") as reply_stream, os.fdopen(log_fd, "wb") as log:
        try:
            # A session of its own in /, so that the process depends on neither this terminal nor this folder.
            process = subprocess.Popen(
                [sys.executable, "-m", "smlaunch.local.background_process", str(reply_write_fd)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(reply_write_fd,),
                start_new_session=True,
                cwd="/",
            )
        finally:
            os.close(reply_write_fd)  # else reading the reply would not end when the process dies
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin as stream:
            stream.write(json.dumps(configuration).encode())
        return process, reply_stream.read()


def running_endpoint(state_dir: Path | None = None) -> EndpointInfo | None:
    """Return the background endpoint that runs in a state directory (None: the default one); None when there
    is none or it is stopping. Waits for an endpoint that is starting: it writes its address file when it can
    be used. Raises EndpointError for one that has not written it after 10 seconds."""
    state = _open_existing_state_dir(state_dir)  # None: there is no such directory, so no endpoint
    deadline = time.monotonic() + _ADDRESS_TIMEOUT_SECONDS
    while state is not None and is_endpoint_running(state.root):
        endpoint_info = _read_address_file(state)
        if endpoint_info is not None:
            return endpoint_info
        pid, is_stopping = _read_lock_file(state)  # the endpoint writes both there; pid None: unreadable
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


def _read_address_file(state: StateDir) -> EndpointInfo | None:
    """Read the background endpoint's address file; None while there is none: the endpoint is starting, or the
    file was removed a moment ago. Raises StateDamaged for a file that cannot be used."""
    try:
        address_file_stat = state.address_file.stat()
        if not stat.S_ISREG(address_file_stat.st_mode):
            raise UnexpectedFileType(address_file_stat)  # an OSError. Not opened: a FIFO would block.
        return EndpointInfo.from_json(state.address_file.read_bytes())
    except FileNotFoundError:
        return None
    except PermissionError as error:
        raise permission_error(state.address_file) from error
    except (OSError, ValueError, TypeError) as error:
        endpoint_pid, _ = _read_lock_file(state)
        # A StateDamaged.
        raise unusable_file_error(
            state.address_file,
            problem=f"is damaged ({error})",
            lost_data="the address of the background endpoint, which goes on serving",
            remedy=_stop_instruction(endpoint_pid),  # for the user, such as `kill <pid>`
        ) from None


def _stop_instruction(pid: int | None) -> str:
    if pid is None:
        return "stop its process, smlaunch.local.background_process, and start another"
    return f"stop it and its jobs, then start another: `kill {pid}`"


def stop_endpoint(state_dir: Path | None = None) -> EndpointInfo | None:
    """Stop the background endpoint and all its jobs. Returns the endpoint that was stopped, None when
    none was running. Raises EndpointError when it does not exit in time."""
    from smlaunch.local.endpoint_settings import Settings

    endpoint_info = running_endpoint(state_dir)
    if endpoint_info is None:
        return None
    os.kill(endpoint_info.pid, signal.SIGTERM)
    timeout_seconds = Settings().close_grace_seconds + _UPLOAD_GRACE_SECONDS
    exit_waiter = threading.Thread(target=_wait_for_exit, args=(Path(endpoint_info.home),), daemon=True)
    exit_waiter.start()
    exit_waiter.join(timeout_seconds)
    if exit_waiter.is_alive():
        raise EndpointError(
            f"the endpoint (pid {endpoint_info.pid}) did not exit within {timeout_seconds:.0f} s; "
            f"`kill -9 {endpoint_info.pid}` ends it and its jobs"
        )
    return endpoint_info


def _open_existing_state_dir(state_dir: Path | None) -> StateDir | None:
    """Return the state directory if it exists: to ask for the status must not create it."""
    root = state_dir or default_root()
    return StateDir(root) if root.is_dir() else None


def _read_lock_file(state: StateDir) -> tuple[int | None, bool]:
    """Return the pid in the endpoint's lock file, None if it cannot be read, and whether the endpoint is
    stopping."""
    try:
        lock_file_text = state.endpoint_lock.read_bytes().decode("ascii", "replace")
    except OSError:
        return None, False
    pid_text, _, mark = lock_file_text.strip().partition(" ")
    return int(pid_text) if pid_text.isdecimal() else None, mark == STOPPING_MARK


def is_endpoint_running(root: Path) -> bool:
    """Return whether a background endpoint runs in this state directory, also when its files were removed.
    Creates nothing."""
    return any(_is_locked_by_other_process(path) for path in lock_paths(root))


def lock_paths(root: Path) -> tuple[Path, Path]:
    """Return the paths that a background endpoint locks. The folder cannot be missing; but NFS has no locks
    on folders, so there is a file too."""
    return root / "s3", root / "endpoint.lock"


def _is_locked_by_other_process(path: Path) -> bool:
    """Return whether another process holds an exclusive lock (flock) on a file or folder; False if that
    cannot be found out."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # A shared lock: several clients may ask at the same time. Closing the file releases it.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # such as a file system without locks on folders
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
