"""A rule is added by one file (docs/extending.md)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.planner import rules
from tests.planner.fixtures import make_plan, region

ROOT = Path(__file__).parent
PAGE = ROOT.parent.parent / "docs" / "extending.md"


@pytest.fixture
def with_the_example() -> Iterator[None]:
    """The example lies in the package, as far as Python can see."""
    rules.__path__.append(str(ROOT / "rules"))
    rules.all_rules.cache_clear()
    yield
    rules.__path__.pop()
    rules.all_rules.cache_clear()


def test_the_page_shows_the_example() -> None:
    assert (ROOT / "rules" / "company_tags.py").read_text() in PAGE.read_text()


@pytest.mark.usefixtures("with_the_example")
def test_a_rule_is_applied_because_its_file_is_there() -> None:
    job = {"entry": "train.py"}
    with pytest.raises(JobError) as caught:
        make_plan(Job.from_mapping(job), region(), "digits")
    assert [problem.path for problem in caught.value.problems] == ["tags"]
    make_plan(Job.from_mapping({**job, "tags": {"cost-center": "7"}}), region(), "digits")
