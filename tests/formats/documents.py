"""One document of every stored format: how this release writes it, and what it reads from it."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from smlaunch.chain.workflow import RunPolicy, SegmentVariant, Workflow
from smlaunch.contract import formats
from smlaunch.contract.checkpoint_layout import Manifest, Shard, commit_content, parse_manifest, shard_name
from smlaunch.contract.launch_spec import CheckpointSpec, Concat, LaunchSpec, RankSpec, Ref, ServiceSpec
from smlaunch.contract.launch_spec_parser import parse_launch_spec
from smlaunch.contract.segment_outcome import (
    CONTINUE,
    FINISHED,
    HostSegmentOutcome,
    SegmentOutcome,
    parse_host_outcome,
    parse_outcome,
)
from smlaunch.contract.shard_lists import ShardList, ShardListIndex
from smlaunch.data.shard_index import ShardIndex, ShardRecord, encode_shard_index, parse_shard_index
from smlaunch.facts.discovered_facts import InputFacts, SourceFacts
from smlaunch.job.model import Job
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.front.credentials import Credentials, encode_credentials
from smlaunch.local.front.credentials import read_credentials as read_credentials
from smlaunch.local.jobs.job_state import initial_state
from smlaunch.local.pipelines.pipeline_records import Execution, Pipeline, StepRecord
from smlaunch.local.pipelines.pipeline_store import PipelineStore
from smlaunch.local.stores.job_store import JobStore
from smlaunch.local.stores.metric_store import MetricStore
from smlaunch.local.stores.object_store import ObjectStore
from smlaunch.planner.plan import job_hashes
from smlaunch.runs.data_upload import DataPrefix
from smlaunch.runs.run_folder import RunFolder, UnsentFiles
from smlaunch.train.snapshot import Snapshotter
from smlaunch.train.tree_format import Buffer, decode_tree, encode_tree
from tests.planner.fixtures import region
from tests.runs.fakes import FakeStorage

GOLDEN = Path(__file__).with_name("golden")
BUCKET, RUN = "bucket", "digits"
DIGEST = "0123456789abcdef" * 4


class Golden(NamedTuple):
    """``read`` returns what this release reads from the bytes; ``value`` is the expected result."""

    name: str
    content: bytes
    read: Callable[[bytes], Any]
    value: Any


OUTCOME = SegmentOutcome(FINISHED, 120, RUN, f"{RUN}-s3-a1", 3, 1, True, 120, False, 4, DIGEST)
RANKS_OF_HOST = HostSegmentOutcome(
    "algo-2", CONTINUE, RUN, f"{RUN}-s3-a1", 3, 1, 120, 4, ((0, f"{RUN}-s2-a1"), (1, f"{RUN}-s3-a1"))
)
MANIFEST = Manifest(
    120,
    2,
    tuple(Shard(rank, shard_name(rank, 2, DIGEST), 1000 + rank, DIGEST) for rank in range(2)),
    7680,
    f"{RUN}-s3-a1",
)
SPEC = LaunchSpec(
    RankSpec(
        (Ref("python"), Ref("source", suffix="/train.py"), Concat(("--at=", Ref("port", offset=1)))),
        (("SEED", "7"),),
        "auto",
    ),
    source="source.tar.gz",
    requirements="requirements.txt",
    max_runtime_seconds=86400,
    hang_seconds=1800.0,
    run=RUN,
    job_hash=DIGEST,
    checkpoints=CheckpointSpec("/opt/ml/checkpoints", f"s3://{BUCKET}/smlaunch/{RUN}/checkpoints/"),
    margin_seconds=600.0,
    services=(ServiceSpec("server", ("serve",), ready_address=Concat((Ref("leader"), ":80"))),),
    source_sha256=DIGEST,
    secrets=(("HF_TOKEN", "secretsmanager:hub/token"),),
)
WORKFLOW = Workflow(
    RUN,
    DIGEST,
    (SegmentVariant(1, {"TrainingJobName": f"{RUN}-s1-a1"}, 1.5, None),),
    RunPolicy(True, 3, 864000, 500.0, True, 5),
    f"s3://{BUCKET}/smlaunch/{RUN}/checkpoints/",
    DIGEST[::-1],
)
SHARDS = ShardListIndex(
    "train", (ShardList("shard-00000.jsonl", 2, 2048), ShardList("shard-00001.jsonl", 1, 1024))
)
INDEX = ShardIndex(
    "stem", 4, 2, 4096, (ShardRecord("shards/shard-00000.tar", 10240, "crc32:0badcafe", 4, 2, "a", "b"),)
)
ENDPOINT = EndpointInfo(
    *("http://127.0.0.1:4000", "us-east-1", "AKIA", "secret", "000000000000", "arn:aws:iam::0:role/r"),
    *("bucket", 17, "plain", "processes", "/home/user/.smlaunch"),
)
DATA = DataPrefix(BUCKET, f"smlaunch/data/{DIGEST}/")
UNSENT = UnsentFiles({".env": "it looks like a secret"}, {"data": "train"}, ("helper.py",))
PARTS = {"the function train": DIGEST, "the argument rate": DIGEST[::-1]}
TREE = {"step": 120, "weights": Buffer("float32", (2,), b"\0\0\x80?\0\0\0@"), "more": (1, float("inf"))}


def documents(folder: Path) -> list[Golden]:
    """``folder``: for what is read and written as a file only."""
    run_folder, storage = RunFolder.for_run(BUCKET, RUN), FakeStorage()
    storage.create_bucket(BUCKET, "us-east-1")
    run_folder.save_shard_runs([f"{RUN}-p1", f"{RUN}-p2"], storage)
    run_folder.save_unsent_files(UNSENT, storage)
    run_folder.save_call_parts(PARTS, storage)
    run_folder.claim_name(RUN, WORKFLOW, storage)
    key = Credentials("AKIA0123456789ABCDEF", "secret")

    def stored_content(name: str) -> bytes:
        return storage.get_bytes(BUCKET, run_folder.prefix + name) or b""

    DATA.save_record(DIGEST, storage)
    stored_record = storage.get_bytes(BUCKET, DATA.record_key) or b""

    def put(name: str, content: bytes, prefix: str = run_folder.prefix) -> FakeStorage:
        other = FakeStorage()
        other.create_bucket(BUCKET, "us-east-1")
        other.put_bytes(BUCKET, prefix + name, content)
        return other

    def claimed_by(content: bytes) -> bool:
        """Whether the name is that of the job with this hash; an error for any other job's."""
        run_folder.require_name_of_job(WORKFLOW, None, put("claim.json", content))
        return True

    def credentials(content: bytes) -> Credentials:
        path = folder / "credentials.json"
        path.write_bytes(content)
        return read_credentials(path)

    return [
        Golden("outcome.json", OUTCOME.to_bytes(), parse_outcome, OUTCOME),
        Golden("host-outcome.json", RANKS_OF_HOST.to_bytes(), parse_host_outcome, RANKS_OF_HOST),
        Golden("manifest.json", MANIFEST.to_bytes(), parse_manifest, MANIFEST),
        Golden("COMMIT", commit_content(MANIFEST.to_bytes()), json.loads, _commit()),
        Golden("checkpoint.shard", b"".join(encode_tree(TREE).chunks()), _tree, TREE),
        Golden("snapshot.shard", _snapshot(), decode_tree, SNAPSHOT),
        Golden("job-hash.json", _hashed_job(), _hash_again, json.loads(_hashed_job())["hash"]),
        Golden("rows.json", _rows(), json.loads, json.loads(_rows())),
        Golden("job.json", SPEC.to_json().encode(), lambda c: parse_launch_spec(c.decode()), SPEC),
        Golden("workflow.json", WORKFLOW.to_json().encode(), Workflow.from_json, WORKFLOW),
        Golden("claim.json", stored_content("claim.json"), claimed_by, True),
        Golden(
            "group.json",
            stored_content("group.json"),
            lambda c: run_folder.load_shard_runs(put("group.json", c)),
            [f"{RUN}-p1", f"{RUN}-p2"],
        ),
        Golden(
            "call-parts.json",
            stored_content("call-parts.json"),
            lambda c: run_folder.load_call_parts(put("call-parts.json", c)),
            PARTS,
        ),
        Golden(
            "excluded.json",
            stored_content("excluded.json"),
            lambda c: run_folder.load_unsent_files(put("excluded.json", c)),
            UNSENT,
        ),
        Golden(
            "data-record.json", stored_record, lambda c: DATA.load_record(put(DATA.record_key, c, "")), DIGEST
        ),
        Golden(
            "shards.json", SHARDS.to_json().encode(), lambda c: ShardListIndex.from_json(c.decode()), SHARDS
        ),
        Golden("index.json", encode_shard_index(INDEX), parse_shard_index, INDEX),
        Golden("endpoint.json", ENDPOINT.to_json(), EndpointInfo.from_json, ENDPOINT),
        Golden("credentials.json", encode_credentials(key), credentials, key),
    ]


def _commit() -> dict[str, str]:
    return {"version": "1.0", "manifest": json.loads(commit_content(MANIFEST.to_bytes()))["manifest"]}


SNAPSHOT = {
    "rank": 0,
    "world_size": 2,
    "step": 120,
    "pieces": [],
    "boxes": [],
    "all_shards_needed": True,
    "own": {"order": {"epoch": 1}},
    "shared": {"model": {"name": "m"}},
    "tensors": [],
}


def _snapshot() -> bytes:
    """The leader's, of a script without tensors."""
    document = Snapshotter(0, 2).take_snapshot(120, SNAPSHOT["shared"], SNAPSHOT["own"]).document
    return b"".join(encode_tree(document).chunks())


HASHED_JOB: dict[str, Any] = {
    "entry": "src/train.py",
    "strategy": "share-nothing",
    "args": ["--epochs", 3],
    "hyperparameters": {"lr": 0.1, "layers": 4, "name": "m", "amp": True},
    "compute": {
        "hosts": 2,
        "processes_per_host": 4,
        "instance_type": "ml.g5.12xlarge",
        "spot": True,
        "on_demand_fallback": True,
        "price_per_hour": 7.5,
    },
    "inputs": {
        "train": {"uri": "s3://bucket/data/", "mode": "FastFile", "split": "bytes"},
        "labels": {"uri": "./labels", "content_type": "text/csv"},
    },
    "requirements": "requirements.txt",
    "environment": {"SEED": 7},
    "limits": {"max_runtime": "60d", "segment": "24h", "max_wait": "61d", "attempts": 5, "max_cost": 500},
    "segments": [{"until_step": 10, "hyperparameters": {"lr": 0.2}}, {"length": "12h"}],
    "checkpoints": {"uri": "s3://bucket/checkpoints/", "keep": 4, "interval": "10m"},
    "output": "s3://bucket/output/",
    "role": "arn:aws:iam::123456789012:role/SageMaker",
    "network_isolation": True,
    "tags": {"team": "vision"},
    "name": RUN,
}
"""A job file with members of all sections, also such as are not hashed."""


def _hashed_job() -> bytes:
    """The job with what is hashed besides it, and its hash."""
    document = {"job": HASHED_JOB, "source": DIGEST, "entry": "train.py", "labels": DIGEST[::-1]}
    return json.dumps({**document, "hash": _hash(document)}, indent=1).encode()


def _hash_again(content: bytes) -> str:
    return _hash(json.loads(content))


def _hash(document: dict[str, Any]) -> str:
    """``labels`` and ``source``: the hashes of a local input and of the source archive."""
    source = SourceFacts("src", document["entry"], document["source"], file_count=1, bytes=1)
    labels = InputFacts("./labels", "local", sha256=document["labels"])
    facts = region(source=source, inputs={"labels": labels})
    return job_hashes(Job.from_mapping(document["job"]), facts).complete


def _rows() -> bytes:
    """Returns the JSON in rows of the databases: states of jobs, pipelines, executions and steps."""
    pipeline = Pipeline("arn", "us-east-1", "p", "{}", "role", 1.0, 2.0, "user", "token")
    execution = Execution(
        *("arn/x", "arn", "p", "us-east-1", "owner", "{}", {"n": 1}, "Executing", 1.0, 2.0, "user", "token")
    )
    rows = {
        "job state": initial_state(1.0, 0.3).to_dict(),
        "pipeline": dataclasses.asdict(pipeline),
        "execution": dataclasses.asdict(execution),
        "step": dataclasses.asdict(StepRecord("arn/x", "arn", "Train", "Training", "Executing", 1.0)),
    }
    return json.dumps(formats.JOBS_DATABASE.with_version(rows), indent=1).encode()


def _tree(content: bytes) -> Any:
    tree = decode_tree(content)
    return {**tree, "weights": tree["weights"]._replace(data=bytes(tree["weights"].data))}


def databases(folder: Path) -> dict[str, Path]:
    """Returns new databases, by their names in the state directory."""
    JobStore(folder / "jobs.sqlite").close()
    PipelineStore(folder / "pipelines.sqlite").close()
    MetricStore(folder / "metrics.sqlite").close()
    (folder / "s3").mkdir()
    ObjectStore(folder / "s3").close()
    names = ("jobs.sqlite", "pipelines.sqlite", "metrics.sqlite", "s3/_store/index.sqlite")
    return {name: folder / name for name in names}


def schema_of(path: Path) -> str:
    connection = sqlite3.connect(path)
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    rows = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name").fetchall()
    connection.close()
    return f"-- user_version {version}\n" + "".join(f"{sql};\n" for (sql,) in rows)


def with_version(document: bytes, version: str | None, **fields: Any) -> bytes:
    """Returns the JSON document with another version, or none, and with further members."""
    fields_written = {**json.loads(document), **fields}
    fields_written.pop("version")
    return json.dumps(fields_written if version is None else {**fields_written, "version": version}).encode()
