"""Ranks that exit on SIGTERM, and print how often they got it."""

import os
import signal
import sys

from mpi4py import MPI

received_signals = []
signal.signal(signal.SIGTERM, lambda number, frame: received_signals.append(number))
MPI.COMM_WORLD.Barrier()
print(f"ready: rank {os.environ['RANK']}", flush=True)
while not received_signals:
    signal.sigtimedwait([], 0.05)
print(
    f"told {len(received_signals)} time(s): rank {os.environ['RANK']} on {os.environ['SM_CURRENT_HOST']}",
    flush=True,
)
sys.exit(0)
