"""Ranks that all wait for something that never comes."""

import signal

from mpi4py import MPI


def waits() -> None:
    signal.pause()


MPI.COMM_WORLD.Barrier()
print("begins", flush=True)
waits()
