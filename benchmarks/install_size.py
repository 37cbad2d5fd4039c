"""What ``pip install .`` brings into an empty environment, in distributions and megabytes, and that it runs.

    python benchmarks/install_size.py

Counted is the growth of site-packages on disk, as ``du`` has it (the byte code pip compiles included), so pip
itself is not in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DISTRIBUTIONS, MEGABYTES = 20, 80


def size(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*"))


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        venv.create(environment, with_pip=True)
        site = next(environment.glob("lib/python*/site-packages"))

        def installed() -> set[str]:
            listing = subprocess.run(
                [environment / "bin/pip", "list", "--format", "json", "--disable-pip-version-check"],
                check=True,
                capture_output=True,
            )
            return {row["name"] for row in json.loads(listing.stdout)}

        before, bytes_before = installed(), size(site)
        subprocess.run([environment / "bin/pip", "install", "-q", str(ROOT)], check=True)
        brought = sorted(installed() - before)
        megabytes = (size(site) - bytes_before) / 1e6
        print(f"{len(brought)} distributions (at most {DISTRIBUTIONS}): {' '.join(brought)}")
        print(f"{megabytes:.1f} MB (at most {MEGABYTES})")

        script = Path(folder) / "hello" / "hello.py"
        script.parent.mkdir()
        script.write_text("import os\nprint('hello from rank', os.environ['RANK'])\n")
        run = [environment / "bin/smlaunch", "run", script, "--strategy", "ddp", "--hosts", "2", "--local"]
        done = subprocess.run(
            run, env={**os.environ, "SMLAUNCH_HOME": f"{folder}/home"}, capture_output=True, text=True
        )
        works = done.returncode == 0 and all(
            f"hello from rank {rank}" in done.stdout + done.stderr for rank in (0, 1)
        )
        print("it runs --local: " + ("yes" if works else f"NO\n{done.stdout}{done.stderr}"))
    sys.exit(not (works and len(brought) <= DISTRIBUTIONS and megabytes <= MEGABYTES))


if __name__ == "__main__":
    main()
