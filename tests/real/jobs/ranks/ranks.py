"""The script of the clients' jobs: ranks that join over gloo, add up their numbers, and end as requested."""

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
options, _ = parser.parse_known_args()


def write_line(line: str) -> None:
    """Writes at once: ranks of one torchrun share a pipe, and an unbuffered print() writes piece by piece."""
    os.write(1, (line + "\n").encode())


def main() -> None:
    rank, size = join_group()
    resource_config = json.loads(Path("/opt/ml/input/config/resourceconfig.json").read_text())
    host = resource_config["current_host"]
    write_line(f"rank {rank} of {size} on {host}: lr {options.lr}, name {options.name!r}")
    total = sum_over_ranks(rank, size)
    write_line(f"rank {rank}: the sum is {total:g}")
    if options.end == "raise" and rank == size - 1:
        raise RuntimeError(f"planted on {host}")
    if options.end == "sleep":
        write_line(f"rank {rank} sleeps")
        time.sleep(600)
    if size > 1 or host == "algo-1":
        Path(f"/opt/ml/model/rank{rank}-{host}.json").write_text(json.dumps({"sum": total}))


def join_group() -> "tuple[int, int]":
    """Joins the group of ranks; a script without a launcher runs once on each host."""
    if "RANK" not in os.environ:
        return 0, 1
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    return torch.distributed.get_rank(), torch.distributed.get_world_size()


def sum_over_ranks(rank: int, size: int) -> float:
    if size == 1:
        return 1.0
    import torch

    value = torch.tensor([float(rank + 1)])
    torch.distributed.all_reduce(value)
    # Its threads could abort a rank that ends while one of them is still at work.
    torch.distributed.destroy_process_group()
    return value.item()


def exit_on_signal(number: int, frame: object) -> None:
    write_line(f"rank {os.environ.get('RANK', '0')} got signal {number}")
    sys.exit(0)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, exit_on_signal)
    main()
