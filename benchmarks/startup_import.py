"""``import smlaunch`` against a bare interpreter, and ``smlaunch --help`` against ``torchx --help``.

    python benchmarks/startup_import.py [--torchx /path/to/torchx] [--rounds 11]

Without ``--torchx`` it is installed into a throw-away virtual environment (16 MB).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from pathlib import Path

from harness import interleave, report

BIN = Path(sys.executable).parent


def wall(*command: str) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        return time.perf_counter() - started

    return measure


def install_torchx(folder: str) -> Path:
    venv.create(folder, with_pip=True)
    subprocess.run([f"{folder}/bin/pip", "install", "-q", "torchx==0.7.0"], check=True)
    return Path(folder) / "bin" / "torchx"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--torchx", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        torchx = args.torchx or install_torchx(folder)
        imports = interleave(
            {
                "python -c pass": wall(sys.executable, "-c", "pass"),
                "python -c 'import smlaunch'": wall(sys.executable, "-c", "import smlaunch"),
            },
            args.rounds,
        )
        helps = interleave(
            {
                "torchx --help": wall(str(torchx), "--help"),
                "smlaunch --help": wall(str(BIN / "smlaunch"), "--help"),
            },
            args.rounds,
        )
    met = report(imports, "python -c pass", {"python -c 'import smlaunch'": 3.0})
    met &= report(helps, "torchx --help", {"smlaunch --help": 1.0})
    sys.exit(not met)


if __name__ == "__main__":
    main()
