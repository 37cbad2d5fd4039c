"""Decisions by table: a job and its facts, the decision, its reason, and refusals."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.api.validation.request_check import check_request
from smlaunch.contract.launch_spec import Ref
from smlaunch.contract.launch_spec_parser import parse_launch_spec
from smlaunch.contract.run_names import MAX_RUN_ID_LENGTH, parse_job_name
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import (
    NO_SOURCE,
    DiscoveredFacts,
    EndpointFacts,
    InputFacts,
    ScriptFacts,
    SourceFacts,
)
from smlaunch.job.model import Job
from smlaunch.render.plan import Plan
from tests.planner.fixtures import (
    PLAIN,
    READS_CONFIG,
    TORCH,
    UNTRAINED_HOURS,
    local,
    make_plan,
    plan,
    region,
    with_inputs,
)
from tests.tables import table

S3_DATA = InputFacts("s3://b/data/", "s3", objects=1797, bytes=1_234_567)


def refusals(job: dict[str, Any], facts: DiscoveredFacts | None = None) -> list[str]:
    with pytest.raises(JobError) as caught:
        plan(job, facts)
    return [str(problem) for problem in caught.value.problems]


# ---- choosing --------------------------------------------------------------------------------------------

SHELL = dataclasses.replace(region().source, entry="train.sh")
LIGHTNING = ScriptFacts(imports=frozenset({"lightning.pytorch"}))
BOTH_SIGNS = ScriptFacts(imports=TORCH.imports, reads_resource_config=True)

CHOICES: list[tuple[dict[str, Any], dict[str, Any], str, int, str]] = [
    ({}, {"script": TORCH}, "ddp", 1, "strategy.torch-distributed"),
    ({}, {"script": LIGHTNING}, "ddp", 1, "strategy.lightning"),
    (
        {},
        {"script": ScriptFacts(imports=frozenset({"lightningbolt"}))},
        "custom",
        1,
        "strategy.single-process",
    ),
    ({}, {"script": PLAIN}, "custom", 1, "strategy.single-process"),
    ({}, {"script": READS_CONFIG}, "custom", 1, "strategy.reads-resourceconfig"),
    ({"compute": {"hosts": 3}}, {"script": BOTH_SIGNS}, "custom", 1, "strategy.reads-resourceconfig"),
    ({"compute": {"processes_per_host": 2}}, {"script": BOTH_SIGNS}, "ddp", 2, "strategy.torch-distributed"),
    ({"compute": {"hosts": 2}}, {"script": PLAIN}, "ddp", 1, "strategy.several-processes"),
    ({"compute": {"processes_per_host": 4}}, {"script": PLAIN}, "ddp", 4, "strategy.several-processes"),
    ({"entry": "src/train.sh"}, {"script": TORCH, "source": SHELL}, "custom", 1, "strategy.shell-script"),
    ({"strategy": "custom"}, {"script": TORCH}, "custom", 1, "strategy.given"),
    ({"compute": {"instance_type": "ml.g5.12xlarge"}}, {}, "ddp", 4, "processes.accelerators"),
    ({"compute": {"instance_type": "ml.c5.xlarge"}}, {}, "ddp", 1, "processes.no-accelerator"),
]


@table(("job", "facts", "strategy", "processes", "rule"), CHOICES)
def test_what_is_chosen(
    job: dict[str, Any], facts: dict[str, Any], strategy: str, processes: int, rule: str
) -> None:
    job_plan = plan(job, region(**facts))
    assert (job_plan.strategy, job_plan.processes_per_host) == (strategy, processes)
    assert rule in [reason.rule for reason in job_plan.reasons]


def test_a_type_of_an_unknown_family_is_warned_of_and_counts_its_own_accelerators() -> None:
    job_plan = plan({"compute": {"instance_type": "ml.g9.12xlarge"}})
    assert job_plan.processes_per_host == "auto"
    assert (
        "ml.g9.12xlarge is not in the catalog of 2026-11 (did you mean ml.g7.12xlarge?). Nothing is known"
        in job_plan.warnings[0]
    )
    assert "-cu133-" in job_plan.image
    assert not job_plan.cost.is_known
    assert " unknown: the price of ml.g9.12xlarge in us-east-1 is not known" in str(job_plan)


@table(
    ("name", "near"),
    [
        ("ml.g5.13xlarge", "ml.g5.12xlarge, ml.g5.16xlarge"),
        ("ml.p4d.48xlarge", "ml.p4d.24xlarge"),
        ("ml.c5.nano", "ml.c5.xlarge"),
        ("ml.m5.metal-48xl", "ml.m5.24xlarge"),
    ],
)
def test_a_size_that_a_known_family_lacks_is_refused(name: str, near: str) -> None:
    (line,) = refusals({"compute": {"instance_type": name}})
    assert line.startswith(f"compute.instance_type: there is no {name} in the table of ")
    assert f"nearest sizes are {near}" in line
    assert plan({"compute": {"instance_type": name}, "allow": ["instance.size"]}).instance_type == name
    assert plan({"compute": {"instance_type": name}}, local()).instance_type == name


@table(
    ("stated", "instance_type"),
    [
        ("A100:8", "ml.p4d.24xlarge"),
        ("a100-80gb:8", "ml.p4de.24xlarge"),
        ("H200:8", "ml.p5e.48xlarge"),
        ("A10G:4", "ml.g5.12xlarge"),
        ("T4:1", "ml.g4dn.xlarge"),
    ],
)
def test_accelerators_in_place_of_a_type_are_the_cheapest_that_has_them(
    stated: str, instance_type: str
) -> None:
    job_plan = plan({"compute": {"instance_type": stated}})
    assert job_plan.requests[0]["ResourceConfig"]["InstanceType"] == instance_type
    named = plan({"compute": {"instance_type": instance_type}})
    assert (job_plan.job_hash, job_plan.cost) == (named.job_hash, named.cost)


@table(
    ("stated", "message"),
    [
        ("A100:3", "no instance type has 3 x A100: they have 8; more of them are several hosts"),
        ("L40S:2", "no instance type has 2 x L40S: they have 1, 4, 8; more of them"),
        ("A110:8", "no instance type has 'A110', did you mean 'A10G'?; or name the type"),
        ("Trainium:16", "no instance type has 'Trainium'"),
        ("A100:0", "'A100:0' is not an instance type"),
    ],
)
def test_accelerators_that_no_type_has_are_refused(stated: str, message: str) -> None:
    (line,) = refusals({"compute": {"instance_type": stated}})
    assert line.startswith("compute.instance_type: ") and message in line, line


@pytest.mark.parametrize(
    ("processes", "instance_type", "message"),
    [
        (1, "ml.g5.12xlarge", "1 rank per host may leave some of the 4 x NVIDIA A10G"),
        (8, "ml.m5.xlarge", "8 ranks per host share the 4 vCPU"),
    ],
)
def test_an_uneven_number_of_processes_is_warned_of(processes: int, instance_type: str, message: str) -> None:
    job_plan = plan({"compute": {"processes_per_host": processes, "instance_type": instance_type}})
    assert job_plan.warnings[0].startswith(message)


@table(
    ("job", "message"),
    [
        ({}, "compute.instance_type: AWS's image of PyTorch 2.13.0: CUDA 13.3 has no code for NVIDIA V100"),
        (
            {"framework_version": "2.10"},
            "framework_version: AWS's image of PyTorch 2.10.0: CUDA 13.0 has no code for NVIDIA V100",
        ),
        ({"framework_version": "2.6"}, None),
        ({"framework_version": "2.5"}, None),  # its tag names no CUDA
        (
            {"compute": {"instance_preferences": ["ml.p3.2xlarge", "ml.g5.xlarge"]}},
            "compute.instance_preferences: AWS's image of PyTorch 2.13.0: CUDA 13.3 has no code for",
        ),
        # The same cause is named once; who allows the type gets the problem of the image.
        ({"compute": {"instance_type": "ml.p2.xlarge"}}, "compute.instance_type: ml.p2 is retired: no image"),
        (
            {"compute": {"instance_type": "ml.p2.xlarge"}, "allow": ["instance.job"]},
            "compute.instance_type: AWS's image of PyTorch 2.13.0: CUDA 13.3 has no code for NVIDIA K80",
        ),
    ],
)
def test_the_cuda_of_the_chosen_image(job: dict[str, Any], message: str | None) -> None:
    job = {"compute": {"instance_type": "ml.p3.2xlarge"}, **job}
    if message is None:
        assert "pytorch-training:2." in plan(job).image
    else:
        (refusal,) = refusals(job)
        assert refusal.startswith(message)


def test_ranks_that_share_accelerators_are_allowed_by_name() -> None:
    job = {
        "compute": {"processes_per_host": 8, "instance_type": "ml.g5.12xlarge"},
        "allow": ["processes.accelerators"],
    }
    warnings = plan(job).warnings
    assert "8 ranks per host share the 4 x NVIDIA A10G of ml.g5.12xlarge." in warnings
    assert any("(allowed: processes.accelerators)" in warning for warning in warnings)


def test_processes_on_this_machine() -> None:
    gpu_type = {"compute": {"instance_type": "ml.g5.12xlarge"}}
    job_plan = plan(gpu_type, local())
    assert job_plan.processes_per_host == 1
    assert any(
        "A real ml.g5.12xlarge would run 4 ranks per host; here it is 1" in w for w in job_plan.warnings
    )
    job_plan = plan(gpu_type, local(endpoint=EndpointFacts(accelerators_per_host=2)))
    assert job_plan.processes_per_host == 2
    assert plan({"compute": {"processes_per_host": "auto"}}, local()).processes_per_host == 1


@pytest.mark.parametrize(
    ("job", "region_facts", "uri"),
    [
        ({}, {}, "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch:2.13.0-cpu-amzn2023-sagemaker"),
        (
            {"compute": {"instance_type": "ml.g5.xlarge"}, "framework_version": "2.10"},
            {"region": "eu-south-1"},
            "692866216735.dkr.ecr.eu-south-1.amazonaws.com/pytorch-training:"
            "2.10.0-gpu-py313-cu130-ubuntu22.04-sagemaker",
        ),
        (
            {"framework_version": "2.12.1"},
            {"region": "cn-north-1", "partition": "aws-cn"},
            "727897471807.dkr.ecr.cn-north-1.amazonaws.com.cn/pytorch:2.12.1-cpu-amzn2023-sagemaker",
        ),
        (
            {"image": "123456789012.dkr.ecr.xx-nowhere-1.amazonaws.com/mine:1"},
            {"region": "xx-nowhere-1"},
            "123456789012.dkr.ecr.xx-nowhere-1.amazonaws.com/mine:1",
        ),
    ],
)
def test_the_image(job: dict[str, Any], region_facts: dict[str, Any], uri: str) -> None:
    assert plan(job, region(**region_facts)).image == uri


def test_an_endpoint_in_no_known_region_records_some_image_and_says_that_it_is_not_run() -> None:
    job_plan = plan({}, local(region="local-1"))
    assert job_plan.image.startswith("763104351884.dkr.ecr.us-east-1.")
    assert "image.not-run" in [reason.rule for reason in job_plan.reasons]
    assert any(
        w.startswith("image: The image is recorded")
        for w in plan({"image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"}, local()).warnings
    )


# ---- refusing --------------------------------------------------------------------------------------------

REFUSED_JOBS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"strategy": "custom", "compute": {"processes_per_host": 2}},
        {},
        "compute.processes_per_host: custom st",
    ),
    (
        {"strategy": "ddp", "entry": "a.sh"},
        {"source": SHELL},
        "strategy: ddp starts Python scripts; train.sh",
    ),
    ({}, {"role": None, "role_problem": "none found; try --role"}, "role: none found; try --role"),
    ({}, {"role": None}, "role: no execution role was found"),
    ({}, {"role": "SageMaker"}, "role: 'SageMaker' is not a role's ARN"),
    ({}, {"script": ScriptFacts(exists=False)}, "entry: src/train.py does not exist"),
    ({}, {"script": ScriptFacts(problem="line 3: invalid syntax")}, "entry: line 3: invalid syntax"),
    ({}, {"source": dataclasses.replace(SHELL, problem="too large")}, "source: too large"),
    ({"requirements": "req.txt"}, {}, "requirements: 'req.txt' is not in src"),
    ({"limits": {"max_runtime": "60d"}}, {}, "limits.max_runtime: 60d is longer than the 28d"),
    ({"limits": {"max_wait": "2h"}}, {}, "limits.max_wait: it bounds the wait for spot capacity"),
    ({"compute": {"spot": True}}, {}, "checkpoints: a spot job of 24h that is interrupted starts from zero"),
    (
        {"compute": {"spot": True}, "checkpoints": "s3://b/c", "limits": {"max_wait": "2h"}},
        {},
        "limits.max_wait: 2h is shorter than the training time of 24h",
    ),
    ({"subnets": ["subnet-1"]}, {}, "security_groups: it goes together with subnets"),
    ({"security_groups": ["sg-1"]}, {}, "subnets: it goes together with security_groups"),
    ({"tags": {"smlaunch:run": "x"}}, {}, "tags.smlaunch:run: smlaunch: is a reserved prefix"),
    ({"tags": {"aws:x": "x"}}, {}, "tags.aws:x: aws: is a reserved prefix"),
    ({"inputs": {"code": "s3://b/x"}}, {}, "inputs.code: smlaunch's own channel 'code' contains the source"),
    ({"inputs": {"smlaunch": "s3://b/x"}}, {}, "inputs.smlaunch: smlaunch's own channel"),
    ({"inputs": {"t": "s3://b/" + "x" * 1100}}, {}, "inputs.t.uri: is 1107 characters long"),
    ({"hyperparameters": {"x": "y" * 2501}}, {}, "hyperparameters.x: is 2501 characters long"),
    ({"hyperparameters": {f"k{i}": i for i in range(101)}}, {}, "hyperparameters: has 101 entries"),
    ({"environment": {"A": "x" * 513}}, {}, "environment.A: is 513 characters long"),
    ({"tags": {"team": "x" * 257}}, {}, "tags.team: is 257 characters long"),
    (
        {"image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/" + "x" * 211},
        {},
        "image: is 256 characters long",
    ),
    (
        {"image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/x", "framework_version": "2.13"},
        {},
        "framework_version: it chooses AWS's image",
    ),
    ({"framework_version": "3.1"}, {}, "framework_version: no PyTorch 3.1 image is known"),
    (
        {"framework_version": "2.13.7"},
        {},
        "framework_version: the PyTorch 2.13 image holds 2.13.0, not 2.13.7",
    ),
    ({}, {"region": "xx-nowhere-1"}, "image: there is no AWS region 'xx-nowhere-1' in the table of "),
    (
        {"strategy": "custom", "compute": {"instance_type": "ml.trn1.32xlarge"}},
        {},
        "image: ml.trn1.32xlarge needs a Neuron image",
    ),
    (
        {"strategy": "custom", "compute": {"instance_type": "ml.trn9.large"}},
        {},
        "image: ml.trn9.large needs a Neuron image",
    ),
    ({}, {"partition": "aws-moon"}, "image: no registry of AWS's images is known in partition aws-moon"),
    (
        {"network_isolation": True, "requirements": "r.txt"},
        {"source": dataclasses.replace(region().source, has_requirements=True)},
        "requirements: under network_isolation pip reaches no index",
    ),
]


@table(("job", "facts", "message"), REFUSED_JOBS)
def test_what_is_refused(job: dict[str, Any], facts: dict[str, Any], message: str) -> None:
    lines = refusals(job, region(**facts))
    assert any(line.startswith(message) for line in lines), lines
    assert len(lines) == 1


def test_all_refusals_come_at_once() -> None:
    lines = refusals(
        {"limits": {"max_runtime": "60d"}, "environment": {"A": "x" * 513}, "inputs": {"t": "s3://b/t/"}},
        with_inputs(region(role=None), {"t": InputFacts("s3://b/t/", "s3", exists=False)}),
    )
    assert [line.split(":")[0] for line in lines] == [
        "role",
        "limits.max_runtime",
        "inputs.t",
        "environment.A",
    ]


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (InputFacts("s3://b/t/", "s3", exists=False), "inputs.t: s3://b/t/ does not exist in S3"),
        (InputFacts("s3://b/t/", "s3", objects=0), "inputs.t: s3://b/t/ has no objects under it"),
        (InputFacts("s3://b/t/", "s3", problem="access denied"), "inputs.t: access denied"),
    ],
)
def test_bad_inputs(facts: InputFacts, message: str) -> None:
    (line,) = refusals({"inputs": {"t": "s3://b/t/"}}, with_inputs(region(), {"t": facts}))
    assert line.startswith(message)


@pytest.mark.parametrize("name", ["", "A", "a b", "a--b", "-a", "a-", "x" * (MAX_RUN_ID_LENGTH + 1), "a\n"])
def test_run_ids_that_are_none(name: str) -> None:
    with pytest.raises(JobError, match="cannot name a run"):
        make_plan(Job(entry="train.py"), region(), name)


@settings(deadline=None, max_examples=50)
@given(
    st.from_regex(r"[a-z0-9](-?[a-z0-9]){0,39}", fullmatch=True).filter(
        lambda run: len(run) <= MAX_RUN_ID_LENGTH
    )
)
def test_job_names_are_whole_and_come_back(run: str) -> None:
    (task,) = make_plan(Job(entry="train.py"), region(), run).planned_jobs
    assert task.request["TrainingJobName"] == task.name
    assert len(task.name) <= 63
    assert parse_job_name(task.name) == (run, 1, 1)
    assert check_request(task.operation, task.request) == []


# ---- money and time --------------------------------------------------------------------------------------


def test_cost_in_a_region() -> None:
    job_plan = plan(
        {"compute": {"hosts": 2, "instance_type": "ml.g5.12xlarge"}, "limits": {"max_runtime": "10h"}}
    )
    assert job_plan.cost.is_known
    assert job_plan.cost.per_hour == pytest.approx(14.18)
    assert job_plan.cost.maximum == pytest.approx(14.18 * (10 + UNTRAINED_HOURS))
    assert "an estimate" in job_plan.cost.note


def test_a_cap_that_cannot_be_kept_says_what_would() -> None:
    job = {"compute": {"hosts": 2, "instance_type": "ml.g5.12xlarge"}, "limits": {"max_cost": 100}}
    (line,) = refusals(job)
    assert line == (
        "limits.max_cost: 2 x ml.g5.12xlarge for up to 24h, and 15m of starts, transfers and stops, may cost "
        "$343.87, more than $100.00; limits.max_runtime: 6h would stay below it"
    )
    job["limits"] = {"max_cost": 100, "max_runtime": "6h"}
    assert "cost.capped" in [reason.rule for reason in plan(job).reasons]


def test_what_attempts_may_take_is_what_the_plan_says() -> None:
    limits = {"max_runtime": "1h", "attempts": 3, "max_cost": 13}
    job = {"compute": {"instance_type": "ml.g5.xlarge", "price_per_hour": 10}, "limits": limits}
    job_plan = plan(job)
    policy = job_plan.workflow.policy
    assert (policy.attempts, policy.total_seconds, policy.max_cost) == (3, 3600, 13)
    assert job_plan.cost.maximum == 13
    text = str(job_plan)
    assert "stopped after 1h of training, all its attempts together" in text
    assert "3 attempts could cost $17.50; none begins for which the cap of $13.00 leaves no" in text
    dearer = plan({**job, "limits": {**limits, "max_cost": 18}})
    assert dearer.cost.maximum == pytest.approx(10 * (1 + 3 * UNTRAINED_HOURS))
    one_job = plan({**job, "limits": {**limits, "attempts": 1}})
    assert (one_job.workflow.policy.total_seconds, one_job.workflow.policy.max_cost) == (None, None)
    assert "all its attempts" not in str(one_job)


def test_a_cap_needs_a_price() -> None:
    job: dict[str, Any] = {"compute": {"instance_type": "ml.m4.xlarge"}, "limits": {"max_cost": 100}}
    (line,) = refusals(job)
    assert line.startswith("limits.max_cost: the price of ml.m4.xlarge in us-east-1 is not known, so")
    job["compute"]["price_per_hour"] = 0.3
    assert plan(job).cost.per_hour == pytest.approx(0.3)
    assert plan(job, local()).cost.per_hour == pytest.approx(0.3), "a cap can be rehearsed"
    del job["compute"]["price_per_hour"]
    assert plan(job, local()).cost.per_hour == 0


def test_spot() -> None:
    job_plan = plan({"compute": {"spot": True}, "checkpoints": "s3://b/c/", "limits": {"max_runtime": "3h"}})
    (request,) = job_plan.requests
    assert request["EnableManagedSpotTraining"] is True
    assert request["StoppingCondition"] == {"MaxRuntimeInSeconds": 10800, "MaxWaitTimeInSeconds": 21600}
    assert "spot.wait" in [reason.rule for reason in job_plan.reasons]


# ---- data ------------------------------------------------------------------------------------------------


def test_local_data_is_sent_by_its_hash() -> None:
    digest = "cd" * 32
    facts = {
        "many": InputFacts("data", "local", objects=3, bytes=900, sha256=digest),
        "one": InputFacts("data/a.csv", "local", objects=1, bytes=300, sha256="ef" * 32, is_directory=False),
    }
    job_plan = plan({"inputs": {"many": "data", "one": "data/a.csv"}}, with_inputs(region(), facts))
    base = "s3://sagemaker-us-east-1-123456789012/smlaunch/data"
    uploads = [(u.kind, u.uri, u.path) for u in job_plan.uploads if u.kind == "data"]
    assert uploads == [
        ("data", f"{base}/{digest}/", "data"),
        ("data", f"{base}/{'ef' * 32}/a.csv", "data/a.csv"),
    ]
    channels = {
        c["ChannelName"]: c["DataSource"]["S3DataSource"]["S3Uri"]
        for c in job_plan.requests[0]["InputDataConfig"]
    }
    assert channels["many"] == f"{base}/{digest}/"
    assert channels["one"] == f"{base}/{'ef' * 32}/"


def test_split_data() -> None:
    job = {"compute": {"hosts": 4}, "inputs": {"t": {"uri": "s3://b/t/", "split": "key"}}}
    job_plan = plan(job, with_inputs(region(), {"t": S3_DATA}))
    assert job_plan.to_dict()["input_shardings"] == [{"channel": "t", "hosts": 4, "objects": 1797}]
    assert "inputs.t.split" in [reason.rule for reason in job_plan.reasons]
    few_objects = dataclasses.replace(S3_DATA, objects=3)
    (message,) = refusals(job, with_inputs(region(), {"t": few_objects}))
    assert message.startswith("inputs.t.split: 3 objects cannot be split among 4 hosts")
    capped = dataclasses.replace(few_objects, is_truncated=True)
    assert plan(job, with_inputs(region(), {"t": capped})).shard_plans == ()


@pytest.mark.parametrize(
    ("size", "compute", "volume", "is_warned"),
    [
        (10**6, {}, 30, False),
        (41 * 10**9, {}, 71, False),
        (41 * 10**9, {"volume_gb": 50}, 50, False),
        (41 * 10**9, {"instance_type": "ml.g5.xlarge"}, 30, False),
        (10**6, {"instance_type": "ml.g5.xlarge", "volume_gb": 9}, 9, True),
    ],
)
def test_disk(size: int, compute: dict[str, Any], volume: int, is_warned: bool) -> None:
    facts = dataclasses.replace(S3_DATA, bytes=size)
    job_plan = plan(
        {"compute": compute, "inputs": {"t": "s3://b/data/"}}, with_inputs(region(), {"t": facts})
    )
    assert job_plan.requests[0]["ResourceConfig"]["VolumeSizeInGB"] == volume
    assert any("GB" in warning for warning in job_plan.warnings) is is_warned


# ---- what is sent ----------------------------------------------------------------------------------------


def test_the_launch_specification() -> None:
    job_plan = plan({"args": ["--name", "it's; rm -rf /"], "compute": {"processes_per_host": 2}})
    (task,) = job_plan.planned_jobs
    spec = task.launch_spec
    assert spec is not None
    assert spec.ranks.argv == (
        Ref("python"),
        Ref("source", suffix="/train.py"),
        "--name",
        "it's; rm -rf /",
        Ref("hyperparameters"),
    )
    assert (spec.ranks.per_host, spec.ranks.rendezvous, spec.max_runtime_seconds) == (2, True, 86400)
    assert spec.ranks.env == (("PYTHONUNBUFFERED", "1"),)
    (content,) = [upload.content for upload in job_plan.uploads if upload.kind == "launch"]
    assert content is not None
    assert parse_launch_spec(content) == spec


def rules(job_plan: Plan) -> list[str]:
    return [reason.rule for reason in job_plan.reasons]


def test_a_hang_is_the_strategys_matter_unless_the_job_says() -> None:
    ddp, custom = plan(), plan({"strategy": "custom"})
    assert [
        job_plan.planned_jobs[0].launch_spec.hang_seconds
        for job_plan in (ddp, custom)
        if job_plan.planned_jobs[0].launch_spec
    ] == [
        3600,
        None,
    ]
    assert "limit.hang" in rules(ddp)
    assert "limit.hang" not in rules(custom)
    stated = plan({"limits": {"hang": "30m"}, "strategy": "custom"})
    assert stated.planned_jobs[0].launch_spec is not None
    assert stated.planned_jobs[0].launch_spec.hang_seconds == 1800
    assert "limit.hang" not in rules(stated)


def test_the_launcher() -> None:
    (task,) = plan({"launcher": "torchrun"}).planned_jobs
    assert task.launch_spec is not None
    assert task.launch_spec.ranks.launcher == "torchrun"
    with pytest.raises(JobError) as error:
        plan({"launcher": "torchrun", "strategy": "custom"})
    assert [problem.path for problem in error.value.problems] == ["launcher"]


def test_the_jobs_own_environment_wins() -> None:
    job_plan = plan({"environment": {"PYTHONUNBUFFERED": "0"}})
    assert job_plan.planned_jobs[0].launch_spec is not None
    assert job_plan.planned_jobs[0].launch_spec.ranks.env == ()
    assert job_plan.requests[0]["Environment"] == {"PYTHONUNBUFFERED": "0"}


def test_a_shell_script_is_started_by_its_shell() -> None:
    (task,) = plan({"entry": "src/train.sh"}, region(source=SHELL)).planned_jobs
    assert task.launch_spec is not None
    assert task.launch_spec.ranks.argv[:2] == ("bash", Ref("source", suffix="/train.sh"))


def test_tags_find_the_run_again() -> None:
    job_plan = plan({"tags": {"team": "vision"}})
    tags = {tag["Key"]: tag["Value"] for tag in job_plan.requests[0]["Tags"]}
    assert tags == {
        "team": "vision",
        "smlaunch:format": "1.1",
        "smlaunch:run": "digits",
        "smlaunch:segment": "1",
        "smlaunch:attempt": "1",
        "smlaunch:job": job_plan.job_hash,
    }


def test_the_hash_is_of_what_is_run() -> None:
    data = InputFacts("data", "local", objects=1, bytes=1, sha256="cd" * 32)
    region_facts = with_inputs(region(), {"t": data})
    job: dict[str, Any] = {"inputs": {"t": "data"}, "hyperparameters": {"lr": 0.1}}
    same_hash = plan(job, region_facts).job_hash

    moved_source = dataclasses.replace(region().source, root="/elsewhere/src")
    local_facts = with_inputs(
        local(source=moved_source), {"t": dataclasses.replace(data, uri="/elsewhere/data")}
    )
    elsewhere = {**job, "entry": "/elsewhere/src/train.py", "inputs": {"t": "/elsewhere/data"}}
    assert plan(elsewhere, local_facts).job_hash == same_hash
    assert plan({**job, "name": "x", "limits": {"max_cost": 999}}, region_facts).job_hash == same_hash
    assert plan({**job, "compute": {"price_per_hour": 1.5}}, region_facts).job_hash == same_hash

    assert plan({**job, "hyperparameters": {"lr": 0.2}}, region_facts).job_hash != same_hash
    other_data = with_inputs(region(), {"t": dataclasses.replace(data, sha256="ef" * 32)})
    assert plan(job, other_data).job_hash != same_hash
    other_source = dataclasses.replace(region().source, archive_sha256="00" * 32)
    assert plan(job, with_inputs(region(source=other_source), {"t": data})).job_hash != same_hash


def test_the_endpoints_honesty_is_told() -> None:
    endpoint = EndpointFacts(
        warnings=("Hosts share this machine's network.",),
        recorded_members={
            "ResourceConfig.InstanceType": "hosts are processes of this machine.",
            "ResourceConfig.VolumeSizeInGB": "The disk is this machine's.",
            "VpcConfig": "Not there, not told.",
        },
        rejected_members={
            "InputDataConfig.InputMode=Pipe": "Pipe mode is not there yet.",
            "EnableManagedSpotTraining": "There is no spot capacity here.",
        },
    )
    job: dict[str, Any] = {"compute": {"instance_type": "ml.m5.large"}}
    asking = {
        "compute": {"spot": True},
        "checkpoints": "s3://b/c/",
        "inputs": {"a": "s3://b/a/", "b": {"uri": "s3://b/b/", "mode": "Pipe"}},
    }
    assert refusals(asking, local(endpoint=endpoint)) == [
        "inputs.b.mode: Pipe mode is not there yet.",
        "compute.spot: There is no spot capacity here.",
    ]
    job_plan = plan(job, local(endpoint=endpoint))
    assert "compute.instance_type: hosts are processes of this machine." in job_plan.warnings
    assert "Hosts share this machine's network." in job_plan.warnings
    chosen_plan = plan({"workload": {"time_on_one": "2h"}}, local(endpoint=endpoint))
    assert chosen_plan.warnings == ("Hosts share this machine's network.",)
    assert ("endpoint.ResourceConfig.InstanceType", "Hosts are processes of this machine.") in [
        (reason.rule, reason.explanation) for reason in chosen_plan.reasons
    ]
    assert ("endpoint.ResourceConfig.VolumeSizeInGB", "The disk is this machine's.") in [
        (reason.rule, reason.explanation) for reason in job_plan.reasons
    ]
    assert "Not there" not in str(job_plan)


def test_planning_is_a_function() -> None:
    job = Job(entry="train.py", hyperparameters={"a": [1], "b": {"c": None}})
    assert make_plan(job, region(), "r") == make_plan(job, region(), "r")
    assert str(make_plan(job, region(), "r")) == str(make_plan(job, region(), "r"))


def test_source_of_another_folder_keeps_its_entry_path() -> None:
    source = SourceFacts("project", "jobs/train.py", "ab" * 32, 1, 1)
    (task,) = plan({"entry": "project/jobs/train.py"}, region(source=source)).planned_jobs
    assert task.launch_spec is not None
    assert Ref("source", suffix="/jobs/train.py") in task.launch_spec.ranks.argv


# ---- what is said ----------------------------------------------------------------------------------------


def test_the_text() -> None:
    job = {
        "args": ["--epochs", "3"],
        "hyperparameters": {"lr": 0.1, "note": "it's\nhere", "opt": "adam"},
        "compute": {"hosts": 2, "instance_type": "ml.g5.12xlarge"},
        "inputs": {"train": {"uri": "s3://b/data/", "split": "key"}},
        "checkpoints": "s3://b/ckpt/",
        "limits": {"max_runtime": "90m"},
    }
    assert (
        str(plan(job, with_inputs(region(), {"train": S3_DATA})))
        == (Path(__file__).parent / "plan.txt").read_text()
    )


def test_the_document() -> None:
    document = plan({"limits": {"max_runtime": "90m"}}).to_dict()
    assert json.loads(json.dumps(document)) == document
    assert set(document) >= {
        "strategy",
        "reasons",
        "warnings",
        "segments",
        "input_shardings",
        "cost",
        "requests",
    }
    (segment,) = document["segments"]
    assert (segment["index"], segment["max_runtime"], segment["stop_after"]) == (1, 5400, None)
    assert document["cost"]["currency"] == "USD"
    assert document["launch"]["ranks"]["argv"][1] == {"ref": "source", "suffix": "/train.py"}
    assert set(document["reasons"][0]) == {"rule", "because"}


def test_what_only_a_host_knows_is_told_from_what_is_meant_as_it_stands() -> None:
    text = str(plan({"strategy": "xgboost", "compute": {"hosts": 2}}))
    assert "import main; main()' <world_size> <leader_address> <port+4> <port+5>" in text


@pytest.mark.parametrize(
    ("job", "message"),
    [
        ({}, "Run digits: train.py on 1 host = 1 rank, by ddp, in region us-east-1"),
        ({"compute": {"hosts": 2}}, "train.py on 2 hosts = 2 ranks,"),
        ({"compute": {"processes_per_host": 4}}, "train.py on 1 host with 4 ranks,"),
        ({"compute": {"hosts": 2, "processes_per_host": 4}}, "on 2 hosts x 4 processes = 8 ranks,"),
        ({"compute": {"instance_type": "ml.z9.large"}}, "on 1 host with a rank for each accelerator,"),
    ],
)
def test_the_headline(job: dict[str, Any], message: str) -> None:
    assert message in str(plan(job)).splitlines()[0]


def test_nothing_a_user_writes_breaks_a_line() -> None:
    hostile = "a\nb\x1b[31m\u2028c"
    source = dataclasses.replace(region().source, root=hostile)
    data = InputFacts(hostile, "local", objects=1, sha256="cd" * 32)
    text = str(
        plan(
            {
                "args": [hostile],
                "hyperparameters": {"x": hostile},
                "environment": {"X": hostile},
                "inputs": {"t": hostile},
            },
            with_inputs(region(source=source), {"t": data}),
        )
    )
    assert "\x1b" not in text
    assert "\u2028" not in text
    assert not any(line.startswith("b") for line in text.splitlines())


def test_the_words_for_an_images_own_program_are_shown() -> None:
    for strategy in ("custom", "processing"):
        job = Job.from_mapping(
            {
                "image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
                "strategy": strategy,
                "args": ["--epochs", "a b"],
            }
        )
        text = str(make_plan(job, region(source=NO_SOURCE, script=PLAIN), "digits"))
        assert "the image's own program --epochs 'a b'" in text


def test_what_this_machine_stands_in_for_is_said() -> None:
    text = str(plan({"compute": {"instance_type": "ml.p4d.24xlarge", "processes_per_host": 2}}, local()))
    assert "on 1 host with 2 ranks, by ddp, on this machine (isolation full)" in text
    assert "1 on this machine, recorded as ml.p4d.24xlarge" in text
    assert "not run, recorded as 763104351884" in text
    assert "nothing is billed" in text


def test_where_images_are_run_they_are_not_said_to_be_recorded() -> None:
    endpoint = EndpointFacts(hosts="containers by podman", runs_images=True)
    text = str(
        plan({"image": "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1"}, local(endpoint=endpoint))
    )
    assert "on this machine (containers by podman)" in text
    assert "not run" not in text


def test_nothing_is_assumed_of_an_unknown_type() -> None:
    """The wait for capacity has no effect on types without an accelerator; of this one nobody knows."""
    job = {"compute": {"instance_type": "ml.zz9.large"}, "limits": {"max_pending": "2h"}}
    assert plan(job).planned_jobs[0].request["StoppingCondition"]["MaxPendingTimeInSeconds"] == 7200


def test_hosts_of_a_later_segment_need_a_rendezvous() -> None:
    job = {
        "checkpoints": "s3://mine/ckpt/",
        "limits": {"segment": "1h", "max_runtime": "3h"},
        "segments": [{}, {"compute": {"hosts": 4}}],
    }
    job_plan = plan(job, region(script=PLAIN))
    assert job_plan.strategy == "ddp"
    assert "One process on one host" not in str(job_plan)
