"""100,000 log lines a second from 8 ranks: through one host's pipe and the pump into the log store, against
`cat` of the same pipe into a file. Goal: at most twice the plain pipe, and the rate is held.

    python benchmarks/logs.py [LINES] [ROUNDS]
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from harness import interleave, report

from smlaunch.api.job_kinds import TRAINING
from smlaunch.local.jobs.host_output_log import HostOutputLogger
from smlaunch.local.stores.log_store import LogStore

RANKS = 8
RATE = 100_000
GOAL = 2.0
WRITER = """
import os, sys
rank, lines = sys.argv[1], int(sys.argv[2])
for start in range(0, lines, 32):
    text = "".join("[%s] step %08d loss 0.12345 lr 0.001 tokens/s 123456\\n" % (rank, start + i)
                   for i in range(min(32, lines - start)))
    data = text.encode()
    while data:  # at most PIPE_BUF at once: lines of several ranks do not tear
        cut = len(data) if len(data) <= 4096 else data.rindex(b"\\n", 0, 4096) + 1
        os.write(1, data[:cut])
        data = data[cut:]
"""


def write_all(output: int, lines: int) -> None:
    """All ranks' lines into one pipe, as the runtime of a host hands them on."""
    command = [sys.executable, "-I", "-S", "-c", WRITER]
    ranks = [
        subprocess.Popen([*command, str(rank), str(lines // RANKS)], stdout=output) for rank in range(RANKS)
    ]
    os.close(output)
    for rank in ranks:
        assert rank.wait() == 0


def into_file(folder: Path, lines: int) -> Callable[[], float]:
    def plain() -> float:
        reader, writer = os.pipe()
        started = time.perf_counter()
        with (folder / "plain").open("wb") as target:
            reading = subprocess.Popen(["cat"], stdin=reader, stdout=target)
            os.close(reader)
            write_all(writer, lines)
            assert reading.wait() == 0
        return time.perf_counter() - started

    return plain


def into_store(folder: Path, lines: int) -> Callable[[], float]:
    numbers = count()

    def pumped() -> float:
        root = folder / f"logs-{next(numbers)}"
        store = LogStore(root)
        reader, writer = os.pipe()
        started = time.perf_counter()
        pump = HostOutputLogger("job", ["algo-1"], store)
        pump.start({"algo-1": reader})
        write_all(writer, lines)
        pump.finish(timeout=600)
        seconds = time.perf_counter() - started
        os.close(reader)
        (stream,) = store.list_streams(TRAINING.log_group)
        found = sum(1 for _ in store.read_events(TRAINING.log_group, stream.name))
        assert found == lines, f"{found} of {lines} arrived"
        shutil.rmtree(root)
        return seconds

    return pumped


def main(lines: int, rounds: int) -> bool:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measures = {"pipe into a file": into_file(folder, lines), "log store": into_store(folder, lines)}
        figures = interleave(measures, rounds)
    print(f"{lines} lines from {RANKS} ranks")
    for figure in figures.values():
        print(f"{figure.name}: {lines / figure.median:,.0f} lines/s")
    held = lines / figures["log store"].median >= RATE
    print(f"{RATE:,} lines/s: {'held' if held else 'NOT held'}")
    return report(figures, "pipe into a file", {"log store": GOAL}) and held


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(not main(*given, *(400_000, 5)[len(given) :]))
