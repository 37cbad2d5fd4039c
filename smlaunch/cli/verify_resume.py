"""``smlaunch verify-resume``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.job_arguments import read_job
from smlaunch.cli.json_output import print_json
from smlaunch.cli.options import SCRIPT_ARGUMENTS, JobCommand, grouped_option, job_options, json_option

if TYPE_CHECKING:
    from smlaunch.verify.resume_verification import TrialReport, VerifyReport
    from smlaunch.verify.trial_runner import AppliedCut, CutSignal

_TRIALS = "Trials"
_TEMPORARY_ROOT = "/var/tmp"  # noqa: S108 - the directory in it has a name that cannot be foreseen
_SIGNALS: dict[str, tuple[CutSignal, ...]] = {"term": ("term",), "kill": ("kill",), "both": ("term", "kill")}


@click.command("verify-resume", cls=JobCommand, short_help="Verify that a script resumes exactly.")
@job_options
@grouped_option(
    _TRIALS, "--cuts", type=click.IntRange(1, 100), default=3, help="Cuts in each run; default: 3."
)
@grouped_option(
    _TRIALS,
    "--signal",
    type=click.Choice(tuple(_SIGNALS)),
    default="both",
    help="SIGTERM to all hosts, SIGKILL to a rank, or one run with each.",
)
@grouped_option(_TRIALS, "--seed", type=int, default=0, help="Seed for the steps of the cuts; default: 0.")
@grouped_option(
    _TRIALS,
    "--isolation",
    type=click.Choice(("full", "user", "plain")),
    help="Isolation level of the hosts; default: the strongest that works.",
)
@json_option
@click.pass_context
def verify_resume(
    ctx: click.Context,
    /,
    job_path: str | None,
    cuts: int,
    signal: str,
    seed: int,
    isolation: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Run a script on this machine uninterrupted, then with cuts at random steps, and compare the results.

    Compares all files in /opt/ml/model and /opt/ml/output/data value by value; with smlaunch.train also the
    samples and losses of every step, and the state of all registered objects. Reports each difference with
    its likely cause, and what could not be compared. Exit codes: 0 identical, 1 different, 2 the script
    cannot be verified.
    """
    # Nothing is sent to AWS, so no role is needed.
    # SCRIPT_ARGUMENTS: key of the arguments after "--".
    job = read_job(job_path, {**options, "role": None}, ctx.meta.get(SCRIPT_ARGUMENTS))

    from smlaunch.cli.console import print_message
    from smlaunch.connection.open_connection import target_of_endpoint
    from smlaunch.errors import JobError, Problem, TrainingFailed
    from smlaunch.local.endpoint import Endpoint
    from smlaunch.local.endpoint_settings import Settings
    from smlaunch.verify.resume_verification import verify_resume as verify_resume_of_job

    # A temporary state directory. It is not below /tmp: hosts have a /tmp of their own, and must write their
    # traces where this process can read them.
    # Short times, since nothing but this command uses the endpoint, which emulates SageMaker on this machine.
    settings = Settings(close_grace_seconds=1.0, checkpoint_sync_seconds=0.2)
    with TemporaryDirectory(prefix="smlaunch-verify-", dir=_TEMPORARY_ROOT) as temporary_dir:
        state_dir, traces_dir = Path(temporary_dir, "home"), Path(temporary_dir, "traces")
        traces_dir.mkdir()
        with Endpoint(state_dir, isolation=isolation, settings=settings) as endpoint_info:
            try:
                report = verify_resume_of_job(
                    job,
                    target_of_endpoint(endpoint_info),
                    traces_dir,
                    cut_count=cuts,
                    signals=_SIGNALS[signal],
                    seed=seed,
                    on_message=print_message,
                )
            except TrainingFailed as error:
                raise JobError([Problem("", f"the script fails without any cut: {error}")]) from None
    if as_json:
        print_json(report.to_dict())
    else:
        for line in _format_report(report):
            click.echo(line)
    return 0 if report.is_identical else 1


def _format_report(report: VerifyReport) -> Iterator[str]:
    """Yield the lines that show a report of ``smlaunch verify-resume``: whether interrupted runs (trials)
    give the results of an uninterrupted one. ``is_repeatable``: whether two uninterrupted runs gave the same.
    """
    steps_text = f"{report.steps} steps" if report.steps else "steps unknown"
    ranks_text = f" on {report.ranks} rank{'s' if report.ranks != 1 else ''}" if report.ranks else ""
    yield f"unsplit: {steps_text}{ranks_text}"
    for trial in report.trials:
        yield from _format_trial(trial)
    for not_compared_item in report.not_compared_items:
        yield f"not compared: {not_compared_item}"
    if report.is_identical:
        yield click.style("identical", fg="green", bold=True) + f": {'; '.join(report.compared_items)}"
    elif report.is_repeatable is False:  # None: not tested
        yield click.style("different", fg="red", bold=True) + ", but two runs without any cut differ too"
    else:
        yield click.style("different", fg="red", bold=True)


def _format_trial(trial: TrialReport) -> Iterator[str]:
    """Yield the lines about one trial: a run that was interrupted (cut) by a signal at some steps and
    resumed."""
    signal_name = {"term": "SIGTERM", "kill": "SIGKILL"}[trial.signal]
    yield f"{signal_name}: cut " + ", ".join(_describe_cut(cut) for cut in trial.cuts)
    if trial.late_cut_count:
        yield f"  {trial.late_cut_count} further cuts came too late: the script had ended"
    for difference in trial.comparison.difference_texts:
        yield f"  differs: {difference}"
    for cause in trial.comparison.causes:
        yield f"  likely cause: {cause}"


def _describe_cut(cut: AppliedCut) -> str:
    if cut.after_step is None:
        return "by time"
    return f"after step {cut.after_step}" + (
        f" (continued with step {cut.resumed_step})" if cut.resumed_step else ""
    )
