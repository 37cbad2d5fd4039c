"""Render the compared machines: a table of the suitable ones, and the rejected ones by rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from smlaunch.planner.cost import format_dollars
from smlaunch.planner.plan import Candidate
from smlaunch.planner.throughput import EstimateRange
from smlaunch.text.format import wrap_paragraph

MAX_SHOWN = 6
"""Number of suitable candidates shown, including the chosen one: ``plan --json`` has all."""

COLUMNS = ("instances", "ranks", "time", "price", "per hour")


def candidate_as_dict(candidate: Candidate) -> dict[str, Any]:
    """Row of ``plan --json``: estimates as [best, worst]."""

    def bounds(span: tuple[float, float] | None, digits: int) -> list[float] | None:
        return None if span is None else [round(span[0], digits), round(span[1], digits)]

    return {
        "strategy": candidate.strategy,
        "instance_type": candidate.instance_type,
        "hosts": candidate.hosts,
        "processes_per_host": candidate.processes_per_host,
        "feasible": candidate.is_feasible,
        "chosen": candidate.chosen,
        "rule": candidate.rule or None,
        "because": candidate.objection or None,
        "seconds": bounds(candidate.seconds, 0),
        "dollars": bounds(candidate.dollars, 2),
        "per_hour": bounds(candidate.per_hour, 4),
    }


def comparison_lines(candidates: Sequence[Candidate]) -> list[str]:
    """A heading and the table; a star marks the chosen candidate."""
    suitable = [candidate for candidate in candidates if candidate.is_feasible]
    shown_candidates = suitable[:MAX_SHOWN]
    table_rows = [COLUMNS, *(candidate_cells(candidate) for candidate in shown_candidates)]
    widths = [max(len(row_cells[column]) for row_cells in table_rows) for column in range(len(COLUMNS))]
    lines = [comparison_heading(candidates)]
    for row_cells, candidate in zip(table_rows, [None, *shown_candidates], strict=True):
        marker = "*" if candidate is not None and candidate.chosen else " "
        row_text = "  ".join(cell.ljust(width) for cell, width in zip(row_cells, widths, strict=True))
        lines.append(f"  {marker} {row_text}".rstrip())
    if len(suitable) > len(shown_candidates):
        lines.append(f"    and {len(suitable) - len(shown_candidates)} more suitable ones")
    for rule, example, count in rejections_by_rule(candidates):
        more_text = f", and {count - 1} more" if count > 1 else ""
        lines += wrap_paragraph(
            f"not {describe_machines(example)}{more_text}: {example.objection} [{rule}]", "    ", "      "
        )
    return lines


def comparison_heading(candidates: Sequence[Candidate]) -> str:
    feasible_count = sum(candidate.is_feasible for candidate in candidates)
    return (
        f"Machines compared: {len(candidates)}, of which {feasible_count} are suitable; figures are estimates"
    )


def candidate_cells(candidate: Candidate) -> tuple[str, ...]:
    """Cells of a row, in the order of COLUMNS."""
    return (
        describe_machines(candidate),
        str(candidate.hosts * int(candidate.processes_per_host)),
        "-" if candidate.seconds is None else str(EstimateRange(*candidate.seconds)),
        format_dollar_range(candidate.dollars),
        format_dollar_range(candidate.per_hour),
    )


def rejections_by_rule(candidates: Sequence[Candidate]) -> Iterator[tuple[str, Candidate, int]]:
    """Each rule that rejected candidates, with the first of them and their number."""
    by_rule: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        if not candidate.is_feasible:
            by_rule.setdefault(candidate.rule, []).append(candidate)
    for rule, rejected in by_rule.items():
        yield rule, rejected[0], len(rejected)


def describe_machines(candidate: Candidate) -> str:
    return f"{candidate.hosts} x {candidate.instance_type}"


def format_dollar_range(dollar_range: tuple[float, float] | None) -> str:
    """``$25 to $67``."""
    if dollar_range is None:
        return "-"
    lowest, highest = (
        f"${amount:,.0f}" if amount >= 10 else format_dollars(amount) for amount in dollar_range
    )
    return highest if lowest == highest else f"{lowest} to {highest}"
