"""webdataset itself reads the shards of `smlaunch data pack`."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from random import Random

from smlaunch.data.pack import FolderSource, PackOptions, pack
from smlaunch.data.pack_destination import FolderDestination
from tests.real.conftest import program

READ = """
import hashlib, json, sys
import webdataset
samples = {}
for sample in webdataset.WebDataset(sys.argv[1], shardshuffle=False, empty_check=False):
    key = sample["__key__"]
    assert key not in samples, key
    fields = {name: body for name, body in sample.items() if not name.startswith("__")}
    samples[key] = {name: hashlib.sha256(body).hexdigest() for name, body in fields.items()}
print(json.dumps(samples))
"""


def test_webdataset_reads_every_sample_once_and_whole(tmp_path: Path) -> None:
    random = Random(0)
    expected_samples: dict[str, dict[str, str]] = {}
    for number in range(300):
        folder = tmp_path / "src" / f"ünï {number % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("jpg", "seg.png", "cls")[: 1 + number % 3]:
            body = random.randbytes(random.randint(0, 3000))
            (folder / f"s-{number:04}.{kind}").write_bytes(body)
            fields = expected_samples.setdefault(f"{folder.name}/s-{number:04}", {})
            fields[kind] = hashlib.sha256(body).hexdigest()
        # Sorts between the files of one sample.
        if number % 50 == 0:
            (folder / f"s-{number:04}.k").mkdir()
            (folder / f"s-{number:04}.k" / "in.txt").write_bytes(b"between")
            expected_samples[f"{folder.name}/s-{number:04}.k/in"] = {
                "txt": hashlib.sha256(b"between").hexdigest()
            }
    result = pack(
        FolderSource(tmp_path / "src"), FolderDestination(tmp_path / "dst"), PackOptions(shard_count=7)
    )
    assert len(result.index.shards) == 7 and result.index.samples == len(expected_samples)
    shards = str(tmp_path / "dst" / "shards" / "shard-{00000..00006}.tar")
    read = subprocess.run(
        [program("clients", "python"), "-c", READ, shards], capture_output=True, text=True, timeout=120
    )
    assert read.returncode == 0, read.stderr
    assert json.loads(read.stdout) == expected_samples
