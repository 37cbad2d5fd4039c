"""A pytest plugin for tools/mutants.py: measures which test runs which line, or runs tests in an order.

MUTANTS_MEASURE: a folder. Each test becomes a context of coverage.py, and `tests.json` gets the seconds and
the outcome of each test. MUTANTS_ORDER: a JSON list of test ids; these tests run, in this order, and
MUTANTS_FAILED gets the id of the first that fails.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

CONFIG = """\
[run]
core = ctrace
include = */smlaunch/*
patch = _exit, execv, fork
disable_warnings = no-data-collected, module-not-imported, module-not-measured, couldnt-parse
"""

CHILD = """\
import os

FOLDER = {folder!r}
if "MUTANTS_MEASURE" not in os.environ and os.path.exists(FOLDER + "/rc"):
    import coverage

    started = coverage.Coverage(
        data_file=FOLDER + "/child", data_suffix=True, config_file=FOLDER + "/rc", auto_data=True
    )
    started.start()
"""
"""What each child Python imports as it starts; it saves its lines as it ends."""


class Measurement:
    def __init__(self, folder: Path) -> None:
        import coverage

        self.folder = folder
        self.coverage = coverage.Coverage(
            data_file=str(folder / "tests"), data_suffix=True, config_file=str(folder / "rc")
        )
        self.tests: dict[str, list[Any]] = {}
        self.coverage.start()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.coverage.switch_context(item.nodeid)
        try:
            return (yield)
        finally:
            self.coverage.switch_context("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = self.tests.setdefault(report.nodeid, [0.0, "passed"])
        test[0] = round(test[0] + report.duration, 3)
        if report.outcome != "passed":
            test[1] = report.outcome

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        (self.folder / "tests.json").write_text(json.dumps(self.tests))


class Order:
    """A test is chosen by its id, or by its id without its parameters."""

    def __init__(self, tests: list[str], failed: Path) -> None:
        self.rank = {test: number for number, test in enumerate(tests)}
        self.failed = failed

    def _rank(self, item: pytest.Item) -> int:
        return self.rank.get(item.nodeid, self.rank.get(item.nodeid.partition("[")[0], -1))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        config.hook.pytest_deselected(items=[item for item in items if self._rank(item) < 0])
        items[:] = sorted((item for item in items if self._rank(item) >= 0), key=self._rank)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed.exists():
            self.failed.write_text(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed and not self.failed.exists():
            self.failed.write_text(report.nodeid)


_plugins: list[object] = []


def pytest_addoption() -> None:
    """The first hook that is called: before any conftest or test imports the package."""
    if "MUTANTS_MEASURE" in os.environ:
        _plugins.append(Measurement(Path(os.environ.pop("MUTANTS_MEASURE"))))
    elif "MUTANTS_ORDER" in os.environ:
        tests = json.loads(Path(os.environ.pop("MUTANTS_ORDER")).read_text())
        _plugins.append(Order(tests, Path(os.environ.pop("MUTANTS_FAILED"))))


def pytest_configure(config: pytest.Config) -> None:
    for plugin in _plugins:
        config.pluginmanager.register(plugin)
