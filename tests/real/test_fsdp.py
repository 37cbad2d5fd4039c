"""FSDP as it is, over two hosts: the whole state, gathered on every rank, is what one process learns."""

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
    ran = smlaunch("run", ENTRYPOINTS / "train_fsdp.py", *inputs, *shape, "--local", "--name", "fsdp")
    assert ran.code == 0, ran.text

    told = re.findall(r"rank (\d) kept (\d+) of (\d+) weights; weights sha256 ([0-9a-f]{64})", ran.text)
    assert sorted(rank for rank, *_ in told) == ["0", "1", "2", "3"], ran.text
    assert len({digest for *_, digest in told}) == 1, told
    assert {whole for _, _, whole, _ in told} == {str(sum(int(kept) for _, kept, _, _ in told))}

    alone = tmp_path / "alone"
    words = ["--epochs", EPOCHS, "--train", digits / "train", "--test", digits / "test", "--model-dir", alone]
    subprocess.run([sys.executable, ENTRYPOINTS / "train_ddp.py", *words], check=True)
    wanted = torch.load(alone / "model.pt")
    shown = smlaunch("show", "fsdp", "--local", "--json").json()
    with tarfile.open(home / "s3" / shown["model_artifacts"].removeprefix("s3://")) as archive:
        archive.extractall(tmp_path / "sharded", filter="data")
    found = torch.load(tmp_path / "sharded" / "model.pt")
    assert found.keys() == wanted.keys()
    worst = max((found[name] - wanted[name]).abs().max().item() for name in wanted)
    moved = max((wanted[name] - start).abs().max().item() for name, start in beginning().items())
    assert worst <= TOLERANCE < moved / 100


def beginning() -> dict[str, torch.Tensor]:
    """The weights before the first step."""
    sys.path.insert(0, str(ENTRYPOINTS))
    try:
        from train_ddp import network
    finally:
        sys.path.remove(str(ENTRYPOINTS))
    torch.manual_seed(0)
    return dict(network().state_dict())
