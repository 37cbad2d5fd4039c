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

from smlaunch.discovery.program_files import find_program_file, source_folder
from smlaunch.errors import JobError, Problem
from smlaunch.job.model import Entry, Job
from smlaunch.runs.launch_target import Target
from smlaunch.verify import causes
from smlaunch.verify.rank_killer import can_kill
from smlaunch.verify.repeatability import TimeSpan, discount_unrepeatable, is_repeatable
from smlaunch.verify.run_diff import Comparison, compare_runs
from smlaunch.verify.run_pair import RunDifference
from smlaunch.verify.script_lint import LintFindings, lint_script
from smlaunch.verify.trial_runner import AppliedCut, CutSignal, TrialResult, TrialRunner, draw_cuts


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
    def compared_items(self) -> list[str]:
        """What was compared in each of the trials."""
        scopes = [trial.comparison.compared_items for trial in self.trials]
        return [item for item in scopes[0] if all(item in scope for scope in scopes)]

    @property
    def not_compared_items(self) -> list[str]:
        return list(
            dict.fromkeys(item for trial in self.trials for item in trial.comparison.not_compared_items)
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "identical": self.is_identical,
            "compared": self.compared_items,
            "not_compared": self.not_compared_items,
            "steps": self.steps or None,
            "ranks": self.ranks or None,
            "repeats": self.is_repeatable,
            "trials": [trial.to_dict() for trial in self.trials],
        }


def verify_resume(
    job: Job,
    target: Target,
    trace_folder: Path,
    *,
    cut_count: int,
    signals: Sequence[CutSignal],
    seed: int,
    on_message: Callable[[str], None],
) -> VerifyReport:
    """Verify that the job's script resumes exactly: interrupt it ``cut_count`` times by each of ``signals``,
    and compare each resumed run (a trial) with an uninterrupted one, the baseline. Runs on an endpoint of
    this machine, where ranks can be killed.

    The ranks write traces of their steps to ``trace_folder``. ``seed`` determines the times of the
    interruptions. Raises JobError for a job that cannot be tested, and TrainingFailed when the script fails
    by itself.
    """
    if "kill" in signals and not can_kill():
        raise JobError([Problem("--signal", "ranks are found by /proc, which this machine lacks; take term")])
    if job.entry is None:
        raise JobError([Problem("entry", "only a script's resume can be verified; name one")])
    trial_runner = TrialRunner(job, target, trace_folder, on_message)  # runs the script, with or without cuts
    started_at = time.time()
    on_message("unsplit: the run that the others are compared with")
    baseline = trial_runner.run_trial("unsplit")
    if not baseline.record.trace_by_rank and not baseline.record.artifact_files:
        raise JobError([Problem("", _NOTHING_TO_COMPARE)])
    lint_findings = _lint_program(job, job.entry)  # they make the reported causes more precise
    trial_reports: list[TrialReport] = []
    for signal in signals:
        result = _run_with_cuts(
            trial_runner, signal, cut_count=cut_count, baseline=baseline, seed=seed, on_message=on_message
        )
        comparison = _compare_trial(baseline, result, lint_findings)  # samples, losses, states, files
        trial_reports.append(
            TrialReport(
                signal=signal,
                cuts=result.applied_cuts,
                late_cut_count=result.late_cut_count,  # cuts after which no training was left
                comparison=comparison,
            )
        )
    report = VerifyReport(
        steps=baseline.last_step, ranks=len(baseline.record.trace_by_rank), trials=tuple(trial_reports)
    )
    all_differences = [difference for trial in trial_reports for difference in trial.comparison.differences]
    # Of the kind "run": a run that did not reach its end, and was not compared.
    if all(difference.kind == "run" for difference in all_differences):
        return report
    on_message("the runs differ: checking whether the unsplit run is repeatable")
    second_baseline = trial_runner.run_trial("unsplit-again")
    baseline_comparison = compare_runs(baseline.record, second_baseline.record, lint_findings)
    return _correct_by_repeatability(report, baseline_comparison, TimeSpan(started_at, time.time()))


def _correct_by_repeatability(
    report: VerifyReport, baseline_comparison: Comparison, all_runs_time: TimeSpan
) -> VerifyReport:
    """Return the report without differences that two uninterrupted runs have as well, which
    ``baseline_comparison`` compares. ``all_runs_time``: times in files are recognized by it."""
    trials = tuple(
        replace(trial, comparison=discount_unrepeatable(trial.comparison, baseline_comparison, all_runs_time))
        for trial in report.trials
    )
    return replace(report, trials=trials, is_repeatable=is_repeatable(baseline_comparison, all_runs_time))


def _lint_program(job: Job, entry: Entry) -> LintFindings:
    """Return the calls in the job's script that may break an exact resume; none for a script that is not
    found, such as one of the image."""
    program_file = find_program_file(entry, source_folder(job))
    if program_file is None:
        return LintFindings()
    return lint_script(program_file.read_text("utf-8", "replace"), program_file.name)


def _run_with_cuts(
    trial_runner: TrialRunner,
    signal: CutSignal,
    cut_count: int,
    baseline: TrialResult,
    seed: int,
    on_message: Callable[[str], None],
) -> TrialResult:
    """Run the script with ``cut_count`` deliberate interruptions (cuts); if none of them was followed by a
    resume, run it once more with other cuts.

    ``baseline`` is the uninterrupted run, and ``seed`` makes the random times of the cuts repeatable. Raises
    JobError when nothing was resumed, because only a resume shows anything.
    """
    rank_count = len(baseline.record.trace_by_rank)
    result = TrialResult(baseline.record)
    earliest_fraction = 0.0  # of the training, before which no cut is made
    for seed_suffix in ("", "/again"):
        random = Random(f"{seed}/{signal}{seed_suffix}")  # noqa: S311
        planned_cuts = draw_cuts(
            signal,
            count=cut_count,
            last_step=baseline.last_step,
            rank_count=rank_count,
            random=random,
            earliest_fraction=earliest_fraction,
        )
        steps_text = ", ".join(str(cut.after_step) for cut in planned_cuts if cut.after_step)
        cuts_text = f"after steps {steps_text}" if steps_text else "by time, because it reports no steps"
        on_message(f"{signal}: to be cut {cuts_text}")
        result = trial_runner.run_trial(f"cut-{signal}", planned_cuts, baseline)
        if result.resume_failure is not None:  # a job that cannot start on its checkpoints is a result, too
            return result
        if result.applied_cuts and result.has_resumed:  # the last job went on from a checkpoint
            return result
        if result.applied_cuts:
            on_message("nothing was resumed: the last job started from the beginning")
            earliest_fraction = 0.5  # later, because a kill before the first checkpoint shows nothing
        else:
            on_message("nothing was resumed: the cuts came too late")
    raise JobError([Problem("--cuts", _NOT_RESUMED if result.applied_cuts else _TOO_SHORT)])


def _compare_trial(baseline: TrialResult, result: TrialResult, findings: LintFindings) -> Comparison:
    if result.resume_failure is None:
        return compare_runs(baseline.record, result.record, findings)
    return Comparison((RunDifference("run", description=result.resume_failure),), (causes.CANNOT_RESUME,))


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
