"""``smlaunch export step-functions``: what it prints, writes, stages and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smlaunch.cli.export_files import write_export_files
from tests.cli.conftest import Shell

WORDS = ("export", "step-functions", "train.py", "--local", "--max-runtime", "10m", "--segment", "60s")


def write_script(shell: Shell) -> None:
    (shell.folder / "train.py").write_text("import smlaunch.train\n")


def test_the_definition_is_printed_and_the_same_every_time(shell: Shell) -> None:
    write_script(shell)
    first, second = shell(*WORDS, "--no-stage"), shell(*WORDS, "--no-stage")
    assert (first.code, first.out) == (0, second.out), first.err
    assert json.loads(first.out)["StartAt"] == "Begin"


def test_files_are_written_and_what_they_refer_to_is_there(shell: Shell) -> None:
    write_script(shell)
    result = shell(*WORDS, "--out", "machine", "--embed", "task", "--called", "mine", "--json")
    assert result.code == 0, result.err
    document = json.loads(result.out)
    assert document["staged"] and document["run"] is None
    assert sorted(Path(file).name for file in document["files"]) == [
        "permissions.json",
        "state-machine.asl.json",
        "task.asl.json",
        "trust.json",
    ]
    definition = json.loads((shell.folder / "machine" / "state-machine.asl.json").read_text())
    places = [
        channel["DataSource"]["S3DataSource"]["S3Uri"]
        for channel in definition["States"]["Train"]["Parameters"]["InputDataConfig"]
    ]
    for uri in places:
        folder = shell.folder.parent / "home" / "s3" / uri.removeprefix("s3://")
        assert any(folder.iterdir()), uri
    definition_before = (shell.folder / "machine" / "state-machine.asl.json").read_bytes()
    dag = ("export", "airflow", *WORDS[2:], "--out", "machine", "--no-stage")
    assert shell(*dag).code == 0  # in the same folder, which is the source's too
    assert shell(*WORDS, "--out", "machine", "--no-stage").code == 0
    assert (shell.folder / "machine" / "state-machine.asl.json").read_bytes() == definition_before
    task = json.loads((shell.folder / "machine" / "task.asl.json").read_text())
    assert task["Train"]["Parameters"]["StateMachineArn"].endswith(":stateMachine:mine")


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_uploaded(shell: Shell) -> None:
    write_script(shell)
    refusal = shell(*WORDS, "--out", "train.py/machine")
    assert (refusal.code, refusal.out) == (2, "")
    assert "--out: train.py/machine cannot be written: Not a directory" in refusal.err
    assert not list((shell.folder.parent / "home").glob("s3/*/smlaunch/**/*.json"))


def test_an_interrupted_export_leaves_the_files_as_they_were(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("before")
    with (
        pytest.raises(KeyboardInterrupt),
        write_export_files(str(tmp_path), {"a.json": "after", "b.json": "new"}, ()) as paths,
    ):
        assert paths == [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
        raise KeyboardInterrupt
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "before")]


def test_what_cannot_be_exported_is_refused_by_its_field(shell: Shell) -> None:
    write_script(shell)
    refusal = shell(*WORDS, "--hp", "lr.$=1", "--no-stage")
    assert (refusal.code, refusal.out) == (2, "")
    assert "hyperparameters.lr.$:" in refusal.err


def test_what_cannot_be_deployed_is_refused_before_anything_is_uploaded(
    endpoint_shell: Shell, tmp_path: Path
) -> None:
    # The job has a folder of its own: other tests run the train.py of the shared one.
    user = Shell(tmp_path, Path(endpoint_shell.environment["SMLAUNCH_HOME"]))
    write_script(user)
    role = "arn:aws:iam::000000000000:role/machine"
    for arguments, message in (
        (("--deploy",), "--deploy: the state machine needs a role"),
        (("--machine-role", role), "--machine-role: is used with --deploy only"),
        (("--deploy", "--machine-role", "machine"), "--machine-role: 'machine' is not a role's ARN"),
        (
            ("--deploy", "--machine-role", role.replace("0000", "1234")),
            "of the machine's own, 000000000000",
        ),
        (
            ("--deploy", "--machine-role", role, "--called", "a b"),
            "--called: 'a b' is not a valid state machine name",
        ),
    ):
        refusal = user(*WORDS, *arguments)
        assert (refusal.code, refusal.out) == (2, "")
        assert message in refusal.err


def test_nothing_is_deployed_to_an_endpoint_that_ends_with_the_command(shell: Shell) -> None:
    write_script(shell)
    refusal = shell(*WORDS, "--deploy", "--machine-role", "arn:aws:iam::000000000000:role/machine")
    assert (refusal.code, refusal.out) == (2, "")
    assert "smlaunch local start" in refusal.err
