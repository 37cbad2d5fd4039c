"""``index.json`` of a pack: its shards. It is written last, so where it exists the pack is complete.

    DST/index.json
    DST/shards/shard-00000.tar ...     nothing else: this is the prefix to give a job as its input

Names are relative to DST. The same input gives the same bytes, here and in the shards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from smlaunch.contract import formats

INDEX_FILE = "index.json"
SHARDS_FOLDER = "shards/"
SHARD_INDEX_KIND = "smlaunch.shards"


@dataclass(frozen=True)
class ShardRecord:
    """One shard."""

    name: str
    bytes: int
    """Size of the archive."""
    checksum: str
    """``crc32:`` or ``sha256:`` and hex digits."""
    files: int
    samples: int
    first: str
    """Name of the first file in packing order, as ``last`` is of the last one."""
    last: str


@dataclass(frozen=True)
class ShardIndex:
    """All shards of a pack."""

    group: str
    """How samples were grouped: ``basename`` or ``none``."""
    files: int
    samples: int
    bytes: int
    """Sum of the sizes of the packed files."""
    shards: tuple[ShardRecord, ...]

    def to_dict(self) -> dict[str, Any]:
        return formats.SHARD_INDEX.with_version(
            {"kind": SHARD_INDEX_KIND, "prefix": SHARDS_FOLDER, **asdict(self)}
        )


def encode_shard_index(index: ShardIndex) -> bytes:
    return (json.dumps(index.to_dict(), indent=1, ensure_ascii=False) + "\n").encode()


def parse_shard_index(content: bytes) -> ShardIndex:
    """Return the index of a pack's shards (what they hold in all, and a record of each) from the content of
    its ``index.json``. Raises ValueError for anything else, or for a newer major version of the format."""
    try:
        document = json.loads(content)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if not isinstance(document, dict) or document.get("kind") != SHARD_INDEX_KIND:
        raise ValueError(f"it is not an index of shards (its kind is not {SHARD_INDEX_KIND!r})")
    # From an older version of the format to this one; raises FormatError, a ValueError, for a newer one.
    document = formats.SHARD_INDEX.upgrade_document(document, INDEX_FILE)
    try:
        return ShardIndex(
            group=str(document["group"]),  # how files were grouped into samples
            files=int(document["files"]),
            samples=int(document["samples"]),
            bytes=int(document["bytes"]),
            shards=tuple(_parse_shard_record(row) for row in document["shards"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is incomplete or was edited: {error!r}") from None


def _parse_shard_record(row: Mapping[str, Any]) -> ShardRecord:
    name = str(row["name"])
    if not name.startswith(SHARDS_FOLDER) or "/" in name[len(SHARDS_FOLDER) :] or name == SHARDS_FOLDER:
        raise ValueError(f"a shard called {name!r}")
    return ShardRecord(
        name=name,
        bytes=int(row["bytes"]),
        checksum=str(row["checksum"]),
        files=int(row["files"]),
        samples=int(row["samples"]),
        first=str(row["first"]),
        last=str(row["last"]),
    )
