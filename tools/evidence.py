"""Run what an issue wants shown and record the counts: `python tools/evidence.py K`.

docs/evidence/K.toml declares the points of issue K: the sentence of the issue, and the tests or commands
that show it. Each test and each command runs once, whatever number of points name it. The record,
docs/evidence/K.json, has the date, the commit, the machine and the counts of each point. --slice writes none;
--only replaces the points that it runs.

The exit code is 1 if a point fails, 2 if a declaration names what does not exist.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import datetime
import getpass
import json
import os
import platform
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "evidence"
TESTS_OF_A_SLICE = 2
"""Of each point that a slice takes."""


class DeclarationError(Exception):
    """A declaration names what does not exist, or shows nothing."""


@dataclasses.dataclass(frozen=True)
class Point:
    id: str
    """Number of the point in the issue, and a running number of its sentences."""
    sentence: str
    """Of the issue, in short."""
    tests: tuple[str, ...] = ()
    """Pytest ids: folders, files or functions. Those that are marked real or chaos do not run."""
    real_tests: tuple[str, ...] = ()
    """Pytest ids that run with --real only."""
    commands: tuple[tuple[str, ...], ...] = ()
    """A first word `python` is this interpreter. Figures: the JSON object on the last line of the output."""
    real_commands: tuple[tuple[str, ...], ...] = ()
    """Commands that take minutes and run with --real only."""
    record: str = ""
    """The file that has what a command cannot repeat."""
    note: str = ""
    """What a reader of the counts has to know."""


def read_points(path: Path) -> list[Point]:
    """Raises DeclarationError for a declaration that has members of another name, or a point twice."""
    fields = {field.name: field for field in dataclasses.fields(Point)}
    points: dict[str, Point] = {}
    for entry in tomllib.loads(path.read_text())["point"]:
        if unknown := sorted(set(entry) - set(fields)):
            raise DeclarationError(f"{path.name}: {entry.get('id')}: unknown: {', '.join(unknown)}")
        if entry["id"] in points:
            raise DeclarationError(f"{path.name}: {entry['id']} is declared twice")
        values = {name: _as_tuples(value) for name, value in entry.items()}
        points[entry["id"]] = Point(**values)
    return list(points.values())


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


def find_problems(points: Iterable[Point], root: Path = ROOT) -> list[str]:
    """What a declaration names and the working tree does not have. No test is imported."""
    problems = []
    for point in points:
        if not (point.tests or point.real_tests or point.commands or point.real_commands or point.record):
            problems.append(f"{point.id}: neither a test nor a command nor a record")
        problems += [
            f"{point.id}: {test} does not exist"
            for test in (*point.tests, *point.real_tests)
            if not _has_test(root, test)
        ]
        scripts = [words[1] for words in (*point.commands, *point.real_commands) if words[0] == "python"]
        problems += [
            f"{point.id}: {path} does not exist"
            for path in (*scripts, *filter(None, [point.record]))
            if not path.startswith("-") and not (root / path).exists()
        ]
    return problems


def _has_test(root: Path, test: str) -> bool:
    path, *names = test.partition("[")[0].split("::")
    if not (root / path).exists() or (names and not (root / path).is_file()):
        return False
    body: list[ast.stmt] = ast.parse((root / path).read_text()).body if names else []
    for name in names:
        found = [
            node for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name
        ]
        if not found:
            return False
        body = found[0].body
    return True


def choose_slice(points: list[Point], count: int, seed: int) -> list[Point]:
    """``count`` of the points that tests show without --real."""
    runnable = [point for point in points if point.tests]
    return sorted(random.Random(seed).sample(runnable, min(count, len(runnable))), key=points.index)


def run_tests(points: list[Point], real: bool, seed: int, workers: int, per_point: int) -> dict[str, Any]:
    """What tools/evidence_pytest.py reports, by point. ``per_point``: 0 for all tests."""
    selection = {point.id: [*point.tests, *(point.real_tests if real else ())] for point in points}
    tests = sorted({test for chosen in selection.values() for test in chosen})
    # pytest collects a test twice that is named beside its file
    tests = [test for test in tests if not any(other != test and is_part_of(test, other) for other in tests)]
    if not tests:
        return {}
    marks = "not chaos" if real else "not real and not chaos"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "evidence_pytest", "-m", marks]
    command += [f"--hypothesis-seed={seed}", *tests]
    if workers > 1:
        command += ["--numprocesses", str(workers), "--dist", "loadfile"]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        settings = {"points": selection, "seed": seed, "per_point": per_point, "report": str(report)}
        path = os.pathsep.join(filter(None, (str(ROOT / "tools"), os.environ.get("PYTHONPATH"))))
        environ = {**os.environ, "PYTHONPATH": path, "EVIDENCE": json.dumps(settings)}
        code = subprocess.run(command, cwd=ROOT, env=environ, stdout=sys.stderr).returncode
        if not report.exists() or code not in (0, 1, 5):  # 5: none is left after deselection
            raise DeclarationError(f"pytest ended with {code}: see above")
        counts: dict[str, Any] = json.loads(report.read_text())
        return counts


def is_part_of(test: str, whole: str) -> bool:
    """Whether ``whole`` names the test, its function, class, file or folder."""
    return test == whole or test.startswith((f"{whole}[", f"{whole}::", f"{whole.rstrip('/')}/"))


def run_command(words: tuple[str, ...]) -> dict[str, Any]:
    beside_python = Path(sys.executable).with_name(words[0])
    program = (
        sys.executable if words[0] == "python" else str(beside_python) if beside_python.exists() else words[0]
    )
    started = time.monotonic()
    done = subprocess.run([program, *words[1:]], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    answer: dict[str, Any] = {
        "command": " ".join(words),
        "exit_code": done.returncode,
        "seconds": round(time.monotonic() - started, 1),
    }
    lines = done.stdout.rstrip().splitlines()
    if lines and lines[-1].startswith("{"):
        answer["figures"] = json.loads(lines[-1])
    elif lines and done.returncode:
        answer["output"] = lines[-20:]
    return answer


def summarize(point: Point, tests: dict[str, Any] | None, commands: list[dict[str, Any]], real: bool) -> Any:
    """A point's entry in the record."""
    entry: dict[str, Any] = {"id": point.id, "sentence": point.sentence, "status": ""}
    if tests is not None:
        entry["tests"] = tests
    if commands:
        entry["commands"] = commands
    left_out = [*point.real_tests, *map(" ".join, point.real_commands)]
    if left_out and not real:
        entry["not_run"] = left_out
    entry |= {name: value for name in ("record", "note") if (value := getattr(point, name))}
    ran = sum(tests[outcome] for outcome in ("passed", "failed", "skipped")) if tests is not None else 0
    if (tests and tests["failed"]) or any(command["exit_code"] for command in commands):
        entry["status"] = "failed"
    elif tests is not None and not ran:
        entry["status"] = "no test ran"
    elif commands or (tests and tests["passed"]):
        entry["status"] = "passed"
    elif ran:
        entry["status"] = "skipped"
    else:
        entry["status"] = "not run" if left_out else "record"
    return entry


def replace_points(record: dict[str, Any], later: dict[str, Any]) -> dict[str, Any]:
    """The record with the points of a later run, each of which says in `run` when and where that was."""
    run = {name: value for name, value in later.items() if name not in ("issue", "points")}
    replaced = {entry["id"]: {**entry, "run": run} for entry in later["points"]}
    points = [replaced.pop(entry["id"], entry) for entry in record["points"]]
    return {**record, "points": [*points, *replaced.values()]}


def describe_machine() -> dict[str, Any]:
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": [round(load, 1) for load in os.getloadavg()],
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "user": getpass.getuser(),
    }


def describe_commit() -> dict[str, Any]:
    """The trees' hashes stay the same when the commit is rebased."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    changed = [line[3:] for line in git("status", "--porcelain").splitlines()]
    return {
        "commit": git("rev-parse", "HEAD").strip(),
        "trees": {name: git("rev-parse", f"HEAD:{name}").strip() for name in ("smlaunch", "tests")},
        "changed_files": changed,
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("issue", help="docs/evidence/<issue>.toml declares what is shown")
    parser.add_argument("--list", action="store_true", help="print the points and run nothing")
    parser.add_argument(
        "--real", action="store_true", help="also what takes minutes or third-party components"
    )
    parser.add_argument(
        "--only", nargs="+", metavar="ID", help="run these points and replace them in the record"
    )
    parser.add_argument("--slice", type=int, metavar="N", help="N points at random, without a record")
    parser.add_argument("--seed", type=int, default=1, help="of the slice and of hypothesis (default: 1)")
    parser.add_argument("--workers", type=int, default=1, help="processes that run tests (default: 1)")
    parser.add_argument("--out", type=Path, help="where the record is written")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except DeclarationError as error:
        print(error, file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    path = FOLDER / f"{options.issue}.toml"
    if not path.exists():
        raise DeclarationError(f"{path.relative_to(ROOT)} does not exist")
    points = read_points(path)
    if problems := find_problems(points):
        raise DeclarationError("\n".join(problems))
    if options.only:
        if unknown := sorted(set(options.only) - {point.id for point in points}):
            raise DeclarationError(f"{path.name} has no point {', '.join(unknown)}")
        points = [point for point in points if point.id in options.only]
    if options.slice is not None:
        points = choose_slice(points, options.slice, options.seed)
    if options.list:
        _list(points)
        return 0

    record: dict[str, Any] = {
        "issue": options.issue,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        **describe_commit(),
        "machine": describe_machine(),
        "seed": options.seed,
        "workers": options.workers,
        "real": options.real,
    }
    started = time.monotonic()
    per_point = TESTS_OF_A_SLICE if options.slice is not None else 0
    commands = {
        words: run_command(words)
        for point in points
        for words in (*point.commands, *(point.real_commands if options.real else ()))
        if not per_point  # what takes long, and a slice is short
    }
    tests = run_tests(points, options.real, options.seed, options.workers, per_point)
    record["seconds"] = round(time.monotonic() - started, 1)
    if describe_commit()["trees"] != record["trees"]:
        raise DeclarationError("another commit was checked out while the tests ran: nothing is recorded")
    record["points"] = [
        summarize(
            point,
            tests.get(point.id),
            [commands[words] for words in (*point.commands, *point.real_commands) if words in commands],
            options.real,
        )
        for point in points
    ]
    _print(record)
    out = options.out or FOLDER / f"{options.issue}.json"
    if options.slice is None:
        written = (
            replace_points(json.loads(out.read_text()), record) if options.only and out.exists() else record
        )
        out.write_text(json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    return 1 if any(entry["status"] in ("failed", "no test ran") for entry in record["points"]) else 0


def _list(points: list[Point]) -> None:
    for point in points:
        print(f"{point.id}  {point.sentence}")
        for test in point.tests:
            print(f"      {test}")
        for words in point.commands:
            print(f"      {' '.join(words)}")
        for test in (*point.real_tests, *map(" ".join, point.real_commands)):
            print(f"      {test} (--real)")
        if point.record:
            print(f"      record: {point.record}")


def _print(record: dict[str, Any]) -> None:
    for entry in record["points"]:
        counts = ""
        if tests := entry.get("tests"):
            counts = "{passed} passed, {failed} failed, {skipped} skipped, {seconds} s".format(**tests)
        print(f"{entry['id']:6} {entry['status']:8} {counts:50} {entry['sentence']}")
        for test, message in (tests or {}).get("failures", {}).items():
            print(f"       {test}: {message}")
        for command in entry.get("commands", ()):
            figures = json.dumps(command.get("figures", command.get("output", "")))
            print(f"       {command['command']}: exit code {command['exit_code']} {figures}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
