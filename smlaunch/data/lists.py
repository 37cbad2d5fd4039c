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
"""Bytes kept back over all files together before they are written."""

_ESCAPED = re.compile(rb'["\\\x00-\x1f]')

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
    files = _Files(folder)
    prefix = {"prefix": f"s3://{keys.bucket}/{keys.base}"}
    for host in hosts:
        files.add(lists[host], b"")
        files.add(manifests[host], b"[" + json.dumps(prefix, ensure_ascii=False).encode())
    faults, fault = 0, ""
    for batch in keys.batches():
        strange = _faults(batch.names)
        faults += len(strange)
        fault = fault or (strange[0] if strange else "")
        chosen = split.hosts_of(batch.start, batch.start + len(batch.names))
        for host, joined in _shares(_quotable(batch.names), chosen):
            files.add(lists[host], b'"' + joined + b'"\n')
            # A line end in a key is escaped: these are the ends of lines only.
            files.add(manifests[host], b',\n"' + joined.replace(b"\n", b",\n") + b'"')
    for host in hosts:
        files.add(manifests[host], b"\n]\n")
    index = [Part(list_name(host), split.counts[host], bytes_of[host]) for host in hosts]
    files.add(f"{LISTS}/{PARTS_INDEX}", PartsIndex(channel, tuple(index)).to_json().encode())
    files.flush()
    return Written(tuple(lists), tuple(manifests), faults, fault)


class _Files:
    """Many files written bit by bit, with one of them open and little of them in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting: dict[str, list[bytes]] = {}
        self._bytes = 0

    def add(self, path: str | None, content: bytes) -> None:
        """None: a file that is not wanted."""
        if path is None:
            return
        self._waiting.setdefault(path, []).append(content)
        self._bytes += len(content)
        if self._bytes > _BUFFERED:
            self.flush()

    def flush(self) -> None:
        for path, pieces in self._waiting.items():
            file = self._folder / path
            file.parent.mkdir(exist_ok=True)
            with file.open("ab") as stream:
                stream.writelines(pieces)
        self._waiting, self._bytes = {}, 0


# ---- names in JSON -----------------------------------------------------------------------------------------


def _shares(names: Any, hosts: Any) -> Iterator[tuple[int, bytes]]:
    """Each host that has some of these names, and they as ``name"\\n"name"\\n"name``."""
    if not len(names):
        return
    if hosts.min() != hosts.max():
        order = np.argsort(hosts, kind="stable")
        names, hosts = names.take(pa.array(order)), hosts[order]
    starts = np.concatenate(([0], np.flatnonzero(np.diff(hosts)) + 1))
    offsets = np.concatenate((starts, [len(names)]))
    wide = pa.types.is_large_binary(names.type)
    grouped = pa.LargeListArray if wide else pa.ListArray
    lists = grouped.from_arrays(pa.array(offsets, pa.int64() if wide else pa.int32()), names)
    for host, joined in zip(hosts[starts].tolist(), pc.binary_join(lists, b'"\n"'), strict=True):
        yield host, joined.as_py()


def _quotable(names: Any) -> Any:
    """With everything escaped that may not stand in a JSON string."""
    content = _content(names)
    usual = b'"' not in content and b"\\" not in content
    if usual and (not content or np.frombuffer(content, np.uint8).min() >= 0x20):
        return names
    escaped = [
        json.dumps(name.decode(), ensure_ascii=False)[1:-1].encode() if _ESCAPED.search(name) else name
        for name in names.to_pylist()
    ]
    return pa.array(escaped, names.type)


def _faults(names: Any) -> list[str]:
    """Why names cannot be files below a folder, for each that cannot."""
    content, offsets = _content(names), _offsets(names)
    lengths = np.diff(offsets)
    usual = b"//" not in content and b"/." not in content and b"\0" not in content
    if usual and (not len(names) or 0 < lengths.min() <= lengths.max() <= _LONGEST_NAME):
        letters = np.frombuffer(content, np.uint8)
        begins, ends = letters[offsets[:-1] - offsets[0]], letters[offsets[1:] - offsets[0] - 1]
        if not np.isin(begins, (ord("."), ord("/"))).any() and not (ends == ord("/")).any():
            return []
    found = (fault_of(name.decode()) for name in names.to_pylist())
    return [fault for fault in found if fault is not None]


def _content(names: Any) -> bytes:
    """All names with nothing between them: what this has not, none of them has."""
    offsets, data = _offsets(names), names.buffers()[2]
    if data is None or not len(offsets):
        return b""
    content: bytes = data.slice(int(offsets[0]), int(offsets[-1] - offsets[0])).to_pybytes()
    return content


def _offsets(names: Any) -> Any:
    kind = np.int64 if pa.types.is_large_binary(names.type) else np.int32
    return np.frombuffer(names.buffers()[1], kind)[names.offset : names.offset + len(names) + 1]
