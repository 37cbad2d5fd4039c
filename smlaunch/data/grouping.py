"""Which files belong together, and in which order files are packed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import gt, ne
from typing import Literal

from smlaunch.data.tar_writer import NAME_LIMIT, SIZE_LIMIT, NameTooLong, member_size, split_name

Group = Literal["basename", "none"]


Found = tuple[bytes, int, int]
"""A file of the source: its name, relative to it; its size in bytes; a stamp that changes when the file does
(nanoseconds of its last change, or 0 where only sizes are known). Plain tuples: there are millions of them.
"""


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
    names = [name for name, _, _ in rows]
    samples = names
    if group == "basename":
        # sample_of, without a call for each.
        samples = [
            name if (dot := name.find(b".", name.rfind(b"/") + 2)) < 0 else name[:dot] for name in names
        ]
        if any(map(gt, samples, samples[1:])):
            # Sorted by name a sample may be parted: a.jpg, a.x/1.jpg, a.zip.
            order = sorted(range(len(rows)), key=samples.__getitem__)
            rows, samples = [rows[index] for index in order], [samples[index] for index in order]
            names = [name for name, _, _ in rows]
    sizes, stamps = [size for _, size, _ in rows], [stamp for _, _, stamp in rows]
    starts = [0] * bool(rows) + [place for place, new in enumerate(map(ne, samples, samples[1:]), 1) if new]
    ends = list(accumulate([member_size(size) for size in sizes]))
    pasts = [*starts[1:], len(rows)] if rows else []
    return Listing(names, sizes, stamps, starts, [ends[past - 1] for past in pasts])


def without_sample(names: Iterable[bytes]) -> list[bytes]:
    """Files that WebDataset passes over: their basename has no dot, or begins with one."""
    return [name for name in names if name.rpartition(b"/")[2].find(b".") < 1]


def refusals(found: Sequence[Found], *, keys: bool) -> list[tuple[bytes, str]]:
    """(name, why) for each file that cannot be carried, or would be written elsewhere by who unpacks it.

    ``keys``: names are S3 keys, which may be anything; those of a file system have whole components.
    """
    if not keys and _plain(found):
        return []
    problems: list[tuple[bytes, str]] = []
    names = {name for name, _, _ in found}
    for name, size, _ in found:
        reason = _refused(name, size)
        if reason is None and keys:
            above = accumulate(name.split(b"/")[:-1], _below)
            file = next((folder for folder in above if folder in names), None)
            if file is not None:
                reason = f"lies below {file.decode(errors='replace')!r}, which is itself an object"
        if reason is not None:
            problems.append((name, reason))
    return problems


def _below(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name


def _plain(found: Sequence[Found]) -> bool:
    """Whether a glance at all of them is enough."""
    try:
        b"".join([name for name, _, _ in found]).decode()
    except UnicodeDecodeError:
        return False
    longest = max([len(name) for name, _, _ in found], default=0)
    largest = max([size for _, size, _ in found], default=0)
    return longest <= NAME_LIMIT and largest < SIZE_LIMIT


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
