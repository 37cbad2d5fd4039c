"""Pipe mode: sends a channel's data through FIFOs ``<channel>_<epoch>``, once for every epoch.

    train_0   being read: the feed's thread writes this host's data of epoch 0, then closes the FIFO
    train_1   exists already, so that a reader may open it as soon as it has closed the previous one

One thread per channel and host. A FIFO has one reader (developer guide,
your-algorithms-training-algo-running-container). It is removed when its epoch is over, so that opening it
again fails instead of waiting forever. A reader that closes early ends the epoch, and the next epoch starts
with the first record. A FIFO that nobody reads costs nothing.
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
from smlaunch.local.jobs.listing import DataError, ObjectRef, Record, RecordPart
from smlaunch.local.jobs.spec import ChannelSpec
from smlaunch.local.jobs.stores import Objects
from smlaunch.local.object_files import TornObject

_BLOCK_BYTES = 1 << 20
_MAX_MEMORY_BYTES = 64 << 20
"""Size up to which a decompressed record is held in memory when its length must be known first; longer ones
use a temporary file."""

RecordsOfEpoch = Callable[[int], Sequence[Record]]
"""Returns what a host gets in an epoch; epochs count from 0."""


class _JobHasEnded(Exception):
    """The job has ended, so that nobody will read any more. Also raised after an error has been reported: by
    then the job has ended."""


@dataclass(frozen=True)
class Feed:
    """One channel on one host."""

    channel: ChannelSpec
    folder: Path
    """The host's directory input/data."""
    records_of_epoch: RecordsOfEpoch


class Pipes:
    """All feeds of a job."""

    def __init__(
        self, feeds: Sequence[Feed], objects: Objects, on_error: Callable[[DataError], None]
    ) -> None:
        """``on_error`` is called in a feed's thread with the error that ended the feed. Its reader then
        waits, since it would take an end of file for the end of the data."""
        self._feeds = feeds
        self._objects = objects
        self._on_error = on_error
        self._end_pipe: tuple[int, int] | None = None
        self._writers: list[_FeedWriter] = []

    def start(self) -> None:
        """Start all feeds. The FIFOs of the first epoch exist when this returns."""
        if self._feeds:
            self._end_pipe = os.pipe()
            self._writers = [
                _FeedWriter(feed, self._objects, self._end_pipe[0], self._on_error) for feed in self._feeds
            ]
            for writer in self._writers:
                writer.start()

    def finish(self) -> None:
        """Stop all feeds. The hosts have ended, or were never started."""
        if self._end_pipe is None:
            return
        end_reader, end_writer = self._end_pipe
        os.close(end_writer)  # the read end becomes readable for all threads
        for writer in self._writers:
            writer.join()
        os.close(end_reader)
        self._end_pipe = None


class _FeedWriter:
    """Writes one feed, in a thread of its own.

    The folder is opened before the job's programs run: whatever they put in its place, or into it, nothing
    is created or written anywhere else.
    """

    def __init__(
        self, feed: Feed, objects: Objects, end_reader: int, on_error: Callable[[DataError], None]
    ) -> None:
        self._channel_feed = feed
        self._s3_objects = objects
        self._end_reader = end_reader
        self._on_error = on_error
        self._current_and_next_fifo: list[_Fifo] = []
        """The FIFO of this epoch and the one of the next epoch."""
        self._lock = threading.Lock()
        name = f"pipe {feed.channel.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._folder = open_folder(self._channel_feed.folder)
        for epoch in (0, 1):
            self._current_and_next_fifo.append(self._create_fifo(epoch))
        self._thread.start()

    def join(self) -> None:
        """Wait for the end of the thread, after Pipes.finish has announced it. If the thread waits for a
        reader, open one."""
        if self._thread.ident is None:
            return
        with self._lock:
            readers = [fifo.open(os.O_RDONLY | os.O_NONBLOCK) for fifo in self._current_and_next_fifo]
        self._thread.join()
        for reader in readers:
            os.close(reader)
        for fifo in self._current_and_next_fifo:
            fifo.close()
        os.close(self._folder)

    def _run(self) -> None:
        """Write epoch after epoch until the job ends. A next FIFO always exists while one is written."""
        epoch = 0
        try:
            while True:
                self._write_epoch(self._current_and_next_fifo[0], epoch)
                epoch += 1  # its FIFO exists already: the one to be created is of the epoch after it
                next_fifo = self._create_fifo(epoch + 1)
                with self._lock:
                    self._current_and_next_fifo.pop(0).close()
                    self._current_and_next_fifo.append(next_fifo)
        except _JobHasEnded:
            return
        except OSError as error:
            self._report_error(error)

    def _report_error(self, error: DataError | OSError) -> None:
        """Report an error and wait for the end of the job."""
        if isinstance(error, OSError):
            problem = f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
            error = DataError(f"Data download failed:channel {self._channel_feed.channel.name}: {problem}")
        self._on_error(error)
        poll = select.poll()
        poll.register(self._end_reader, select.POLLIN)
        poll.poll()  # nothing is ever written: it becomes readable when the write end is closed

    def _create_fifo(self, epoch: int) -> _Fifo:
        return _Fifo(self._folder, f"{self._channel_feed.channel.name}_{epoch}")

    def _write_epoch(self, fifo: _Fifo, epoch: int) -> None:
        """Write this host's data of one epoch (they count from 0) to its FIFO. Raises _JobHasEnded, also
        after an error in the data, which is reported first."""
        writer = fifo.open(os.O_WRONLY)  # waits for a reader
        try:
            if self._job_has_ended():
                raise _JobHasEnded
            _enlarge_pipe(writer)
            os.set_blocking(writer, False)
            with contextlib.suppress(BrokenPipeError):  # the reader has closed the FIFO early
                for record in self._channel_feed.records_of_epoch(epoch):
                    for record_part in record.parts:
                        for block in encode_record_part(
                            record_part, self._channel_feed.channel, self._s3_objects
                        ):
                            self._write(writer, block)
            # Before the reader gets the end of file: a second open must not find the FIFO.
            fifo.remove()
        except (DataError, OSError) as error:
            # While the write end is open: the reader must not take an error for the end of the data.
            self._report_error(error)
            raise _JobHasEnded from None
        finally:
            os.close(writer)

    def _write(self, writer: int, block: bytes | memoryview) -> None:
        """Write a block to the FIFO that the descriptor ``writer`` has open. Raises _JobHasEnded."""
        remaining = memoryview(block)
        while remaining:
            try:
                remaining = remaining[os.write(writer, remaining) :]
            except BlockingIOError:
                poll = select.poll()
                poll.register(writer, select.POLLOUT)
                poll.register(self._end_reader, select.POLLIN)
                if any(descriptor == self._end_reader for descriptor, _ in poll.poll()):
                    raise _JobHasEnded from None

    def _job_has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self._end_reader, select.POLLIN)
        return bool(poll.poll(0))


class _Fifo:
    """A FIFO, held by a descriptor: if a script removes or replaces its name, nothing is written into
    another file and no thread waits forever. Raises OSError."""

    def __init__(self, folder: int, name: str) -> None:
        self._folder = folder
        self._name = name
        try:
            os.mkfifo(name, dir_fd=folder)
        except OSError as error:
            raise OSError(error.errno, error.strerror, name) from None  # mkfifo's error has no file name
        path_only_flag = getattr(os, "O_PATH", None)
        self._handle = None if path_only_flag is None else self._require_fifo(self._open(path_only_flag))

    def open(self, flags: int) -> int:
        if self._handle is None:
            return self._require_fifo(self._open(flags))
        return os.open(f"/proc/self/fd/{self._handle}", flags | os.O_CLOEXEC)

    def _open(self, flags: int) -> int:
        return os.open(self._name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)

    def _require_fifo(self, descriptor: int) -> int:
        """Return the descriptor if it is a FIFO's. Raises OSError otherwise."""
        status = os.fstat(descriptor)
        if stat.S_ISFIFO(status.st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(
            errno.EINVAL, f"another process has put {file_type_name(status)} in its place", self._name
        )

    def remove(self) -> None:
        with contextlib.suppress(OSError):  # a script may have replaced it, by a directory for example
            os.unlink(self._name, dir_fd=self._folder)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _enlarge_pipe(pipe: int) -> None:
    """Enlarge a pipe's buffer where the system allows it, for fewer switches between writer and reader."""
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _BLOCK_BYTES)


def encode_record_part(
    part: RecordPart, channel: ChannelSpec, objects: Objects
) -> Iterator[bytes | memoryview]:
    """Yield a part's bytes in the channel's encoding: decompressed, or as a RecordIO record. Raises
    DataError."""
    name = f"s3://{part.bucket}/{part.key}" if isinstance(part, ObjectRef) else "an attribute's value"
    message_start = f"Data download failed:{name} of channel {channel.name} "
    try:
        with _open_record_part(part, objects) as body:
            stream = cast(BinaryIO, gzip.GzipFile(fileobj=body)) if channel.is_gzipped else body
            if not channel.is_recordio_wrapped:
                yield from _blocks(stream)
                return
            with tempfile.SpooledTemporaryFile(_MAX_MEMORY_BYTES) as temporary_file:
                seekable_stream = stream
                if channel.is_gzipped:
                    # The length comes first, and is known only after decompression.
                    shutil.copyfileobj(stream, temporary_file, _BLOCK_BYTES)
                    seekable_stream = cast(BinaryIO, temporary_file)
                size = seekable_stream.seek(0, os.SEEK_END)
                seekable_stream.seek(0)
                yield recordio.header(size)
                yield from _blocks(seekable_stream)
                yield recordio.padding(size)
    except KeyError:
        raise DataError(f"{message_start}was deleted while the job was running (NoSuchKey)") from None
    except TornObject as error:
        raise DataError(f"Data download failed:{error.message}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{message_start}is not gzip, as CompressionType says: {error}") from None
    except ValueError as error:
        raise DataError(f"{message_start}cannot be wrapped: {error}") from None


def _open_record_part(part: RecordPart, objects: Objects) -> BinaryIO:
    if isinstance(part, bytes):
        return BytesIO(part)
    return cast(BinaryIO, objects.body_path(part.bucket, part.key).open("rb", buffering=0))


def _blocks(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(_BLOCK_BYTES):
        yield block
