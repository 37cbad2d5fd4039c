"""Ranks that all wait for something that never comes. Every second one takes a second for its stack."""

import faulthandler
import os
import signal
import time
from types import FrameType

from mpi4py import MPI


def prints_slowly(number: int, frame: FrameType | None) -> None:
    time.sleep(1)
    faulthandler.dump_traceback()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def waits() -> None:
    signal.pause()


if MPI.COMM_WORLD.Get_rank() % 2:
    signal.signal(signal.SIGABRT, prints_slowly)


MPI.COMM_WORLD.Barrier()
print("begins", flush=True)
waits()
