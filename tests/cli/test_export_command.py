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
    made = shell(*WORDS, "--out", "machine", "--embed", "task", "--called", "mine", "--json")
    assert made.code == 0, made.err
    document = json.loads(made.out)
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
    for place in places:
        folder = shell.folder.parent / "home" / "s3" / place.removeprefix("s3://")
        assert any(folder.iterdir()), place
    before = (shell.folder / "machine" / "state-machine.asl.json").read_bytes()
    dag = ("export", "airflow", *WORDS[2:], "--out", "machine", "--no-stage")
    assert shell(*dag).code == 0  # in the same folder, which is the source's too
    assert shell(*WORDS, "--out", "machine", "--no-stage").code == 0
    assert (shell.folder / "machine" / "state-machine.asl.json").read_bytes() == before
    task = json.loads((shell.folder / "machine" / "task.asl.json").read_text())
    assert task["Train"]["Parameters"]["StateMachineArn"].endswith(":stateMachine:mine")


def test_a_folder_that_cannot_be_written_is_told_before_anything_is_uploaded(shell: Shell) -> None:
    write_script(shell)
    refused = shell(*WORDS, "--out", "train.py/machine")
    assert (refused.code, refused.out) == (2, "")
    assert "--out: train.py/machine cannot be written: Not a directory" in refused.err
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
    refused = shell(*WORDS, "--hp", "lr.$=1", "--no-stage")
    assert (refused.code, refused.out) == (2, "")
    assert "hyperparameters.lr.$:" in refused.err


def test_what_cannot_be_deployed_is_refused_before_anything_is_uploaded(
    standing: Shell, tmp_path: Path
) -> None:
    # In a folder of its own: other tests run the train.py of that one's.
    user = Shell(tmp_path, Path(standing.environment["SMLAUNCH_HOME"]))
    write_script(user)
    role = "arn:aws:iam::000000000000:role/machine"
    for words, said in (
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
        refused = user(*WORDS, *words)
        assert (refused.code, refused.out) == (2, "")
        assert said in refused.err


def test_nothing_is_deployed_to_an_endpoint_that_ends_with_the_command(shell: Shell) -> None:
    write_script(shell)
    refused = shell(*WORDS, "--deploy", "--machine-role", "arn:aws:iam::000000000000:role/machine")
    assert (refused.code, refused.out) == (2, "")
    assert "smlaunch local start" in refused.err
