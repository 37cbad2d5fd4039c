"""A plan in a notebook's cell: the same as its text, as tables that open and close. All of it is escaped.

Text has the notebook's own colour, since no other one reads well on light and on dark ground alike: what is
chosen is bold and has a star, and colour is only a line beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from html import escape

from smlaunch.masking import mask, mask_text
from smlaunch.planning.plan import Plan
from smlaunch.planning.prose import visible
from smlaunch.planning.show import decisions, headline, steps
from smlaunch.planning.show_candidates import HEADER, SHOWN, cells, heading, machines, objections

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
    """One element with a style sheet of its own, which touches nothing outside of it."""
    parts = [f"<style>{_STYLE}</style>", f"<p><strong>{_text(headline(plan))}</strong></p>"]
    parts.append(_pairs(decisions(plan)))
    reasons = (
        f'{_text(reason.because)} <span class="rule">{_text(reason.rule)}</span>' for reason in plan.reasons
    )
    parts.append(_fold("Why", _list("ul", reasons), is_open=True))
    if plan.warnings:
        warnings = _list("ul", (f'<span class="warning">{_text(one)}</span>' for one in plan.warnings))
        parts.append(_fold("Watch out", warnings, is_open=True))
    if len(plan.candidates) > 1:
        parts.append(_fold(heading(plan.candidates), "".join(_candidates(plan)), is_open=True))
    parts.append(_fold("What launching does", _list("ol", map(_text, steps(plan)))))
    parts += (_request(task.operation, task.name, task.request) for task in plan.tasks[:SHOWN])
    if len(plan.tasks) > SHOWN:
        parts.append(f"<p>and {len(plan.tasks) - SHOWN} more requests, in <code>plan.requests</code></p>")
    return f'<div class="smlaunch">{"".join(parts)}</div>'


def _candidates(plan: Plan) -> Iterator[str]:
    fitting = [one for one in plan.candidates if one.feasible]
    yield "<table><tr>" + "".join(f"<th>{name}</th>" for name in HEADER) + "</tr>"
    for one in fitting[:SHOWN]:
        kind, star = (' class="chosen"', "&#9733; ") if one.chosen else ("", "")
        row = "</td><td>".join(_text(cell) for cell in cells(one))
        yield f"<tr{kind}><td>{star}{row}</td></tr>"
    yield "</table>"
    if len(fitting) > SHOWN:
        yield f"<p>and {len(fitting) - SHOWN} more that would do</p>"
    rejected = (
        f"{_text(machines(one))}{f', and {count - 1} more' if count > 1 else ''}: {_text(one.because)} "
        f'<span class="rule">{_text(rule)}</span>'
        for rule, one, count in objections(plan.candidates)
    )
    yield _fold("Not these", _list("ul", rejected))


def _request(operation: str, name: str, request: object) -> str:
    text = json.dumps(mask(request), indent=2, default=str)
    return _fold(f"{operation} {name}", f"<pre>{_text(text, lines=True)}</pre>")


def _pairs(pairs: Iterable[tuple[str, str]]) -> str:
    rows = (f"<tr><th>{_text(label)}</th><td>{_text(value)}</td></tr>" for label, value in pairs)
    return f"<table>{''.join(rows)}</table>"


def _list(kind: str, items: Iterable[str]) -> str:
    """``items``: already escaped."""
    return f"<{kind}>{''.join(f'<li>{item}</li>' for item in items)}</{kind}>"


def _fold(title: str, content: str, is_open: bool = False) -> str:
    return f"<details{' open' if is_open else ''}><summary>{_text(title)}</summary>{content}</details>"


def _text(text: str, lines: bool = False) -> str:
    """Escaped, secrets masked, and without what a reader could not see; ``lines``: its line ends stay."""
    shown = mask_text(text)
    parts = shown.split("\n") if lines else [shown]
    return escape("\n".join(visible(part) for part in parts))
