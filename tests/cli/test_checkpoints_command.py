"""``smlaunch checkpoints`` on a run that saved some, one of them damaged in S3."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.conftest import Shell

SAVING_SCRIPT = """\
import os
from smlaunch.train.tree_format import encode_tree
from smlaunch.train.checkpoint_store import CheckpointStore
store = CheckpointStore(os.environ["SMLAUNCH_CHECKPOINTS"], 0, 1, job=os.environ["SMLAUNCH_JOB"])
for step in (10, 20):
    part = store.write_shard(step, encode_tree({"step": step}).chunks())
    store.commit(step, [part], total_samples=step * 2)
store.write_shard(30, encode_tree({"step": 30}).chunks())
"""

DIRECT_UPLOAD_SCRIPT = """\
import os
from pathlib import Path
from smlaunch.contract.checkpoint_layout import Shard, shard_name
from smlaunch.contract.segment import Segment
from smlaunch.train.transports import open_transport
from smlaunch.train.checkpoint_store import CheckpointStore
import hashlib
segment = Segment.from_environment(os.environ)
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
names = {"job": segment.job, "writer": segment.writer}
store = CheckpointStore(segment.checkpoint_dir, rank, world_size, transport=open_transport(segment), **names)
newest = store.newest_intact_manifest([rank])
there = sorted(path.name[:10] for path in Path(store.directory).rglob("rank-*"))
print("rank", rank, "began with", newest and newest.step, there, flush=True)

def content(step, rank):
    return b"%d %d " % (step, rank) * 1000

# Ranks that cannot talk: each knows what the others have written, and the leader commits unseen.
for step in (1, 2):
    store.write_shard(step + (newest.step if newest else 0), [content(step, rank)])
    digests = [hashlib.sha256(content(step, other)).hexdigest() for other in range(world_size)]
    parts = [Shard(r, shard_name(r, world_size, d), len(content(step, r)), d) for r, d in enumerate(digests)]
    if rank == 0:
        store.commit(step + (newest.step if newest else 0), parts)
"""
JOB = """\
entry: carries.py
strategy: ddp
compute: {hosts: 2, processes_per_host: 1}
checkpoints: {uri: "s3://sagemaker-us-east-1-000000000000/carried/", upload: direct}
"""


def test_hosts_that_carry_their_own_parts(endpoint_shell: Shell) -> None:
    """Two jobs of two hosts, one after the other: each host of the second downloads its own part only."""
    (endpoint_shell.folder / "carries.py").write_text(DIRECT_UPLOAD_SCRIPT)
    (endpoint_shell.folder / "carries.yaml").write_text(JOB)
    for name, began in (("carried-1", "None []"), ("carried-2", "2 ['rank-0000{}']")):
        result = endpoint_shell("run", "carries.yaml", "--local", "--name", name)
        assert result.code == 0, result.err
        first_lines = sorted(
            line.partition("rank ")[2] for line in result.out.splitlines() if "began with" in line
        )
        assert first_lines == [f"{rank} began with {began.format(rank)}" for rank in range(2)]
    uri = "s3://sagemaker-us-east-1-000000000000/carried/"
    verification = endpoint_shell("checkpoints", "verify", uri, "--local")
    assert verification.out.splitlines() == [f"step {step}: verified" for step in (4, 3, 2, 1)]


def test_list_and_verify(endpoint_shell: Shell) -> None:
    script = endpoint_shell.folder / "saves.py"
    script.write_text(SAVING_SCRIPT)
    uri = "s3://keeps/ckpt/"
    result = endpoint_shell("run", script, "--local", "--name", "keeps", "--checkpoints", uri, "--json")
    assert result.code == 0, result.err
    listing = endpoint_shell("checkpoints", "ls", "keeps", "--local")
    head, *rows = [re.split(r"\s{2,}", line) for line in listing.out.splitlines()]
    assert head == ["STEP", "RANKS", "SIZE", "SAMPLES", "JOB", "STATE"]
    assert [(row[0], row[-1]) for row in rows] == [
        ("30", "not committed"),
        ("20", "complete"),
        ("10", "complete"),
    ]
    assert rows[1][1] == "1" and rows[1][3:5] == ["40", "keeps-s1-a1"]
    assert "keeps-s1-a1: finished" in listing.err
    assert endpoint_shell("checkpoints", "verify", "keeps", "--local").out.splitlines() == [
        "step 20: verified",
        "step 10: verified",
    ]

    home = Path(endpoint_shell.environment["SMLAUNCH_HOME"])
    (part,) = (home / "s3" / "keeps" / "ckpt").glob("smlaunch/step-000000000020/rank-*")
    part.write_bytes(b"x" + part.read_bytes()[1:])
    assert endpoint_shell("checkpoints", "verify", uri, "--local", "--step", "10").code == 0
    failed_verification = endpoint_shell("checkpoints", "verify", uri, "--local", "--json")
    assert failed_verification.code == 1
    row_by_step = {row["step"]: row for row in json.loads(failed_verification.out)["checkpoints"]}
    assert row_by_step[10]["whole"] and not row_by_step[20]["whole"]
    assert row_by_step[20]["problems"] == [f"{part.name}: its content is not what the manifest says"]
    uncommitted = endpoint_shell("checkpoints", "verify", uri, "--local", "--step", "30")
    assert (uncommitted.code, uncommitted.out) == (0, "step 30: not committed\n")
    (manifest,) = (home / "s3" / "keeps" / "ckpt").glob("smlaunch/step-000000000010/manifest*")
    manifest.unlink()
    torn = endpoint_shell("checkpoints", "verify", uri, "--local", "--step", "10")
    assert (torn.code, torn.out) == (1, "step 10: incomplete: its manifest is missing or torn\n")

    document = json.loads(endpoint_shell("checkpoints", "ls", uri, "--local", "--json").out)
    assert [row["step"] for row in document["checkpoints"]] == [30, 20, 10]
    assert document["outcome"]["result"] == "finished"


def test_what_cannot_be_found(endpoint_shell: Shell) -> None:
    missing = endpoint_shell("checkpoints", "verify", "s3://nowhere/here", "--local", "--step", "3")
    assert missing.code == 2 and "3 is not below s3://nowhere/here/; steps there: none" in missing.err
    empty = endpoint_shell("checkpoints", "ls", "s3://nowhere/here", "--local")
    assert (empty.code, empty.out) == (0, "") and "no checkpoints below" in empty.err
    assert endpoint_shell("checkpoints", "ls", "no-such-run", "--local").code == 2
