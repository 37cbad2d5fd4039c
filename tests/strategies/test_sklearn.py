"""strategy: sklearn: one process of one host, in scikit-learn's own image."""

from __future__ import annotations

import pytest

from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import InputFacts, ScriptFacts
from tests.planner.fixtures import plan, region, with_inputs

SKLEARN = ScriptFacts(imports=frozenset({"sklearn.ensemble", "numpy", "joblib"}))


def test_one_process_in_its_own_image() -> None:
    job_plan = plan({}, region(script=SKLEARN))
    assert (job_plan.strategy, job_plan.processes_per_host) == ("sklearn", 1)
    assert job_plan.image == "683313688378.dkr.ecr.us-east-1.amazonaws.com/sagemaker-scikit-learn:1.9-0"
    spec = job_plan.planned_jobs[0].launch_spec
    assert spec is not None and not spec.ranks.rendezvous


def test_several_hosts_or_ranks_are_refused_with_the_way_out() -> None:
    with pytest.raises(JobError) as caught:
        plan(
            {"compute": {"hosts": 3, "processes_per_host": 2}, "strategy": "sklearn"}, region(script=SKLEARN)
        )
    messages = {problem.path: problem.message for problem in caught.value.problems}
    assert "share-nothing" in messages["compute.hosts"]
    assert "--hosts 1" in [problem.change for problem in caught.value.problems]
    assert "joblib starts its own" in messages["compute.processes_per_host"]


def test_a_metric_of_sklearns_makes_no_sklearn_training() -> None:
    torch = ScriptFacts(imports=frozenset({"torch", "sklearn.metrics"}))
    assert plan({}, region(script=torch)).strategy == "custom"


def test_split_data_goes_share_nothing() -> None:
    facts = with_inputs(region(script=SKLEARN), {"train": InputFacts("s3://b/d/", "s3", objects=9, bytes=9)})
    job = {"compute": {"hosts": 3}, "inputs": {"train": {"uri": "s3://b/d/", "split": "key"}}}
    job_plan = plan(job, facts)
    assert job_plan.strategy == "share-nothing"
    assert "strategy.shards" in [reason.rule for reason in job_plan.reasons]
