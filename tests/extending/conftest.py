"""Imports the examples of docs/extending.md as a user does, and removes what they have registered."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from smlaunch.api.job_kinds import JOB_KINDS
from smlaunch.catalog import registry
from smlaunch.catalog.strategies import STRATEGIES
from smlaunch.local.executors import EXECUTORS
from smlaunch.planner import rules
from tests.extending.page import example

REGISTRIES = (STRATEGIES, JOB_KINDS, EXECUTORS, rules._OTHER_RULES)


@pytest.fixture
def example_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder from which modules can be imported. Afterwards modules and registries are as before."""
    for one in REGISTRIES:
        monkeypatch.setattr(one, "_registered", dict(one._registered))
    folder = tmp_path / "examples"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def import_example(example_folder: Path) -> Callable[[str], Any]:
    """Return a function that imports one of the page's files."""

    def import_file(file_name: str) -> ModuleType:
        (example_folder / file_name).write_text(example(file_name))
        return import_module(file_name.removesuffix(".py"))

    return import_file


@pytest.fixture
def install_example(example_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str, str], None]:
    """Return a function that installs one of the page's files as a package with one entry point."""

    def install(file_name: str, group: str, entry_point: str) -> None:
        (example_folder / file_name).write_text(example(file_name))
        metadata = example_folder / "example-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: example\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[{group}]\n{entry_point}\n")
        monkeypatch.setattr(registry, "_installed", registry._installed.__wrapped__)
        monkeypatch.setattr(registry, "_is_any_installed", registry._is_any_installed.__wrapped__)

    return install
