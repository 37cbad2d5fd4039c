"""How capacity is asked for: preferences, warm pools, a bound on the wait, and what quotas make of it."""

from __future__ import annotations

import dataclasses
from datetime import date
from typing import Any

import pytest

from smlaunch.api.validation import check_request
from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.planner.facts import InputFacts
from smlaunch.planner.plan import Plan
from smlaunch.planner.quotas import relevant_quotas
from tests.planner.fixtures import PLAIN, local, plan, region

TWO = ["ml.g5.xlarge", "ml.g6.xlarge"]


def warned(made: Plan, words: str) -> bool:
    return any(words in warning for warning in made.warnings)


def because(made: Plan, rule: str) -> str:
    return " ".join(reason.explanation for reason in made.reasons if reason.rule == rule)


def test_preferences_are_sent_in_their_order_with_one_number_of_hosts() -> None:
    made = plan({"compute": {"hosts": 3, "instance_preferences": TWO}, "limits": {"max_pending": "2h"}})
    (request,) = made.requests
    assert request["ResourceConfig"] == {
        "InstancePreferences": [{"InstanceType": "ml.g5.xlarge"}, {"InstanceType": "ml.g6.xlarge"}],
        "InstanceCount": 3,
        "VolumeSizeInGB": 30,
    }
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400, "MaxPendingTimeInSeconds": 7200}
    assert check_request("CreateTrainingJob", request) == []
    assert made.instance_type == "ml.g5.xlarge"
    assert made.to_dict()["instance_preferences"] == TWO
    assert "first of ml.g5.xlarge, ml.g6.xlarge" in because(made, "instance-type.preferences")
    text = str(made)
    assert "3 x ml.g5.xlarge (4 vCPU, 16 GiB, 1 x NVIDIA A10G), or ml.g6.xlarge" in text
    assert "given up after 2h without capacity" in text


def test_the_dearest_preference_bounds_the_cost() -> None:
    made = plan({"compute": {"instance_preferences": TWO}, "limits": {"max_runtime": "10h"}})
    assert made.cost.per_hour == pytest.approx(1.408)
    assert made.cost.maximum == pytest.approx(14.08)
    assert made.cost.note.startswith("of ml.g5.xlarge, the dearest of 2 preferences")
    swapped = plan({"compute": {"instance_preferences": TWO[::-1]}, "limits": {"max_runtime": "10h"}})
    assert swapped.cost == made.cost


def test_a_preference_without_a_price_leaves_the_cost_unknown() -> None:
    made = plan({"compute": {"instance_preferences": ["ml.g5.xlarge", "ml.g6.16xlarge"]}})
    assert not made.cost.is_known
    assert "ml.g6.16xlarge" in made.cost.note
    own = {"instance_preferences": ["ml.g5.xlarge", "ml.g6.16xlarge"], "price_per_hour": 2.0}
    assert plan({"compute": own}).cost.per_hour == 2.0


@pytest.mark.parametrize(
    ("preferences", "ranks"),
    [
        (["ml.g5.12xlarge", "ml.g6.12xlarge"], 4),
        (["ml.g5.12xlarge", "ml.g5.48xlarge"], "auto"),
        (["ml.g5.12xlarge", "ml.g5.unheard"], "auto"),
        (["ml.m5.xlarge", "ml.c5.xlarge"], 1),
    ],
)
def test_ranks_per_host_suit_every_preference(preferences: list[str], ranks: int | str) -> None:
    assert plan({"compute": {"instance_preferences": preferences}}).processes_per_host == ranks


def test_a_misspelled_preference_is_warned_of() -> None:
    made = plan({"compute": {"instance_preferences": ["ml.g5.xlarge", "ml.g6.xlrge"]}})
    assert warned(made, "ml.g6.xlrge is not in the catalog")
    assert warned(made, "did you mean ml.g6.xlarge?")


def test_preferences_of_a_processing_job() -> None:
    job = {
        "strategy": "processing",
        "compute": {"hosts": 2, "instance_preferences": ["ml.m5.xlarge", "ml.c5.xlarge"]},
    }
    (request,) = plan(job, region(script=PLAIN)).requests
    assert request["ProcessingResources"]["ClusterConfig"] == {
        "InstancePreferences": [{"InstanceType": "ml.m5.xlarge"}, {"InstanceType": "ml.c5.xlarge"}],
        "InstanceCount": 2,
        "VolumeSizeInGB": 30,
    }
    assert check_request("CreateProcessingJob", request) == []


def test_a_warm_pool_is_asked_for_and_paid_for() -> None:
    job = {"compute": {"instance_type": "ml.g5.xlarge", "keep_alive": "30m"}, "limits": {"max_runtime": "1h"}}
    made = plan(job)
    assert made.requests[0]["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 1800
    assert made.cost.maximum == pytest.approx(1.5 * 1.408)
    assert "30m" in because(made, "cost.warm-pool")
    assert "kept for 30m after the job" in str(made)
    capped = {**job, "limits": {"max_runtime": "1h", "max_cost": 1.5}}
    with pytest.raises(JobError) as caught:
        plan(capped)
    assert str(caught.value).startswith("limits.max_cost: 1 x ml.g5.xlarge")


def test_on_this_machine_the_first_preference_stands_for_all() -> None:
    job = {"compute": {"instance_preferences": ["ml.g5.12xlarge", "ml.g5.48xlarge"], "processes_per_host": 2}}
    made = plan(job, local())
    assert made.processes_per_host == 2
    assert "recorded as ml.g5.12xlarge" in str(made)


def test_a_pipe_for_several_ranks_is_warned_of() -> None:
    job = {"inputs": {"t": {"uri": "s3://b/t/", "mode": "Pipe"}}, "compute": {"processes_per_host": 4}}
    inputs = {"t": InputFacts("s3://b/t/", "s3", objects=9, bytes=9)}
    assert warned(plan(job, region(inputs=inputs)), "inputs.t: only one process can read a pipe, and 4 ranks")
    alone = {**job, "compute": {}, "strategy": "custom"}
    assert not warned(plan(alone, region(inputs=inputs)), "pipe")


# ---- quotas ----------------------------------------------------------------------------------------------

GPU = {"compute": {"hosts": 2, "instance_type": "ml.g5.xlarge"}}
USAGE = "ml.g5.xlarge for training job usage"


def test_what_was_read_is_told() -> None:
    made = plan(GPU, region(quotas={USAGE: 8.0}))
    assert (
        because(made, "quotas.read") == f"The account's quota {USAGE!r} is 8; the job takes 2 x ml.g5.xlarge."
    )


def test_what_is_not_listed_is_assumed_and_said() -> None:
    assert "it is assumed to suffice" in because(plan(GPU, region(quotas={USAGE: None})), "quotas.assumed")


def test_what_may_not_be_read_is_a_note_and_no_error() -> None:
    denied = region(quotas_problem="ListServiceQuotas: AccessDeniedException")
    assert warned(plan(GPU, denied), "could not be read (ListServiceQuotas: AccessDeniedException)")
    made = plan({"compute": {"hosts": 2}}, denied)
    assert "2 x ml.m5.xlarge is assumed" in because(made, "quotas.assumed")
    assert not warned(made, "quotas")


def test_a_warm_pool_without_a_quota_is_warned_of() -> None:
    kept = {"compute": {"instance_type": "ml.g5.xlarge", "keep_alive": "30m"}}
    quotas = {USAGE: 4.0, "ml.g5.xlarge for training warm pool usage": 0.0}
    assert warned(
        plan(kept, region(quotas=quotas)), "no host stays in the pool, and the service does not report that"
    )


def test_a_preference_with_too_small_a_quota_is_passed_over() -> None:
    job = {"compute": {"hosts": 2, "instance_preferences": TWO}}
    quotas = {USAGE: 1.0, "ml.g6.xlarge for training job usage": 2.0}
    assert warned(plan(job, region(quotas=quotas)), "ml.g5.xlarge is skipped: the account may have 1 of it")


@pytest.mark.parametrize(("hosts", "limit"), [(1, 1.0), (4, 4.0), (4, 100.0), (4, None)])
def test_a_quota_that_is_just_enough(hosts: int, limit: float | None) -> None:
    job: dict[str, Any] = {"compute": {"hosts": hosts, "instance_type": "ml.g5.xlarge"}}
    assert plan(job, region(quotas={USAGE: limit})).hosts == hosts


def test_a_local_endpoint_says_nothing_of_quotas() -> None:
    made = plan(GPU, dataclasses.replace(local(), quotas_problem="never asked"))
    assert not [reason for reason in made.reasons if reason.rule.startswith("quotas.")]


# ---- patches ---------------------------------------------------------------------------------------------

SHORT = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.9.0-gpu-py312"
LONG = SHORT + "-cu130-ubuntu22.04-sagemaker"


@pytest.mark.parametrize(
    ("image", "today", "said"),
    [
        (LONG, "2026-11-21", "PyTorch 2.9.0 has had no security patches since 2026-10-15"),
        (SHORT, "2026-10-16", "PyTorch 2.9.0 has had no security patches since 2026-10-15"),
        (SHORT, "2026-10-15", "PyTorch 2.9.0 gets its last security patches on 2026-10-15"),
        (LONG, "2026-09-15", "gets its last security patches on 2026-10-15"),
        (LONG, "2026-09-14", None),
        ("mine/pytorch-training:2.9.0-gpu-py999", "2026-11-21", None),
        ("mine:1", "2026-11-21", None),
    ],
)
def test_images_past_their_end_of_patch_are_warned_of(image: str, today: str, said: str | None) -> None:
    job = {"image": image, "compute": {"instance_type": "ml.g5.xlarge"}}
    made = plan(job, region(today=date.fromisoformat(today)))
    warnings = [warning for warning in made.warnings if "patches" in warning]
    assert [said in warning for warning in warnings if said] == ([True] if said else [])
    assert bool(warnings) == bool(said)
    assert not [w for w in plan(job, local(today=date.fromisoformat(today))).warnings if "patches" in w]


def test_a_version_past_its_end_of_patch_is_warned_of() -> None:
    old = {"framework_version": "2.6"}
    assert warned(plan(old, region(today=date(2026, 11, 21))), "no security patches since 2026-01-29")
    assert not warned(plan({}, region(today=date(2026, 11, 21))), "patches")
    assert not warned(plan(old), "patches since")


def test_training_quotas_are_not_asked_for_what_trains_nothing() -> None:
    asked = {"entry": "prepare.py", "compute": {"hosts": 30, "instance_type": "ml.m5.4xlarge"}}
    assert relevant_quotas(Job.from_mapping({**asked, "strategy": "ddp"}))
    for strategy in ("processing", "spark"):
        assert relevant_quotas(Job.from_mapping({**asked, "strategy": strategy})) == ()
