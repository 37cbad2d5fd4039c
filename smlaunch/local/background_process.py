"""The background endpoint's process, which background_endpoint.py starts. It serves until SIGTERM or SIGINT.

    python -m smlaunch.local.background_process REPLY_FD < configuration.json

To the file descriptor REPLY_FD, the write end of a pipe, the process writes its address, or the reason why it
cannot start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import stat
import sys
import time
from pathlib import Path
from typing import Any

from smlaunch.errors import EndpointError, disk_full_message, is_disk_full
from smlaunch.local import background_endpoint
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.fault_injection import parse_fault_plan
from smlaunch.local.state_dir import StateDir, write_private_file

_FILE_CHECK_INTERVAL_SECONDS = 1.0
"""How often the process checks whether its lock file and address file still exist."""
_LOCK_TIMEOUT_SECONDS = 2.0
"""How long clients may hold the lock: each does for a moment, to see whether an endpoint is running."""


class _EndpointLock:
    """Locks and files by which clients find this endpoint. Files that were removed are written again."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        folder, _ = background_endpoint.lock_paths(state.root)
        self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock_fd = -1
        try:
            with contextlib.suppress(_FolderLockUnsupported):
                _acquire_lock(self._folder_fd, state)
            self._lock_fd = os.open(state.endpoint_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _acquire_lock(self._lock_fd, state)
            self._write_lock_file(b"%d\n" % os.getpid())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for descriptor in {self._lock_fd, self._folder_fd} - {-1}:
            os.close(descriptor)

    def mark_as_stopping(self) -> None:
        """Hide the endpoint from clients. The locks stay."""
        self._write_lock_file(b"%d %s\n" % (os.getpid(), background_endpoint.STOPPING_MARK.encode()))
        with contextlib.suppress(OSError):
            self._state.address_file.unlink()

    def restore_missing_files(self, info: EndpointInfo) -> None:
        """Write the lock file and the address file again if they are missing. What fails, such as on a full
        disk, is tried again by the next call."""
        with contextlib.suppress(OSError):
            if not self._lock_file_exists():
                replacement = self._state.endpoint_lock.with_name(
                    f".{self._state.endpoint_lock.name}.{os.getpid()}"
                )
                descriptor = os.open(replacement, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.close(self._lock_fd)
                self._lock_fd = descriptor
                self._write_lock_file(b"%d\n" % os.getpid())
                replacement.replace(self._state.endpoint_lock)
            if not self._state.address_file.exists():
                write_private_file(self._state.address_file, info.to_json())

    def _lock_file_exists(self) -> bool:
        try:
            return os.path.samestat(self._state.endpoint_lock.stat(), os.fstat(self._lock_fd))
        except FileNotFoundError:
            return False

    def _write_lock_file(self, text: bytes) -> None:
        os.ftruncate(self._lock_fd, 0)
        os.pwrite(self._lock_fd, text, 0)


class _FolderLockUnsupported(OSError):
    """The file system has no locks on folders, like NFS."""


def _acquire_lock(fd_to_lock: int, state: StateDir) -> None:
    """Take an exclusive flock on an open file or folder of the state directory. Waits two seconds for another
    endpoint that holds it, then raises EndpointError. Raises _FolderLockUnsupported for a folder on a file
    system that can lock only files, such as NFS."""
    deadline = time.monotonic() + _LOCK_TIMEOUT_SECONDS
    while True:
        try:
            return fcntl.flock(fd_to_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                message = (
                    f"another endpoint uses {state.root}: it was started at the same time, or is stopping"
                )
                raise EndpointError(message) from None
            time.sleep(0.02)
        except OSError as error:
            is_folder = stat.S_ISDIR(os.fstat(fd_to_lock).st_mode)
            if is_folder:
                raise _FolderLockUnsupported(*error.args) from None
            raise


def _run_endpoint(reply_fd: int) -> None:
    """Run the background endpoint: read its configuration from standard input, start it, and serve until
    SIGTERM or SIGINT. ``reply_fd``: pipe to the starting process, which gets the endpoint's address or the
    error."""
    configuration = json.loads(sys.stdin.buffer.read())
    state = StateDir(Path(configuration["home"]))
    stop_signal_fd = _open_stop_signal_pipe()
    with os.fdopen(reply_fd, "wb") as reply_stream:
        # A job's process that inherited the pipe would keep it open.
        os.set_inheritable(reply_fd, False)
        with contextlib.ExitStack() as cleanup_stack:
            try:
                endpoint = Endpoint(
                    state.root,
                    isolation=configuration["isolation"],
                    executor=configuration["executor"],
                    settings=_parse_settings(configuration),
                    port=configuration["port"],
                )
                endpoint_lock = cleanup_stack.enter_context(contextlib.closing(_EndpointLock(state)))
                endpoint_info = endpoint.start()
                cleanup_stack.callback(endpoint.close)
                write_private_file(state.address_file, endpoint_info.to_json())
            except EndpointError as error:
                reply_stream.write(str(error).encode())
                sys.exit(1)
            except OSError as error:
                if not is_disk_full(error):
                    raise
                reply_stream.write(disk_full_message(state.root, error.strerror).encode())
                sys.exit(1)
            reply_stream.write(endpoint_info.to_json())
            reply_stream.close()  # the starting process reads to the end of file
            # Serves in other threads, while this one waits for a signal.
            while not select.select([stop_signal_fd], [], [], _FILE_CHECK_INTERVAL_SECONDS)[0]:
                endpoint_lock.restore_missing_files(endpoint_info)
            endpoint_lock.mark_as_stopping()


def _open_stop_signal_pipe() -> int:
    """Make SIGTERM and SIGINT only write their number into a pipe, and return the descriptor that becomes
    readable then. SIGHUP is ignored."""
    wakeup_read_fd, wakeup_write_fd = os.pipe()
    os.set_blocking(wakeup_write_fd, False)
    signal.set_wakeup_fd(wakeup_write_fd)
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signal_number, _ignore_signal)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return wakeup_read_fd


def _parse_settings(configuration: dict[str, Any]) -> Settings:
    """Return the settings in a configuration, where JSON has turned tuples into lists."""
    settings = configuration["settings"]
    return Settings(
        **{
            **settings,
            "inherit_environment": tuple(settings["inherit_environment"]),
            "step_functions_error_names": tuple(map(tuple, settings["step_functions_error_names"])),
            "container_options": tuple(settings["container_options"]),
            "faults": parse_fault_plan(configuration["faults"], "the fault plan"),
        }
    )


def _ignore_signal(signal_number: int, frame: object) -> None:
    """Do nothing: the main thread reads the number from the wake-up pipe."""


if __name__ == "__main__":
    _run_endpoint(int(sys.argv[1]))
