"""A plan in a notebook's cell, and its table of machines: complete, and without markup of the job's texts."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.planner.plan import Candidate
from smlaunch.render.candidates import MAX_SHOWN_ROWS, candidate_table_lines
from smlaunch.render.plan import Plan
from smlaunch.render.plan_text import as_text
from tests.planner.fixtures import local, plan, region
from tests.planner.test_segments import chain

WORK = {"time_on_one": "40h", "wanted_time": "12h"}
VOID = ("br", "hr", "img", "input", "meta", "link")


class Page(HTMLParser):
    """The page as a browser shows it; fails if a tag is not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += data


def page(job_plan: Plan) -> Page:
    return Page(job_plan._repr_html_())


def test_it_says_all_that_the_text_says() -> None:
    job_plan = plan({"workload": WORK, "limits": {"max_runtime": "1d"}, "tags": {"team": "a"}})
    rendered = page(job_plan)
    for reason in job_plan.reasons:
        assert reason.explanation in rendered.text
        assert reason.rule in rendered.text
    assert job_plan.run in rendered.text
    assert job_plan.image in rendered.text
    assert f"Machines compared: {len(job_plan.candidates)}" in rendered.text
    assert '"TrainingJobName": "digits-s1-a1"' in rendered.text
    chosen = [
        attributes for tag, attributes in rendered.tags if tag == "tr" and attributes.get("class") == "chosen"
    ]
    assert len(chosen) == 1


def test_requests_are_folded_and_a_long_chain_shows_its_first() -> None:
    job_plan = chain({"limits": {"max_runtime": "60d", "segment": "24h"}})
    rendered = page(job_plan)
    folds = [attributes for tag, attributes in rendered.tags if tag == "details"]
    assert sum("open" in attributes for attributes in folds) <= 2
    assert f"and {len(job_plan.planned_jobs) - MAX_SHOWN_ROWS} more requests" in rendered.text
    assert rendered.text.count('"TrainingJobName"') == MAX_SHOWN_ROWS


def test_it_has_no_ground_of_its_own_and_touches_nothing_else() -> None:
    html = plan()._repr_html_()
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    for rule in re.findall(r"^([^\s{][^{]*)\{", style[1], re.MULTILINE):
        assert all(part.strip().startswith(".smlaunch") for part in rule.split(","))
    for colour in re.findall(r"background:\s*([^;]+);", style[1]):
        assert colour.removesuffix(" !important") == "none" or colour.startswith("rgba(128, 128, 128")
    assert "<script" not in html


_EVIL = [
    "<script>alert(1)</script>",
    "</pre></details>",
    '"><img src=x onerror=y>',
    "a&lt;b",
    "\x1b[31m",
    "\x00",
]


@pytest.mark.parametrize("evil", _EVIL[:-1])
def test_what_the_job_holds_is_text(evil: str) -> None:
    job = {
        "hyperparameters": {"note": evil},
        "environment": {"NOTE": evil},
        "args": [evil],
        "tags": {"team": "x"},
        "output": "s3://b/o/",
    }
    source = dataclasses.replace(region().source, root=evil, entry="train.py")
    job_plan = plan(job, local(source=source))
    rendered = page(job_plan)
    assert not {"script", "img"} & {tag for tag, _ in rendered.tags}
    assert "\x1b" not in job_plan._repr_html_()
    assert not [attributes for _, attributes in rendered.tags if "onerror" in attributes]


_WORDS = st.text(max_size=30)


@settings(max_examples=60, deadline=None)
@given(_WORDS, _WORDS, st.booleans(), st.integers(1, 64))
def test_any_candidate_is_shown(name: str, objection: str, timed: bool, hosts: int) -> None:
    spans: dict[str, Any] = (
        {"seconds": (1.0, 2e6), "dollars": (0.0, 1e5), "per_hour": (0.1, 3.0)} if timed else {}
    )
    candidates = (
        Candidate("ddp", "ml.g5.xlarge", 1, 1, chosen=True),
        Candidate("ddp", name, hosts, 8, **spans),
        Candidate("ddp", name, hosts, 8, rule="time.too-slow", objection=objection, **spans),
    )
    job_plan = dataclasses.replace(plan(), candidates=candidates)
    page(job_plan)
    text = as_text(job_plan)
    assert all(line.isprintable() for line in text.splitlines())
    assert "Machines compared: 3, of which 2 are suitable" in text


# ---- in the terminal -------------------------------------------------------------------------------------


def test_the_table_marks_what_is_chosen_and_counts_the_others() -> None:
    job_plan = plan({"workload": WORK})
    lines = candidate_table_lines(job_plan.candidates)
    marked = [line for line in lines if line.startswith("  * ")]
    assert len(marked) == 1
    assert marked[0].split()[1:4] == ["1", "x", job_plan.instance_type]
    assert any(line.endswith("[scale.up-before-out]") for line in lines)
    assert len([line for line in lines if line.startswith("    1 x ml.")]) <= MAX_SHOWN_ROWS


def test_colours_are_only_painted_where_they_are_asked_for() -> None:
    job_plan = plan({"workload": WORK, "compute": {"instance_type": "ml.g5.48xlarge"}})
    painted: list[tuple[str, str]] = []

    def paint(kind: str, text: str) -> str:
        painted.append((kind, text))
        return text

    assert as_text(job_plan, paint) == as_text(job_plan) == str(job_plan)
    kinds = {kind for kind, _ in painted}
    assert "heading" in kinds
    assert ("heading", "Why") in painted
