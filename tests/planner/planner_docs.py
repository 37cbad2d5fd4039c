"""The generated parts of docs/planner.md: ``python -m tests.planner.planner_docs`` writes them anew."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from smlaunch.catalog.catalog_tables import load_catalog_table
from smlaunch.catalog.prices import PRICE_ERROR_BY_CONFIDENCE
from smlaunch.planner.rules import rules_of
from smlaunch.planner.rules.rule import Rule
from smlaunch.render.candidates import candidate_table_lines
from smlaunch.render.plan import Plan
from smlaunch.render.plan_text import plan_headline
from smlaunch.storage.workload_estimate import MODEL_MEMORY_SHARE, STARTUP_RANGE
from tests.planner.test_workloads import WORKLOADS, plan_workload

PAGE = Path(__file__).parent.parent.parent / "docs" / "planner.md"

_COMPUTE = ("compute.", "capacity.", "instance-type.", "strategy.", "scaling.", "efa.", "inputs.", "segment.")
"""Reasons that belong to the choice; the others are every plan's."""


def parts() -> dict[str, str]:
    """Returns the text of every generated part, by the name in its markers."""
    return {
        "strategy rules": "\n".join(_strategy_rules()),
        "rules": "\n".join(_rules()),
        "figures": "\n".join(_figures()),
        "workloads": "\n".join(line for name in sorted(WORKLOADS) for line in _workload(name)),
    }


def _strategy_rules() -> Iterator[str]:
    yield "| order | rule | strategy | source |"
    yield "|---|---|---|---|"
    for rule in rules_of("choose strategy"):
        yield f"| {rule.order} | `{rule.id}` | {rule.summary} | {_source_link(rule)} |"


def _rules() -> Iterator[str]:
    yield "| rule | rejected | field that is reported if no machines are left | source |"
    yield "|---|---|---|---|"
    for rule in rules_of("choose machines"):
        yield f"| `{rule.id}` | {rule.summary} | `{rule.fields[0]}` | {_source_link(rule)} |"
    best_practices = "https://docs.aws.amazon.com/sagemaker/latest/dg/distributed-training-options.html"
    link = f"[scale vertically first]({best_practices})"
    yield f"| `scale.up-before-out` | several hosts if one is enough | | {link} |"


def _source_link(rule: Rule[Any, Any]) -> str:
    return f"[{rule.quote}]({rule.source.removeprefix('docs/')})"


def _figures() -> Iterator[str]:
    yield "| accelerator | 16-bit arithmetic, 10^12/s | memory, GB/s | source |"
    yield "|---|---|---|---|"
    for name, row in load_catalog_table("accelerators")["accelerators"].items():
        yield f"| {name} | {row['tflops']} | {row['gb_per_second']:,} | {row['source']} |"
    yield ""
    yield "| what is kept of linear speed-up | at least | at most | source |"
    yield "|---|---|---|---|"
    for row in load_catalog_table("accelerators")["efficiency"].values():
        yield f"| {row['what']} | {row['low']:.2f} | {row['high']:.2f} | {row['source']} |"
    yield ""
    spreads = ", ".join(
        f"{spread:.0%} at {name} confidence" for name, spread in PRICE_ERROR_BY_CONFIDENCE.items()
    )
    yield f"A price may be off by {spreads}."
    yield (
        f"Until training begins {STARTUP_RANGE} are billed, and the time in which `File` channels are copied."
    )
    yield f"A model may take {MODEL_MEMORY_SHARE:.0%} of an accelerator's memory. All of this is assumed."


def _workload(name: str) -> Iterator[str]:
    workload = WORKLOADS[name]
    with tempfile.TemporaryDirectory() as folder:
        job_plan = plan_workload(workload, Path(folder))
    yield f"### {workload['title']}"
    yield ""
    yield workload["described"].strip()
    yield ""
    yield "```yaml"
    yield yaml.safe_dump(workload["job"], sort_keys=False, default_flow_style=None, width=100).strip()
    yield "```"
    yield ""
    quotes = (f"> {row['quote']} ({_source(row['source'])})" for row in workload["because"])
    yield "\n>\n".join(quotes)
    yield ""
    yield f"**{_choice_text(job_plan)}**"
    yield ""
    for reason in job_plan.reasons:
        if reason.rule.startswith(_COMPUTE):
            yield f"- {reason.explanation} `{reason.rule}`"
    for warning in job_plan.warnings:
        yield f"- Warning: {warning}"
    yield ""
    if len(job_plan.candidates) > 1:
        yield "```"
        yield from candidate_table_lines(job_plan.candidates)
        yield "```"
        yield ""


def _source(text: str) -> str:
    """Returns a source without its number among the project's documents."""
    return re.sub(r"^seed \d+, ", "", text).replace("facts, ", "the reference, ")


def _choice_text(job_plan: Plan) -> str:
    choice = re.sub(r"^Run work: |, in region us-east-1$", "", plan_headline(job_plan))
    return f"{choice}, on {job_plan.hosts} x {job_plan.instance_type}" + (
        f", in {len(job_plan.segments)} segments" if len(job_plan.segments) > 1 else ""
    )


def with_parts(page: str, generated: dict[str, Any]) -> str:
    """Returns the page with the text between the markers replaced."""
    for name, text in generated.items():
        begin, end = f"<!-- generated: {name} -->\n", f"<!-- end: {name} -->"
        text_before, marker, text_after = page.partition(begin)
        assert marker, name
        page = text_before + begin + text.rstrip() + "\n" + end + text_after.partition(end)[2]
    return page


def main() -> None:
    PAGE.write_text(with_parts(PAGE.read_text(encoding="utf-8"), parts()), encoding="utf-8")


if __name__ == "__main__":
    main()
