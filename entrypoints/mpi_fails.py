"""One rank of an MPI program fails, in the way it is asked to: what the others see, and what the job tells.

    smlaunch run entrypoints/mpi_fails.py --strategy mpi --hosts 2 --processes-per-host 2 --local \\
        --hp how=abort --hp rank=3

All others wait in a barrier that never ends. Whatever the MPI does then, the job's failure names the rank,
its host, and its exit code or signal.
"""

from __future__ import annotations

import argparse
import os
import signal

from mpi4py import MPI


def main() -> None:
    parser = argparse.ArgumentParser(description="a rank that fails")
    parser.add_argument("--rank", type=int, default=3)
    parser.add_argument("--how", choices=["raise", "exit", "kill", "abort"], default="raise")
    args = parser.parse_args()
    world = MPI.COMM_WORLD
    print(f"rank {world.Get_rank()} of {world.Get_size()}: the sum is {world.allreduce(world.Get_rank())}")
    if world.Get_rank() == args.rank:
        fail(args.how, world)
    world.Barrier()


def fail(how: str, world: MPI.Comm) -> None:
    if how == "raise":
        raise ValueError("planted")
    if how == "exit":
        os._exit(7)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    world.Abort(5)


if __name__ == "__main__":
    main()
