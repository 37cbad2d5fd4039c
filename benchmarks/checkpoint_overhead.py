"""DDP steps per second with a checkpoint every 30 seconds, against none, in pairs: at least 0.97 of it.

    python benchmarks/checkpoint_overhead.py [--pairs 3] [--seconds 65] [--ranks 2] [--megabytes 64]

Each pair runs both, one after the other and in changing order, on the same machine.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EVERY_SECONDS = 30
WANTED = 0.97


def rank_main(arguments: argparse.Namespace) -> None:
    """One rank: trains for a while and prints its steps per second."""
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from smlaunch.train import Checkpointer

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    width = int((arguments.megabytes * 2**20 / 4 / 3) ** 0.5)  # weights, and two moments for each of them
    model = DistributedDataParallel(nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    inputs = torch.randn(arguments.batch_size, width)
    with contextlib.ExitStack() as stack:
        run = None
        if arguments.directory:
            run = stack.enter_context(
                Checkpointer(
                    model=model, optimizer=optimizer, directory=arguments.directory, every=EVERY_SECONDS
                )
            )
        began, steps, over = time.monotonic(), 0, torch.zeros(1)
        while not over[0]:
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()
            steps += 1
            if run is not None:
                run.step()
            over[0] = time.monotonic() - began > arguments.seconds
            dist.broadcast(over, 0)
        rate = steps / (time.monotonic() - began)
        run = None
    if dist.get_rank() == 0:
        print("\n" + json.dumps({"rate": rate}))
    del model
    dist.destroy_process_group()


def measured(arguments: argparse.Namespace, port: int, directory: Path | None) -> float:
    """Steps per second of one run over all ranks."""
    command = [sys.executable, __file__, "--rank-of", "1", "--seconds", str(arguments.seconds)]
    command += ["--megabytes", str(arguments.megabytes), "--batch-size", str(arguments.batch_size)]
    command += ["--directory", "" if directory is None else str(directory)]
    processes = []
    for rank in range(arguments.ranks):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(arguments.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
        }
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    outputs = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a rank failed")
    return float(json.loads(outputs[0].splitlines()[-1])["rate"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=65)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=64, help="of state over all")
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--directory", default="", help=argparse.SUPPRESS)
    parser.add_argument("--rank-of", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rank_of:
        rank_main(arguments)
        return
    ratios = []
    for pair in range(arguments.pairs):
        with tempfile.TemporaryDirectory() as folder:
            rates = {}
            for kept in (True, False) if pair % 2 else (False, True):
                port = 20000 + (os.getpid() * 7 + pair * 2 + kept) % 20000
                rates[kept] = measured(arguments, port, Path(folder) / "checkpoints" if kept else None)
        ratios.append(rates[True] / rates[False])
        print(
            f"pair {pair + 1}: {rates[True]:.2f} and {rates[False]:.2f} steps/s, {ratios[-1]:.3f}", flush=True
        )
    middle = statistics.median(ratios)
    print(f"with a checkpoint every {EVERY_SECONDS} s: {middle:.3f} of the steps/s without; wanted {WANTED}")
    if middle < WANTED:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
