"""``index.json`` of a packed place: what shards there are. Written last, so where it is the pack is whole.

    PLACE/index.json
    PLACE/shards/shard-00000.tar ...     nothing else: this is the prefix to give a job as its input

Names are relative to PLACE. The same input gives the same bytes, here as in the shards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

INDEX = "index.json"
SHARDS = "shards/"
KIND = "smlaunch.shards"
VERSION = "1.1"
"""1.0 had a shard's SHA-256 as ``sha256``."""


@dataclass(frozen=True)
class ShardRecord:
    """``bytes`` of the archive. ``checksum``: ``crc32:`` or ``sha256:`` and its hex digits. ``first`` and
    ``last`` are names of files, in the order of packing."""

    name: str
    bytes: int
    checksum: str
    files: int
    samples: int
    first: str
    last: str


@dataclass(frozen=True)
class ShardIndex:
    """``bytes`` of the files themselves; ``group`` is how samples were kept together."""

    group: str
    files: int
    samples: int
    bytes: int
    shards: tuple[ShardRecord, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"kind": KIND, "version": VERSION, "prefix": SHARDS, **asdict(self)}


def index_json(index: ShardIndex) -> bytes:
    return (json.dumps(index.to_dict(), indent=1, ensure_ascii=False) + "\n").encode()


def read_index(content: bytes) -> ShardIndex:
    """Raises ValueError, in words, for what is not an index of ours or of a newer major version."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ValueError(f"it is not an index of shards (its kind is not {KIND!r})")
    version = str(document.get("version"))
    if version.partition(".")[0] != VERSION.partition(".")[0]:
        raise ValueError(f"its version is {version}; this smlaunch reads {VERSION}")
    try:
        shards = tuple(_record(row) for row in document["shards"])
        files, samples, size = (int(document[name]) for name in ("files", "samples", "bytes"))
        return ShardIndex(str(document["group"]), files, samples, size, shards)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is torn or was edited: {error!r}") from None


def _record(row: Mapping[str, Any]) -> ShardRecord:
    name = str(row["name"])
    if not name.startswith(SHARDS) or "/" in name[len(SHARDS) :] or name == SHARDS:
        raise ValueError(f"a shard called {name!r}")
    first, last = str(row["first"]), str(row["last"])
    checksum = str(row["checksum"]) if "checksum" in row else f"sha256:{row['sha256']}"
    return ShardRecord(name, int(row["bytes"]), checksum, int(row["files"]), int(row["samples"]), first, last)
