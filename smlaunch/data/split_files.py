"""Files of a split: for each host a list of its keys, and a manifest for a job of its own.

``lists/`` is the content of a channel of lists (``contract.shard_lists``): an index, and per host JSON lines
with names relative to the prefix. ``smlaunch.train.shard_files`` looks them up below a channel over that
prefix. ``manifests/shard-00003.manifest`` is SageMaker's ManifestFile, ``[{"prefix": "s3://b/p/"}, "name",
...]``. Both are JSON, which can hold any key, and both are in key order. A host without keys gets an empty
list and no manifest: SageMaker does not document how it treats a manifest without names.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from smlaunch.contract.shard_lists import (
    SHARDS_FILE,
    ShardList,
    ShardListIndex,
    find_file_name_problem,
    shard_list_name,
)
from smlaunch.data.inventory_keys import InventoryKeys
from smlaunch.data.split import HostSplit
from smlaunch.errors import JobError, Problem, write_error

LISTS_FOLDER = "lists"
MANIFESTS_FOLDER = "manifests"
SUMMARY_FILE = "split.json"

_MAX_BUFFERED_BYTES = 32 << 20
"""Bytes of all files together that are written at once, while as many more are produced."""

_NEEDS_ESCAPE = re.compile(rb'["\\\x00-\x1f]')

_SPACE = 0x20

_MAX_NAME_BYTES = 255
"""Longest path component on Linux."""


class SplitFiles(NamedTuple):
    """The files of a split, by host, relative to the folder."""

    lists: tuple[str, ...]
    manifests: tuple[str | None, ...]
    """None for a host without keys."""
    invalid_names: int
    """How many names cannot be a file's path below a folder (``a//b``, ``../a``)."""
    first_invalid_name: str
    """The first such name, and why it cannot."""


def write_split(
    inventory_keys: InventoryKeys,
    host_split: HostSplit,
    folder: Path,
    summary: dict[str, Any],
    *,
    channel: str = "train",
) -> SplitFiles:
    """Write the result of a split over hosts into a new or empty folder, atomically: a list of names per
    host, a manifest per host (if the bucket is known) and ``split.json``.

    ``host_split``: which host gets which of the keys. ``summary``: as ``split_inventory`` returns it.
    ``channel``: the channel the lists are for, recorded in the index. Raises JobError if the folder cannot be
    written, and for keys that are repeated or out of order.
    """
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise JobError([Problem("--out", f"{folder} is not empty; name a new folder")])
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary_folder = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            bytes_by_host = [shard["bytes"] for shard in summary["shards"]]  # for the index of the lists
            files = _write_lists_and_manifests(
                inventory_keys, host_split, channel, bytes_by_host, temporary_folder
            )
            summary_text = json.dumps(add_files_to_summary(summary, files), indent=2)
            (temporary_folder / SUMMARY_FILE).write_text(summary_text + "\n")
            temporary_folder.chmod(0o755)  # mkdtemp makes folders that only the owner may read
            temporary_folder.replace(folder)
        except BaseException:
            shutil.rmtree(temporary_folder, ignore_errors=True)
            raise
    except OSError as error:
        raise write_error("--out", folder, error) from error
    return files


def add_files_to_summary(summary: dict[str, Any], split_files: SplitFiles) -> dict[str, Any]:
    """Return the summary with the files of each host added."""
    warnings = list(summary["warnings"])
    if split_files.invalid_names:
        warnings.append(
            f"{split_files.invalid_names:,} keys cannot be files on a host. The manifests contain them, but "
            f"readers of the lists reject them. The first: {split_files.first_invalid_name}."
        )
    rows = zip(summary["shards"], split_files.lists, split_files.manifests, strict=True)
    shards = [{**shard, "list": list_path, "manifest": manifest} for shard, list_path, manifest in rows]
    return {**summary, "warnings": warnings, "shards": shards}


def _write_lists_and_manifests(
    inventory_keys: InventoryKeys,
    host_split: HostSplit,
    channel: str,
    bytes_by_host: Sequence[int],
    folder: Path,
) -> SplitFiles:
    """Write a list of names (lines of JSON) and an S3 manifest (one JSON array) for each host, and the index
    of the lists, below ``folder``, piece by piece: the names of all hosts come in key order. Return the paths
    relative to ``folder``, and how many names cannot be files on a host."""
    hosts = range(host_split.hosts)
    list_paths = [f"{LISTS_FOLDER}/{shard_list_name(host)}" for host in hosts]
    manifest_paths: list[str | None] = [None for _ in hosts]  # without a bucket, and for a host without keys
    for host in hosts:
        if inventory_keys.bucket and host_split.row_counts[host]:
            manifest_paths[host] = f"{MANIFESTS_FOLDER}/shard-{host:05d}.manifest"
    # A manifest is a JSON array: first the prefix, then names relative to it.
    prefix_entry = {"prefix": f"s3://{inventory_keys.bucket}/{inventory_keys.base_prefix}"}
    invalid_name_count, first_name_problem = 0, ""
    with _BufferedFiles(folder) as output_files:  # many files, of which few are open at a time
        for host in hosts:
            output_files.append(list_paths[host], b"")
            manifest_start = b"[" + json.dumps(prefix_entry, ensure_ascii=False).encode()
            output_files.append(manifest_paths[host], manifest_start)  # nothing if the path is None
        for batch in inventory_keys.name_batches():
            # All names as one array of bytes, so that ordinary names need not be checked one by one.
            name_bytes = _join_bytes(batch.names)
            name_problems = _describe_invalid_names(batch.names, name_bytes)
            if name_problems and not invalid_name_count:
                first_name_problem = name_problems[0]
            invalid_name_count += len(name_problems)
            # The host of each name in the batch.
            hosts_of_batch = host_split.hosts_of(batch.start, batch.start + len(batch.names))
            escaped_names = _escape_for_json(batch.names, name_bytes)
            # Each host's names, joined as its files need them, without the outermost quotes.
            for host, list_lines, manifest_entries in _group_names_by_host(escaped_names, hosts_of_batch):
                output_files.append(list_paths[host], b'"', list_lines, b'"\n')
                output_files.append(manifest_paths[host], b',\n"', manifest_entries, b'"')
        for host in hosts:
            output_files.append(manifest_paths[host], b"\n]\n")
        shard_lists = [
            ShardList(shard_list_name(host), host_split.row_counts[host], bytes_by_host[host])
            for host in hosts
        ]
        index = ShardListIndex(channel, tuple(shard_lists))
        output_files.append(f"{LISTS_FOLDER}/{SHARDS_FILE}", index.to_json().encode())
    return SplitFiles(tuple(list_paths), tuple(manifest_paths), invalid_name_count, first_name_problem)


class _BufferedFiles:
    """Many files that are written in pieces, with only one of them open at a time and little of their content
    in memory. A thread writes them, which takes as long as everything else together."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pending_pieces: dict[str, list[bytes | memoryview]] = {}
        self._pending_bytes = 0
        self._executor = ThreadPoolExecutor(1, "lists")
        self._last_write: Future[None] | None = None

    def __enter__(self) -> _BufferedFiles:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._flush()
                self._flush()  # waits for the previous write
        finally:
            self._executor.shutdown()

    def append(self, path: str | None, *pieces: bytes | memoryview) -> None:
        """Append pieces to a file. Ignored if ``path`` is None."""
        if path is None:
            return
        self._pending_pieces.setdefault(path, []).extend(pieces)
        self._pending_bytes += sum(map(len, pieces))
        if self._pending_bytes > _MAX_BUFFERED_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._last_write is not None:
            self._last_write.result()
        self._last_write = self._executor.submit(self._write, self._pending_pieces)
        self._pending_pieces, self._pending_bytes = {}, 0

    def _write(self, pieces_by_path: dict[str, list[bytes | memoryview]]) -> None:
        for path, pieces in pieces_by_path.items():
            file = self._folder / path
            file.parent.mkdir(exist_ok=True)
            with file.open("ab") as stream:
                stream.writelines(pieces)


# ---- names in JSON -----------------------------------------------------------------------------------------


def _group_names_by_host(names: Any, hosts: Any) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Yield for each host that has some of these names: the host, its names as lines, and its names as
    elements of a JSON array. The caller adds the outermost quotes."""
    if not len(names):
        return
    if hosts.min() != hosts.max():
        order = np.argsort(hosts, kind="stable")
        names, hosts = names.take(pa.array(order)), hosts[order]
    group_starts = np.concatenate(([0], np.flatnonzero(np.diff(hosts)) + 1))
    offsets = np.concatenate((group_starts, [len(names)]))
    groups = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), names)
    lines_by_group = _value_views(pc.binary_join(groups, b'"\n"'))
    elements_by_group = _value_views(pc.binary_join(groups, b'",\n"'))
    yield from zip(hosts[group_starts].tolist(), lines_by_group, elements_by_group, strict=True)


def _value_views(values: Any) -> list[memoryview]:
    """Return views of each value's bytes: a copy would take as long as the join did."""
    content = memoryview(values.buffers()[2] or b"")
    return [content[start:stop] for start, stop in pairwise(_offsets(values).tolist())]


def _escape_for_json(names: Any, name_bytes: Any) -> Any:
    """Return the names with all characters escaped that a JSON string must not contain. ``name_bytes``: all
    names joined, as an array, so that ordinary names need not be searched one by one."""
    if not len(name_bytes) or (name_bytes.min() >= _SPACE and not _contains_any(name_bytes, '"', "\\")):
        return names
    escaped_names: list[bytes] = []
    for name in names.to_pylist():
        if _NEEDS_ESCAPE.search(name):
            quoted_name = json.dumps(name.decode(), ensure_ascii=False)
            name = quoted_name[1:-1].encode()
        escaped_names.append(name)
    return pa.array(escaped_names, names.type)


def _describe_invalid_names(names: Any, name_bytes: Any) -> list[str]:
    """Return for each name that cannot be a file below a folder the reason why. ``name_bytes``: all names
    joined, as an array, so that ordinary names need not be checked one by one."""
    if _are_all_ordinary(names, name_bytes):
        return []
    problems = (find_file_name_problem(name.decode()) for name in names.to_pylist())
    return [problem for problem in problems if problem is not None]


def _are_all_ordinary(names: Any, name_bytes: Any) -> bool:
    """Return whether all names can be files, as their bytes show at once: neither empty nor too long, without
    NUL, without ``//`` and ``/.``, not beginning with a dot or slash, and not ending with a slash. False may
    also mean unusual names that can be files."""
    if not len(name_bytes) or name_bytes.min() == 0 or _has_slash_pairs(name_bytes):
        return False
    offsets = _offsets(names) - _offsets(names)[0]
    lengths = np.diff(offsets)
    if lengths.min() == 0 or lengths.max() > _MAX_NAME_BYTES:
        return False
    first_bytes, last_bytes = name_bytes[offsets[:-1]], name_bytes[offsets[1:] - 1]
    return not _contains_any(first_bytes, ".", "/") and not _contains_any(last_bytes, "/")


# Most names are ordinary, and checking them one by one would take longer than everything else together. So
# all names of a batch are checked as one array of bytes: a character that is not in it is in none of the
# names.


def _contains_any(name_bytes: Any, *characters: str) -> bool:
    return any(bool((name_bytes == ord(character)).any()) for character in characters)


def _has_slash_pairs(name_bytes: Any) -> bool:
    """Return whether a slash is followed by another slash or by a dot."""
    for first in (0, 1):
        pairs = name_bytes[first : first + (len(name_bytes) - first) // 2 * 2].view("<u2")
        # "/." is 0x2e2f and "//" is 0x2f2f: the first character is the lower byte.
        if ((pairs | 0x0100) == 0x2F2F).any():
            return True
    return False


def _join_bytes(names: Any) -> Any:
    """Return the bytes of all names, concatenated."""
    offsets, data = _offsets(names), names.buffers()[2]
    if data is None or not len(offsets):
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def _offsets(names: Any) -> Any:
    return np.frombuffer(names.buffers()[1], np.int32)[names.offset : names.offset + len(names) + 1]
