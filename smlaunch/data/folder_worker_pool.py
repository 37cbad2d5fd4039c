"""A pool of ``folder_worker`` processes, as the parent process uses it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock

from smlaunch.data import folder_worker

# -I -S: the user's Python set-up is not loaded, which is most of the start. The module is imported instead of
# run as a file, so that its compiled form is cached.
_BOOTSTRAP = (
    "import os, sys; sys.path += sys.argv[1].split(os.pathsep); import folder_worker, tar_writer; "
    "folder_worker.serve_requests(tar_writer.write_archive, *sys.argv[2:])"
)


class FolderWorkerPool:
    """Up to ``count`` processes of ``folder_worker`` for the folder ``root``, usable from as many threads.
    They are started on demand and ended by ``close``."""

    def __init__(self, root: str, count: int, follow_links: bool = False) -> None:
        self.count = count
        command = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, os.pathsep.join(_module_folders()), root]
        self._command = [*command, folder_worker.FOLLOW_LINKS_OPTION] if follow_links else command
        self._processes: list[subprocess.Popen[bytes]] = []
        self._idle_processes: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._lock = Lock()
        self._stopped = False

    def start(self) -> None:
        """Start all processes ahead of the first request, since starting takes a moment."""
        while self._start_process():
            pass

    def send_request(self, *fields: bytes) -> list[bytes]:
        """Send a request (its kind, and what it needs) to an idle worker process, or to a new one if there
        may be more, and return its reply. Waits if all are busy. Raises ChildProcessError if the process has
        ended."""
        try:
            process = self._idle_processes.get_nowait()
        except Empty:
            self._start_process()  # which adds it to the idle ones; nothing if all are started
            process = self._idle_processes.get()
        assert process.stdin is not None and process.stdout is not None
        try:
            folder_worker.send_message(process.stdin, *fields)
            return folder_worker.receive_message(process.stdout)
        except (EOFError, BrokenPipeError):
            reason = "stopped" if self._stopped else f"a worker process has ended with {process.wait()}"
            raise ChildProcessError(reason) from None
        finally:
            self._idle_processes.put(process)

    def stop(self) -> None:
        """Kill all processes, from another thread."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.kill()

    def close(self) -> None:
        """Kill all processes and wait for them. Others may be started after that."""
        self.stop()
        for process in self._processes:
            # Raised for a request that a process has not read.
            with suppress(BrokenPipeError), process:
                pass
        self._processes, self._idle_processes, self._stopped = [], SimpleQueue(), False

    def _start_process(self) -> bool:
        """Start one more process. Return False if all are started."""
        with self._lock:
            if len(self._processes) == self.count:
                return False
            pipe = subprocess.PIPE
            # A session of its own: Ctrl-C reaches only the parent, which then ends its workers.
            process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, start_new_session=True)
            self._processes.append(process)
            if self._stopped:
                process.kill()
        self._idle_processes.put(process)
        return True


def _module_folders() -> Iterator[str]:
    """Yield the folders of the modules that a worker imports. They come after Python's own in sys.path."""
    yield str(Path(folder_worker.__file__).parent)
    isal = find_spec("isal")
    if isal is not None and isal.origin is not None:
        yield str(Path(isal.origin).parent.parent)
