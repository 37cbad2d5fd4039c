"""Many files, or large ones, to and from S3: by obstore where it is there, by the S3 ports otherwise.

obstore (Rust) takes a tenth of botocore's time for small objects, and half of it for large ones. It only
speeds things up: a key or a setup that it has no way with goes by the ports, and so does everything else once
it has failed, so that an error is always S3's own answer to botocore.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from threading import Event
from typing import Protocol

from smlaunch.data.contents import LARGE, Landing, differs, is_md5, new_digest, read_whole
from smlaunch.data.transfer_parts import Moved, PartWise
from smlaunch.data.workers import Abandoned, each
from smlaunch.errors import JobError, Problem
from smlaunch.ports import ObjectStorage, Parcel, PartStorage

AT_ONCE = 10
"""Connections that a botocore client keeps (its default); more would wait for each other."""

_LARGE_AT_ONCE = 4
"""Large files; the connections are shared out among them."""

_KEPT_FROM = 1 << 30
"""Bytes from which on it is worth more that what has been sent outlives an error or Ctrl-C than that it goes
faster: obstore gives up the parts of an upload that it cannot end."""

_PAYS_FROM = 16
"""Objects; loading obstore takes as long as a few of them."""

_LONGEST_KEY = 1024
"""Bytes of UTF-8 (S3 user guide, object keys)."""


class QuickFailed(Exception):
    """obstore did not get an object across; the ports are to try."""


class Quick(Protocol):
    """What obstore does for a transfer. Every method raises QuickFailed."""

    def takes(self, key: str) -> bool:
        """Whether the object gets exactly this key."""

    def put(self, bucket: str, key: str, content: bytes) -> None: ...

    def put_file(self, bucket: str, parcel: Parcel, at_once: int, moved: Moved) -> None:
        """In parts. JobError when the file cannot be read or has changed."""

    def get_range(self, bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
        """As PartStorage's; may fail after some pieces."""


class Transfers:
    """Transfer. ``quick`` is asked for when it pays, and returns None where obstore cannot be used."""

    def __init__(self, storage: ObjectStorage, parts: PartStorage, quick: Callable[[], Quick | None]) -> None:
        self._storage = storage
        self._parts = parts
        self._part_wise = PartWise(parts)
        self._open_quick = quick
        self._failed = False

    def put(self, bucket: str, parcels: Sequence[Parcel], moved: Moved) -> None:
        _refuse_keys(parcels)
        quick = self._quick_for(parcels)
        over, moved = _abandonable(moved)

        def send(parcel: Parcel) -> None:
            content = read_whole(parcel)
            if not self._tried(quick, parcel.key, lambda using: using.put(bucket, parcel.key, content)):
                self._storage.put_bytes(bucket, parcel.key, content)
            moved(parcel.size, 1)

        each(send, (parcel for parcel in parcels if parcel.size < LARGE), AT_ONCE, over)
        large = [parcel for parcel in parcels if parcel.size >= LARGE]
        each(
            lambda parcel: self._put_large(bucket, parcel, _share(large), quick, moved),
            large,
            _LARGE_AT_ONCE,
            over,
        )

    def _put_large(
        self, bucket: str, parcel: Parcel, at_once: int, quick: Quick | None, moved: Moved
    ) -> None:
        if self._part_wise.resume(bucket, parcel, at_once, moved):
            return
        quick = quick if parcel.size < _KEPT_FROM else None
        counted = 0

        def count(size: int, files: int) -> None:
            nonlocal counted
            counted += size
            moved(size, files)

        if not self._tried(quick, parcel.key, lambda using: using.put_file(bucket, parcel, at_once, count)):
            moved(-counted, 0)
            self._part_wise.put(bucket, parcel, at_once, moved)

    def get(self, bucket: str, parcels: Sequence[Parcel], moved: Moved) -> None:
        quick = self._quick_for(parcels)
        over, moved = _abandonable(moved)

        def get_range(bucket: str, key: str, start: int, length: int, etag: str | None) -> Iterator[bytes]:
            got = 0
            if quick is not None and not self._failed and quick.takes(key):
                try:
                    for piece in quick.get_range(bucket, key, start, length, etag):
                        got += len(piece)
                        yield piece
                    return
                except QuickFailed:
                    self._failed = True
            if got < length:
                yield from self._parts.get_range(bucket, key, start + got, length - got, etag)

        def fetch(parcel: Parcel) -> None:
            pieces = get_range(bucket, parcel.key, 0, parcel.size, parcel.etag) if parcel.size else ()
            self._land(bucket, parcel, b"".join(pieces))
            moved(parcel.size, 1)

        each(fetch, (parcel for parcel in parcels if parcel.size < LARGE), AT_ONCE, over)
        large = [parcel for parcel in parcels if parcel.size >= LARGE]
        at_once = _share(large)
        each(
            lambda parcel: self._part_wise.get(bucket, parcel, get_range, at_once, moved),
            large,
            _LARGE_AT_ONCE,
            over,
        )

    def is_there(self, bucket: str, parcel: Parcel) -> bool:
        """Whether the file has the object's very content already. False where that cannot be known."""
        try:
            if parcel.path.stat().st_size != parcel.size:
                return False
            return self._part_wise.same(bucket, parcel, parcel.path) is True
        except OSError:
            return False

    def _land(self, bucket: str, parcel: Parcel, content: bytes) -> None:
        if len(content) != parcel.size:
            raise differs(parcel.key)
        landing = Landing(parcel.path)
        whole = False
        try:
            landing.write(content, 0)
            at_once = is_md5(parcel.etag) and new_digest("md5", content).hexdigest() == parcel.etag
            if not at_once and self._part_wise.same(bucket, parcel, landing.beside) is False:
                raise differs(parcel.key)
            whole = True
        finally:
            landing.close(whole=whole)

    # ---- obstore -----------------------------------------------------------------------------------------

    @cached_property
    def _quick(self) -> Quick | None:
        return self._open_quick()

    def _quick_for(self, parcels: Sequence[Parcel]) -> Quick | None:
        pays = len(parcels) >= _PAYS_FROM or any(parcel.size >= LARGE for parcel in parcels)
        return self._quick if pays else None

    def _tried(self, quick: Quick | None, key: str, action: Callable[[Quick], None]) -> bool:
        if quick is None or self._failed or not quick.takes(key):
            return False
        try:
            action(quick)
        except QuickFailed:
            self._failed = True
            return False
        return True


def _abandonable(moved: Moved) -> tuple[Event, Moved]:
    """Large files look whether the transfer is over with every part that moves."""
    over = Event()

    def look(size: int, files: int) -> None:
        if over.is_set() and not files:
            raise Abandoned
        moved(size, files)

    return over, look


def _share(large: Sequence[Parcel]) -> int:
    """Parts at a time of each large file."""
    return AT_ONCE // max(1, min(len(large), _LARGE_AT_ONCE))


def _refuse_keys(parcels: Sequence[Parcel]) -> None:
    """Names that S3 has no key for: all of them at once, before anything is sent."""
    problems: list[Problem] = []
    for parcel in parcels:
        try:
            length = len(parcel.key.encode())
        except UnicodeEncodeError:
            text = f"the name of {str(parcel.path)!r} is not UTF-8, as S3's keys are; rename it, or pack it"
            problems.append(Problem("inputs", text))
            continue
        if length > _LONGEST_KEY:
            text = (
                f"{parcel.path}: its key would have {length:,} bytes, and S3's have at most {_LONGEST_KEY:,}"
            )
            problems.append(Problem("inputs", text))
    if problems:
        raise JobError(problems)
