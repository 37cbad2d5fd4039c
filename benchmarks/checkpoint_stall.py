"""How long a checkpoint holds the training up: ours against PyTorch's asynchronous one and a plain copy of
the same state, in turn in one process. Goals: at most 0.35 of dcp.async_save and twice the copy.

Each save is finished before the next measure begins. "until durable" is how long ours takes in all: hashed,
written, forced to the disk, committed.

    python benchmarks/checkpoint_stall.py [MEGABYTES] [ROUNDS]
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from harness import Figure, interleave, report

from smlaunch.train import Checkpointer

GOAL_DCP = 0.35
GOAL_COPY = 2.0
TENSORS = 24
"""As many as a small model's layers have; more tensors would favour neither."""


class State(torch.nn.Module):
    """Parameters of ``megabytes`` in all, and nothing to train."""

    def __init__(self, megabytes: int) -> None:
        super().__init__()
        count = megabytes * 1_000_000 // 4 // TENSORS
        self.layers = torch.nn.ParameterList(
            torch.nn.Parameter(torch.randn(count), requires_grad=False) for _ in range(TENSORS)
        )


def main(megabytes: int, rounds: int) -> bool:
    with tempfile.TemporaryDirectory() as name, process_group(Path(name)):
        folder = Path(name)
        model = State(megabytes)
        room = [torch.empty_like(tensor) for tensor in model.parameters()]
        durable: list[float] = []

        def copy() -> float:
            began = time.perf_counter()
            for target, tensor in zip(room, model.parameters(), strict=True):
                target.copy_(tensor)
            return time.perf_counter() - began

        def asynchronous() -> float:
            began = time.perf_counter()
            saving = dcp.async_save({"model": model.state_dict()}, checkpoint_id=str(folder / "dcp"))
            stall = time.perf_counter() - began
            saving.result()
            shutil.rmtree(folder / "dcp")
            return stall

        with Checkpointer(model=model, directory=str(folder / "ours"), every_steps=1) as run:

            def ours() -> float:
                next(iterator)
                touch(model)
                began = time.perf_counter()
                run.step()
                stall = time.perf_counter() - began
                run._checkpoint_manager.finish_save()
                durable.append(time.perf_counter() - began)
                shutil.rmtree(folder / "ours" / f"step-{run.steps_done:012d}")
                return stall

            iterator = run.batches(range(1 << 30), steps=1 << 30)
            measures = {"plain copy": copy, "dcp.async_save": asynchronous, "smlaunch": ours}
            figures = interleave(measures, rounds)
        print(f"{megabytes} MB in {TENSORS} tensors, {torch.get_num_threads()} threads")
        reached = report(figures, "dcp.async_save", {"smlaunch": GOAL_DCP})
        reached &= report(figures, "plain copy", {"smlaunch": GOAL_COPY})
        print(Figure("smlaunch, until durable", tuple(durable[1 : 1 + rounds])))
        return reached


def touch(model: State) -> None:
    """New content, as after a step: the same one would not be written a second time."""
    for tensor in model.parameters():
        tensor[0] += 1


@contextlib.contextmanager
def process_group(folder: Path):  # type: ignore[no-untyped-def]
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(not main(*given, *(268, 5)[len(given) :]))
