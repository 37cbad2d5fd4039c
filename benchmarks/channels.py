"""A File channel of 100,000 small files: from CreateTrainingJob to the status Training, against `cp -r` of
the same tree on the same disk. At level plain the job copies too; at the others it is shown the store through
an overlay. Goal: at most twice the copy.

    python benchmarks/channels.py [FILES] [ROUNDS]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import boto3
from harness import interleave, report

from smlaunch.local.endpoint import Endpoint
from smlaunch.local.executors.isolation_levels import ISOLATION_LEVELS, probe_isolation_level
from smlaunch.local.stores.object_store import ObjectStore

BYTES = 100
FOLDERS = 100
GOAL = 2.0


def fill(home: Path, files: int) -> Path:
    """Puts the objects where the endpoint will find them; returns the tree to copy."""
    store = ObjectStore(home / "s3")
    store.create_bucket("bench")
    for number in range(files):
        key = f"data/{number % FOLDERS:03}/{number:06}"
        store.put_object_bytes("bench", key, number.to_bytes(4, "big") * (BYTES // 4))
    store.close()
    return home / "s3" / "bench" / "data"


class Job:
    """Called, it runs one job and returns the seconds from its creation to Training."""

    def __init__(self, home: Path, level: str) -> None:
        self._endpoint = Endpoint(home, isolation=level)
        self._info = self._endpoint.start()
        self._numbers = count()
        session = boto3.Session(self._info.access_key, self._info.secret_key, region_name=self._info.region)
        self._client = session.client("sagemaker", endpoint_url=self._info.url)

    def __call__(self) -> float:
        name = f"bench-{self._info.isolation}-{next(self._numbers)}-{time.time_ns()}"
        self._client.create_training_job(**self._request(name))
        job = self._client.describe_training_job(TrainingJobName=name)
        while job["TrainingJobStatus"] == "InProgress":
            time.sleep(0.05)
            job = self._client.describe_training_job(TrainingJobName=name)
        assert job["TrainingJobStatus"] == "Completed", job.get("FailureReason")
        began = {entry["Status"]: entry["StartTime"] for entry in job["SecondaryStatusTransitions"]}
        return float((began["Training"] - job["CreationTime"]).total_seconds())

    def _request(self, name: str) -> dict[str, Any]:
        source = {
            "S3DataType": "S3Prefix",
            "S3Uri": "s3://bench/data/",
            "S3DataDistributionType": "FullyReplicated",
        }
        return {
            "TrainingJobName": name,
            "RoleArn": self._info.role_arn,
            "AlgorithmSpecification": {
                "TrainingImage": "image",
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["true"],
            },
            "InputDataConfig": [{"ChannelName": "train", "DataSource": {"S3DataSource": source}}],
            "OutputDataConfig": {"S3OutputPath": "s3://bench/out"},
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1},
        }

    def close(self) -> None:
        self._endpoint.close()


def copying(tree: Path, folder: Path) -> Callable[[], float]:
    def copy() -> float:
        target = folder / "copy"
        started = time.perf_counter()
        subprocess.run(["cp", "-r", tree, target], check=True)
        seconds = time.perf_counter() - started
        shutil.rmtree(target)
        return seconds

    return copy


def main(files: int, rounds: int) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        tree = fill(home, files)
        measures: dict[str, Callable[[], float]] = {"cp -r": copying(tree, Path(folder))}
        jobs = {level: Job(home, level) for level in ISOLATION_LEVELS if probe_isolation_level(level).works}
        try:
            measures.update({f"job, level {level}": job for level, job in jobs.items()})
            figures = interleave(measures, rounds)
        finally:
            for job in jobs.values():
                job.close()
    print(f"{files} files of {BYTES} bytes in {FOLDERS} directories, one host")
    return report(figures, "cp -r", {name: GOAL for name in measures if name != "cp -r"})


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(not main(*given, *(100_000, 3)[len(given) :]))
