"""A split in files: for each host a list of its keys, and a manifest for a job of its own.

``lists/`` is what a channel of lists carries (``protocol.part_lists``): an index, and per host JSON lines
with names relative to the prefix, which ``smlaunch.train.part_files`` finds below a channel over that prefix.
``manifests/part-00003.manifest`` is SageMaker's ManifestFile, ``[{"prefix": "s3://b/p/"}, "name", ...]``.
Both are JSON, in which any key can stand, and in key order. A part without keys has an empty list and no
manifest: what SageMaker makes of a manifest that names nothing is not documented.
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

from smlaunch.data.keys import Keys
from smlaunch.data.split import Split
from smlaunch.errors import JobError, Problem
from smlaunch.protocol.part_lists import PARTS_INDEX, Part, PartsIndex, fault_of, list_name

LISTS = "lists"
MANIFESTS = "manifests"
SUMMARY = "split.json"

_BUFFERED = 32 << 20
"""Bytes of all files together that are written at a time, while as many more are made."""

_ESCAPED = re.compile(rb'["\\\x00-\x1f]')

_SPACE = 0x20

_LONGEST_NAME = 255
"""Bytes: of one component of a path on Linux."""


class Written(NamedTuple):
    """Files by host, relative to the folder; ``manifests`` None for an empty part. ``faults``: how many names
    cannot be a file's path below a folder (``a//b``, ``../a``), and ``fault``: why the first cannot."""

    lists: tuple[str, ...]
    manifests: tuple[str | None, ...]
    faults: int
    fault: str


def write_lists(
    keys: Keys, split: Split, folder: Path, summary: dict[str, Any], *, channel: str = "train"
) -> Written:
    """Writes lists, manifests (where the bucket is known) and ``split.json`` into a folder that is not there
    yet, or is empty; it appears whole or not at all.

    ``summary``: as ``part`` gives it. ``channel``: whose lists they are, for the index. Raises JobError when
    the folder cannot be written, and for keys that are not in order or come twice.
    """
    try:
        if folder.is_dir() and any(folder.iterdir()):
            raise JobError([Problem("--out", f"{folder} is not empty; name a new folder")])
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            bytes_of = [part["bytes"] for part in summary["parts"]]
            written = _write_parts(keys, split, channel, bytes_of, unfinished)
            (unfinished / SUMMARY).write_text(json.dumps(described(summary, written), indent=2) + "\n")
            unfinished.chmod(0o755)
            unfinished.replace(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            raise
    except OSError as error:
        raise JobError([Problem("--out", f"{folder} cannot be written: {error}")]) from error
    return written


def described(summary: dict[str, Any], written: Written) -> dict[str, Any]:
    """The summary with each part's files."""
    warnings = list(summary["warnings"])
    if written.faults:
        warnings.append(
            f"{written.faults:,} keys cannot be files on a host; their manifests are right, but readers of "
            f"the lists will refuse them. The first: {written.fault}."
        )
    files = zip(summary["parts"], written.lists, written.manifests, strict=True)
    parts = [{**part, "list": listed, "manifest": manifest} for part, listed, manifest in files]
    return {**summary, "warnings": warnings, "parts": parts}


def _write_parts(keys: Keys, split: Split, channel: str, bytes_of: Sequence[int], folder: Path) -> Written:
    hosts = range(split.hosts)
    lists = [f"{LISTS}/{list_name(host)}" for host in hosts]
    manifests = [
        f"{MANIFESTS}/part-{host:05d}.manifest" if keys.bucket and split.counts[host] else None
        for host in hosts
    ]
    prefix = {"prefix": f"s3://{keys.bucket}/{keys.base}"}
    faults, fault = 0, ""
    with _Files(folder) as files:
        for host in hosts:
            files.add(lists[host], b"")
            files.add(manifests[host], b"[" + json.dumps(prefix, ensure_ascii=False).encode())
        for batch in keys.batches():
            letters = _letters(batch.names)
            strange = _faults(batch.names, letters)
            faults += len(strange)
            fault = fault or (strange[0] if strange else "")
            chosen = split.hosts_of(batch.start, batch.start + len(batch.names))
            for host, lines, elements in _shares(_quotable(batch.names, letters), chosen):
                files.add(lists[host], b'"', lines, b'"\n')
                files.add(manifests[host], b',\n"', elements, b'"')
        for host in hosts:
            files.add(manifests[host], b"\n]\n")
        index = [Part(list_name(host), split.counts[host], bytes_of[host]) for host in hosts]
        files.add(f"{LISTS}/{PARTS_INDEX}", PartsIndex(channel, tuple(index)).to_json().encode())
    return Written(tuple(lists), tuple(manifests), faults, fault)


class _Files:
    """Many files written bit by bit, with one of them open and little of them in memory. They are written by
    a thread, which takes as long as all the rest."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, list[bytes | memoryview]] = {}
        self._bytes = 0
        self._thread = ThreadPoolExecutor(1, "lists")
        self._writing: Future[None] | None = None

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            if kind is None:
                self._flush()
                self._flush()  # which waits for the one before
        finally:
            self._thread.shutdown()

    def add(self, path: str | None, *pieces: bytes | memoryview) -> None:
        """None: a file that is not wanted."""
        if path is None:
            return
        self._waiting.setdefault(path, []).extend(pieces)
        self._bytes += sum(map(len, pieces))
        if self._bytes > _BUFFERED:
            self._flush()

    def _flush(self) -> None:
        if self._writing is not None:
            self._writing.result()
        self._writing = self._thread.submit(self._write, self._waiting)
        self._waiting, self._bytes = {}, 0

    def _write(self, waiting: dict[str, list[bytes | memoryview]]) -> None:
        for path, pieces in waiting.items():
            file = self._folder / path
            file.parent.mkdir(exist_ok=True)
            with file.open("ab") as stream:
                stream.writelines(pieces)


# ---- names in JSON -----------------------------------------------------------------------------------------


def _shares(names: Any, hosts: Any) -> Iterator[tuple[int, memoryview, memoryview]]:
    """Each host that has some of these names, and they as lines and as elements of an array; the quotes
    around them all are the caller's."""
    if not len(names):
        return
    if hosts.min() != hosts.max():
        order = np.argsort(hosts, kind="stable")
        names, hosts = names.take(pa.array(order)), hosts[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(hosts)) + 1))
    offsets = np.concatenate((starts, [len(names)]))
    groups = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), names)
    lines, elements = (_contents(pc.binary_join(groups, between)) for between in (b'"\n"', b'",\n"'))
    yield from zip(hosts[starts].tolist(), lines, elements, strict=True)


def _contents(values: Any) -> list[memoryview]:
    """Each value where it lies: copying them would take as long as joining them has."""
    content = memoryview(values.buffers()[2] or b"")
    return [content[start:stop] for start, stop in pairwise(_offsets(values).tolist())]


def _quotable(names: Any, letters: Any) -> Any:
    """With everything escaped that may not stand in a JSON string."""
    if not len(letters) or (letters.min() >= _SPACE and not _has(letters, '"', "\\")):
        return names
    escaped = [
        json.dumps(name.decode(), ensure_ascii=False)[1:-1].encode() if _ESCAPED.search(name) else name
        for name in names.to_pylist()
    ]
    return pa.array(escaped, names.type)


def _faults(names: Any, letters: Any) -> list[str]:
    """Why names cannot be files below a folder, for each that cannot."""
    if len(letters) and letters.min() > 0 and not _has_dots_or_slashes(letters):
        offsets = _offsets(names) - _offsets(names)[0]
        lengths = np.diff(offsets)
        if 0 < lengths.min() <= lengths.max() <= _LONGEST_NAME:
            begins, ends = letters[offsets[:-1]], letters[offsets[1:] - 1]
            if not _has(begins, ".", "/") and not _has(ends, "/"):
                return []
    found = (fault_of(name.decode()) for name in names.to_pylist())
    return [fault for fault in found if fault is not None]


# Most names are usual, and looking at them one by one would take longer than everything else together. So all
# names of a batch are looked at as one row of bytes: what that has not, none of them has.


def _has(letters: Any, *wanted: str) -> bool:
    return any(bool((letters == ord(letter)).any()) for letter in wanted)


def _has_dots_or_slashes(letters: Any) -> bool:
    """Whether a slash is followed by another one, or by a dot."""
    for first in (0, 1):
        pairs = letters[first : first + (len(letters) - first) // 2 * 2].view("<u2")
        # "/." is 0x2e2f and "//" 0x2f2f, the first letter being the lower byte.
        if ((pairs | 0x0100) == 0x2F2F).any():
            return True
    return False


def _letters(names: Any) -> Any:
    """The bytes of all names, with nothing between them."""
    offsets, data = _offsets(names), names.buffers()[2]
    if data is None or not len(offsets):
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]]


def _offsets(names: Any) -> Any:
    return np.frombuffer(names.buffers()[1], np.int32)[names.offset : names.offset + len(names) + 1]
