"""The files of this host, for every way in which they arrive."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.contract.sagemaker_paths import ROOT_VARIABLE
from smlaunch.contract.shard_lists import (
    SHARDS_CHANNEL,
    SHARDS_FILE,
    ShardList,
    ShardListIndex,
    find_file_name_problem,
    parse_json_lines,
    shard_list_name,
    to_json_lines,
)
from smlaunch.train import shard_files


class Host:
    """The files below /opt/ml of one host."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {ROOT_VARIABLE: str(root)}
        self.data = root / "input" / "data"
        self.data.mkdir(parents=True)
        (root / "input" / "config").mkdir()

    def set_hosts(self, hosts: Sequence[str], current: str, **fields: Any) -> None:
        self.config("resourceconfig", {"hosts": hosts, "current_host": current, **fields})

    def config(self, name: str, document: Mapping[str, Any]) -> None:
        (self.root / "input" / "config" / f"{name}.json").write_text(json.dumps(document))

    def lists(self, *parts: Sequence[str]) -> Path:
        folder = self.data / SHARDS_CHANNEL / "train"
        folder.mkdir(parents=True)
        rows = [ShardList(shard_list_name(number), len(names), 0) for number, names in enumerate(parts)]
        (folder / SHARDS_FILE).write_text(ShardListIndex("train", tuple(rows)).to_json())
        for row, names in zip(rows, parts, strict=True):
            (folder / row.file).write_text(to_json_lines(names))
        return folder

    def files(self) -> list[str]:
        channel = str(self.data / "train")
        return [path.removeprefix(channel + "/") for path in shard_files("train", self.environ)]


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize(("current", "own_name"), [("algo-1", "a"), ("algo-2", "b"), ("algo-10", "c")])
def test_a_list_goes_by_the_natural_order_of_hosts(host: Host, current: str, own_name: str) -> None:
    host.set_hosts(["algo-10", "algo-1", "algo-2"], current)
    host.lists(["a"], ["b"], ["c"])
    assert host.files() == [own_name]


def test_only_hosts_of_the_same_group_are_counted(host: Host) -> None:
    groups = [
        {"instance_group_name": "prepare", "hosts": ["algo-1"]},
        {"instance_group_name": "train", "hosts": ["algo-3", "algo-2"]},
    ]
    host.set_hosts(["algo-1", "algo-2", "algo-3"], "algo-3", instance_groups=groups)
    host.lists(["a"], ["b"])
    assert host.files() == ["b"]


def test_lists_for_another_number_of_hosts_are_refused(host: Host) -> None:
    host.set_hosts(["algo-1", "algo-2"], "algo-1")
    host.lists(["a"], ["b"], ["c"])
    with pytest.raises(RuntimeError, match=r"split for 3 hosts, but 2 train here \(algo-1, algo-2\)"):
        host.files()


def test_a_list_that_is_cut_off_is_refused(host: Host) -> None:
    host.set_hosts(["algo-1"], "algo-1")
    folder = host.lists(["a", "b"])
    (folder / shard_list_name(0)).write_text(to_json_lines(["a"]))
    with pytest.raises(RuntimeError, match="has 1 files, its index says 2"):
        host.files()
    (folder / shard_list_name(0)).write_text('"a"\n"b')
    with pytest.raises(RuntimeError, match="cannot be read"):
        host.files()


def test_a_list_cannot_lead_out_of_its_channel(host: Host) -> None:
    host.set_hosts(["algo-1"], "algo-1")
    host.lists(["../../config/resourceconfig.json"])
    with pytest.raises(RuntimeError, match="means another folder"):
        host.files()


def test_without_lists_it_is_what_lies_there(host: Host) -> None:
    host.set_hosts(["algo-1", "algo-2"], "algo-1")
    host.config("inputdataconfig", {"train": {"S3DistributionType": "ShardedByS3Key"}})
    assert host.files() == []  # a host without a share may have no folder
    for name in ("b", "deep/a", "a-b", "a/b"):
        path = host.data / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert host.files() == ["a-b", "a/b", "b", "deep/a"]


def test_a_channel_that_all_hosts_have_whole_is_refused(host: Host) -> None:
    host.set_hosts(["algo-1", "algo-2"], "algo-2")
    host.config("inputdataconfig", {"train": {"S3DistributionType": "FullyReplicated"}})
    with pytest.raises(RuntimeError, match="complete on each of 2 hosts"):
        host.files()
    host.set_hosts(["algo-2"], "algo-2")
    assert host.files() == []


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1)))
def test_any_name_survives_its_list(names: list[str]) -> None:
    valid_names = [name for name in names if find_file_name_problem(name) is None]
    assert parse_json_lines(to_json_lines(valid_names).splitlines(keepends=True)) == valid_names


@pytest.mark.parametrize("name", ["", "/a", "a/", "a//b", ".", "..", "a/../b", "./a", "a\0b", "x" * 256])
def test_names_that_are_no_files(name: str) -> None:
    assert find_file_name_problem(name) is not None


@pytest.mark.parametrize(
    "name", [".a", "..a", "a b", "é" * 127, "a\nb", "~", "a\\b", "/".join(["d" * 200] * 5)]
)
def test_names_that_are_files(name: str) -> None:
    assert find_file_name_problem(name) is None
