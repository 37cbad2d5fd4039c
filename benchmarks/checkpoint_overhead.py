"""DDP steps per second with a checkpoint every 30 seconds, against none, in pairs: at least 0.97 of it.

    python benchmarks/checkpoint_overhead.py [--pairs 4] [--ranks 2] [--megabytes 64]

A pair is half a minute with one checkpoint and half a minute without any, in one process and in changing
order: what else the machine does meanwhile meets both.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

EVERY_SECONDS = 30
WANTED = 0.97


def rank_main(arguments: argparse.Namespace) -> None:
    """One rank: trains block by block; the first prints the steps per second of each pair."""
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
    rates: dict[bool, float] = {}
    over = torch.zeros(1)
    with Checkpointer(
        model=model, optimizer=optimizer, directory=arguments.directory, every=EVERY_SECONDS
    ) as run:
        run.step()
        for pair in range(arguments.pairs):
            for kept in (False, True) if pair % 2 else (True, False):
                began, steps, over[0] = time.monotonic(), 0, 0
                while not over[0]:
                    optimizer.zero_grad()
                    model(inputs).square().mean().backward()
                    optimizer.step()
                    steps += 1
                    if kept:
                        run.step()
                    over[0] = time.monotonic() - began > EVERY_SECONDS
                    dist.broadcast(over, 0)
                rates[kept] = steps / (time.monotonic() - began)
            if dist.get_rank() == 0:
                print("\n" + json.dumps([rates[True], rates[False]]), flush=True)
    del model
    dist.destroy_process_group()


def measured(arguments: argparse.Namespace, directory: Path) -> list[tuple[float, float]]:
    """Steps per second over all ranks, with checkpoints and without, of each pair."""
    command = [sys.executable, __file__, "--pairs", str(arguments.pairs), "--directory", str(directory)]
    command += ["--megabytes", str(arguments.megabytes), "--batch-size", str(arguments.batch_size)]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
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
    return [tuple(json.loads(line)) for line in outputs[0].splitlines() if line.startswith("[")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=4, help="each takes a minute")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--megabytes", type=float, default=64, help="of state")
    parser.add_argument("--batch-size", type=int, default=64, help="of each rank")
    parser.add_argument("--directory", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.directory:
        rank_main(arguments)
        return
    with tempfile.TemporaryDirectory() as folder:
        pairs = measured(arguments, Path(folder) / "checkpoints")
    for kept, none in pairs:
        print(f"{kept:.2f} and {none:.2f} steps/s: {kept / none:.3f}")
    middle = statistics.median(kept / none for kept, none in pairs)
    print(f"with a checkpoint every {EVERY_SECONDS} s: {middle:.3f} of the steps/s without; wanted {WANTED}")
    if middle < WANTED:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
