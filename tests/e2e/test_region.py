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
    shown = smlaunch("local", "env", "--json").json()
    # Elsewhere than the endpoint's home: nothing of it may be found but through the API.
    yield {**os.environ, **shown, "SMLAUNCH_HOME": str(home / "elsewhere")}
    assert smlaunch("local", "stop").code == 0


def run(environment: dict[str, str], *words: str | Path) -> Outcome:
    return smlaunch(*words, env=environment)


def test_the_same_launch_on_a_region(home: Path, tmp_path: Path, region: dict[str, str]) -> None:
    script = tmp_path / "source" / "train.py"
    script.parent.mkdir()
    script.write_text("import os\nprint('hello from rank', os.environ['RANK'])\n")
    shape = ("--strategy", "ddp", "--hosts", "2", "--name", "abroad")

    dry = run(region, "run", script, *shape, "--dry-run")
    assert dry.code == 0, dry.text
    assert json.loads(dry.out)["TrainingJobName"] == "abroad-s1-a1"
    buckets = [path for path in (home / "s3").iterdir() if not path.name.startswith("_")]
    assert [path for bucket in buckets for path in bucket.rglob("*")] == []
    assert run(region, "ls", "--json").json()["runs"] == []

    ran = run(region, "run", script, *shape)
    assert ran.code == 0, ran.text
    assert "run abroad on us-east-1" in ran.err
    assert all(f"hello from rank {rank}" in ran.out for rank in (0, 1))
    again = run(region, "run", script, *shape)
    assert again.code == 0, again.text
    assert "no new job was started" in again.err
    assert len(run(region, "ls", "--json").json()["runs"]) == 1
