"""A pytest plugin for tools/evidence.py: counts what ran for each point, and takes a slice of the tests.

EVIDENCE: JSON with `points` (the declared pytest ids by point), `seed`, `per_point` (the number of tests that
run for a point, 0 for all) and `report`, the file that gets the counts by point.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from evidence import is_part_of

CASES = "cases"
"""The property of a test that has the number of rows of its table; other tests are one case."""

_EXAMPLES = re.compile(r"\b(\d+) passing")
_EXAMPLES_OF_A_TEST = "hypothesis examples"


class Counter:
    def __init__(self, points: dict[str, list[str]], seed: int, per_point: int, report: str) -> None:
        self.points = points
        self.seed = seed
        self.per_point = per_point
        self.report = Path(report)
        self.outcomes: dict[str, str] = {}
        self.seconds: dict[str, float] = defaultdict(float)
        self.cases: dict[str, int] = {}
        self.examples: dict[str, int] = defaultdict(int)
        self.figures: dict[str, dict[str, Any]] = defaultdict(dict)
        self.messages: dict[str, str] = {}
        self.deselected: list[str] = []

    def points_of(self, test: str) -> list[str]:
        return [
            point for point, declared in self.points.items() if any(is_part_of(test, one) for one in declared)
        ]

    @pytest.hookimpl(trylast=True)  # after pytest has deselected by markers
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if not self.per_point:
            return
        chosen: set[str] = set()
        for point in self.points:
            own = sorted(item.nodeid for item in items if point in self.points_of(item.nodeid))
            chosen.update(random.Random(self.seed).sample(own, min(self.per_point, len(own))))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        rows = getattr(getattr(item, "function", None), "rows", 1)
        item.user_properties.append((CASES, rows))

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if text := getattr(item, "hypothesis_statistics", ""):
            item.user_properties.append((_EXAMPLES_OF_A_TEST, sum(map(int, _EXAMPLES.findall(text)))))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid
        self.seconds[test] += report.duration
        if report.when == "call" or report.outcome != "passed":
            # a failure of a fixture's end counts more than the test's own outcome
            if self.outcomes.get(test) != "failed":
                self.outcomes[test] = report.outcome
            if report.outcome != "passed":
                self.messages[test] = _message(report)
        if report.when == "teardown":
            for name, value in report.user_properties:
                if name == CASES:
                    self.cases[test] = int(str(value))
                elif name == _EXAMPLES_OF_A_TEST:
                    self.examples[test] = int(str(value))
                else:
                    self.figures[test][name] = value

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return  # one of xdist's workers: the process that distributes the tests reports
        tests = {
            point: [test for test in self.outcomes if point in self.points_of(test)] for point in self.points
        }
        counted = {point: self._count(own) for point, own in tests.items() if self.points[point]}
        self.report.write_text(json.dumps(counted))

    def _count(self, tests: list[str]) -> dict[str, Any]:
        outcomes = [self.outcomes[test] for test in tests]
        counts: dict[str, Any] = {name: outcomes.count(name) for name in ("passed", "failed", "skipped")}
        counts[CASES] = sum(self.cases.get(test, 1) for test in tests)
        if examples := sum(self.examples[test] for test in tests):
            counts["hypothesis_examples"] = examples
        counts["seconds"] = round(sum(self.seconds[test] for test in tests), 1)
        if figures := {test: self.figures[test] for test in tests if self.figures.get(test)}:
            counts["figures"] = figures
        for name, outcome in (("failures", "failed"), ("skips", "skipped")):
            if found := {test: self.messages[test] for test in tests if self.outcomes[test] == outcome}:
                counts[name] = found
        return counts


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    if isinstance(report.longrepr, tuple):  # of a skip: file, line, reason
        text = report.longrepr[2]
    else:
        text = crash.message if crash is not None else str(report.longrepr)
    return text.strip().partition("\n")[0][:300]


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Counter(**json.loads(os.environ["EVIDENCE"])), "evidence")
