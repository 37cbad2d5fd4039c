"""Requests for capacity: preferences, warm pools, a bound on the wait, and the effect of quotas."""

from __future__ import annotations

import dataclasses
from datetime import date
from typing import Any

import pytest

from smlaunch.api.validation.request_check import check_request
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import DiscoveredFacts, InputFacts
from smlaunch.job.model import Job
from smlaunch.planner.plan_context import relevant_quotas
from smlaunch.render.plan import Plan
from tests.planner.fixtures import PLAIN, UNTRAINED_HOURS, local, plan, region

TWO_TYPES = ["ml.g5.xlarge", "ml.g6.xlarge"]


def has_warning(job_plan: Plan, text: str) -> bool:
    return any(text in warning for warning in job_plan.warnings)


def explanation_of(job_plan: Plan, rule: str) -> str:
    return " ".join(reason.explanation for reason in job_plan.reasons if reason.rule == rule)


def test_preferences_are_sent_in_their_order_with_one_number_of_hosts() -> None:
    job_plan = plan(
        {"compute": {"hosts": 3, "instance_preferences": TWO_TYPES}, "limits": {"max_pending": "2h"}}
    )
    (request,) = job_plan.requests
    assert request["ResourceConfig"] == {
        "InstancePreferences": [{"InstanceType": "ml.g5.xlarge"}, {"InstanceType": "ml.g6.xlarge"}],
        "InstanceCount": 3,
        "VolumeSizeInGB": 30,
    }
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 86400, "MaxPendingTimeInSeconds": 7200}
    assert check_request("CreateTrainingJob", request) == []
    assert job_plan.instance_type == "ml.g5.xlarge"
    assert job_plan.to_dict()["instance_preferences"] == TWO_TYPES
    assert "first of ml.g5.xlarge, ml.g6.xlarge" in explanation_of(job_plan, "instance-type.preferences")
    text = str(job_plan)
    assert "3 x ml.g5.xlarge (4 vCPU, 16 GiB, 1 x NVIDIA A10G), or ml.g6.xlarge" in text
    assert "given up after 2h without capacity" in text


def test_the_dearest_preference_bounds_the_cost() -> None:
    job_plan = plan({"compute": {"instance_preferences": TWO_TYPES}, "limits": {"max_runtime": "10h"}})
    assert job_plan.cost.per_hour == pytest.approx(1.408)
    assert job_plan.cost.maximum == pytest.approx(1.408 * (10 + UNTRAINED_HOURS))
    assert job_plan.cost.note.startswith("of ml.g5.xlarge, the dearest of 2 preferences")
    swapped = plan({"compute": {"instance_preferences": TWO_TYPES[::-1]}, "limits": {"max_runtime": "10h"}})
    assert swapped.cost == job_plan.cost


def test_a_preference_without_a_price_leaves_the_cost_unknown() -> None:
    job_plan = plan({"compute": {"instance_preferences": ["ml.g5.xlarge", "ml.g6.16xlarge"]}})
    assert not job_plan.cost.is_known
    assert "ml.g6.16xlarge" in job_plan.cost.note
    own_price = {"instance_preferences": ["ml.g6.16xlarge", "ml.g5.xlarge"], "price_per_hour": 2.0}
    assert plan({"compute": own_price}).cost.per_hour == 2.0, "the price is of the first one"


@pytest.mark.parametrize(
    ("preferences", "ranks"),
    [
        (["ml.g5.12xlarge", "ml.g6.12xlarge"], 4),
        (["ml.g5.12xlarge", "ml.g5.48xlarge"], "auto"),
        (["ml.g5.12xlarge", "ml.g9.48xlarge"], "auto"),
        (["ml.m5.xlarge", "ml.c5.xlarge"], 1),
    ],
)
def test_ranks_per_host_suit_every_preference(preferences: list[str], ranks: int | str) -> None:
    assert plan({"compute": {"instance_preferences": preferences}}).processes_per_host == ranks


def test_a_preference_of_an_unknown_family_is_warned_of() -> None:
    job_plan = plan({"compute": {"instance_preferences": ["ml.g5.xlarge", "ml.g66.xlarge"]}})
    assert has_warning(job_plan, "ml.g66.xlarge is not in the catalog")
    assert has_warning(job_plan, "did you mean ml.g6.xlarge?")


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
    job_plan = plan(job)
    assert job_plan.requests[0]["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 1800
    assert job_plan.cost.maximum == pytest.approx((1.5 + UNTRAINED_HOURS) * 1.408)
    assert "30m" in explanation_of(job_plan, "cost.at-most")
    assert "kept for 30m after the job" in str(job_plan)
    capped = {**job, "limits": {"max_runtime": "1h", "max_cost": 1.5}}
    with pytest.raises(JobError) as caught:
        plan(capped)
    assert str(caught.value).startswith("limits.max_cost: 1 x ml.g5.xlarge")


def test_on_this_machine_the_first_preference_stands_for_all() -> None:
    job = {"compute": {"instance_preferences": ["ml.g5.12xlarge", "ml.g5.48xlarge"], "processes_per_host": 2}}
    job_plan = plan(job, local())
    assert job_plan.processes_per_host == 2
    assert "recorded as ml.g5.12xlarge" in str(job_plan)


def test_a_pipe_for_several_ranks_is_warned_of() -> None:
    job = {"inputs": {"t": {"uri": "s3://b/t/", "mode": "Pipe"}}, "compute": {"processes_per_host": 4}}
    inputs = {"t": InputFacts("s3://b/t/", "s3", objects=9, bytes=9)}
    assert has_warning(
        plan(job, region(inputs=inputs)), "inputs.t: only one process can read a pipe, and 4 ranks"
    )
    one_rank = {**job, "compute": {}, "strategy": "custom"}
    assert not has_warning(plan(one_rank, region(inputs=inputs)), "pipe")


# ---- quotas ----------------------------------------------------------------------------------------------

GPU = {"compute": {"hosts": 2, "instance_type": "ml.g5.xlarge"}}
USAGE = "ml.g5.xlarge for training job usage"


def test_what_was_read_is_told() -> None:
    job_plan = plan(GPU, region(quotas={USAGE: 8.0}))
    assert (
        explanation_of(job_plan, "quotas.read")
        == f"The account's quota {USAGE!r} is 8; the job takes 2 x ml.g5.xlarge."
    )


def test_what_is_not_listed_is_assumed_and_said() -> None:
    assert "it is assumed to suffice" in explanation_of(
        plan(GPU, region(quotas={USAGE: None})), "quotas.assumed"
    )


def test_what_may_not_be_read_is_a_note_and_no_error() -> None:
    denied_facts = region(quotas_problem="ListServiceQuotas: AccessDeniedException")
    assert has_warning(
        plan(GPU, denied_facts), "could not be read (ListServiceQuotas: AccessDeniedException)"
    )
    job_plan = plan({"compute": {"hosts": 2}}, denied_facts)
    assert "2 x ml.m5.xlarge is assumed" in explanation_of(job_plan, "quotas.assumed")
    assert not has_warning(job_plan, "quotas")


def test_a_warm_pool_without_a_quota_is_warned_of() -> None:
    warm_pool = {"compute": {"instance_type": "ml.g5.xlarge", "keep_alive": "30m"}}
    quotas = {USAGE: 4.0, "ml.g5.xlarge for training warm pool usage": 0.0}
    assert has_warning(
        plan(warm_pool, region(quotas=quotas)),
        "no host stays in the pool, and the service does not report that",
    )


def test_a_preference_with_too_small_a_quota_is_passed_over() -> None:
    job = {"compute": {"hosts": 2, "instance_preferences": TWO_TYPES}}
    quotas = {USAGE: 1.0, "ml.g6.xlarge for training job usage": 2.0}
    assert has_warning(
        plan(job, region(quotas=quotas)), "ml.g5.xlarge is skipped: the account may have 1 of it"
    )


@pytest.mark.parametrize(("hosts", "limit"), [(1, 1.0), (4, 4.0), (4, 100.0), (4, None)])
def test_a_quota_that_is_just_enough(hosts: int, limit: float | None) -> None:
    job: dict[str, Any] = {"compute": {"hosts": hosts, "instance_type": "ml.g5.xlarge"}}
    assert plan(job, region(quotas={USAGE: limit})).hosts == hosts


def test_a_local_endpoint_says_nothing_of_quotas() -> None:
    job_plan = plan(GPU, dataclasses.replace(local(), quotas_problem="never asked"))
    assert not [reason for reason in job_plan.reasons if reason.rule.startswith("quotas.")]


# ---- patches ---------------------------------------------------------------------------------------------

SHORT_TAG = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.9.0-gpu-py312"
LONG_TAG = SHORT_TAG + "-cu130-ubuntu22.04-sagemaker"


@pytest.mark.parametrize(
    ("image", "today", "expected_text"),
    [
        (LONG_TAG, "2026-11-21", "PyTorch 2.9.0 has had no security patches since 2026-10-15"),
        (SHORT_TAG, "2026-10-16", "PyTorch 2.9.0 has had no security patches since 2026-10-15"),
        (SHORT_TAG, "2026-10-15", "PyTorch 2.9.0 gets its last security patches on 2026-10-15"),
        (LONG_TAG, "2026-09-15", "gets its last security patches on 2026-10-15"),
        (LONG_TAG, "2026-09-14", None),
        (
            "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine/pytorch-training:2.9.0-gpu-py999",
            "2026-11-21",
            None,
        ),
        ("123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1", "2026-11-21", None),
    ],
)
def test_images_past_their_end_of_patch_are_warned_of(
    image: str, today: str, expected_text: str | None
) -> None:
    job = {"image": image, "compute": {"instance_type": "ml.g5.xlarge"}}
    job_plan = plan(job, region(today=date.fromisoformat(today)))
    warnings = [warning for warning in job_plan.warnings if "patches" in warning]
    assert [expected_text in warning for warning in warnings if expected_text] == (
        [True] if expected_text else []
    )
    assert bool(warnings) == bool(expected_text)
    assert not [w for w in plan(job, local(today=date.fromisoformat(today))).warnings if "patches" in w]


def test_a_version_past_its_end_of_patch_is_warned_of() -> None:
    old_version = {"framework_version": "2.6"}
    assert has_warning(
        plan(old_version, region(today=date(2026, 11, 21))), "no security patches since 2026-01-29"
    )
    assert not has_warning(plan({}, region(today=date(2026, 11, 21))), "patches")
    assert not has_warning(plan(old_version), "patches since")


def test_quotas_are_those_of_the_kind_of_job() -> None:
    base_job = {"entry": "prepare.py", "compute": {"hosts": 30, "instance_type": "ml.m5.4xlarge"}}
    for strategy, kind in (("ddp", "training"), ("processing", "processing"), ("spark", "processing")):
        assert relevant_quotas(Job.from_mapping({**base_job, "strategy": strategy})) == (
            f"ml.m5.4xlarge for {kind} job usage",
            f"Number of instances for a {kind} job",
        )


def test_a_pool_for_longer_than_it_lives_is_warned_of() -> None:
    def warnings_of(keep_alive: str, max_runtime: str, facts: DiscoveredFacts | None = None) -> list[str]:
        compute = {"instance_type": "ml.g5.xlarge", "keep_alive": keep_alive}
        job = {"compute": compute, "limits": {"max_runtime": max_runtime}, "checkpoints": "s3://b/c/"}
        warnings = plan(job, facts).warnings
        return [text.removeprefix("compute.keep_alive: ") for text in warnings if "keep_alive" in text]

    assert warnings_of("30m", "7d") == []
    (lifetime,) = warnings_of("1h", "8d")
    assert lifetime.startswith("a pool hands its hosts from job to job for 7 days in all")
    (longest,) = warnings_of("2h", "1d")
    assert longest.startswith("2h is longer than the 60 minutes that AWS's guide names")
    assert warnings_of("2h", "8d", local()) == []
