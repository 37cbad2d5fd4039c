"""The job files on the pages about inputs, processing and secrets are jobs, and can be planned."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from smlaunch.job.model import Job
from tests.planner.fixtures import make_plan, region
from tests.tables import table

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = ("inputs.md", "processing.md", "secrets.md")
JOB_FILES = [
    (page, text)
    for page in PAGES
    for text in re.findall(r"^```yaml\n(.*?)^```$", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
]


def test_every_page_has_one() -> None:
    assert {page for page, _ in JOB_FILES} == set(PAGES)


@table(("page", "text"), JOB_FILES)
def test_it_is_planned(page: str, text: str) -> None:
    job = Job.from_mapping(yaml.safe_load(text))
    assert len(make_plan(job, region(), "docs").requests) == 1
