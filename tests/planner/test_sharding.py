"""A split by bytes: which way it is carried and why, what each host gets, and what is refused."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.api.validation import check_request
from smlaunch.contract.shard_lists import SHARDS_CHANNEL, ShardListIndex, parse_json_lines
from smlaunch.errors import JobError
from smlaunch.planner.facts import Facts, InputFacts, ScriptFacts, StoredFile
from smlaunch.planner.plan import Plan
from tests.planner.fixtures import TORCH, local, plan, region, with_inputs
from tests.tables import table

ASKS = ScriptFacts(imports=frozenset({"smlaunch.train.shard_files"}))
PLAIN = ScriptFacts(imports=frozenset({"json"}))
DATA = "s3://b/data/"


def files(*sizes: int) -> tuple[StoredFile, ...]:
    return tuple(StoredFile(f"{number:04d} é", size) for number, size in enumerate(sizes))


SKEWED = files(*(int(5_000 * (number + 1) ** -1.1) + 1 for number in range(300)))
SHARDS = tuple(StoredFile(f"shards/shard-{number:05d}.tar", 1000 + number) for number in range(8))


def facts(found: tuple[StoredFile, ...], **more: Any) -> InputFacts:
    return InputFacts(DATA, "s3", objects=len(found), bytes=sum(f.bytes for f in found), files=found, **more)


def job(hosts: int = 4, **channel: Any) -> dict[str, Any]:
    return {"compute": {"hosts": hosts}, "inputs": {"train": {"uri": DATA, "split": "bytes", **channel}}}


def world(found: InputFacts, script: ScriptFacts = PLAIN) -> Facts:
    return with_inputs(region(script=script), {"train": found})


def refusals(job: dict[str, Any], surroundings: Facts) -> list[str]:
    with pytest.raises(JobError) as caught:
        plan(job, surroundings)
    return [str(problem) for problem in caught.value.problems]


def channel(made: Plan, name: str = "train", task: int = 0) -> dict[str, Any]:
    (found,) = (c for c in made.planned_jobs[task].request["InputDataConfig"] if c["ChannelName"] == name)
    return {"mode": found["InputMode"], **found["DataSource"]["S3DataSource"]}


def content(made: Plan, ending: str) -> str:
    (upload,) = (upload for upload in made.uploads if upload.uri.endswith(ending))
    return upload.content or ""


PACKED = facts(SHARDS, shard_names=tuple(shard.name for shard in SHARDS))

CHOICES: list[tuple[dict[str, Any], InputFacts, ScriptFacts, str, str]] = [
    ({}, PACKED, PLAIN, "shards", "similar enough"),
    ({}, PACKED, TORCH, "shards", "similar enough"),
    ({}, facts(SKEWED), ASKS, "lists", "reads its file list"),
    ({}, facts(SKEWED), PLAIN, "jobs", "neither joins ranks nor reads"),
    ({"split_via": "jobs"}, PACKED, ASKS, "jobs", ""),
    ({"split_via": "lists"}, PACKED, ASKS, "lists", ""),
]


@pytest.mark.parametrize(("more", "found", "script", "way", "why"), CHOICES)
def test_which_way(more: dict[str, Any], found: InputFacts, script: ScriptFacts, way: str, why: str) -> None:
    made = plan(job(**more), world(found, script))
    assert [one.split_via for one in made.input_shardings] == [way]
    because = [reason.explanation for reason in made.reasons if reason.rule == "inputs.train.split_via"]
    assert (len(because) == 1 and why in because[0]) if why else because == []
    for task in made.planned_jobs:
        assert list(check_request(task.operation, task.request)) == []


def test_shards_that_differ_too_much_are_not_left_to_the_service() -> None:
    uneven = (*SHARDS[:4], StoredFile("shards/shard-00004.tar", 9000))
    found = facts(uneven, shard_names=tuple(shard.name for shard in uneven))
    assert plan(job(2), world(found, ASKS)).input_shardings[0].split_via == "lists"


def test_shards_are_dealt_out_by_the_service() -> None:
    made = plan(job(), world(facts((StoredFile("index.json", 300), *SHARDS), shard_names=PACKED.shard_names)))
    assert channel(made) == {
        "mode": "File",
        "S3DataType": "S3Prefix",
        "S3Uri": DATA + "shards/",
        "S3DataDistributionType": "ShardedByS3Key",
    }
    assert sum(made.input_shardings[0].bytes_by_host) == sum(shard.bytes for shard in SHARDS)


def test_hosts_that_read_parts_do_not_do_the_same_work() -> None:
    for found in (PACKED, facts(SKEWED)):
        assert not any("same work" in warning for warning in plan(job(), world(found, PLAIN)).warnings)


def test_lists_hold_every_file_once() -> None:
    made = plan(job(), world(facts(SKEWED), ASKS))
    assert channel(made)["mode"] == "FastFile"
    assert channel(made)["S3DataDistributionType"] == "FullyReplicated"
    assert channel(made, SHARDS_CHANNEL)["S3Uri"].endswith("/smlaunch/digits/shards/")
    index = ShardListIndex.from_json(content(made, "/shards/train/shards.json"))
    sizes = {file.name: file.bytes for file in SKEWED}
    names: Counter[str] = Counter()
    for part, load in zip(index.shards, made.input_shardings[0].bytes_by_host, strict=True):
        own = parse_json_lines(content(made, f"/shards/train/{part.file}").splitlines())
        assert (len(own), sum(sizes[name] for name in own)) == (part.files, load) and part.bytes == load
        names.update(own)
    assert names == Counter(list(sizes))


def test_jobs_have_a_manifest_each() -> None:
    made = plan(job(), world(facts(SKEWED)))
    assert [task.name for task in made.planned_jobs] == [f"digits-p{number}-s1-a1" for number in range(1, 5)]
    names: Counter[str] = Counter()
    for number, part in enumerate(made.shard_plans):
        own = channel(made, task=number)
        assert (own["mode"], own["S3DataType"]) == ("File", "ManifestFile")
        assert part.planned_jobs[0].request["ResourceConfig"]["InstanceCount"] == 1
        assert part.workflow.policy.attempts == 3 and not part.workflow.is_single_job
        head, *listed = json.loads(content(made, own["S3Uri"].removeprefix("s3://")))
        assert head == {"prefix": DATA}
        names.update(listed)
    assert names == Counter(file.name for file in SKEWED)
    assert made.cost.per_hour == pytest.approx(4 * (made.shard_plans[0].cost.per_hour or 0))
    assert len({upload.uri for upload in made.uploads}) == len(made.uploads)


def test_what_parts_share_is_shared_out() -> None:
    kept = {"checkpoints": "s3://b/ck", "limits": {"max_cost": 100, "attempts": 2}}
    made = plan({**job(), **kept}, world(facts(SKEWED)))
    assert [part.checkpoints.uri for part in made.shard_plans if part.checkpoints] == [
        f"s3://b/ck/p{number}/" for number in range(1, 5)
    ]
    assert made.shard_plans[0].workflow.policy.attempts == 2
    assert made.shard_plans[0].job_hash == made.shard_plans[3].job_hash == made.job_hash
    assert made.cost.maximum is not None and made.cost.maximum <= 100


def test_a_part_without_files_is_no_job() -> None:
    made = plan(job(), world(facts(files(5, 6, 7))))
    assert len(made.shard_plans) == 3
    assert any("1 of 4 hosts get no file" in warning for warning in made.warnings)


def test_the_plan_shows_what_each_host_gets() -> None:
    made = plan(job(), world(facts(SKEWED), ASKS))
    (shown,) = made.to_dict()["parts"]
    assert (shown["split_via"], shown["hosts"], shown["objects"]) == ("lists", 4, 300)
    assert [part["host"] for part in shown["parts"]] == [0, 1, 2, 3]
    assert sum(part["bytes"] for part in shown["parts"]) == sum(
        part["bytes_by_count"] for part in shown["parts"]
    )
    assert 1.0 <= shown["imbalance"] < 1.01 < shown["imbalance_by_count"]
    (line,) = (line for line in str(made).splitlines() if line.startswith("  parts of train"))
    assert "a host (1.00" in line and "by count up to" in line
    assert "FastFile mode, each host reads its own list" in str(made)


def test_one_file_larger_than_a_share_is_told() -> None:
    made = plan(job(), world(facts(files(1000, 1, 1, 1)), ASKS))
    assert any("3.99 times an equal share" in w for w in made.warnings)


def test_processing_jobs_copy_so_that_lists_spare_nothing() -> None:
    made = plan({**job(), "strategy": "processing"}, world(facts(SKEWED), ASKS))
    assert [one.split_via for one in made.input_shardings] == ["jobs"]
    inputs = made.planned_jobs[1].request["ProcessingInputs"]
    (own,) = (found["S3Input"] for found in inputs if found["InputName"] == "train")
    assert own["S3DataType"] == "ManifestFile" and own["S3Uri"].endswith("/digits-p2/shards/train.manifest")
    lists = {**job(split_via="lists"), "strategy": "processing"}
    assert any(
        line.startswith("inputs.train.split_via: a pro") for line in refusals(lists, world(facts(SKEWED)))
    )


def test_one_host_gets_all_of_it() -> None:
    made = plan(job(1), world(facts(SKEWED)))
    assert made.input_shardings == () and channel(made)["mode"] == "File"


REFUSED: list[tuple[dict[str, Any], InputFacts, ScriptFacts, str]] = [
    (job(), facts(SKEWED), TORCH, "inputs.train.split: train.py joins ranks (torch.distributed)"),
    (job(), facts(files(0)[:0]), ASKS, "inputs.train: s3://b/data/ h"),
    (
        job(),
        facts((*SHARDS, StoredFile("x", 1)), shard_names=PACKED.shard_names),
        PLAIN,
        "inputs.train.uri: besides its",
    ),
    (job(split_via="shards"), facts(SKEWED), PLAIN, "inputs.train.split_via: s3://b/data/ has no index.json"),
    (job(split_via="lists", mode="Pipe"), facts(SKEWED), ASKS, "inputs.train.mode: a pipe cannot be read"),
    (
        job(split_via="jobs", mode="FastFile"),
        facts(SKEWED),
        PLAIN,
        "inputs.train.mode: each part's job gets a man",
    ),
    (
        job(split_via="shards", mode="FastFile"),
        PACKED,
        PLAIN,
        "inputs.train.mode: SageMaker does not document",
    ),
    (job(), facts((StoredFile("a//b", 1), *SKEWED)), ASKS, "inputs.train: 'a//b' has an empty folder name"),
    (job(), facts((StoredFile("../b", 1), *SKEWED)), ASKS, "inputs.train: '../b' has a folder name '.'"),
    (
        {**job(split_via="jobs"), "strategy": "ddp"},
        facts(SKEWED),
        TORCH,
        "strategy: ddp joins the ranks of all hosts",
    ),
    (
        job(),
        InputFacts(DATA, "s3", objects=1_000_000, bytes=1, is_truncated=True),
        ASKS,
        "inputs.train.split: s3://b/data/ has more than 1,000,000 objects",
    ),
]


@table(("asked", "found", "script", "said"), REFUSED)
def test_what_is_refused(asked: dict[str, Any], found: InputFacts, script: ScriptFacts, said: str) -> None:
    assert any(line.startswith(said) for line in refusals(asked, world(found, script)))


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
    asks = ScriptFacts(imports=frozenset({*ASKS.imports, "smlaunch.train.Checkpointer"}))
    assert any("one number of hosts" in line for line in refusals(segments, world(facts(SKEWED), asks)))
    mixed = job(split_via="jobs")
    mixed["inputs"]["test"] = {"uri": DATA, "split": "bytes", "split_via": "lists"}
    both = with_inputs(region(script=ASKS), {"train": facts(SKEWED), "test": facts(SKEWED)})
    assert any("leave nothing to split for test" in line for line in refusals(mixed, both))


def test_a_local_folder_is_split_where_it_will_lie() -> None:
    found = InputFacts("data", "local", objects=300, bytes=9, sha256="cd" * 32, files=SKEWED)
    asked = job()
    asked["inputs"]["train"]["uri"] = "data"
    made = plan(asked, with_inputs(local(script=PLAIN), {"train": found}))
    (head, *_) = json.loads(content(made, "/digits-p1/shards/train.manifest"))
    assert head["prefix"].endswith("/smlaunch/data/" + "cd" * 32 + "/")


@given(
    sizes=st.lists(st.integers(0, 10_000), min_size=9, max_size=60),
    hosts=st.integers(2, 9),
    script=st.sampled_from([ASKS, PLAIN]),
)
@settings(max_examples=60, deadline=None)
def test_every_file_is_in_one_part_and_never_worse_than_by_count(
    sizes: list[int], hosts: int, script: ScriptFacts
) -> None:
    (one,) = plan(job(hosts), world(facts(files(*sizes)), script)).input_shardings
    assert Counter(name for names in one.names_by_host for name in names) == Counter(
        f.name for f in files(*sizes)
    )
    assert max(one.bytes_by_host) <= max(one.bytes_by_count)
    assert sum(one.bytes_by_host) == sum(one.bytes_by_count) == sum(sizes)
