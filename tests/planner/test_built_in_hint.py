"""A script whose library is also a built-in algorithm gets a hint; the hint chooses nothing."""

from __future__ import annotations

from typing import Any

import pytest

from smlaunch.catalog import algorithms
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.planner.script_advice import ALGORITHM_BY_LIBRARY
from tests.planner.fixtures import plan, region


def hint_texts(imports: set[str], job: dict[str, Any] | None = None) -> list[str]:
    job_plan = plan(job or {}, region(script=ScriptFacts(imports=frozenset(imports))))
    return [reason.explanation for reason in job_plan.reasons if reason.rule == "built-in.would-do"]


def test_the_algorithm_is_named_with_what_it_reads() -> None:
    (sentence,) = hint_texts({"pandas", "xgboost"})
    assert "SageMaker's built-in XGBoost (also on several hosts, CSV, LibSVM, Parquet" in sentence
    assert sentence.endswith("takes no script, by algorithm: xgboost.")
    (sentence,) = hint_texts({"sklearn", "sklearn.cluster", "sklearn.cluster.KMeans"})
    assert "algorithm: kmeans" in sentence


@pytest.mark.parametrize(
    ("imports", "job"),
    [
        ({"json"}, {}),
        ({"torch", "xgboost"}, {}),
        ({"xgboost", "lightgbm"}, {}),
        ({"sklearn.svm"}, {}),
        ({"xgboost"}, {"strategy": "custom"}),
    ],
)
def test_nothing_is_said_where_it_is_not_all_or_the_job_has_chosen(
    imports: set[str], job: dict[str, Any]
) -> None:
    assert hint_texts(imports, job) == []


def test_every_one_of_them_is_an_algorithm() -> None:
    assert all(algorithms.find_algorithm(name) is not None for name in ALGORITHM_BY_LIBRARY.values())
