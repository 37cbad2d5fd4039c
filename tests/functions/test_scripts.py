"""Scripts that submit their own functions, as a person runs them, and the commands that show such runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from smlaunch.local import background_endpoint
from tests import warm

SCRIPT = """
import functools
import sys
from dataclasses import dataclass

import smlaunch
from helper import double
from package.part import PREFIX
from smlaunch import Compute, Job

SCALE = 10


@dataclass
class Point:
    x: int
    y: int = 0


@dataclass(slots=True)
class Size:
    width: int


@functools.cache
def fibonacci(number):
    return number if number < 2 else fibonacci(number - 1) + fibonacci(number - 2)


class Table:
    @functools.lru_cache(maxsize=None)
    def row(self, number):
        return [number]


class Adder:
    def __call__(self, number):
        return [Size(fibonacci(number)), Table(), __file__]


JOB = Job(name="mirrored", compute=Compute(processes_per_host=2))


@smlaunch.remote(job=JOB, target=smlaunch.local_target())
def mirror(point, depth=3):
    import late_module

    print(PREFIX, late_module.NAME)
    if depth:
        return mirror(point, depth - 1)
    return [Point(point.y * SCALE, double(point.x)), lambda value: value + point.x]


if __name__ == "__main__":
    mirrored, add = mirror(Point(1, 2))
    assert type(mirrored) is Point, type(mirrored)
    print(mirrored, add(5), mirror.submit(Point(1, 2)).run.attached)
    print(mirror.function(Point(3, 4), depth=0)[0])
    if len(sys.argv) > 1:
        size, table, _ = smlaunch.submit(Adder(), 10, target=smlaunch.local_target()).result()
        print(size, type(table) is Table, table.row(3))
"""


def test_a_script_with_its_modules_and_classes(home: Path, tmp_path: Path) -> None:
    folder = tmp_path / "project"
    (folder / "package").mkdir(parents=True)
    (folder / "main.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "late_module.py").write_text("NAME = 'late'\n")
    (folder / "package" / "__init__.py").write_text("")
    (folder / "package" / "part.py").write_text("PREFIX = 'from'\n")
    background_endpoint.start_endpoint(home, isolation="plain")
    try:
        for further in ([], ["all"]):  # the second process finds the run of the first
            result = run_python(folder / "main.py", *further)
            assert result.returncode == 0, result.stderr
            assert result.stdout.splitlines() == [
                "Point(x=20, y=2) 6 True",
                "from late",
                "Point(x=40, y=6)",
                *(["Size(width=55) True [3]"] if further else []),
            ]
            (folder / "log.txt").write_text("no module of the program")
        listing = command("ls", "--local", "--json")
        runs = [row["run"] for row in json.loads(listing)["runs"]]
        assert [run for run in runs if not run.startswith("adder-")] == ["mirrored"]
        log = command("logs", "mirrored", "--local")
        assert sum("from late" in line for line in log.splitlines()) == 8  # two ranks, to a depth of 4
        assert "function-result format=pickle" in log
    finally:
        background_endpoint.stop_endpoint(home)


TASKS = """
import smlaunch

OFFSET = 1

def shift(value):
    return value + OFFSET

@smlaunch.remote(target=smlaunch.local_target(), job=smlaunch.Job(name="shifted"))
def scale(value, factor):
    return [shift(value) * factor]
"""

PROMPT = """
import smlaunch
import tasks

class Pair:
    def __init__(self, left, right):
        self.pair = left, right

print(tasks.scale(2, factor=5))
pair = smlaunch.submit(lambda *values: Pair(*values), 1, 2, target=smlaunch.local_target()).result()
print(type(pair) is Pair, pair.pair)

"""


def test_at_a_prompt_functions_come_from_the_session_and_from_modules_beside_it(
    home: Path, tmp_path: Path
) -> None:
    """As in a notebook: ``__main__`` has no file."""
    (tmp_path / "session").mkdir()
    (tmp_path / "session" / "tasks.py").write_text(TASKS)
    result = subprocess.run(
        [sys.executable, "-"],
        input=PROMPT,
        cwd=tmp_path / "session",
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["[15]", "True (1, 2)"]


def run_python(script: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=110)


def command(*arguments: str) -> str:
    result: Any = warm.run(arguments)
    assert result.returncode == 0, result.stderr
    return str(result.stdout)
