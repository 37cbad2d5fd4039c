"""The main job from end to end: command line, plan, API, endpoint, hosts, runtime, ranks, model."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.e2e.command import ENTRYPOINTS, Outcome, run_installed, smlaunch, weights_hash

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="torch is the user's own; `make test` installs it")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, ENTRYPOINTS / "prepare_digits.py", "--out", folder], check=True)
    return folder


def train(digits: Path, script: str, *options: str) -> Outcome:
    inputs = ("--input", f"train={digits / 'train'}", "--input", f"test={digits / 'test'}")
    return run_installed("run", ENTRYPOINTS / script, "--local", *inputs, *options)


def test_two_hosts_of_two_ranks_learn_to_read_digits(home: Path, digits: Path) -> None:
    name = "digits-2x2"
    result = train(
        digits,
        "train_ddp.py",
        "--strategy",
        "ddp",
        "--hosts",
        "2",
        "--processes-per-host",
        "2",
        "--name",
        name,
    )
    assert result.code == 0, result.text

    details = smlaunch("show", name, "--local", "--json").json()
    assert details["status"] == "Completed"
    assert details["exit_code"] == 0
    assert details["metrics"]["held_out_accuracy"] >= 0.97
    assert (
        details["warnings"] == []
    )  # such as that hosts have trained separately, or replaced each other's files
    model = home / "s3" / details["model_artifacts"].removeprefix("s3://")
    with tarfile.open(model) as archive:
        assert {"model.pt", "metrics.json"} <= {Path(member).name for member in archive.getnames()}

    logs = smlaunch("logs", name, "--local")
    assert "held-out accuracy 0.9" in logs.out


@pytest.mark.timeout(400)  # three trainings on as few cores as there are
def test_the_same_weights_however_the_ranks_lie(home: Path, digits: Path) -> None:
    """With equal threads per rank: on some processors one sums in another order on two threads than on one,
    and of two ranks each has one by default where they share a host, and all cores where they do not."""
    options = ("--strategy", "ddp", "--hp", "epochs=2", "--env", "OMP_NUM_THREADS=1")
    torchrun = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
            *(ENTRYPOINTS / "train_ddp.py", "--epochs", "2", "--model-dir", home / "model"),
            *("--train", digits / "train", "--test", digits / "test"),
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert torchrun.returncode == 0, torchrun.stdout + torchrun.stderr
    expected_hash = weights_hash(torchrun.stdout)
    for hosts, per_host in ((1, 2), (2, 1)):
        result = train(
            digits, "train_ddp.py", *options, "--hosts", str(hosts), "--processes-per-host", str(per_host)
        )
        assert result.code == 0, result.text
        assert weights_hash(result.text) == expected_hash, f"{hosts} hosts of {per_host}"


def test_a_custom_script_finds_its_peers_itself(home: Path, digits: Path) -> None:
    result = train(digits, "train_custom.py", "--strategy", "custom", "--hosts", "3")
    assert result.code == 0, result.text
    assert "host algo-3 of ['algo-1', 'algo-2', 'algo-3']" in result.text
    weights_hash(result.text)
    assert "held-out accuracy 0.9" in result.text
