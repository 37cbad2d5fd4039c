"""A rank that exits while the others continue, or kills its host; neither calls the MPI library."""

import argparse
import os
import signal
import sys
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--how", choices=["leaves", "host"])
how = parser.parse_args().how
print(f"here: rank {os.environ['RANK']}", flush=True)
if os.environ["RANK"] == "3":
    if how == "leaves":
        sys.exit(3)
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        if b"smlaunch.runtime.mpi.host_program" in path.read_bytes():
            os.kill(int(path.parent.name), signal.SIGKILL)
signal.pause()
