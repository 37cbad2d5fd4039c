"""``smlaunch data split`` as a user types it."""

from __future__ import annotations

import json

import boto3
import pytest

from tests.cli.conftest import Shell

pytest.importorskip("pyarrow")


def test_the_command_on_a_folder(shell: Shell) -> None:
    data = shell.folder / "data"
    (data / "sub").mkdir(parents=True)
    for index in range(9):
        (data / "sub" / f"{index}.bin").write_bytes(b"x" * (index + 1) * 1000)
    (data / "link").symlink_to("/etc/passwd")
    result = shell("data", "split", "data", "--hosts", "3", "--json", "--out", "out")
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["imbalance"] == 1.0 < report["by_count"]["imbalance"]
    assert [(shard["host"], shard["bytes"], shard["keys"]) for shard in report["shards"]] == [
        (host, 15_000, report["shards"][host]["keys"]) for host in range(3)
    ]
    names = []
    for shard in report["shards"]:
        assert shard["manifest"] is None
        names += [
            json.loads(line) for line in (shell.folder / "out" / shard["list"]).read_text().splitlines()
        ]
    assert sorted(names) == [f"sub/{index}.bin" for index in range(9)]
    second_result = shell("data", "split", "data", "--hosts", "3", "--previous", "out")
    assert second_result.code == 0, second_result.err
    assert "0 keys moved to another host" in second_result.out
    assert (
        second_result.out.splitlines()[0]
        == "9 keys, 45.0 kB over 3 hosts: as before, what is new largest first"
    )
    missing = shell("data", "split", "nowhere", "--hosts", "3")
    assert missing.code == 2
    assert "nowhere" in missing.err
    none = shell("data", "split", "data", "--hosts", "0")
    assert none.code == 2


def test_the_command_on_a_prefix(endpoint_shell: Shell) -> None:
    """Every key of the endpoint's bucket, whatever it is called, is in one manifest."""
    settings = json.loads(endpoint_shell("local", "env", "--json").out)
    s3 = boto3.client(
        "s3",
        endpoint_url=settings["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id=settings["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=settings["AWS_SECRET_ACCESS_KEY"],
    )
    s3.create_bucket(Bucket="splits")
    names = ["plain", "with space", "naïve/🙂", 'quote"', "line\nend", ".hidden", "a/b/c", "k" * 200]
    for index, name in enumerate(names):
        s3.put_object(Bucket="splits", Key=f"in/{name}", Body=b"x" * (index + 1) * 100)
    s3.put_object(Bucket="splits", Key="in/", Body=b"")
    result = endpoint_shell(
        "data", "split", "s3://splits/in/", "--local", "--hosts", "3", "--json", "--out", "split-out"
    )
    assert result.code == 0, result.err
    report = json.loads(result.out)
    assert report["folder_markers_left_out"] == 1
    assert report["imbalance"] <= report["by_count"]["imbalance"]
    listed_names: list[str] = []
    for shard in report["shards"]:
        head, *keys = json.loads((endpoint_shell.folder / "split-out" / shard["manifest"]).read_text())
        assert head == {"prefix": "s3://splits/in/"}
        assert len(keys) == shard["keys"]
        listed_names += keys
    assert sorted(listed_names) == sorted(names)
