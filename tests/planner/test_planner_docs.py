"""docs/planner.md says what the planner does: its generated parts are those of today."""

from __future__ import annotations

import re

from smlaunch.planner.launch_choices import GOYAL_2017, MALLADI_2022, MAX_LINEAR_BATCH
from tests.planner.fixtures import plan
from tests.planner.planner_docs import PAGE, parts, with_parts


def test_the_page_is_of_today() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_parts(page, parts()), "python -m tests.planner.planner_docs writes it anew"


def test_what_stands_by_hand_is_so() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert GOYAL_2017.rpartition(" ")[2] in page
    assert MALLADI_2022.rpartition(" ")[2] in page
    assert f"{MAX_LINEAR_BATCH:,} samples" in page.replace("\n", " ")


def test_the_keys_of_the_document() -> None:
    _, _, section = PAGE.read_text(encoding="utf-8").partition("## JSON output")
    rows = re.findall(r"^\| (`.*?) \|", section.partition("\n## ")[0], re.MULTILINE)
    assert re.findall(r"`(\w+)`", "".join(rows)) == list(plan().to_dict())
