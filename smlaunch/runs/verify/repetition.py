"""What differs after cuts, judged by what differs between two runs without any. Pure.

What does not repeat itself uncut is not the resume's doing. Of weights, losses or state nothing can be said
then. A time or an id in a file beside them is left out of the comparison, and told.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from smlaunch.runs.verify import causes
from smlaunch.runs.verify.compare import Difference, Verdict, printable, told_file

_CHANGING = re.compile(r"[0-9a-f]{6,}|\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d.*)?$")
_SECONDS = (1, 1e3, 1e6, 1e9)
_SLACK = 2.0


class Span(NamedTuple):
    """When all the runs were, in seconds since the epoch."""

    began: float
    ended: float

    def holds(self, text: str) -> bool:
        """Whether a value is a moment in it, in seconds or parts of them, or a date."""
        try:
            value = float(text)
        except ValueError:
            return _DATE.match(text) is not None
        return any(self.began - _SLACK <= value / unit <= self.ended + _SLACK for unit in _SECONDS)


def judge(verdict: Verdict, repetition: Verdict, span: Span) -> Verdict:
    """``repetition``: of two unsplit runs."""
    known = {one.key for one in repetition.found}
    names = {_CHANGING.sub("#", one.name) for one in repetition.found if one.kind == "file" and one.text}

    def repeats(one: Difference) -> bool:
        of_that_kind = one.kind == "file" and bool(one.text) and _CHANGING.sub("#", one.name) in names
        return one.key not in known and not of_that_kind

    own = [one for one in verdict.found if repeats(one)]
    others = [one for one in verdict.found if not repeats(one)]
    if not others:
        return verdict
    aside = [one for one in others if _is_aside(one, repetition.is_grounded, span)]
    told = [
        told_file(name, [one for one in aside if one.name == name])
        + ", as it does between two unsplit runs: that is not the resume's doing"
        for name in dict.fromkeys(one.name for one in aside)
    ]
    found = [one for one in verdict.found if one not in aside]
    fatal = [one for one in others if one not in aside]
    places: dict[str, list[str]] = {}
    for one in aside:
        places.setdefault(one.name, []).append(printable(one.place))
    settled = replace(
        verdict,
        found=tuple(found),
        compared=tuple(
            f"{name} but for {', '.join(places[name])}" if name in places else name
            for name in verdict.compared
            if "" not in places.get(name, ())
        ),
        not_compared=(*verdict.not_compared, *told),
    )
    if not found:
        return replace(settled, causes=())
    if not fatal:
        return settled
    no_repetition = causes.of_no_repetition(replace(verdict, found=tuple(fatal)).differences[0])
    if not own or any(one.kind in ("ranks", "steps") for one in fatal):
        return replace(settled, causes=(no_repetition, *verdict.seeds))  # all else may follow from that
    return replace(settled, causes=(*verdict.causes, no_repetition))


def repeats(repetition: Verdict, span: Span) -> bool:
    """As far as it matters."""
    return all(_is_aside(one, repetition.is_grounded, span) for one in repetition.found)


def _is_aside(one: Difference, is_grounded: bool, span: Span) -> bool:
    """It stands beside weights and state: no part of what the training has made."""
    if one.kind != "file" or one.bulk:
        return False
    return is_grounded or (bool(one.values) and all(map(span.holds, one.values)))
