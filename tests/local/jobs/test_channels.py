from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from smlaunch.local.endpoint_settings import Settings, ShardingRule
from smlaunch.local.executors.executor_interface import DirectoryMount, JobHost
from smlaunch.local.jobs import channel_data
from smlaunch.local.jobs.channel_listing import InputDataError
from smlaunch.local.stores.object_store import ObjectStore
from tests.local.jobs.conftest import channel, spec, tree


def put_objects(objects: ObjectStore, *keys: str) -> None:
    for key in keys:
        objects.put_object_bytes("data", key, f"<{key}>".encode())


def prepare(
    objects: ObjectStore,
    hosts: list[JobHost],
    *wanted: dict[str, Any],
    views: bool = False,
    settings: Settings | None = None,
    **changes: Any,
) -> Mapping[str, list[DirectoryMount]]:
    channel_setup = channel_data.prepare_channels(
        spec(wanted, **changes), hosts, objects, settings or Settings(), views, lambda: None
    )
    assert channel_setup.pipe_feeds == []
    return channel_setup.mounts_by_host


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("train/", {"a.csv": "<train/a.csv>", "deep/b.csv": "<train/deep/b.csv>"}),
        ("train/a.csv", {"a.csv": "<train/a.csv>"}),
        ("train/de", {"deep/b.csv": "<train/deep/b.csv>"}),
        ("trainer", {"c.csv": "<trainer/c.csv>"}),
    ],
)
def test_where_the_objects_of_a_prefix_go(
    objects: ObjectStore, hosts: list[JobHost], prefix: str, expected: dict[str, str]
) -> None:
    put_objects(objects, "train/a.csv", "train/deep/b.csv", "trainer/c.csv", "train/empty-folder/")
    prepare(objects, hosts, channel("train", f"s3://data/{prefix}"))
    for host in hosts:
        assert tree(host.opt_ml_folder / "input/data/train") == expected


def test_a_prefix_without_a_slash_is_a_prefix_and_nothing_more(
    objects: ObjectStore, hosts: list[JobHost]
) -> None:
    put_objects(objects, "train/a.csv", "trainer/c.csv")
    prepare(objects, hosts, channel("train", "s3://data/train"))
    files = tree(hosts[0].opt_ml_folder / "input/data/train")
    assert files == {"a.csv": "<train/a.csv>", "trainer/c.csv": "<trainer/c.csv>"}


@pytest.mark.parametrize("rule", ["round-robin", "contiguous", "hash"])
def test_sharded_each_object_is_on_one_host(
    objects: ObjectStore, hosts: list[JobHost], rule: ShardingRule
) -> None:
    names = [f"part-{number:02}" for number in range(7)]
    put_objects(objects, *(f"s/{name}" for name in names))
    sharded = channel("s", "s3://data/s/", S3DataDistributionType="ShardedByS3Key")
    prepare(objects, hosts, sharded, views=True, settings=Settings(sharding=rule))
    shares = [set(tree(host.opt_ml_folder / "input/data/s")) for host in hosts]
    assert shares[0] | shares[1] == set(names)
    assert not shares[0] & shares[1]


def test_a_host_without_a_share_has_an_empty_directory(objects: ObjectStore, hosts: list[JobHost]) -> None:
    put_objects(objects, "s/only")
    prepare(objects, hosts, channel("s", "s3://data/s/", S3DataDistributionType="ShardedByS3Key"))
    assert [tree(host.opt_ml_folder / "input/data/s") for host in hosts] == [{"only": "<s/only>"}, {}]


def test_a_host_without_a_share_may_have_no_directory(objects: ObjectStore, hosts: list[JobHost]) -> None:
    put_objects(objects, "s/only")
    sharded = channel("s", "s3://data/s/", S3DataDistributionType="ShardedByS3Key")
    prepare(objects, hosts, sharded, settings=Settings(empty_shard="absent"))
    assert [(host.opt_ml_folder / "input/data/s").exists() for host in hosts] == [True, False]


def test_a_manifest_names_its_objects(objects: ObjectStore, hosts: list[JobHost]) -> None:
    put_objects(objects, "m/a", "m/sub/b", "m/not-named")
    manifest = [{"prefix": "s3://data/m/"}, "a", "sub/b"]
    objects.put_object_bytes("data", "the.manifest", json.dumps(manifest).encode())
    prepare(objects, hosts, channel("m", "s3://data/the.manifest", S3DataType="ManifestFile"))
    assert tree(hosts[1].opt_ml_folder / "input/data/m") == {"a": "<m/a>", "sub/b": "<m/sub/b>"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "NoSuchKey: the manifest"),
        ("not json", "not valid"),
        ("[]", "not valid"),
        ('[{"prefix": "s3://data/m/"}]', "at least one"),
        ('[{"prefix": "s3://data/m/"}, "gone"]', "s3://data/m/gone"),
        ('[{"prefix": "s3://data/m/"}, "../../x"]', "NoSuchKey"),
    ],
)
def test_a_manifest_that_cannot_be_followed(
    objects: ObjectStore, hosts: list[JobHost], text: str | None, message: str
) -> None:
    if text is not None:
        objects.put_object_bytes("data", "the.manifest", text.encode())
    with pytest.raises(InputDataError, match=message):
        prepare(objects, hosts, channel("m", "s3://data/the.manifest", S3DataType="ManifestFile"))


@pytest.mark.parametrize("uri", ["s3://data/nothing/", "s3://no-such-bucket/x/"])
def test_nothing_below_a_prefix_is_an_error_that_names_it(
    objects: ObjectStore, hosts: list[JobHost], uri: str
) -> None:
    with pytest.raises(InputDataError) as raised:
        prepare(objects, hosts, channel("train", uri))
    assert str(raised.value).startswith("Data download failed:No S3 objects found under S3 URL")
    assert uri in str(raised.value)
    assert '"train"' in str(raised.value)


def test_keys_stay_below_their_channel(objects: ObjectStore, hosts: list[JobHost]) -> None:
    put_objects(objects, "odd//double", "odd/./dot")
    prepare(objects, hosts, channel("odd", "s3://data/odd/"))
    assert set(tree(hosts[0].opt_ml_folder / "input/data/odd")) == {"double", "dot"}
    put_objects(objects, "bad/../../up")
    with pytest.raises(InputDataError, match="cannot be a file below"):
        prepare(objects, hosts, channel("bad", "s3://data/bad/"))


def test_a_large_channel_is_shown_and_not_copied(objects: ObjectStore, hosts: list[JobHost]) -> None:
    put_objects(objects, *(f"big/{number}" for number in range(100)))
    fast = channel("fast", "s3://data/big/", InputMode="FastFile")
    views = prepare(objects, hosts, channel("big", "s3://data/big/"), fast, views=True)
    source = objects.root / "data" / "big"
    for host in hosts:
        assert views[host.name] == [
            DirectoryMount(source, "input/data/big"),
            DirectoryMount(source, "input/data/fast", read_only=True),
        ]
        assert tree(host.opt_ml_folder / "input/data/big") == {}


def test_where_a_view_cannot_be_written_to_only_fast_file_is_shown(
    objects: ObjectStore, hosts: list[JobHost]
) -> None:
    put_objects(objects, *(f"big/{number}" for number in range(100)))
    fast = channel("fast", "s3://data/big/", InputMode="FastFile")
    wanted = spec([channel("big", "s3://data/big/"), fast])
    channel_setup = channel_data.prepare_channels(
        wanted, hosts, objects, Settings(), True, lambda: None, can_mount_writable=False
    )
    for host in hosts:
        source = objects.root / "data" / "big"
        assert channel_setup.mounts_by_host[host.name] == [
            DirectoryMount(source, "input/data/fast", read_only=True)
        ]
        assert len(tree(host.opt_ml_folder / "input/data/big")) == 100


def test_fast_file_shows_whole_folders_only(objects: ObjectStore, hosts: list[JobHost]) -> None:
    put_objects(objects, "train/a.csv", "trainer/c.csv")
    prepare(objects, hosts, channel("train", "s3://data/train", InputMode="FastFile"))
    assert tree(hosts[0].opt_ml_folder / "input/data/train") == {"a.csv": "<train/a.csv>"}
    with pytest.raises(InputDataError, match="No S3 objects found"):
        prepare(objects, hosts, channel("cut", "s3://data/tra", InputMode="FastFile"))


def test_a_copied_fast_file_channel_is_read_only_too(objects: ObjectStore, hosts: list[JobHost]) -> None:
    put_objects(objects, "few/a", "few/deep/b")
    few = channel("few", "s3://data/few/", InputMode="FastFile")
    views = prepare(objects, hosts, few, views=True)
    for host in hosts:
        folder = host.opt_ml_folder / "input/data/few"
        assert views[host.name] == [DirectoryMount(folder, "input/data/few", read_only=True)]
        assert {path.stat().st_mode & 0o222 for path in [folder, *folder.rglob("*")]} == {0}


@pytest.mark.parametrize("uri", ["s3://data/", "s3://data/out/job", "s3://data/ckpt/"])
def test_what_the_job_itself_writes_is_not_shown_as_its_input(
    objects: ObjectStore, hosts: list[JobHost], uri: str
) -> None:
    put_objects(objects, *(f"out/job/{n}" for n in range(100)), *(f"ckpt/{n}" for n in range(100)))
    checkpoints = {"S3Uri": "s3://data/ckpt"}
    views = prepare(objects, hosts, channel("c", uri), views=True, CheckpointConfig=checkpoints)
    assert views == {"algo-1": [], "algo-2": []}
    assert len(tree(hosts[0].opt_ml_folder / "input/data/c")) in (100, 200)


def test_a_file_that_is_no_object_keeps_a_directory_from_being_shown(
    objects: ObjectStore, hosts: list[JobHost]
) -> None:
    put_objects(objects, *(f"big/{number}" for number in range(100)))
    (objects.root / "data" / "big" / "dropped-by-hand").write_text("x")
    views = prepare(objects, hosts, channel("big", "s3://data/big/"), views=True)
    assert views == {"algo-1": [], "algo-2": []}
    assert "dropped-by-hand" not in tree(hosts[0].opt_ml_folder / "input/data/big")


def test_writing_into_a_copy_leaves_the_store_as_it_is(objects: ObjectStore, hosts: list[JobHost]) -> None:
    put_objects(objects, "train/a.csv")
    prepare(objects, hosts, channel("train", "s3://data/train/"))
    copy = hosts[0].opt_ml_folder / "input/data/train/a.csv"
    with copy.open("r+") as stream:
        stream.write("overwritten in place")
    assert objects.object_body_path("data", "train/a.csv").read_text() == "<train/a.csv>"


def test_a_channel_of_one_instance_group_is_there_only(objects: ObjectStore, hosts: list[JobHost]) -> None:
    put_objects(objects, "x/a")
    groups = [
        {"InstanceGroupName": name, "InstanceType": "ml.m5.large", "InstanceCount": 1}
        for name in ("one", "two")
    ]
    only = channel("x", "s3://data/x/", InstanceGroupNames=["two"])
    prepare(objects, hosts, only, ResourceConfig={"InstanceGroups": groups})
    assert not (hosts[0].opt_ml_folder / "input/data/x").exists()
    assert tree(hosts[1].opt_ml_folder / "input/data/x") == {"a": "<x/a>"}
