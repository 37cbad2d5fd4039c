"""Scripts that submit their own functions, as a person runs them, and the commands that show such runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

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


NAMED = """
import os
import smlaunch

class Answer:
    def __init__(self, value): self.value = value

def helper(value): return value + 1

def train(value): return Answer(helper(value)), os.getpid()

if __name__ == "__main__":
    job = smlaunch.Job(name="long")
    future = smlaunch.submit(train, 1, job=job, target=smlaunch.local_target())
    answer, process = future.result()
    print(future.run.attached, type(answer) is Answer, answer.value, process)
"""

BY_NAME = """
import smlaunch

class Answer:
    pass

if __name__ == "__main__":
    answer, process = smlaunch.Future.attach("long", smlaunch.local_target()).result()
    print(type(answer) is Answer, answer.value, process)
    plain = smlaunch.Job(entry=__file__.replace("main", "plain"), name="plain")
    smlaunch.launch(plain, smlaunch.local_target()).result()
    smlaunch.Future.attach("plain", smlaunch.local_target())
"""


def test_a_result_is_found_after_an_edit_of_the_script_and_by_the_name_of_its_run(
    home: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    script = folder / "main.py"
    script.write_text(NAMED)
    (folder / "plain.py").write_text("print(1)")
    background_endpoint.start_endpoint(home, isolation="plain")
    try:
        first = run_python(script)
        assert first.stdout.startswith("False True 2 "), first.stderr
        script.write_text(f"# edited\n{NAMED}print('end')\n")
        again = run_python(script)
        assert again.stdout == first.stdout.replace("False", "True", 1) + "end\n", again.stderr
        # Another function, another module beside it, another argument: no result of this call.
        script.write_text(NAMED.replace("value + 1", "value + 2").replace("train, 1", "train, 3"))
        (folder / "plain.py").write_text("print(2)")
        other = run_python(script)
        assert (
            "run long exists already and was made of another call: different are the argument value, the "
            "file plain.py, the function helper;"
        ) in other.stderr
        assert "smlaunch.Future.attach('long', smlaunch.local_target()).result()" in other.stderr
        # By its name, whatever the script has become; objects are of this script's classes.
        script.write_text(BY_NAME)
        by_name = run_python(script)
        assert by_name.stdout == first.stdout.partition(" ")[2], by_name.stderr
        assert "run plain is of a script, and no function's" in by_name.stderr
    finally:
        background_endpoint.stop_endpoint(home)


TEST_FILE = """
import smlaunch

class Point:
    x = 1

def make(): return Point()

def test_it():
    assert type(smlaunch.submit(make, target=smlaunch.local_target()).result()) is Point
"""


def test_a_test_file_in_a_folder_whose_name_an_installed_package_has(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this option pytest imports it as ``tests.test_it``; there is no ``__init__.py`` beside it."""
    for name in ("project/tests/test_it.py", "installed/tests/__init__.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(TEST_FILE if name.startswith("project") else "")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "installed"))
    arguments = ["--import-mode=importlib", "-p", "no:cacheprovider", f"--rootdir={tmp_path / 'project'}"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *arguments, "tests"],
        cwd=tmp_path / "project",
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert result.returncode == 0, result.stdout


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
