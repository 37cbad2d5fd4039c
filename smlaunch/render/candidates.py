"""Render the compared machines: a table of the suitable ones, and the rejected ones by rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from smlaunch.planner.plan import Candidate
from smlaunch.storage.read_time_estimates import EstimateRange
from smlaunch.text.format import format_dollar_range, wrap_paragraph

MAX_SHOWN_ROWS = 6
"""Number of suitable candidates shown, including the chosen one: ``plan --json`` has all."""

CANDIDATE_COLUMNS = ("instances", "ranks", "time", "price", "per hour")


def candidate_as_dict(candidate: Candidate) -> dict[str, Any]:
    """Return a compared choice of hosts as a row of ``plan --json``. Estimates are pairs: best, worst."""

    def rounded_pair(estimate: tuple[float, float] | None, digits: int) -> list[float] | None:
        return None if estimate is None else [round(amount, digits) for amount in estimate]

    return {
        "strategy": candidate.strategy,
        "instance_type": candidate.instance_type,
        "hosts": candidate.hosts,
        "processes_per_host": candidate.processes_per_host,
        "feasible": candidate.is_feasible,
        "chosen": candidate.chosen,
        "rule": candidate.rule or None,
        "because": candidate.objection or None,
        "seconds": rounded_pair(candidate.seconds, 0),
        "dollars": rounded_pair(candidate.dollars, 2),
        "per_hour": rounded_pair(candidate.per_hour, 4),
    }


def candidate_table_lines(candidates: Sequence[Candidate]) -> list[str]:
    """Return the lines of the comparison of machines: a heading, a table of the suitable ones (the feasible
    candidates) with a star at the chosen one, and the rejected ones by the rule that rejects them. For each
    such rule only the first candidate that it rejects is shown, and the number of the others."""
    suitable = [candidate for candidate in candidates if candidate.is_feasible]
    shown_candidates = suitable[:MAX_SHOWN_ROWS]
    table_rows = [CANDIDATE_COLUMNS, *(candidate_cells(candidate) for candidate in shown_candidates)]
    column_widths = [
        max(len(cell) for cell in column_cells) for column_cells in zip(*table_rows, strict=True)
    ]
    lines = [candidate_table_heading(candidates)]
    for row_cells, candidate in zip(table_rows, [None, *shown_candidates], strict=True):
        marker = "*" if candidate is not None and candidate.chosen else " "
        row_text = "  ".join(cell.ljust(width) for cell, width in zip(row_cells, column_widths, strict=True))
        lines.append(f"  {marker} {row_text}".rstrip())
    if len(suitable) > len(shown_candidates):
        lines.append(f"    and {len(suitable) - len(shown_candidates)} more suitable ones")
    for rule_name, first_rejected, rejected_count in group_rejections_by_rule(candidates):
        more_text = f", and {rejected_count - 1} more" if rejected_count > 1 else ""
        lines += wrap_paragraph(
            f"not {describe_candidate_hosts(first_rejected)}{more_text}: {first_rejected.objection} "
            f"[{rule_name}]",
            "    ",
            "      ",
        )
    return lines


def candidate_table_heading(candidates: Sequence[Candidate]) -> str:
    feasible_count = sum(candidate.is_feasible for candidate in candidates)
    return (
        f"Machines compared: {len(candidates)}, of which {feasible_count} are suitable; figures are estimates"
    )


def candidate_cells(candidate: Candidate) -> tuple[str, ...]:
    """Cells of a row, in the order of CANDIDATE_COLUMNS."""
    return (
        describe_candidate_hosts(candidate),
        str(candidate.hosts * int(candidate.processes_per_host)),
        "-" if candidate.seconds is None else str(EstimateRange(*candidate.seconds)),
        format_dollar_range(candidate.dollars),
        format_dollar_range(candidate.per_hour),
    )


def group_rejections_by_rule(candidates: Sequence[Candidate]) -> Iterator[tuple[str, Candidate, int]]:
    """Yield the name of each rule that rejected candidates (instance type and number of hosts), the first
    candidate that it rejected, and the number of those."""
    rejected_by_rule: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        if not candidate.is_feasible:
            rejected_by_rule.setdefault(candidate.rule, []).append(candidate)
    for rule_name, rejected in rejected_by_rule.items():
        yield rule_name, rejected[0], len(rejected)


def describe_candidate_hosts(candidate: Candidate) -> str:
    return f"{candidate.hosts} x {candidate.instance_type}"
