"""Large objects by their parts, over the S3 ports: up, down, and going on with an upload that was cut off.

S3 keeps the parts of an upload that nobody completed, whichever client sent them, and tells their SHA-256.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from smlaunch.data.contents import (
    PART,
    Landing,
    changed,
    combined,
    differs,
    digest_of,
    is_md5,
    known_by,
    new_digest,
    part_size,
    ranges,
    reading,
    written,
)
from smlaunch.data.workers import each
from smlaunch.ports import CallError, Parcel, Part, PartStorage, Unfinished

Moved = Callable[[int, int], None]
GetRange = Callable[[str, str, int, int, "str | None"], Iterator[bytes]]
"""Bucket, key, start, length, ETag: as ``PartStorage.get_range``."""

_LONGEST_PART = 64 << 20
"""Parts of others' uploads up to this size are fetched and checked one by one; larger ones in pieces of
``PART``, and the file is checked when it is whole."""


class PartWise:
    def __init__(self, storage: PartStorage) -> None:
        self._storage = storage

    def put(self, bucket: str, parcel: Parcel, at_once: int, moved: Moved) -> None:
        """``at_once``: parts under way at a time, here as below."""
        self._send(bucket, parcel, at_once, part_size(parcel.size), None, moved)

    def resume(self, bucket: str, parcel: Parcel, at_once: int, moved: Moved) -> bool:
        """Goes on with an upload of this file that was cut off; only what is missing of it is sent.

        False where there is none."""
        try:
            begun = self._storage.unfinished(bucket, parcel.key)
        except CallError:
            return False  # it only saves time, and not everybody who may upload may look for uploads
        for upload in begun:
            size = _uniform(upload, parcel.size)
            if size is not None:
                self._send(bucket, parcel, at_once, size, upload, moved)
                return True
        return False

    def _send(
        self, bucket: str, parcel: Parcel, at_once: int, size: int, begun: Unfinished | None, moved: Moved
    ) -> None:
        upload = begun.upload if begun is not None else self._storage.begin(bucket, parcel.key)
        there = begun.parts if begun is not None else {}
        pieces = list(enumerate(ranges(parcel.size, size), 1))
        sent: dict[int, Part] = {}
        with reading(parcel.path):
            descriptor = os.open(parcel.path, os.O_RDONLY)
        try:
            before = os.fstat(descriptor)

            def send(piece: tuple[int, tuple[int, int]]) -> None:
                number, (start, length) = piece
                with reading(parcel.path):
                    content = os.pread(descriptor, length, start)
                if len(content) != length:
                    raise changed(parcel.path)
                part = there.get(number)
                if part is None or part.sha256 != written("sha256", new_digest("sha256", content).digest()):
                    part = self._storage.put_part(bucket, parcel.key, upload, number, content)
                sent[number] = part
                moved(length, 0)

            each(send, pieces, at_once)
            after = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        if (after.st_size, after.st_mtime_ns) != (parcel.size, before.st_mtime_ns):
            raise changed(parcel.path)
        self._storage.complete(bucket, parcel.key, upload, [sent[number] for number, _ in pieces])
        moved(0, 1)

    def get(self, bucket: str, parcel: Parcel, get_range: GetRange, at_once: int, moved: Moved) -> None:
        check = self._storage.check(bucket, parcel.key)
        known = known_by(check, parcel.size)
        # By its own parts where these are known by their digests: then each is hashed while it is at hand.
        own = check.part if known is not None and check.part is not None else None
        own = own if own is not None and own <= _LONGEST_PART else None
        pieces = list(enumerate(ranges(parcel.size, own or PART)))
        digests = [b""] * len(pieces)
        landing = Landing(parcel.path)
        whole = False
        try:

            def fetch(piece: tuple[int, tuple[int, int]]) -> None:
                number, (start, length) = piece
                digest = new_digest(known[0]) if known is not None and own is not None else None
                got = 0
                for content in get_range(bucket, parcel.key, start, length, parcel.etag):
                    if digest is not None:
                        digest.update(content)
                    landing.write(content, start + got)
                    got += len(content)
                    moved(len(content), 0)
                if got != length:
                    raise differs(parcel.key)
                if digest is not None:
                    digests[number] = digest.digest()

            each(fetch, pieces, at_once)
            if known is not None:
                algorithm, wanted = known
                at_hand = own is not None
                found = (
                    combined(algorithm, digests)
                    if at_hand
                    else digest_of(landing.beside, algorithm, check.part)
                )
                if found != wanted:
                    raise differs(parcel.key)
            whole = True
        finally:
            landing.close(whole=whole)
        moved(0, 1)

    def same(self, bucket: str, parcel: Parcel, path: Path) -> bool | None:
        """Whether the file's content is the object's. None where S3 tells nothing to see it by."""
        if is_md5(parcel.etag) and digest_of(path, "md5", None) == parcel.etag:
            return True
        # An ETag may also be no MD5 sum, or one of the parts' sums: S3 is asked what it is.
        check = self._storage.check(bucket, parcel.key)
        known = known_by(check, parcel.size)
        return None if known is None else digest_of(path, known[0], check.part) == known[1]


def _uniform(upload: Unfinished, size: int) -> int | None:
    """The bytes of each part, where what is there are parts of equal size of a content this large."""
    sizes = {number: part.size for number, part in upload.parts.items()}
    part = max(sizes.values(), default=0)
    if part < (5 << 20) or -(-size // part) > 10_000:  # S3's least and most
        return None
    wanted = {number: length for number, (_, length) in enumerate(ranges(size, part), 1)}
    return part if all(wanted.get(number) == length for number, length in sizes.items()) else None
