"""What SDK v3's MPI driver starts: ranks that add up their numbers over MPI."""

import sys

from mpi4py import MPI

world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
print(f"rank {world.rank} of {world.size} on {MPI.Get_processor_name()}: the sum is {total}", flush=True)
if sys.argv[sys.argv.index("--end") + 1] == "raise":
    raise RuntimeError(f"planted on {MPI.Get_processor_name()}")
