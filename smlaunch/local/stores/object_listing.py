"""Pages of an object listing, as S3's ListObjectsV2 makes them."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import NamedTuple

from smlaunch.local.stores.object_index import (
    ObjectInfo,
    ObjectRow,
    first_key_after_prefix,
    object_rows_with_prefix,
)


class ObjectPage(NamedTuple):
    """One page of a listing. ``next_key``: first key of the next page, None on the last page."""

    rows: list[ObjectRow]
    prefixes: list[str]
    next_key: bytes | None

    @property
    def objects(self) -> list[ObjectInfo]:
        return [row.object_info for row in self.rows]


def read_page(
    connection: sqlite3.Connection,
    bucket: str,
    prefix: bytes,
    delimiter: bytes,
    first_key: bytes,
    max_entries: int,
) -> ObjectPage:
    """Return the objects with a prefix and the common prefixes, at most ``max_entries`` of both together,
    from ``first_key`` on. Keys that have ``delimiter`` after the prefix are rolled up into one common prefix;
    an empty delimiter rolls up none."""
    rows: list[ObjectRow] = []
    common_prefixes: list[str] = []
    next_key: bytes | None = max(prefix, first_key)
    while next_key is not None:  # one query for each common prefix, and a last one
        # The cursor is closed before the connection is reused: the next user may write.
        with closing(object_rows_with_prefix(connection, bucket, prefix, next_key)) as row_cursor:
            next_key = None
            for object_row in row_cursor:
                if len(rows) + len(common_prefixes) == max_entries:
                    return ObjectPage(rows, common_prefixes, next_key=object_row.key)
                # None without the delimiter after the prefix.
                key_common_prefix = _common_prefix(object_row.key, prefix, delimiter)
                if key_common_prefix is not None:
                    # The next query begins after all keys with this common prefix.
                    common_prefixes.append(key_common_prefix.decode())
                    next_key = first_key_after_prefix(key_common_prefix)
                    break
                rows.append(object_row)
    return ObjectPage(rows, common_prefixes, next_key=None)


def _common_prefix(key: bytes, prefix: bytes, delimiter: bytes) -> bytes | None:
    """Return the key's part up to the first delimiter after ``prefix``; None without one."""
    if not delimiter:
        return None
    delimiter_index = key.find(delimiter, len(prefix))
    return None if delimiter_index < 0 else key[: delimiter_index + len(delimiter)]
