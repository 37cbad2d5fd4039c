"""What machines were compared, as a table: a few that would do, and the others by the rule against them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from smlaunch.planning.cost import dollars
from smlaunch.planning.io_times import Range
from smlaunch.planning.plan import Candidate
from smlaunch.planning.prose import paragraph

SHOWN = 6
"""Candidates that would do, the chosen one among them: the others are in ``plan --json``."""

HEADER = ("instances", "ranks", "time", "price", "per hour")


def as_row(candidate: Candidate) -> dict[str, Any]:
    """Of ``plan --json``: seconds and dollars as [best, worst]."""

    def ends(span: tuple[float, float] | None, digits: int) -> list[float] | None:
        return None if span is None else [round(span[0], digits), round(span[1], digits)]

    return {
        "strategy": candidate.strategy,
        "instance_type": candidate.instance_type,
        "hosts": candidate.hosts,
        "processes_per_host": candidate.processes_per_host,
        "feasible": candidate.feasible,
        "chosen": candidate.chosen,
        "rule": candidate.rule or None,
        "because": candidate.because or None,
        "seconds": ends(candidate.seconds, 0),
        "dollars": ends(candidate.dollars, 2),
        "per_hour": ends(candidate.per_hour, 4),
    }


def comparison(candidates: Sequence[Candidate]) -> list[str]:
    """A heading and its lines, the chosen candidate marked by a star."""
    fitting = [one for one in candidates if one.feasible]
    shown = fitting[:SHOWN]
    rows = [HEADER, *(cells(one) for one in shown)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADER))]
    lines = [heading(candidates)]
    for row, one in zip(rows, [None, *shown], strict=True):
        mark = "*" if one is not None and one.chosen else " "
        told = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"  {mark} {told}".rstrip())
    if len(fitting) > len(shown):
        lines.append(f"    and {len(fitting) - len(shown)} more that would do")
    for rule, example, count in objections(candidates):
        others = f", and {count - 1} more" if count > 1 else ""
        lines += paragraph(f"not {machines(example)}{others}: {example.because} [{rule}]", "    ", "      ")
    return lines


def heading(candidates: Sequence[Candidate]) -> str:
    fitting = sum(one.feasible for one in candidates)
    return f"Machines compared: {len(candidates)}, of which {fitting} would do; figures are estimates"


def cells(candidate: Candidate) -> tuple[str, ...]:
    """In the order of HEADER."""
    return (
        machines(candidate),
        str(candidate.hosts * int(candidate.processes_per_host)),
        "-" if candidate.seconds is None else str(Range(*candidate.seconds)),
        between(candidate.dollars),
        between(candidate.per_hour),
    )


def objections(candidates: Sequence[Candidate]) -> Iterator[tuple[str, Candidate, int]]:
    """Every rule that rejected some, the first of them, and how many they are."""
    by_rule: dict[str, list[Candidate]] = {}
    for one in candidates:
        if not one.feasible:
            by_rule.setdefault(one.rule, []).append(one)
    for rule, those in by_rule.items():
        yield rule, those[0], len(those)


def machines(candidate: Candidate) -> str:
    return f"{candidate.hosts} x {candidate.instance_type}"


def between(span: tuple[float, float] | None) -> str:
    """``$25 to $67``."""
    if span is None:
        return "-"
    least, most = (f"${amount:,.0f}" if amount >= 10 else dollars(amount) for amount in span)
    return most if least == most else f"{least} to {most}"
