"""``smlaunch data advise`` as a user calls it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from smlaunch.cli.main import run_command
from smlaunch.data.inventory_file import SCHEMA, Inventory, InventoryWriter
from smlaunch.data.size_stats import summarize_inventory
from smlaunch.facts.dataset_stats import DatasetCounter


def inventory(path: Path, objects: list[tuple[str, int]]) -> Path:
    keys, sizes = zip(*sorted(objects), strict=True)
    schema = pa.schema([SCHEMA.field("key"), SCHEMA.field("size")])
    with InventoryWriter(path, "b", "d/", schema) as file:
        file.write(pa.table([pa.array(keys), pa.array(sizes, pa.int64())], schema=schema))
    return path


def test_counting_by_the_column_is_counting_one_by_one(tmp_path: Path) -> None:
    objects = [(f"d/{number:04}.{'csv' if number % 3 else 'jpg'}", number**3 * 7) for number in range(900)]
    objects.append(("d/line\nbreak ünd.JSONL.gz", 2**40))
    stats = summarize_inventory(Inventory(inventory(tmp_path / "keys.parquet", objects)))
    count = DatasetCounter()
    for key, size in objects:
        count.add(key, size)
    assert stats == count.stats()


def test_advice_on_an_inventory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = inventory(tmp_path / "keys.parquet", [(f"d/{number:05}.jpg", 400_000) for number in range(20_000)])
    arguments = ["data", "advise", str(path), "--instance-type", "ml.g5.12xlarge", "--epochs", "5"]
    assert run_command(arguments) == 0
    text = capsys.readouterr().out
    assert text.startswith("s3://b/d/: 20,000 files, 8.0 GB, 400.0 kB on average")
    assert "Take: pack into tar shards first, then memory, by mode File" in text
    assert "smlaunch data pack s3://b/d/ s3://BUCKET/packed/" in text
    assert "ALL 5 EPOCHS" in text
    assert "documented: https://docs.aws.amazon.com/" in text
    assert run_command([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["source"], document["take"], document["pack_first"]) == ("s3://b/d/", "memory", True)
    assert {row["kind"] for row in document["assumed"]} == {"documented", "measured", "assumed"}
    recommended_way = next(way for way in document["ways"] if way["verdict"] == "take")
    assert 0 < recommended_way["seconds"]["before"][0] < recommended_way["seconds"]["before"][1]


def test_advice_on_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "two words"
    folder.mkdir()
    (folder / "a\nb.txt").write_bytes(b"x" * 100)
    assert run_command(["data", "advise", str(folder), "--slurm"]) == 0
    text = capsys.readouterr().out
    assert "Take: memory" in text
    assert f"cp -r '{folder}' \"$SLURM_TMPDIR/data/\"" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--instance-type", "ml.g5.xlage"], "did you mean 'ml.g5.xlarge'"),
        ([], "has no files"),
    ],
)
def test_what_cannot_be_advised_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run_command(["data", "advise", str(tmp_path), *options]) == 2
    assert message in capsys.readouterr().err
