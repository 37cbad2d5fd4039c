"""Render the card of a run for a notebook's cell: its state, progress, metrics and cost, and how it ended.

All text is escaped, and nothing is a script. Text has the notebook's own colour, as no other is readable on
both light and dark backgrounds: the state's colour is only a line beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from smlaunch.render.html_text import escape_html, key_value_table

State = Literal["running", "completed", "failed", "stopped"]

_COLOUR_BY_STATE: Mapping[State, str] = {
    "running": "#3a7bd5",
    "completed": "#2e8b57",
    "failed": "#d03030",
    "stopped": "#d08000",
}

_MAX_SHOWN_METRICS = 12
_MAX_SHOWN_TRACEBACK_LINES = 60
_CURVE_WIDTH, _CURVE_HEIGHT = 320.0, 56.0
_CURVE_MARGIN = 3.0
"""For half of the line's width."""

_STYLE_SHEET = """
.smlaunch-run {border-left: .25em solid; padding: .1em 0 .1em .8em; margin: .3em 0; max-width: 46em;}
.smlaunch-run p {margin: .2em 0; overflow-wrap: anywhere;}
.smlaunch-run table {border-collapse: collapse; margin: .4em 0 !important; display: table;}
.smlaunch-run tr {background: none !important;}
.smlaunch-run th, .smlaunch-run td {text-align: left !important; vertical-align: top; border: 0;
  padding: .1em .8em .1em 0; background: none; font-size: 100%; overflow-wrap: anywhere;
  max-width: none !important; white-space: normal !important;}
.smlaunch-run th {font-weight: 600; white-space: nowrap !important;}
.smlaunch-run .bar {height: .45em; max-width: 320px; border-radius: .2em;
  background: rgba(128, 128, 128, .3);}
.smlaunch-run .bar div {height: 100%; border-radius: .2em;}
.smlaunch-run svg {display: block; width: 100%; max-width: 320px; height: 56px; margin-top: .4em;
  background: rgba(128, 128, 128, .12);}
.smlaunch-run .note {opacity: .7; font-size: 90%;}
.smlaunch-run pre {white-space: pre-wrap; overflow-wrap: anywhere; max-height: 16em; overflow-y: auto;
  background: rgba(128, 128, 128, .12); padding: .5em; margin: .4em 0;}
"""


@dataclass(frozen=True)
class Curve:
    """The course of a metric."""

    metric: str
    points: Sequence[tuple[float, float]]
    """Steps, which do not decrease, and values. A value may be NaN or infinite."""
    has_steps: bool = True
    """False where the script has reported no step: then they are numbers of reports."""


@dataclass(frozen=True)
class RunCard:
    """What a card shows, as texts for people."""

    run: str
    headline: str
    """What the run does, or how it ended."""
    state: State
    rows: Sequence[tuple[str, str]] = ()
    """Labels and values."""
    progress: str = ""
    """Step, speed and remaining time; empty where the script has reported nothing."""
    fraction_done: float | None = None
    """Between 0 and 1; None where it is not known."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The newest ones."""
    curve: Curve | None = None
    traceback: str = ""
    """Of the process that failed first."""
    hint: str = ""
    """What helps, or what to call next."""
    note: str = ""
    """Such as when this was read."""


def run_card_as_html(card: RunCard) -> str:
    """Return one HTML element with its own style sheet, which affects nothing else."""
    colour = _COLOUR_BY_STATE[card.state]
    blocks = [
        f"<style>{_STYLE_SHEET}</style>",
        f"<p><strong>{escape_html(card.run)}</strong>: {escape_html(card.headline)}</p>",
    ]
    if card.fraction_done is not None:
        percent = 100 * min(1.0, max(0.0, card.fraction_done))
        bar = f'<div style="width: {percent:.1f}%; background: {colour}"></div>'
        blocks.append(f'<div class="bar">{bar}</div>')
    if card.progress:
        blocks.append(f"<p>{escape_html(card.progress)}</p>")
    if card.curve is not None and len(card.curve.points) > 1:
        blocks.append(_curve_html(card.curve, colour))
    blocks.append(key_value_table([*_metric_rows(card.metrics), *card.rows]))
    if card.traceback:
        lines = card.traceback.splitlines()
        hidden_count = len(lines) - _MAX_SHOWN_TRACEBACK_LINES
        if hidden_count > 0:
            # Its beginning says where the script was; its end, which exception it was.
            half = _MAX_SHOWN_TRACEBACK_LINES // 2
            lines = [*lines[:half], f"({hidden_count} lines are left out here)", *lines[-half:]]
        blocks.append(f"<pre>{escape_html(chr(10).join(lines), keep_lines=True)}</pre>")
    if card.hint:
        blocks.append(f"<p>{escape_html(card.hint)}</p>")
    if card.note:
        blocks.append(f'<p class="note">{escape_html(card.note)}</p>')
    return f'<div class="smlaunch-run" style="border-color: {colour}">{"".join(blocks)}</div>'


def _metric_rows(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    shown_rows = [(name, f"{value:.6g}") for name, value in list(metrics.items())[:_MAX_SHOWN_METRICS]]
    hidden_count = len(metrics) - _MAX_SHOWN_METRICS
    if hidden_count > 0:
        shown_rows.append(("more metrics", f"{hidden_count}, in run.metrics"))
    return shown_rows


def _curve_html(curve: Curve, colour: str) -> str:
    """Return the curve as a picture, and a line of text about its axes. Where a value is not finite, the
    curve has a gap, and the text says so."""
    finite_values = [value for _, value in curve.points if math.isfinite(value)]
    has_gaps = len(finite_values) < len(curve.points)
    first_step, last_step = curve.points[0][0], curve.points[-1][0]
    x_unit = "steps" if curve.has_steps else "reports"
    text = f"{curve.metric}, {x_unit} {first_step:.6g} to {last_step:.6g}"
    picture = ""
    if finite_values:
        low, high = min(finite_values), max(finite_values)
        text += f", between {low:.4g} and {high:.4g}"
        lines = "".join(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5" '
            'stroke-linejoin="round" stroke-linecap="round" vector-effect="non-scaling-stroke"/>'
            for points in _lines_between_gaps(curve.points, low, high)
        )
        box = f"0 0 {_CURVE_WIDTH:.0f} {_CURVE_HEIGHT:.0f}"
        label = escape_html(f"curve of {curve.metric}")
        attributes = f'viewBox="{box}" preserveAspectRatio="none" role="img" aria-label="{label}"'
        picture = f"<svg {attributes}>{lines}</svg>"
    if has_gaps:
        text += "; not a finite number where the curve has gaps" if finite_values else "; no finite number"
    return f'{picture}<p class="note">{escape_html(text)}</p>'


def _lines_between_gaps(points: Sequence[tuple[float, float]], low: float, high: float) -> list[str]:
    """Return the pixel coordinates of each connected part of the curve, such as ``4.0,12.5 8.0,9.1``. ``low``
    and ``high``: the values at the lower and the upper edge. A part of one point is drawn as a dot."""
    first_step, last_step = points[0][0], points[-1][0]
    parts: list[list[str]] = [[]]
    for step, value in points:
        if not math.isfinite(value):
            parts.append([])
            continue
        x_fraction = _fraction_of_range(step, first_step, last_step)
        y_fraction = _fraction_of_range(value, low, high)
        x = _CURVE_MARGIN + x_fraction * (_CURVE_WIDTH - 2 * _CURVE_MARGIN)
        y = _CURVE_HEIGHT - _CURVE_MARGIN - y_fraction * (_CURVE_HEIGHT - 2 * _CURVE_MARGIN)
        parts[-1].append(f"{x:.1f},{y:.1f}")
    # A line from a point to itself is a dot.
    return [" ".join(part if len(part) > 1 else part * 2) for part in parts if part]


def _fraction_of_range(value: float, low: float, high: float) -> float:
    """Return where a value lies between two others, from 0 to 1; 0.5 where they are equal."""
    # Halves: the difference of two floats may overflow.
    width = high / 2 - low / 2
    return (value / 2 - low / 2) / width if width > 0 else 0.5
