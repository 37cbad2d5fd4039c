"""The same skewed data over four hosts of the local endpoint, split by count and by bytes in each of the ways
its files can be distributed: wall-clock of the whole command, bytes per host, and whether every record came
once.

Hosts get through 0.25 MB a second each, whatever else this machine does: four of them share its cores. Goal:
each way at most 0.9 times the time of the split by count, and every record once.

    python benchmarks/share_nothing.py [ROUNDS]
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from itertools import count
from pathlib import Path

from harness import interleave, report

ROOT = Path(__file__).resolve().parent.parent
SMLAUNCH = str(Path(sys.executable).parent / "smlaunch")
HOSTS, FILES, RATE, GOAL = 4, 240, 0.25, 0.9
WAYS = {"count": ("data", "split=key"), "shards": ("packed", "split=bytes,split_via=shards")}
WAYS |= {way: ("data", f"split=bytes,split_via={way}") for way in ("lists", "jobs")}

_PART = re.compile(r"part: files=\d+ bytes=(\d+) records=(\d+)")


def write_data(folder: Path) -> int:
    """Sizes by Pareto's law with exponent 1.2, 10 kB at least; how many records."""
    folder.mkdir()
    chance, records = random.Random(11), 0
    for number in range(FILES):
        lines = []
        for _ in range(min(int(50 * chance.paretovariate(1.2)), 15_000)):
            lines.append(f"r{records} {chance.randbytes(96).hex()}\n")
            records += 1
        (folder / f"{number:04d}.txt").write_text("".join(lines))
    return records


class Run:
    """Called, it runs one job and returns the seconds of the whole command."""

    def __init__(self, base: Path, way: str, records: int) -> None:
        self._base, self._way, self._records, self._numbers = base, way, records, count()
        self.sizes: list[int] = []
        self.once = True

    def __call__(self) -> float:
        folder, how = WAYS[self._way]
        name = f"{self._way}-{next(self._numbers)}"
        words = ["--hosts", str(HOSTS), "--input", f"train={self._base / folder},{how}", "--name", name]
        command = [SMLAUNCH, "run", str(ROOT / "entrypoints" / "share_nothing.py"), "--local", *words]
        home = self._base / "home"
        started = time.monotonic()
        done = subprocess.run(
            [*command, "--", "--rate", str(RATE)],
            env={**os.environ, "SMLAUNCH_HOME": str(home)},
            capture_output=True,
            text=True,
        )
        seconds = time.monotonic() - started
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        self.sizes = sorted(int(size) for size, _ in _PART.findall(done.stdout))
        names = Counter(_processed(home, name))
        self.once &= len(names) == self._records and set(names.values()) == {1}
        return seconds


def _processed(home: Path, run: str) -> list[str]:
    names: list[str] = []
    for archive in home.glob(f"s3/*/smlaunch/{run}*/output/*/output/output.tar.gz"):
        with tarfile.open(archive) as found:
            for member in found:
                file = found.extractfile(member)
                names += [] if file is None else [json.loads(line)["name"] for line in file]
    return names


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        records = write_data(base / "data")
        packed = [SMLAUNCH, "data", "pack", str(base / "data"), str(base / "packed"), "--shards", "8"]
        subprocess.run(packed, check=True, capture_output=True)
        runs = {way: Run(base, way, records) for way in WAYS}
        figures = interleave(runs, rounds)
        reached = report(figures, "count", dict.fromkeys(("shards", "lists", "jobs"), GOAL))
        print(f"\n{'bytes of each host':20s} {'least':>10s} {'most':>10s}   most/mean   every record once")
        for way, run in runs.items():
            mean = sum(run.sizes) / HOSTS
            least, most = run.sizes[0], run.sizes[-1]
            print(f"{way:20s} {least:10,d} {most:10,d}   {most / mean:9.4f}   {'yes' if run.once else 'NO'}")
            reached &= run.once
    sys.exit(not reached)


if __name__ == "__main__":
    main()
