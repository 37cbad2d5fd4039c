"""TensorFlow on two hosts of the endpoint, joined by TF_CONFIG in both topologies."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.command import ENTRYPOINTS, Outcome
from tests.real.frameworks import smlaunch_of, write_digits


def run_training(home: Path, digits: Path, script: str, *arguments: str) -> Outcome:
    inputs = ("--input", f"train={digits / 'train'}", "--input", f"test={digits / 'test'}")
    result = smlaunch_of(
        *("tensorflow", home, "run", ENTRYPOINTS / script, *inputs),
        *("--hosts", "2", "--local", "--name", "flows", *arguments),
    )
    assert result.code == 0, result.text
    return result


def accuracy(result: Outcome) -> float:
    match = re.search(r"held-out accuracy (\S+)", result.out)
    assert match is not None, result.text
    return float(match.group(1))


def test_both_workers_end_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    """The script compares them across workers; here they are read from either's log."""
    digits = write_digits(tmp_path / "digits")
    result = run_training(home, digits, "train_tensorflow.py", "--hp", "epochs=8")
    assert "strategy tensorflow" in result.err
    worker_hashes = re.findall(r"algo-(\d) worker (\d) of 2: weights sha256 ([0-9a-f]{64})", result.out)
    assert sorted(host + worker for host, worker, _ in worker_hashes) == ["10", "21"], result.text
    assert len({weights for _, _, weights in worker_hashes}) == 1
    assert accuracy(result) > 0.95


def test_parameter_servers_and_workers_end_with_the_chief(home: Path, tmp_path: Path) -> None:
    digits = write_digits(tmp_path / "digits")
    result = run_training(
        home, digits, "train_tensorflow_ps.py", "--option", "topology=parameter-server", "--hp", "steps=300"
    )
    assert "algo-1 300 steps by 2 workers, weights on /job:ps/replica:0/task:0/" in result.out
    assert accuracy(result) > 0.9
