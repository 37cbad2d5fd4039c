"""How often to save, and what failures cost: Daly's closed forms, and their extension to chains of segments.

Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22 (2006) 303-312: equation 37 for the interval, 20 for the wall-clock time.
Failures come at random with a mean time between them (``mtbf``), also while saving and while restarting.
The client plans by these forms and a running script adapts by them, so that both say the same.

All times in one unit, seconds by custom. ``stall``: for how long a save holds the training up.
``interval``: training between two saves. ``restart``: from a failure until training goes on. ``mtbf`` may be
infinite (nothing fails), and so may an interval (nothing is saved before the end).
"""

import math


def daly_interval(stall: float, mtbf: float) -> float:
    """The training time between two saves that makes the whole take the least time.

    0 where a save costs nothing: whoever saves has a lower bound of their own, such as one training step.
    ``ValueError`` for a negative stall or an mtbf that is not positive.
    """
    _check(mtbf, stall=stall)
    if stall >= 2 * mtbf:
        return mtbf
    if math.isinf(mtbf):
        return mtbf if stall else 0.0
    x = math.sqrt(stall / (2 * mtbf))
    return math.sqrt(2 * stall * mtbf) * (1 + x / 3 + x * x / 9) - stall


def daly_makespan(work: float, interval: float, stall: float, restart: float, mtbf: float) -> float:
    """The time until ``work`` is done, on average. Infinite where failures come faster than saves."""
    if work == 0:
        return 0.0
    share = goodput(interval, stall, restart, mtbf)
    return work / share if share else math.inf


def goodput(interval: float, stall: float, restart: float, mtbf: float) -> float:
    """Which share of the time is training that counts, on average: 0 to 1."""
    _check(mtbf, interval=interval, stall=stall, restart=restart)
    if math.isinf(mtbf):
        return 1.0 if interval + stall == 0 or math.isinf(interval) else interval / (interval + stall)
    if interval == 0:
        # What the form below goes to when nothing is trained between saves, and when these cost nothing.
        return 0.0 if stall else math.exp(-restart / mtbf)
    try:
        lost = math.exp(restart / mtbf) * math.expm1((interval + stall) / mtbf)
    except OverflowError:
        return 0.0
    return interval / (mtbf * lost)


def segment_progress(
    segment: float, start: float, interval: float, stall: float, restart: float, mtbf: float
) -> float:
    """Training that counts in one segment of wall time ``segment``: what is left of it after its ``start``
    and its last save, less what failures cost. 0 where the segment is too short for any."""
    _check(mtbf, segment=segment, start=start)
    useful = max(0.0, segment - start - stall)
    if useful == 0:
        return 0.0
    # No interval outlives its segment: the save at the planned end is the last one in any case.
    return useful * goodput(min(interval, useful), stall, restart, mtbf)


def chain_makespan(
    work: float, segment: float, start: float, interval: float, stall: float, restart: float, mtbf: float
) -> float:
    """The time until ``work`` is done by segments of wall time ``segment`` each, on average. The last one
    ends when the work does. Infinite where a segment brings nothing."""
    progress = segment_progress(segment, start, interval, stall, restart, mtbf)
    if work == 0:
        return 0.0
    if progress == 0:
        return math.inf
    before = math.ceil(work / progress) - 1
    useful = segment - start - stall
    return before * segment + start + stall + (work - before * progress) / progress * useful


def _check(mtbf: float, **times: float) -> None:
    problems = [
        "{} must not be negative: {}".format(name, value) for name, value in times.items() if value < 0
    ]
    if not mtbf > 0:
        problems.append("mtbf must be positive: {}".format(mtbf))
    if problems:
        raise ValueError("; ".join(problems))
