"""The effect of several ranks on the learning rate: the number, its rule and its source."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.planner.launch_choices import GOYAL_2017, MALLADI_2022, scale_learning_rate
from tests.planner.fixtures import local, plan


@pytest.mark.parametrize(
    ("optimizer", "rule", "rate"),
    [("sgd", "linear", 1.6), ("SGD", "linear", 1.6), ("adamw", "square root", 0.4),
     ("Adam", "square root", 0.4), ("lion", "linear", 1.6), (None, "linear", 1.6)],
)  # fmt: skip
def test_the_rule_follows_the_optimizer(optimizer: str | None, rule: str, rate: float) -> None:
    scaled = scale_learning_rate(optimizer, 0.1, 16)
    assert (scaled.rule, scaled.rate) == (rule, pytest.approx(rate))
    assert (GOYAL_2017 if rule == "linear" else MALLADI_2022) in scaled.explanation
    is_known = optimizer is not None and optimizer.lower() != "lion"
    assert ("treated as SGD" in scaled.explanation) is not is_known


@given(st.integers(1, 4096), st.floats(1e-6, 10))
def test_adam_is_scaled_less_than_sgd_and_one_rank_not_at_all(ranks: int, rate: float) -> None:
    linear, root = scale_learning_rate("sgd", rate, ranks).rate, scale_learning_rate("adam", rate, ranks).rate
    assert linear is not None
    assert root is not None
    assert rate <= root * 1.0001
    assert root <= linear * 1.0001
    if ranks == 1:
        assert linear == root == rate


def scaling_texts(work: dict[str, Any], job: dict[str, Any] | None = None) -> list[str]:
    compute = {"hosts": 2, "instance_type": "ml.g5.12xlarge"}
    job_plan = plan({"compute": compute, "workload": work, **(job or {})})
    return [reason.explanation for reason in job_plan.reasons if reason.rule == "scaling.learning-rate"]


def test_the_plan_says_the_number() -> None:
    (sentence,) = scaling_texts({"batch_size": 64, "learning_rate": 0.1, "optimizer": "sgd"})
    assert sentence.startswith(
        "8 ranks with 64 samples each make batches of 512: the learning rate of 0.1 becomes 0.8, linearly"
    )
    (sentence,) = scaling_texts({"optimizer": "adam"}, {"hyperparameters": {"lr": 0.3}})
    assert "multiplied with 2.83" in sentence
    assert "hyperparameters.lr is sent unchanged: 0.3" in sentence


def test_nothing_is_said_where_nothing_is_stated_or_nobody_shares_gradients() -> None:
    assert scaling_texts({}) == []
    one_rank = plan({"workload": {"learning_rate": 0.1}, "compute": {"instance_type": "ml.g5.xlarge"}})
    assert "scaling.learning-rate" not in [reason.rule for reason in one_rank.reasons]
    parts = {"inputs": {"t": {"uri": "s3://b/t/", "split": "key"}}, "strategy": "share-nothing"}
    assert scaling_texts({"learning_rate": 0.1}, parts) == []
    local_plan = plan({"workload": {"learning_rate": 0.1}, "compute": {"processes_per_host": 4}}, local())
    assert "scaling.learning-rate" in [reason.rule for reason in local_plan.reasons]


def test_a_batch_beyond_what_was_tried_is_warned_of() -> None:
    work = {"batch_size": 2048, "optimizer": "sgd"}
    job_plan = plan({"compute": {"hosts": 2, "instance_type": "ml.g5.12xlarge"}, "workload": work})
    assert any(
        "Batches of 16,384 samples are larger than the 8,192" in warning for warning in job_plan.warnings
    )
