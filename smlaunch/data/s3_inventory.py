"""Convert an S3 Inventory report (CSV, ORC or Parquet) into an inventory, without listing the bucket.

The parts of a report: S3 user guide, "Locating your inventory list" and "Amazon S3 Inventory list". A report
shows the bucket as it was when S3 began it, and may lack objects written shortly before.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.orc
import pyarrow.parquet as pq

from smlaunch.aws.interfaces import ObjectStorage
from smlaunch.data.inventory import SCHEMA, InventoryWriter
from smlaunch.data.sorted_runs import SortedRuns
from smlaunch.errors import JobError, Problem

_CONCURRENT_FILES = 2
"""Files of the report that are downloaded and read at a time. pyarrow uses threads of its own as well."""

_RUN_ROWS = 524_288
_BATCH_ROWS = 65_536

_FORMATS = ("CSV", "ORC", "Parquet")

_USED_COLUMN_NAMES = ("key", "size", "etag", "lastmodifieddate", "islatest", "isdeletemarker")
"""Columns by their normalized names (``_normalized_name``): the formats spell them differently."""


class ReportFile(NamedTuple):
    key: str
    size: int
    md5: str


@dataclass(frozen=True)
class InventoryReport:
    """The manifest of a report."""

    uri: str
    bucket: str
    source_bucket: str
    format: str
    columns: Sequence[str]
    """Columns of CSV files, which have no header line."""
    files: Sequence[ReportFile]
    md5: str


class ReportProgress(NamedTuple):
    """Progress of reading a report: ``read_bytes`` of ``total_bytes`` of its files. ``objects`` and
    ``bytes``: the objects listed so far, and their size."""

    objects: int
    bytes: int
    read_bytes: int
    total_bytes: int


def read_report(storage: ObjectStorage, bucket: str, key: str) -> InventoryReport:
    """Return the report with this ``manifest.json``, after comparing it with its ``manifest.checksum``.

    Raises JobError if it is missing, incomplete or not as AWS documents it; CallError as the storage does.
    """
    uri = f"s3://{bucket}/{key}"
    content = storage.get_bytes(bucket, key)
    if content is None:
        raise _error(uri, "does not exist")
    folder, _, name = key.rpartition("/")
    if name != "manifest.json":
        raise _error(uri, "name the manifest.json of an S3 Inventory report")
    checksum = storage.get_bytes(bucket, f"{folder}/manifest.checksum" if folder else "manifest.checksum")
    if checksum is None:
        raise _error(
            uri, "manifest.checksum is missing beside it: S3 writes it last, so the report is incomplete"
        )
    computed_md5, stated_md5 = _md5(content).hexdigest(), checksum.decode("ascii", "replace").strip()
    if computed_md5 != stated_md5.lower():
        raise _error(uri, f"its MD5 is {computed_md5}, manifest.checksum says {stated_md5}")
    try:
        manifest = json.loads(content)
        files = [
            ReportFile(str(entry["key"]), int(entry["size"]), str(entry["MD5checksum"]))
            for entry in manifest["files"]
        ]
        file_format, source = str(manifest["fileFormat"]), str(manifest["sourceBucket"])
        columns = [name.strip() for name in str(manifest.get("fileSchema", "")).split(",")]
    except (ValueError, KeyError, TypeError) as error:
        raise _error(uri, f"is not a manifest of an S3 Inventory report: {error!r}") from error
    if file_format not in _FORMATS:
        raise _error(uri, f"fileFormat {file_format!r} is not supported; {', '.join(_FORMATS)} are")
    return InventoryReport(
        uri, bucket, source, file_format, columns if file_format == "CSV" else (), files, computed_md5
    )


def inventory_from_report(
    storage: ObjectStorage,
    report: InventoryReport,
    prefix: str,
    out: Path,
    *,
    resume: bool = False,
    on_progress: Callable[[ReportProgress], None] = lambda progress: None,
) -> ReportProgress:
    """Write the inventory of the report's objects whose keys begin with ``prefix``.

    A report of all versions yields the current ones. With ``resume``, files that an earlier command has read
    are not read again. Raises JobError (a file differs from what the manifest states) and CallError.
    """
    with SortedRuns(out, {"report": report.uri, "md5": report.md5, "prefix": prefix}, resume=resume) as runs:
        reader = _ReportReader(storage, report, prefix, runs, on_progress)
        reader.read_all()
        with InventoryWriter(out, report.source_bucket, prefix) as file:
            for table in runs.merged_tables():
                file.write(table)
        runs.remove()
    total_bytes = sum(report_file.size for report_file in report.files)
    return ReportProgress(file.object_count, file.total_bytes, total_bytes, total_bytes)


class _ReportReader:
    """Reads the files of a report into sorted runs, several at a time."""

    def __init__(
        self,
        storage: ObjectStorage,
        report: InventoryReport,
        prefix: str,
        runs: SortedRuns,
        on_progress: Callable[[ReportProgress], None],
    ) -> None:
        self._storage, self._report, self._prefix, self._runs = storage, report, prefix, runs
        self._on_progress, self._lock = on_progress, Lock()
        finished = {covered["file"] for covered, _, _ in runs.coverage() if covered["last"]}
        runs.remove_unless(lambda covered: covered["file"] in finished)
        self._unread_files = [number for number in range(len(report.files)) if number not in finished]
        self._objects = self._bytes = 0
        for _, rows, size in runs.coverage():
            self._objects += rows
            self._bytes += size
        self._read_bytes = sum(report.files[number].size for number in finished)
        self._total_bytes = sum(report_file.size for report_file in report.files)

    def read_all(self) -> None:
        with ThreadPoolExecutor(_CONCURRENT_FILES) as pool:
            futures = [pool.submit(self._read_file, number) for number in self._unread_files]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _read_file(self, number: int) -> None:
        """Download one file and save its current objects as runs."""
        file = self._report.files[number]
        local_path = self._runs.folder / f"file-{number}.tmp"
        uri = f"s3://{self._report.bucket}/{file.key}"
        try:
            self._download(file, local_path)
        except OSError as error:
            raise _error(str(local_path), f"cannot be written: {error}") from error
        tables: list[Any] = []
        rows = 0
        try:
            for columns in _read_columns(local_path, self._report):
                tables.append(current_objects(columns, self._prefix, uri, self._report.format == "CSV"))
                rows += tables[-1].num_rows
                if rows >= _RUN_ROWS:
                    self._save_rows(tables, number, is_last=False)
                    tables, rows = [], 0
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise _error(uri, f"cannot be read as {self._report.format}: {error}") from error
        self._save_rows(tables, number, is_last=True)
        local_path.unlink()

    def _download(self, file: ReportFile, local_path: Path) -> None:
        """Download a file. Raises JobError if its size or MD5 differs from the manifest."""
        uri = f"s3://{self._report.bucket}/{file.key}"
        digest, size = _md5(), 0
        with local_path.open("wb") as stream:
            for chunk in self._storage.chunks(self._report.bucket, file.key):
                digest.update(chunk)
                stream.write(chunk)
                size += len(chunk)
                self._add_progress(read_bytes=len(chunk))
        if size != file.size:
            raise _error(uri, f"has {size:,} bytes, the manifest says {file.size:,}")
        if digest.hexdigest() != file.md5.lower():
            raise _error(uri, f"its MD5 is {digest.hexdigest()}, the manifest says {file.md5}")

    def _save_rows(self, tables: list[Any], number: int, is_last: bool) -> None:
        table = pa.concat_tables([SCHEMA.empty_table(), *tables])
        self._runs.add(table, {"file": number, "last": is_last})
        self._add_progress(
            objects=table.num_rows, size_bytes=pc.sum(table.column("size"), min_count=0).as_py()
        )

    def _add_progress(self, objects: int = 0, size_bytes: int = 0, read_bytes: int = 0) -> None:
        with self._lock:
            self._objects += objects
            self._bytes += size_bytes
            self._read_bytes += read_bytes
            self._on_progress(ReportProgress(self._objects, self._bytes, self._read_bytes, self._total_bytes))


def _read_columns(local_path: Path, report: InventoryReport) -> Iterator[Mapping[str, Any]]:
    """Yield the used columns of one file by their normalized names, batch by batch."""
    if report.format == "CSV":
        yield from _read_csv(local_path, report.columns)
    elif report.format == "ORC":
        orc = pyarrow.orc.ORCFile(local_path)
        used_names = [name for name in orc.schema.names if _normalized_name(name) in _USED_COLUMN_NAMES]
        for stripe in range(orc.nstripes):
            table = pa.Table.from_batches([orc.read_stripe(stripe, columns=used_names)])
            yield from _batch_columns_by_name(table.to_batches(max_chunksize=_BATCH_ROWS))
    else:
        with pq.ParquetFile(local_path, memory_map=True) as parquet:
            used_names = [
                name for name in parquet.schema_arrow.names if _normalized_name(name) in _USED_COLUMN_NAMES
            ]
            yield from _batch_columns_by_name(
                parquet.iter_batches(batch_size=_BATCH_ROWS, columns=used_names)
            )


def _read_csv(local_path: Path, all_names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the used columns of a CSV file, which may be compressed: one mapping per batch of rows, from the
    normalized column name to the batch's values. ``all_names``: names of all columns, which the file does not
    state."""
    with local_path.open("rb") as file:
        first_bytes = file.read(2)
    if not first_bytes:
        return
    used_names = [name for name in all_names if _normalized_name(name) in _USED_COLUMN_NAMES]
    with pa.input_stream(local_path, compression="gzip" if first_bytes == b"\x1f\x8b" else None) as stream:
        try:
            reader = pyarrow.csv.open_csv(
                stream,
                pyarrow.csv.ReadOptions(column_names=list(all_names), block_size=4 << 20, use_threads=False),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(all_names, pa.string()),
                    include_columns=used_names,
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):
                return
            raise
        yield from _batch_columns_by_name(reader)


def _batch_columns_by_name(batches: Any) -> Iterator[Mapping[str, Any]]:
    """Yield one mapping per batch of rows: the batch's columns by their normalized names."""
    for batch in batches:
        yield {_normalized_name(name): batch.column(name) for name in batch.schema.names}


def _normalized_name(name: str) -> str:
    """Return the same name for ``LastModifiedDate`` and ``last_modified_date``."""
    return name.replace("_", "").lower()


def current_objects(columns: Mapping[str, Any], prefix: str, uri: str, is_url_encoded: bool) -> Any:
    """Return the rows that are current objects, as a table with an inventory's columns."""
    for name in ("key", "size"):
        if name not in columns:
            remedy = (
                "Size to the inventory's optional fields" if name == "size" else "nothing: AWS always has it"
            )
            raise _error(uri, f"the report has no column {name!r}; add {remedy}")
    table = pa.table(dict(columns))
    if "islatest" in columns:
        table = table.filter(_is_true(table.column("islatest")))
    if "isdeletemarker" in columns:
        table = table.filter(pc.invert(_is_true(table.column("isdeletemarker"))))
    keys = decode_keys(table.column("key")) if is_url_encoded else table.column("key").cast(pa.string())
    table = table.set_column(table.schema.get_field_index("key"), "key", keys)
    if prefix:
        table = table.filter(pc.starts_with(table.column("key"), prefix))
    sizes = table.column("size").cast(pa.int64())
    if sizes.null_count:
        raise _error(uri, f"{sizes.null_count:,} objects have no size")
    empty = pa.nulls(table.num_rows, pa.string())
    etags = table.column("etag").cast(pa.string()) if "etag" in columns else empty
    modified = _to_utc(table.column("lastmodifieddate") if "lastmodifieddate" in columns else empty)
    return pa.table([table.column("key"), sizes, etags, modified], schema=SCHEMA)


def _is_true(column: Any) -> Any:
    if pa.types.is_boolean(column.type):
        return pc.fill_null(column, False)
    return pc.equal(pc.utf8_lower(column), "true")


def _to_utc(column: Any) -> Any:
    """Return the times as UTC timestamps; columns of strings and of time zones are converted."""
    timestamp_type = SCHEMA.field("modified").type
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        return pc.assume_timezone(column.cast(pa.timestamp("us"), safe=False), "UTC").cast(timestamp_type)
    if pa.types.is_timestamp(column.type):
        return column.cast(timestamp_type, safe=False)
    return pc.if_else(pc.equal(column, ""), None, column).cast(timestamp_type)


def decode_keys(keys: Any) -> Any:
    """Return the keys of a CSV report decoded: they are URL-encoded, ``%2F`` and ``+`` for a space."""
    # Most keys have only slashes escaped; and a percent sign always begins an escape.
    keys = pc.replace_substring(keys, "%2F", "/")
    escaped = pc.match_substring_regex(keys, "[%+]")
    if not pc.any(escaped, min_count=0).as_py():
        return keys
    texts = [unquote_plus(text, errors="strict") for text in keys.filter(escaped).to_pylist()]
    keys, escaped = (column.combine_chunks() for column in (keys, escaped))
    return pc.replace_with_mask(keys, escaped, pa.array(texts, pa.string()))


def _md5(content: bytes = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)


def _error(location: str, message: str) -> JobError:
    return JobError([Problem(location, message)])
