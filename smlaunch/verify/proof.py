"""Verifies a script's resume: an unsplit run, then runs with cuts of each kind, and a second unsplit run if
they differ.

A training that is not repeatable without a cut cannot be resumed exactly. That is checked only after a
difference, because the check takes a whole run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

from smlaunch.errors import JobError, Problem
from smlaunch.job.model import Job
from smlaunch.runs.target import Target
from smlaunch.verify import causes
from smlaunch.verify.diff import Comparison, RunDifference, compare_runs
from smlaunch.verify.kill import can_kill
from smlaunch.verify.lint import LintFindings, lint_script
from smlaunch.verify.repeatability import TimeSpan, discount_unrepeatable, is_repeatable
from smlaunch.verify.runner import AppliedCut, CutSignal, TrialResult, TrialRunner, draw_cuts


@dataclass(frozen=True)
class TrialReport:
    """One run with cuts, compared with the unsplit run."""

    signal: CutSignal
    cuts: tuple[AppliedCut, ...]
    late_cut_count: int
    comparison: Comparison

    def to_dict(self) -> dict[str, Any]:
        cuts = [cut.to_dict() for cut in self.cuts]
        return {"signal": self.signal, "cuts": cuts, "late": self.late_cut_count, **self.comparison.to_dict()}


@dataclass(frozen=True)
class VerifyReport:
    """Result of the verification."""

    steps: int
    ranks: int
    trials: tuple[TrialReport, ...]
    is_repeatable: bool | None = None
    """Whether two unsplit runs are the same; None when that was not checked."""

    @property
    def is_identical(self) -> bool:
        return all(trial.comparison.is_identical for trial in self.trials)

    @property
    def compared(self) -> list[str]:
        """What was compared in each of the trials."""
        scopes = [trial.comparison.compared for trial in self.trials]
        return [item for item in scopes[0] if all(item in scope for scope in scopes)]

    @property
    def not_compared(self) -> list[str]:
        return list(dict.fromkeys(item for trial in self.trials for item in trial.comparison.not_compared))

    def to_dict(self) -> dict[str, Any]:
        return {
            "identical": self.is_identical,
            "compared": self.compared,
            "not_compared": self.not_compared,
            "steps": self.steps or None,
            "ranks": self.ranks or None,
            "repeats": self.is_repeatable,
            "trials": [trial.to_dict() for trial in self.trials],
        }


def verify_resume(
    job: Job,
    target: Target,
    folder: Path,
    *,
    cut_count: int,
    signals: Sequence[CutSignal],
    seed: int,
    on_message: Callable[[str], None],
) -> VerifyReport:
    """Verify the resume of the job's script on an endpoint of this machine, where ranks can be killed.

    The ranks write their traces to ``folder``. Raises JobError for a job that cannot be tested, and
    TrainingFailed when the script fails by itself.
    """
    if "kill" in signals and not can_kill():
        raise JobError([Problem("--signal", "ranks are found by /proc, which this machine lacks; take term")])
    if job.entry is None:
        raise JobError([Problem("entry", "only a script's resume can be verified; name one")])
    trials = TrialRunner(job, target, folder, on_message)
    started_at = time.time()
    on_message("unsplit: the run that the others are compared with")
    unsplit = trials.run("unsplit")
    if not unsplit.record.trace_by_rank and not unsplit.record.files:
        raise JobError([Problem("", _NOTHING_TO_COMPARE)])
    findings = lint_script(Path(job.entry).read_text("utf-8", "replace"), Path(job.entry).name)
    reports = []
    for signal in signals:
        result = _run_with_cuts(trials, signal, cut_count, unsplit, seed, on_message)
        reports.append(
            TrialReport(
                signal, result.applied_cuts, result.late_cut_count, _compare_trial(unsplit, result, findings)
            )
        )
    report = VerifyReport(unsplit.last_step, len(unsplit.record.trace_by_rank), tuple(reports))
    if all(difference.kind == "run" for trial in reports for difference in trial.comparison.differences):
        return report
    on_message("the runs differ: checking whether the unsplit run is repeatable")
    repetition = compare_runs(unsplit.record, trials.run("unsplit-again").record, findings)
    time_span = TimeSpan(started_at, time.time())
    judged_reports = tuple(
        replace(trial, comparison=discount_unrepeatable(trial.comparison, repetition, time_span))
        for trial in reports
    )
    return replace(report, trials=judged_reports, is_repeatable=is_repeatable(repetition, time_span))


def _run_with_cuts(
    trials: TrialRunner,
    signal: CutSignal,
    cut_count: int,
    unsplit: TrialResult,
    seed: int,
    on_message: Callable[[str], None],
) -> TrialResult:
    """Run the script with cuts until at least one of them was followed by a resume.

    Raises JobError when there is none, because only a resume shows anything.
    """
    ranks = len(unsplit.record.trace_by_rank)
    result = TrialResult(unsplit.record)
    earliest_fraction = 0.0
    for attempt in ("", "/again"):
        random = Random(f"{seed}/{signal}{attempt}")  # noqa: S311
        planned_cuts = draw_cuts(signal, cut_count, unsplit.last_step, ranks, random, earliest_fraction)
        steps_text = ", ".join(str(cut.after_step) for cut in planned_cuts if cut.after_step)
        on_message(
            f"{signal}: to be cut "
            + (f"after steps {steps_text}" if steps_text else "by time, because it reports no steps")
        )
        result = trials.run(f"cut-{signal}", planned_cuts, unsplit)
        if result.failure is not None or (result.applied_cuts and result.is_resumed):
            return result
        on_message(
            "nothing was resumed: "
            + ("the last job started from the beginning" if result.applied_cuts else "the cuts came too late")
        )
        earliest_fraction = (
            0.5 if result.applied_cuts else 0.0
        )  # a kill before the first checkpoint shows nothing
    raise JobError([Problem("--cuts", _NOT_RESUMED if result.applied_cuts else _TOO_SHORT)])


def _compare_trial(unsplit: TrialResult, result: TrialResult, findings: LintFindings) -> Comparison:
    if result.failure is None:
        return compare_runs(unsplit.record, result.record, findings)
    return Comparison((RunDifference("run", text=result.failure),), (causes.CANNOT_RESUME,))


_NOTHING_TO_COMPARE = (
    "there is nothing to compare: the script does not use the Checkpointer of smlaunch.train, and writes no "
    "file to /opt/ml/model (SM_MODEL_DIR) or /opt/ml/output/data (SM_OUTPUT_DATA_DIR)"
)
_TOO_SHORT = (
    "no cut could be made before the script had ended; let it train for more steps, or for longer at each"
)
_NOT_RESUMED = (
    "nothing was resumed: after the last cut the script repeated the whole training in one job. "
    "Let it save checkpoints in /opt/ml/checkpoints and continue from them (docs/resume.md); if it does, let "
    "it train for longer, or save more often"
)
