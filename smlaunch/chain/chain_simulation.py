"""Simulate a chain of jobs under failures, event by event, and account for the time.

The closed forms of ``protocol.daly`` give averages for constant figures. The simulation includes every
job, failure and save, so that it shows the spread and can replay a real run's failures. Pure: failure
times are an argument, and equal failures give equal runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from statistics import fmean
from typing import Any

from smlaunch.contract.checkpoint_interval import chain_makespan, daly_makespan

RandomFraction = Callable[[], float]
"""Uniform in [0, 1): ``random.Random(seed).random``."""

DEFAULT_RUNS = 200
"""Enough for a mean within a fraction of a percent of the closed form."""

_ENDLESS_RUN_FACTOR = 100
"""A run that takes this multiple of its work is considered endless."""


@dataclass(frozen=True)
class ChainModel:
    """Parameters of the simulation; all times in seconds."""

    work: float
    """Training in total."""

    segment: float
    """From a job's start to its planned end; infinite for one job without such an end."""

    start: float
    """From a job's start until it trains."""

    interval: float
    """Training time between two checkpoints."""

    stall: float
    """How long a checkpoint stops the training."""

    restart: float
    """From a failure until it trains again."""

    mtbf: float
    """Mean time between failures; infinite without failures."""

    gap: float = 0.0
    """From a planned end until the next job starts; nothing fails meanwhile."""

    renewed: bool = True
    """After a failure a new job with a full ``segment`` continues, as the driver submits it; otherwise the
    segment loses the failure's time, as in the closed form and in a spot job's own restarts."""

    def __post_init__(self) -> None:
        """Raise ValueError for times that no run can have. All fields but the flag ``renewed`` are seconds.
        ``work``: training in total. ``segment``: from a job's start to its planned end. ``interval``: between
        two checkpoints. ``mtbf``: mean time between failures. The others are durations of interruptions."""
        problems: list[str] = []
        for field in fields(self):
            if field.name == "renewed":
                continue
            value = getattr(self, field.name)
            if field.name in ("work", "segment", "interval", "mtbf"):
                # These may be infinite: a run without planned ends, checkpoints or failures.
                if not value > 0:
                    problems.append(f"{field.name}: it must be positive, not {value}")
            elif not 0 <= value < math.inf:
                problems.append(f"{field.name}: it must be a time, not {value}")
        # A segment, one job of the run, must be longer than its start and its last checkpoint (a stall).
        if not problems and self.segment <= self.start + self.stall:
            problems.append(f"segment: {self.segment} leaves no time to train; the start takes {self.start}")
        if problems:
            raise ValueError("; ".join(problems))


@dataclass(frozen=True)
class SimulatedRun:
    """One simulated run: how many seconds went into what."""

    makespan: float
    """Sum of all times below; infinite for a run that never ends."""
    work: float
    """Useful training."""

    starting: float = 0.0
    """From the starts of jobs until they train."""

    saving: float = 0.0
    """Stalls for checkpoints."""

    lost: float = 0.0
    """Training or saving undone by a failure."""

    recovering: float = 0.0
    """Restarts after failures."""

    waiting: float = 0.0
    """Between jobs, or for a limit too near to do anything before."""

    segments: int = 1
    failures: int = 0
    """Number of failures that interrupted a job."""

    @property
    def goodput(self) -> float:
        return self.work / self.makespan


@dataclass(frozen=True)
class Simulation:
    """Many runs of one chain."""

    chain: ChainModel
    runs: tuple[SimulatedRun, ...]
    closed_form: float
    """Makespan by Daly's formula. It subtracts failures from the segment's time; with ``renewed`` attempts
    fewer planned ends occur, and the mean is lower by about ``start / (2 * mtbf)`` of the total."""

    @property
    def makespan(self) -> float:
        """Mean makespan."""
        return fmean(run.makespan for run in self.runs)

    @property
    def goodput(self) -> float:
        return self.chain.work / self.makespan

    def quantile(self, share: float) -> float:
        """Makespan that this share of the runs stays below."""
        ordered = sorted(run.makespan for run in self.runs)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def to_dict(self) -> dict[str, Any]:
        """Plain types; seconds. Infinite times are None, as JSON has no infinity."""
        field_names = ("segments", "failures", "starting", "saving", "lost", "recovering", "waiting")
        mean_by_field = {
            name: _finite(fmean(getattr(run, name) for run in self.runs)) for name in field_names
        }
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
            "mean": mean_by_field,
            "assumed": {name: _finite(value) for name, value in asdict(self.chain).items()},
        }

    def __str__(self) -> str:
        if math.isinf(self.makespan):
            return (
                f"Simulated {len(self.runs)} times: failures every {_format_time(self.chain.mtbf)} leave "
                f"some run without an end within {_ENDLESS_RUN_FACTOR} times its work of "
                f"{_format_time(self.chain.work)}."
            )
        mean_by_field = self.to_dict()["mean"]
        share_by_use = {"training": self.goodput}
        for name in ("starting", "saving", "lost", "recovering", "waiting"):
            share_by_use[name] = mean_by_field[name] / self.makespan
        shares_text = ", ".join(
            f"{name} {share:.2%}"
            for name, share in share_by_use.items()
            if share >= 5e-5  # 0.01%
        )
        closed_form_text = ""
        if math.isfinite(self.closed_form):
            closed_form_text = f"; the closed form says {_format_time(self.closed_form)}"
        return (
            f"Simulated {len(self.runs)} times: {_format_time(self.chain.work)} of training take "
            f"{_format_time(self.makespan)} ({_format_time(self.quantile(0.05))} to "
            f"{_format_time(self.quantile(0.95))} in nine of ten){closed_form_text}.\nOf that time: "
            f"{shares_text}.\nOn average {mean_by_field['segments']:.1f} segments and "
            f"{mean_by_field['failures']:.1f} failures."
        )


def simulate(chain: ChainModel, random_fraction: RandomFraction, runs: int = DEFAULT_RUNS) -> Simulation:
    """Simulate ``runs`` runs under random failures, ``chain.mtbf`` apart on average."""
    checkpoint_costs = (chain.interval, chain.stall, chain.restart, chain.mtbf)
    if math.isinf(chain.segment):
        closed_form = chain.start + daly_makespan(chain.work, *checkpoint_costs)
    else:
        closed_form = chain_makespan(chain.work, chain.segment, chain.start, *checkpoint_costs)
    return Simulation(
        chain,
        tuple(simulate_run(chain, random_failures(chain.mtbf, random_fraction)) for _ in range(runs)),
        closed_form,
    )


def random_failures(mtbf: float, random_fraction: RandomFraction) -> Iterator[float]:
    """Endless failure times, in seconds since the run's start, of a memoryless process."""
    failure_time = 0.0
    while math.isfinite(mtbf):
        failure_time -= mtbf * math.log1p(-random_fraction())
        yield failure_time


def simulate_run(chain: ChainModel, failures: Iterable[float]) -> SimulatedRun:
    """Simulate one run with failures at these times, in seconds since its start, in order."""
    return _RunSimulator(chain, failures).simulate()


class _RunSimulator:
    """State of a simulated run."""

    def __init__(self, chain: ChainModel, failures: Iterable[float]) -> None:
        self._chain = chain
        self._failures = iter(failures)
        self._next_failure_at = next(self._failures, math.inf)
        self._now = 0.0
        self._segment_end_at = chain.segment
        self._saved_work = 0.0
        self._seconds_by_phase = dict.fromkeys(("starting", "saving", "lost", "recovering", "waiting"), 0.0)
        self._segment_count = 1
        self._failure_count = 0

    def simulate(self) -> SimulatedRun:
        """Simulate the run and return how its time was used; its makespan is infinite if it never finishes.

        A run is a chain of segments (jobs with a planned end). Each begins with a start; a failure is
        followed by a restart; in between it trains. All times are seconds since the run's start, and
        ``self._now`` is the time of the last event.
        """
        chain = self._chain
        # A run that takes 100 times as long as its work (total training) and starts never finishes.
        gives_up_after = _ENDLESS_RUN_FACTOR * (chain.work + chain.start + chain.restart)
        phase, phase_seconds = "starting", chain.start
        while self._now <= gives_up_after:
            # The phase before training, a start or a restart, lasts until it ends or is interrupted.
            training_begins_at = self._now + phase_seconds
            interrupted_at = min(self._next_failure_at, self._segment_end_at)
            # At the very end of the phase, a failure interrupts the training that follows, but the segment's
            # end still interrupts the phase.
            is_phase_interrupted = (
                self._next_failure_at < training_begins_at or self._segment_end_at <= training_begins_at
            )
            if is_phase_interrupted:
                self._advance_to(interrupted_at, phase)
            else:
                self._advance_to(training_begins_at, phase)
                # True if all work is done; otherwise a failure or the planned end has interrupted it.
                is_done = self._train_until_interrupted()
                if is_done:
                    return self._to_simulated_run(self._now)
            if self._now == self._next_failure_at:
                self._register_failure()
                phase, phase_seconds = "recovering", chain.restart
            else:
                self._start_next_segment()
                phase, phase_seconds = "starting", chain.start
        return self._to_simulated_run(math.inf)

    def _train_until_interrupted(self) -> bool:
        """Train until the work is done (returns True), the planned end or a failure."""
        chain, started_at = self._chain, self._now
        remaining_work = chain.work - self._saved_work
        save_count = max(1, math.ceil(remaining_work / chain.interval))
        work_end = started_at + remaining_work + save_count * chain.stall
        if work_end <= min(self._segment_end_at, self._next_failure_at):
            self._add_saved_training(remaining_work, work_end)
            return True
        cycle_seconds = chain.interval + chain.stall
        if self._segment_end_at <= self._next_failure_at:
            # The last save ends at the planned end; a periodic save in progress then replaces it.
            full_cycles, partial_cycle = divmod(
                max(0.0, self._segment_end_at - chain.stall - started_at), cycle_seconds
            )
            self._add_saved_training(
                full_cycles * chain.interval + min(partial_cycle, chain.interval), self._segment_end_at
            )
        else:
            full_cycles, partial_cycle = divmod(self._next_failure_at - started_at, cycle_seconds)
            self._add_saved_training(full_cycles * chain.interval, self._next_failure_at - partial_cycle)
            self._advance_to(self._next_failure_at, "lost")
        return False

    def _add_saved_training(self, trained: float, until: float) -> None:
        """Count training that a save preserves."""
        self._seconds_by_phase["saving"] += until - self._now - trained
        self._saved_work += trained
        self._now = until

    def _advance_to(self, until: float, phase: str) -> None:
        """Let the time until ``until`` pass in a phase."""
        self._seconds_by_phase[phase] += until - self._now
        self._now = until

    def _register_failure(self) -> None:
        self._failure_count += 1
        self._next_failure_at = next(self._failures, math.inf)
        if self._chain.renewed:
            self._segment_end_at = (
                self._now + max(0.0, self._chain.restart - self._chain.start) + self._chain.segment
            )

    def _start_next_segment(self) -> None:
        self._segment_count += 1
        self._advance_to(self._now + self._chain.gap, "waiting")
        while self._next_failure_at < self._now:
            self._next_failure_at = next(self._failures, math.inf)
        self._segment_end_at = self._now + self._chain.segment

    def _to_simulated_run(self, makespan: float) -> SimulatedRun:
        work = self._chain.work
        return SimulatedRun(
            makespan,
            work,
            segments=self._segment_count,
            failures=self._failure_count,
            **self._seconds_by_phase,
        )


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


_SCALES: Mapping[str, float] = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0}


def _format_time(seconds: float) -> str:
    """Return a time as ``62.1 d`` or ``3.50 h``: in the largest unit of which it is at least two."""
    if math.isinf(seconds):
        return "an unlimited time"
    unit = next((unit for unit, scale in _SCALES.items() if seconds >= 2 * scale), "s")
    count = seconds / _SCALES[unit]
    return f"{count:.1f} {unit}" if count >= 100 else f"{count:.2f} {unit}"
