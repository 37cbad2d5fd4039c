"""Run make targets in a fresh clone below a private home: `python tools/fresh_clone.py --user 1234 test`.

The clone is of HEAD, its home has mode 0700, and nothing of this checkout's environment is used. The last
line of the output is a JSON object, which tools/evidence.py records. Another user than root needs root.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KEPT_VARIABLES = (
    "PATH",
    "LANG",
    "LC_ALL",
    "PIP_INDEX_URL",
    "PIP_CERT",
    "SSL_CERT_FILE",
    "HTTPS_PROXY",
    "NO_PROXY",
)
_OUTCOMES = re.compile(r"(\d+) (passed|failed|skipped|errors?)\b")
_BUSY = "while True: pass"


def run_targets(targets: list[str], user: int | None, load: int) -> tuple[int, dict[str, object]]:
    home = Path(tempfile.mkdtemp(prefix="fresh-", dir="/tmp"))  # mode 0700
    clone = home / "smlaunch"
    # without hard links: the files' owner is changed below
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(ROOT), str(clone)], check=True)
    commit = subprocess.run(
        ["git", "-C", clone, "rev-parse", "HEAD"], stdout=subprocess.PIPE, text=True, check=True
    )
    who: dict[str, object] = {}
    if user is not None:
        subprocess.run(["chown", "-R", f"{user}:{user}", str(home)], check=True)
        who = {"user": user, "group": user, "extra_groups": []}
    environ = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    environ |= {"HOME": str(home), "PWD": str(clone)}
    busy = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(load)]
    started = time.monotonic()
    outcomes: dict[str, int] = {}
    try:
        with subprocess.Popen(
            ["make", *targets],
            cwd=clone,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            **who,  # type: ignore[call-overload]
        ) as make:
            for line in make.stdout:
                print(line, end="", flush=True)
                if " in " in line and (found := _OUTCOMES.findall(line)):
                    for count, name in found:
                        outcomes[name] = outcomes.get(name, 0) + int(count)
        code = make.returncode
    finally:
        for process in busy:
            process.kill()
            process.wait()
        shutil.rmtree(home, ignore_errors=True)
    return code, {
        "targets": targets,
        "commit": commit.stdout.strip(),
        "user": os.geteuid() if user is None else user,
        "home_mode": "0700",
        "busy_processes": load,
        "exit_code": code,
        "seconds": round(time.monotonic() - started, 1),
        **outcomes,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="+", help="of the Makefile")
    parser.add_argument("--user", type=int, help="user and group number to run as (default: the caller's)")
    parser.add_argument("--load", type=int, default=0, help="busy processes beside it (default: 0)")
    options = parser.parse_args(arguments)
    code, figures = run_targets(options.targets, options.user, options.load)
    print(json.dumps(figures))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
