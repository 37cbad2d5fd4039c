"""Which files belong together, and in which order files are packed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal, NamedTuple

from smlaunch.data.tar_writer import NAME_LIMIT, SIZE_LIMIT, NameTooLong, member_size, split_name

Group = Literal["basename", "none"]


class Found(NamedTuple):
    """A file of the source. ``name`` is relative to it; ``size`` in bytes; ``stamp`` changes when the file
    does (nanoseconds of its last change, or 0 where only sizes are known)."""

    name: bytes
    size: int
    stamp: int


@dataclass(frozen=True)
class Listing:
    """Files in packing order: by sample, then by name, both as bytes.

    ``starts``: the index of each sample's first file. ``ends``: bytes that the members up to and with each
    sample take up in an archive.
    """

    names: Sequence[bytes]
    sizes: Sequence[int]
    stamps: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes)


def sample_of(name: bytes) -> bytes:
    """WebDataset's rule: the path up to the first dot of the basename. A leading dot is part of the name."""
    dot = name.find(b".", name.rfind(b"/") + 2)
    return name if dot < 0 else name[:dot]


def listing(found: Iterable[Found], group: Group = "basename") -> Listing:
    """``none``: every file is a sample of its own."""
    rows = sorted(found)
    samples = [sample_of(row.name) for row in rows] if group == "basename" else [row.name for row in rows]
    # Sorted by name a sample may be parted: a.jpg, a.x/1.jpg, a.zip.
    order = sorted(range(len(rows)), key=samples.__getitem__)
    starts = [
        place
        for place, index in enumerate(order)
        if place == 0 or samples[index] != samples[order[place - 1]]
    ]
    rows = [rows[index] for index in order]
    sizes = [row.size for row in rows]
    ends = list(accumulate(map(member_size, sizes)))
    last = [start - 1 for start in starts[1:]] + [len(ends) - 1] * bool(ends)
    names, stamps = [row.name for row in rows], [row.stamp for row in rows]
    return Listing(names, sizes, stamps, starts, [ends[index] for index in last])


def without_sample(names: Iterable[bytes]) -> list[bytes]:
    """Files that WebDataset passes over: their basename has no dot, or begins with one."""
    return [name for name in names if name.find(b".", name.rfind(b"/") + 1) <= name.rfind(b"/") + 1]


def refusals(found: Sequence[Found], *, keys: bool) -> list[tuple[bytes, str]]:
    """(name, why) for each file that cannot be carried, or would be written elsewhere by who unpacks it.

    ``keys``: names are S3 keys, which may be anything; those of a file system have whole components.
    """
    if not keys and _plain(found):
        return []
    problems: list[tuple[bytes, str]] = []
    names = {row.name for row in found}
    for row in found:
        reason = _refused(row.name, row.size)
        if reason is None and keys:
            above = accumulate(row.name.split(b"/")[:-1], _below)
            file = next((folder for folder in above if folder in names), None)
            if file is not None:
                reason = f"lies below {file.decode(errors='replace')!r}, which is itself an object"
        if reason is not None:
            problems.append((row.name, reason))
    return problems


def _below(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name


def _plain(found: Sequence[Found]) -> bool:
    """Whether a glance at all of them is enough."""
    try:
        b"".join([row.name for row in found]).decode()
    except UnicodeDecodeError:
        return False
    return all(len(row.name) <= NAME_LIMIT and row.size < SIZE_LIMIT for row in found)


def _refused(name: bytes, size: int) -> str | None:
    if name.startswith(b"/"):
        return "is an absolute name"
    parts = name.split(b"/")
    if b".." in parts:
        return "has a '..' in it, which leads out of the folder it is unpacked in"
    if b"." in parts or b"" in parts:
        return "has an empty or '.' component, which is lost when it is unpacked"
    if b"\0" in name:
        return "has a NUL character in it"
    try:
        name.decode()
    except UnicodeDecodeError:
        return "is not UTF-8"
    if size >= SIZE_LIMIT:
        return "has 8 GiB or more, which a USTAR header cannot say"
    if len(name) > NAME_LIMIT:
        try:
            split_name(name)
        except NameTooLong:
            return "is too long for USTAR (100 bytes, or 155 and 100 around a slash)"
    return None
