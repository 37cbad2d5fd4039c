"""The inventory file, and the inventory of a folder."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from smlaunch.data.folder_inventory import list_folder
from smlaunch.data.inventory_file import ROW_GROUP_ROWS, SCHEMA, Inventory, InventoryWriter
from smlaunch.data.sorted_runs import SortedRuns
from smlaunch.errors import JobError

HOSTILE = [
    " leading and trailing ",
    "..hidden/.dots",
    "a//b///c",
    "a\nb\tc\rd",
    "a\x01b",
    'quote"and,comma',
    "percent%2Fplus+amp&eq=",
    "snowman-☃/\U00010348/é",
    "\ufeffbom",
    "k" * 1024,
]
"""Keys that S3 takes."""


def table_of(keys: list[str], sizes: list[int] | None = None) -> Any:
    count = len(keys)
    columns = [pa.array(keys), pa.array(sizes or [1] * count), pa.nulls(count, pa.string())]
    return pa.table([*columns, pa.nulls(count, SCHEMA.field("modified").type)], schema=SCHEMA)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "keys.parquet"
    keys = sorted(HOSTILE)
    with InventoryWriter(path, "bucket", "some/prefix") as file:
        file.write(table_of(keys[:3], [5, 0, 2**40]))
        file.write(table_of([]))
        assert not path.exists(), "it appears whole or not at all"
        file.write(table_of(keys[3:]))
    inventory_read = Inventory(path)
    assert (inventory_read.bucket, inventory_read.prefix, inventory_read.version) == (
        "bucket",
        "some/prefix",
        "1.0",
    )
    assert inventory_read.object_count == len(keys)
    assert inventory_read.total_bytes == 5 + 2**40 + len(keys) - 3
    assert [key for batch in inventory_read.batches() for key in batch.column("key").to_pylist()] == keys
    assert inventory_read.column("size").dtype == np.int64
    assert [path.name for path in tmp_path.iterdir()] == ["keys.parquet"]


def test_row_groups_are_bounded(tmp_path: Path) -> None:
    keys = [f"{number:07d}" for number in range(2 * ROW_GROUP_ROWS + 7)]
    with InventoryWriter(tmp_path / "keys.parquet", "b", "") as file:
        for start in range(0, len(keys), 50_000):
            file.write(table_of(keys[start : start + 50_000]))
    metadata = pq.read_metadata(tmp_path / "keys.parquet")
    rows = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    assert rows == [ROW_GROUP_ROWS, ROW_GROUP_ROWS, 7]


@pytest.mark.parametrize("tables", [[["b", "a"]], [["a", "a"]], [["a", "b"], ["b"]], [["b"], ["a"]]])
def test_a_key_that_comes_twice_is_refused(tmp_path: Path, tables: list[list[str]]) -> None:
    path = tmp_path / "keys.parquet"
    path.write_text("what was there")
    with pytest.raises(JobError, match=f"{tables[-1][-1]!r} is repeated"):  # noqa: SIM117
        with InventoryWriter(path, "b", "") as file:
            for keys in tables:
                file.write(table_of(keys))
    assert path.read_text() == "what was there"
    assert [entry.name for entry in tmp_path.iterdir()] == ["keys.parquet"]


@pytest.mark.parametrize("max_file_bytes", [0, 1000, 100_000])
def test_a_disk_without_room_is_told(tmp_path: Path, max_file_bytes: int) -> None:
    keys = [f"{number * 2654435761 % 2**32:08x}" for number in range(50_000)]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_bytes, limits[1]))
    try:
        with (
            pytest.raises(JobError, match=r"--out: .*keys\.parquet cannot be written: .*File too large"),
            InventoryWriter(tmp_path / "keys.parquet", "b", "") as file,
        ):
            file.write(table_of(sorted(keys)))
        with (
            pytest.raises(JobError, match=r"--out: .*keys\.parquet cannot be written: .*File too large"),
            SortedRuns(tmp_path / "keys.parquet", {}, resume=False) as runs,
        ):
            runs.add(table_of(keys), None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_device_or_folder_is_not_replaced(tmp_path: Path) -> None:
    for path in (Path("/dev/null"), tmp_path):
        with pytest.raises(JobError, match="is no ordinary file"), InventoryWriter(path, "b", ""):
            pass
        with pytest.raises(JobError, match="is no ordinary file"), SortedRuns(path, {}, resume=False):
            pass


def test_what_is_no_inventory_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "keys.parquet"
    with pytest.raises(JobError, match="No such file"):
        Inventory(path)
    path.write_text("a\nb\n")
    with pytest.raises(JobError, match="cannot be read as Parquet"):
        Inventory(path)
    for columns, message in (
        ({"name": ["a"]}, "no column 'key', which an inventory needs; it has: name"),
        ({"key": ["a"]}, "no column 'size'"),
        ({"key": [b"a"], "size": [1]}, "column 'key' must hold text, not binary"),
        ({"key": ["a"], "size": [1.5]}, "column 'size' must hold whole numbers, not double"),
    ):
        pq.write_table(pa.table(columns), path)
        with pytest.raises(JobError, match=message):
            Inventory(path)
    table = pa.table({"key": ["a"], "size": [1], "samples": pa.array([None], pa.int64())})
    pq.write_table(table.replace_schema_metadata({"smlaunch.version": "2.0"}), path)
    with pytest.raises(JobError, match=r"version 2\.0"):
        Inventory(path)
    pq.write_table(table, path)
    assert Inventory(path).weight_columns == ["samples"]
    with pytest.raises(JobError, match="'samples' has no value for 1 objects"):
        Inventory(path).column("samples")


def test_overlapping_runs_come_out_in_order_and_in_pieces(tmp_path: Path) -> None:
    keys = [f"{number * 7919 % 30_011:05d}" for number in range(30_011)]
    with SortedRuns(tmp_path / "out", {"what": "test"}, resume=False) as runs:
        for start in range(0, len(keys), 10_000):
            runs.add(table_of(keys[start : start + 10_000]), [start])
        tables = list(runs.iter_merged_tables(batch_rows=1000))
    merged = [key for table in tables for key in table.column("key").to_pylist()]
    assert merged == sorted(keys)
    assert len(tables) > 1


def test_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    for name in ("b/2.jpg", "b/1.jpg", "a", ".hidden/x y", "new\nline", "é☃"):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * len(name))
    os.utime(folder / "a", ns=(0, 1_700_000_000_123_456_789))
    (folder / "link").symlink_to("/etc/passwd")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    listed_folder = list_folder(folder, tmp_path / "keys.parquet")
    assert listed_folder.skipped == 3
    inventory = Inventory(tmp_path / "keys.parquet")
    rows = [row for batch in inventory.batches(("key", "size", "modified")) for row in batch.to_pylist()]
    assert [row["key"] for row in rows] == [".hidden/x y", "a", "b/1.jpg", "b/2.jpg", "new\nline", "é☃"]
    assert [row["size"] for row in rows] == [11, 1, 7, 7, 8, 2]
    assert rows[1]["modified"] == datetime.fromtimestamp(1_700_000_000, timezone.utc).replace(
        microsecond=123_456
    )
    assert (inventory.bucket, inventory.prefix) == ("", str(folder))
    (folder / os.fsdecode(b"latin-\xe9")).write_text("")
    with pytest.raises(JobError, match="is not UTF-8"):
        list_folder(folder, tmp_path / "keys.parquet")


def test_without_the_extra_one_sentence_says_what_to_install(tmp_path: Path) -> None:
    script = """\
import sys
sys.modules["pyarrow"] = None
from smlaunch.cli.main import run_command
sys.exit(run_command(["data", "inventory", ".", "--out", "keys.parquet"]))
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert result.returncode == 2
    message = (
        "error: this needs pyarrow, which is not installed: pip install '.[data]' in a checkout of smlaunch\n"
    )
    assert result.stderr == message


def test_other_commands_do_not_load_the_extra() -> None:
    check = """\
import sys
import smlaunch, smlaunch.runs.launch_plan, smlaunch.cli.run, smlaunch.cli.plan, smlaunch.cli.data_group
from smlaunch.cli.main import run_command
assert run_command(["--help"]) == 0 and run_command(["data", "--help"]) == 0
print([name for name in ("numpy", "pyarrow", "obstore") if name in sys.modules], file=sys.stderr)
"""
    result = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert result.stderr == "[]\n"
