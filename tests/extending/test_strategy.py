"""A strategy from one file: the example of docs/extending.md, without jax, whose tests are in tests/real."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from smlaunch import Compute, Job, JobError, Target, launch
from smlaunch.connection.open_connection import open_connection
from smlaunch.strategies import register_strategy

SCRIPT = """\
import os

names = ("RANK", "WORLD_SIZE", "JAX_COORDINATOR_ADDRESS", "JAX_NUM_CPU_DEVICES")
print("meets-by", *map(os.environ.get, names))
"""


@pytest.fixture
def target(home: Path) -> Iterator[Target]:
    options = {"local": True, "region": None, "profile": None, "isolation": "plain"}
    with open_connection(options) as connection:
        yield connection.target


@pytest.fixture
def job(tmp_path: Path) -> Callable[[], Job]:
    (tmp_path / "train.py").write_text(SCRIPT)
    return lambda: Job(
        entry=tmp_path / "train.py",
        strategy="jax",
        image="my-repository/jax:1",
        compute=Compute(hosts=2, processes_per_host=2),
        options={"cpu_devices": 2},
    )


def test_its_ranks_find_the_coordinator(
    job: Callable[[], Job], target: Target, import_example: Callable[[str], Any]
) -> None:
    with pytest.raises(JobError, match="'jax' is unknown"):
        job()
    import_example("smlaunch_jax.py")
    run = launch(job(), target)
    assert run.result().exit_code == 0
    printed = [line.text.partition("meets-by ")[2].split() for line in run.logs() if "meets-by " in line.text]
    assert sorted((rank, size, devices) for rank, size, _, devices in printed) == [
        (str(rank), "4", "2") for rank in range(4)
    ]
    (coordinator,) = {address for _, _, address, _ in printed}
    assert coordinator.startswith("127.")


def test_a_name_is_taken_once(import_example: Callable[[str], Any]) -> None:
    strategy = import_example("smlaunch_jax.py").Jax
    with pytest.raises(ValueError, match="there is a strategy jax already"):
        register_strategy(strategy)
    for name in ("A B", ""):
        strategy.name = name
        with pytest.raises(ValueError, match="a strategy's name is one word"):
            register_strategy(strategy)
    strategy.name = "ddp"
    with pytest.raises(ValueError, match="there is a strategy ddp already"):
        register_strategy(strategy)
