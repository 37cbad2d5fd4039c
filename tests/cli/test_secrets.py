"""Secrets and the command line: what is sent, what is shown."""

from __future__ import annotations

import json
import tarfile
from io import BytesIO
from pathlib import Path

import pytest

from smlaunch.errors import JobError
from smlaunch.job import Job
from smlaunch.runs.api import plan
from tests.cli.conftest import Shell
from tests.runs.fakes import ROLE, fake_target

KEY = "-----BEGIN RSA PRIVATE KEY-----\n" + "MIIEpAIBAAKCAQEAs7Zx" * 12 + "\n-----END RSA PRIVATE KEY-----\n"


def archives(home: Path) -> list[list[str]]:
    """The names in every source archive that the endpoint holds."""
    found = []
    for path in sorted(home.rglob("*.tar.gz")):
        if "source" in str(path.relative_to(home)):
            with tarfile.open(fileobj=BytesIO(path.read_bytes())) as archive:
                found.append(sorted(archive.getnames()))
    return found


def test_a_run_leaves_secrets_at_home_unless_they_are_asked_for(shell: Shell) -> None:
    (shell.folder / ".env").write_text("PASSWORD=hunter2")
    (shell.folder / "deploy.key").write_text(KEY)
    home = Path(shell.environment["SMLAUNCH_HOME"])
    ran = shell("run", "train.py", "--local", "--strategy", "custom")
    assert ran.code == 0, ran.err
    assert ran.err.count("deploy.key") == 1
    assert archives(home) == [["train.py"]]
    ran = shell("run", "train.py", "--local", "--strategy", "custom", "--include-secrets")
    assert ran.code == 0, ran.err
    assert "deploy.key" not in ran.err
    assert [".env", "deploy.key", "train.py"] in archives(home)


def test_the_state_in_the_source_folder_is_in_no_archive(shell: Shell) -> None:
    home = shell.folder / "state"
    shell.environment["SMLAUNCH_HOME"] = str(home)
    for _ in range(2):
        ran = shell("run", "train.py", "--local", "--strategy", "custom", "--input", "train=.")
        assert ran.code == 0, ran.err
    assert archives(home) == [["train.py"]]
    data = [path.name for path in home.rglob("*") if "/inputs/" in str(path) and path.is_file()]
    assert not [name for name in data if "sqlite" in name]


def test_a_home_folder_is_refused_in_every_way_of_naming_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = shell.folder
    shell.environment["HOME"] = str(home)
    (home / "job.yaml").write_text("entry: train.py\n")
    (home / "work").mkdir()
    (home / "work" / "train.py").write_text("")
    (home / "work" / "job.yaml").write_text("entry: train.py\nsource: ..\n")
    for words in (
        ("train.py",),
        ("~/train.py",),
        ("job.yaml",),
        ("work/train.py", "--source", "."),
        ("work/train.py", "--source", ".."),
        ("work/job.yaml",),
    ):
        for command in ("run", "plan"):
            ran = shell(command, *words, "--local")
            assert ran.code == 2, ran
            assert "home folder" in ran.err
    assert shell("plan", "work/train.py", "--local").code == 0
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(JobError, match="is a home folder"):
        plan(Job(entry=home / "train.py", role=ROLE), fake_target())


def test_an_entry_that_holds_a_key_is_refused_with_the_ways_out(shell: Shell) -> None:
    (shell.folder / "train.py").write_text(f'KEY = """{KEY}"""\n')
    ran = shell("plan", "train.py", "--local")
    assert ran.code == 2
    assert "train.py may hold secrets (a private key); --include-secrets" in ran.err
    assert shell("plan", "train.py", "--local", "--include-secrets").code == 0
    (shell.folder / "job.yaml").write_text("entry: train.py\ninclude_secrets: true\n")
    assert shell("plan", "job.yaml", "--local").code == 0


def test_the_warning_is_in_the_plan_and_its_document(shell: Shell) -> None:
    (shell.folder / ".netrc").write_text("machine x password y")
    assert ".netrc (passwords)" in shell("plan", "train.py", "--local").out
    document = json.loads(shell("plan", "train.py", "--local", "--json").out)
    assert [warning for warning in document["warnings"] if ".netrc" in warning]
