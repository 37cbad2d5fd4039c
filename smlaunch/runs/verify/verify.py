"""The whole proof: unsplit, then with cuts of each kind, and where they differ the unsplit run once more.

A training that does not repeat itself without any cut cannot be resumed exactly; that is found out only when
something differs, since the answer costs a whole run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.job import Job
from smlaunch.runs.target import Target
from smlaunch.runs.verify import causes
from smlaunch.runs.verify.compare import Difference, Verdict, compare
from smlaunch.runs.verify.hints import Hints, look
from smlaunch.runs.verify.killing import can_kill
from smlaunch.runs.verify.repetition import Span, judge, repeats
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
    trials: tuple[Trial, ...]
    repeats: bool | None = None

    @property
    def identical(self) -> bool:
        return all(trial.verdict.identical for trial in self.trials)

    @property
    def compared(self) -> list[str]:
        """In each of the trials."""
        scopes = [trial.verdict.compared for trial in self.trials]
        return [one for one in scopes[0] if all(one in scope for scope in scopes)]

    @property
    def not_compared(self) -> list[str]:
        return list(dict.fromkeys(one for trial in self.trials for one in trial.verdict.not_compared))

    def to_dict(self) -> dict[str, Any]:
        return {
            "identical": self.identical,
            "compared": self.compared,
            "not_compared": self.not_compared,
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
    began = time.time()
    told("unsplit: the run that the others are compared with")
    unsplit = trials.run("unsplit")
    if not unsplit.account.ranks and not unsplit.account.files:
        raise JobError([Problem("", _NOTHING_LEFT)])
    hints = look(Path(job.entry).read_text("utf-8", "replace"), Path(job.entry).name)
    done = []
    for signal in signals:
        ran = _cut(trials, signal, cuts, unsplit, seed, told)
        done.append(Trial(signal, ran.made, ran.late, _verdict(unsplit, ran, hints)))
    report = Report(unsplit.last_step, len(unsplit.account.ranks), tuple(done))
    if all(one.kind == "run" for trial in done for one in trial.verdict.found):
        return report
    told("something differs: whether the unsplit run repeats itself at all")
    again = compare(unsplit.account, trials.run("unsplit-again").account, hints)
    span = Span(began, time.time())
    judged = tuple(replace(trial, verdict=judge(trial.verdict, again, span)) for trial in done)
    return replace(report, trials=judged, repeats=repeats(again, span))


def _cut(
    trials: Trials, signal: Signal, cuts: int, unsplit: Ran, seed: int, told: Callable[[str], None]
) -> Ran:
    """A run with cuts, of which at least one was followed by a resume: only that shows anything. Raises
    JobError when there is none."""
    ranks = len(unsplit.account.ranks)
    ran = Ran(unsplit.account)
    earliest = 0.0
    for attempt in ("", "/again"):
        random = Random(f"{seed}/{signal}{attempt}")  # noqa: S311
        drawn = draw_cuts(signal, cuts, unsplit.last_step, ranks, random, earliest)
        where = ", ".join(str(cut.step) for cut in drawn if cut.step)
        told(
            f"{signal}: to be cut "
            + (f"after steps {where}" if where else "by time, since it tells no steps")
        )
        ran = trials.run(f"cut-{signal}", drawn, unsplit)
        if ran.failure is not None or (ran.made and ran.is_resumed):
            return ran
        told("nothing was resumed: " + ("the last job began anew" if ran.made else "the cuts came too late"))
        earliest = 0.5 if ran.made else 0.0  # a kill before the first checkpoint shows nothing
    raise JobError([Problem("--cuts", _BEGINS_ANEW if ran.made else _TOO_SHORT)])


def _verdict(unsplit: Ran, ran: Ran, hints: Hints) -> Verdict:
    if ran.failure is None:
        return compare(unsplit.account, ran.account, hints)
    return Verdict((Difference("run", text=ran.failure),), (causes.NO_START,))


_NOTHING_LEFT = (
    "there is nothing to compare: the script does not use the Checkpointer of smlaunch.train, and writes no "
    "file to /opt/ml/model (SM_MODEL_DIR) or /opt/ml/output/data (SM_OUTPUT_DATA_DIR)"
)
_TOO_SHORT = (
    "no cut could be made before the script had ended; let it train for more steps, or for longer at each"
)
_BEGINS_ANEW = (
    "nothing was resumed: after the last cut the script began anew, and did the whole training in one job. "
    "Let it keep checkpoints in /opt/ml/checkpoints and go on from them (docs/resume.md); if it does, let it "
    "train for longer, or save more often"
)
