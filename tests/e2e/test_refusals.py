"""The command against a region: a job that cannot work ends with 2, and no request has changed anything."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.account_environment import environment_without_account
from tests.e2e.command import Outcome, smlaunch
from tests.e2e.reading_region import READING, Region, serve_region
from tests.planner.bad_jobs import Case, cases, write_source

CASES_RUN = (
    "spot beyond an hour without checkpoints",
    "more hosts than objects",
    "nothing where the data should be",
    "more hosts than the account may have",
    "mistakes of the file together with what the plan refuses",
    "a misspelled key, and a script that is not there, and a quota",
    "everything about capacity",
    "an account without a role or a quota, and a cap that cannot hold",
)


def run(folder: Path, url: str, *arguments: str, role: bool = True) -> Outcome:
    environment = {
        **environment_without_account(),
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "SMLAUNCH_HOME": str(folder / "home"),
        **({"SMLAUNCH_ROLE": "arn:aws:iam::123456789012:role/train"} if role else {}),
    }
    return smlaunch(*arguments, env=environment, cwd=folder)


@pytest.mark.parametrize(
    "case", [case for case in cases() if case.name in CASES_RUN], ids=lambda case: case.name
)
def test_a_bad_job_is_told_whole_and_changes_nothing(case: Case, tmp_path: Path) -> None:
    write_source(case, tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(case.job))
    files_before = sorted(tmp_path.rglob("*"))
    region = Region(case.world.get("objects", {}), case.world.get("quotas", {}))
    with serve_region(region) as url:
        result = run(tmp_path, url, "run", "job.yaml", role=case.world.get("role") is not False)
    assert result.code == 2, result.text
    assert result.out == ""
    assert "Traceback" not in result.err
    for field, expected_words in case.says.items():
        lines = [line for line in result.err.splitlines() if f"{field}: " in line]
        for word in expected_words:
            assert any(word in line for line in lines), (field, word, result.err)
    assert set(region.operations) <= READING, region.operations
    assert sorted(tmp_path.rglob("*")) == files_before


def test_a_job_that_could_work_would_have_been_seen_writing(tmp_path: Path) -> None:
    """A control: without this, the test above could never fail."""
    (tmp_path / "train.py").write_text("print('hello')\n")
    region = Region({}, {})
    with serve_region(region) as url:
        result = run(tmp_path, url, "run", "train.py")
    assert result.code == 3, result.text
    assert set(region.operations) - READING


def test_on_this_machine_too_nothing_is_staged(home: Path, tmp_path: Path) -> None:
    (case,) = (case for case in cases() if case.name == "everything about a request's sizes")
    write_source(case, tmp_path)
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(case.job))
    result = smlaunch("run", tmp_path / "job.yaml", "--local")
    assert result.code == 2, result.text
    for field in case.says:
        assert f"  {field}: " in result.err
    buckets = [path for path in (home / "s3").iterdir() if not path.name.startswith("_")]
    assert [path for bucket in buckets for path in bucket.rglob("*")] == []
    assert smlaunch("ls", "--local", "--json").json()["runs"] == []


def test_each_case_is_among_the_sixty() -> None:
    assert set(CASES_RUN) <= {case.name for case in cases()}


def test_without_a_region_that_answers_the_mistakes_are_told_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("entry: train.py\ncompute: {hosts: two}\nlimits: {max_runtim: 3h}\n")
    result = run(tmp_path, "http://127.0.0.1:9", "run", "job.yaml")
    assert result.code == 2
    assert "compute.hosts:" in result.err
    assert "limits.max_runtim:" in result.err
