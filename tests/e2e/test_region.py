"""The way to a region: the default credentials chain and region of the environment, no ``--local`` anywhere.

The service behind AWS_ENDPOINT_URL is the background endpoint, which the client takes for a region like any.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.command import Outcome, smlaunch


@pytest.fixture
def region(home: Path) -> Iterator[dict[str, str]]:
    assert smlaunch("local", "start").code == 0
    settings = smlaunch("local", "env", "--json").json()
    # Elsewhere than the endpoint's home: nothing of it may be found but through the API.
    yield {**os.environ, **settings, "SMLAUNCH_HOME": str(home / "elsewhere")}
    assert smlaunch("local", "stop").code == 0


def run(environment: dict[str, str], *arguments: str | Path) -> Outcome:
    return smlaunch(*arguments, env=environment)


def test_the_same_launch_on_a_region(home: Path, tmp_path: Path, region: dict[str, str]) -> None:
    script = tmp_path / "source" / "train.py"
    script.parent.mkdir()
    script.write_text("import os\nprint('hello from rank', os.environ['RANK'])\n")
    shape = ("--strategy", "ddp", "--hosts", "2", "--name", "abroad")

    dry_run = run(region, "run", script, *shape, "--dry-run")
    assert dry_run.code == 0, dry_run.text
    assert json.loads(dry_run.out)["TrainingJobName"] == "abroad-s1-a1"
    buckets = [path for path in (home / "s3").iterdir() if not path.name.startswith("_")]
    assert [path for bucket in buckets for path in bucket.rglob("*")] == []
    assert run(region, "ls", "--json").json()["runs"] == []

    result = run(region, "run", script, *shape)
    assert result.code == 0, result.text
    assert "\nin region us-east-1: 2 x ml.m5.xlarge\n" in result.err
    assert all(f"hello from rank {rank}" in result.out for rank in (0, 1))
    second_result = run(region, "run", script, *shape)
    assert second_result.code == 0, second_result.text
    assert "no new job was started" in second_result.err
    assert len(run(region, "ls", "--json").json()["runs"]) == 1
