"""Each file of a used state directory, damaged in each way: no loss is silent, no damage is reported as a bug
in smlaunch, and the command that an error suggests works."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from smlaunch.cli.main import run_command
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.jobs import job_state
from smlaunch.local.state_errors import StateDamaged
from smlaunch.local.stores.job_store import JobRecord, JobStore
from tests.local.client import EndpointClient
from tests.local.ordinary_user import prefix


def empty_file(path: Path) -> None:
    path.write_bytes(b"")


def truncate_file(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def garble_file(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def delete_file(path: Path) -> None:
    path.unlink()


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def replace_by_other_file(path: Path) -> None:
    """Replace by a file of the same format and another purpose."""
    if path.suffix == ".sqlite":
        other = path.parent / ("pipelines.sqlite" if path.name == "metrics.sqlite" else "metrics.sqlite")
        if not other.exists():
            other = path.parents[2] / "metrics.sqlite"
        shutil.copyfile(other, path)
    else:
        path.write_text('{"something": ["else"]}')


def set_other_version(path: Path) -> None:
    if path.suffix == ".sqlite":
        import sqlite3

        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()
    else:
        path.write_text('{"version": 99}')


DAMAGES = (
    empty_file,
    truncate_file,
    garble_file,
    delete_file,
    replace_by_directory,
    replace_by_other_file,
    set_other_version,
)
DATABASES = ("jobs.sqlite", "pipelines.sqlite", "metrics.sqlite", "s3/_store/index.sqlite")
"""Files that cannot be recreated: a command must not continue without them as if they had never existed."""
OTHER_FILES = (
    *(f"{name}.made" for name in DATABASES),
    *("credentials.json", "levels.json", "endpoint.lock", "endpoint.log"),
    *("logs/group.json", "logs/stream"),
)


@pytest.fixture(scope="module")
def used_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which a job has run, with no endpoint in it."""
    home = tmp_path_factory.mktemp("used") / "home"
    with Endpoint(home, isolation="plain") as info:
        client = EndpointClient(info)
        job = client.run("first-s1-a1", "print('hello')")
        assert job["TrainingJobStatus"] == "Completed", job
        client.put("data", b"12345678")
    (home / "endpoint.lock").write_text("1\n")
    (home / "endpoint.log").write_text("words\n")
    return home


@pytest.fixture
def copied_home(used_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of ``used_home``, which commands use."""
    home = tmp_path / "home"
    shutil.copytree(used_home, home)
    monkeypatch.setenv("SMLAUNCH_HOME", str(home))
    return home


def find_file(home: Path, name: str) -> Path:
    if name == "logs/group.json":
        return next(home.glob("logs/*/group.json"))
    return next(home.glob("logs/*/*.log")) if name == "logs/stream" else home / name


def run_cli(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = run_command(list(words))
    output = capsys.readouterr()
    assert "bug in smlaunch" not in output.err, output.err
    assert "Traceback" not in output.err, output.err
    return code, output.out, output.err


def run_suggested_command(error: str) -> None:
    """Run the last command between backticks, as a user would."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    command = re.findall(r"`([^`]+)`", error)[-1]
    subprocess.run(["sh", "-c", command], check=True, env={**os.environ, "PATH": path}, capture_output=True)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", DATABASES)
def test_a_damaged_database_is_named_and_can_be_moved_away(
    name: str, damage: Callable[[Path], None], copied_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = copied_home / name
    damage(file)
    code, _, error = run_cli(capsys, "ls", "--local")
    assert (code, str(file) in error) == (8, True), error
    run_suggested_command(error)
    code, out, error = run_cli(capsys, "ls", "--local")
    assert (code, "first" in out) == (0, name != "jobs.sqlite"), error


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", OTHER_FILES)
def test_other_damaged_files_are_recreated_or_named(
    name: str, damage: Callable[[Path], None], copied_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(find_file(copied_home, name))
    code, out, error = run_cli(capsys, "ls", "--local")
    if code != 0:
        assert (code, str(copied_home) in error) == (8, True), error
        run_suggested_command(error)
        code, out, error = run_cli(capsys, "ls", "--local")
    assert (code, "first" in out) == (0, True), error


@pytest.mark.parametrize(
    "words",
    [
        ("ls", "--local"),
        ("show", "first", "--local"),
        ("logs", "first", "--local"),
        ("run", "train.py", "--local"),
        ("local", "start"),
    ],
)
@pytest.mark.parametrize("name", ["jobs.sqlite", "credentials.json"])
def test_every_command_that_uses_the_state_reports_damage(
    name: str,
    words: tuple[str, ...],
    copied_home: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    garble_file(copied_home / name)
    code, _, error = run_cli(capsys, *words)
    assert (code, str(copied_home / name) in error, "Lost with it" in error) == (8, True, True), error
    for command in ("status", "stop"):  # no endpoint runs: these commands read no file
        run_cli(capsys, "local", command)


def test_a_plan_that_makes_no_request_needs_no_endpoint(
    copied_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("print('hello')\n")
    monkeypatch.chdir(tmp_path)
    garble_file(copied_home / "jobs.sqlite")
    code, out, error = run_cli(capsys, "plan", "train.py", "--local")
    assert (code, "CreateTrainingJob" in out) == (0, True), error


def test_a_damaged_address_file_names_the_process_to_stop(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(capsys, "local", "start", "--isolation", "plain")[0] == 0
    address = home / "endpoint.json"
    try:
        for damage in (empty_file, garble_file, replace_by_other_file, replace_by_fifo, replace_by_directory):
            damage(address)
            code, _, error = run_cli(capsys, "local", "status")
            assert (code, str(address) in error) == (8, True), (damage.__name__, error)
            pid = re.search(r"`kill (\d+)`", error)
            assert pid is not None and b"background_process" in Path(f"/proc/{pid[1]}/cmdline").read_bytes()
        run_suggested_command(error)
    finally:
        from smlaunch.local import background_endpoint
        from smlaunch.local.state_dir import StateDir

        state_dir = StateDir(home)
        background_endpoint._wait_for_exit(state_dir.root)
    shutil.rmtree(address, ignore_errors=True)
    assert run_cli(capsys, "local", "status")[0] == 8


@pytest.mark.parametrize("name", ["jobs.sqlite", "s3/_store/index.sqlite"])
@pytest.mark.parametrize(
    "damage", [empty_file, truncate_file, delete_file, replace_by_directory, replace_by_other_file]
)
def test_a_running_endpoint_detects_damage(
    name: str, damage: Callable[[Path], None], used_home: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    shutil.copytree(used_home, home)
    endpoint = Endpoint(home, isolation="plain")
    try:
        client = EndpointClient(endpoint.start())
        request = client.request("second", "print()")
        damage(home / name)
        with pytest.raises(ClientError) as refused:
            if name == "jobs.sqlite":
                client.sagemaker.create_training_job(**request)
            else:
                client.s3.put_object(Bucket="tests", Key="more", Body=b"x")
        assert refused.value.response["Error"]["Code"] == "EndpointStateDamaged"
        assert str(home / name) in refused.value.response["Error"]["Message"]
    finally:
        endpoint.close()


@pytest.mark.parametrize("damage", [empty_file, truncate_file, garble_file, delete_file])
def test_a_lost_wal_file_is_detected(damage: Callable[[Path], None], tmp_path: Path) -> None:
    store = JobStore(tmp_path / "jobs.sqlite")
    for number in range(3):
        store.insert_job(
            JobRecord(
                "training-job",
                "r",
                f"job{number}",
                f"arn:{number}",
                "owner",
                {},
                job_state.initial_state(1.0),
            )
        )
    crashed_dir = tmp_path / "crashed"
    crashed_dir.mkdir()
    for path in tmp_path.glob("jobs.sqlite*"):
        shutil.copyfile(path, crashed_dir / path.name)
    store.close()
    intact_dir = tmp_path / "whole"
    shutil.copytree(crashed_dir, intact_dir)
    (intact_dir / "jobs.sqlite-shm").unlink()  # SQLite recreates it from the other files
    reopened = JobStore(intact_dir / "jobs.sqlite")
    assert [reopened.get_job_by_arn(f"arn:{number}") is not None for number in range(3)] == [True, True, True]
    reopened.close()
    damage(crashed_dir / "jobs.sqlite-wal")
    with pytest.raises(StateDamaged, match=r"jobs\.sqlite") as raised:
        JobStore(crashed_dir / "jobs.sqlite")
    run_suggested_command(str(raised.value))
    JobStore(crashed_dir / "jobs.sqlite").close()


def test_a_state_directory_of_an_older_release_is_accepted(used_home: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(used_home, home)
    for path in (*home.glob("*.made"), *home.glob("s3/_store/*.made")):
        path.unlink()
    store = JobStore(home / "jobs.sqlite")
    assert store.get_job("training-job", "us-east-1", "first-s1-a1") is not None
    store.close()
    (home / "jobs.sqlite.made").unlink()
    empty_file(home / "jobs.sqlite")
    with pytest.raises(StateDamaged, match="is empty"):
        JobStore(home / "jobs.sqlite")


def test_credentials_stay_valid_until_their_file_is_removed(used_home: Path) -> None:
    key = json.loads((used_home / "credentials.json").read_bytes())
    assert set(key) == {"version", "access_key", "secret_key"}
    session = boto3.Session(key["access_key"], key["secret_key"], region_name="us-east-1")
    with Endpoint(used_home, isolation="plain") as info:
        config = Config(retries={"total_max_attempts": 1})
        assert session.client("sts", endpoint_url=info.url, config=config).get_caller_identity()["Account"]


UNREADABLE_FILES_SCRIPT = """
import re, subprocess, sys, tempfile
from pathlib import Path
from smlaunch.local.state_errors import StateDamaged
from smlaunch.local.endpoint import Endpoint

with tempfile.TemporaryDirectory() as folder:
    home = Path(folder) / "home"
    with Endpoint(home, isolation="plain"):
        pass
    for name in ("jobs.sqlite", "jobs.sqlite.made", "s3/_store/index.sqlite", "credentials.json"):
        (home / name).chmod(0)
        try:
            Endpoint(home, isolation="plain").start()
            raise SystemExit(f"{name} is not missed")
        except StateDamaged as error:
            text = str(error)
        assert str(home / name) in text and "nothing is lost" in text, text
        subprocess.run(["sh", "-c", re.findall(r"`([^`]+)`", text)[-1]], check=True)
        with Endpoint(home, isolation="plain"):
            pass
"""


def test_an_unreadable_file_is_not_reported_as_lost() -> None:
    """Runs as an ordinary user, since root may read every file."""
    result = subprocess.run(
        [*prefix(), sys.executable, "-c", UNREADABLE_FILES_SCRIPT], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


ENTRIES = (
    *("credentials.json", "levels.json", "engine.json", "endpoint.lock", "endpoint.log"),
    *("moto.log", "jobs.sqlite", "jobs.sqlite.made", "s3/_store/index.sqlite.made", "pipelines.sqlite.made"),
    *("s3", "logs", "hosts", "owners", "unsaved"),
)


def create_broken_link(path: Path) -> None:
    path.symlink_to("nowhere")


@pytest.mark.parametrize("name", ENTRIES)
def test_a_fifo_instead_of_a_file_is_named_and_moved_away(
    name: str, copied_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = copied_home / name
    if entry.exists():
        entry.rename(copied_home / "away")
    os.mkfifo(entry)
    code, _, error = run_cli(capsys, "ls", "--local")
    assert (code, str(entry) in error) == (8, True), error
    run_suggested_command(error)
    code, _, error = run_cli(capsys, "ls", "--local")
    assert code == 0, error


@pytest.mark.parametrize("kind", [empty_file, create_broken_link])
@pytest.mark.parametrize("name", ["logs", "owners"])
def test_a_file_instead_of_a_directory_is_named_and_moved_away(
    name: str, kind: Callable[[Path], None], copied_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied_home / name).rename(copied_home / "away")
    kind(copied_home / name)
    code, _, error = run_cli(capsys, "ls", "--local")
    assert (code, str(copied_home / name) in error) == (8, True), error
    run_suggested_command(error)
    code, _, error = run_cli(capsys, "ls", "--local")
    assert code == 0, error
