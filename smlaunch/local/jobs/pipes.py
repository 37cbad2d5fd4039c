"""Pipe mode: the data of a channel through FIFOs ``<channel>_<epoch>``, streamed anew for every epoch.

    train_0   being read: the feed's thread writes what this host gets in epoch 0, then closes it
    train_1   there already, so that a reader may open it the moment it has closed the one before

One thread per channel and host. A FIFO is for one reader (developer guide,
your-algorithms-training-algo-running-container). It goes away when its epoch is over: opening it again is a
"no such file" and no endless wait. A reader that closes early ends the epoch, and the next one begins at the
beginning. What nobody reads costs nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gzip
import os
import select
import shutil
import stat
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, cast

from smlaunch.local.host_files import file_type_name, open_folder
from smlaunch.local.jobs import recordio
from smlaunch.local.jobs.listing import DataError, ObjectRef, Part, Record
from smlaunch.local.jobs.spec import ChannelSpec
from smlaunch.local.jobs.stores import Objects
from smlaunch.local.object_files import TornObject

_BLOCK = 1 << 20
_IN_MEMORY = 64 << 20
"""Decompressed bytes of one record whose length has to be known first; more go through a temporary file."""

Epoch = Callable[[int], Sequence[Record]]
"""What a host gets in an epoch, which count from 0."""


class _Ended(Exception):
    """The job is over: nobody will read any more."""


@dataclass(frozen=True)
class Feed:
    """One channel on one host: ``folder`` is the host's input/data."""

    channel: ChannelSpec
    folder: Path
    epoch: Epoch


class Pipes:
    """All feeds of a job. ``broken`` is called, in a feed's thread, with the DataError that ended the feed;
    its reader then waits, since an end of file would look like the end of the data."""

    def __init__(self, feeds: Sequence[Feed], objects: Objects, broken: Callable[[DataError], None]) -> None:
        self._feeds = feeds
        self._objects = objects
        self._broken = broken
        self._ends: tuple[int, int] | None = None
        self._writers: list[_Writer] = []

    def start(self) -> None:
        """The first FIFOs are there when this returns."""
        if self._feeds:
            self._ends = os.pipe()
            self._writers = [
                _Writer(feed, self._objects, self._ends[0], self._broken) for feed in self._feeds
            ]
            for writer in self._writers:
                writer.start()

    def finish(self) -> None:
        """The hosts have ended, or were never started: stops what still waits for a reader."""
        if self._ends is None:
            return
        ended, end = self._ends
        os.close(end)  # the other side becomes readable, for all threads at once
        for writer in self._writers:
            writer.join()
        os.close(ended)
        self._ends = None


class _Writer:
    """The folder is held open from before the job's programs run: whatever they put in its place, or into it,
    nothing is made or written anywhere else."""

    def __init__(self, feed: Feed, objects: Objects, ended: int, broken: Callable[[DataError], None]) -> None:
        self._feed = feed
        self._objects = objects
        self._ended = ended
        self._broken = broken
        self._fifos: list[_Fifo] = []
        """This epoch's and the next one's."""
        self._lock = threading.Lock()
        name = f"pipe {feed.channel.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._folder = open_folder(self._feed.folder)
        for epoch in (0, 1):
            self._fifos.append(self._make(epoch))
        self._thread.start()

    def join(self) -> None:
        """After the end was announced. A thread that waits for a reader is given one."""
        if self._thread.ident is None:
            return
        with self._lock:
            readers = [fifo.open(os.O_RDONLY | os.O_NONBLOCK) for fifo in self._fifos]
        self._thread.join()
        for reader in readers:
            os.close(reader)
        for fifo in self._fifos:
            fifo.close()
        os.close(self._folder)

    def _run(self) -> None:
        epoch = 0
        try:
            while True:
                self._stream(self._fifos[0], epoch)
                epoch += 1
                following = self._make(epoch + 1)
                with self._lock:
                    self._fifos.pop(0).close()
                    self._fifos.append(following)
        except _Ended:
            return
        except OSError as error:
            self._tell(error)

    def _tell(self, error: DataError | OSError) -> None:
        """Then waits for the end."""
        if isinstance(error, OSError):
            problem = f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
            error = DataError(f"Data download failed:channel {self._feed.channel.name}: {problem}")
        self._broken(error)
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        poll.poll()  # readable, or hung up: the other end is closed and never written to

    def _make(self, epoch: int) -> _Fifo:
        return _Fifo(self._folder, f"{self._feed.channel.name}_{epoch}")

    def _stream(self, fifo: _Fifo, epoch: int) -> None:
        writer = fifo.open(os.O_WRONLY)  # waits for a reader
        try:
            if self._is_over():
                raise _Ended
            _enlarge(writer)
            os.set_blocking(writer, False)
            with contextlib.suppress(BrokenPipeError):  # the reader has seen enough of this epoch
                for record in self._feed.epoch(epoch):
                    for part in record.parts:
                        for block in framed(part, self._feed.channel, self._objects):
                            self._write(writer, block)
            # Before the end of file is seen: whoever opens the name again then finds none.
            fifo.remove()
        except (DataError, OSError) as error:
            # While the writing end is still open: the reader must not take it for the end of the data.
            self._tell(error)
            raise _Ended from None
        finally:
            os.close(writer)

    def _write(self, writer: int, block: bytes | memoryview) -> None:
        remaining = memoryview(block)
        while remaining:
            try:
                remaining = remaining[os.write(writer, remaining) :]
            except BlockingIOError:
                poll = select.poll()
                poll.register(writer, select.POLLOUT)
                poll.register(self._ended, select.POLLIN)
                if any(descriptor == self._ended for descriptor, _ in poll.poll()):
                    raise _Ended from None

    def _is_over(self) -> bool:
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        return bool(poll.poll(0))


class _Fifo:
    """Held by a descriptor, so that a script that removes or replaces the name blocks nobody and is never
    written into anything else. Raises OSError."""

    def __init__(self, folder: int, name: str) -> None:
        self._folder = folder
        self._name = name
        try:
            os.mkfifo(name, dir_fd=folder)
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from None  # mkfifo leaves the name out
        kind = getattr(os, "O_PATH", None)
        self._handle = None if kind is None else self._checked(self._open(kind))

    def open(self, flags: int) -> int:
        if self._handle is None:
            return self._checked(self._open(flags))
        return os.open(f"/proc/self/fd/{self._handle}", flags | os.O_CLOEXEC)

    def _open(self, flags: int) -> int:
        return os.open(self._name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)

    def _checked(self, descriptor: int) -> int:
        status = os.fstat(descriptor)
        if stat.S_ISFIFO(status.st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(
            errno.EINVAL, f"another process has put {file_type_name(status)} in its place", self._name
        )

    def remove(self) -> None:
        with contextlib.suppress(OSError):  # whatever the script has put there instead
            os.unlink(self._name, dir_fd=self._folder)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _enlarge(pipe: int) -> None:
    """Fewer turns between the two sides, where the system lets us."""
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _BLOCK)


def framed(part: Part, channel: ChannelSpec, objects: Objects) -> Iterator[bytes | memoryview]:
    """A part's bytes as the channel asks for them: decompressed, as a RecordIO record. Raises DataError."""
    name = f"s3://{part.bucket}/{part.key}" if isinstance(part, ObjectRef) else "an attribute's value"
    problem = f"Data download failed:{name} of channel {channel.name} "
    try:
        with _opened(part, objects) as body:
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=body)) if channel.gzipped else body
            if not channel.wrapped:
                yield from _blocks(stream)
                return
            with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spooled:
                known = stream
                if channel.gzipped:
                    # The length comes first, and only decompressing tells it.
                    shutil.copyfileobj(stream, spooled, _BLOCK)
                    known = cast(BinaryIO, spooled)
                size = known.seek(0, os.SEEK_END)
                known.seek(0)
                yield recordio.header(size)
                yield from _blocks(known)
                yield recordio.padding(size)
    except KeyError:
        raise DataError(f"{problem}was deleted while the job was running (NoSuchKey)") from None
    except TornObject as error:
        raise DataError(f"Data download failed:{error.message}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{problem}is not gzip, as CompressionType says: {error}") from None
    except ValueError as error:
        raise DataError(f"{problem}cannot be wrapped: {error}") from None


def _opened(part: Part, objects: Objects) -> BinaryIO:
    if isinstance(part, bytes):
        return BytesIO(part)
    return cast(BinaryIO, objects.body_path(part.bucket, part.key).open("rb", buffering=0))


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(_BLOCK):
        yield block
