"""The job names a strategy, and the script imports none of its libraries."""

from __future__ import annotations

from collections.abc import Sequence

from smlaunch.catalog.strategies import BUILT_IN_STRATEGIES
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.strategies import load_strategy
from tests.planner.fixtures import PLAIN, local, plan
from tests.tables import table

WARNING_BY_STRATEGY = {
    "ddp": "imports nothing that joins ranks",
    "deepspeed": "imports nothing that joins ranks",
    "horovod": "does not import horovod",
    "huggingface": "imports nothing that joins ranks",
    "mpi": "does not import mpi4py",
    "ray": "does not import ray",
    "spark": "does not import pyspark",
    "tensorflow": "does not import tensorflow",
    "xgboost": "does not import xgboost",
}
"""Of neuron, smddp and smp, which have types of their own, the tests of those."""

NEVER_WARNED = ("sklearn",)
"""One process on one host."""

WARNED_ON_ONE_HOST = ("ray", "spark")
"""They start more than processes of the script."""


def warnings(strategy: str, imports: frozenset[str], hosts: int) -> Sequence[str]:
    script = ScriptFacts(imports=imports)
    return plan({"strategy": strategy, "compute": {"hosts": hosts}}, local(script=script)).warnings


@table("strategy", WARNING_BY_STRATEGY)
def test_it_is_told_once(strategy: str) -> None:
    import_warnings = [
        line for line in warnings(strategy, PLAIN.imports, hosts=2) if "unless one of its modules" in line
    ]
    assert len(import_warnings) == 1
    assert import_warnings[0].startswith(f"train.py {WARNING_BY_STRATEGY[strategy]}")


@table("strategy", WARNING_BY_STRATEGY)
def test_one_process_has_nobody_to_miss(strategy: str) -> None:
    is_warned = any(
        "unless one of its modules" in line for line in warnings(strategy, PLAIN.imports, hosts=1)
    )
    assert is_warned == (strategy in WARNED_ON_ONE_HOST)


CASES = [
    (name, library)
    for name in BUILT_IN_STRATEGIES
    for library in (*load_strategy(name).libraries, *load_strategy(name).other_libraries)
]


@table(("strategy", "library"), [case for case in CASES if case[0] in WARNING_BY_STRATEGY])
def test_each_of_its_libraries_will_do(strategy: str, library: str) -> None:
    lines = warnings(strategy, frozenset({library + ".part"}), hosts=2)
    assert not any("unless one of its modules" in line for line in lines)


def test_no_strategy_is_forgotten() -> None:
    with_libraries = {name for name in BUILT_IN_STRATEGIES if load_strategy(name).libraries}
    assert with_libraries == {*WARNING_BY_STRATEGY, *NEVER_WARNED, "neuron", "smddp", "smp"}
