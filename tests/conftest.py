"""Shared by all tests: their tiers, what may be skipped, and an endpoint with a home of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest

from tests import tiers
from tests.account_environment import NO_TEAM_DEFAULTS, environment_without_account

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0

_guard = tiers.Guard()

# How long one example takes says more of the machine's load than of the code.
hypothesis.settings.register_profile("suite", deadline=None)
hypothesis.settings.load_profile("suite")


def pytest_configure(config: pytest.Config) -> None:
    _use_own_cache_folder(config)
    os.environ.update(NO_TEAM_DEFAULTS)
    for name, meaning in tiers.MEANING.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")


def _use_own_cache_folder(config: pytest.Config) -> None:
    """Let smlaunch write to a cache folder of this run, which all workers and commands share, and not to the
    user's. What pip has downloaded stays where it is."""
    if hasattr(config, "workerinput"):  # a worker of xdist has the variables of the process that started it
        return
    user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("PIP_CACHE_DIR", str(user_cache / "pip"))
    folder = tempfile.mkdtemp(prefix="smlaunch-cache-")
    os.environ["XDG_CACHE_HOME"] = folder
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """More workers than processors: most tests of the process tier wait half of their time."""
    return max(2, (os.cpu_count() or 1) * 3 // 2)


@pytest.hookimpl(tryfirst=True)  # before pytest deselects by markers
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(tiers.tier_of(item, TESTS))
    if tiers.CHAOS not in config.option.markexpr:
        chaos = [item for item in items if item.get_closest_marker(tiers.CHAOS)]
        config.hook.pytest_deselected(items=chaos)
        items[:] = [item for item in items if item not in set(chaos)]
    items.sort(key=lambda item: tiers.start_order(item, TESTS))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Nobody opens a socket or starts a process in a unit test, its fixtures included."""
    if item.get_closest_marker(tiers.UNIT):
        _guard.start(item.nodeid)
    try:
        return (yield)
    finally:
        _guard.stop()


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("root") and not IS_ROOT:
        pytest.skip("needs root: isolation level full")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skipped test is a failure: otherwise an untested part would remain unnoticed."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.fixture
def without_account(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = environment_without_account()
    for name in os.environ.keys() - environment.keys():
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A state directory of its own, so that no test meets the user's endpoint."""
    folder = tmp_path / "home"
    monkeypatch.setenv("SMLAUNCH_HOME", str(folder))
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    yield folder
