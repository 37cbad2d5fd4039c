"""A split by bytes: the chosen way and its reason, the shard of each host, and refusals."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.api.validation.request_check import check_request
from smlaunch.contract.shard_lists import SHARDS_CHANNEL, ShardListIndex, parse_json_lines
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import DiscoveredFacts, InputFacts, ScriptFacts, StoredFile
from smlaunch.render.plan import Plan
from tests.planner.fixtures import TORCH, local, plan, region, with_inputs
from tests.tables import table

READS_SHARDS = ScriptFacts(imports=frozenset({"smlaunch.train.shard_files"}))
PLAIN = ScriptFacts(imports=frozenset({"json"}))
DATA = "s3://b/data/"


def files(*sizes: int) -> tuple[StoredFile, ...]:
    return tuple(StoredFile(f"{number:04d} é", size) for number, size in enumerate(sizes))


SKEWED = files(*(int(5_000 * (number + 1) ** -1.1) + 1 for number in range(300)))
SHARDS = tuple(StoredFile(f"shards/shard-{number:05d}.tar", 1000 + number) for number in range(8))


def facts(input_files: tuple[StoredFile, ...], **fields: Any) -> InputFacts:
    return InputFacts(
        DATA,
        "s3",
        objects=len(input_files),
        bytes=sum(f.bytes for f in input_files),
        files=input_files,
        **fields,
    )


def job(hosts: int = 4, **channel: Any) -> dict[str, Any]:
    return {"compute": {"hosts": hosts}, "inputs": {"train": {"uri": DATA, "split": "bytes", **channel}}}


def world(input_facts: InputFacts, script: ScriptFacts = PLAIN) -> DiscoveredFacts:
    return with_inputs(region(script=script), {"train": input_facts})


def refusals(job: dict[str, Any], known_facts: DiscoveredFacts) -> list[str]:
    with pytest.raises(JobError) as caught:
        plan(job, known_facts)
    return [str(problem) for problem in caught.value.problems]


def channel(job_plan: Plan, name: str = "train", task: int = 0) -> dict[str, Any]:
    (matching,) = (
        c for c in job_plan.planned_jobs[task].request["InputDataConfig"] if c["ChannelName"] == name
    )
    return {"mode": matching["InputMode"], **matching["DataSource"]["S3DataSource"]}


def content(job_plan: Plan, ending: str) -> str:
    (upload,) = (upload for upload in job_plan.uploads if upload.uri.endswith(ending))
    return upload.content or ""


PACKED = facts(SHARDS, shard_names=tuple(shard.name for shard in SHARDS))

CHOICES: list[tuple[dict[str, Any], InputFacts, ScriptFacts, str, str]] = [
    ({}, PACKED, PLAIN, "shards", "similar enough"),
    ({}, PACKED, TORCH, "shards", "similar enough"),
    ({}, facts(SKEWED), READS_SHARDS, "lists", "reads its file list"),
    ({}, facts(SKEWED), PLAIN, "jobs", "neither joins ranks nor reads"),
    ({"split_via": "jobs"}, PACKED, READS_SHARDS, "jobs", ""),
    ({"split_via": "lists"}, PACKED, READS_SHARDS, "lists", ""),
]


@pytest.mark.parametrize(("fields", "input_facts", "script", "way", "explanation"), CHOICES)
def test_which_way(
    fields: dict[str, Any], input_facts: InputFacts, script: ScriptFacts, way: str, explanation: str
) -> None:
    job_plan = plan(job(**fields), world(input_facts, script))
    assert [sharding.split_via for sharding in job_plan.input_shardings] == [way]
    explanations = [
        reason.explanation for reason in job_plan.reasons if reason.rule == "inputs.train.split_via"
    ]
    assert (len(explanations) == 1 and explanation in explanations[0]) if explanation else explanations == []
    for task in job_plan.planned_jobs:
        assert list(check_request(task.operation, task.request)) == []


def test_shards_that_differ_too_much_are_not_left_to_the_service() -> None:
    uneven = (*SHARDS[:4], StoredFile("shards/shard-00004.tar", 9000))
    uneven_facts = facts(uneven, shard_names=tuple(shard.name for shard in uneven))
    assert plan(job(2), world(uneven_facts, READS_SHARDS)).input_shardings[0].split_via == "lists"


def test_shards_are_dealt_out_by_the_service() -> None:
    job_plan = plan(
        job(), world(facts((StoredFile("index.json", 300), *SHARDS), shard_names=PACKED.shard_names))
    )
    assert channel(job_plan) == {
        "mode": "File",
        "S3DataType": "S3Prefix",
        "S3Uri": DATA + "shards/",
        "S3DataDistributionType": "ShardedByS3Key",
    }
    assert sum(job_plan.input_shardings[0].bytes_by_host) == sum(shard.bytes for shard in SHARDS)


def test_hosts_that_read_parts_do_not_do_the_same_work() -> None:
    for input_facts in (PACKED, facts(SKEWED)):
        assert not any("whole work" in warning for warning in plan(job(), world(input_facts, PLAIN)).warnings)


def test_lists_hold_every_file_once() -> None:
    job_plan = plan(job(), world(facts(SKEWED), READS_SHARDS))
    assert channel(job_plan)["mode"] == "FastFile"
    assert channel(job_plan)["S3DataDistributionType"] == "FullyReplicated"
    lists_uri = channel(job_plan, SHARDS_CHANNEL)["S3Uri"]
    assert re.search("/smlaunch/digits/shards/[0-9a-f]{32}/$", lists_uri)
    index = ShardListIndex.from_json(content(job_plan, lists_uri + "train/shards.json"))
    sizes = {file.name: file.bytes for file in SKEWED}
    names: Counter[str] = Counter()
    for shard, load in zip(index.shards, job_plan.input_shardings[0].bytes_by_host, strict=True):
        shard_names = parse_json_lines(content(job_plan, f"{lists_uri}train/{shard.file}").splitlines())
        assert (len(shard_names), sum(sizes[name] for name in shard_names)) == (
            shard.files,
            load,
        ) and shard.bytes == load
        names.update(shard_names)
    assert names == Counter(list(sizes))


def test_jobs_have_a_manifest_each() -> None:
    job_plan = plan(job(), world(facts(SKEWED)))
    assert [task.name for task in job_plan.planned_jobs] == [
        f"digits-p{number}-s1-a1" for number in range(1, 5)
    ]
    names: Counter[str] = Counter()
    for number, shard in enumerate(job_plan.shard_plans):
        shard_channel = channel(job_plan, task=number)
        assert (shard_channel["mode"], shard_channel["S3DataType"]) == ("File", "ManifestFile")
        assert shard.planned_jobs[0].request["ResourceConfig"]["InstanceCount"] == 1
        assert shard.workflow.policy.attempts == 3 and not shard.workflow.is_single_job
        head, *listed_names = json.loads(content(job_plan, shard_channel["S3Uri"].removeprefix("s3://")))
        assert head == {"prefix": DATA}
        names.update(listed_names)
    assert names == Counter(file.name for file in SKEWED)
    assert job_plan.cost.per_hour == pytest.approx(4 * (job_plan.shard_plans[0].cost.per_hour or 0))
    assert job_plan.cost.volume_gb == 4 * job_plan.requests[0]["ResourceConfig"]["VolumeSizeInGB"]
    assert f"Disks ({job_plan.cost.volume_gb} GB)" in " ".join(str(job_plan).split())
    assert len({upload.uri for upload in job_plan.uploads}) == len(job_plan.uploads)


def test_what_parts_share_is_shared_out() -> None:
    run_limits = {"checkpoints": "s3://b/ck", "limits": {"max_cost": 100, "attempts": 2}}
    job_plan = plan({**job(), **run_limits}, world(facts(SKEWED)))
    assert [shard.checkpoints.uri for shard in job_plan.shard_plans if shard.checkpoints] == [
        f"s3://b/ck/p{number}/" for number in range(1, 5)
    ]
    assert job_plan.shard_plans[0].workflow.policy.attempts == 2
    assert job_plan.shard_plans[0].job_hash == job_plan.shard_plans[3].job_hash == job_plan.job_hash
    assert job_plan.cost.maximum is not None and job_plan.cost.maximum <= 100


def test_a_part_without_files_is_no_job() -> None:
    job_plan = plan(job(), world(facts(files(5, 6, 7))))
    assert len(job_plan.shard_plans) == 3
    assert any("1 of 4 hosts get no file" in warning for warning in job_plan.warnings)


def test_the_plan_shows_what_each_host_gets() -> None:
    job_plan = plan(job(), world(facts(SKEWED), READS_SHARDS))
    (shard_summary,) = job_plan.to_dict()["input_shardings"]
    assert (shard_summary["split_via"], shard_summary["hosts"], shard_summary["objects"]) == ("lists", 4, 300)
    assert [shard["host"] for shard in shard_summary["shards"]] == [0, 1, 2, 3]
    assert sum(shard["bytes"] for shard in shard_summary["shards"]) == sum(
        shard["bytes_by_count"] for shard in shard_summary["shards"]
    )
    assert 1.0 <= shard_summary["imbalance"] < 1.01 < shard_summary["imbalance_by_count"]
    (line,) = (line for line in str(job_plan).splitlines() if line.startswith("  shards of train"))
    assert "a host (1.00" in line and "by count up to" in line
    assert "FastFile mode, each host reads its own list" in str(job_plan)


def test_one_file_larger_than_a_share_is_told() -> None:
    job_plan = plan(job(), world(facts(files(1000, 1, 1, 1)), READS_SHARDS))
    assert any("3.99 times an equal share" in w for w in job_plan.warnings)


def test_processing_jobs_copy_so_that_lists_spare_nothing() -> None:
    job_plan = plan({**job(), "strategy": "processing"}, world(facts(SKEWED), READS_SHARDS))
    assert [sharding.split_via for sharding in job_plan.input_shardings] == ["jobs"]
    inputs = job_plan.planned_jobs[1].request["ProcessingInputs"]
    (part_input,) = (entry["S3Input"] for entry in inputs if entry["InputName"] == "train")
    assert part_input["S3DataType"] == "ManifestFile" and re.search(
        "/digits-p2/shards/[0-9a-f]{32}/train.manifest$", part_input["S3Uri"]
    )
    lists = {**job(split_via="lists"), "strategy": "processing"}
    assert any(
        line.startswith("inputs.train.split_via: a pro") for line in refusals(lists, world(facts(SKEWED)))
    )


def test_shards_have_a_folder_each_at_every_address_that_the_job_states() -> None:
    """Nothing adds the job's name to these, and each shard's only host is called algo-1."""
    stated = {"S3Uri": "s3://b/res/", "LocalPath": "/opt/ml/processing/output", "S3UploadMode": "EndOfJob"}
    added = {**stated, "S3Uri": "s3://b/added", "LocalPath": "/opt/ml/processing/added"}
    outputs = [
        {"OutputName": "output", "S3Output": stated},
        {"OutputName": "added", "S3Output": added},
        {"OutputName": "group", "FeatureStoreOutput": {"FeatureGroupName": "g"}, "AppManaged": True},
    ]
    processing_job = {
        **job(),
        "strategy": "processing",
        "outputs": {
            "clean": {"path": "/opt/ml/processing/clean", "uri": "s3://b/clean/"},
            "other": "/opt/ml/processing/other",
        },
        "request": {"ProcessingOutputConfig": {"Outputs": outputs}},
    }
    job_plan = plan(processing_job, world(facts(SKEWED)))
    for number, shard in enumerate(job_plan.shard_plans, 1):
        stored = shard.planned_jobs[0].request["ProcessingOutputConfig"]["Outputs"]
        address_by_name = {entry["OutputName"]: entry.get("S3Output", {}).get("S3Uri") for entry in stored}
        assert address_by_name.pop("other").endswith(f"/digits-p{number}-s1-a1/other/")
        assert address_by_name == {
            "output": f"s3://b/res/p{number}/",
            "added": f"s3://b/added/p{number}/",
            "clean": f"s3://b/clean/p{number}/",
            "group": None,
        }
    (reason,) = (reason.explanation for reason in job_plan.reasons if reason.rule == "shards.outputs")
    assert "s3://b/clean/, s3://b/res/, s3://b/added" in reason
    one_job = plan({**processing_job, "compute": {"hosts": 1}}, world(facts(SKEWED)))
    addresses = [
        entry.get("S3Output", {}).get("S3Uri")
        for entry in one_job.requests[0]["ProcessingOutputConfig"]["Outputs"]
    ]
    assert {"s3://b/res/", "s3://b/added", "s3://b/clean/"} < set(addresses)


def test_one_host_gets_all_of_it() -> None:
    job_plan = plan(job(1), world(facts(SKEWED)))
    assert job_plan.input_shardings == () and channel(job_plan)["mode"] == "File"


REFUSED_SPLITS: list[tuple[dict[str, Any], InputFacts, ScriptFacts, str]] = [
    (job(), facts(SKEWED), TORCH, "inputs.train.split: train.py joins ranks (torch.distributed)"),
    (job(), facts(files(0)[:0]), READS_SHARDS, "inputs.train: s3://b/data/ h"),
    (
        job(),
        facts((*SHARDS, StoredFile("x", 1)), shard_names=PACKED.shard_names),
        PLAIN,
        "inputs.train.uri: besides its",
    ),
    (job(split_via="shards"), facts(SKEWED), PLAIN, "inputs.train.split_via: s3://b/data/ has no index.json"),
    (
        job(split_via="lists", mode="Pipe"),
        facts(SKEWED),
        READS_SHARDS,
        "inputs.train.mode: a pipe cannot be read",
    ),
    (
        job(split_via="jobs", mode="FastFile"),
        facts(SKEWED),
        PLAIN,
        "inputs.train.mode: each shard's job gets a man",
    ),
    (
        job(split_via="shards", mode="FastFile"),
        PACKED,
        PLAIN,
        "inputs.train.mode: SageMaker does not document",
    ),
    (
        job(),
        facts((StoredFile("a//b", 1), *SKEWED)),
        READS_SHARDS,
        "inputs.train: 'a//b' has an empty folder name",
    ),
    (
        job(),
        facts((StoredFile("../b", 1), *SKEWED)),
        READS_SHARDS,
        "inputs.train: '../b' has a folder name '.'",
    ),
    (
        {**job(split_via="jobs"), "strategy": "ddp"},
        facts(SKEWED),
        TORCH,
        "strategy: ddp joins the ranks of all hosts",
    ),
    (
        job(),
        InputFacts(DATA, "s3", objects=1_000_000, bytes=1, is_truncated=True),
        READS_SHARDS,
        "inputs.train.split: s3://b/data/ has more than 1,000,000 objects",
    ),
]


@table(("split_job", "input_facts", "script", "message"), REFUSED_SPLITS)
def test_what_is_refused(
    split_job: dict[str, Any], input_facts: InputFacts, script: ScriptFacts, message: str
) -> None:
    assert any(line.startswith(message) for line in refusals(split_job, world(input_facts, script)))


def test_more_that_is_refused() -> None:
    split_via_alone = {"inputs": {"train": {"uri": DATA, "split_via": "lists"}}}
    assert refusals(split_via_alone, world(facts(SKEWED)))[0].startswith(
        "inputs.train.split_via: it applies to split"
    )
    prefix = job()
    prefix["inputs"]["train"]["uri"] = "s3://b/data"
    assert "end s3://b/data with a slash" in refusals(prefix, world(facts(SKEWED)))[0]
    segments = {
        **job(),
        "limits": {"segment": "1h", "max_runtime": "3h"},
        "segments": [{}, {"compute": {"hosts": 8}}],
    }
    asks = ScriptFacts(imports=frozenset({*READS_SHARDS.imports, "smlaunch.train.Checkpointer"}))
    assert any("one number of hosts" in line for line in refusals(segments, world(facts(SKEWED), asks)))
    mixed = job(split_via="jobs")
    mixed["inputs"]["test"] = {"uri": DATA, "split": "bytes", "split_via": "lists"}
    two_inputs = with_inputs(region(script=READS_SHARDS), {"train": facts(SKEWED), "test": facts(SKEWED)})
    assert any("leave nothing to split for test" in line for line in refusals(mixed, two_inputs))


def test_a_local_folder_is_split_where_it_will_lie() -> None:
    input_facts = InputFacts("data", "local", objects=300, bytes=9, sha256="cd" * 32, files=SKEWED)
    split_job = job()
    split_job["inputs"]["train"]["uri"] = "data"
    job_plan = plan(split_job, with_inputs(local(script=PLAIN), {"train": input_facts}))
    (head, *_) = json.loads(content(job_plan.shard_plans[0], "/train.manifest"))
    assert head["prefix"].endswith("/smlaunch/data/" + "cd" * 32 + "/")


@given(
    sizes=st.lists(st.integers(0, 10_000), min_size=9, max_size=60),
    hosts=st.integers(2, 9),
    script=st.sampled_from([READS_SHARDS, PLAIN]),
)
@settings(max_examples=60, deadline=None)
def test_every_file_is_in_one_part_and_never_worse_than_by_count(
    sizes: list[int], hosts: int, script: ScriptFacts
) -> None:
    (sharding,) = plan(job(hosts), world(facts(files(*sizes)), script)).input_shardings
    assert Counter(name for names in sharding.names_by_host for name in names) == Counter(
        f.name for f in files(*sizes)
    )
    assert max(sharding.bytes_by_host) <= max(sharding.bytes_by_count)
    assert sum(sharding.bytes_by_host) == sum(sharding.bytes_by_count) == sum(sizes)
