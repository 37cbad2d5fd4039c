"""``from smlaunch import ...``: the names users write, in whatever order they write them."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

import smlaunch
from smlaunch import errors

PACKAGE = Path(smlaunch.__file__).parent


@pytest.mark.parametrize("first, second", list(itertools.permutations(["plan", "launch", "JobError"], 2)))
def test_public_names_import_in_any_order(first: str, second: str) -> None:
    code = (
        f"from smlaunch import {first}, {second}\n"
        "import smlaunch, smlaunch.cli.main, types\n"
        "for name in ('plan', 'launch', 'Run', 'JobError'):\n"
        "    value = getattr(smlaunch, name)\n"
        "    assert callable(value) and not isinstance(value, types.ModuleType), (name, value)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


ALL_MODULES = """
import importlib, pkgutil, smlaunch
imported = 0
for module in pkgutil.walk_packages(smlaunch.__path__, "smlaunch."):
    # The first two import what is no dependency of the package; the last is a program.
    if not module.name.startswith(("smlaunch.airflow", "smlaunch.local.moto", "smlaunch.runtime.__main__")):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            assert not error.name.startswith("smlaunch"), module.name
        else:
            imported += 1
assert imported > 300, imported
for name, module in smlaunch._MODULE_BY_NAME.items():
    value = getattr(smlaunch, name)
    assert value is getattr(importlib.import_module(module), name) and callable(value), (name, value)
"""


def test_public_names_stay_what_they_are_once_every_module_is_imported() -> None:
    subprocess.run([sys.executable, "-c", ALL_MODULES], check=True, timeout=300)


def test_dir_shows_the_public_names_and_nothing_else() -> None:
    code = (
        "import smlaunch\n"
        "assert dir(smlaunch) == sorted(smlaunch.__all__)\n"
        "smlaunch.Job\n"
        "assert dir(smlaunch) == sorted(smlaunch.__all__)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    expected = {"Job", "Run", "RunOutcome", "LogLine", "TransferProgress", "TrainingFailed"}
    assert expected <= set(smlaunch.__all__)


def test_the_command_line_is_a_module_too() -> None:
    command = [sys.executable, "-m", "smlaunch", "--version"]
    result = subprocess.run(command, check=True, timeout=300, capture_output=True, text=True)
    assert smlaunch.__version__ in result.stdout


def test_no_module_is_called_like_a_name_that_its_package_offers() -> None:
    """Importing the module would put it in the name's place."""
    packages = [init.parent for init in PACKAGE.rglob("__init__.py")]
    assert len(packages) > 20
    for folder in packages:
        modules = {path.stem for path in folder.glob("*.py")} | {
            path.parent.name for path in folder.glob("*/*.py")
        }
        assert not _public_names(folder) & modules, folder


def _public_names(folder: Path) -> set[str]:
    """Functions, classes and values that a package binds or loads lazily; neither the modules it imports, nor
    what it imports at once from a module of the same name: that module was put in the name's place before."""
    names = set(smlaunch.__all__) if folder == PACKAGE else set()
    for node in ast.parse((folder / "__init__.py").read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            source = PACKAGE.parent.joinpath(*(node.module or "").split("."))
            names |= {
                alias.asname or alias.name
                for alias in node.names
                if not (source / f"{alias.name}.py").exists()
                and not (source / alias.name).is_dir()
                and source != folder / (alias.asname or alias.name)
            }
    return names


def test_every_exception_of_ours_can_be_caught_by_its_public_name() -> None:
    raised_names = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.SmlaunchError)
    }
    assert raised_names >= {"TrainingFailed", "JobError"}
    assert raised_names <= set(smlaunch.__all__)
    assert all(getattr(smlaunch, name) is getattr(errors, name) for name in raised_names)
