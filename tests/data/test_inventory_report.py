"""S3 Inventory reports as AWS documents them, written here in all three formats."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
import pytest

from smlaunch.aws.interfaces import CallError
from smlaunch.cli.main import run_command
from smlaunch.data.inventory_file import Inventory
from smlaunch.data.s3_inventory_report import ReportProgress, inventory_from_report, read_inventory_report
from smlaunch.errors import JobError
from smlaunch.local.endpoint import Endpoint
from tests.data.test_inventory import HOSTILE
from tests.local.client import EndpointClient
from tests.runs.fakes import FakeStorage

MODIFIED_AT = datetime(2026, 11, 21, 12, 34, 56, 789000, timezone.utc)
MANIFEST = "inv/data/all/2026-11-21T00-00Z/manifest.json"
SNAKE = {
    "Bucket": "bucket",
    "Key": "key",
    "VersionId": "version_id",
    "IsLatest": "is_latest",
    "IsDeleteMarker": "is_delete_marker",
    "Size": "size",
    "LastModifiedDate": "last_modified_date",
    "ETag": "e_tag",
    "StorageClass": "storage_class",
}
PLAIN = ["Bucket", "Key", "Size", "LastModifiedDate", "ETag", "StorageClass"]
VERSIONED = ["Bucket", "Key", "VersionId", "IsLatest", "IsDeleteMarker", "Size", "LastModifiedDate", "ETag"]

Rows = Sequence[dict[str, Any]]


def row(key: str, size: int | None, latest: bool = True, deleted: bool = False) -> dict[str, Any]:
    facts = {"VersionId": "v", "IsLatest": latest, "IsDeleteMarker": deleted, "StorageClass": "STANDARD"}
    return {"Bucket": "data", "Key": key, "Size": size, "LastModifiedDate": MODIFIED_AT, "ETag": "e", **facts}


def as_csv(rows: Rows, columns: Sequence[str], encode: Any = quote_plus) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for row_values in rows:
        csv_values = {
            **row_values,
            "Key": encode(row_values["Key"]),
            "LastModifiedDate": "2026-11-21T12:34:56.789Z",
        }
        csv_values = {
            name: str(value).lower() if isinstance(value, bool) else value
            for name, value in csv_values.items()
        }
        writer.writerow(["" if csv_values[name] is None else csv_values[name] for name in columns])
    return gzip.compress(text.getvalue().encode())


def as_columns(rows: Rows, columns: Sequence[str], kind: Any) -> Any:
    arrays = {
        SNAKE[name]: pa.array([entry[name] for entry in rows], kind if name == "LastModifiedDate" else None)
        for name in columns
    }
    return pa.table(arrays)


def as_parquet(rows: Rows, columns: Sequence[str]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(as_columns(rows, columns, pa.timestamp("ms", tz="UTC")), sink)
    return sink.getvalue()


def as_orc(rows: Rows, columns: Sequence[str]) -> bytes:
    rows = [{**entry, "LastModifiedDate": entry["LastModifiedDate"].replace(tzinfo=None)} for entry in rows]
    sink = io.BytesIO()
    pyarrow.orc.write_table(as_columns(rows, columns, pa.timestamp("ns")), sink)
    return sink.getvalue()


def report(kind: str, files: Sequence[bytes], columns: Sequence[str], /, **changes: Any) -> FakeStorage:
    storage = FakeStorage(["dest"])
    entries = []
    for number, content in enumerate(files):
        key = f"inv/data/all/data/{number}.{kind.lower()}"
        storage.put_bytes("dest", key, content)
        digest = hashlib.md5(content).hexdigest()
        entries.append({"key": key, "size": len(content), "MD5checksum": digest})
    manifest = {
        "sourceBucket": "data",
        "destinationBucket": "arn:aws:s3:::dest",
        "version": "2016-11-30",
        "creationTimestamp": "1795219200000",
        "fileFormat": kind,
        "fileSchema": ", ".join(columns),
        "files": entries,
        **changes,
    }
    content = json.dumps(manifest).encode()
    storage.put_bytes("dest", MANIFEST, content)
    checksum = hashlib.md5(content).hexdigest().encode() + b"\n"
    storage.put_bytes("dest", MANIFEST.replace(".json", ".checksum"), checksum)
    return storage


def read(storage: FakeStorage, out: Path, prefix: str = "", **settings: Any) -> list[dict[str, Any]]:
    inventory_from_report(storage, read_inventory_report(storage, "dest", MANIFEST), prefix, out, **settings)
    names = ("key", "size", "etag", "modified")
    return [entry for batch in Inventory(out).batches(names) for entry in batch.to_pylist()]


MAKERS = {"CSV": as_csv, "ORC": as_orc, "Parquet": as_parquet}


@pytest.mark.parametrize("kind", MAKERS)
def test_each_format(tmp_path: Path, kind: str) -> None:
    rows = [row(key, size) for size, key in enumerate(HOSTILE)]
    files = [MAKERS[kind](part, PLAIN) for part in (rows[1::2], rows[::2])]
    entries = read(report(kind, files, PLAIN), tmp_path / "keys.parquet")
    assert [entry["key"] for entry in entries] == sorted(HOSTILE)
    assert {entry["key"]: entry["size"] for entry in entries} == {
        key: size for size, key in enumerate(HOSTILE)
    }
    assert {entry["modified"] for entry in entries} == {MODIFIED_AT}
    assert {entry["etag"] for entry in entries} == {"e"}
    inventory = Inventory(tmp_path / "keys.parquet")
    assert (inventory.bucket, inventory.prefix, inventory.total_bytes) == (
        "data",
        "",
        sum(range(len(HOSTILE))),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["keys.parquet"]


@pytest.mark.parametrize("kind", MAKERS)
def test_of_all_versions_what_is_there_now(tmp_path: Path, kind: str) -> None:
    rows = [
        row("changed", 7),
        row("changed", 6, latest=False),
        row("deleted", None, deleted=True),
        row("deleted", 5, latest=False),
        row("restored", 4),
        row("restored", None, latest=False, deleted=True),
        row("untouched", 0),
    ]
    entries = read(report(kind, [MAKERS[kind](rows, VERSIONED)], VERSIONED), tmp_path / "keys.parquet")
    assert [(entry["key"], entry["size"]) for entry in entries] == [
        ("changed", 7),
        ("restored", 4),
        ("untouched", 0),
    ]


@pytest.mark.parametrize("encode", [quote_plus, quote])
def test_keys_of_csv_are_decoded_however_spaces_are_written(tmp_path: Path, encode: Any) -> None:
    storage = report("CSV", [as_csv([row(key, 1) for key in HOSTILE], PLAIN, encode)], PLAIN)
    assert [entry["key"] for entry in read(storage, tmp_path / "keys.parquet")] == sorted(HOSTILE)


def test_a_prefix_and_files_without_a_row(tmp_path: Path) -> None:
    rows = [row(key, 1) for key in ("a/1", "a/2", "b/1")]
    storage = report("CSV", [gzip.compress(b""), as_csv(rows, PLAIN), b""], PLAIN)
    assert [entry["key"] for entry in read(storage, tmp_path / "keys.parquet", "a/")] == ["a/1", "a/2"]
    assert Inventory(tmp_path / "keys.parquet").prefix == "a/"
    assert read(report("CSV", [], PLAIN), tmp_path / "none.parquet") == []


def test_what_is_not_whole_is_refused_by_name(tmp_path: Path) -> None:
    files = [as_csv([row("a", 1)], PLAIN)]
    out = tmp_path / "keys.parquet"
    storage = report("CSV", files, PLAIN)
    with pytest.raises(JobError, match=r"name the manifest\.json"):
        read_inventory_report(storage, "dest", "inv/data/all/data/0.csv")
    with pytest.raises(JobError, match="does not exist"):
        read_inventory_report(storage, "dest", "inv/manifest.json")
    storage.delete_objects("dest", [MANIFEST.replace(".json", ".checksum")])
    with pytest.raises(JobError, match=r"manifest\.checksum is missing beside it"):
        read(storage, out)
    storage.put_bytes("dest", MANIFEST.replace(".json", ".checksum"), b"0" * 32)
    with pytest.raises(JobError, match=r"its MD5 is .* manifest\.checksum says 0000"):
        read(storage, out)
    for changes, message in (
        ({"fileFormat": "XML"}, "fileFormat 'XML' is not supported; CSV, ORC, Parquet are"),
        ({"files": [{"key": "x"}]}, "not a manifest of an S3 Inventory report: KeyError"),
        ({"fileSchema": "Bucket, Key"}, "0.csv: cannot be read as CSV"),
    ):
        with pytest.raises(JobError, match=message):
            read(report("CSV", files, PLAIN, **changes), tmp_path / message[:9].strip())
    no_size = ["Bucket", "Key", "ETag"]
    with pytest.raises(JobError, match="no column 'size'; add Size to the inventory's optional fields"):
        read(report("CSV", [as_csv([row("a", 1)], no_size)], no_size), tmp_path / "no-size")
    with pytest.raises(JobError, match="'a' is repeated"):
        read(report("CSV", [*files, *files], PLAIN), tmp_path / "twice")
    assert not list(tmp_path.glob("*.parquet"))


@pytest.mark.parametrize("spoil", [lambda content: content[:-1], lambda content: b"x" + content[1:]])
def test_a_spoilt_file_is_found_and_the_others_are_not_read_again(tmp_path: Path, spoil: Any) -> None:
    files = [as_csv([row(f"{number}", number)], PLAIN) for number in range(6)]
    storage, out = report("CSV", files, PLAIN), tmp_path / "keys.parquet"
    damaged_key = "inv/data/all/data/4.csv"
    storage.put_bytes("dest", damaged_key, spoil(files[4]))
    with pytest.raises(JobError, match=r"s3://dest/inv/data/all/data/4\.csv: (has|its MD5)"):
        read(storage, out)
    storage.put_bytes("dest", damaged_key, files[4])
    storage.delete_objects("dest", [f"inv/data/all/data/{number}.csv" for number in range(4)])
    progress_reports: list[ReportProgress] = []
    entries = read(storage, out, resume=True, on_progress=progress_reports.append)
    assert [entry["key"] for entry in entries] == list("012345")
    assert progress_reports[-1] == ReportProgress(
        6, 15, progress_reports[-1].total_bytes, sum(map(len, files))
    )


def test_a_file_that_is_gone(tmp_path: Path) -> None:
    storage = report("CSV", [as_csv([row("a", 1)], PLAIN)], PLAIN)
    storage.delete_objects("dest", ["inv/data/all/data/0.csv"])
    with pytest.raises(CallError, match="NoSuchKey"):
        read(storage, tmp_path / "keys.parquet")


def test_by_the_command(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = report("Parquet", [as_parquet([row("a/1", 5), row("b", 6)], PLAIN)], PLAIN)
    with Endpoint(home) as info:
        client = EndpointClient(info)
        for key, content in storage.objects["dest"].items():
            client.put(key, content)
    command = ["data", "inventory", "--local", "--out", str(tmp_path / "keys.parquet")]
    command += ["--from-s3-inventory", f"s3://tests/{MANIFEST}"]
    assert run_command([*command, "s3://elsewhere/"]) == 2
    assert "the report is of the bucket 'data', not of 'elsewhere'" in capsys.readouterr().err
    assert run_command([*command, "s3://data/a/", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["bucket"], facts["prefix"], facts["objects"], facts["bytes"]) == ("data", "a/", 1, 5)
    assert run_command(command) == 0
    assert "2 objects, 11 bytes" in capsys.readouterr().out
