"""The user's paths that cannot be used, and values that are no job, are reported as such."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from smlaunch import Job, JobError, launch, plan
from smlaunch.cli import main
from smlaunch.data.folder_sync import plan_push
from smlaunch.discovery.input_facts import _gather_local_input_facts
from smlaunch.discovery.script_analysis import read_script_facts
from smlaunch.runs.source_archive import pack_source
from tests.runs.fakes import fake_target


def test_an_unreadable_path_is_reported_with_its_cause(tmp_path: Path) -> None:
    # Too long a name is refused to root as well, as a folder that may not be entered is to others.
    path = tmp_path / ("x" * 300)
    message = f"{path} cannot be read: {os.strerror(errno.ENAMETOOLONG)}"
    assert read_script_facts(path / "train.py").problem == message.replace(str(path), str(path / "train.py"))
    assert _gather_local_input_facts(str(path), False, False).problem == message
    with pytest.raises(JobError, match="cannot be read"):
        pack_source(path)


def test_the_command_line_says_which_path_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "locked/job.yaml")

    monkeypatch.setattr(main.cli, "main", refuse)
    assert main.run_command(["plan"]) == 2
    assert "locked/job.yaml cannot be used: Permission denied" in capsys.readouterr().err


def test_a_home_folder_is_not_pushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "id_rsa").write_text("k")
    monkeypatch.setenv("HOME", str(tmp_path))
    target = fake_target()
    with pytest.raises(JobError, match="is a home folder"):
        plan_push(target.storage, target.transfer, tmp_path, "s3://bucket/home")


@pytest.mark.parametrize("argument", [{"entry": "a.py"}, "a.py", None])
def test_other_types_than_a_job_are_refused(argument: object) -> None:
    for function in (plan, launch):
        with pytest.raises(JobError, match=r"a Job .*is needed, not|a Job or a Plan is needed, not"):
            function(argument, fake_target())  # type: ignore[operator]


def test_a_target_of_another_type_is_named() -> None:
    with pytest.raises(JobError, match="a Target is needed, not str"):
        plan(Job(entry=__file__), "local")  # type: ignore[arg-type]


def test_a_name_of_another_type_is_named() -> None:
    with pytest.raises(JobError, match="a run's name is needed, not int"):
        plan(Job(entry=__file__), fake_target(), name=5)  # type: ignore[arg-type]
