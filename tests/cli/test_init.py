"""`smlaunch init` writes a job for every strategy that can be planned, and overwrites nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from smlaunch.catalog.strategies import BUILT_IN_STRATEGIES
from smlaunch.cli.main import run_command
from smlaunch.cli.templates import TEMPLATES, write_template
from smlaunch.errors import EXIT_MACHINE
from smlaunch.job.model import Job
from smlaunch.job.sections import field_names
from tests.conftest import ROOT


def test_every_strategy_of_ours_has_a_first_job() -> None:
    assert set(TEMPLATES) == set(BUILT_IN_STRATEGIES)


@pytest.mark.parametrize("name", TEMPLATES)
def test_it_is_a_job_with_its_files_beside_it(name: str, tmp_path: Path) -> None:
    written = write_template(name, tmp_path)
    assert all(path.is_file() for path in written)
    job = Job.from_file(tmp_path / "job.yaml")
    assert job.strategy == name
    if job.entry is not None:
        assert Path(job.program) in written
    assert set(yaml.safe_load((tmp_path / "job.yaml").read_text())) <= set(field_names(Job))


@pytest.mark.parametrize("name", [name for name, starter in TEMPLATES.items() if starter.runs_locally])
def test_it_plans(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_template(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMLAUNCH_HOME", str(tmp_path / ".smlaunch"))
    for address in TEMPLATES[name].inputs.values():
        Path(address).mkdir(parents=True, exist_ok=True)
        for number in range(4):
            (Path(address) / f"part-{number}").write_bytes(b"x" * 100)
    packages_may_be_missing = ("--allow", "script.packages")  # `init` names them as the first step
    assert run_command(["plan", "job.yaml", "--local", "--json", *packages_may_be_missing]) == 0
    assert json.loads(capsys.readouterr().out)["strategy"] == name


@pytest.mark.parametrize(
    ("name", "library"), [("horovod", "horovod"), ("neuron", "torch_xla"), ("smp", "torch.sagemaker")]
)
def test_a_script_without_the_library_is_rejected(
    name: str,
    library: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_template(name, tmp_path)
    monkeypatch.chdir(tmp_path)
    for address in TEMPLATES[name].inputs.values():
        Path(address).mkdir(parents=True)
        (Path(address) / "part.npz").write_bytes(b"x")
    assert run_command(["plan", "job.yaml", "--local"]) == 2
    error = capsys.readouterr().err
    assert (
        f"strategy: {Job.from_file(tmp_path / 'job.yaml').program.split('/')[-1]} imports no {library}"
        in error
    )
    assert f"so {name} would do nothing for it" in error


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_comes_next_makes_the_inputs_first(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["init", name, str(tmp_path), "--json"]) == 0
    *first_commands, plan = json.loads(capsys.readouterr().out)["next"][
        : -1 if TEMPLATES[name].runs_locally else None
    ]
    assert plan.startswith("smlaunch plan job.yaml --")
    makes = any(not address.startswith("s3://") for address in TEMPLATES[name].inputs.values())
    assert (first_commands[-1] == TEMPLATES[name].prepare_command) is makes
    packages = TEMPLATES[name].required_packages
    if TEMPLATES[name].runs_locally and packages:
        (install,) = (command for command in first_commands if command.startswith("pip install "))
        words = install.removeprefix("pip install ").split()
        assert [word.partition("==")[0] for word in words] == packages.split()
        assert set(words).difference(packages.split()) <= set((ROOT / "constraints.txt").read_text().split())
        assert any(word.startswith("torch==") for word in words) is ("torch" in packages.split())


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train_ddp.py").write_text("mine")
    assert run_command(["init", "ddp", str(tmp_path)]) == 2
    assert "train_ddp.py exists already; nothing was written" in capsys.readouterr().err
    assert (tmp_path / "train_ddp.py").read_text() == "mine"
    assert not (tmp_path / "job.yaml").exists()


def test_strategies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["init", "--json"]) == 0
    assert set(BUILT_IN_STRATEGIES) <= set(json.loads(capsys.readouterr().out)["strategies"])
    assert run_command(["init", "dpp"]) == 2
    assert "'dpp' is unknown, did you mean 'ddp'?" in capsys.readouterr().err


def test_a_full_disk_behind_stdout_is_one_error() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "smlaunch", "init", "--json"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == EXIT_MACHINE
    assert done.stderr.startswith("error: the disk of this machine is full")
    assert "Traceback" not in done.stderr
