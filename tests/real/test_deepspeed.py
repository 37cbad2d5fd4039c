"""DeepSpeed's ZeRO over two hosts, without its launcher and without ssh: what one process alone learns."""

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
    ran = smlaunch_of(
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
    assert ran.code == 0, ran.text + log
    told = re.findall(r"rank (\d) of 4, stage 2: weights sha256 ([0-9a-f]{64})", log)
    assert sorted(rank for rank, _ in told) == ["0", "1", "2", "3"], log
    assert len({digest for _, digest in told}) == 1, told

    alone = tmp_path / "alone"
    words = ["--epochs", "2", "--train", digits / "train", "--test", digits / "test", "--model-dir", alone]
    subprocess.run([sys.executable, ENTRYPOINTS / "train_ddp.py", *words], check=True)
    wanted = torch.load(alone / "model.pt")
    with tarfile.open(home / "s3" / ran.json()["model_artifacts"].removeprefix("s3://")) as archive:
        archive.extractall(tmp_path / "zero", filter="data")
    found = torch.load(tmp_path / "zero" / "model.pt")
    assert found.keys() == wanted.keys()
    assert max((found[name] - wanted[name]).abs().max().item() for name in wanted) <= TOLERANCE


def test_a_batch_that_its_ranks_cannot_share_is_refused_beforehand(home: Path) -> None:
    ran = smlaunch_of(
        *("deepspeed", home, "plan", ENTRYPOINTS / "train_deepspeed.py", "--local", "--hosts", "3"),
        *("--option", "config=deepspeed_zero2.json"),
    )
    assert ran.code == 2, ran.text
    assert "options.config: deepspeed_zero2.json: train_batch_size 64 is not" in ran.text
