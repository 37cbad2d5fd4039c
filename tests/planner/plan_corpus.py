"""The corpus of plans that issue M must leave as they are: jobs, and of each its plan or all of its problems.

    python -m tests.planner.plan_corpus new SEED     draws the jobs anew and writes both files
    python -m tests.planner.plan_corpus              writes the plans of the stored jobs

``plan_corpus.jobs.json`` has the jobs and what discovery found; ``plan_corpus.plans.json`` has the strategy,
segments, shards and cost of each plan, and the SHA-256 of each request as canonical JSON. To see what a
changed hash means, print ``plan_of(case)`` here and at the commit before.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import (
    DiscoveredFacts,
    InputFacts,
    ScriptFacts,
    SourceFacts,
    StoredFile,
)
from smlaunch.job.model import Job
from tests.planner.fixtures import PLAIN, READS_CONFIG, TORCH, local, make_plan, region

JOBS_FILE = Path(__file__).with_name("plan_corpus.jobs.json")
PLANS_FILE = Path(__file__).with_name("plan_corpus.plans.json")
PLANNED, REFUSED = 140, 60
SCRIPTS = {
    "plain": PLAIN,
    "torch": TORCH,
    "resource config": READS_CONFIG,
    "mpi4py": ScriptFacts(imports=frozenset({"mpi4py"})),
    "missing": ScriptFacts(exists=False),
}
_TYPES = (
    "ml.m5.xlarge",
    "ml.m5.4xlarge",
    "ml.c5.18xlarge",
    "ml.g5.xlarge",
    "ml.g5.12xlarge",
    "ml.p4d.24xlarge",
)
_STRATEGIES = (
    *("ddp", "smddp", "smp", "mpi", "tensorflow", "ray", "deepspeed", "custom", "share-nothing", "spark"),
    *("processing", "huggingface", "sklearn", "xgboost", "horovod", "neuron"),
)


_REQUIRED_HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "xgboost": {"num_round": 10},
    "kmeans": {"k": 10, "feature_dim": 784},
    "linear-learner": {"predictor_type": "regressor"},
    "blazingtext": {"mode": "skipgram"},
}
MOST_OF_A_STRATEGY = 16


def draw_case(generator: random.Random) -> dict[str, Any]:
    """Return a random case: ``job``, ``script``, ``files`` (objects of each input) and ``target``."""

    def maybe(share: float) -> bool:
        return generator.random() < share

    job: dict[str, Any] = {}
    if maybe(0.1):
        job["algorithm"] = generator.choice(["xgboost", "kmeans", "linear-learner", "blazingtext"])
    else:
        job["entry"] = generator.choice(["src/train.py", "src/train.py", "src/run.sh"])
        if maybe(0.8):
            job["strategy"] = generator.choice(_STRATEGIES)
    compute: dict[str, Any] = {}
    if maybe(0.9):
        compute["instance_type"] = generator.choice(_TYPES)
    if maybe(0.6):
        compute["hosts"] = generator.choice([1, 2, 3, 4, 16])
    if maybe(0.2):
        compute["processes_per_host"] = generator.choice([1, 2, 8, "auto"])
    if maybe(0.2):
        compute["spot"] = True
    if maybe(0.1):
        compute["keep_alive"] = "20m"
    if maybe(0.1):
        compute["volume_gb"] = generator.choice([1, 100, 20_000])
    if compute:
        job["compute"] = compute
    limits: dict[str, Any] = {}
    if maybe(0.7):
        limits["max_runtime"] = generator.choice(["5m", "1h", "23h", "6d", "28d", "40d"])
    if maybe(0.3):
        limits["segment"] = generator.choice(["30m", "12h", "5d", "28d"])
    if maybe(0.1):
        limits["max_wait"] = generator.choice(["2h", "2d", "30d"])
    if maybe(0.1):
        limits["max_cost"] = generator.choice([5, 5000.0])
    if limits:
        job["limits"] = limits
    if maybe(0.5):
        job["checkpoints"] = generator.choice(
            ["s3://b/kept/", {"uri": "s3://b/kept/", "interval": "10m", "keep": 5}]
        )
    inputs = {}
    for name in generator.sample(["train", "validation", "test"], generator.choice([0, 1, 1, 2])):
        channel: dict[str, Any] = {"uri": f"s3://b/{name}/"}
        if maybe(0.4):
            channel["mode"] = generator.choice(["File", "FastFile", "Pipe"])
        if maybe(0.4):
            channel["split"] = generator.choice(["key", "bytes"])
            if channel["split"] == "bytes" and maybe(0.6):
                channel["split_via"] = generator.choice(["shards", "lists", "jobs"])
        inputs[name] = channel
    if inputs:
        job["inputs"] = inputs
    if job.get("strategy") in ("processing", "spark"):
        for name in ("checkpoints", "limits"):
            job.pop(name, None)
        for channel in inputs.values():
            channel.pop("split_via", None)
    elif job.get("strategy") in ("smddp", "smp"):
        job["compute"] = {**compute, "instance_type": "ml.p4d.24xlarge"}
    if "algorithm" in job:
        job["hyperparameters"] = dict(_REQUIRED_HYPERPARAMETERS[job["algorithm"]])
    elif maybe(0.2):
        job["hyperparameters"] = {"lr": 0.1, "epochs": 3, "name": "a b"}
    if maybe(0.1):
        job["environment"] = {"NCCL_DEBUG": "INFO"}
    if maybe(0.1):
        job["tags"] = {"team": "vision"}
    if maybe(0.1):
        job["network_isolation"] = True
    if maybe(0.1):
        job |= {"subnets": ["subnet-1"], "security_groups": ["sg-1"]}
    if maybe(0.1):
        job["segments"] = generator.choice([[{"length": "1h"}, {"length": "2h"}], [{"until_step": 500}, {}]])
    if maybe(0.1):
        job["workload"] = {"time_on_one": "40h", "measured_on": "ml.g5.xlarge", "wanted_time": "8h"}
    return {
        "job": job,
        "script": generator.choice([*SCRIPTS]),
        "files": generator.choice([1, 4, 40]),
        "target": "local" if maybe(0.2) else "region",
    }


def facts_of(case: dict[str, Any]) -> DiscoveredFacts:
    """Return what discovery found for a case: every input has ``files`` objects of 1, 2, 3 ... MB."""
    sizes = [(index + 1) * 1_000_000 for index in range(case["files"])]
    files = tuple(StoredFile(f"f{index:02}", size) for index, size in enumerate(sizes))
    inputs = {
        name: InputFacts(
            channel["uri"],
            "s3",
            objects=len(files),
            bytes=sum(sizes),
            sha256="ab" * 32,
            files=files,
        )
        for name, channel in case["job"].get("inputs", {}).items()
    }
    entry = case["job"].get("entry", "").rpartition("/")[2]
    source = SourceFacts("src", entry, "ab" * 32, 3, 3_000) if entry else SourceFacts("", "", "", 0, 0)
    make_facts = local if case["target"] == "local" else region
    return make_facts(source=source, script=SCRIPTS[case["script"]], inputs=inputs)


def plan_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return the members of ``plan --json`` that must not change, or ``problems``: the fields that have
    any."""
    try:
        plan = make_plan(Job.from_mapping(case["job"]), facts_of(case), "digits").to_dict()
    except JobError as error:
        return {"problems": sorted({problem.path for problem in error.problems})}
    return {
        name: value
        for name, value in plan.items()
        if name not in ("reasons", "warnings", "candidates", "left_out", "defaults")
    }


_PRINTED = (
    *(
        "problems",
        "strategy",
        "hosts",
        "processes_per_host",
        "instance_type",
        "image",
        "cost",
        "segment_count",
    ),
)
"""Members that are stored as they are; of all others, the SHA-256."""


def result_of(case: dict[str, Any]) -> dict[str, Any]:
    """Return the plan of a case with its large members as hashes."""
    document = json.loads(json.dumps(plan_of(case), sort_keys=True))
    if "segments" in document:
        document["segment_count"] = len(document["segments"])
    result = {name: value for name, value in document.items() if name in _PRINTED}
    for name in sorted(set(document) - set(_PRINTED)):
        result[f"{name} sha256"] = hashlib.sha256(
            json.dumps(document[name], sort_keys=True).encode()
        ).hexdigest()
    return result


def draw_corpus(seed: int) -> list[dict[str, Any]]:
    generator = random.Random(seed)
    cases: list[dict[str, Any]] = []
    drawn: Counter[str] = Counter()
    while drawn["planned"] < PLANNED or drawn["refused"] < REFUSED:
        case = draw_case(generator)
        plan = plan_of(case)
        kind, most = ("refused", REFUSED) if "problems" in plan else ("planned", PLANNED)
        strategy = plan.get("strategy", kind)
        if drawn[kind] < most and (kind == "refused" or drawn[strategy] < MOST_OF_A_STRATEGY):
            drawn.update({kind, strategy})
            cases.append(case)
    return cases


def write_json_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    lines = ",\n".join(json.dumps(row, sort_keys=True) for row in rows)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def read_rows(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return rows


if __name__ == "__main__":
    if sys.argv[1:2] == ["new"]:
        write_json_lines(JOBS_FILE, draw_corpus(int(sys.argv[2])))
    write_json_lines(PLANS_FILE, [result_of(case) for case in read_rows(JOBS_FILE)])
