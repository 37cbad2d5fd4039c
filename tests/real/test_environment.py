"""The effective environment of a rank, compared with what AWS's own two launchers give the same script."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.real import environment_differences as explained
from tests.real.conftest import program
from tests.real.launchers import by_drivers, by_smlaunch, by_toolkit
from tests.real.platform import HOSTS, Machine, ReceivedLaunch

pytestmark = pytest.mark.root

_ABSENT = object()


@dataclass(frozen=True)
class ThreeLaunches:
    toolkit: ReceivedLaunch
    drivers: ReceivedLaunch
    ours: ReceivedLaunch


@pytest.fixture(scope="module", params=["plain", "torchrun"])
def launches(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ThreeLaunches:
    distributed = request.param == "torchrun"
    python = Path(program("toolkit", "python3"))
    packages = next(Path(program("sdk3", "python3")).parents[1].glob("lib/python3*/site-packages"))
    image = {"SAGEMAKER_TRAINING_MODULE": "pytorch_container:main"} if distributed else {}

    def machine(name: str) -> Machine:
        # The host is alone, so that its ranks wait for no other: the drivers' master is always algo-1.
        hosts = HOSTS[1:] if distributed else HOSTS
        return Machine(tmp_path_factory.mktemp(name), python, hosts, "algo-2", image)

    return ThreeLaunches(
        by_toolkit(machine("toolkit"), distributed),
        by_drivers(machine("drivers"), distributed, packages),
        by_smlaunch(machine("smlaunch"), distributed),
    )


def data(env: Mapping[str, str]) -> dict[str, Any]:
    """Returns values by name: JSON decoded, and SM_TRAINING_ENV key by key."""
    values: dict[str, Any] = {}
    for name, text in env.items():
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        if name == "SM_TRAINING_ENV":
            values.update((f"{name}.{key}", part) for key, part in value.items())
        else:
            values[name] = value if isinstance(value, (dict, list)) else text
    return values


def changed_names(other: ReceivedLaunch, ours: ReceivedLaunch) -> set[str]:
    """Returns the names of variables that the other launcher sets and ours does not set to the same."""
    own_values = data(ours.env)
    return {name for name, value in data(other.env).items() if own_values.get(name, _ABSENT) != value}


OBSERVED: dict[str, set[str]] = {"toolkit": set(), "drivers": set(), "ours": set()}


def test_nothing_differs_from_the_toolkit_but_what_is_explained(launches: ThreeLaunches) -> None:
    names = changed_names(launches.toolkit, launches.ours)
    OBSERVED["toolkit"] |= names
    assert names - explained.TOOLKIT.keys() == set()


def test_nothing_differs_from_the_drivers_but_what_is_explained(launches: ThreeLaunches) -> None:
    names = changed_names(launches.drivers, launches.ours)
    OBSERVED["drivers"] |= names
    assert names - explained.DRIVERS.keys() == set()


def test_nothing_is_ours_alone_but_what_is_explained(launches: ThreeLaunches) -> None:
    names = launches.ours.env.keys() - launches.toolkit.env.keys() - launches.drivers.env.keys()
    OBSERVED["ours"] |= names
    assert names - explained.OURS.keys() == set()


def test_arguments_are_as_the_table_says(launches: ThreeLaunches) -> None:
    for column, launcher in enumerate((launches.ours, launches.toolkit, launches.drivers)):
        rows = [cells[column] for cells in explained.command_words().values()]
        for pair in (shlex.split(row.strip("`")) for row in rows if row.startswith("`")):
            position = launcher.argv.index(pair[0])
            assert launcher.argv[position : position + 2] == pair
    assert launches.ours.argv[::2] == launches.toolkit.argv[::2]


def test_every_explanation_is_needed() -> None:
    """This test runs last: it needs what the tests before have observed."""
    if not OBSERVED["drivers"]:
        pytest.skip("the launchers were not run")
    for name, table in (
        ("toolkit", explained.TOOLKIT),
        ("drivers", explained.DRIVERS),
        ("ours", explained.OURS),
    ):
        assert table.keys() - OBSERVED[name] == set(), name


def test_the_document_says_the_same() -> None:
    assert (ROOT / "docs" / "environment.md").read_text() == explained.render()
