"""A run simulated: a chain of jobs under failures, event by event, and what becomes of the time.

The closed forms of ``protocol.daly`` give averages for figures that never change. Here every job, failure
and save happens, so that the spread is seen, and a real run's failures can be replayed. Pure: when hosts
fail is handed in, and the same failures give the same run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any

from smlaunch.protocol.daly import chain_makespan, daly_makespan

Draw = Callable[[], float]
"""Numbers from [0, 1), equally likely: ``random.Random(seed).random``."""

RUNS = 200
"""Enough for the mean to lie within a fraction of a percent of the closed form."""

_HOPELESS = 100
"""A run that takes so many times its work is given up as never ending."""


@dataclass(frozen=True)
class Chain:
    """What is simulated; all times in seconds.

    ``work``: training in all. ``segment``: wall time of a job from its start to its planned end; infinite for
    one job without such an end. ``start``: from a job's start until it trains. ``restart``: from a failure
    until it trains again. ``gap``: from a planned end until the next job starts, when nothing can fail.
    ``renewed``: what goes on after a failure is a job of its own with a whole ``segment`` before it, as the
    driver submits it; otherwise the failure's time is lost to the segment, as in the closed form and in a
    spot job's own restarts.
    """

    work: float
    segment: float
    start: float
    interval: float
    stall: float
    restart: float
    mtbf: float
    gap: float = 0.0
    renewed: bool = True

    def __post_init__(self) -> None:
        problems = []
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("work", "segment", "interval", "mtbf"):
                if not value > 0:
                    problems.append(f"{field.name}: it must be positive, not {value}")
            elif field.name != "renewed" and not 0 <= value < math.inf:
                problems.append(f"{field.name}: it must be a time, not {value}")
        if not problems and self.segment <= self.start + self.stall:
            problems.append(f"segment: {self.segment} leaves no time to train; the start takes {self.start}")
        if problems:
            raise ValueError("; ".join(problems))


@dataclass(frozen=True)
class SimulatedRun:
    """One run; times in seconds, which together are ``makespan``: ``work`` done, then ``starting`` jobs,
    ``saving``, ``lost`` (trained or saved, and gone with a failure), ``recovering`` from failures and
    ``waiting`` between jobs or for a limit too near to do anything before. Infinite makespan: given up."""

    makespan: float
    work: float
    starting: float = 0.0
    saving: float = 0.0
    lost: float = 0.0
    recovering: float = 0.0
    waiting: float = 0.0
    segments: int = 1
    failures: int = 0

    @property
    def goodput(self) -> float:
        return self.work / self.makespan


@dataclass(frozen=True)
class Simulation:
    """Many runs of one chain. ``closed_form``: the makespan that Daly's form gives for it. The form takes
    failures out of the segment's time; where attempts are ``renewed``, fewer planned ends are met, and the
    mean lies below it by about ``start / (2 * mtbf)`` of the whole."""

    chain: Chain
    runs: tuple[SimulatedRun, ...]
    closed_form: float

    @property
    def makespan(self) -> float:
        """On average."""
        return fmean(run.makespan for run in self.runs)

    @property
    def goodput(self) -> float:
        return self.chain.work / self.makespan

    def quantile(self, share: float) -> float:
        """The makespan that this share of the runs stays below."""
        ordered = sorted(run.makespan for run in self.runs)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def to_dict(self) -> dict[str, Any]:
        """Plain types; seconds. What cannot be reached in any time is None, as JSON has no infinity."""
        kept = ("segments", "failures", "starting", "saving", "lost", "recovering", "waiting")
        mean = {name: _finite(fmean(getattr(run, name) for run in self.runs)) for name in kept}
        return {
            "runs": len(self.runs),
            "work": self.chain.work,
            "makespan": {
                "mean": _finite(self.makespan),
                "p05": _finite(self.quantile(0.05)),
                "p95": _finite(self.quantile(0.95)),
                "closed_form": _finite(self.closed_form),
            },
            "goodput": self.goodput,
            "mean": mean,
            "assumed": {name: _finite(value) for name, value in asdict(self.chain).items()},
        }

    def __str__(self) -> str:
        if math.isinf(self.makespan):
            return (
                f"Simulated {len(self.runs)} times: failures every {_time(self.chain.mtbf)} leave some run "
                f"without an end within {_HOPELESS} times its work of {_time(self.chain.work)}."
            )
        mean = self.to_dict()["mean"]
        shares = [("training", self.goodput)]
        shares += [
            (name, mean[name] / self.makespan)
            for name in ("starting", "saving", "lost", "recovering", "waiting")
        ]
        told = ", ".join(f"{name} {share:.2%}" for name, share in shares if share >= 5e-5)
        form = f"; the closed form says {_time(self.closed_form)}" if math.isfinite(self.closed_form) else ""
        return (
            f"Simulated {len(self.runs)} times: {_time(self.chain.work)} of training take "
            f"{_time(self.makespan)} ({_time(self.quantile(0.05))} to {_time(self.quantile(0.95))} "
            f"in nine of ten){form}.\n"
            f"Of that time: {told}.\n"
            f"On average {mean['segments']:.1f} segments and {mean['failures']:.1f} failures."
        )


def simulate(chain: Chain, draw: Draw, runs: int = RUNS) -> Simulation:
    """``runs`` runs under failures that come at random, ``chain.mtbf`` apart on average."""
    figures = (chain.interval, chain.stall, chain.restart, chain.mtbf)
    if math.isinf(chain.segment):
        closed = chain.start + daly_makespan(chain.work, *figures)
    else:
        closed = chain_makespan(chain.work, chain.segment, chain.start, *figures)
    return Simulation(chain, tuple(replay(chain, at_random(chain.mtbf, draw)) for _ in range(runs)), closed)


def at_random(mtbf: float, draw: Draw) -> Iterator[float]:
    """Times of failures, seconds since the run's start, without memory of one another; without end."""
    at = 0.0
    while math.isfinite(mtbf):
        at -= mtbf * math.log1p(-draw())
        yield at


def replay(chain: Chain, failures: Iterable[float]) -> SimulatedRun:
    """One run under the failures at these times, seconds since its start, in order."""
    return _Replay(chain, failures).run()


class _Replay:
    """A run as it goes. ``done``: training that a save holds; ``end``: of the job, as planned."""

    def __init__(self, chain: Chain, failures: Iterable[float]) -> None:
        self._chain = chain
        self._failures = iter(failures)
        self._failure = next(self._failures, math.inf)
        self._now = 0.0
        self._end = chain.segment
        self._done = 0.0
        self._spent = dict.fromkeys(("starting", "saving", "lost", "recovering", "waiting"), 0.0)
        self._segments = 1
        self._count = 0

    def run(self) -> SimulatedRun:
        chain = self._chain
        hopeless = _HOPELESS * (chain.work + chain.start + chain.restart)
        phase, needs = "starting", chain.start
        while self._now <= hopeless:
            ready = self._now + needs
            if self._failure < min(ready, self._end):
                self._pass(self._failure, phase)
            elif self._end <= ready:
                self._pass(self._end, phase)
            else:
                self._pass(ready, phase)
                if self._train():
                    return self._result(self._now)
            if self._now == self._failure:
                self._fail()
                phase, needs = "recovering", chain.restart
            else:
                self._next_segment()
                phase, needs = "starting", chain.start
        return self._result(math.inf)

    def _train(self) -> bool:
        """From now on until the work is done (True), the planned end or a failure."""
        chain, began = self._chain, self._now
        left = chain.work - self._done
        saves = max(1, math.ceil(left / chain.interval))
        finished = began + left + saves * chain.stall
        if finished <= min(self._end, self._failure):
            self._keep(left, finished)
            return True
        cycle = chain.interval + chain.stall
        if self._end <= self._failure:
            # The last save begins so that it is over at the planned end; one that is under way then serves.
            whole, rest = divmod(max(0.0, self._end - chain.stall - began), cycle)
            self._keep(whole * chain.interval + min(rest, chain.interval), self._end)
        else:
            whole, rest = divmod(self._failure - began, cycle)
            self._keep(whole * chain.interval, self._failure - rest)
            self._pass(self._failure, "lost")
        return False

    def _keep(self, trained: float, until: float) -> None:
        self._spent["saving"] += until - self._now - trained
        self._done += trained
        self._now = until

    def _pass(self, until: float, phase: str) -> None:
        self._spent[phase] += until - self._now
        self._now = until

    def _fail(self) -> None:
        self._count += 1
        self._failure = next(self._failures, math.inf)
        if self._chain.renewed:
            self._end = self._now + max(0.0, self._chain.restart - self._chain.start) + self._chain.segment

    def _next_segment(self) -> None:
        self._segments += 1
        self._pass(self._now + self._chain.gap, "waiting")
        while self._failure < self._now:
            self._failure = next(self._failures, math.inf)
        self._end = self._now + self._chain.segment

    def _result(self, makespan: float) -> SimulatedRun:
        work = self._chain.work
        return SimulatedRun(makespan, work, segments=self._segments, failures=self._count, **self._spent)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


_SCALES: Mapping[str, float] = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}


def _time(seconds: float) -> str:
    """``62.1 d``, ``3.50 h``: three or four digits in the largest unit that there are two of."""
    if math.isinf(seconds):
        return "an unlimited time"
    unit = next((unit for unit, scale in _SCALES.items() if seconds >= 2 * scale), "s")
    amount = seconds / _SCALES[unit]
    return f"{amount:.{1 if amount >= 100 else 2}f} {unit}"
