"""Which files form one sample, and in which order files are packed."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from itertools import accumulate, compress, count
from operator import gt, ne
from typing import Literal, NamedTuple

from smlaunch.data.tar_writer import BLOCK_BYTES, MAX_NAME_BYTES, SIZE_LIMIT_BYTES, NameTooLong, prefix_length

Grouping = Literal["basename", "none"]


class SourceFiles(NamedTuple):
    """The files of a source, in any order.

    Three columns, here and in ``PackingList``: a million rows take ten times as long to create and to sort.
    """

    names: Sequence[bytes]
    """Relative to the source."""
    sizes: Sequence[int]
    """In bytes."""
    mtimes_ns: Sequence[int]
    """Nanoseconds of the last change; 0 if only sizes are known."""


@dataclass(frozen=True)
class PackingList:
    """Files in packing order: by sample, then by name, both as bytes."""

    names: Sequence[bytes]
    sizes: Sequence[int]
    mtimes_ns: Sequence[int]
    sample_starts: Sequence[int]
    """Index of each sample's first file."""
    sample_ends: Sequence[int]
    """Bytes that the members up to and including each sample take up in an archive."""
    unkeyed_names: Sequence[bytes]
    """Names without a sample key, which WebDataset skips. Empty without grouping."""

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes)


def sample_key(name: bytes) -> bytes:
    """Return the key by WebDataset's rule: the path up to the first dot of the basename. A leading dot is
    part of the name."""
    dot = name.find(b".", name.rfind(b"/") + 2)
    return name if dot < 0 else name[:dot]


def make_packing_list(files: SourceFiles, grouping: Grouping = "basename") -> PackingList:
    """Return the files in packing order: sorted by sample, then by name, with the bounds of the samples. With
    ``grouping="none"`` every file is a sample of its own; otherwise files with the same path up to the first
    dot of the basename are one."""
    files = _sort_files_by(files, files.names)
    # The key of each file's sample, and the names that have no key of their own.
    keys, unkeyed_names = _compute_sample_keys(files.names) if grouping == "basename" else (files.names, [])
    if any(map(gt, keys, keys[1:])):  # any key is greater than the next
        # In the order of names a sample may be interrupted: a.jpg, a.x/1.jpg, a.zip.
        files = _sort_files_by(files, keys)
        keys, unkeyed_names = _compute_sample_keys(files.names)
    names, sizes, mtimes_ns = files  # a sequence of each, with an item per file
    sample_starts: list[int] = []  # indices of the samples' first files
    if names:
        is_new_sample = map(ne, keys, keys[1:])  # for each file after the first: has it another key
        sample_starts = [0, *compress(count(1), is_new_sample)]
    # Each file takes up a header of one block, then its content in whole blocks.
    file_ends = list(accumulate([(size + 2 * BLOCK_BYTES - 1) & -BLOCK_BYTES for size in sizes]))
    next_sample_starts = [*sample_starts[1:], len(names)] if names else []
    # In bytes, as the ends of the files.
    sample_ends = [file_ends[next_start - 1] for next_start in next_sample_starts]
    return PackingList(
        names=names,
        sizes=sizes,
        mtimes_ns=mtimes_ns,
        sample_starts=sample_starts,
        sample_ends=sample_ends,
        unkeyed_names=unkeyed_names,
    )


def _sort_files_by(files: SourceFiles, sort_keys: Sequence[bytes]) -> SourceFiles:
    """Return the files sorted by ``sort_keys``; files with equal keys keep their order."""
    if not any(map(gt, sort_keys, sort_keys[1:])):
        return files
    order = sorted(range(len(sort_keys)), key=sort_keys.__getitem__)
    return SourceFiles(
        names=[files.names[index] for index in order],
        sizes=[files.sizes[index] for index in order],
        mtimes_ns=[files.mtimes_ns[index] for index in order],
    )


def _compute_sample_keys(names: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    """Return each name's sample key, and the names that WebDataset skips: those whose basename has no dot or
    begins with one."""
    keys: list[bytes] = []
    skipped_names: list[bytes] = []
    for name in names:
        basename_start = name.rfind(b"/") + 1
        dot = name.find(b".", basename_start)
        if dot > basename_start:  # as ``sample_key``, which takes twice as long for an ordinary name
            keys.append(name[:dot])
        else:
            keys.append(sample_key(name))
            skipped_names.append(name)
    return keys, skipped_names


def unpackable_files(files: SourceFiles, *, are_s3_keys: bool) -> list[tuple[bytes, str]]:
    """Return (name, reason) for each file that cannot be packed, or that would be unpacked to another path.

    ``are_s3_keys``: names are S3 keys, which may contain anything: one may even be a folder of others. Names
    of a file system have non-empty components."""
    # One check of all names together usually shows that none of them needs to be looked at alone.
    if not are_s3_keys and _are_all_names_plain(files):
        return []
    problems: list[tuple[bytes, str]] = []
    names = set(files.names)
    for name, size in zip(files.names, files.sizes, strict=True):
        reason = _find_unpackable_reason(name, size)
        if reason is None and are_s3_keys:
            reason = _find_parent_object_reason(name, names)  # a folder above it is an object too
        if reason is not None:
            problems.append((name, reason))
    return problems


def _find_parent_object_reason(name: bytes, all_names: Set[bytes]) -> str | None:
    """Return that one of the folders above ``name`` is also an object's name, so that it cannot be unpacked;
    None if there is no such object."""
    parent_folders = accumulate(name.split(b"/")[:-1], _join_path)  # a, a/b, ... of a/b/.../name
    parent_object = next((folder for folder in parent_folders if folder in all_names), None)
    if parent_object is None:
        return None
    return f"lies below {parent_object.decode(errors='replace')!r}, which is itself an object"


def _join_path(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name


def _are_all_names_plain(files: SourceFiles) -> bool:
    """Return whether one check of all names together shows that all of them can be packed."""
    try:
        b"".join(files.names).decode()
    except UnicodeDecodeError:
        return False
    longest_name, largest_size = max(map(len, files.names), default=0), max(files.sizes, default=0)
    return longest_name <= MAX_NAME_BYTES and largest_size < SIZE_LIMIT_BYTES


def _find_unpackable_reason(name: bytes, size: int) -> str | None:
    """Return why a file of this name and size cannot be a member of a tar archive in USTAR format, or would
    be unpacked to another path; None if it can."""
    if name.startswith(b"/"):
        return "is an absolute name"
    components = name.split(b"/")
    if b".." in components:
        return "contains '..', which leads out of the folder it is unpacked in"
    if b"." in components or b"" in components:
        return "contains an empty or '.' component, which is lost when it is unpacked"
    if b"\0" in name:
        return "contains a NUL character"
    try:
        name.decode()
    except UnicodeDecodeError:
        return "is not UTF-8"
    if size >= SIZE_LIMIT_BYTES:
        return "has 8 GiB or more, which a USTAR header cannot express"
    if len(name) > MAX_NAME_BYTES:
        try:
            prefix_length(name)  # where a long name can be divided into USTAR's two fields
        except NameTooLong:
            return "is too long for USTAR (100 bytes, or 155 and 100 around a slash)"
    return None
