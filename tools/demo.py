"""The main job, as a user would type it: a real model on two hosts of two ranks, and where it lies."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

SMLAUNCH = Path(sys.executable).parent / "smlaunch"
RUN = [
    *("run", "entrypoints/train_ddp.py", "--strategy", "ddp", "--hosts", "2", "--processes-per-host", "2"),
    *("--input", "train=demo-data/train", "--input", "test=demo-data/test", "--local"),
]


def main() -> None:
    name = "demo"
    earlier = subprocess.run(
        [SMLAUNCH, "ls", "--local", "--json"], capture_output=True, text=True, check=True
    )
    taken = {run["run"] for run in json.loads(earlier.stdout)["runs"]}
    number = 1
    while name in taken:
        number += 1
        name = f"demo-{number}"
    command = [*RUN, "--name", name]
    print(f"$ smlaunch {shlex.join(command)}\n", flush=True)
    ran = subprocess.run([SMLAUNCH, *command])
    if ran.returncode:
        sys.exit(ran.returncode)
    shown = subprocess.run(
        [SMLAUNCH, "show", name, "--local", "--json"], capture_output=True, text=True, check=True
    )
    print(f"held-out accuracy {json.loads(shown.stdout)['metrics']['held_out_accuracy']:.4f}")


if __name__ == "__main__":
    main()
