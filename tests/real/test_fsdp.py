"""FSDP on two hosts: the whole state, gathered on every rank, is what one process learns."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.e2e.command import ENTRYPOINTS, smlaunch

pytestmark = pytest.mark.torch
torch = pytest.importorskip("torch", reason="torch is the user's own; `make test-real` installs it")

EPOCHS = "2"
TOLERANCE = 1e-3
"""Of a weight. Four ranks add gradients up in another order than one process does: in 44 steps that makes up
to 2e-4. Ranks that did not share their gradients would be off by more than a hundred times as much."""


def test_two_hosts_of_two_ranks_learn_what_one_process_learns(home: Path, tmp_path: Path) -> None:
    digits = tmp_path / "digits"
    subprocess.run([sys.executable, ENTRYPOINTS / "prepare_digits.py", "--out", digits], check=True)
    inputs = ("--input", f"train={digits / 'train'}", "--input", f"test={digits / 'test'}")
    shape = ("--hosts", "2", "--processes-per-host", "2", "--hp", f"epochs={EPOCHS}")
    result = smlaunch("run", ENTRYPOINTS / "train_fsdp.py", *inputs, *shape, "--local", "--name", "fsdp")
    assert result.code == 0, result.text

    shard_lines = re.findall(
        r"rank (\d) kept (\d+) of (\d+) weights; weights sha256 ([0-9a-f]{64})", result.text
    )
    assert sorted(rank for rank, *_ in shard_lines) == ["0", "1", "2", "3"], result.text
    assert len({digest for *_, digest in shard_lines}) == 1, shard_lines
    assert {total for _, _, total, _ in shard_lines} == {
        str(sum(int(shard_size) for _, shard_size, _, _ in shard_lines))
    }

    one_process = tmp_path / "alone"
    arguments = [
        "--epochs",
        EPOCHS,
        "--train",
        digits / "train",
        "--test",
        digits / "test",
        "--model-dir",
        one_process,
    ]
    subprocess.run([sys.executable, ENTRYPOINTS / "train_ddp.py", *arguments], check=True)
    expected_weights = torch.load(one_process / "model.pt")
    details = smlaunch("show", "fsdp", "--local", "--json").json()
    with tarfile.open(home / "s3" / details["model_artifacts"].removeprefix("s3://")) as archive:
        archive.extractall(tmp_path / "sharded", filter="data")
    weights = torch.load(tmp_path / "sharded" / "model.pt")
    assert weights.keys() == expected_weights.keys()
    largest_difference = max(
        (weights[name] - expected_weights[name]).abs().max().item() for name in expected_weights
    )
    largest_change = max(
        (expected_weights[name] - start).abs().max().item() for name, start in beginning().items()
    )
    assert largest_difference <= TOLERANCE < largest_change / 100


def beginning() -> dict[str, torch.Tensor]:
    """Returns the weights before the first step."""
    sys.path.insert(0, str(ENTRYPOINTS))
    try:
        from train_ddp import network
    finally:
        sys.path.remove(str(ENTRYPOINTS))
    torch.manual_seed(0)
    return dict(network().state_dict())
