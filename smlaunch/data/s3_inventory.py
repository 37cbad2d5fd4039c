"""An S3 Inventory report (CSV, ORC or Parquet) as an inventory: nothing is listed.

What a report is made of: S3 user guide, "Locating your inventory list" and "Amazon S3 Inventory list". It
shows the bucket as it was when S3 began it, and may lack what was written shortly before.
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

from smlaunch.data.inventory import SCHEMA, InventoryWriter
from smlaunch.data.runs import Runs
from smlaunch.errors import JobError, Problem
from smlaunch.ports import ObjectStorage

_AT_ONCE = 2
"""Files of the report that are fetched and read at a time. pyarrow reads with threads of its own besides."""

_RUN_ROWS = 524_288
_BATCH_ROWS = 65_536

_FORMATS = ("CSV", "ORC", "Parquet")

_WANTED = ("key", "size", "etag", "lastmodifieddate", "islatest", "isdeletemarker")
"""Columns, named as ``_plain`` does: the formats differ in how they write them."""


class ReportFile(NamedTuple):
    key: str
    size: int
    md5: str


@dataclass(frozen=True)
class Report:
    """What the manifest says. ``columns``: of CSV files, which do not name their own."""

    place: str
    bucket: str
    source: str
    format: str
    columns: Sequence[str]
    files: Sequence[ReportFile]
    md5: str


class Progress(NamedTuple):
    """``read`` of ``whole``: bytes of the report's files. ``objects`` and ``bytes``: what they list."""

    objects: int
    bytes: int
    read: int
    whole: int


def read_report(storage: ObjectStorage, bucket: str, key: str) -> Report:
    """The report with this ``manifest.json``, compared with its ``manifest.checksum``.

    Raises JobError when it is not there, not whole or not what AWS documents; CallError as the storage does.
    """
    place = f"s3://{bucket}/{key}"
    content = storage.get_bytes(bucket, key)
    if content is None:
        raise _wrong(place, "is not there")
    folder, _, name = key.rpartition("/")
    if name != "manifest.json":
        raise _wrong(place, "an S3 Inventory report is given by its manifest.json")
    checksum = storage.get_bytes(bucket, f"{folder}/manifest.checksum" if folder else "manifest.checksum")
    if checksum is None:
        raise _wrong(
            place, "manifest.checksum is not beside it: S3 writes it last, so the report is not whole"
        )
    found, said = _md5(content).hexdigest(), checksum.decode("ascii", "replace").strip()
    if found != said.lower():
        raise _wrong(place, f"its MD5 is {found}, manifest.checksum says {said}")
    try:
        manifest = json.loads(content)
        files = [ReportFile(str(f["key"]), int(f["size"]), str(f["MD5checksum"])) for f in manifest["files"]]
        kind, source = str(manifest["fileFormat"]), str(manifest["sourceBucket"])
        columns = [name.strip() for name in str(manifest.get("fileSchema", "")).split(",")]
    except (ValueError, KeyError, TypeError) as error:
        raise _wrong(place, f"is no manifest of an S3 Inventory report: {error!r}") from error
    if kind not in _FORMATS:
        raise _wrong(place, f"fileFormat {kind!r} is not read; {', '.join(_FORMATS)} are")
    return Report(place, bucket, source, kind, columns if kind == "CSV" else (), files, found)


def from_report(
    storage: ObjectStorage,
    report: Report,
    prefix: str,
    out: Path,
    *,
    resume: bool = False,
    heard: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Writes the inventory of the report's objects whose keys begin with ``prefix``.

    Of a report of all versions: what is there now. Files that an earlier command has read are not read again
    with ``resume``. Raises JobError (a file is not what the manifest says it is) and CallError.
    """
    with Runs(out, {"report": report.place, "md5": report.md5, "prefix": prefix}, resume=resume) as runs:
        reading = _Reading(storage, report, prefix, runs, heard)
        reading.read_all()
        with InventoryWriter(out, report.source, prefix) as file:
            for table in runs.merged():
                file.write(table)
        runs.remove()
    whole = sum(one.size for one in report.files)
    return Progress(file.objects, file.bytes, whole, whole)


class _Reading:
    def __init__(
        self,
        storage: ObjectStorage,
        report: Report,
        prefix: str,
        runs: Runs,
        heard: Callable[[Progress], None],
    ) -> None:
        self._storage, self._report, self._prefix, self._runs = storage, report, prefix, runs
        self._heard, self._lock = heard, Lock()
        finished = {taken["file"] for taken, _, _ in runs.taken() if taken["last"]}
        runs.keep_only(lambda taken: taken["file"] in finished)
        self._to_read = [number for number in range(len(report.files)) if number not in finished]
        self._objects = self._bytes = 0
        for _, rows, size in runs.taken():
            self._objects += rows
            self._bytes += size
        self._read = sum(report.files[number].size for number in finished)
        self._whole = sum(one.size for one in report.files)

    def read_all(self) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            waiting = [pool.submit(self._read_file, number) for number in self._to_read]
            try:
                for done in as_completed(waiting):
                    done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _read_file(self, number: int) -> None:
        file = self._report.files[number]
        local = self._runs.folder / f"file-{number}.tmp"
        place = f"s3://{self._report.bucket}/{file.key}"
        try:
            self._fetch(file, local)
        except OSError as error:
            raise _wrong(str(local), f"cannot be written: {error}") from error
        held: list[Any] = []
        rows = 0
        try:
            for columns in _open(local, self._report):
                held.append(current_objects(columns, self._prefix, place, self._report.format == "CSV"))
                rows += held[-1].num_rows
                if rows >= _RUN_ROWS:
                    self._add(held, number, last=False)
                    held, rows = [], 0
        except (pa.ArrowException, UnicodeDecodeError) as error:
            raise _wrong(place, f"cannot be read as {self._report.format}: {error}") from error
        self._add(held, number, last=True)
        local.unlink()

    def _fetch(self, file: ReportFile, local: Path) -> None:
        place = f"s3://{self._report.bucket}/{file.key}"
        seen, size = _md5(), 0
        with local.open("wb") as target:
            for chunk in self._storage.chunks(self._report.bucket, file.key):
                seen.update(chunk)
                target.write(chunk)
                size += len(chunk)
                self._tell(read=len(chunk))
        if size != file.size:
            raise _wrong(place, f"has {size:,} bytes, the manifest says {file.size:,}")
        if seen.hexdigest() != file.md5.lower():
            raise _wrong(place, f"its MD5 is {seen.hexdigest()}, the manifest says {file.md5}")

    def _add(self, tables: list[Any], number: int, last: bool) -> None:
        table = pa.concat_tables([SCHEMA.empty_table(), *tables])
        self._runs.add(table, {"file": number, "last": last})
        self._tell(objects=table.num_rows, size=pc.sum(table.column("size"), min_count=0).as_py())

    def _tell(self, objects: int = 0, size: int = 0, read: int = 0) -> None:
        with self._lock:
            self._objects += objects
            self._bytes += size
            self._read += read
            self._heard(Progress(self._objects, self._bytes, self._read, self._whole))


def _open(local: Path, report: Report) -> Iterator[Mapping[str, Any]]:
    """The wanted columns of one file by their plain names, batch by batch."""
    if report.format == "CSV":
        yield from _open_csv(local, report.columns)
    elif report.format == "ORC":
        orc = pyarrow.orc.ORCFile(local)
        names = [name for name in orc.schema.names if _plain(name) in _WANTED]
        for stripe in range(orc.nstripes):
            table = pa.Table.from_batches([orc.read_stripe(stripe, columns=names)])
            yield from _by_plain_name(table.to_batches(max_chunksize=_BATCH_ROWS))
    else:
        with pq.ParquetFile(local, memory_map=True) as parquet:
            names = [name for name in parquet.schema_arrow.names if _plain(name) in _WANTED]
            yield from _by_plain_name(parquet.iter_batches(batch_size=_BATCH_ROWS, columns=names))


def _open_csv(local: Path, columns: Sequence[str]) -> Iterator[Mapping[str, Any]]:
    with local.open("rb") as file:
        start = file.read(2)
    if not start:
        return
    names = [name for name in columns if _plain(name) in _WANTED]
    with pa.input_stream(local, compression="gzip" if start == b"\x1f\x8b" else None) as stream:
        try:
            reader = pyarrow.csv.open_csv(
                stream,
                pyarrow.csv.ReadOptions(column_names=list(columns), block_size=4 << 20, use_threads=False),
                convert_options=pyarrow.csv.ConvertOptions(
                    column_types=dict.fromkeys(columns, pa.string()),
                    include_columns=names,
                    strings_can_be_null=False,
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV" in str(error):
                return
            raise
        yield from _by_plain_name(reader)


def _by_plain_name(batches: Any) -> Iterator[Mapping[str, Any]]:
    for batch in batches:
        yield {_plain(name): batch.column(name) for name in batch.schema.names}


def _plain(name: str) -> str:
    """``LastModifiedDate`` and ``last_modified_date`` are the same column."""
    return name.replace("_", "").lower()


def current_objects(columns: Mapping[str, Any], prefix: str, place: str, encoded: bool) -> Any:
    """The rows that are objects now, as a table of an inventory's columns."""
    for name in ("key", "size"):
        if name not in columns:
            what = (
                "Size to the inventory's optional fields" if name == "size" else "nothing: AWS always has it"
            )
            raise _wrong(place, f"the report has no column {name!r}; add {what}")
    table = pa.table(dict(columns))
    if "islatest" in columns:
        table = table.filter(_true(table.column("islatest")))
    if "isdeletemarker" in columns:
        table = table.filter(pc.invert(_true(table.column("isdeletemarker"))))
    keys = decoded(table.column("key")) if encoded else table.column("key").cast(pa.string())
    table = table.set_column(table.schema.get_field_index("key"), "key", keys)
    if prefix:
        table = table.filter(pc.starts_with(table.column("key"), prefix))
    sizes = table.column("size").cast(pa.int64())
    if sizes.null_count:
        raise _wrong(place, f"{sizes.null_count:,} objects have no size")
    empty = pa.nulls(table.num_rows, pa.string())
    etags = table.column("etag").cast(pa.string()) if "etag" in columns else empty
    modified = _in_utc(table.column("lastmodifieddate") if "lastmodifieddate" in columns else empty)
    return pa.table([table.column("key"), sizes, etags, modified], schema=SCHEMA)


def _true(column: Any) -> Any:
    if pa.types.is_boolean(column.type):
        return pc.fill_null(column, False)
    return pc.equal(pc.utf8_lower(column), "true")


def _in_utc(column: Any) -> Any:
    kind = SCHEMA.field("modified").type
    if pa.types.is_timestamp(column.type) and column.type.tz is None:
        return pc.assume_timezone(column.cast(pa.timestamp("us"), safe=False), "UTC").cast(kind)
    if pa.types.is_timestamp(column.type):
        return column.cast(kind, safe=False)
    return pc.if_else(pc.equal(column, ""), None, column).cast(kind)


def decoded(keys: Any) -> Any:
    """Keys of a CSV report, which are URL-encoded: ``%2F``, and ``+`` for a space."""
    # Of most keys the slashes are all there is; and a percent sign only ever begins an escape.
    keys = pc.replace_substring(keys, "%2F", "/")
    escaped = pc.match_substring_regex(keys, "[%+]")
    if not pc.any(escaped, min_count=0).as_py():
        return keys
    texts = [unquote_plus(text, errors="strict") for text in keys.filter(escaped).to_pylist()]
    keys, escaped = (column.combine_chunks() for column in (keys, escaped))
    return pc.replace_with_mask(keys, escaped, pa.array(texts, pa.string()))


def _md5(content: bytes = b"") -> Any:
    return hashlib.md5(content, usedforsecurity=False)


def _wrong(place: str, message: str) -> JobError:
    return JobError([Problem(place, message)])
