"""Skewed files split by bytes over four hosts, in each of three ways: every record is processed once."""

from __future__ import annotations

import json
import random
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import ENTRYPOINTS, Outcome, smlaunch

HOSTS = 4
SCRIPT = ENTRYPOINTS / "share_nothing.py"

_PART = re.compile(r"(\S+) part: files=(\d+) bytes=(\d+) records=(\d+)")


def write_skewed(folder: Path, files: int, seed: int = 7) -> int:
    """Writes files of very different sizes under hostile names. Returns the number of records."""
    rng = random.Random(seed)
    count = 0
    for number in range(files):
        odd = ("plain", "with space", "é中", ".hidden", "a\nb", 'quo"te', "%41+&", "deep/er/still")[
            number % 8
        ]
        path = folder / f"{odd}-{number:04d}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        for _ in range(min(int(20 * rng.paretovariate(0.9)), 900)):
            lines.append(f"r{count} {rng.randbytes(20).hex()}\n")
            count += 1
        path.write_text("".join(lines))
    (folder / "empty.txt").write_text("")
    return count


def processed_keys(home: Path, run: str) -> Iterator[str]:
    """Yields the names of all records in the run's output."""
    for archive in home.glob(f"s3/*/smlaunch/{run}*/output/*/output/output.tar.gz"):
        with tarfile.open(archive) as tar:
            for member in tar:
                file = tar.extractfile(member)
                if file is not None:
                    yield from (json.loads(line)["name"] for line in file)


def parts_of(log: str) -> dict[str, tuple[int, int]]:
    """Returns bytes and records of each host, as the host reported them."""
    return {row[0]: (int(row[2]), int(row[3])) for row in _PART.findall(log)}


def run(name: str, uri: Path, input_options: str = "", script: Path = SCRIPT, *options: str) -> Outcome:
    arguments = [
        "--hosts",
        str(HOSTS),
        "--input",
        f"train={uri},split=bytes{input_options}",
        "--local",
        "--name",
        name,
    ]
    return smlaunch("run", script, *arguments, *options)


def planned_sharding(uri: Path) -> dict[str, Any]:
    options = ["--hosts", str(HOSTS), "--input", f"train={uri},split=bytes", "--local", "--json"]
    (sharding,) = smlaunch("plan", SCRIPT, *options).json()["input_shardings"]
    return dict(sharding)


def test_every_record_once_in_each_of_the_three_ways(home: Path, tmp_path: Path) -> None:
    data, shards = tmp_path / "data", tmp_path / "packed"
    count = write_skewed(data, 150)
    result = smlaunch("data", "pack", data, shards, "--shards", "8")
    assert result.code == 0, result.text
    plan = planned_sharding(data)
    assert plan["imbalance"] <= 1.001 < plan["imbalance_by_count"]
    for way, uri, input_options in (
        ("lists", data, ""),
        ("jobs", data, ",split_via=jobs"),
        ("shards", shards, ""),
    ):
        result = run(way, uri, input_options)
        assert result.code == 0, result.text
        parts = parts_of(result.out)
        assert len(parts) == HOSTS, result.text
        assert sum(records for _, records in parts.values()) == count
        names = Counter(processed_keys(home, way))
        assert set(names.values()) == {1} and len(names) == count
        sizes = sorted(size for size, _ in parts.values())
        if way != "shards":
            # The run does what the plan predicted.
            assert sizes == sorted(shard["bytes"] for shard in plan["shards"])
        assert sizes[-1] <= 1.05 * sum(sizes) / HOSTS


FAILS_ONCE = """\
import os, sys
job = os.environ["TRAINING_JOB_NAME"]
if job.endswith("-p2-s1-a1"):
    sys.exit("this host has a bad day")
found = []
for folder, _, names in os.walk(os.environ["SM_CHANNEL_TRAIN"]):
    found += [os.path.join(folder, name) for name in names]
print("part: files=%d bytes=%d records=0" % (len(found), sum(map(os.path.getsize, found))))
"""


@pytest.fixture
def failing_script(tmp_path: Path) -> Path:
    script = tmp_path / "source" / "work.py"
    script.parent.mkdir()
    script.write_text(FAILS_ONCE)
    return script


def test_a_part_that_fails_is_tried_again_alone(home: Path, tmp_path: Path, failing_script: Path) -> None:
    """The script does not handle parts: the plan recognizes that, and makes a job for each."""
    data = tmp_path / "data"
    write_skewed(data, 40)
    result = run("again", data, "", failing_script, "--json")
    assert result.code == 0, result.text
    jobs = [job["name"] for job in result.json()["jobs"]]
    assert jobs == ["again-p1-s1-a1", "again-p2-s1-a1", "again-p2-s1-a2", "again-p3-s1-a1", "again-p4-s1-a1"]
    assert [shard["status"] for shard in result.json()["shards"]] == ["Completed"] * HOSTS
    sizes = [size for size, _ in parts_of(smlaunch("logs", "again", "--local").out).values()]
    assert sum(sizes) == sum(path.stat().st_size for path in data.rglob("*") if path.is_file())


@pytest.mark.real
def test_a_run_in_parts_is_one_run(home: Path, tmp_path: Path, failing_script: Path) -> None:
    data = tmp_path / "data"
    write_skewed(data, 40)
    result = run("once", data, "", failing_script, "--attempts", "1")
    assert result.code == 1, result.text
    assert "3 of 4 shards have completed" in result.err
    details = smlaunch("show", "once", "--local", "--json").json()
    assert (details["status"], details["exit_code"], len(details["jobs"])) == ("Failed", 1, HOSTS)
    second_result = run("once", data, "", failing_script, "--attempts", "1")
    assert (second_result.code, "exists already with the same job" in second_result.err) == (1, True)
    resume_result = smlaunch("resume", "once", "--local", "--json")
    assert resume_result.code == 0, resume_result.text
    assert [job["name"] for job in resume_result.json()["jobs"]][1:3] == ["once-p2-s1-a1", "once-p2-s1-a2"]
    assert smlaunch("stop", "once", "--local").out == "once: completed in all 4 shards\n"
    assert smlaunch("wait", "once", "--local").code == 0
