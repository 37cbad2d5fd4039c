"""What the clients' jobs run: ranks that meet over gloo, add up their numbers, and end as they are told."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("--name", required=True)
parser.add_argument("--end", choices=("well", "raise", "sleep"), default="well")
given, _ = parser.parse_known_args()


def say(line: str) -> None:
    """In one write: ranks of one torchrun share a pipe, and print() without a buffer writes word by word."""
    os.write(1, (line + "\n").encode())


def main() -> None:
    rank, size = meet()
    place = json.loads(Path("/opt/ml/input/config/resourceconfig.json").read_text())
    host = place["current_host"]
    say(f"rank {rank} of {size} on {host}: lr {given.lr}, name {given.name!r}")
    total = add_up(rank, size)
    say(f"rank {rank}: the sum is {total:g}")
    if given.end == "raise" and rank == size - 1:
        raise RuntimeError(f"planted on {host}")
    if given.end == "sleep":
        say(f"rank {rank} sleeps")
        time.sleep(600)
    if size > 1 or host == "algo-1":
        Path(f"/opt/ml/model/rank{rank}-{host}.json").write_text(json.dumps({"sum": total}))


def meet() -> "tuple[int, int]":
    """A script that no launcher distributes runs once on each host."""
    if "RANK" not in os.environ:
        return 0, 1
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def add_up(rank: int, size: int) -> float:
    if size == 1:
        return 1.0
    import torch

    value = torch.tensor([float(rank + 1)])
    torch.distributed.all_reduce(value)
    # Its threads could abort a rank that ends while one of them is still at work.
    torch.distributed.destroy_process_group()
    return value.item()


def told_to_leave(number: int, frame: object) -> None:
    say(f"rank {os.environ.get('RANK', '0')} got signal {number}")
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, told_to_leave)
    main()
