"""Render a plan for a notebook cell: the same content as its text, in collapsible tables. All text is
escaped.

Text has the notebook's own colour, as no other is readable on both light and dark backgrounds: the chosen
row is bold and has a star, and colour is only a line beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape

from smlaunch.planner.plan import Candidate, Plan
from smlaunch.planner.render_candidates import (
    COLUMNS,
    MAX_SHOWN,
    candidate_cells,
    comparison_heading,
    describe_machines,
    rejections_by_rule,
)
from smlaunch.planner.render_text import headline, launch_steps, summary_rows
from smlaunch.secrets.masking import mask_document, mask_text
from smlaunch.text.format import escape_unprintable

_STYLE = """
.smlaunch table {border-collapse: collapse; margin: .4em 0;}
.smlaunch th, .smlaunch td {text-align: left; vertical-align: top; padding: .15em .8em .15em 0;
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


def as_html(plan: Plan) -> str:
    """One element with its own style sheet, which affects nothing else."""
    parts = [f"<style>{_STYLE}</style>", f"<p><strong>{_escaped(headline(plan))}</strong></p>"]
    parts.append(_pairs_table(summary_rows(plan)))
    reasons = (
        f'{_escaped(reason.explanation)} <span class="rule">{_escaped(reason.rule)}</span>'
        for reason in plan.reasons
    )
    parts.append(_details("Why", _list_html("ul", reasons), is_open=True))
    if plan.warnings:
        warnings = _list_html(
            "ul", (f'<span class="warning">{_escaped(warning)}</span>' for warning in plan.warnings)
        )
        parts.append(_details("Warnings", warnings, is_open=True))
    if len(plan.candidates) > 1:
        parts.append(
            _details(comparison_heading(plan.candidates), "".join(_candidates_html(plan)), is_open=True)
        )
    parts.append(_details("Actions", _list_html("ol", map(_escaped, launch_steps(plan)))))
    parts += (
        _request_html(planned_job.operation, planned_job.name, planned_job.request)
        for planned_job in plan.planned_jobs[:MAX_SHOWN]
    )
    if len(plan.planned_jobs) > MAX_SHOWN:
        parts.append(
            f"<p>and {len(plan.planned_jobs) - MAX_SHOWN} more requests, in <code>plan.requests</code></p>"
        )
    return f'<div class="smlaunch">{"".join(parts)}</div>'


def _candidates_html(plan: Plan) -> Iterator[str]:
    """Yield the table of suitable instance types, and the rejected ones with the rules that reject them."""
    suitable = [candidate for candidate in plan.candidates if candidate.is_feasible]
    yield "<table><tr>" + "".join(f"<th>{name}</th>" for name in COLUMNS) + "</tr>"
    for candidate in suitable[:MAX_SHOWN]:
        css_class, star = (' class="chosen"', "&#9733; ") if candidate.chosen else ("", "")
        cells_html = "</td><td>".join(_escaped(cell) for cell in candidate_cells(candidate))
        yield f"<tr{css_class}><td>{star}{cells_html}</td></tr>"
    yield "</table>"
    if len(suitable) > MAX_SHOWN:
        yield f"<p>and {len(suitable) - MAX_SHOWN} more suitable ones</p>"
    rejected = (_rejection_html(*rejection) for rejection in rejections_by_rule(plan.candidates))
    yield _details("Rejected", _list_html("ul", rejected))


def _rejection_html(rule: str, candidate: Candidate, count: int) -> str:
    more_text = f", and {count - 1} more" if count > 1 else ""
    reason = f'{_escaped(candidate.objection)} <span class="rule">{_escaped(rule)}</span>'
    return f"{_escaped(describe_machines(candidate))}{more_text}: {reason}"


def _request_html(operation: str, name: str, request: object) -> str:
    request_json = json.dumps(mask_document(request), indent=2, default=str)
    return _details(f"{operation} {name}", f"<pre>{_escaped(request_json, keep_lines=True)}</pre>")


def _pairs_table(pairs: Iterable[tuple[str, str]]) -> str:
    rows = (f"<tr><th>{_escaped(label)}</th><td>{_escaped(value)}</td></tr>" for label, value in pairs)
    return f"<table>{''.join(rows)}</table>"


def _list_html(kind: str, items: Iterable[str]) -> str:
    """``items``: already escaped."""
    return f"<{kind}>{''.join(f'<li>{item}</li>' for item in items)}</{kind}>"


def _details(title: str, content: str, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{_escaped(title)}</summary>{content}</details>"


def _escaped(text: str, keep_lines: bool = False) -> str:
    """Escape text, mask secrets and escape unprintable characters. ``keep_lines``: keep line breaks."""
    masked = mask_text(text)
    masked_lines = masked.split("\n") if keep_lines else [masked]
    return escape("\n".join(escape_unprintable(masked_line) for masked_line in masked_lines))
