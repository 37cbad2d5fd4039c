"""DeepSpeed's ZeRO on two hosts, without its launcher and without ssh, learns what one process learns."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.e2e.command import ENTRYPOINTS
from tests.real.frameworks import smlaunch_of, write_digits

pytestmark = [pytest.mark.torch, pytest.mark.timeout(600)]
torch = pytest.importorskip("torch", reason="torch is the user's own; `make test-real` installs it")

TOLERANCE = 1e-3
"""Of a weight; see test_fsdp.py."""


def test_zero_2_on_two_hosts_of_two_ranks(home: Path, tmp_path: Path) -> None:
    digits = write_digits(tmp_path / "digits")
    result = smlaunch_of(
        *(
            "deepspeed",
            home,
            "run",
            ENTRYPOINTS / "train_deepspeed.py",
            "--local",
            "--name",
            "zero",
            "--json",
        ),
        *("--input", f"train={digits / 'train'}", "--input", f"test={digits / 'test'}"),
        *("--hosts", "2", "--processes-per-host", "2", "--option", "config=deepspeed_zero2.json"),
        *("--hp", "epochs=2"),
        timeout=500,  # it compiles a part of itself on each host
    )
    log = smlaunch_of("deepspeed", home, "logs", "zero", "--local").text
    assert result.code == 0, result.text + log
    rank_hashes = re.findall(r"rank (\d) of 4, stage 2: weights sha256 ([0-9a-f]{64})", log)
    assert sorted(rank for rank, _ in rank_hashes) == ["0", "1", "2", "3"], log
    assert len({digest for _, digest in rank_hashes}) == 1, rank_hashes

    one_process = tmp_path / "alone"
    arguments = [
        "--epochs",
        "2",
        "--train",
        digits / "train",
        "--test",
        digits / "test",
        "--model-dir",
        one_process,
    ]
    subprocess.run([sys.executable, ENTRYPOINTS / "train_ddp.py", *arguments], check=True)
    expected_weights = torch.load(one_process / "model.pt")
    with tarfile.open(home / "s3" / result.json()["model_artifacts"].removeprefix("s3://")) as archive:
        archive.extractall(tmp_path / "zero", filter="data")
    weights = torch.load(tmp_path / "zero" / "model.pt")
    assert weights.keys() == expected_weights.keys()
    assert (
        max((weights[name] - expected_weights[name]).abs().max().item() for name in expected_weights)
        <= TOLERANCE
    )


def test_a_batch_that_its_ranks_cannot_share_is_refused_beforehand(home: Path) -> None:
    result = smlaunch_of(
        *("deepspeed", home, "plan", ENTRYPOINTS / "train_deepspeed.py", "--local", "--hosts", "3"),
        *("--option", "config=deepspeed_zero2.json"),
    )
    assert result.code == 2, result.text
    assert "options.config: deepspeed_zero2.json: train_batch_size 64 is not" in result.text
