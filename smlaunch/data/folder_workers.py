"""The processes that work on the files of a folder, seen from who asks them."""

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

# -I -S: nothing of the user's Python set-up is loaded, which is most of the start. Imported instead of run as
# a file, so that it is compiled once.
_START = (
    "import os, sys; sys.path += sys.argv[1].split(os.pathsep); import folder_worker, tar_writer; "
    "folder_worker.main(tar_writer.write_archive, *sys.argv[2:])"
)


class FolderWorkers:
    """Up to ``count`` processes of ``folder_worker`` for the folder ``root``, which can be asked from as many
    threads. They are started when they are needed, and ended by ``close``."""

    def __init__(self, root: str, count: int, follow_links: bool = False) -> None:
        self.count = count
        command = [sys.executable, "-I", "-S", "-c", _START, os.pathsep.join(_folders()), root]
        self._command = [*command, folder_worker.FOLLOW] if follow_links else command
        self._processes: list[subprocess.Popen[bytes]] = []
        self._free: SimpleQueue[subprocess.Popen[bytes]] = SimpleQueue()
        self._lock = Lock()
        self._stopped = False

    def start(self) -> None:
        """All of them, before they are asked: they take a moment."""
        while self._start_one():
            pass

    def ask(self, *question: bytes) -> list[bytes]:
        """The answer of one that is free. Raises ChildProcessError when it has ended."""
        try:
            process = self._free.get_nowait()
        except Empty:
            self._start_one()
            process = self._free.get()
        assert process.stdin is not None and process.stdout is not None
        try:
            folder_worker.send(process.stdin, *question)
            return folder_worker.receive(process.stdout)
        except (EOFError, BrokenPipeError):
            ended = "stopped" if self._stopped else f"a process that packs has ended with {process.wait()}"
            raise ChildProcessError(ended) from None
        finally:
            self._free.put(process)

    def stop(self) -> None:
        """Ends them, whatever they are at, from another thread."""
        with self._lock:
            self._stopped = True
            for process in self._processes:
                process.kill()

    def close(self) -> None:
        """Ends them and waits until they are gone. Others may be started after that."""
        self.stop()
        for process in self._processes:
            # Of what one was not told any more.
            with suppress(BrokenPipeError), process:
                pass
        self._processes, self._free, self._stopped = [], SimpleQueue(), False

    def _start_one(self) -> bool:
        """Whether there was room for one more."""
        with self._lock:
            if len(self._processes) == self.count:
                return False
            pipe = subprocess.PIPE
            # A session of its own: Ctrl-C is for who has started it, and who ends it then.
            process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, start_new_session=True)
            self._processes.append(process)
            if self._stopped:
                process.kill()
        self._free.put(process)
        return True


def _folders() -> Iterator[str]:
    """Where modules of theirs lie, besides Python's own: at the end, so that these come first."""
    yield str(Path(folder_worker.__file__).parent)
    isal = find_spec("isal")
    if isal is not None and isal.origin is not None:
        yield str(Path(isal.origin).parent.parent)
