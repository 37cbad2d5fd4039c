"""Log lines from eight ranks through the runtime, against the same eight processes on one bare pipe.

    python benchmarks/output_runtime.py [--rounds 5]

Once at 100,000 lines of 100 bytes a second in all, for one second, and once as fast as they can, in blocks
as a buffered program writes them. Through the runtime each line gets its rank in front, none is torn, and
the tail of each rank is kept. What counts is the time until the last line has arrived.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from harness import interleave, report
from startup_runtime import make_host

from smlaunch.contract.sagemaker_paths import ROOT_VARIABLE

RANKS = 8
BLOCK = 80
PACED = 100_000 // RANKS // BLOCK * BLOCK
FLOOD = 200_000
SCRIPT = """
import os, sys, time
lines = int(sys.argv[sys.argv.index("--lines") + 1])
seconds = float(sys.argv[sys.argv.index("--seconds") + 1])
block = b"".join(b"%07d %s\\n" % (number, b"x" * 91) for number in range(80))
blocks, started = lines // 80, time.monotonic()
for number in range(blocks):
    os.write(1, block)
    time.sleep(max(0.0, started + seconds * number / blocks - time.monotonic()) if seconds else 0.0)
"""


def drained(processes: list[subprocess.Popen[bytes]], read_end: int, lines: int) -> float:
    """Seconds until the pipe is at its end; checks that all lines came."""
    started = time.perf_counter()
    seen = 0
    while block := os.read(read_end, 1 << 20):
        seen += block.count(b"\n")
    seconds = time.perf_counter() - started
    os.close(read_end)
    if any(process.wait() for process in processes) or seen != lines * RANKS:
        sys.exit(f"{seen} lines came, {lines * RANKS} were sent")
    return seconds


def measured(command: list[str], environment: dict[str, str], processes: int, lines: int) -> float:
    read_end, write_end = os.pipe()
    started = [subprocess.Popen(command, stdout=write_end, env=environment) for _ in range(processes)]
    os.close(write_end)
    return drained(started, read_end, lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    met = True
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "lines.py"
        script.write_text(SCRIPT)
        for name, lines, seconds in (("100,000 lines/s", PACED, "1"), ("all they can", FLOOD, "0")):
            words = {"lines": str(lines), "seconds": seconds}
            host = make_host(Path(folder) / seconds, SCRIPT.encode(), RANKS, words)
            bare = [sys.executable, str(script), "--lines", str(lines), "--seconds", seconds]
            environment = {**os.environ, ROOT_VARIABLE: f"{folder}/{seconds}"}
            measures: dict[str, Callable[[], float]] = {
                f"{name}, one bare pipe": partial(measured, bare, environment, RANKS, lines),
                f"{name}, through the runtime": partial(measured, host, environment, 1, lines),
            }
            figures = interleave(measures, rounds)
            for figure in figures.values():
                print(f"{figure.name:44s} {lines * RANKS / figure.median / 1000:9.0f} thousand lines/s")
            goals = {f"{name}, through the runtime": 2.0} if seconds != "0" else None
            met &= report(figures, f"{name}, one bare pipe", goals)
    sys.exit(not met)


if __name__ == "__main__":
    main()
