"""``smlaunch data push`` and ``pull``: a folder there and back, resumed, and never outside of the folder."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from smlaunch.cli.main import cli
from smlaunch.data.folder_sync import plan_pull
from smlaunch.errors import JobError
from smlaunch.runs.launch_target import Target
from tests.runs.fakes import BUCKET, fake_target


@pytest.fixture
def target() -> Iterator[Target]:
    yield fake_target()


def put(target: Target, *keys: str) -> None:
    for key in keys:
        target.storage.put_bytes(BUCKET, key, key.encode())


def pull(target: Target, uri: str, folder: Path) -> list[str]:
    pull_plan = plan_pull(target.storage, target.transfer, uri, folder)
    target.transfer.download_files(pull_plan.bucket, pull_plan.items, lambda size, files: None)
    return sorted(item.path.relative_to(folder).as_posix() for item in pull_plan.items)


def test_a_folder_is_meant_with_or_without_its_slash_and_an_object_is_one(
    target: Target, tmp_path: Path
) -> None:
    put(target, "data/a", "data/b/c", "data2/d", "data/b/c.more")
    assert pull(target, f"s3://{BUCKET}/data/", tmp_path / "1") == ["a", "b/c", "b/c.more"]
    assert pull(target, f"s3://{BUCKET}/data", tmp_path / "2") == ["a", "b/c", "b/c.more"]
    assert pull(target, f"s3://{BUCKET}/data/b/c", tmp_path / "3") == ["c"]
    with pytest.raises(JobError, match="no object under"):
        pull(target, f"s3://{BUCKET}/dat", tmp_path / "4")


def test_keys_that_lead_elsewhere_are_refused_together_and_nothing_is_written(
    target: Target, tmp_path: Path
) -> None:
    hostile = ["d/../up", "d/a//b", "d/./x", "d//lead", "d/" + "n" * 256, "d/both", "d/both/inside"]
    put(target, "d/good", *hostile)
    with pytest.raises(JobError) as caught:
        pull(target, f"s3://{BUCKET}/d/", tmp_path / "to" / "here")
    assert len(caught.value.problems) == len(hostile) - 1
    assert list(tmp_path.iterdir()) == []


def test_a_link_out_of_the_folder_is_not_followed(target: Target, tmp_path: Path) -> None:
    put(target, "d/sub/x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "sub").symlink_to(outside)
    with pytest.raises(JobError, match="a link out of"):
        pull(target, f"s3://{BUCKET}/d/", tmp_path / "here")
    assert list(outside.iterdir()) == []


def test_there_and_back_by_the_command_line(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {
        "a": b"1",
        "deep/b c": b"2" * 70_000,
        "new\nline": b"3",
        "empty": b"",
        ".smlaunchignore": b"*.tmp",
    }
    source = tmp_path / "source"
    for name, content in {**names, "scratch.tmp": b"x"}.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)

    def run(*arguments: str) -> dict[str, Any]:
        result = CliRunner().invoke(cli, ["data", *arguments, "--local", "--json"], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    # The embedded endpoint keeps its objects in SMLAUNCH_HOME; the bucket is the one it makes for results.
    from smlaunch.local.front.request_context import ACCOUNT, DEFAULT_REGION

    uri = f"s3://sagemaker-{DEFAULT_REGION}-{ACCOUNT}/pushed"
    assert run("push", str(source), uri) == {"files": 4, "bytes": 70_002, "kept": 0}
    (source / "a").write_bytes(b"!")
    assert run("push", str(source), uri) == {"files": 1, "bytes": 1, "kept": 3}
    back = tmp_path / "back"
    assert run("pull", uri + "/", str(back))["files"] == 4
    (back / "a").write_bytes(b"?")
    assert run("pull", uri, str(back)) == {"files": 1, "bytes": 1, "kept": 3}
    for name in ("a", "deep/b c", "new\nline", "empty"):
        assert (back / name).read_bytes() == (source / name).read_bytes()
    assert sorted(path.name for path in back.rglob("*") if path.is_file()) == [
        "a",
        "b c",
        "empty",
        "new\nline",
    ]
