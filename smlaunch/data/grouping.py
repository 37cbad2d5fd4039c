"""Which files belong together, and in which order files are packed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, count
from operator import gt, ne
from typing import Literal, NamedTuple

from smlaunch.data.tar_writer import BLOCK, NAME_LIMIT, SIZE_LIMIT, NameTooLong, split_name

Group = Literal["basename", "none"]


class Found(NamedTuple):
    """The files of a source, in any order. ``names``: relative to it; ``sizes`` in bytes; ``stamps`` change
    when a file does (nanoseconds of its last change, or 0 where only sizes are known).

    Three columns, here and in a listing: a million rows take ten times as long to make and to sort.
    """

    names: Sequence[bytes]
    sizes: Sequence[int]
    stamps: Sequence[int]


@dataclass(frozen=True)
class Listing:
    """Files in packing order: by sample, then by name, both as bytes.

    ``starts``: the index of each sample's first file. ``ends``: bytes that the members up to and with each
    sample take up in an archive. ``alone``: names that WebDataset passes over, where it is to read them.
    """

    names: Sequence[bytes]
    sizes: Sequence[int]
    stamps: Sequence[int]
    starts: Sequence[int]
    ends: Sequence[int]
    alone: Sequence[bytes]

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes)


def sample_of(name: bytes) -> bytes:
    """WebDataset's rule: the path up to the first dot of the basename. A leading dot is part of the name."""
    dot = name.find(b".", name.rfind(b"/") + 2)
    return name if dot < 0 else name[:dot]


def listing(found: Found, group: Group = "basename") -> Listing:
    """``none``: every file is a sample of its own."""
    found = _ordered(found, found.names)
    samples, alone = _samples(found.names) if group == "basename" else (found.names, [])
    if any(map(gt, samples, samples[1:])):
        # Sorted by name a sample may be parted: a.jpg, a.x/1.jpg, a.zip.
        found = _ordered(found, samples)
        samples, alone = _samples(found.names)
    names, sizes, stamps = found
    starts = [0] * bool(names) + list(compress(count(1), map(ne, samples, samples[1:])))
    # A header, and the content in whole blocks.
    ends = list(accumulate([(size + 2 * BLOCK - 1) & -BLOCK for size in sizes]))
    pasts = [*starts[1:], len(names)] if names else []
    return Listing(names, sizes, stamps, starts, [ends[past - 1] for past in pasts], alone)


def _ordered(found: Found, by: Sequence[bytes]) -> Found:
    """Those with equal keys in ``by`` stay in their order."""
    if not any(map(gt, by, by[1:])):
        return found
    order = sorted(range(len(by)), key=by.__getitem__)
    names, sizes, stamps = found
    return Found(
        [names[index] for index in order],
        [sizes[index] for index in order],
        [stamps[index] for index in order],
    )


def _samples(names: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """``sample_of`` each, with a call only for those that WebDataset passes over: their basename has no dot,
    or begins with one. These come second."""
    samples = [
        name[:dot] if (dot := name.find(b".", start := name.rfind(b"/") + 1)) > start else b""
        for name in names
    ]
    odd = [index for index, sample in enumerate(samples) if not sample]
    for index in odd:
        samples[index] = sample_of(names[index])
    return samples, [names[index] for index in odd]


def refusals(found: Found, *, keys: bool) -> list[tuple[bytes, str]]:
    """(name, why) for each file that cannot be carried, or would be written elsewhere by who unpacks it.

    ``keys``: names are S3 keys, which may be anything; those of a file system have whole components.
    """
    if not keys and _plain(found):
        return []
    problems: list[tuple[bytes, str]] = []
    names = set(found.names)
    for name, size in zip(found.names, found.sizes, strict=True):
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


def _plain(found: Found) -> bool:
    """Whether a glance at all of them is enough."""
    try:
        b"".join(found.names).decode()
    except UnicodeDecodeError:
        return False
    longest, largest = max(map(len, found.names), default=0), max(found.sizes, default=0)
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
