"""From an inventory to the lists of hosts: each key is in exactly one list, whatever its name."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

np = pytest.importorskip("numpy")
pa = pytest.importorskip("pyarrow")

import pyarrow.parquet as pq  # noqa: E402

from smlaunch.contract.shard_lists import ShardListIndex, parse_json_lines  # noqa: E402
from smlaunch.data.inventory_file import SCHEMA, Inventory, InventoryWriter  # noqa: E402
from smlaunch.data.inventory_split import split_inventory  # noqa: E402
from smlaunch.data.split_files import SplitFiles, add_files_to_summary, write_split  # noqa: E402
from smlaunch.errors import JobError  # noqa: E402

PREFIX = "data/träin/"
HOSTILE = [
    'quote".bin',
    "back\\slash",
    "back\\",
    "line\nend",
    "\x01\x1f",
    " leading and trailing ",
    "tab\tret\r",
    "naïve/日本語/🙂",
    "\u2028\u2029\x85",
    ".hidden",
    "a/.hidden/b",
    "..two",
    "{}[],:",
    '",\n"',
    "\x7f",
    "e\u0301",
    "1" * 200 + "/" + "2" * 200 + "/" + "3" * 200,
    "k" * 1000,
    "a//b",
    "/absolute",
    "../escape",
    "x/../../escape",
    "./here",
    "ends/",
]
NO_FILES = {"k" * 1000, "a//b", "/absolute", "../escape", "x/../../escape", "./here", "ends/"}


def write(
    path: Path, rows: dict[str, int], prefix: str = PREFIX, bucket: str = "bucket", **extra_columns: Any
) -> Path:
    """Writes an inventory of keys relative to the prefix."""
    names = sorted((prefix + name for name in rows), key=str.encode)
    columns = {"key": names, "size": [rows[name[len(prefix) :]] for name in names]}
    schema = SCHEMA
    for column, values in extra_columns.items():
        columns[column] = [values[name[len(prefix) :]] for name in names]
        schema = schema.append(pa.field(column, pa.float64()))
    columns |= dict.fromkeys(("etag", "modified"), [None] * len(names))
    with InventoryWriter(path, bucket, prefix, schema) as file:
        file.write(pa.table(columns, schema=schema))
    return path


def lists_of(folder: Path, written_split: SplitFiles, manifests: bool = True) -> list[list[str]]:
    names_by_host = []
    for host, (list_name, manifest) in enumerate(
        zip(written_split.lists, written_split.manifests, strict=True)
    ):
        with (folder / list_name).open(encoding="utf-8", newline="\n") as file:
            names = [json.loads(line) for line in file]
        assert names == sorted(names, key=str.encode)
        if manifest is None:
            assert not (names and manifests)
        else:
            document = json.loads((folder / manifest).read_text(encoding="utf-8"))
            assert document == [{"prefix": f"s3://bucket/{PREFIX}"}, *names]
        names_by_host.append(names)
        assert f"{host:05d}" in list_name
    return names_by_host


@pytest.mark.parametrize("hosts", [1, 3, 40])
def test_any_key_is_in_one_list(tmp_path: Path, hosts: int) -> None:
    rows = {name: 100 + number for number, name in enumerate(HOSTILE)}
    key_split = split_inventory(Inventory(write(tmp_path / "keys.parquet", rows)), hosts)
    out = tmp_path / "out"
    written_split = write_split(key_split.keys, key_split.host_split, out, key_split.summary)
    lists = lists_of(out, written_split)
    assert Counter(name for names in lists for name in names) == Counter(list(rows))
    summary = json.loads((out / "split.json").read_text())
    for names, report in zip(lists, summary["shards"], strict=True):
        assert (report["keys"], report["bytes"]) == (
            len(names),
            sum(rows[name] for name in names),
        )
    assert written_split.invalid_names == len(NO_FILES)
    assert written_split.first_invalid_name in " ".join(
        add_files_to_summary(key_split.summary, written_split)["warnings"]
    )
    index = ShardListIndex.from_json((out / "lists" / "shards.json").read_text())
    assert [shard.files for shard in index.shards] == [len(names) for names in lists]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["keys.parquet", "out"]


def test_lists_are_what_a_script_reads(tmp_path: Path) -> None:
    rows = {name: 7 for name in HOSTILE if name not in NO_FILES}
    key_split = split_inventory(Inventory(write(tmp_path / "keys.parquet", rows)), 2)
    written_split = write_split(key_split.keys, key_split.host_split, tmp_path / "out", key_split.summary)
    assert not written_split.invalid_names
    names: list[str] = []
    for list_name in written_split.lists:
        with (tmp_path / "out" / list_name).open(encoding="utf-8") as file:
            names += parse_json_lines(file)
    assert sorted(names) == sorted(rows)


def many(count: int, seed: int = 0) -> dict[str, int]:
    draw = np.random.default_rng(seed)
    sizes = (draw.lognormal(0, 1.5, count) * 10_000).astype(np.int64).tolist()
    return {f"{index % 97:02d}/{index:07d}.jpg": size for index, size in enumerate(sizes)}


def test_many_keys_in_ranges(tmp_path: Path) -> None:
    """The keys fill several row groups, with folder markers and a few hostile names among them."""
    rows = many(150_000) | dict.fromkeys(HOSTILE, 5) | {"": 0, "00/": 0, "50/": 0, "zero": 0}
    key_split = split_inventory(Inventory(write(tmp_path / "keys.parquet", rows)), 5)
    assert key_split.summary["folder_markers_left_out"] == 3
    assert key_split.summary["imbalance"] < 1.0001
    assert key_split.summary["stability"]["in_ranges"] > 0.9
    written_split = write_split(key_split.keys, key_split.host_split, tmp_path / "out", key_split.summary)
    lists = lists_of(tmp_path / "out", written_split)
    assert Counter(name for names in lists for name in names) == Counter(set(rows) - {"", "00/", "50/"})
    for names, report in zip(lists, key_split.summary["shards"], strict=True):
        assert (report["keys"], report["bytes"]) == (
            len(names),
            sum(rows[name] for name in names),
        )


def test_previous_lists_are_kept(tmp_path: Path) -> None:
    old_sizes, new = many(30_000), many(30_300) | {'a "new" one\n': 10}
    del old_sizes["00/0000000.jpg"]
    first = split_inventory(Inventory(write(tmp_path / "old.parquet", old_sizes | {'an "old" one\\': 10})), 4)
    lists_before = lists_of(
        tmp_path / "a", write_split(first.keys, first.host_split, tmp_path / "a", first.summary)
    )
    second_split = split_inventory(
        Inventory(write(tmp_path / "new.parquet", new | {'an "old" one\\': 10})),
        4,
        previous_folder=tmp_path / "a",
    )
    lists_now = lists_of(
        tmp_path / "b",
        write_split(second_split.keys, second_split.host_split, tmp_path / "b", second_split.summary),
    )
    assert second_split.summary["imbalance"] < 1.0002
    old_host = {name: host for host, names in enumerate(lists_before) for name in names}
    new_host = {name: host for host, names in enumerate(lists_now) for name in names}
    moved_keys = sum(old_host[name] != new_host[name] for name in old_host)
    assert moved_keys == second_split.summary["stability"]["moved_keys"] <= 30
    assert set(new_host) == set(new) | {'an "old" one\\'}


def test_by_another_weight(tmp_path: Path) -> None:
    rows = {f"{n:03d}": 1000 - n for n in range(300)}
    samples = {name: float(n % 7) for n, name in enumerate(rows)}
    inventory = Inventory(write(tmp_path / "keys.parquet", rows, samples=samples))
    summary = split_inventory(inventory, 3, weight_column="samples").summary
    assert summary["weight"] == "samples"
    assert sum(shard["samples"] for shard in summary["shards"]) == sum(samples.values())
    assert sum(shard["bytes"] for shard in summary["shards"]) == summary["bytes"] == sum(rows.values())
    with pytest.raises(JobError, match="no column 'tokens' of numbers; there is size, samples"):
        split_inventory(inventory, 3, weight_column="tokens")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (["a", "b", "b"], "'b' is repeated"),
        (["b", "a"], "'a' is not in the order"),
        (["a", None], "row 1 has no key"),
        (["z", "\ue000", "\U00010000"], None),  # by UTF-8 bytes, not by UTF-16 units
    ],
)
def test_files_of_others_are_checked(tmp_path: Path, keys: list[str | None], message: str | None) -> None:
    pq.write_table(pa.table({"key": keys, "size": [1] * len(keys)}), tmp_path / "keys.parquet")
    key_split = split_inventory(Inventory(tmp_path / "keys.parquet"), 2)
    if message is None:
        assert write_split(
            key_split.keys, key_split.host_split, tmp_path / "out", key_split.summary
        ).manifests == (
            None,
            None,
        )
        return
    with pytest.raises(JobError, match=message):
        write_split(key_split.keys, key_split.host_split, tmp_path / "out", key_split.summary)
    assert [path.name for path in tmp_path.iterdir()] == ["keys.parquet"]


def test_wide_text_and_narrow_numbers(tmp_path: Path) -> None:
    """Inventories of other programs may have large_string keys, 32-bit sizes and no bucket."""
    names = sorted((name for name in HOSTILE if name not in NO_FILES), key=str.encode)
    table = {"key": pa.array(names, pa.large_string()), "size": pa.array(range(len(names)), pa.uint32())}
    pq.write_table(pa.table(table), tmp_path / "keys.parquet", row_group_size=3)
    key_split = split_inventory(Inventory(tmp_path / "keys.parquet"), 3)
    written_split = write_split(key_split.keys, key_split.host_split, tmp_path / "out", key_split.summary)
    lists = lists_of(tmp_path / "out", written_split, manifests=False)
    assert sorted(name for host_names in lists for name in host_names) == sorted(names)


@pytest.mark.parametrize("sizes", [[1, -1], [1, None]])
def test_sizes_that_are_none(tmp_path: Path, sizes: list[int | None]) -> None:
    pq.write_table(
        pa.table({"key": ["a", "b"], "size": pa.array(sizes, pa.int64())}), tmp_path / "keys.parquet"
    )
    with pytest.raises(JobError, match="row 1"):
        split_inventory(Inventory(tmp_path / "keys.parquet"), 2)


def test_keys_not_below_the_prefix(tmp_path: Path) -> None:
    table = pa.table({"key": ["other/a"], "size": [1]})
    metadata = {"smlaunch.bucket": "b", "smlaunch.prefix": "data/", "smlaunch.version": "1.0"}
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / "keys.parquet")
    key_split = split_inventory(Inventory(tmp_path / "keys.parquet"), 1)
    with pytest.raises(JobError, match="'other/a' is not below the prefix 'data/'"):
        write_split(key_split.keys, key_split.host_split, tmp_path / "out", key_split.summary)


def test_a_prefix_that_is_no_folder(tmp_path: Path) -> None:
    """``s3://bucket/data/tr`` has data/train-1/x: names are relative to data/, a folder for a channel."""
    key_split = split_inventory(
        Inventory(write(tmp_path / "keys.parquet", {"ain-1/x": 1, "ain-2/y": 1}, "data/tr")), 1
    )
    written_split = write_split(key_split.keys, key_split.host_split, tmp_path / "out", key_split.summary)
    manifest = json.loads((tmp_path / "out" / str(written_split.manifests[0])).read_text())
    assert manifest == [{"prefix": "s3://bucket/data/"}, "train-1/x", "train-2/y"]


def test_out_is_not_mixed_with_what_is_there(tmp_path: Path) -> None:
    key_split = split_inventory(Inventory(write(tmp_path / "keys.parquet", {"a": 1})), 1)
    (tmp_path / "out").mkdir()
    write_split(key_split.keys, key_split.host_split, tmp_path / "out", key_split.summary)
    with pytest.raises(JobError, match="not empty"):
        write_split(key_split.keys, key_split.host_split, tmp_path / "out", key_split.summary)
    for invalid_text in ("no json\n", "7\n", '{"hosts": 1}'):
        (tmp_path / "out" / "lists" / "shard-00000.jsonl").write_text(invalid_text)
        with pytest.raises(JobError, match="not a list of keys"):
            split_inventory(Inventory(tmp_path / "keys.parquet"), 1, previous_folder=tmp_path / "out")
    with pytest.raises(JobError, match="was not written by smlaunch data split"):
        split_inventory(Inventory(tmp_path / "keys.parquet"), 1, previous_folder=tmp_path)


def test_empty_inventory(tmp_path: Path) -> None:
    key_split = split_inventory(Inventory(write(tmp_path / "keys.parquet", {})), 2)
    written_split = write_split(key_split.keys, key_split.host_split, tmp_path / "out", key_split.summary)
    assert written_split.manifests == (None, None)
    assert lists_of(tmp_path / "out", written_split) == [[], []]
