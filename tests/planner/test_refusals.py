"""Rules one by one where the bad jobs do not cover them, and together: all problems are reported at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.errors import JobError, Problem
from smlaunch.facts.discovered_facts import DiscoveredFacts, InputFacts, ScriptFacts
from smlaunch.job.model import Job
from smlaunch.job.partial import parse_without_invalid_fields
from smlaunch.job.yaml_file import merge_mappings
from smlaunch.planner.planner import check_partial_job, make_plan
from smlaunch.planner.rules import all_rules
from smlaunch.planner.rules.rule import Phase
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.rendezvous import rank_variables, shared_variables
from tests.conftest import ROOT
from tests.planner.fixtures import PLAIN, plan, region, with_inputs
from tests.tables import table


def problems(job: Mapping[str, Any], facts: DiscoveredFacts) -> list[Problem]:
    """Returns the problems that the command line prints: of a job that cannot be read, and of one that cannot
    work."""
    try:
        complete_job = Job.from_mapping(job)
    except JobError as error:
        partial = parse_without_invalid_fields(job, error.problems)
        assert partial is not None
        return [*error.problems, *check_partial_job(partial.job, facts, partial.removed_fields)]
    with pytest.raises(JobError) as caught:
        make_plan(complete_job, facts, "digits")
    return list(caught.value.problems)


class Fault(NamedTuple):
    """``job`` and ``world`` replace parts of a valid job and its facts; then ``field`` is refused, and no
    other."""

    field: str
    job: Mapping[str, Any]
    world: Mapping[str, Any] = {}


REGISTRY = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
GOOD_JOB = {"entry": "src/train.py", "compute": {"instance_type": "ml.g5.xlarge"}}

FAULTS = [
    Fault("hyperparameters.wide", {"hyperparameters": {"wide": "x" * 2501}}),
    Fault("hyperparameters.odd", {"hyperparameters": {"odd": float("nan")}}),
    Fault("environment.WIDE", {"environment": {"WIDE": "x" * 513}}),
    Fault("environment.ODD", {"environment": {"ODD": 0.5}}),
    Fault("tags.aws:x", {"tags": {"aws:x": "y"}}),
    Fault("security_groups", {"subnets": ["subnet-1"]}),
    Fault("checkpoints.local_path", {"checkpoints": {"uri": "s3://b/kept/", "local_path": "/opt/ml/model"}}),
    Fault("inputs.code", {"inputs": {"code": "s3://b/data/"}}),
    Fault("inputs.fast.uri", {"inputs": {"fast": {"uri": "s3://b/fast", "mode": "FastFile"}}}),
    Fault("inputs.odd.mode", {"inputs": {"odd": {"uri": "s3://b/data/", "mode": "Fast"}}}),
    Fault("inputs.gone", {"inputs": {"gone": "s3://b/gone/"}}, {"gone": True}),
    Fault("limits.max_pending", {"limits": {"max_pending": "5m"}}),
    Fault("limits.max_wait", {"limits": {"max_wait": "2d"}}),
    Fault("limits.hang", {"limits": {"hang": "soon"}}),
    Fault("limits.max_runtim", {"limits": {"max_runtim": "3h"}}),
    Fault("compute.keep_alive", {"compute": {"keep_alive": "7h"}}),
    Fault("compute.on_demand_fallback", {"compute": {"on_demand_fallback": True}}),
    Fault("compute.volume_gb", {"compute": {"volume_gb": 0}}),
    Fault(
        "compute.hosts", {"compute": {"hosts": 9}}, {"quotas": {"ml.g5.xlarge for training job usage": 2.0}}
    ),
    Fault("requirements", {"requirements": "nowhere.txt"}),
    Fault(
        "framework_version",
        {"framework_version": "2.13", "image": f"{REGISTRY}/mine:1"},
    ),
    Fault("name", {"name": "Not A Name"}),
    Fault("output", {"output": "nowhere"}),
    Fault("computer", {"computer": {"hosts": 2}}),
    Fault("role", {}, {"role": None}),
    Fault("entry", {}, {"script": ScriptFacts(exists=False, imports=frozenset({"torch.distributed"}))}),
]


def combine_faults(faults: list[Fault]) -> tuple[dict[str, Any], DiscoveredFacts]:
    job: dict[str, Any] = dict(GOOD_JOB)
    world: dict[str, Any] = {}
    for fault in faults:
        job = merge_mappings(job, fault.job)
        world |= fault.world
    inputs = {name: InputFacts("s3://b/data/", "s3", objects=9, bytes=9) for name in ("code", "fast", "odd")}
    if world.pop("gone", False):
        inputs["gone"] = InputFacts("s3://b/gone/", "s3", exists=False, problem="there is no object")
    return job, region(inputs=inputs, **world)


@table("fault", FAULTS)
def test_each_is_refused_alone(fault: Fault) -> None:
    job, world = combine_faults([fault])
    assert {problem.path for problem in problems(job, world)} == {fault.field}


@given(
    st.lists(st.sampled_from(FAULTS), min_size=2, max_size=len(FAULTS), unique_by=lambda fault: fault.field)
)
@settings(max_examples=150, deadline=None)
def test_any_of_them_together_are_all_told(faults: list[Fault]) -> None:
    job, world = combine_faults(faults)
    actual_problems = problems(job, world)
    assert {problem.path for problem in actual_problems} == {fault.field for fault in faults}
    assert len(set(actual_problems)) == len(actual_problems)


def test_what_follows_from_a_default_in_the_place_of_a_mistake_is_not_said() -> None:
    """A day would be too long without checkpoints; but nobody knows what `soon` was to be."""
    job = {**GOOD_JOB, "compute": {"spot": True}, "limits": {"max_runtime": "soon"}}
    assert [problem.path for problem in problems(job, region())] == ["limits.max_runtime"]
    unknown = {**GOOD_JOB, "strategy": "dpp", "compute": {"processes_per_host": 2}, "launcher": "torchrun"}
    assert [problem.path for problem in problems(unknown, region(script=PLAIN))] == ["strategy"]


def test_a_job_that_runs_nothing_is_looked_at_all_the_same() -> None:
    job = {"compute": {"hosts": 0, "keep_alive": "7h"}, "requirements": "r.txt", "tags": {"aws:x": "y"}}
    paths = [problem.path for problem in problems(job, region())]
    assert paths == ["entry", "compute.hosts", "compute.keep_alive", "tags.aws:x"]


def test_nothing_is_left_of_what_is_no_job() -> None:
    with pytest.raises(JobError) as caught:
        Job.from_mapping(["train.py"])  # type: ignore[arg-type]
    assert caught.value.job_mapping is None


def test_only_what_cannot_be_read_is_left_out() -> None:
    job = {
        "entry": "train.py",
        "compute": {"hosts": 2, "spot": "yes"},
        "hyperparameters": {"model.lr": float("nan"), "model": 1},
        "inputs": {"a.b": {"uri": "s3://b/", "mode": "no"}, "a": "s3://b/"},
        "checkpoints": {"uri": "s3://b/k/", "keep": 1},
        "segments": [{"length": "1h"}, {"length": "soon"}],
    }
    with pytest.raises(JobError) as caught:
        Job.from_mapping(job)
    partial = parse_without_invalid_fields(job, caught.value.problems)
    assert partial is not None
    assert set(partial.removed_fields) == {
        "compute.spot",
        "hyperparameters.model.lr",
        "inputs.a.b",
        "checkpoints",
        "segments",
    }
    assert partial.job.to_mapping() == {
        "entry": "train.py",
        "compute": {"hosts": 2},
        "hyperparameters": {"model": 1},
        "inputs": {"a": {"uri": "s3://b/"}},
    }


# ---- where a rule ends -----------------------------------------------------------------------------------

VALID_JOBS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("an hour of spot", {"compute": {"spot": True}, "limits": {"max_runtime": "1h"}}, {}),
    (
        "a chain on spot, whose prefix is the run's own",
        {"compute": {"spot": True}, "limits": {"max_runtime": "3d", "segment": "1d"}},
        {"script": ScriptFacts(imports=frozenset({"smlaunch.train", "torch.distributed"}))},
    ),
    ("six hours of a warm pool", {"compute": {"keep_alive": "6h"}}, {}),
    ("half an hour of waiting", {**GOOD_JOB, "limits": {"max_pending": "30m"}}, {}),
    ("28 days of waiting", {**GOOD_JOB, "limits": {"max_pending": "28d"}}, {}),
    (
        "one preference of several with an accelerator",
        {
            "image": f"{REGISTRY}/mine:1",
            "compute": {"instance_preferences": ["ml.m5.xlarge", "ml.g5.xlarge"]},
            "limits": {"max_pending": "1h"},
        },
        {},
    ),
    (
        "28 days of an image's own program",
        {
            "entry": None,
            "image": f"{REGISTRY}/mine:1",
            "limits": {"max_runtime": "28d"},
        },
        {},
    ),
    ("9 days of processing", {"strategy": "processing", "limits": {"max_runtime": "9d"}}, {"script": PLAIN}),
    (
        "checkpoints elsewhere below /opt/ml",
        {"checkpoints": {"uri": "s3://b/k/", "local_path": "/opt/ml/kept"}},
        {},
    ),
    ("checkpoints outside of /opt/ml", {"checkpoints": {"uri": "s3://b/k/", "local_path": "/data/kept"}}, {}),
    ("checkpoints beside the output", {"checkpoints": "s3://b/k/", "output": "s3://b/k2/"}, {}),
    ("an image of one's own called after MXNet", {"image": f"{REGISTRY}/mine/mxnet-on-my-own:1"}, {}),
    (
        "requirements that may bring what an image lacks",
        {
            "strategy": "ddp",
            "requirements": "r.txt",
            "image": f"{REGISTRY}/sagemaker-scikit-learn:1.4-2-cpu-py3",
        },
        {"source": dataclasses.replace(region().source, has_requirements=True)},
    ),
]


@table(("job", "world"), [row[1:] for row in VALID_JOBS])
def test_what_is_not_refused(job: dict[str, Any], world: dict[str, Any]) -> None:
    job = {key: value for key, value in {"entry": "src/train.py", **job}.items() if value is not None}
    assert plan(job, region(**world)).requests


def test_an_algorithm_that_keeps_checkpoints_may_wait_for_spot() -> None:
    job = {
        "algorithm": "xgboost",
        "inputs": {"train": {"uri": "s3://b/data/", "content_type": "text/csv"}},
        "hyperparameters": {"num_round": 10},
        "compute": {"spot": True},
        "limits": {"max_runtime": "30m", "max_wait": "2h"},
        "checkpoints": "s3://b/kept/",
    }
    job_plan = make_plan(Job.from_mapping(job), region(), "digits")
    assert job_plan.requests[0]["StoppingCondition"]["MaxWaitTimeInSeconds"] == 7200


def test_rules_have_names_of_their_own_and_say_where_they_come_from() -> None:
    rules = all_rules()
    assert len({rule.id for rule in rules}) == len(rules) >= 40
    assert all(rule.quote and rule.fields and rule.summary for rule in rules)
    assert all(rule.source.startswith("https://") or (ROOT / rule.source).is_file() for rule in rules)
    assert {rule.phase for rule in rules} == set(get_args(Phase))


@table(
    ("job", "warned"),
    [
        (
            {"inputs": {"t": "s3://b/data/"}, "output": "s3://b/data/models/"},
            "s3://b/data/models/, where output",
        ),
        ({"inputs": {"t": "s3://b/data/"}, "output": "s3://b/models/"}, ""),
        ({"inputs": {"t": "s3://b/data/"}, "output": "s3://b/"}, ""),
        ({"inputs": {"t": "s3://{bucket}/"}}, "smlaunch/, where the run's own files"),
        ({"inputs": {"t": "s3://{bucket}/data/"}}, ""),
    ],
)
def test_an_output_inside_an_input_is_reported(job: dict[str, Any], warned: str) -> None:
    facts = region()
    uri = job["inputs"]["t"].format(bucket=facts.bucket)
    input_facts = {"t": InputFacts(uri, "s3", objects=100, bytes=1000)}
    job_plan = plan({**GOOD_JOB, **job, "inputs": {"t": uri}}, with_inputs(facts, input_facts))
    texts = [text for text in job_plan.warnings if text.startswith("inputs.t: ") and "will be" in text]
    assert len(texts) == bool(warned)
    assert all(warned in text for text in texts)


def test_the_trials_of_verify_resume_state_variables() -> None:
    interval = {"SMLAUNCH_CHECKPOINT_INTERVAL": "0.250"}
    plan({**GOOD_JOB, "environment": {**interval, "SMLAUNCH_TRACE": "/tmp/traces"}})
    (problem,) = problems({**GOOD_JOB, "environment": interval}, region())
    assert "checkpoints.interval" in problem.message


def test_ranks_and_rules_name_the_same_variables() -> None:
    """Of the others the runtime lets the job's own value stand."""
    own = {"OMP_NUM_THREADS": "4", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "NCCL_SOCKET_IFNAME": "x"}
    cluster = Cluster(("algo-1", "algo-2"), "algo-1", "eth0", "all", "ml.g5.xlarge", ("algo-1", "algo-2"), ())
    names = {*shared_variables(cluster, 2, 29500, own), *rank_variables(0, 0)}
    names -= {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "GLOO_SOCKET_IFNAME"}
    job = {**GOOD_JOB, "strategy": "ddp", "environment": dict.fromkeys(names, "1")}
    assert {problem.path for problem in problems(job, region())} == {f"environment.{name}" for name in names}
    # A plain process that joins others by itself may use these names.
    plan({**GOOD_JOB, "strategy": "custom", "environment": dict.fromkeys(names, "1")})
