"""Start-up of this tree against an earlier commit, a bare interpreter and torchrun, interleaved.

    python benchmarks/startup_before.py --before COMMIT [--rounds 11]

Both trees run by this environment's Python, so it must have what either of them imports; with bytecode, as
for users, whatever PYTHONDONTWRITEBYTECODE says here. The commands are
``import smlaunch``, ``plan --local`` of a one-file script, a whole local job of two hosts with a background
and an embedded endpoint, and the first line of the user's script. What issue M asks of them is the goal.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from harness import Figure, first_line, interleave

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = "import os, time; os.write(1, b'FIRST-LINE %f\\n' % time.time())\n"
BARE = [sys.executable, "-c", "import json,http.client,ssl"]
TORCHRUN = [str(Path(sys.executable).parent / "torchrun"), "--standalone", "--nproc-per-node", "2"]
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
GOALS = (
    ("import smlaunch", "python", 3.0),
    ("plan --local", "json, http.client, ssl", 7.0),
    ("2 hosts, background endpoint", "json, http.client, ssl", 12.0),
    ("2 hosts, embedded endpoint", "json, http.client, ssl", 20.0),
    ("first line, background endpoint", "torchrun, first line", 0.4),
)
"""A command, what it is compared with, and the largest ratio of medians."""


def wall(command: list[str], environment: dict[str, str]) -> Callable[[], float]:
    def measure() -> float:
        started = time.perf_counter()
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return time.perf_counter() - started

    return measure


class Tree:
    """A commit's files, with state folders for its background and its embedded endpoint."""

    def __init__(self, label: str, root: Path, folder: Path, script: Path) -> None:
        self._label = label
        self._script = str(script)
        environment = {**ENVIRONMENT, "PYTHONPATH": str(root)}
        self._background = {**environment, "SMLAUNCH_HOME": str(folder / "background")}
        self._embedded = {**environment, "SMLAUNCH_HOME": str(folder / "embedded")}
        folder.mkdir()

    def endpoint(self, verb: str) -> None:
        command = [sys.executable, "-m", "smlaunch", "local", verb]
        subprocess.run(command, env=self._background, check=True, capture_output=True)

    def measures(self) -> dict[str, Callable[[], float]]:
        run = [sys.executable, "-m", "smlaunch", "run", self._script, "--local"]
        hosts = [*run, "--hosts", "2"]
        ranks = [*run, "--strategy", "ddp", "--processes-per-host", "2"]
        plan = [sys.executable, "-m", "smlaunch", "plan", self._script, "--local"]
        measures = {
            "import smlaunch": wall([sys.executable, "-c", "import smlaunch"], self._embedded),
            "plan --local": wall(plan, self._embedded),
            "2 hosts, background endpoint": wall(hosts, self._background),
            "2 hosts, embedded endpoint": wall(hosts, self._embedded),
            "first line, background endpoint": lambda: first_line(ranks, self._background),
        }
        return {f"{name}, {self._label}": measure for name, measure in measures.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, help="the commit to compare with")
    parser.add_argument("--rounds", type=int, default=11)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chdir(folder)  # `python -m` looks for the package in the working directory first
        script = folder / "source" / "hello.py"
        script.parent.mkdir()
        script.write_text(SCRIPT)
        before_root = folder / "before"
        subprocess.run(
            ["git", "worktree", "add", "--quiet", "--detach", before_root, options.before],
            cwd=ROOT,
            check=True,
        )
        trees = (
            Tree("before", before_root, folder / "b", script),
            Tree("now", ROOT, folder / "n", script),
        )
        try:
            for tree in trees:
                tree.endpoint("start")
            figures = interleave(
                {
                    "python": wall([sys.executable, "-c", "pass"], ENVIRONMENT),
                    "json, http.client, ssl": wall(BARE, ENVIRONMENT),
                    "torchrun, first line": lambda: first_line([*TORCHRUN, str(script)], ENVIRONMENT),
                    **trees[0].measures(),
                    **trees[1].measures(),
                },
                options.rounds,
            )
        finally:
            for tree in trees:
                tree.endpoint("stop")
            subprocess.run(["git", "worktree", "remove", "--force", before_root], cwd=ROOT, check=True)
    sys.exit(not _print_ratios(figures))


def _print_ratios(figures: dict[str, Figure]) -> bool:
    """Print medians and ratios; return whether all goals are reached."""
    print(f"{'milliseconds':44s} {'min':>9s} {'median':>9s} {'max':>9s}")
    for figure in figures.values():
        print(figure)
    reached = True
    for name, baseline, goal in GOALS:
        ratio = {
            label: figures[f"{name}, {label}"].median / figures[baseline].median
            for label in ("before", "now")
        }
        met = ratio["now"] <= goal
        reached &= met
        print(
            f"{name} to {baseline}: {ratio['before']:.2f}x before, {ratio['now']:.2f}x now "
            f"(goal {goal:g}x: {'met' if met else 'MISSED'})"
        )
    return reached


if __name__ == "__main__":
    main()
