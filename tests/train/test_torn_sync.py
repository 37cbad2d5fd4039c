"""Two hosts save and are killed under the endpoint's own sync, which shuffles, loses and comes late: every
copy of S3, and every host that begins again, finds the newest whole checkpoint.

A seed that failed is run again by SMLAUNCH_CHAOS_SEED=N.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from smlaunch.contract.checkpoint_layout import (
    Manifest,
    Shard,
    commit_content,
    manifest_name,
    parse_step_path,
    shard_name,
    step_directory,
)
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from tests.local.client import EndpointClient
from tests.train.sync_model import COMMIT, Files, Saved
from tests.train.test_torn_copies import check, load_newest

HOSTS = 2
STEPS = 400
SIZE = 20_000

# Contents follow from step, rank and job, so that the leader can commit without a word from the other host:
# a COMMIT is often there long before the parts it speaks of.
SCRIPT = f"""
import hashlib, random, signal
from smlaunch.contract.checkpoint_layout import Shard, shard_name
from smlaunch.train.transports.sync import SyncTransport
from smlaunch.train.checkpoint_store import CheckpointStore
job = os.environ["TRAINING_JOB_NAME"]
config = json.load(open(ROOT + "/input/config/resourceconfig.json"))
rank = sorted(config["hosts"]).index(config["current_host"])
draw = random.Random(job + str(rank))
# Less than the sync needs, now and then: its deletes then come between its uploads.
carrier = SyncTransport(settle_seconds=draw.choice((0.1, 1.0)))
store = CheckpointStore(ROOT + "/checkpoints", rank, {HOSTS}, keep_last=2, job=job, transport=carrier)
newest = store.newest_intact_manifest()
if newest is not None:
    for other in range({HOSTS}):
        store.open_shard(newest, other)
# In one write: the other host's end may kill this one at any time.
os.write(1, b"loaded %a %a\\n" % (newest and newest.step, newest and newest.job))
signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.1, 0.8))

def content(step, rank):
    return ("%d %d %s " % (step, rank, job)).encode() * {SIZE // 20}

def part(step, rank):
    digest = hashlib.sha256(content(step, rank)).hexdigest()
    return Shard(rank, shard_name(rank, {HOSTS}, digest), len(content(step, rank)), digest)

for step in range(1 + (newest.step if newest else 0), {STEPS}):
    store.write_shard(step, [content(step, rank)])
    if rank == 0:
        store.commit(step, [part(step, other) for other in range({HOSTS})])
    else:
        store.mark_committed(step)
    store.delete_old_steps()
    time.sleep(draw.uniform(0, 0.02))
"""


def saved_step(step: int, job: str) -> Saved:
    """Computes the parts and the manifest of a job's save of a step."""
    files: Files = {}
    parts = []
    for rank in range(HOSTS):
        content = f"{step} {rank} {job} ".encode() * (SIZE // 20)
        digest = hashlib.sha256(content).hexdigest()
        parts.append(Shard(rank, shard_name(rank, HOSTS, digest), len(content), digest))
        files[f"{step_directory(step)}/{parts[-1].name}"] = content
    manifest = Manifest(step, HOSTS, tuple(parts), None, job).to_bytes()
    files[f"{step_directory(step)}/{manifest_name(manifest)}"] = manifest
    return Saved(step, commit_content(manifest), files)


def expected(files: Files, jobs: list[str]) -> tuple[Saved, str] | None:
    """Returns the newest complete step that one of the jobs has written, and that job."""
    steps = {step for step in map(parse_step_path, files) if step is not None}
    for step in sorted(steps, reverse=True):
        for job in jobs:
            save = saved_step(step, job)
            commit = files.get(f"{step_directory(step)}/{COMMIT}")
            if commit == save.commit and all(files.get(name) == save.files[name] for name in save.files):
                return save, job
    return None


class Chain:
    """Jobs one after the other on one prefix, on an endpoint of its own."""

    def __init__(self, folder: Path, number: int) -> None:
        draw = Random(number)
        self.settings = Settings(
            checkpoint_sync_seconds=draw.choice((0.02, 0.02, 0.1)),
            checkpoint_sync_order="shuffled",
            checkpoint_sync_loss=draw.choice((0.0, 0.0, 0.05)),
            checkpoint_sync_seed=number,
            checkpoint_last_sync=draw.random() < 0.3,
            failed_peer_grace_seconds=1.0,
        )
        self.folder = folder
        self.jobs: list[str] = []
        self.look_count = 0
        self.whole_count = 0

    def run(self, jobs: int) -> None:
        with Endpoint(self.folder, isolation="plain", settings=self.settings) as info:
            client = EndpointClient(info)
            for _ in range(jobs):
                self._job(client)

    def _job(self, client: EndpointClient) -> None:
        newest = expected(self._copy(client), self.jobs)
        name = f"life-{len(self.jobs)}"
        config = {"S3Uri": "s3://tests/ckpt/", "LocalPath": "/opt/ml/checkpoints"}
        self.jobs.append(name)
        client.create(name, SCRIPT, hosts=HOSTS, CheckpointConfig=config)
        while client.describe(name)["TrainingJobStatus"] == "InProgress":
            self._check_prefix(client)
        self._check_prefix(client)
        lines_by_host = client.printed_lines(name).values()
        # A host whose peer was killed at once may end before it has printed anything.
        loads = [lines[0] for lines in lines_by_host if lines]
        expected_line = f"loaded {newest[0].step} {newest[1]!r}" if newest else "loaded None None"
        assert loads and set(loads) == {expected_line}, (newest and newest[0].step, list(lines_by_host))
        self.look_count += len(loads)
        self.whole_count += len(loads) * (newest is not None)

    def _check_prefix(self, client: EndpointClient) -> None:
        files = self._copy(client)
        newest = expected(files, self.jobs)
        check(load_newest(files), newest[0] if newest else None)
        self.look_count += 1
        self.whole_count += newest is not None

    def _copy(self, client: EndpointClient) -> Files:
        """Copies name by name while the sync continues: one more incomplete copy."""
        return {
            key.removeprefix("ckpt/"): body for key in client.keys("ckpt/") for body in _body(client.s3, key)
        }


def _body(s3: Any, key: str) -> Iterator[bytes]:
    try:
        yield s3.get_object(Bucket="tests", Key=key)["Body"].read()
    except s3.exceptions.NoSuchKey:  # deleted since it was listed
        return


@pytest.mark.real
def test_a_few_chains(tmp_path: Path) -> None:
    chains = [Chain(tmp_path / str(number), number) for number in range(3)]
    for chain in chains:
        chain.run(jobs=3)
    look_count, whole_count = (
        sum(chain.look_count for chain in chains),
        sum(chain.whole_count for chain in chains),
    )
    assert look_count >= 30 and whole_count >= 10, (look_count, whole_count)


@pytest.mark.chaos
def test_many_chains(tmp_path: Path) -> None:
    seed = os.environ.get("SMLAUNCH_CHAOS_SEED")
    numbers = [int(seed)] if seed else range(40)
    chains = []
    for number in numbers:
        chains.append(Chain(tmp_path / str(number), number))
        try:
            chains[-1].run(jobs=4)
        except AssertionError as error:
            raise AssertionError(f"SMLAUNCH_CHAOS_SEED={number}: {error}") from error
    look_count, whole_count = (
        sum(chain.look_count for chain in chains),
        sum(chain.whole_count for chain in chains),
    )
    print(f"{look_count} looks at S3 and starts of hosts, {whole_count} of them with a whole checkpoint")
    assert seed or look_count >= 400
