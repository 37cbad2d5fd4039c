"""The sixty bad and forty unusual good jobs, planned in this process; ``run.py`` plans them as commands."""

from __future__ import annotations

import io
import json
import shlex
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import yaml

from smlaunch.cli.main import run_command
from tests.requests.run import FOLDER, Answer, Result, judge_bad, judge_good

CASES = yaml.safe_load((FOLDER / "cases.yaml").read_text(encoding="utf-8"))

NOT_YET = {
    "bad/47-spot-without-a-wait": "the plan states the wait: spot in ``request`` is compute.spot",
    "good/32-twenty-eight-days": "an unknown quota is AWS's default of 5 days, so that the run has segments",
}
"""Cases that do not pass, and why. One that passes must not be listed."""


@pytest.fixture
def folder_of_cases(without_account: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No home of the user either, as ``run.py`` has none."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(FOLDER)


def plan(file: str, arguments: str) -> Answer:
    output, begin = io.StringIO(), time.monotonic()
    with redirect_stdout(output), redirect_stderr(io.StringIO()):
        code = run_command(["plan", file, *shlex.split(arguments), "--json"])
    return Answer(code, json.loads(output.getvalue()), time.monotonic() - begin)


def result_of(kind: str, name: str, entry: dict[str, Any]) -> Result:
    case, file = f"{kind}/{name}", f"{kind}/{name}.yaml"
    answer = plan(file, entry["arguments"])
    return judge_bad(case, file, entry, answer) if kind == "bad" else judge_good(case, entry, answer)


@pytest.mark.usefixtures("folder_of_cases")
@pytest.mark.parametrize(("kind", "count"), [("bad", 60), ("good", 40)])
def test_what_passes(kind: str, count: int) -> None:
    results = [result_of(kind, name, entry) for name, entry in CASES[kind].items()]
    assert len(results) == count
    failed = {result.case: f"{result.verdict}: {result.message}" for result in results if not result.passed}
    assert set(failed) == {case for case in NOT_YET if case.startswith(kind)}, failed
