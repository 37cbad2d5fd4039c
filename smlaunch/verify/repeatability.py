"""Discounts differences that two unsplit runs show as well. Pure.

A value that differs without any cut says nothing about the resume. If weights, losses or state are not
repeatable, the resume cannot be judged. A time or an id in a file beside them is left out of the comparison,
with a note.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from smlaunch.verify import causes
from smlaunch.verify.diff import Comparison, RunDifference, describe_file_difference, escape_unprintable

_CHANGING_NUMBERS = re.compile(r"[0-9a-f]{6,}|\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?$")
_UNITS_PER_SECOND = (1, 1e3, 1e6, 1e9)
_SLACK_SECONDS = 2.0


class TimeSpan(NamedTuple):
    """The time of all runs, in seconds since the epoch."""

    started_at: float
    ended_at: float

    def contains_time(self, text: str) -> bool:
        """Return whether a text is a time within the span, in seconds or fractions of them, or a date."""
        try:
            value = float(text)
        except ValueError:
            return _DATE.match(text) is not None
        return any(
            self.started_at - _SLACK_SECONDS <= value / unit <= self.ended_at + _SLACK_SECONDS
            for unit in _UNITS_PER_SECOND
        )


def discount_unrepeatable(comparison: Comparison, repetition: Comparison, span: TimeSpan) -> Comparison:
    """Return the comparison without irrelevant differences. ``repetition`` compares two unsplit runs."""
    unrepeatable_keys = {difference.key for difference in repetition.differences}
    unrepeatable_names = {
        _CHANGING_NUMBERS.sub("#", difference.name)
        for difference in repetition.differences
        if difference.kind == "file" and difference.text
    }

    def is_caused_by_cut(difference: RunDifference) -> bool:
        is_in_unrepeatable_file = (
            difference.kind == "file"
            and bool(difference.text)
            and _CHANGING_NUMBERS.sub("#", difference.name) in unrepeatable_names
        )
        return difference.key not in unrepeatable_keys and not is_in_unrepeatable_file

    cut_differences = [difference for difference in comparison.differences if is_caused_by_cut(difference)]
    unrepeatable_differences = [
        difference for difference in comparison.differences if not is_caused_by_cut(difference)
    ]
    if not unrepeatable_differences:
        return comparison
    irrelevant_differences = [
        difference
        for difference in unrepeatable_differences
        if _is_irrelevant(difference, repetition.has_compared_state, span)
    ]
    notes = [
        describe_file_difference(
            name, [difference for difference in irrelevant_differences if difference.name == name]
        )
        + ", as it does between two unsplit runs: the resume did not cause that"
        for name in dict.fromkeys(difference.name for difference in irrelevant_differences)
    ]
    remaining_differences = [
        difference for difference in comparison.differences if difference not in irrelevant_differences
    ]
    relevant_unrepeatable = [
        difference for difference in unrepeatable_differences if difference not in irrelevant_differences
    ]
    ignored_paths_by_file: dict[str, list[str]] = {}
    for difference in irrelevant_differences:
        ignored_paths_by_file.setdefault(difference.name, []).append(
            escape_unprintable(difference.value_path)
        )
    reduced_comparison = replace(
        comparison,
        differences=tuple(remaining_differences),
        compared=tuple(
            f"{name} but for {', '.join(ignored_paths_by_file[name])}"
            if name in ignored_paths_by_file
            else name
            for name in comparison.compared
            if "" not in ignored_paths_by_file.get(name, ())
        ),
        not_compared=(*comparison.not_compared, *notes),
    )
    if not remaining_differences:
        return replace(reduced_comparison, causes=())
    if not relevant_unrepeatable:
        return reduced_comparison
    not_repeatable_cause = causes.explain_not_repeatable(
        replace(comparison, differences=tuple(relevant_unrepeatable)).difference_texts[0]
    )
    if not cut_differences or any(
        difference.kind in ("ranks", "steps") for difference in relevant_unrepeatable
    ):
        return replace(
            reduced_comparison, causes=(not_repeatable_cause, *comparison.seed_causes)
        )  # the other causes may follow from this one
    return replace(reduced_comparison, causes=(*comparison.causes, not_repeatable_cause))


def is_repeatable(repetition: Comparison, span: TimeSpan) -> bool:
    """Return whether two unsplit runs are the same in all relevant values."""
    return all(
        _is_irrelevant(difference, repetition.has_compared_state, span)
        for difference in repetition.differences
    )


def _is_irrelevant(difference: RunDifference, has_compared_state: bool, span: TimeSpan) -> bool:
    """Return whether a value stands beside weights and state and is not a result of the training."""
    if difference.kind != "file" or difference.is_bulk:
        return False
    return has_compared_state or (
        bool(difference.short_texts) and all(map(span.contains_time, difference.short_texts))
    )
