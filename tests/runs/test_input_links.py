"""Local inputs: links that lead out of them, secrets in them, and entries that are no files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from smlaunch.discovery.local_files import list_local_files
from smlaunch.job.model import Job
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.plan_job import plan
from tests.runs.fakes import BUCKET, ROLE, fake_target
from tests.runs.test_source import tree
from tests.runs.test_source_secrets import CERTIFICATE, KEY


def job(tmp_path: Path, data: Path, **changes: object) -> Job:
    tree(tmp_path / "code", {"train.py": ""})
    return Job(entry=tmp_path / "code" / "train.py", role=ROLE, inputs={"train": data}, **changes)


def test_outside_links_of_an_input_are_reported_together(tmp_path: Path) -> None:
    outside = tree(tmp_path / "outside", {"shadow": "root:x", "more/x": ""})
    data = tree(tmp_path / "data", {"a": "1"})
    (data / "b").symlink_to(outside / "shadow")
    (data / "c").symlink_to("../outside/more")
    with pytest.raises(
        OSError, match=r"links out of .*/data are not followed: b \(to .*shadow\), c \(to \.\./"
    ):
        list(list_local_files(data))
    with pytest.raises(Exception, match=r"inputs\.train.*are not followed"):
        plan(job(tmp_path, data), fake_target())
    (data / ".smlaunchignore").write_text("b\nc\n")
    assert [file.relative_path for file in list_local_files(data)] == ["a"]


def test_links_inside_an_input_are_followed(tmp_path: Path) -> None:
    data = tree(tmp_path / "data", {"blobs/1": "one", "folder/x": "x"})
    (data / "first").symlink_to("blobs/1")
    (data / "same").symlink_to(data / "folder")
    (tmp_path / "named").symlink_to(data)
    names = ["blobs/1", "first", "folder/x", "same/x"]
    assert [file.relative_path for file in list_local_files(data)] == names
    assert [file.relative_path for file in list_local_files(tmp_path / "named")] == names
    assert not [file for file in list_local_files(data) if file.path.is_symlink()]


def test_a_pipe_in_an_input_is_refused_and_does_not_block(tmp_path: Path) -> None:
    data = tree(tmp_path / "data", {"a": "1"})
    os.mkfifo(data / "pipe")
    with pytest.raises(OSError, match="neither file nor folder: pipe"):
        list(list_local_files(data))
    with pytest.raises(OSError, match="pipe is neither file nor folder"):
        list(list_local_files(data / "pipe"))


def test_secrets_of_an_input_are_excluded_by_default(tmp_path: Path) -> None:
    files = {"a.csv": "1", ".env": "x", ".aws/credentials": "x", "b/server.pem": KEY, "b/ca.pem": CERTIFICATE}
    data = tree(tmp_path / "data", {**files, "names.key": "x", ".smlaunchignore": "!names.key\n"})
    (data / ".aws" / "config").write_text("x")
    (data / "behind.csv").symlink_to(".aws/config")
    left_out: list[str] = []
    assert [file.relative_path for file in list_local_files(data, left_out)] == [
        "a.csv",
        "b/ca.pem",
        "names.key",
    ]
    assert sorted(left_out) == [".aws/", ".env", "b/server.pem", "behind.csv"]
    job_plan = plan(job(tmp_path, data), fake_target())
    (warning,) = [text for text in job_plan.warnings if text.startswith("inputs.train: not sent")]
    assert ".aws/, .env, b/server.pem, behind.csv;" in warning
    target = fake_target()
    launch(job(tmp_path, data), target)
    names = {key.rpartition("/")[2] for key in target.storage.objects[BUCKET]}  # type: ignore[attr-defined]
    assert {"a.csv", "ca.pem", "names.key"} <= names
    assert not {".env", "credentials", "server.pem"} & names
    target = fake_target()
    launch(job(tmp_path, data, include_secrets=True), target)
    names = {key.rpartition("/")[2] for key in target.storage.objects[BUCKET]}  # type: ignore[attr-defined]
    assert {"a.csv", "ca.pem", "names.key", ".env", "credentials", "server.pem"} <= names


def test_a_home_folder_is_refused_as_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tree(tmp_path / "ann", {"a": "1"})
    entry = job(tmp_path, data)
    monkeypatch.setenv("HOME", str(data))
    with pytest.raises(Exception, match=r"inputs\.train.*is a home folder"):
        plan(entry, fake_target())
