"""``smlaunch data split`` as it is typed."""

from __future__ import annotations

import json

import boto3
import pytest

from tests.cli.conftest import Shell

pytest.importorskip("pyarrow")


def test_the_command_on_a_folder(shell: Shell) -> None:
    data = shell.folder / "data"
    (data / "sub").mkdir(parents=True)
    for place in range(9):
        (data / "sub" / f"{place}.bin").write_bytes(b"x" * (place + 1) * 1000)
    (data / "link").symlink_to("/etc/passwd")
    done = shell("data", "split", "data", "--hosts", "3", "--json", "--out", "out")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["imbalance"] == 1.0 < told["by_count"]["imbalance"]
    assert [(one["host"], one["bytes"], one["keys"]) for one in told["parts"]] == [
        (host, 15_000, told["parts"][host]["keys"]) for host in range(3)
    ]
    names = []
    for one in told["parts"]:
        assert one["manifest"] is None
        names += [json.loads(line) for line in (shell.folder / "out" / one["list"]).read_text().splitlines()]
    assert sorted(names) == [f"sub/{place}.bin" for place in range(9)]
    again = shell("data", "split", "data", "--hosts", "3", "--previous", "out")
    assert again.code == 0, again.err
    assert "0 keys moved to another host" in again.out
    assert again.out.splitlines()[0] == "9 keys, 45.0 kB over 3 hosts: as before, what is new largest first"
    missing = shell("data", "split", "nowhere", "--hosts", "3")
    assert missing.code == 2
    assert "nowhere" in missing.err
    none = shell("data", "split", "data", "--hosts", "0")
    assert none.code == 2


def test_the_command_on_a_prefix(standing: Shell) -> None:
    """Every key of the endpoint's bucket, whatever it is called, is in one manifest."""
    settings = json.loads(standing("local", "env", "--json").out)
    s3 = boto3.client(
        "s3",
        endpoint_url=settings["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id=settings["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=settings["AWS_SECRET_ACCESS_KEY"],
    )
    s3.create_bucket(Bucket="splits")
    names = ["plain", "with space", "naïve/🙂", 'quote"', "line\nend", ".hidden", "a/b/c", "k" * 200]
    for place, name in enumerate(names):
        s3.put_object(Bucket="splits", Key=f"in/{name}", Body=b"x" * (place + 1) * 100)
    s3.put_object(Bucket="splits", Key="in/", Body=b"")
    done = standing(
        "data", "split", "s3://splits/in/", "--local", "--hosts", "3", "--json", "--out", "split-out"
    )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert told["folder_markers_left_out"] == 1
    assert told["imbalance"] <= told["by_count"]["imbalance"]
    listed: list[str] = []
    for part in told["parts"]:
        head, *keys = json.loads((standing.folder / "split-out" / part["manifest"]).read_text())
        assert head == {"prefix": "s3://splits/in/"}
        assert len(keys) == part["keys"]
        listed += keys
    assert sorted(listed) == sorted(names)
