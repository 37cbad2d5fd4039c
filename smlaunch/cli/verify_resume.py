"""``smlaunch verify-resume``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.options import (
    SCRIPT_ARGUMENTS,
    JobCommand,
    job_options,
    json_option,
    option,
    read_job,
)

if TYPE_CHECKING:
    from smlaunch.runs.verify.trial import Made, Signal
    from smlaunch.runs.verify.verify import Report, Trial

_HOW = "How it is tried"
_SHARED = "/var/tmp"  # noqa: S108 - the directory in it has a name that cannot be foreseen
_SIGNALS: dict[str, tuple[Signal, ...]] = {"term": ("term",), "kill": ("kill",), "both": ("term", "kill")}


@click.command("verify-resume", cls=JobCommand, short_help="Prove that a script resumes exactly, here.")
@job_options
@option(_HOW, "--cuts", type=click.IntRange(1, 100), default=3, help="In each run with cuts; default: 3.")
@option(
    _HOW,
    "--signal",
    type=click.Choice(tuple(_SIGNALS)),
    default="both",
    help="SIGTERM to hosts, SIGKILL to a rank, or a run with each.",
)
@option(_HOW, "--seed", type=int, default=0, help="Where the cuts are drawn with; default: 0.")
@option(
    _HOW,
    "--isolation",
    type=click.Choice(("full", "user", "plain")),
    help="How hosts are kept apart; default: the best there is.",
)
@json_option
@click.pass_context
def verify_resume(
    ctx: click.Context,
    /,
    what: str | None,
    cuts: int,
    signal: str,
    seed: int,
    isolation: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Run a script on this machine unsplit, and cut at random steps, and compare what comes out.

    Compared are all files in /opt/ml/model and /opt/ml/output/data, value by value; with smlaunch.train also
    samples and losses of every step, and the state of whatever is registered. What differs is said with its
    likely cause, and what could not be compared is said too. Exit codes: 0 identical, 1 different, 2 it
    cannot be tried.
    """
    job = read_job(what, {**options, "role": None}, ctx.meta.get(SCRIPT_ARGUMENTS))

    from smlaunch.cli.telling import tell
    from smlaunch.errors import JobError, Problem, TrainingFailed
    from smlaunch.local.endpoint import Endpoint
    from smlaunch.local.settings import Settings
    from smlaunch.place import target_of
    from smlaunch.runs.verify.verify import verify

    # A directory of its own: the proof must neither find nor leave anything. Hosts have a /tmp of their own
    # and write their traces where this process reads them.
    settings = Settings(close_grace_seconds=1.0, checkpoint_sync_seconds=0.2)
    with TemporaryDirectory(prefix="smlaunch-verify-", dir=_SHARED) as folder:
        home, traces = Path(folder, "home"), Path(folder, "traces")
        traces.mkdir()
        with Endpoint(home, isolation=isolation, settings=settings) as info:
            try:
                report = verify(
                    job,
                    target_of(info),
                    traces,
                    cuts=cuts,
                    signals=_SIGNALS[signal],
                    seed=seed,
                    told=tell,
                )
            except TrainingFailed as error:
                raise JobError([Problem("", f"the script fails by itself: {error}")]) from None
    if as_json:
        click.echo(json.dumps(report.to_dict(), indent=2))
    else:
        for line in _lines(report):
            click.echo(line)
    return 0 if report.identical else 1


def _lines(report: Report) -> Iterator[str]:
    size = f"{report.steps} steps" if report.steps else "steps unknown"
    ranks = f" on {report.ranks} rank{'s' if report.ranks != 1 else ''}" if report.ranks else ""
    yield f"unsplit: {size}{ranks}"
    for trial in report.trials:
        yield from _trial(trial)
    for left in report.not_compared:
        yield f"not compared: {left}"
    if report.identical:
        yield click.style("identical", fg="green", bold=True) + f": {'; '.join(report.compared)}"
    elif report.repeats is False:
        yield click.style("different", fg="red", bold=True) + ", and so are two runs without any cut"
    else:
        yield click.style("different", fg="red", bold=True)


def _trial(trial: Trial) -> Iterator[str]:
    name = {"term": "SIGTERM", "kill": "SIGKILL"}[trial.signal]
    yield f"{name}: cut " + ", ".join(_cut(cut) for cut in trial.cuts)
    if trial.late:
        yield f"  {trial.late} more came too late: the script had ended"
    for difference in trial.verdict.differences:
        yield f"  differs: {difference}"
    for cause in trial.verdict.causes:
        yield f"  likely cause: {cause}"


def _cut(cut: Made) -> str:
    if cut.done is None:
        return "by time"
    return f"after step {cut.done}" + (f" (went on with step {cut.resumed})" if cut.resumed else "")
