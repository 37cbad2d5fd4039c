"""Log lines from eight ranks through the runtime, against the same eight processes on one bare pipe.

    python benchmarks/output_runtime.py [--rounds 5] [--lines 200000]

Every rank prints ``--lines`` lines of 100 bytes as fast as it can, in blocks as a buffered program does.
Through the runtime each line gets its rank in front, none is torn, and the tail of each rank is kept.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness import interleave, report
from startup_runtime import make_host

from smlaunch.protocol.paths import ROOT_VARIABLE

RANKS = 8
SCRIPT = """
import os, sys
lines = int(sys.argv[-1])
block = b"".join(b"%07d %s\\n" % (number, b"x" * 91) for number in range(80))
for _ in range(lines // 80):
    os.write(1, block)
"""


def drained(processes: list[subprocess.Popen[bytes]], read_end: int, lines: int) -> float:
    """Seconds until the pipe is at its end; checks that all lines came."""
    started = time.perf_counter()
    seen = 0
    while block := os.read(read_end, 1 << 20):
        seen += block.count(b"\n")
    seconds = time.perf_counter() - started
    os.close(read_end)
    if any(process.wait() for process in processes) or seen != lines // 80 * 80 * RANKS:
        sys.exit(f"{seen} lines came, {lines * RANKS} were sent")
    return seconds


def bare(script: Path, lines: int) -> float:
    read_end, write_end = os.pipe()
    command = [sys.executable, str(script), str(lines)]
    processes = [subprocess.Popen(command, stdout=write_end) for _ in range(RANKS)]
    os.close(write_end)
    return drained(processes, read_end, lines)


def through_runtime(command: list[str], environment: dict[str, str], lines: int) -> float:
    read_end, write_end = os.pipe()
    processes = [subprocess.Popen(command, stdout=write_end, env=environment)]
    os.close(write_end)
    return drained(processes, read_end, lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lines", type=int, default=200_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        host = make_host(Path(folder) / "ml", SCRIPT.encode(), RANKS, {"lines": str(options.lines)})
        script = Path(folder) / "lines.py"
        script.write_text(SCRIPT)
        environment = {**os.environ, ROOT_VARIABLE: f"{folder}/ml"}
        figures = interleave(
            {
                "eight processes, one bare pipe": lambda: bare(script, options.lines),
                "eight ranks, through the runtime": lambda: through_runtime(host, environment, options.lines),
            },
            options.rounds,
        )
    for figure in figures.values():
        print(f"{figure.name:44s} {options.lines * RANKS / figure.median / 1000:9.0f} thousand lines/s")
    sys.exit(not report(figures, "eight processes, one bare pipe", {"eight ranks, through the runtime": 2.0}))


if __name__ == "__main__":
    main()
