"""What smlaunch asks to be installed: versions that were tested, and nothing that it does not import."""

from __future__ import annotations

import ast
import re
from itertools import chain
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT
from tools.real_components import ENVIRONMENTS

tomllib = pytest.importorskip("tomllib")  # Python 3.11

IMPORTED_AS = {"PyYAML": "yaml", "apache-airflow": "airflow", "apache-airflow-providers-amazon": "airflow"}
OF_EXTRAS = ("sdk3", "airflow", "moto")
WITH_MOTO = {"flask", "flask-cors"}
"""moto's server imports them, and does not ask for them in the parts of moto that the extra names."""


@pytest.fixture(scope="module")
def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def required_distributions(project: Any) -> list[Requirement]:
    extras = project["optional-dependencies"]
    return [Requirement(line) for line in [*project["dependencies"], *chain(*extras.values())]]


def pinned_versions() -> dict[str, set[str]]:
    """Returns the versions in constraints.txt, and in those environments of `make test-real` that stand for
    extras."""
    versions_by_name: dict[str, set[str]] = {}
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    for word in [*lines, *chain(*(ENVIRONMENTS[name] for name in OF_EXTRAS))]:
        if (line := re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?==([\w.]+)", word)) is not None:
            versions_by_name.setdefault(line[1].lower(), set()).add(line[2])
    return versions_by_name


def test_the_versions_that_are_tested_are_within_the_bounds(project: Any) -> None:
    versions = pinned_versions()
    compared_count = 0
    for requirement in required_distributions(project):
        for version in versions.get(requirement.name.lower(), ()):
            assert requirement.specifier.contains(version), f"{requirement}: {version}"
            compared_count += 1
    assert compared_count > 15


@pytest.mark.parametrize(("name", "untested"), [("moto", "5.3")])
def test_versions_that_may_break_us_are_not_installed(project: Any, name: str, untested: str) -> None:
    (requirement,) = [
        requirement for requirement in required_distributions(project) if requirement.name == name
    ]
    (tested,) = pinned_versions()[name]
    assert requirement.specifier.contains(tested)
    assert not requirement.specifier.contains(untested)


def imported_names() -> set[str]:
    names: set[str] = set()
    for path in (ROOT / "smlaunch").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                names.update(alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module is not None:
                names.add(node.module.partition(".")[0])
    return names


def test_all_that_is_asked_for_is_imported(project: Any) -> None:
    """But for the tools of this checkout (``dev``)."""
    extras = {
        name: requirements for name, requirements in project["optional-dependencies"].items() if name != "dev"
    }
    imported = imported_names()
    for line in [*project["dependencies"], *chain(*extras.values())]:
        name = Requirement(line).name
        assert name in WITH_MOTO or IMPORTED_AS.get(name, name) in imported, name


def test_extras_that_are_named_to_users_exist(project: Any) -> None:
    texts = [*(ROOT / "smlaunch").rglob("*.py"), *(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    extras_named = {
        name for path in texts for name in re.findall(r"(?:smlaunch|\.)\[([a-z]+)\]", path.read_text("utf-8"))
    }
    assert extras_named == set(project["optional-dependencies"]) - {"dev"}


def test_every_patch_of_moto_names_the_test_that_fails_without_it() -> None:
    """tests/real/test_moto_repairs.py shows of each that the fault is there."""
    moto = ROOT / "smlaunch" / "local" / "moto"
    calls = ast.parse((moto / "step_functions.py").read_text("utf-8"))
    applied = {
        node.attr
        for node in ast.walk(calls)
        if isinstance(node, ast.Attribute) and is_moto_patches(node.value)
    }
    patches = ast.parse((moto / "moto_patches.py").read_text("utf-8")).body
    reasons = {
        node.name: ast.get_docstring(node) or "" for node in patches if isinstance(node, ast.FunctionDef)
    }
    tests = "".join(path.read_text("utf-8") for path in (ROOT / "tests" / "real").glob("test_*.py"))
    assert len(applied) == 12
    for name in applied:
        match = re.search(r"Needed by ``(test_\w+)``", reasons[name])
        assert match is not None and f"def {match[1]}(" in tests, name


def is_moto_patches(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "moto_patches"
