"""Scripts of Lightning, Hugging Face's Trainer and accelerate: cut and killed, and the same weights."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.real.conftest import program

RANKS = 2

pytestmark = pytest.mark.torch


class Segment:
    """The ranks of one segment, as a host's runtime would start them."""

    def __init__(self, script: str, checkpoints: Path, number: int, **variables: str) -> None:
        words = [
            program("trainers", "python"),
            str(ROOT / "entrypoints" / script),
            "--samples",
            "512",
            "--every-steps",
            "3",
        ]
        words += ["--epochs", "1" if script == "train_hf.py" else "2"]
        common = {
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(_free_port()),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            "HF_HUB_OFFLINE": "1",
            "SM_MODEL_DIR": str(checkpoints.parent / "model"),
            "SMLAUNCH_RUN": "trainers",
            "SMLAUNCH_JOB": f"trainers-s{number}-a1",
            "SMLAUNCH_SEGMENT": str(number),
            "SMLAUNCH_CHECKPOINTS": str(checkpoints),
            **variables,
        }
        self.ranks = [
            subprocess.Popen(
                words,
                env={**_outer(), **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(RANKS)
        ]

    def lines(self) -> Iterator[str]:
        """Of rank 0. The pipe stays open when nobody wants more of them."""
        assert self.ranks[0].stdout is not None
        return iter(self.ranks[0].stdout.readline, "")

    def wait(self) -> str:
        """Rank 0's output, when all have left with 0."""
        texts = [rank.communicate(timeout=300)[0] for rank in self.ranks]
        assert [rank.returncode for rank in self.ranks] == [0] * RANKS, texts
        return texts[0]

    def kill(self) -> None:
        for rank in self.ranks:
            rank.send_signal(signal.SIGKILL)
        for rank in self.ranks:
            rank.communicate()


@pytest.mark.parametrize("script", ["train_lightning.py", "train_hf.py", "train_accelerate.py"])
def test_cut_and_killed_it_ends_with_the_same_weights(script: str, tmp_path: Path) -> None:
    unsplit = Segment(script, tmp_path / "unsplit" / "kept", 1).wait()
    kept = tmp_path / "cut" / "kept"

    first = Segment(script, kept, 1, SMLAUNCH_UNTIL_STEP="5").wait()
    assert steps(first) == list(range(1, 6))
    assert "weights sha256" not in first

    second = Segment(script, kept, 2)
    seen = []
    for line in second.lines():
        seen += steps(line)
        if seen and seen[-1] >= 10:
            break
    second.kill()
    assert seen[0] == 6

    third = steps(text := Segment(script, kept, 3).wait())
    assert 6 <= third[0] <= 10, "it goes on from a checkpoint of the segment that was killed, or of the first"
    assert third[-1] == steps(unsplit)[-1]
    assert weights(text) == weights(unsplit)


def steps(text: str) -> list[int]:
    return [int(step) for step in re.findall(r"smlaunch: progress step=(\d+)", text)]


def weights(text: str) -> str:
    (found,) = re.findall(r"weights sha256 ([0-9a-f]{64})", text)
    return str(found)


def _outer() -> Mapping[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("SMLAUNCH_", "SM_"))}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
