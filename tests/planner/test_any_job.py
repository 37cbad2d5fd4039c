"""Every job gets a plan or all of its problems, and never another error."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.api.validation.request_check import check_request
from smlaunch.catalog.strategies import known_strategies
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import (
    DiscoveredFacts,
    InputFacts,
    ScriptFacts,
    SourceFacts,
    StoredFile,
)
from smlaunch.job.model import Job
from smlaunch.job.partial import parse_without_invalid_fields
from smlaunch.planner.planner import check_partial_job, make_plan
from tests.planner.fixtures import PLAIN, TORCH, local, region

REGISTRY = "763104351884.dkr.ecr.us-east-1.amazonaws.com"

_TYPES = st.sampled_from(
    ["ml.m5.xlarge", "ml.g5.12xlarge", "ml.p4d.24xlarge", "ml.trn1.32xlarge", "ml.x9.large", "g5"]
)
_CHANNEL = st.fixed_dictionaries(
    {"uri": st.sampled_from(["s3://b/d/", "s3://b/d", "./here"])},
    optional={
        "mode": st.sampled_from(["File", "FastFile", "Pipe", "Fast"]),
        "split": st.sampled_from(["key", "bytes"]),
        "split_via": st.sampled_from(["shards", "lists", "jobs"]),
        "content_type": st.just("text/csv"),
    },
)
_DURATION = st.sampled_from(["5m", "1h", "6d", "29d", "900d", "soon"])
_JOBS = st.fixed_dictionaries(
    {},
    optional={
        "entry": st.sampled_from(["src/train.py", "src/run.sh", "src/program"]),
        "algorithm": st.sampled_from(["xgboost", "kmeans", "lda", "catboost", "unheard-of"]),
        "image": st.sampled_from(
            [
                "123456789012.dkr.ecr.us-east-1.amazonaws.com/mine:1",
                f"{REGISTRY}/mxnet-training:1.9",
                f"{REGISTRY}/pytorch:2.13.0",
            ]
        ),
        "strategy": st.sampled_from([*known_strategies(), "unheard-of"]),
        "compute": st.fixed_dictionaries(
            {},
            optional={
                "hosts": st.sampled_from([1, 2, 25, 0]),
                "instance_type": _TYPES,
                "instance_preferences": st.lists(_TYPES, max_size=6),
                "processes_per_host": st.sampled_from([1, 8, "auto"]),
                "spot": st.booleans(),
                "on_demand_fallback": st.booleans(),
                "keep_alive": _DURATION,
            },
        ),
        "limits": st.dictionaries(
            st.sampled_from(["max_runtime", "segment", "max_wait", "max_pending"]), _DURATION
        ),
        "inputs": st.dictionaries(st.sampled_from(["train", "validation", "code"]), _CHANNEL),
        "checkpoints": st.sampled_from(["s3://b/d/", {"uri": "s3://b/k/", "local_path": "/opt/ml/model"}]),
        "segments": st.lists(st.sampled_from([{"length": "1h"}, {"length": "30d"}, {"until_step": 5}])),
        "workload": st.fixed_dictionaries({"time_on_one": st.just("40h")}),
        "framework_version": st.sampled_from(["2.13", "9"]),
        "network_isolation": st.booleans(),
        "requirements": st.just("r.txt"),
    },
)


def facts_for(mapping: dict[str, Any], script: ScriptFacts, files: int, is_local: bool) -> DiscoveredFacts:
    entry = str(mapping.get("entry", "")).rpartition("/")[2]
    stored_files = tuple(StoredFile(f"f{index}", index) for index in range(files))
    inputs = {
        name: InputFacts(channel["uri"], "s3", objects=files, bytes=files, sha256="ab", files=stored_files)
        for name, channel in mapping.get("inputs", {}).items()
    }
    source = SourceFacts("src", entry, "ab" * 32, 3, 3) if entry else SourceFacts("", "", "", 0, 0)
    return (local if is_local else region)(source=source, script=script, inputs=inputs)


@given(_JOBS, st.sampled_from([TORCH, PLAIN, ScriptFacts(exists=False)]), st.integers(0, 4), st.booleans())
@settings(max_examples=300, deadline=None)
def test_a_plan_or_problems(mapping: dict[str, Any], script: ScriptFacts, files: int, is_local: bool) -> None:
    world = facts_for(mapping, script, files, is_local)
    try:
        job = Job.from_mapping(mapping)
    except JobError as error:
        partial = parse_without_invalid_fields(mapping, error.problems)
        assert partial is not None
        further_problems = check_partial_job(partial.job, world, partial.removed_fields)
        assert not set(further_problems) & set(error.problems)
        return
    try:
        job_plan = make_plan(job, world, "digits")
    except JobError as error:
        assert error.problems
        assert len(set(error.problems)) == len(error.problems)
        assert all(problem.path and problem.path[0].islower() for problem in error.problems)
        return
    for request in job_plan.requests:
        operation = "CreateProcessingJob" if "ProcessingJobName" in request else "CreateTrainingJob"
        unfit = [problem for problem in check_request(operation, request) if problem.rule != "enum"]
        assert unfit == []
