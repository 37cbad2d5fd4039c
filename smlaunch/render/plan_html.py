"""Render a plan for a notebook cell: the same content as its text, in collapsible tables. All text is
escaped.

Text has the notebook's own colour, as no other is readable on both light and dark backgrounds: the chosen
row is bold and has a star, and colour is only a line beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from smlaunch.planner.plan import Candidate, RunPlan
from smlaunch.render.candidates import (
    CANDIDATE_COLUMNS,
    MAX_SHOWN_ROWS,
    candidate_cells,
    candidate_table_heading,
    describe_candidate_hosts,
    group_rejections_by_rule,
)
from smlaunch.render.html_text import escape_html, key_value_table
from smlaunch.render.plan_text import describe_launch_steps, plan_headline, summary_rows
from smlaunch.secrets.masking import mask_document

_STYLE_SHEET = """
.smlaunch table {border-collapse: collapse; margin: .4em 0 !important;}
.smlaunch tr {background: none !important;}
.smlaunch th, .smlaunch td {text-align: left !important; vertical-align: top; padding: .15em .8em .15em 0;
  border-bottom: 1px solid rgba(128, 128, 128, .35); background: none; font-size: 100%;}
.smlaunch th {font-weight: 600; white-space: nowrap;}
.smlaunch .chosen td {font-weight: 600;}
.smlaunch .chosen td:first-child {border-left: .25em solid #2e8b57; padding-left: .4em;}
.smlaunch .warning {border-left: .25em solid #d08000; padding-left: .4em;}
.smlaunch .rule {opacity: .6; font-size: 90%;}
.smlaunch ul, .smlaunch ol {margin: .2em 0 .4em 1.4em; padding: 0;}
.smlaunch summary {cursor: pointer; font-weight: 600; margin-top: .4em;}
.smlaunch pre {white-space: pre-wrap; overflow-wrap: anywhere; max-height: 30em; overflow-y: auto;
  background: rgba(128, 128, 128, .12); padding: .5em;}
"""


def plan_as_html(plan: RunPlan) -> str:
    """Return one HTML element with its own style sheet, which affects nothing else: headline, summary, then
    reasons, warnings, compared machines, actions and requests in collapsible blocks."""
    html_blocks = [
        f"<style>{_STYLE_SHEET}</style>",
        f"<p><strong>{escape_html(plan_headline(plan))}</strong></p>",
        key_value_table(summary_rows(plan)),
    ]
    # Each reason with the name of the rule that it comes from.
    reason_items = (
        f'{escape_html(reason.explanation)} <span class="rule">{escape_html(reason.rule)}</span>'
        for reason in plan.reasons
    )
    html_blocks.append(_collapsible_block("Why", _list_element("ul", reason_items), is_open=True))
    if plan.warnings:
        warning_items = (f'<span class="warning">{escape_html(warning)}</span>' for warning in plan.warnings)
        html_blocks.append(_collapsible_block("Warnings", _list_element("ul", warning_items), is_open=True))
    # Candidates: the machines that the plan has compared; a single one needs no table.
    if len(plan.candidates) > 1:
        heading = candidate_table_heading(plan.candidates)
        html_blocks.append(_collapsible_block(heading, "".join(_candidate_table_html(plan)), is_open=True))
    action_items = map(escape_html, describe_launch_steps(plan))
    html_blocks.append(_collapsible_block("Actions", _list_element("ol", action_items)))
    # The first job of each segment of the run.
    html_blocks += (
        _request_html(planned_job.operation, planned_job.name, planned_job.request)
        for planned_job in plan.planned_jobs[:MAX_SHOWN_ROWS]
    )
    hidden_request_count = len(plan.planned_jobs) - MAX_SHOWN_ROWS
    if hidden_request_count > 0:
        html_blocks.append(f"<p>and {hidden_request_count} more requests, in <code>plan.requests</code></p>")
    return f'<div class="smlaunch">{"".join(html_blocks)}</div>'


def _candidate_table_html(plan: RunPlan) -> Iterator[str]:
    """Yield the table of suitable machines, a star at the chosen ones, and a list with the first that each
    rule rejects and the number of the others. Candidates: the machines (type and number of hosts)
    compared."""
    suitable = [candidate for candidate in plan.candidates if candidate.is_feasible]
    yield "<table><tr>" + "".join(f"<th>{column}</th>" for column in CANDIDATE_COLUMNS) + "</tr>"
    for candidate in suitable[:MAX_SHOWN_ROWS]:
        # &#9733; is a star.
        css_class, star = (' class="chosen"', "&#9733; ") if candidate.chosen else ("", "")
        cells_html = "</td><td>".join(escape_html(cell) for cell in candidate_cells(candidate))
        yield f"<tr{css_class}><td>{star}{cells_html}</td></tr>"
    yield "</table>"
    if len(suitable) > MAX_SHOWN_ROWS:
        yield f"<p>and {len(suitable) - MAX_SHOWN_ROWS} more suitable ones</p>"
    rejection_items = (
        _rejection_html(rule_name, first_rejected, rejected_count)
        for rule_name, first_rejected, rejected_count in group_rejections_by_rule(plan.candidates)
    )
    yield _collapsible_block("Rejected", _list_element("ul", rejection_items))


def _rejection_html(rule: str, candidate: Candidate, count: int) -> str:
    more_text = f", and {count - 1} more" if count > 1 else ""
    reason = f'{escape_html(candidate.objection)} <span class="rule">{escape_html(rule)}</span>'
    return f"{escape_html(describe_candidate_hosts(candidate))}{more_text}: {reason}"


def _request_html(operation: str, name: str, request: object) -> str:
    request_json = json.dumps(mask_document(request), indent=2, default=str)
    return _collapsible_block(
        f"{operation} {name}", f"<pre>{escape_html(request_json, keep_lines=True)}</pre>"
    )


def _list_element(kind: str, items: Iterable[str]) -> str:
    """``items``: already escaped."""
    return f"<{kind}>{''.join(f'<li>{item}</li>' for item in items)}</{kind}>"


def _collapsible_block(title: str, content: str, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{escape_html(title)}</summary>{content}</details>"
