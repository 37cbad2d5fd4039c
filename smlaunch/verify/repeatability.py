"""Discounts differences that two unsplit runs show as well. Pure.

A value that differs without any cut says nothing about the resume. If weights, losses or state are not
repeatable, the resume cannot be judged. A time or an id in a file beside them is left out of the comparison,
with a note.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from smlaunch.verify import causes
from smlaunch.verify.run_diff import Comparison, describe_file_difference, escape_unprintable
from smlaunch.verify.run_pair import RunDifference

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


def discount_unrepeatable(
    comparison: Comparison, baseline_comparison: Comparison, all_runs_time: TimeSpan
) -> Comparison:
    """Return the comparison of a resumed run with an uninterrupted one, corrected for what the resume did not
    cause: differences that two uninterrupted runs have as well.

    Such a difference in a value that is no result of the training, for example a date in a file, is removed.
    One in weights, losses or state remains, and the causes say that the training is not repeatable.
    ``baseline_comparison`` compares two uninterrupted runs. ``all_runs_time``: from the first run's start to
    the last one's end.
    """
    unrepeatable = _find_unrepeatable(comparison.differences, baseline_comparison.differences)
    if not unrepeatable:
        return comparison
    irrelevant = [
        difference
        for difference in unrepeatable
        if _is_irrelevant(difference, baseline_comparison.has_compared_state, all_runs_time)
    ]
    remaining = [difference for difference in comparison.differences if difference not in irrelevant]
    # With a note about each file that has irrelevant differences.
    corrected = _remove_irrelevant_differences(comparison, remaining, irrelevant)
    if not remaining:
        return replace(corrected, causes=())  # nothing is left to be explained
    relevant_unrepeatable = [difference for difference in unrepeatable if difference not in irrelevant]
    if not relevant_unrepeatable:
        return corrected
    # A Comparison only for its texts: the first says what is not repeatable.
    first_text = Comparison(differences=tuple(relevant_unrepeatable)).difference_texts[0]
    not_repeatable_cause = causes.explain_not_repeatable(first_text)
    has_only_unrepeatable = len(relevant_unrepeatable) == len(remaining)
    # Of the kinds "ranks" (their number) and "steps", from which all later differences may follow.
    has_unrepeatable_steps = any(
        difference.kind in ("ranks", "steps") for difference in relevant_unrepeatable
    )
    if has_only_unrepeatable or has_unrepeatable_steps:
        # The comparison's own causes blame the resume, wrongly; but a missing seed (seed_causes) explains it.
        return replace(corrected, causes=(not_repeatable_cause, *comparison.seed_causes))
    return replace(corrected, causes=(*comparison.causes, not_repeatable_cause))


def _find_unrepeatable(
    differences: Sequence[RunDifference], baseline_differences: Sequence[RunDifference]
) -> list[RunDifference]:
    """Return those of the differences that two uninterrupted runs have as well (``baseline_differences``). A
    file that only one run has matches one whose name has other numbers, such as a time, in it."""
    unrepeatable_keys = {difference.key for difference in baseline_differences}
    unrepeatable_file_patterns = {
        _CHANGING_NUMBERS.sub("#", difference.name)
        for difference in baseline_differences
        if _is_of_whole_file(difference)
    }

    def is_unrepeatable(difference: RunDifference) -> bool:
        if difference.key in unrepeatable_keys:
            return True
        file_pattern = _CHANGING_NUMBERS.sub("#", difference.name)
        return _is_of_whole_file(difference) and file_pattern in unrepeatable_file_patterns

    return [difference for difference in differences if is_unrepeatable(difference)]


def _is_of_whole_file(difference: RunDifference) -> bool:
    """Return whether a file as a whole is missing from one of the runs."""
    return difference.kind == "file" and bool(difference.description)


def _remove_irrelevant_differences(
    comparison: Comparison, remaining: Sequence[RunDifference], irrelevant: Sequence[RunDifference]
) -> Comparison:
    """Return the comparison with the remaining differences only, and with notes about the irrelevant ones:
    values in files that are no result of the training, such as a time."""
    irrelevant_by_file: dict[str, list[RunDifference]] = {}
    for difference in irrelevant:
        irrelevant_by_file.setdefault(difference.name, []).append(difference)
    notes = [
        describe_file_difference(file_name, file_differences)
        + ", as it does between two unsplit runs: the resume did not cause that"
        for file_name, file_differences in irrelevant_by_file.items()
    ]
    compared_items: list[str] = []
    for item in comparison.compared_items:
        ignored_paths = [
            escape_unprintable(difference.value_path) for difference in irrelevant_by_file.get(item, ())
        ]
        if "" in ignored_paths:  # the whole file is one value, which is ignored
            continue
        compared_items.append(f"{item} but for {', '.join(ignored_paths)}" if ignored_paths else item)
    return replace(
        comparison,
        differences=tuple(remaining),
        compared_items=tuple(compared_items),
        not_compared_items=(*comparison.not_compared_items, *notes),
    )


def is_repeatable(baseline_comparison: Comparison, all_runs_time: TimeSpan) -> bool:
    """Return whether two unsplit runs are the same in all relevant values."""
    return all(
        _is_irrelevant(difference, baseline_comparison.has_compared_state, all_runs_time)
        for difference in baseline_comparison.differences
    )


def _is_irrelevant(difference: RunDifference, has_compared_state: bool, all_runs_time: TimeSpan) -> bool:
    """Return whether a difference that two uninterrupted runs have as well says nothing about the training:
    it is in a value of a file, other than weights, and the trained state itself was compared
    (``has_compared_state``) or the value is a time during the runs."""
    if difference.kind != "file" or difference.is_weight_like:
        return False
    value_texts = difference.short_value_texts
    are_values_times = bool(value_texts) and all(map(all_runs_time.contains_time, value_texts))
    return has_compared_state or are_values_times
