"""Convert an S3 Inventory report (CSV, ORC or Parquet) into an inventory, without listing the bucket.

The parts of a report: S3 user guide, "Locating your inventory list" and "Amazon S3 Inventory list". A report
shows the bucket as it was when S3 began it, and may lack objects written shortly before.
"""

from __future__ import annotations

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
from smlaunch.data.inventory_file import SCHEMA, InventoryWriter
from smlaunch.data.s3_checksums import new_digest
from smlaunch.data.sorted_runs import SortedRuns
from smlaunch.errors import JobError, Problem, write_error

_CONCURRENT_FILES = 2
"""Files of the report that are downloaded and read at a time. pyarrow uses threads of its own as well."""

_RUN_ROWS = 524_288
_BATCH_ROWS = 65_536

_SUPPORTED_FORMATS = ("CSV", "ORC", "Parquet")

_USED_COLUMN_NAMES = ("key", "size", "etag", "lastmodifieddate", "islatest", "isdeletemarker")
"""Columns by their normalized names (``_normalize_name``): the formats spell them differently."""


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


def _verify_manifest_md5(
    storage: ObjectStorage, bucket: str, folder: str, uri: str, manifest_content: bytes
) -> str:
    """Return the MD5 of a report's ``manifest.json``, after comparing it with ``manifest.checksum`` in the
    same folder. Raises JobError if that is missing or differs. ``uri``: of the manifest, for messages."""
    stated_checksum = storage.get_bytes(
        bucket, f"{folder}/manifest.checksum" if folder else "manifest.checksum"
    )
    if stated_checksum is None:
        raise _report_error(
            uri, "manifest.checksum is missing beside it: S3 writes it last, so the report is incomplete"
        )
    computed_md5 = new_digest("md5", manifest_content).hexdigest()
    stated_md5 = stated_checksum.decode("ascii", "replace").strip()
    if computed_md5 != stated_md5.lower():
        raise _report_error(uri, f"its MD5 is {computed_md5}, manifest.checksum says {stated_md5}")
    return computed_md5


def read_inventory_report(storage: ObjectStorage, bucket: str, key: str) -> InventoryReport:
    """Return the S3 Inventory report whose ``manifest.json`` is at ``key``, after comparing it with its
    ``manifest.checksum``.

    Raises JobError if it is missing, incomplete or not as AWS documents it; CallError as the storage does.
    """
    uri = f"s3://{bucket}/{key}"
    manifest_content = storage.get_bytes(bucket, key)
    if manifest_content is None:
        raise _report_error(uri, "does not exist")
    folder, _, name = key.rpartition("/")
    if name != "manifest.json":
        raise _report_error(uri, "name the manifest.json of an S3 Inventory report")
    computed_md5 = _verify_manifest_md5(storage, bucket, folder, uri, manifest_content)
    try:
        manifest = json.loads(manifest_content)
        files = [
            ReportFile(key=str(entry["key"]), size=int(entry["size"]), md5=str(entry["MD5checksum"]))
            for entry in manifest["files"]
        ]
        file_format, source_bucket = str(manifest["fileFormat"]), str(manifest["sourceBucket"])
        columns = [name.strip() for name in str(manifest.get("fileSchema", "")).split(",")]
    except (ValueError, KeyError, TypeError) as error:
        raise _report_error(uri, f"is not a manifest of an S3 Inventory report: {error!r}") from error
    if file_format not in _SUPPORTED_FORMATS:
        raise _report_error(
            uri, f"fileFormat {file_format!r} is not supported; {', '.join(_SUPPORTED_FORMATS)} are"
        )
    return InventoryReport(
        uri=uri,
        bucket=bucket,
        source_bucket=source_bucket,
        format=file_format,
        columns=columns if file_format == "CSV" else (),  # other formats name them in each file
        files=files,
        md5=computed_md5,
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
            for table in runs.iter_merged_tables():
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
        self._storage, self._report, self._prefix, self._sorted_runs = storage, report, prefix, runs
        self._on_progress, self._lock = on_progress, Lock()
        # Of an interrupted read: files whose last run was saved. The others are read again.
        finished_files = {covered["file"] for covered, _, _ in runs.coverage() if covered["last"]}
        runs.remove_unless(lambda covered: covered["file"] in finished_files)
        self._unread_files = [index for index in range(len(report.files)) if index not in finished_files]
        self._objects = self._bytes = 0
        for _, object_count, object_bytes in runs.coverage():
            self._objects += object_count
            self._bytes += object_bytes
        self._read_bytes = sum(report.files[index].size for index in finished_files)
        self._total_bytes = sum(report_file.size for report_file in report.files)

    def read_all(self) -> None:
        with ThreadPoolExecutor(_CONCURRENT_FILES) as pool:
            futures = [pool.submit(self._read_report_file, number) for number in self._unread_files]
            try:
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _read_report_file(self, file_index: int) -> None:
        """Download one file of the S3 Inventory report, and save its current objects as sorted runs on disk,
        which are merged later. Raises JobError if it cannot be read or written."""
        report_file = self._report.files[file_index]
        local_path = self._sorted_runs.folder / f"file-{file_index}.tmp"
        uri = f"s3://{self._report.bucket}/{report_file.key}"
        try:
            self._download_and_verify(report_file, local_path)
        except OSError as error:
            raise write_error("--out", local_path, error) from error
        object_tables: list[Any] = []
        row_count = 0
        try:
            for columns in _iter_used_columns(local_path, self._report):
                object_tables.append(
                    select_current_objects(columns, self._prefix, uri, self._report.format == "CSV")
                )
                row_count += object_tables[-1].num_rows
                if row_count >= _RUN_ROWS:  # a run is sorted in memory
                    self._save_run(object_tables, file_index, is_last=False)
                    object_tables, row_count = [], 0
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise _report_error(uri, f"cannot be read as {self._report.format}: {error}") from error
        # A file without a last run is read again if the listing is resumed.
        self._save_run(object_tables, file_index, is_last=True)
        local_path.unlink()

    def _download_and_verify(self, report_file: ReportFile, local_path: Path) -> None:
        """Download one file of the S3 Inventory report to ``local_path``. Raises JobError if its size or MD5
        differs from the report's manifest."""
        uri = f"s3://{self._report.bucket}/{report_file.key}"
        md5, size = new_digest("md5"), 0
        with local_path.open("wb") as stream:
            for chunk in self._storage.read_chunks(self._report.bucket, report_file.key):
                md5.update(chunk)
                stream.write(chunk)
                size += len(chunk)
                self._add_progress(read_bytes=len(chunk))
        if size != report_file.size:
            raise _report_error(uri, f"has {size:,} bytes, the manifest says {report_file.size:,}")
        if md5.hexdigest() != report_file.md5.lower():
            raise _report_error(uri, f"its MD5 is {md5.hexdigest()}, the manifest says {report_file.md5}")

    def _save_run(self, tables: list[Any], number: int, is_last: bool) -> None:
        table = pa.concat_tables([SCHEMA.empty_table(), *tables])
        self._sorted_runs.add(table, {"file": number, "last": is_last})
        self._add_progress(
            objects=table.num_rows, size_bytes=pc.sum(table.column("size"), min_count=0).as_py()
        )

    def _add_progress(self, objects: int = 0, size_bytes: int = 0, read_bytes: int = 0) -> None:
        with self._lock:
            self._objects += objects
            self._bytes += size_bytes
            self._read_bytes += read_bytes
            self._on_progress(ReportProgress(self._objects, self._bytes, self._read_bytes, self._total_bytes))


def _iter_used_columns(local_path: Path, report: InventoryReport) -> Iterator[Mapping[str, Any]]:
    """Yield the used columns (key, size, ETag and the like) of one downloaded file of a report, batch by
    batch: a mapping from the normalized column name to the batch's values."""
    if report.format == "CSV":  # without a header: the report states the columns
        yield from _iter_csv_columns(local_path, report.columns)
    elif report.format == "ORC":
        orc = pyarrow.orc.ORCFile(local_path)
        # Normalized: in lower case, without underscores.
        used_column_names = [name for name in orc.schema.names if _normalize_name(name) in _USED_COLUMN_NAMES]
        for stripe in range(orc.nstripes):  # the units in which ORC files are read
            table = pa.Table.from_batches([orc.read_stripe(stripe, columns=used_column_names)])
            yield from _iter_columns_by_name(table.to_batches(max_chunksize=_BATCH_ROWS))
    else:
        with pq.ParquetFile(local_path, memory_map=True) as parquet:
            used_column_names = [
                name for name in parquet.schema_arrow.names if _normalize_name(name) in _USED_COLUMN_NAMES
            ]
            yield from _iter_columns_by_name(
                parquet.iter_batches(batch_size=_BATCH_ROWS, columns=used_column_names)
            )


def _iter_csv_columns(local_path: Path, all_column_names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the used columns (key, size, ETag and the like) of a CSV file, which may be compressed: one
    mapping per batch of rows, from the normalized column name to the batch's values. ``all_column_names``:
    names of all columns, which the file does not state."""
    with local_path.open("rb") as file:
        first_bytes = file.read(2)
    if not first_bytes:  # an empty file: no objects
        return
    # Normalized: in lower case, without underscores.
    used_column_names = [name for name in all_column_names if _normalize_name(name) in _USED_COLUMN_NAMES]
    compression = "gzip" if first_bytes == b"\x1f\x8b" else None  # gzip's magic number
    with pa.input_stream(local_path, compression=compression) as stream:
        try:
            reader = pyarrow.csv.open_csv(
                stream,
                pyarrow.csv.ReadOptions(
                    column_names=list(all_column_names), block_size=4 << 20, use_threads=False
                ),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(all_column_names, pa.string()),
                    include_columns=used_column_names,
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):  # a compressed file without content
                return
            raise
        yield from _iter_columns_by_name(reader)


def _iter_columns_by_name(batches: Any) -> Iterator[Mapping[str, Any]]:
    """Yield one mapping per batch of rows: the batch's columns by their normalized names."""
    for batch in batches:
        yield {_normalize_name(name): batch.column(name) for name in batch.schema.names}


def _normalize_name(name: str) -> str:
    """Return the same name for ``LastModifiedDate`` and ``last_modified_date``."""
    return name.replace("_", "").lower()


def select_current_objects(columns: Mapping[str, Any], prefix: str, uri: str, is_url_encoded: bool) -> Any:
    """Return the rows of an S3 Inventory report that are current objects below the prefix, as a table with an
    inventory's columns. Former versions and delete markers are left out.

    ``columns``: the report's, by normalized name. ``uri``: of the report's file, for messages.
    ``is_url_encoded``: keys are (in CSV). Raises JobError for a missing column or size.
    """
    for name in ("key", "size"):
        if name not in columns:
            # S3 Inventory has sizes only if they are configured.
            remedy = (
                "Size to the inventory's optional fields" if name == "size" else "nothing: AWS always has it"
            )
            raise _report_error(uri, f"the report has no column {name!r}; add {remedy}")
    table = pa.table(dict(columns))
    # Both columns are booleans, or the texts "true" and "false".
    if "islatest" in columns:  # a report on all versions
        table = table.filter(_is_true_text(table.column("islatest")))
    if "isdeletemarker" in columns:
        table = table.filter(pc.invert(_is_true_text(table.column("isdeletemarker"))))
    encoded_keys = table.column("key")
    keys = url_decode_keys(encoded_keys) if is_url_encoded else encoded_keys.cast(pa.string())
    table = table.set_column(table.schema.get_field_index("key"), "key", keys)
    if prefix:
        table = table.filter(pc.starts_with(table.column("key"), prefix))
    sizes = table.column("size").cast(pa.int64())
    if sizes.null_count:
        raise _report_error(uri, f"{sizes.null_count:,} objects have no size")
    unknown_values = pa.nulls(table.num_rows, pa.string())
    etags = table.column("etag").cast(pa.string()) if "etag" in columns else unknown_values
    modified_times = table.column("lastmodifieddate") if "lastmodifieddate" in columns else unknown_values
    return pa.table([table.column("key"), sizes, etags, _to_utc(modified_times)], schema=SCHEMA)


def _is_true_text(column: Any) -> Any:
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


def url_decode_keys(keys: Any) -> Any:
    """Return the keys of a CSV report decoded: they are URL-encoded, ``%2F`` and ``+`` for a space."""
    # Most keys have only slashes escaped; and a percent sign always begins an escape.
    keys = pc.replace_substring(keys, "%2F", "/").combine_chunks()
    has_other_escapes = pc.match_substring_regex(keys, "[%+]")
    if not pc.any(has_other_escapes, min_count=0).as_py():
        return keys
    decoded_keys = [unquote_plus(key, errors="strict") for key in keys.filter(has_other_escapes).to_pylist()]
    return pc.replace_with_mask(keys, has_other_escapes, pa.array(decoded_keys, pa.string()))


def _report_error(location: str, message: str) -> JobError:
    return JobError([Problem(location, message)])
