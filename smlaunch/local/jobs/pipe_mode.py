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
import itertools
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

from smlaunch.local.jobs import recordio
from smlaunch.local.jobs.channel_listing import InputDataError, ObjectAddress, PipeRecord, RecordPayload
from smlaunch.local.jobs.job_spec import ChannelSpec
from smlaunch.local.jobs.store_interfaces import S3ObjectStore
from smlaunch.local.stores.object_bodies import DamagedObject
from smlaunch.local.untrusted_files import file_type_name, open_folder

_BLOCK_BYTES = 1 << 20
_MAX_MEMORY_BYTES = 64 << 20
"""Size up to which a decompressed record is held in memory when its length must be known first; longer ones
use a temporary file."""

RecordsOfEpoch = Callable[[int], Sequence[PipeRecord]]
"""Returns what a host gets in an epoch; epochs count from 0."""


class _JobHasEnded(Exception):
    """The job has ended, so that nobody will read any more. Also raised after an error has been reported: by
    then the job has ended."""


@dataclass(frozen=True)
class PipeFeed:
    """One channel on one host."""

    channel: ChannelSpec
    folder: Path
    """The host's directory input/data."""
    records_of_epoch: RecordsOfEpoch


class PipeFeeder:
    """All feeds of a job in Pipe mode."""

    def __init__(
        self,
        feeds: Sequence[PipeFeed],
        object_store: S3ObjectStore,
        on_error: Callable[[InputDataError], None],
    ) -> None:
        """``on_error`` is called in a feed's thread with the error that ended the feed. Its reader then
        waits, since it would take an end of file for the end of the data."""
        self._feeds = feeds
        self._object_store = object_store
        self._on_error = on_error
        self._job_end_pipe: tuple[int, int] | None = None
        self._writers: list[_FeedWriter] = []

    def start(self) -> None:
        """Start all feeds. The FIFOs of the first epoch exist when this returns."""
        if self._feeds:
            self._job_end_pipe = os.pipe()
            self._writers = [
                _FeedWriter(feed, self._object_store, self._job_end_pipe[0], self._on_error)
                for feed in self._feeds
            ]
            for writer in self._writers:
                writer.start()

    def finish(self) -> None:
        """Stop all feeds. The hosts have ended, or were never started."""
        if self._job_end_pipe is None:
            return
        read_fd, write_fd = self._job_end_pipe
        os.close(write_fd)  # the read end becomes readable for all threads
        for writer in self._writers:
            writer.join_and_close()
        os.close(read_fd)
        self._job_end_pipe = None


class _FeedWriter:
    """Writes one feed, in a thread of its own.

    The folder is opened before the job's programs run: whatever they put in its place, or into it, nothing
    is created or written anywhere else.
    """

    def __init__(
        self,
        feed: PipeFeed,
        object_store: S3ObjectStore,
        job_end_fd: int,
        on_error: Callable[[InputDataError], None],
    ) -> None:
        self._pipe_feed = feed
        self._object_store = object_store
        self._job_end_fd = job_end_fd
        self._on_error = on_error
        self._current_and_next_fifos: list[_Fifo] = []
        """The FIFO of this epoch and the one of the next epoch."""
        self._lock = threading.Lock()
        name = f"pipe {feed.channel.name}"
        self._thread = threading.Thread(target=self._write_epochs, name=name, daemon=True)

    def start(self) -> None:
        self._folder_fd = open_folder(self._pipe_feed.folder)
        for epoch in (0, 1):
            self._current_and_next_fifos.append(self._create_fifo(epoch))
        self._thread.start()

    def join_and_close(self) -> None:
        """Wait for the end of the thread that writes the FIFOs (of the current and the next epoch), and close
        them. The end of the job has been announced, but a thread that waits for a reader does not notice it
        before it has one."""
        has_started = self._thread.ident is not None
        if not has_started:  # its FIFOs could not be created, or those of another channel
            return
        with self._lock:
            # Opening a FIFO for reading wakes the thread that is opening it for writing.
            reader_fds = [fifo.open(os.O_RDONLY | os.O_NONBLOCK) for fifo in self._current_and_next_fifos]
        self._thread.join()
        for reader_fd in reader_fds:
            os.close(reader_fd)
        for fifo in self._current_and_next_fifos:
            fifo.close()
        os.close(self._folder_fd)

    def _write_epochs(self) -> None:
        """Write the channel's data to one FIFO per epoch, a pass of the program over the data, in this
        thread, until the job ends. While one is written, the FIFO of the next epoch exists already, so that a
        reader may open it at once."""
        try:
            for epoch in itertools.count():
                current_fifo = self._current_and_next_fifos[0]
                self._write_epoch(current_fifo, epoch)
                fifo_after_next = self._create_fifo(epoch + 2)
                with self._lock:
                    self._current_and_next_fifos.pop(0).close()
                    self._current_and_next_fifos.append(fifo_after_next)
        except _JobHasEnded:
            return
        except OSError as error:
            self._fail_job_and_await_its_end(error)

    def _fail_job_and_await_its_end(self, error: InputDataError | OSError) -> None:
        """Report an error, which fails the job, and wait for the end of the job."""
        if isinstance(error, InputDataError):
            self._on_error(error)
        else:
            cause = f"{error.strerror or error} ({error.filename})" if error.filename else str(error)
            self._on_error(
                InputDataError(f"Data download failed:channel {self._pipe_feed.channel.name}: {cause}")
            )
        job_end_poll = select.poll()
        job_end_poll.register(self._job_end_fd, select.POLLIN)
        job_end_poll.poll()  # the descriptor becomes readable when the write end of its pipe is closed

    def _create_fifo(self, epoch: int) -> _Fifo:
        return _Fifo(self._folder_fd, f"{self._pipe_feed.channel.name}_{epoch}")

    def _write_epoch(self, fifo: _Fifo, epoch: int) -> None:
        """Write this host's records of one epoch (they count from 0) to its FIFO. A record is an S3 object or
        a line of a manifest; its payloads are what is sent of it. Raises _JobHasEnded if the job ends
        meanwhile; an error in the data ends it too."""
        fifo_fd = fifo.open(os.O_WRONLY)  # waits for a reader
        try:
            if self._job_has_ended():
                raise _JobHasEnded  # the reader was opened only to wake this thread
            _enlarge_pipe(fifo_fd)  # its buffer, for fewer switches between writer and reader
            os.set_blocking(fifo_fd, False)
            with contextlib.suppress(BrokenPipeError):  # the reader has closed the FIFO early
                for record in self._pipe_feed.records_of_epoch(epoch):
                    for payload in record.payloads:
                        for block in encode_payload(payload, self._pipe_feed.channel, self._object_store):
                            self._write_block(fifo_fd, block)
            # Before the reader gets the end of file: a second open must not find the FIFO.
            fifo.remove()
        except (InputDataError, OSError) as error:
            # While the write end is open: the reader must not take an error for the end of the data.
            self._fail_job_and_await_its_end(error)
            raise _JobHasEnded from None
        finally:
            os.close(fifo_fd)

    def _write_block(self, fifo_fd: int, block: bytes | memoryview) -> None:
        """Write a block to a FIFO, whose descriptor ``fifo_fd`` is non-blocking. Raises _JobHasEnded if
        the job ends before the reader has taken all of it."""
        remaining_bytes = memoryview(block)
        while remaining_bytes:
            try:
                written_count = os.write(fifo_fd, remaining_bytes)
                remaining_bytes = remaining_bytes[written_count:]
            except BlockingIOError:  # the pipe is full: wait for the reader, or for the end of the job
                fifo_poll = select.poll()
                fifo_poll.register(fifo_fd, select.POLLOUT)
                fifo_poll.register(self._job_end_fd, select.POLLIN)  # readable when the job has ended
                ready_fds = {descriptor for descriptor, _ in fifo_poll.poll()}
                if self._job_end_fd in ready_fds:
                    raise _JobHasEnded from None

    def _job_has_ended(self) -> bool:
        poll = select.poll()
        poll.register(self._job_end_fd, select.POLLIN)
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
        self._path_fd = None if path_only_flag is None else self._require_fifo(self._open(path_only_flag))

    def open(self, flags: int) -> int:
        if self._path_fd is None:
            return self._require_fifo(self._open(flags))
        return os.open(f"/proc/self/fd/{self._path_fd}", flags | os.O_CLOEXEC)

    def _open(self, flags: int) -> int:
        return os.open(self._name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder)

    def _require_fifo(self, descriptor: int) -> int:
        """Return the descriptor if it is a FIFO's. Raises OSError otherwise."""
        file_stat = os.fstat(descriptor)
        if stat.S_ISFIFO(file_stat.st_mode):
            return descriptor
        os.close(descriptor)
        raise OSError(
            errno.EINVAL, f"another process has put {file_type_name(file_stat)} in its place", self._name
        )

    def remove(self) -> None:
        with contextlib.suppress(OSError):  # a script may have replaced it, by a directory for example
            os.unlink(self._name, dir_fd=self._folder)

    def close(self) -> None:
        if self._path_fd is not None:
            os.close(self._path_fd)
            self._path_fd = None


def _enlarge_pipe(pipe: int) -> None:
    """Enlarge a pipe's buffer where the system allows it, for fewer switches between writer and reader."""
    with contextlib.suppress(AttributeError, OSError):
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _BLOCK_BYTES)


def encode_payload(
    payload: RecordPayload, channel: ChannelSpec, object_store: S3ObjectStore
) -> Iterator[bytes | memoryview]:
    """Yield the bytes that Pipe mode sends for one payload: the body of an S3 object (ObjectAddress), or the
    value of an attribute (bytes). They are decompressed if the channel has CompressionType Gzip, and wrapped
    as a record if it has RecordWrapperType RecordIO. Raises InputDataError."""
    payload_name = (
        f"s3://{payload.bucket}/{payload.key}"
        if isinstance(payload, ObjectAddress)
        else "an attribute's value"
    )
    message_start = f"Data download failed:{payload_name} of channel {channel.name} "
    try:
        with _open_payload(payload, object_store) as body:
            content_stream = cast(BinaryIO, gzip.GzipFile(fileobj=body)) if channel.is_gzipped else body
            if not channel.is_recordio_wrapped:
                yield from _read_blocks(content_stream)
            elif not channel.is_gzipped:
                yield from _wrap_as_recordio(content_stream)
            else:
                # A record begins with its length, which is known only after decompression.
                with tempfile.SpooledTemporaryFile(_MAX_MEMORY_BYTES) as temporary_file:
                    shutil.copyfileobj(content_stream, temporary_file, _BLOCK_BYTES)
                    yield from _wrap_as_recordio(cast(BinaryIO, temporary_file))
    except KeyError:  # raised by the object store for a missing object
        raise InputDataError(f"{message_start}was deleted while the job was running (NoSuchKey)") from None
    except DamagedObject as error:  # its file was changed outside of the local endpoint
        raise InputDataError(f"Data download failed:{error.message}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputDataError(f"{message_start}is not gzip, as CompressionType says: {error}") from None
    except ValueError as error:  # too long for a RecordIO record
        raise InputDataError(f"{message_start}cannot be wrapped: {error}") from None


def _wrap_as_recordio(seekable_stream: BinaryIO) -> Iterator[bytes]:
    """Yield the whole content of a stream as one RecordIO record. Raises ValueError if it is too long."""
    content_bytes = seekable_stream.seek(0, os.SEEK_END)
    seekable_stream.seek(0)
    yield recordio.header(content_bytes)
    yield from _read_blocks(seekable_stream)
    yield recordio.padding(content_bytes)


def _open_payload(payload: RecordPayload, object_store: S3ObjectStore) -> BinaryIO:
    if isinstance(payload, bytes):
        return BytesIO(payload)
    return cast(BinaryIO, object_store.object_body_path(payload.bucket, payload.key).open("rb", buffering=0))


def _read_blocks(stream: BinaryIO) -> Iterator[bytes]:
    while block := stream.read(_BLOCK_BYTES):
        yield block
