"""Every benchmark of this folder in turn; ends with 1 when a goal was missed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
NOT_BENCHMARKS = {"harness.py", "run_all.py"}


def main() -> None:
    missed = []
    for path in sorted(HERE.glob("*.py")):
        if path.name not in NOT_BENCHMARKS:
            print(f"\n== {path.name}", flush=True)
            if subprocess.run([sys.executable, path]).returncode:
                missed.append(path.name)
    print("\nmissed: " + ", ".join(missed) if missed else "\nall goals met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
