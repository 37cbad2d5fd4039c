"""Work through files that are split over hosts by bytes; no host needs another.

    smlaunch run entrypoints/share_nothing.py --hosts 4 --input train=s3://bucket/data/,split=bytes

Each host takes its own part (``smlaunch.train.shard_files``), whichever way it comes: from packed shards, by
a list, or as a job of its own. A file is records, one to a line, that begin with a name; a shard is a tar of
such files. Of every record the name and a hash of the rest go to ``<job>-<host>.jsonl`` in the output.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from smlaunch.train import shard_files


def main() -> None:
    parser = argparse.ArgumentParser(description="hash every record of this host's files")
    parser.add_argument("--rate", type=float, help="MB a second, at most")
    rate = parser.parse_args().rate

    started = time.monotonic()
    paths = shard_files("train")
    folder = Path(os.environ.get("SM_OUTPUT_DATA_DIR", "."))
    folder.mkdir(parents=True, exist_ok=True)
    job = os.environ.get("TRAINING_JOB_NAME", "here")
    host = os.environ.get("SM_CURRENT_HOST", "localhost")
    records = size_bytes = 0
    with (folder / f"{job}-{host}.jsonl").open("w") as out:
        for number, path in enumerate(paths, start=1):
            for record in records_of(path):
                name, _, payload = record.partition(b" ")
                row = {"name": name.decode(), "sha256": hashlib.sha256(payload).hexdigest()}
                out.write(json.dumps(row) + "\n")
                records += 1
            size_bytes += Path(path).stat().st_size
            if rate is not None:
                time.sleep(max(0.0, started + size_bytes / 1e6 / rate - time.monotonic()))
            print(f"smlaunch: progress step={number} steps={len(paths)}", flush=True)
    elapsed_seconds = time.monotonic() - started
    print(
        f"part: files={len(paths)} bytes={size_bytes} records={records} seconds={elapsed_seconds:.2f}",
        flush=True,
    )


def records_of(path: str) -> Iterator[bytes]:
    if not path.endswith(".tar"):
        with Path(path).open("rb") as file:
            yield from lines(file)
        return
    with tarfile.open(path) as shard:
        for member in shard:
            file = shard.extractfile(member) if member.isfile() else None
            if file is not None:
                yield from lines(file)  # type: ignore[arg-type]


def lines(file: BinaryIO) -> Iterator[bytes]:
    for line in file:
        record = line.rstrip(b"\n")
        if record:
            yield record


if __name__ == "__main__":
    main()
