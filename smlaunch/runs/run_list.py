"""Lists the runs of an account and region, or of an endpoint."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from smlaunch.api.job_kinds import TERMINAL_STATUSES
from smlaunch.aws.interfaces import JobSummary
from smlaunch.aws.service_errors import call_with_retries
from smlaunch.contract.progress_line import DATA_WAIT_METRIC
from smlaunch.contract.run_names import JobName, parse_any_job_name, parse_job_name
from smlaunch.errors import SmlaunchError
from smlaunch.runs.attach_run import attach
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_cost import estimate_dollars
from smlaunch.runs.run_format import unreadable_formats

_PARALLEL_DESCRIPTIONS = 8
_SEARCH_FACTOR = 10


class RunSummary(NamedTuple):
    """One row of ``smlaunch ls``: a run and its newest job. Times are seconds since the epoch."""

    run: str
    """Its name; the ARN of another client's job that is called like a run."""

    job: str
    status: str
    """Of the run; of the job where the run cannot be read."""

    created: float
    """When the first job was created."""
    ended: float | None
    """When the newest job ended; None while it runs."""
    other_format: str | None = None
    """Format version of a run that this release cannot read, ``none`` for a run without a version; None
    otherwise."""
    instance_type: str | None = None
    """Of the newest job; None where its hosts are of several types, or it cannot be read."""
    hosts: int | None = None
    """Of the newest job."""
    dollars: float | None = None
    """Estimate for all jobs so far, from on-demand prices; 0 for a local run, None where it is not known."""
    metrics: Mapping[str, float] = MappingProxyType({})
    """The newest reported ones."""


def list_runs(target: Target, limit: int, statuses: Collection[str] = ()) -> list[RunSummary]:
    """Return the ``limit`` newest runs of an account and region, or of an endpoint, newest first. Any other
    training job counts as a run of its own. ``statuses``: only runs with one of these; they are searched for
    among the newest ``limit`` x ``_SEARCH_FACTOR`` runs.

    Of a run whose newest job has ended, the status is that of the run: a chain goes on after a completed job.
    """
    summaries = _newest_runs(target, limit * _SEARCH_FACTOR if statuses else limit)
    matching: list[RunSummary] = []
    # In threads, because each run takes some requests.
    with ThreadPoolExecutor(_PARALLEL_DESCRIPTIONS) as pool:
        while summaries and len(matching) < limit:
            batch, summaries = summaries[:limit], summaries[limit:]
            described_runs = pool.map(partial(_describe_run, target=target), *zip(*batch, strict=True))
            matching += [run for run in described_runs if not statuses or run.status in statuses]
    return matching[:limit]


class _RunKey(NamedTuple):
    """Identifies a run, or the job of another client, which may be called like a run."""

    name: str
    is_run: bool


def _newest_runs(target: Target, limit: int) -> list[tuple[RunSummary, str]]:
    """Return the newest runs as far as the list of jobs shows them, each with its oldest listed job."""
    jobs_by_run: dict[_RunKey, list[JobSummary]] = {}  # newest first
    with translate_call_errors(target):
        for job_summary in target.control_plane.list_jobs():
            parsed_name = parse_any_job_name(job_summary.name)
            if parsed_name is None:
                run_key = _RunKey(job_summary.name, is_run=False)
            else:
                run_key = _RunKey(parsed_name.run, is_run=True)
            if run_key not in jobs_by_run and len(jobs_by_run) == limit:
                break
            jobs_by_run.setdefault(run_key, []).append(job_summary)
        # Runs that another release has made, in a format that this one cannot read, are marked as such.
        newest_jobs = [jobs[0] for jobs in jobs_by_run.values()]
        format_by_arn = unreadable_formats(
            [job.arn for job in newest_jobs if parse_any_job_name(job.name)], target.control_plane
        )
    summaries = [
        RunSummary(
            run=name if is_run or _RunKey(name, is_run=True) not in jobs_by_run else jobs[0].arn,
            job=jobs[0].name,
            status=jobs[0].status,
            created=min(job.created for job in jobs),
            ended=jobs[0].ended,
            other_format=format_by_arn.get(jobs[0].arn),  # None for a run that can be read
        )
        for (name, is_run), jobs in jobs_by_run.items()
    ]
    return [(summary, jobs[-1].name) for summary, jobs in zip(summaries, jobs_by_run.values(), strict=True)]


def _describe_run(summary: RunSummary, oldest_listed_job: str, target: Target) -> RunSummary:
    """Return the summary with what the list of jobs does not show: machine, cost and metrics, the status of a
    run whose newest job has ended, and the creation of a first job that is older than the listed ones.
    Unchanged if that cannot be read."""
    if summary.other_format is not None:
        return summary
    try:
        outcome = attach(summary.run, target).describe(reads_logs=True)
        last_job = outcome.last_job
        summary = summary._replace(
            instance_type=last_job.instance_type,
            hosts=last_job.host_count,
            dollars=estimate_dollars(outcome, target),
            metrics={name: value for name, value in outcome.metrics.items() if name != DATA_WAIT_METRIC},
        )
        if parse_job_name(summary.job) is None:
            return summary
        if summary.status in TERMINAL_STATUSES:
            summary = summary._replace(status=outcome.status)
        first_job = str(JobName(summary.run, segment=1, attempt=1))
        if oldest_listed_job != first_job:
            with translate_call_errors(target):
                description = call_with_retries(partial(target.control_plane.describe_job, first_job))
            summary = summary._replace(created=description["CreationTime"].timestamp())
        return summary
    except SmlaunchError:
        return summary
