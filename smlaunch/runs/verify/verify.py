"""The whole proof: unsplit, then with cuts of each kind, and where they differ the unsplit run once more.

A training that does not repeat itself without any cut cannot be resumed exactly; that is found out only when
something differs, since the answer costs a whole run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.job import Job
from smlaunch.runs.target import Target
from smlaunch.runs.verify.compare import Verdict, compare
from smlaunch.runs.verify.hints import Hints, look
from smlaunch.runs.verify.killing import can_kill
from smlaunch.runs.verify.trial import Made, Ran, Signal, Trials, draw_cuts


@dataclass(frozen=True)
class Trial:
    """One run with cuts, compared."""

    signal: Signal
    cuts: tuple[Made, ...]
    late: int
    verdict: Verdict

    def to_dict(self) -> dict[str, Any]:
        cuts = [asdict(cut) for cut in self.cuts]
        return {"signal": self.signal, "cuts": cuts, "late": self.late, **self.verdict.to_dict()}


@dataclass(frozen=True)
class Report:
    """``repeats``: whether the unsplit run comes out the same twice; None when there was no need to ask."""

    steps: int
    ranks: int
    exact: bool
    trials: tuple[Trial, ...]
    repeats: bool | None = None

    @property
    def identical(self) -> bool:
        return all(trial.verdict.identical for trial in self.trials)

    def to_dict(self) -> dict[str, Any]:
        return {
            "identical": self.identical,
            "compared": "state" if self.exact else "files",
            "steps": self.steps or None,
            "ranks": self.ranks or None,
            "repeats": self.repeats,
            "trials": [trial.to_dict() for trial in self.trials],
        }


def verify(
    job: Job,
    target: Target,
    folder: Path,
    *,
    cuts: int,
    signals: Sequence[Signal],
    seed: int,
    told: Callable[[str], None],
) -> Report:
    """``target``: an endpoint of this machine, since ranks are killed and write their traces to ``folder``.

    Raises JobError for what cannot be tried, TrainingFailed when the script fails by itself.
    """
    if "kill" in signals and not can_kill():
        raise JobError([Problem("--signal", "ranks are found by /proc, which is not here; take term")])
    if job.entry is None:
        raise JobError([Problem("entry", "it is a script's resume that is verified; name one")])
    trials = Trials(job, target, folder, told)
    told("unsplit: the run that the others are compared with")
    unsplit = trials.run("unsplit")
    ranks = len(unsplit.account.ranks)
    hints = look(Path(job.entry).read_text("utf-8", "replace"), Path(job.entry).name)
    done = []
    for signal in signals:
        drawn = draw_cuts(signal, cuts, unsplit.last_step, ranks, Random(f"{seed}/{signal}"))  # noqa: S311
        where = ", ".join(str(cut.step) for cut in drawn if cut.step)
        told(
            f"{signal}: to be cut "
            + (f"after steps {where}" if where else "by time, since it tells no steps")
        )
        ran = trials.run(f"cut-{signal}", drawn, unsplit)
        if not ran.made:
            raise JobError([Problem("--cuts", _TOO_SHORT)])
        done.append(Trial(signal, ran.made, ran.late, compare(unsplit.account, ran.account, hints)))
    report = Report(unsplit.last_step, ranks, bool(ranks), tuple(done))
    if report.identical:
        return report
    told("something differs: whether the unsplit run repeats itself at all")
    again = trials.run("unsplit-again")
    return _with_repetition(report, unsplit, again, hints)


_TOO_SHORT = (
    "no cut could be made before the script had ended; let it train for more steps, or for longer at each"
)


def _with_repetition(report: Report, unsplit: Ran, again: Ran, hints: Hints) -> Report:
    verdict = compare(unsplit.account, again.account, hints)
    if verdict.identical:
        return Report(report.steps, report.ranks, report.exact, report.trials, repeats=True)
    cause = (
        f"two unsplit runs differ already ({verdict.differences[0]}): the training itself does not repeat "
        "itself, and no way of resuming can be exact. Set all seeds, and try --deterministic"
    )
    trials = tuple(
        Trial(
            trial.signal,
            trial.cuts,
            trial.late,
            Verdict(trial.verdict.differences, (cause,), trial.verdict.notes),
        )
        for trial in report.trials
    )
    return Report(report.steps, report.ranks, report.exact, trials, repeats=False)
