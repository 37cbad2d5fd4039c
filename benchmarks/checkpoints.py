"""A checkpoint directory of 10,000 files: its sync to S3 while a job runs (two scans, files are copied) and
when it has ended (files are moved), against `cp -r` of the same tree on the same disk. Goal: twice the copy.

    python benchmarks/checkpoints.py [FILES] [ROUNDS]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from harness import interleave, report

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs.job_spec import S3Location
from smlaunch.local.jobs.s3_folder_sync import S3FolderSync
from smlaunch.local.stores.object_store import ObjectStore

BYTES = 1000
FOLDERS = 100
GOAL = 2.0


def fill(folder: Path, files: int) -> None:
    for number in range(FOLDERS):
        (folder / f"{number:03}").mkdir(parents=True)
    for number in range(files):
        (folder / f"{number % FOLDERS:03}" / f"{number:06}").write_bytes(bytes(BYTES))


def main(files: int, rounds: int) -> bool:
    numbers = count()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        host = JobHost("algo-1", "algo-1", "127.0.0.1", folder / "ml", "/opt/ml")
        tree = host.opt_ml_folder / "checkpoints"
        store = ObjectStore(folder / "s3")
        store.create_bucket("bench")

        def copy() -> float:
            fill(tree, files)
            target = folder / "copy"
            started = time.perf_counter()
            subprocess.run(["cp", "-r", tree, target], check=True)
            seconds = time.perf_counter() - started
            shutil.rmtree(target)
            return seconds

        def sync(final: bool) -> float:
            where = S3Location("bench", f"checkpoints-{next(numbers)}")
            syncing = S3FolderSync(where, "/opt/ml/checkpoints", [host], store, Settings(), print_note)
            started = time.perf_counter()
            if final:
                syncing.finish()
            else:
                syncing._sync_once(hosts_have_ended=False)
                syncing._sync_once(hosts_have_ended=False)
            seconds = time.perf_counter() - started
            found = sum(1 for _ in store.list_objects(where.bucket, where.join_key("")))
            assert found == files, f"{found} of {files} arrived"
            if final:
                shutil.rmtree(tree)
            return seconds

        measures = {
            "cp -r": copy,
            "sync while training": lambda: sync(final=False),
            "last sync": lambda: sync(final=True),
        }
        figures = interleave(measures, rounds)
        store.close()
    print(f"{files} files of {BYTES} bytes in {FOLDERS} directories")
    return report(figures, "cp -r", dict.fromkeys(("sync while training", "last sync"), GOAL))


def print_note(label: str, text: str) -> None:
    print(f"{label}: {text}")


if __name__ == "__main__":
    given = [int(word) for word in sys.argv[1:]]
    sys.exit(not main(*given, *(10_000, 5)[len(given) :]))
