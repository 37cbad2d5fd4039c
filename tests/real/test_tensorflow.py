"""TensorFlow on two hosts of the endpoint, joined by TF_CONFIG in both topologies."""

from __future__ import annotations

import re
from pathlib import Path

from tests.e2e.command import ENTRYPOINTS, Outcome
from tests.real.frameworks import smlaunch_of, write_digits


def trained(home: Path, digits: Path, script: str, *words: str) -> Outcome:
    inputs = ("--input", f"train={digits / 'train'}", "--input", f"test={digits / 'test'}")
    ran = smlaunch_of(
        *("tensorflow", home, "run", ENTRYPOINTS / script, *inputs),
        *("--hosts", "2", "--local", "--name", "flows", *words),
    )
    assert ran.code == 0, ran.text
    return ran


def accuracy(ran: Outcome) -> float:
    found = re.search(r"held-out accuracy (\S+)", ran.out)
    assert found is not None, ran.text
    return float(found.group(1))


def test_both_workers_end_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    """The script compares them across workers; here they are read from either's log."""
    digits = write_digits(tmp_path / "digits")
    ran = trained(home, digits, "train_tensorflow.py", "--hp", "epochs=8")
    assert "tensorflow starts one process per host with TF_CONFIG" in ran.err
    told = re.findall(r"algo-(\d) worker (\d) of 2: weights sha256 ([0-9a-f]{64})", ran.out)
    assert sorted(host + worker for host, worker, _ in told) == ["10", "21"], ran.text
    assert len({weights for _, _, weights in told}) == 1
    assert accuracy(ran) > 0.95


def test_parameter_servers_and_workers_end_with_the_chief(home: Path, tmp_path: Path) -> None:
    digits = write_digits(tmp_path / "digits")
    ran = trained(
        home, digits, "train_tensorflow_ps.py", "--option", "topology=parameter-server", "--hp", "steps=300"
    )
    assert "algo-1 300 steps by 2 workers, weights on /job:ps/replica:0/task:0/" in ran.out
    assert accuracy(ran) > 0.9
