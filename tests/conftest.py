"""Shared by all tests: what may be skipped, and an endpoint with a home of its own."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and not IS_ROOT:
        pytest.skip("needs root: isolation level full")
    if item.get_closest_marker("chaos") and not os.environ.get("SMLAUNCH_CHAOS"):
        pytest.skip("long; run by `make chaos`")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skipped test is a failure: nobody would notice that a part was not shown."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true" and not item.get_closest_marker("chaos"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of its own, so that no test meets the user's endpoint."""
    folder = tmp_path / "home"
    monkeypatch.setenv("SMLAUNCH_HOME", str(folder))
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    yield folder
