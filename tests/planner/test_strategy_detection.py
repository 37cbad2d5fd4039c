"""The strategy that is detected when a script's imports fit several."""

from __future__ import annotations

import pytest

from smlaunch.catalog.strategies import BUILT_IN_STRATEGIES, DETECTION_ORDER
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.render.plan import Plan
from smlaunch.strategies import load_strategy
from smlaunch.strategies.detection import detect_strategy
from tests.planner.fixtures import plan, region
from tests.tables import table

SPOKEN = [
    ("torch.distributed", "ddp", "torch.distributed"),
    ("torch torch.distributed.init_process_group", "ddp", "torch.distributed"),
    ("lightning.pytorch", "ddp", "lightning"),
    ("pytorch_lightning", "ddp", "pytorch_lightning"),
    ("transformers.Trainer torch", "huggingface", "transformers"),
    ("accelerate torch.distributed", "huggingface", "accelerate"),
    ("deepspeed torch.distributed transformers", "deepspeed", "deepspeed"),
    ("mpi4py.MPI numpy", "mpi", "mpi4py"),
    ("pyspark.sql pandas", "spark", "pyspark"),
    ("pyspark.sql xgboost sklearn.metrics", "spark", "pyspark"),
    ("torch.sagemaker torch.distributed", "smp", "torch.sagemaker"),
    ("ray.train torch.distributed", "ray", "ray"),
    ("smdistributed.dataparallel.torch.torch_smddp torch.distributed", "smddp", "smdistributed.dataparallel"),
    ("torch_xla.core torch.distributed", "neuron", "torch_xla"),
    ("tensorflow.distribute sklearn.metrics", "tensorflow", "tensorflow"),
    ("xgboost sklearn.metrics", "xgboost", "xgboost"),
    ("sklearn.ensemble numpy", "sklearn", "sklearn"),
    ("sklearn.metrics torch.distributed", "ddp", "torch.distributed"),
]
NOT_SPOKEN = [
    "torch sklearn.metrics",  # sklearn's image has no torch
    "lightgbm sklearn.model_selection",
    "lightningbolt",
    "transformers_of_mine",
    "torch",
    "numpy json",
    "",
]


@table(("imports", "strategy", "library"), SPOKEN)
def test_the_library_that_starts_the_others_counts(imports: str, strategy: str, library: str) -> None:
    detected = detect_strategy(frozenset(imports.split()))
    assert detected is not None
    assert (detected.strategy, detected.library) == (strategy, library)


@pytest.mark.parametrize("imports", NOT_SPOKEN)
def test_nothing_is_guessed_from_others(imports: str) -> None:
    assert detect_strategy(frozenset(imports.split())) is None


def test_every_strategy_that_names_libraries_has_its_place() -> None:
    assert {name for name in BUILT_IN_STRATEGIES if load_strategy(name).libraries} == set(DETECTION_ORDER)


@pytest.mark.parametrize(
    "library",
    [
        "optuna",
        "hyperopt.fmin",
        "ray.tune",
        "sklearn.model_selection.GridSearchCV",
        "sklearn.model_selection.RandomizedSearchCV",
    ],
)
def test_a_search_is_pointed_to_tuning_jobs(library: str) -> None:
    facts = region(script=ScriptFacts(imports=frozenset({library})))
    assert "SageMaker's automatic model tuning" in words_of(plan({}, facts))


@pytest.mark.parametrize(("library", "shares_trials"), [("optuna", False), ("ray.tune", True)])
def test_a_search_on_several_hosts_is_the_same_on_each(library: str, shares_trials: bool) -> None:
    facts = region(script=ScriptFacts(imports=frozenset({library})))
    words = words_of(plan({"compute": {"hosts": 3}}, facts))
    assert ("each of 3 hosts runs all trials of the search" not in words) == shares_trials


def test_what_is_no_search_is_not() -> None:
    facts = region(script=ScriptFacts(imports=frozenset({"sklearn.model_selection.train_test_split", "ray"})))
    assert "automatic model tuning" not in words_of(plan({}, facts))


def words_of(job_plan: Plan) -> str:
    return " ".join([*(reason.explanation for reason in job_plan.reasons), *job_plan.warnings])
