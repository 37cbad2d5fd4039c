"""How many seeded mistakes the tests catch: `python tools/mutants.py --seed 1 --out FILE.json`.

1. The commit is unpacked twice below --work, each copy with an environment of its own; the working tree is
   never touched. Two processes work at a time, at nice 19.
2. Each test file runs once under coverage.py: which test runs which line, which test file's child processes
   run which line, and how long each test takes. The answers stay below --work: a file of tests is measured
   anew only if it, or the package, has changed.
3. Each mutant runs the tests that cover its line, fastest first, to the first failure. A failure counts only
   if the same test, alone, passes without the mutant and fails with it again.

Tests marked real or chaos do not run. --package takes the package's source from another commit than the
tests: the same mutants against other tests. --before names the report of an earlier run: a mutant that was
caught runs the test that caught it first. cosmic-ray and mutmut were weighed: neither follows the lines of
child processes, cosmic-ray runs the whole suite for each mutant, and mutmut's trampolines do not survive the
zip that the runtime travels in.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import gzip
import hashlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import mutants_pytest
from mutant_sites import Site, choose

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2
MARKS = "not real and not chaos"
ROUNDS = (
    ("strategies", "planner", "catalog", "export", "test_", "runs"),
    ("train", "data", "runtime", "local"),
    ("",),
)
"""How the names of test files begin. A round measures its files and tries the mutants that are left:
few come to the expensive files of the last one."""

CHILDREN = "children"
"""The context of what a test file's child processes run."""

_CHILD_SUBREAPER = 36


def contained(seconds: float, command: list[str], **settings: Any) -> int | None:
    """Runs a command and ends all that it started; None if it took longer. Meant for a process of its own."""
    ctypes.CDLL(None).prctl(_CHILD_SUBREAPER, 1)
    process = subprocess.Popen(command, **settings)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        while found := _descendants():
            for pid in found:
                _kill(pid)
            time.sleep(0.05)
            process.poll()
            _reap()


def _descendants() -> list[int]:
    parents: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(words[1])].append(int(folder.name))
    found, todo = [], [os.getpid()]
    while todo:
        for pid in parents[todo.pop()]:
            found.append(pid)
            todo.append(pid)
    return found


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


class Copy:
    """The commit's files with an environment of their own, whose Pythons import the package from here."""

    def __init__(self, folder: Path, tests: str, package: str) -> None:
        self.root = folder / "tree"
        self.data = folder / "data"
        self.temporary = folder / "t"
        self.tools = folder / "tools"
        shutil.rmtree(folder, ignore_errors=True)
        self.root.mkdir(parents=True)
        shutil.copytree(ROOT / "tools", self.tools)  # the working tree may change while this runs
        _unpack(tests, self.root)
        if package != tests:
            shutil.rmtree(self.root / "smlaunch")
            _unpack(package, self.root, "smlaunch")
        environment = self.root / ".venv"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        (site,) = environment.glob("lib/python*/site-packages")
        (ours,) = (ROOT / ".venv").glob("lib/python*/site-packages")
        (site / "copy.pth").write_text(f"{self.root}\n{ours}\n{self.tools}\nimport mutants_child\n")
        (site / "mutants_child.py").write_text(mutants_pytest.CHILD.format(folder=str(self.data)))
        for script in (ROOT / ".venv" / "bin").iterdir():
            target = environment / "bin" / script.name
            if script.is_file() and not target.exists() and script.stat().st_size < 1 << 16:
                text = script.read_text().replace(str(ROOT / ".venv"), str(environment))
                target.write_text(text)
                target.chmod(0o755)
        self.python = environment / "bin" / "python"
        self._stamp = int(time.time())

    def pytest(self, seconds: float, words: Iterable[str], **variables: str) -> int | None:
        command = [
            *(
                str(self.python),
                "-m",
                "pytest",
                "-q",
                "--no-header",
                "-p",
                "mutants_pytest",
                "-p",
                "no:cacheprovider",
            ),
            *("-m", MARKS, "--basetemp", str(self.temporary), *words),
        ]
        environment = {**os.environ, **variables, "PYTHONHASHSEED": "0"}
        log = self.root.parent / "log.txt"
        line = [sys.executable, str(self.tools / "mutants.py"), "--contained", str(seconds), *command]
        with log.open("w") as output:
            done = subprocess.run(
                line, cwd=self.root, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        return None if done.returncode == 200 else done.returncode

    def write(self, file: str, content: bytes) -> None:
        """With a time of its own and without compiled code: two versions may have one size and one second."""
        path = self.root / file
        path.write_bytes(content)
        self._stamp += 10
        os.utime(path, (self._stamp, self._stamp))
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()


def _unpack(commit: str, folder: Path, *paths: str) -> None:
    archive = subprocess.Popen(["git", "archive", commit, *paths], cwd=ROOT, stdout=subprocess.PIPE)
    subprocess.run(["tar", "-x", "-C", folder], stdin=archive.stdout, check=True)
    if archive.wait():
        raise SystemExit(f"git archive {commit} failed")


# ---- which tests cover which line --------------------------------------------------------------------------


def test_files(root: Path) -> list[list[str]]:
    """By round."""
    rounds: list[list[str]] = [[] for _ in ROUNDS]
    for path in sorted((root / "tests").rglob("test_*.py")):
        name = path.relative_to(root / "tests").as_posix()
        if not name.startswith(("real/", "chaos/")):
            number = next(number for number, starts in enumerate(ROUNDS) if name.startswith(starts))
            rounds[number].append("tests/" + name)
    return rounds


def measure(copies: list[Copy], package: str, files: list[str], cache: Path) -> dict[str, Any]:
    """By test file: `tests` (id to seconds and outcome) and `lines` (file to line to a number in `groups`).

    What was measured stays in the folder `cache`, by the package's commit and the test file's content.
    """
    root = copies[0].root
    found: dict[str, Any] = {}

    def one(copy: Copy, file: str) -> None:
        content = hashlib.sha256((root / file).read_bytes()).hexdigest()[:16]
        memory = cache / f"{package[:12]}-{file.replace('/', '.')}-{content}.json.gz"
        if not memory.exists():
            began = time.monotonic()
            measured = _measure_one(copy, file)
            memory.write_bytes(gzip.compress(json.dumps(measured).encode()))
            _say(f"{file}: {len(measured['tests'])} tests, {time.monotonic() - began:.0f} s")
        found[file] = json.loads(gzip.decompress(memory.read_bytes()))

    cache.mkdir(exist_ok=True)
    _share_out(copies, files, one)
    return found


def _measure_one(copy: Copy, file: str) -> dict[str, Any]:
    shutil.rmtree(copy.data, ignore_errors=True)
    copy.data.mkdir()
    copy.data.chmod(0o777)  # hosts of other users measure too
    (copy.data / "rc").write_text(mutants_pytest.CONFIG)
    copy.pytest(1800, [file], MUTANTS_MEASURE=str(copy.data))
    return _read(copy)


def _read(copy: Copy) -> dict[str, Any]:
    from coverage import CoverageData
    from coverage.exceptions import CoverageException

    lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    for path in copy.data.iterdir():
        if not path.name.startswith(("tests.", "child.")) or path.suffix == ".json":
            continue
        data = CoverageData(str(path))
        try:
            data.read()
            for measured in data.measured_files():
                file = "smlaunch/" + measured.rpartition("/smlaunch/")[2]
                for line, contexts in data.contexts_by_lineno(measured).items():
                    lines[file][line].update(contexts if path.name.startswith("tests.") else [CHILDREN])
        except CoverageException as error:  # of a child that was killed as it wrote
            _say(f"{path.name}: {error}")
        finally:
            data.close(force=True)
    groups: dict[tuple[str, ...], int] = {}
    numbered = {
        file: {line: groups.setdefault(tuple(sorted(names)), len(groups)) for line, names in by_line.items()}
        for file, by_line in lines.items()
    }
    report = copy.data / "tests.json"
    tests = json.loads(report.read_text()) if report.exists() else {}
    shutil.rmtree(copy.data)
    return {"tests": tests, "lines": numbered, "groups": list(groups)}


def covering(site: Site, coverage: dict[str, Any]) -> list[str]:
    """The tests that run the site's statement, fastest first, those of one file together.

    What runs as a module is imported belongs to all tests that run any line of that module; a child process's
    line belongs to all tests of the file.
    """
    chosen: list[tuple[float, list[tuple[float, str]]]] = []
    for measured in coverage.values():
        by_line = measured["lines"].get(site.file, {})
        first, last = site.lines if site.in_function else (0, sys.maxsize)
        names = {
            name
            for line, group in by_line.items()
            if first <= int(line) <= last
            for name in measured["groups"][group]
        }
        tests = measured["tests"]
        if CHILDREN in names or (not site.in_function and names == {""}):
            names = set(tests)
        timed = sorted(
            (tests[name][0], name) for name in names if tests.get(name, (0, ""))[1] in ("passed", "failed")
        )
        if timed:
            chosen.append((sum(seconds for seconds, _ in timed), timed))
    return [name for _, timed in sorted(chosen) for _, name in timed]


def naming(site: Site, coverage: dict[str, Any], root: Path) -> list[str]:
    """The tests of the files that name the site's module: a Python started with -S is not measured."""
    word = re.compile(rf"\b{Path(site.file).stem}\b")
    return [
        test
        for file, measured in coverage.items()
        if word.search((root / file).read_text() + " " + Path(file).stem[5:])
        for test in measured["tests"]
    ]


# ---- mutants -----------------------------------------------------------------------------------------------


class Trial:
    """The mutants and what is known of each: tests that cover its line, tests asked, and which caught it."""

    def __init__(self, copies: list[Copy], sites: list[Site], limit: float) -> None:
        self.copies = copies
        self.coverage: dict[str, Any] = {}
        self.answers: dict[Site, dict[str, Any]] = {
            site: {"covering": 0, "asked": 0, "caught_by": None, "failing_anyway": []} for site in sites
        }
        self._limit = limit

    def ask_those_that_caught(self, rows: list[dict[str, Any]]) -> None:
        caught = {_key(row): str(row["caught_by"]) for row in rows if row["caught_by"]}

        def one(copy: Copy, site: Site) -> None:
            test = caught.get(_key(asdict(site)), "").partition("[")[0]
            if (copy.root / test.partition("::")[0]).is_file():
                self._ask(copy, site, [test])

        self._for_each(one)

    def ask_those_that_cover(self, files: list[str], is_last: bool) -> None:
        def one(copy: Copy, site: Site) -> None:
            tests = covering(site, {file: self.coverage[file] for file in files})
            if is_last and not tests and not self.answers[site]["covering"]:
                tests = naming(site, self.coverage, copy.root)
            self.answers[site]["covering"] += len(tests)
            self._ask(copy, site, tests)

        self._for_each(one)

    def _for_each(self, one: Callable[[Copy, Site], None]) -> None:
        _share_out(self.copies, [site for site in self.answers if not self.answers[site]["caught_by"]], one)

    def _ask(self, copy: Copy, site: Site, tests: list[str]) -> None:
        answer = self.answers[site]
        seconds = {test: data[0] for file in self.coverage.values() for test, data in file["tests"].items()}
        asked: list[str] = []
        total = 0.0
        for test in tests:
            if total <= self._limit:
                asked.append(test)
                total += seconds.get(test, 0)
        answer["asked"] += len(asked)
        while asked and not answer["caught_by"]:
            caught = self._with(copy, site, asked, 120 + 10 * total)
            if caught is None:
                break
            alone = [caught] if "::" in caught else asked[:1]
            if not caught or (
                _first_failure(copy, alone, 600) is None and self._with(copy, site, alone, 600)
            ):
                answer["caught_by"] = caught or "the time limit"
            else:
                answer["failing_anyway"].append(caught)
                asked = asked[asked.index(caught) + 1 :] if caught in asked else []
        _say(f"{site.file}:{site.line} {site.operator}: {answer}")

    def _with(self, copy: Copy, site: Site, tests: list[str], seconds: float) -> str | None:
        original = (copy.root / site.file).read_bytes()
        copy.write(site.file, site.apply(original))
        try:
            return _first_failure(copy, tests, seconds)
        finally:
            copy.write(site.file, original)


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("file", "function", "line", "operator", "before", "after"))


def _first_failure(copy: Copy, tests: list[str], seconds: float) -> str | None:
    """In batches of files, since pytest imports all files before the first test runs."""
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    for batch in (files[:4], files[4:16], files[16:]):
        chosen = [test for test in tests if test.partition("::")[0] in batch]
        if chosen and (failed := _failure(copy, chosen, seconds)) is not None:
            return failed
    return None


def _failure(copy: Copy, tests: list[str], seconds: float) -> str | None:
    """Its id, or the file's that could not be imported; "" when the time is over; None when all passed."""
    order, failed = copy.root.parent / "order.json", copy.root.parent / "failed.txt"
    order.write_text(json.dumps(tests))
    failed.unlink(missing_ok=True)
    files = list(dict.fromkeys(test.partition("::")[0] for test in tests))
    code = copy.pytest(seconds, ["-x", *files], MUTANTS_ORDER=str(order), MUTANTS_FAILED=str(failed))
    if failed.exists():
        return failed.read_text()
    if code is None:
        return ""
    return None if code in (0, 5) else f"pytest ended with {code}"


def _share_out(copies: list[Copy], items: Iterable[Any], work: Any) -> None:
    todo: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for item in items:
        todo.put(item)

    def run(copy: Copy) -> None:
        while True:
            try:
                item = todo.get_nowait()
            except queue.Empty:
                return
            work(copy, item)

    threads = [threading.Thread(target=run, args=(copy,)) for copy in copies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _commit(name: str) -> str:
    done = subprocess.run(["git", "rev-parse", name], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--tests", default="HEAD", help="the commit of the tests")
    parser.add_argument("--package", help="the commit of the package's source (default: the tests' one)")
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds of tests per mutant, as measured without it"
    )
    parser.add_argument("--before", type=Path, help="an earlier report of the same mutants")
    parser.add_argument("--work", type=Path, default=Path("/tmp/smlaunch-mutants"))  # short: socket paths
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    os.nice(19 - os.nice(0))
    tests = _commit(chosen.tests)
    package = _commit(chosen.package or chosen.tests)
    copies = [Copy(chosen.work / str(number), tests, package) for number in range(PROCESSES)]
    sites = choose(copies[0].root, chosen.count, chosen.seed)
    trial = Trial(copies, sites, chosen.limit)
    if chosen.before:
        trial.ask_those_that_caught(json.loads(chosen.before.read_text())["rows"])
    rounds = test_files(copies[0].root)
    for number, files in enumerate(rounds, start=1):
        trial.coverage |= measure(copies, package, files, chosen.work / "coverage")
        trial.ask_those_that_cover(files, is_last=number == len(rounds))
    mutants, coverage = trial.answers, trial.coverage
    seconds = {test for measured in coverage.values() for test in measured["tests"]}
    rows = [
        {
            key: value
            for key, value in asdict(site).items()
            if key not in ("start", "end", "lines", "in_function")
        }
        | mutants[site]
        for site in sites
    ]
    report = {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "tests_commit": tests,
        "package_commit": package,
        "seed": chosen.seed,
        "cores": os.cpu_count(),
        "limit_seconds": chosen.limit,
        "tests": len(seconds),
        "mutants": len(rows),
        "caught": sum(row["caught_by"] is not None for row in rows),
        "survived": sum(row["caught_by"] is None and row["covering"] > 0 for row in rows),
        "covered_by_no_test": sum(row["covering"] == 0 for row in rows),
        "rows": rows,
    }
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--contained"]:
        code = contained(float(sys.argv[2]), sys.argv[3:])
        raise SystemExit(200 if code is None else code)
    main()
