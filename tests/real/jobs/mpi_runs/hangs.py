"""Ranks that wait for nothing, all of them."""

import signal

from mpi4py import MPI


def waits() -> None:
    signal.pause()


MPI.COMM_WORLD.Barrier()
print("begins", flush=True)
waits()
