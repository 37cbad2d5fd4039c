"""A rank that has left its process group has no thread that could abort it while Python ends."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

SCRIPT = """
import gc, os, sys, torch, torch.distributed as dist
if "alone" not in sys.argv:
    import smlaunch.train
from torch.nn.parallel import DistributedDataParallel

def threads():
    names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
    return sum("gloo" in name for name in names)

def train():
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if "alone" in sys.argv:
        return None
    run = smlaunch.train.Checkpointer(model=model, optimizer=optimizer, every_steps=2)
    with run:
        for _ in run.batches(range(4), steps=4):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            run.step()
    return run

dist.init_process_group("gloo")
run = train()
print("before:", threads() > 0)
dist.destroy_process_group()
print("after:", threads())
if run is not None:
    print("steps:", run.steps_done, "rank:", run.rank, "of", run.world_size)
"""


def run_and_read(folder: Path, *arguments: str) -> str:
    """Returns the output of the first of two ranks. They are new processes: earlier imports matter here."""
    script = folder / "script.py"
    script.write_text(SCRIPT)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {
        **os.environ,
        "SMLAUNCH_CHECKPOINTS": str(folder / "checkpoints"),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": "2",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), *arguments],
            env={**common, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    texts = [rank.communicate(timeout=90)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], texts
    return texts[0]


def test_no_thread_of_gloo_is_left(tmp_path: Path) -> None:
    text = run_and_read(tmp_path)
    assert "before: True" in text
    assert "after: 0" in text
    assert "steps: 4 rank: 0 of 2" in text


@pytest.mark.real
def test_without_us_pytorch_leaves_them(tmp_path: Path) -> None:
    """Should this fail, PyTorch has mended it, and ``preload_distributed_nn`` can go."""
    text = run_and_read(tmp_path, "alone")
    assert "before: True" in text
    assert "after: 0" not in text
