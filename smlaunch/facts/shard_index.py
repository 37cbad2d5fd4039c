"""The index that ``smlaunch data pack`` writes beside its shards, as a plan reads it."""

from __future__ import annotations

import json

SHARD_FOLDER = "shards/"
SHARD_INDEX_NAME = "index.json"
"""Where ``smlaunch data pack`` writes the shards and, last, their index."""


def shard_names(index: bytes) -> tuple[str, ...] | None:
    """Return the names of the shards relative to the packed prefix; None if ``index`` is not one of
    ``smlaunch data pack``."""
    try:
        document = json.loads(index)
        major_version = str(document["version"]).partition(".")[0]
        if document["kind"] != "smlaunch.shards" or major_version != "1":
            return None
        return tuple(str(row["name"]) for row in document["shards"])
    except (ValueError, KeyError, TypeError):
        return None
