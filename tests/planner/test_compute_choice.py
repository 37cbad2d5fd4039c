"""The machines chosen for a workload: fixed fields stay, the choice suffices, and its cost is within the
limit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.catalog import accelerators
from smlaunch.catalog.instances import find_instance_type, known_types
from smlaunch.catalog.prices import RegionPrices
from smlaunch.catalog.region_catalog import RegionCatalog
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import FeatureLocation, InputFacts, ScriptFacts
from smlaunch.job.model import Job, parse_duration
from smlaunch.planner.compute_choice import MAX_HOSTS
from smlaunch.planner.plan import Candidate
from smlaunch.planner.plan_context import relevant_quotas
from smlaunch.planner.rules import rules_of
from smlaunch.render.plan import Plan
from smlaunch.storage.read_time_estimates import DataShare, EstimateRange
from smlaunch.storage.workload_estimate import (
    MODEL_MEMORY_SHARE,
    HostGroup,
    Measurement,
    estimate_duration,
    estimate_hourly_price,
    estimate_price,
    speedup,
)
from tests.planner.fixtures import PLAIN, TORCH, local, make_plan, plan, region, with_inputs
from tests.planner.test_plan import refusals
from tests.strategies.requests import plan_job
from tests.tables import table

ONE_ACCELERATOR_SCRIPT = ScriptFacts(imports=frozenset({"torch"}), features={"backward": FeatureLocation(3)})
FSDP = ScriptFacts(imports=TORCH.imports | {"torch.distributed.fsdp"})


def chosen_candidate(job_plan: Plan) -> Candidate:
    (match,) = (candidate for candidate in job_plan.candidates if candidate.chosen)
    return match


def rejection_rules(job_plan: Plan, instance_type: str) -> list[str]:
    return [
        candidate.rule
        for candidate in job_plan.candidates
        if candidate.instance_type == instance_type and not candidate.is_feasible
    ]


# ---- what is compared ------------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [{}, {"compute": {"hosts": 3, "instance_type": "ml.g5.12xlarge"}}])
def test_a_job_without_a_workload_is_left_as_it_is(job: dict[str, Any]) -> None:
    job_plan = plan(job)
    assert job_plan.candidates == ()
    assert "Machines compared" not in str(job_plan)
    assert job_plan.to_dict()["candidates"] == []


def test_what_was_measured_is_taken_among_the_cheapest() -> None:
    job = {"workload": {"time_on_one": "10h"}}
    assert chosen_candidate(plan(job, region(script=ONE_ACCELERATOR_SCRIPT))).instance_type == "ml.g5.xlarge"
    other = {"workload": {"time_on_one": "10h", "measured_on": "ml.g6.2xlarge"}}
    job_plan = plan(other, region(script=ONE_ACCELERATOR_SCRIPT))
    assert chosen_candidate(job_plan).instance_type == "ml.g6.xlarge"
    assert "10h on ml.g6.2xlarge;" in str(job_plan).replace("\n    ", " ")


def test_the_plan_launches_what_it_chose() -> None:
    job_plan = plan(
        {"workload": {"time_on_one": "40h", "wanted_time": "12h"}, "limits": {"max_runtime": "1d"}}
    )
    choice = chosen_candidate(job_plan)
    assert (
        job_plan.requests[0]["ResourceConfig"]["InstanceType"]
        == choice.instance_type
        == job_plan.instance_type
    )
    assert job_plan.requests[0]["ResourceConfig"]["InstanceCount"] == choice.hosts == job_plan.hosts
    assert job_plan.processes_per_host == choice.processes_per_host
    assert job_plan.job.compute.instance_type is None, "the job stays what the user wrote"
    document = job_plan.to_dict()["candidates"]
    assert document[0]["chosen"]
    assert [row["chosen"] for row in document].count(True) == 1
    assert len(document) == len(job_plan.candidates)


def test_one_instance_before_several_and_the_rule_that_says_so() -> None:
    job_plan = plan({"workload": {"time_on_one": "40h", "wanted_time": "12h"}})
    assert chosen_candidate(job_plan).hosts == 1
    assert rejection_rules(job_plan, "ml.g5.xlarge") == ["time.too-slow", "scale.up-before-out"]


def test_types_that_would_do_as_well_are_named_for_capacity() -> None:
    job: dict[str, Any] = {"workload": {"time_on_one": "40h", "wanted_time": "12h"}}
    explanation = {reason.rule: reason.explanation for reason in plan(job).reasons}["capacity.preferences"]
    assert "compute.instance_preferences: [ml.p4d.24xlarge, ml.p4de.24xlarge]" in explanation
    job["compute"] = {"instance_preferences": ["ml.p4d.24xlarge", "ml.p4de.24xlarge"]}
    job_plan = plan(job)
    assert [row["InstanceType"] for row in job_plan.requests[0]["ResourceConfig"]["InstancePreferences"]] == (
        ["ml.p4d.24xlarge", "ml.p4de.24xlarge"]
    )
    assert "capacity.preferences" not in [reason.rule for reason in job_plan.reasons]
    assert job_plan.candidates[0].chosen


def test_a_script_for_one_accelerator_gets_one() -> None:
    job_plan = plan({"workload": {"time_on_one": "10h"}}, region(script=ONE_ACCELERATOR_SCRIPT))
    assert rejection_rules(job_plan, "ml.g5.12xlarge") == ["capability.one-accelerator"]
    data_parallel = ONE_ACCELERATOR_SCRIPT._replace(features={"one-process": FeatureLocation(1)})
    job_plan = plan({"workload": {"time_on_one": "40h", "wanted_time": "14h"}}, region(script=data_parallel))
    assert job_plan.hosts == 1
    assert job_plan.processes_per_host == chosen_candidate(job_plan).processes_per_host == 1
    assert (find_instance_type(job_plan.instance_type) or pytest.fail()).accelerators > 1


def test_a_model_that_does_not_fit_one_accelerator() -> None:
    job = {"workload": {"model_memory": "60GB"}}
    job_plan = plan(job, region(script=ONE_ACCELERATOR_SCRIPT))
    memory = (find_instance_type(job_plan.instance_type) or pytest.fail()).accelerator_memory_gib
    assert memory is not None
    assert memory * 2**30 * MODEL_MEMORY_SHARE >= 60e9
    assert rejection_rules(job_plan, "ml.g5.xlarge") == ["memory.model-too-large"]
    on_cpu = {**job, "compute": {"instance_type": "ml.m5.24xlarge"}}
    assert "60.0 GB of model fit within 80% of the 384 GiB of ml.m5.24xlarge" in str(plan(on_cpu))
    sharded_plan = plan({"workload": {"model_memory": "200GB"}}, region(script=FSDP))
    assert sharded_plan.cost.per_hour is not None
    assert job_plan.cost.per_hour is not None
    assert "200.0 GB of model are sharded" in str(sharded_plan).replace("\n    ", " ")


def test_the_nearest_of_too_small_machines_has_the_most_memory() -> None:
    (line,) = refusals({"workload": {"model_memory": "120GB"}}, region(script=ONE_ACCELERATOR_SCRIPT))
    most_gib = max(
        instance.accelerator_memory_gib or 0
        for instance in known_types().values()
        if instance.accelerators == 1 and not instance.is_neuron and instance.usd_per_hour is not None
    )
    assert f"120.0 GB do not fit in 80% of {most_gib:g} GiB; shard the model" in line
    assert line.endswith("(if the program shards it, or needs less: --allow memory.model-too-large)")


def test_a_model_that_the_job_allows_is_warned_of() -> None:
    job = {"workload": {"model_memory": "120GB"}, "compute": {"instance_type": "ml.p4de.24xlarge"}}
    facts = region(script=ONE_ACCELERATOR_SCRIPT)
    (line,) = refusals(job, facts)
    assert line.startswith("workload.model_memory: ml.p4de.24xlarge: 120.0 GB do not fit")
    job_plan = plan({**job, "allow": ["memory.model-too-large"]}, facts)
    assert job_plan.instance_type == "ml.p4de.24xlarge"
    assert any(
        warning.startswith("workload.model_memory: ml.p4de.24xlarge: 120.0 GB do not fit")
        and warning.endswith("(allowed: memory.model-too-large).")
        for warning in job_plan.warnings
    )


@pytest.mark.parametrize(
    "job", [{"hyperparameters": {"fsdp": "full_shard"}}, {"args": ["--deepspeed=zero3.json"]}]
)
def test_options_of_the_script_may_shard_the_model(job: dict[str, Any]) -> None:
    job_plan = plan({"workload": {"model_memory": "120GB"}, **job})
    assert "120.0 GB of model are sharded" in str(job_plan).replace("\n    ", " ")


XGBOOST = {
    "algorithm": "xgboost",
    "hyperparameters": {"num_round": 10, "objective": "reg:squarederror"},
    "inputs": {"train": {"uri": "s3://b/t/", "content_type": "text/csv", "split": "key"}},
}


def plan_xgboost(data_bytes: float, *, split: str | None = "key", **compute: Any) -> Plan:
    job = {**XGBOOST, "compute": compute, "inputs": {"train": {**XGBOOST["inputs"]["train"], "split": split}}}
    return plan_job(job, inputs={"train": InputFacts("s3://b/t/", "s3", objects=2000, bytes=int(data_bytes))})


def test_data_too_large_for_one_host_is_shared_by_several_of_an_algorithm_that_can() -> None:
    job_plan = plan_xgboost(520e9)
    memory_gib = (find_instance_type(job_plan.instance_type) or pytest.fail()).memory_gib
    assert job_plan.hosts > 1
    assert job_plan.hosts * memory_gib * 2**30 >= 5 * 520e9 > (job_plan.hosts - 1) * memory_gib * 2**30
    assert f"{2600 / job_plan.hosts:.1f} GB on each of {job_plan.hosts} hosts" in words_of(job_plan)
    of_named_type = plan_xgboost(520e9, instance_type="ml.m5.24xlarge")
    assert (of_named_type.hosts, of_named_type.instance_type) == (7, "ml.m5.24xlarge")
    assert plan_xgboost(1e9).hosts == 1


def test_only_what_is_split_is_shared_in_memory_and_on_disks() -> None:
    inputs = {**XGBOOST["inputs"], "validation": {"uri": "s3://b/v/", "content_type": "text/csv"}}
    facts = {
        "train": InputFacts("s3://b/t/", "s3", objects=2000, bytes=int(200e9)),
        "validation": InputFacts("s3://b/v/", "s3", objects=10, bytes=int(40e9)),
    }
    job = {**XGBOOST, "inputs": inputs, "compute": {"instance_type": "ml.m5.24xlarge"}}
    job_plan = plan_job(job, inputs=facts)
    # 5 x 240 GB need 3 hosts of 412 GB if all is shared; 5 x 40 GB of them are on every host.
    assert job_plan.hosts == 5
    (request,) = job_plan.requests
    assert request["ResourceConfig"]["VolumeSizeInGB"] == 30 + 40 + 40


@table(
    ("facts", "compute", "problem"),
    [
        ({"account_problem": "no AWS credentials were found"}, {}, "is not known, as no account was asked"),
        ({}, {}, "the size of inputs.train is not known; state compute.instance_type"),
        ({}, {"instance_type": "ml.m5.24xlarge"}, None),
        ({"target": "local"}, {}, None),
    ],
)
def test_machines_are_not_chosen_by_a_size_that_is_not_known(
    facts: dict[str, Any], compute: dict[str, Any], problem: str | None
) -> None:
    unlisted = region(inputs={"train": InputFacts("s3://b/t/", "s3")}, **facts)
    job = {**XGBOOST, "compute": compute}
    if problem is None:
        make_plan(Job.from_mapping(job), unlisted, "digits")
        return
    with pytest.raises(JobError) as error:
        make_plan(Job.from_mapping(job), unlisted, "digits")
    (line,) = (str(each) for each in error.value.problems)
    assert line.startswith("compute.instance_type: ") and problem in line


def test_a_bound_is_said_to_be_one() -> None:
    facts = InputFacts("s3://b/t/", "s3", objects=100_000, bytes=10**9, is_truncated=True)

    def warnings_of(**channel: Any) -> list[str]:
        job = {"inputs": {"train": {"uri": "s3://b/t/", **channel}}}
        job_plan = plan(job, with_inputs(region(), {"train": facts}))
        assert "100,000 objects or more, 1.0 GB or more" in str(job_plan).replace("\n", " ")
        return [warning for warning in job_plan.warnings if warning.startswith("inputs.train: at least")]

    (warning,) = warnings_of()
    assert "at least 100,000 objects and 1.0 GB, where counting stopped" in warning
    assert warnings_of(mode="FastFile") == []
    assert len(warnings_of(mode="FastFile", split="key")) == 1
    copies = plan(
        {"inputs": {"train": "s3://b/t/"}},
        with_inputs(region(), {"train": dataclasses.replace(facts, bytes=10**10)}),
    )
    assert "File channels copy at least 10 GB to every host" in words_of(copies)
    sized = plan_job(XGBOOST, inputs={"train": dataclasses.replace(facts, bytes=10**10)})
    assert "about five times its size, at least 50.0 GB" in words_of(sized)


def test_data_too_large_for_named_hosts_is_warned_of() -> None:
    job_plan = plan_xgboost(520e9, instance_type="ml.m5.24xlarge", hosts=2)
    assert job_plan.hosts == 2
    warning = "inputs: 2 x ml.m5.24xlarge: 384 GiB of memory are less than 1.3 TB, about five times the data"
    assert any(line.startswith(warning) for line in job_plan.warnings)


def test_data_too_large_that_is_not_split_is_refused_with_the_way_out() -> None:
    with pytest.raises(JobError) as caught:
        plan_xgboost(520e9, split=None)
    (problem,) = caught.value.problems
    most_memory = max(
        (instance.memory_gib, instance.name)
        for instance in known_types().values()
        if not instance.accelerators and instance.usd_per_hour is not None
    )
    assert problem.message.startswith(f"{most_memory[1]}, the nearest of ")
    assert "split the data among several hosts if the program can (split: key)" in problem.message


def words_of(job_plan: Plan) -> str:
    return " ".join([*(reason.explanation for reason in job_plan.reasons), *job_plan.warnings])


def test_what_the_account_may_not_have_is_not_chosen() -> None:
    job = {"workload": {"time_on_one": "40h", "wanted_time": "12h"}}
    quotas = {f"{name} for training job usage": 0.0 for name in known_types() if name.startswith("ml.p")}
    job_plan = plan(job, region(quotas=quotas))
    assert not job_plan.instance_type.startswith("ml.p")
    assert "quota.too-small" in rejection_rules(job_plan, "ml.p4d.24xlarge")
    assert not [reason for reason in job_plan.reasons if reason.rule == "quotas.read"], (
        "of others nobody asked"
    )
    read = plan(job, region(quotas={"ml.p4d.24xlarge for training job usage": 2.0}))
    assert "quotas.read" in [reason.rule for reason in read.reasons]
    for count in (0.0, 1.0):
        every = {f"{name} for training job usage": count for name in known_types()}
        large_job = {"workload": {"time_on_one": "3000h", "wanted_time": "24h"}}
        (line,) = refusals(large_job, region(quotas=every))
        assert line.startswith(("compute.instance_type: ", "compute.hosts: "))
        assert f"for training job usage' is {count:g}" in line


def test_quotas_of_all_types_are_looked_at_where_a_workload_chooses() -> None:
    open_job = Job(entry="train.py", workload={"time_on_one": "10h"})
    assert "ml.p4d.24xlarge for training job usage" in relevant_quotas(open_job)
    assert relevant_quotas(Job(entry="train.py")) == ()
    named_type = Job(
        entry="train.py", workload={"time_on_one": "10h"}, compute={"instance_type": "ml.g5.xlarge"}
    )
    assert relevant_quotas(named_type) == ("ml.g5.xlarge for training job usage",)


def test_heavy_preprocessing_wants_processors() -> None:
    work = {"time_on_one": "40h", "wanted_time": "16h"}
    light_plan, heavy_plan = plan({"workload": work}), plan({"workload": {**work, "preprocessing": "heavy"}})
    assert rejection_rules(heavy_plan, "ml.g5.12xlarge") == ["cpu.too-few-per-accelerator"]
    assert "cpu.too-few-per-accelerator" not in rejection_rules(light_plan, "ml.g5.12xlarge")
    chosen_type = find_instance_type(heavy_plan.instance_type) or pytest.fail()
    assert chosen_type.vcpu / chosen_type.accelerators >= 16


def test_hosts_that_share_nothing_are_no_more_than_their_files() -> None:
    job = {
        "workload": {"kind": "inference", "time_on_one": "20h", "wanted_time": "4h"},
        "inputs": {"t": {"uri": "s3://b/t/", "split": "key", "mode": "FastFile"}},
    }

    def plan_for(files: int) -> Plan:
        return plan(
            job,
            with_inputs(
                region(script=ONE_ACCELERATOR_SCRIPT),
                {"t": InputFacts("s3://b/t/", "s3", objects=files, bytes=10**9)},
            ),
        )

    assert (plan_for(100).strategy, plan_for(100).hosts) == ("share-nothing", 6)
    few_hosts = plan_for(5)
    assert few_hosts.hosts <= 5
    assert "data.more-hosts-than-files" in rejection_rules(few_hosts, "ml.g5.xlarge")


def test_a_host_without_accelerators_counts_as_measured_when_it_is_the_same() -> None:
    work = {"kind": "inference", "time_on_one": "6h", "wanted_time": "4h", "measured_on": "ml.m5.xlarge"}
    job = {"workload": work, "inputs": {"t": {"uri": "s3://b/t/", "split": "key"}}}
    facts = InputFacts("s3://b/t/", "s3", objects=100, bytes=10**6)
    job_plan = plan(job, with_inputs(region(script=PLAIN), {"t": facts}))
    assert (job_plan.strategy, job_plan.instance_type, job_plan.hosts) == ("share-nothing", "ml.m5.xlarge", 2)
    assert "compute.share-nothing" in [reason.rule for reason in job_plan.reasons]
    local_plan = plan(job, with_inputs(local(script=PLAIN), {"t": facts}))
    assert "They are of a region's machines, and not of this one." in str(local_plan).replace("\n    ", " ")


def test_hosts_that_the_job_names_are_not_said_to_follow_from_the_tables() -> None:
    reasons = {
        reason.rule: reason.explanation
        for reason in plan({"strategy": "spark", "compute": {"hosts": 3}}).reasons
    }
    assert reasons["compute.tables"].startswith("The job names 3 hosts; for tables they are ml.m5.4xlarge, a")
    reasons = {reason.rule: reason.explanation for reason in plan({"strategy": "spark"}).reasons}
    assert "a host for every 100 GB of tables" in reasons["compute.tables"]


def test_tables_that_a_program_reads_whole_have_to_fit() -> None:
    pandas = ScriptFacts(imports=frozenset({"pandas"}))
    job = {"workload": {"kind": "preparation"}, "inputs": {"t": "s3://b/t/"}}
    facts = InputFacts("s3://b/t/", "s3", objects=10, bytes=20 * 10**9)
    job_plan = plan(job, with_inputs(region(script=pandas), {"t": facts}))
    assert job_plan.strategy == "processing"
    assert job_plan.planned_jobs[0].operation == "CreateProcessingJob"
    assert (find_instance_type(job_plan.instance_type) or pytest.fail()).memory_gib * 2**30 >= 5 * 20e9
    assert "memory.data-too-large" in rejection_rules(job_plan, "ml.m5.xlarge")


# ---- what the job fixes ----------------------------------------------------------------------------------


def test_a_named_type_gets_the_hosts_it_needs() -> None:
    work = {"time_on_one": "400h", "wanted_time": "24h"}
    job_plan = plan({"workload": work, "compute": {"instance_type": "ml.g5.48xlarge"}})
    assert {candidate.instance_type for candidate in job_plan.candidates} == {"ml.g5.48xlarge"}
    assert job_plan.hosts > 1
    assert chosen_candidate(job_plan).seconds is not None


def test_named_hosts_get_a_type() -> None:
    job_plan = plan({"workload": {"time_on_one": "40h", "wanted_time": "12h"}, "compute": {"hosts": 2}})
    assert job_plan.hosts == 2
    assert {candidate.hosts for candidate in job_plan.candidates} == {2}


def test_one_host_that_is_asked_for_is_one() -> None:
    work = {"time_on_one": "3000h", "wanted_time": "24h"}
    (line,) = refusals({"workload": work, "compute": {"hosts": 1}})
    assert line.startswith("workload.wanted_time: ml.")
    assert "the nearest of" in line
    job_of_one_host = Job.from_mapping({"entry": "a.py", "workload": work, "compute": {"hosts": 1}})
    assert Job.from_mapping(job_of_one_host.to_mapping()).compute.stated_fields == {"hosts"}


def test_what_is_fixed_altogether_is_checked() -> None:
    fixed = {"compute": {"hosts": 1, "instance_type": "ml.g5.12xlarge"}}
    job_plan = plan({**fixed, "workload": {"time_on_one": "40h", "wanted_time": "14h"}})
    assert job_plan.warnings == ()
    job_plan = plan({**fixed, "workload": {"time_on_one": "40h", "wanted_time": "12h"}})
    assert any("it may be more than the 12h that are wanted" in warning for warning in job_plan.warnings)
    (line,) = refusals({**fixed, "workload": {"time_on_one": "40h", "wanted_time": "6h"}})
    assert line.startswith("workload.wanted_time: ml.g5.12xlarge: takes 11 to 13 h, and 6h are wanted")
    (line,) = refusals({**fixed, "workload": {"model_memory": "60GB"}})
    assert line.startswith("workload.model_memory: ml.g5.12xlarge: 60.0 GB do not fit in 80% of 22.4 GiB")
    assert "FSDP" in line


MEASURED_30H = {"time_on_one": "30h", "measured_on": "ml.g5.xlarge"}
MEASURED_TYPE = {"instance_type": "ml.g5.xlarge"}


def test_a_limit_that_the_job_leaves_open_follows_from_the_slow_end() -> None:
    job_plan = plan({"workload": {"time_on_one": "30h"}}, region(script=ONE_ACCELERATOR_SCRIPT))
    slow_end = chosen_candidate(job_plan).seconds
    assert slow_end is not None
    limit = job_plan.requests[0]["StoppingCondition"]["MaxRuntimeInSeconds"]
    assert limit % 3600 == 0
    assert 0 <= limit - 1.1 * slow_end[1] < 3600
    assert f"the plan sets {limit // 3600}h, a tenth more than the slow end" in words_of(job_plan)
    assert job_plan.job.limits.max_runtime is None
    assert "limits" not in job_plan.job.to_mapping()


def test_an_estimate_beyond_the_limit_that_the_job_states_is_refused() -> None:
    facts = region(script=ONE_ACCELERATOR_SCRIPT)
    job: dict[str, Any] = {"workload": MEASURED_30H, "limits": {"max_runtime": "24h"}}
    (line,) = refusals({**job, "compute": MEASURED_TYPE}, facts)
    assert line.startswith(
        "limits.max_runtime: ml.g5.xlarge: takes about 30 h, and the job's time limit ends it after 24h; "
    )
    # A faster type is within it.
    faster = chosen_candidate(plan(job, facts))
    assert faster.seconds is not None and faster.seconds[1] <= 24 * 3600
    # If only the slow end is beyond it, a type that the job names is warned of.
    named = {"compute": {"hosts": 1, "instance_type": "ml.g5.12xlarge"}, "workload": {"time_on_one": "40h"}}
    warned = plan({**named, "limits": {"max_runtime": "12h"}})
    assert any("limits.max_runtime ends it after 12h" in warning for warning in warned.warnings)
    # An estimate of a region's machines says nothing of this one.
    plan({**job, "compute": MEASURED_TYPE}, local(script=ONE_ACCELERATOR_SCRIPT))


def test_more_hosts_are_taken_for_a_limit_as_for_a_wanted_time() -> None:
    work = {"kind": "inference", "time_on_one": "30h", "measured_on": "ml.g5.xlarge"}
    data = {"t": InputFacts("s3://b/t/", "s3", objects=1000, bytes=10**6)}
    job = {"workload": work, "inputs": {"t": {"uri": "s3://b/t/", "split": "key"}}, "compute": MEASURED_TYPE}
    facts = with_inputs(region(script=ONE_ACCELERATOR_SCRIPT), data)
    assert plan({**job, "limits": {"max_runtime": "5h"}}, facts).hosts == 7


def test_work_that_no_job_can_finish_is_refused() -> None:
    job = {**XGBOOST, "workload": {"time_on_one": "700h"}, "compute": {"instance_type": "ml.m5.xlarge"}}
    job["inputs"] = {"train": {"uri": "s3://b/t/", "content_type": "text/csv"}}
    with pytest.raises(JobError) as caught:
        plan_job(job)
    (problem,) = caught.value.problems
    assert problem.path == "workload.time_on_one"
    assert "a training job may run for 28d, and another job cannot continue this program" in problem.message


def test_a_type_that_the_catalog_does_not_know_is_taken_as_it_is() -> None:
    job_plan = plan({"workload": {"time_on_one": "30h"}, "compute": {"instance_type": "ml.g99.xlarge"}})
    assert job_plan.instance_type == "ml.g99.xlarge"
    assert job_plan.candidates == ()


def test_nothing_will_do_and_why() -> None:
    (line,) = refusals({"workload": {"time_on_one": "10h"}, "limits": {"max_cost": 1}})
    assert line.startswith("limits.max_cost: ml.g4dn.xlarge, the nearest of ")
    assert ", more than $1.00; raise it to $" in line
    work = {"time_on_one": "40h", "wanted_time": "12h"}
    (line,) = refusals({"workload": work, "limits": {"max_cost": 50}})
    assert line.startswith("limits.max_cost: ")
    assert ", more than $50.00; raise it" in line
    (line,) = refusals({"workload": work, "limits": {"max_runtime": "10m"}})
    assert line.startswith("limits.max_runtime: ")
    (line,) = refusals({"workload": {"model_memory": "4000GB"}}, region(script=ONE_ACCELERATOR_SCRIPT))
    assert line.startswith("workload.model_memory: ")


def test_on_this_machine_money_is_no_object() -> None:
    job = {"workload": {"time_on_one": "10h"}, "limits": {"max_cost": 1}}
    job_plan = plan(job, local(script=ONE_ACCELERATOR_SCRIPT))
    assert chosen_candidate(job_plan).instance_type == job_plan.instance_type == "ml.g5.xlarge"


# ---- properties ------------------------------------------------------------------------------------------

_TIMES = st.sampled_from(["1h", "5h", "24h", "40h", "300h", "3000h"])
_WORK = st.fixed_dictionaries(
    {},
    optional={
        "time_on_one": _TIMES,
        "wanted_time": st.sampled_from(["30m", "2h", "12h", "24h", "240h"]),
        "measured_on": st.sampled_from(["ml.g5.xlarge", "ml.p4d.24xlarge", "ml.g4dn.xlarge"]),
        "model_memory": st.sampled_from(["1GB", "20GB", "60GB", "400GB", "2000GB"]),
        "preprocessing": st.sampled_from(["light", "heavy"]),
        "batch_size": st.integers(1, 512),
        "optimizer": st.sampled_from(["sgd", "adam"]),
    },
)
_COMPUTE = st.fixed_dictionaries(
    {},
    optional={
        "hosts": st.integers(1, 8),
        "instance_type": st.sampled_from(
            ["ml.g5.12xlarge", "ml.p5.48xlarge", "ml.g4dn.xlarge", "ml.m5.xlarge"]
        ),
    },
)
_LIMITS = st.fixed_dictionaries(
    {"max_runtime": st.sampled_from(["2h", "24h", "5d"])}, optional={"max_cost": st.integers(1, 5000)}
)
_SCRIPTS = st.sampled_from([TORCH, ONE_ACCELERATOR_SCRIPT, FSDP, PLAIN])


@settings(max_examples=120, deadline=None)
@given(_WORK, _COMPUTE, _LIMITS, _SCRIPTS)
def test_what_is_chosen_will_do(
    work: dict[str, Any], compute: dict[str, Any], limits: dict[str, Any], script: ScriptFacts
) -> None:
    job = {"workload": work, "compute": compute, "limits": limits}
    try:
        job_plan = plan(job, region(script=script))
    except JobError:
        return
    if not job_plan.candidates:
        return
    choice = chosen_candidate(job_plan)
    assert choice.is_feasible
    assert job_plan.candidates[0] is choice
    assert (choice.instance_type, choice.hosts) == (job_plan.instance_type, job_plan.hosts)
    for field, value in (("hosts", job_plan.hosts), ("instance_type", job_plan.instance_type)):
        assert compute.get(field, value) == value
    if "max_cost" in limits:
        assert job_plan.cost.maximum is not None
        assert job_plan.cost.maximum <= limits["max_cost"]
        assert choice.dollars is None or "instance_type" in compute or choice.dollars[1] <= limits["max_cost"]
    if "wanted_time" in work and choice.seconds is not None:
        end = choice.seconds[0] if "instance_type" in compute else choice.seconds[1]
        assert end <= parse_duration(work["wanted_time"])
    names = {rule.id for rule in rules_of("choose machines")} | {"scale.up-before-out"}
    assert {candidate.rule for candidate in job_plan.candidates if not candidate.is_feasible} <= names
    for candidate in job_plan.candidates:
        assert candidate.hosts <= max(MAX_HOSTS, compute.get("hosts", 1))
        for span in (candidate.seconds, candidate.dollars, candidate.per_hour):
            assert span is None or 0 <= span[0] <= span[1]


_TYPES = st.sampled_from([row for row in known_types().values() if row.accelerators and not row.is_neuron])


@settings(max_examples=150, deadline=None)
@given(_TYPES, _TYPES, st.integers(1, 32), st.booleans())
def test_estimates_are_ranges_and_more_hosts_are_no_slower(
    instance: Any, on: Any, hosts: int, communication: bool
) -> None:
    measurement = Measurement(36_000.0, on, True, is_instance_stated=True)
    estimate = estimate_duration(
        HostGroup(instance, hosts, instance.accelerators, communication), measurement, DataShare(0, 0)
    )
    if estimate is None:
        assert accelerators.relative_speed(instance, on) is None
        return
    assert 0 < estimate.low <= estimate.high
    estimate_of_double = estimate_duration(
        HostGroup(instance, hosts * 2, instance.accelerators, communication), measurement, DataShare(0, 0)
    )
    assert estimate_of_double is not None
    # Between one host and two lies the network, which may cost all of the second.
    assert estimate_of_double.high <= estimate.high * 1.0001
    assert estimate_of_double.low <= estimate.low


def test_the_speed_of_what_was_measured_is_one() -> None:
    for instance in known_types().values():
        if instance.accelerators == 1:
            measurement = Measurement(3600.0, instance, True, is_instance_stated=True)
            assert speedup(HostGroup(instance, 1, 1), measurement) == (1.0, 1.0)


def test_prices_are_ranges_by_their_confidence() -> None:
    prices = RegionPrices("us-east-1", region_catalog=None, trains_model=True)
    sure, unsure = prices.find("ml.g5.12xlarge"), prices.find("ml.trn1.32xlarge")
    assert sure is not None
    assert unsure is not None
    narrow_price, wide_price = estimate_hourly_price(sure, 2), estimate_hourly_price(unsure, 1)
    assert narrow_price.high / narrow_price.low < wide_price.high / wide_price.low
    assert narrow_price.low < 14.18 < narrow_price.high
    assert estimate_price(narrow_price, EstimateRange(3600, 7200)).high == pytest.approx(
        narrow_price.high * 2
    )
    assert prices.find("ml.p5e.48xlarge") is None


def test_the_price_of_one_region_stands_for_no_other() -> None:
    job = {"workload": {"time_on_one": "10h"}}
    ireland = region(region="eu-west-1", script=ONE_ACCELERATOR_SCRIPT)
    there, here = plan(job, ireland), plan(job, region(script=ONE_ACCELERATOR_SCRIPT))
    # The prices of us-east-1 only say which machine costs more than which.
    assert there.instance_type == here.instance_type
    assert {(row.dollars, row.per_hour) for row in there.candidates} == {(None, None)}
    assert "$" not in str(there)
    reasons = {reason.rule: reason.explanation for reason in there.reasons}
    assert reasons["compute.one-accelerator"].count("by the prices of us-east-1, as those of eu-west-1") == 1
    assert "by the prices of us-east-1, as those of eu-west-1" in reasons["capacity.preferences"]
    assert " a price " not in reasons["estimate.assumed"]
    (line,) = refusals({**job, "limits": {"max_cost": 100}}, ireland)
    assert line == (
        f"limits.max_cost: the price of {there.instance_type} in eu-west-1 is not known, only that in "
        "us-east-1, so that the cap cannot be enforced; name compute.instance_type, and its price with "
        "compute.price_per_hour or --price; `smlaunch catalog update` reads the region's prices"
    )
    stated = {"instance_type": there.instance_type, "price_per_hour": 2}
    listed = RegionCatalog("eu-west-1", "AWS's price list of 2026-11-18", {"ml.g6.xlarge": 1.0})
    with_list = plan(job, dataclasses.replace(ireland, region_catalog=listed))
    assert with_list.instance_type == "ml.g6.xlarge", "the only one that has a price there"
    assert rejection_rules(with_list, "ml.g5.xlarge") == ["price.unknown"]
    assert "by the prices of us-east-1" not in str(with_list)
    named = plan({**job, "compute": stated, "limits": {"max_cost": 100}}, ireland)
    assert named.candidates[0].per_hour == (2, 2)
