"""From typing the command to the first line of the user's script, on two ranks, against torchrun.

    python benchmarks/startup_command.py [--rounds 7]

Three commands in turn: ``torchrun --standalone --nproc-per-node 2``, ``smlaunch run --local`` with a standing
endpoint, and the same with an embedded one. The script prints the wall clock when its first line runs; what
counts is the last of the two ranks. torch must be installed beside smlaunch.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import first_line, interleave, report

# One write: torchrun's ranks share a pipe, and print() would tear the line.
SCRIPT = "import os, time; os.write(1, b'FIRST-LINE %f\\n' % time.time())\n"
BIN = Path(sys.executable).parent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "source" / "hello.py"
        script.parent.mkdir()
        script.write_text(SCRIPT)
        standing = {**os.environ, "SMLAUNCH_HOME": f"{folder}/standing"}
        embedded = {**os.environ, "SMLAUNCH_HOME": f"{folder}/embedded"}
        run = [
            str(BIN / "smlaunch"),
            "run",
            str(script),
            "--strategy",
            "ddp",
            "--processes-per-host",
            "2",
            "--local",
        ]
        torchrun = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node", "2", str(script)]
        smlaunch = str(BIN / "smlaunch")
        subprocess.run([smlaunch, "local", "start"], env=standing, check=True, capture_output=True)
        try:
            figures = interleave(
                {
                    "torchrun --standalone": lambda: first_line(torchrun, dict(os.environ)),
                    "smlaunch run --local, background endpoint": lambda: first_line(run, standing),
                    "smlaunch run --local, embedded endpoint": lambda: first_line(run, embedded),
                },
                rounds,
            )
        finally:
            subprocess.run([smlaunch, "local", "stop"], env=standing, check=True, capture_output=True)
    met = report(
        figures,
        "torchrun --standalone",
        {"smlaunch run --local, background endpoint": 0.4, "smlaunch run --local, embedded endpoint": 0.8},
    )
    sys.exit(not met)


if __name__ == "__main__":
    main()
