"""How often to save, and what failures cost: Daly's formulas, and their extension to chains of segments.

Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", Future
Generation Computer Systems 22 (2006) 303-312: equation 37 for the interval, 20 for the wall-clock time.
Failures come at random with a mean time between them (``mtbf``), also while saving and while restarting.
The client plans by these formulas and a running script adapts by them, so that both agree.

All times in one unit, usually seconds. ``stall``: how long a save stops the training.
``interval``: training between two saves. ``restart``: from a failure until training goes on. ``mtbf`` may be
infinite (nothing fails), and so may an interval (nothing is saved before the end).
"""

import math


def daly_interval(stall: float, mtbf: float) -> float:
    """Return the training time between two checkpoints that minimizes the total time (Daly 2006), in seconds.
    ``stall``: seconds that a save stops the training. ``mtbf``: mean seconds between two failures of the job.

    0 where a save costs nothing: callers have a lower bound of their own, such as one training step. Raises
    ValueError for a negative stall and for an mtbf that is not positive.
    """
    _check_durations(mtbf, stall=stall)  # raises ValueError
    if stall >= 2 * mtbf:  # where the estimate no longer holds (Daly 2006)
        return mtbf
    if math.isinf(mtbf):
        return mtbf if stall else 0.0
    # Daly's higher-order estimate; sqrt(2 * stall * mtbf) alone is Young's formula.
    root = math.sqrt(stall / (2 * mtbf))
    return math.sqrt(2 * stall * mtbf) * (1 + root / 3 + root * root / 9) - stall


def daly_makespan(work: float, interval: float, stall: float, restart: float, mtbf: float) -> float:
    """Return the expected time until ``work`` seconds of training are done. Infinite where failures come
    faster than saves. The other parameters are those of ``goodput``."""
    if work == 0:
        return 0.0
    share = goodput(interval, stall, restart, mtbf)
    return work / share if share else math.inf


def goodput(interval: float, stall: float, restart: float, mtbf: float) -> float:
    """Return the expected share of the total time, from 0 to 1, that is spent on training steps which are not
    lost.

    All in seconds: ``interval``: training between two checkpoints; ``stall``: interruption by one save;
    ``restart``: from a failure until training continues; ``mtbf``: mean time between failures.
    """
    _check_durations(mtbf, interval=interval, stall=stall, restart=restart)  # raises ValueError
    if math.isinf(mtbf):  # no failures: only the saves cost time
        if interval + stall == 0 or math.isinf(interval):
            return 1.0
        return interval / (interval + stall)
    if interval == 0:
        # The limit of the formula below for an interval of 0.
        return 0.0 if stall else math.exp(-restart / mtbf)
    # Time for one interval, in units of mtbf: failures within it make parts of it run again.
    try:
        time_per_interval = math.exp(restart / mtbf) * math.expm1((interval + stall) / mtbf)
    except OverflowError:  # failures come much faster than an interval ends
        return 0.0
    return interval / (mtbf * time_per_interval)


def segment_progress(
    segment: float, start: float, interval: float, stall: float, restart: float, mtbf: float
) -> float:
    """Return the training that counts in one segment of wall time ``segment``: what remains after its
    ``start`` and its last save, less the cost of failures. 0 where the segment is too short for any.
    """
    _check_durations(mtbf, segment=segment, start=start)
    useful = max(0.0, segment - start - stall)
    if useful == 0:
        return 0.0
    # An interval is not longer than its segment: the last save is at the planned end.
    return useful * goodput(min(interval, useful), stall, restart, mtbf)


def chain_makespan(
    work: float, segment: float, start: float, interval: float, stall: float, restart: float, mtbf: float
) -> float:
    """Return the expected time until ``work`` is done by segments of wall time ``segment`` each. The last one
    ends with the work. Infinite where a segment makes no progress.
    """
    progress = segment_progress(segment, start, interval, stall, restart, mtbf)
    if work == 0:
        return 0.0
    if progress == 0:
        return math.inf
    full_segments = math.ceil(work / progress) - 1
    useful = segment - start - stall
    return full_segments * segment + start + stall + (work - full_segments * progress) / progress * useful


def _check_durations(mtbf: float, **times: float) -> None:
    """Raise ValueError for negative times, and for an mtbf that is not positive."""
    problems = [
        "{} must not be negative: {}".format(name, value) for name, value in times.items() if value < 0
    ]
    if not mtbf > 0:
        problems.append("mtbf must be positive: {}".format(mtbf))
    if problems:
        raise ValueError("; ".join(problems))
