"""``smlaunch ls | show | logs | wait | stop | resume``: commands for existing runs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from smlaunch.cli.options import GroupedCommand, connection_options, grouped_option, json_option
from smlaunch.contract.names import parse_any_job_name


@click.command(cls=GroupedCommand, short_help="List runs, newest first.")
@connection_options
@grouped_option(
    "Which", "--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of runs."
)
@json_option
def ls(limit: int, as_json: bool, **options: Any) -> int:
    """List runs, newest first. Training jobs of other clients are listed under their own names."""
    from smlaunch.cli.console import echo
    from smlaunch.cli.display import format_duration
    from smlaunch.connection.connect import open_connection
    from smlaunch.runs.run import list_runs

    with open_connection(options, read_only=True) as connection:
        rows = list_runs(connection.target, limit)
    if as_json:
        click.echo(json.dumps({"runs": [row._asdict() for row in rows]}, indent=2))
        return 0
    if not rows:
        click.echo(f"no runs on {connection.description}", err=True)
        return 0
    now = time.time()
    table = [("RUN", "STATUS", "CREATED", "DURATION")]
    for row in rows:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.created))
        duration = format_duration((row.ended or now) - row.created)
        table.append(
            (
                row.run,
                row.status + _describe_job(row.job) + _describe_format(row.other_format),
                created,
                duration,
            )
        )
    for line in align_columns(table):
        echo(line)
    return 0


@click.command(cls=GroupedCommand, short_help="Show the state or the result of a run.")
@click.argument("run")
@connection_options
@json_option
def show(run: str, as_json: bool, **options: Any) -> int:
    """Show the state or the result of a run: status, times, failure, and locations of its results."""
    from smlaunch.cli.console import echo
    from smlaunch.cli.display import format_duration
    from smlaunch.cli.follow import print_results
    from smlaunch.connection.connect import open_connection
    from smlaunch.planner.external_execution import describe_driver
    from smlaunch.runs.missing_files import add_missing_file_hint
    from smlaunch.runs.outcome import summarize_job, summarize_run
    from smlaunch.runs.run import Run
    from smlaunch.secrets.masking import mask_text

    with open_connection(options, read_only=True) as connection:
        result = add_missing_file_hint(Run.attach(run, connection.target).refresh(), connection.target)
        if as_json:
            click.echo(json.dumps(result.to_dict(), indent=2))
            return 0
        job, jobs = result.last_job, result.jobs
        rows = [("run", result.run), ("job", job.name), ("status", summarize_run(result))]
        if result.execution is not None:
            rows.append(("driven by", describe_driver(result.execution)))
        if jobs[0].created is not None:
            rows.append(("created", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(jobs[0].created))))
            rows.append(("duration", format_duration((job.ended or time.time()) - jobs[0].created)))
        training_seconds = [
            each_job.training_seconds for each_job in jobs if each_job.training_seconds is not None
        ]
        billable_seconds = [
            each_job.billable_seconds for each_job in jobs if each_job.billable_seconds is not None
        ]
        if training_seconds:
            cost = f", billed {format_duration(sum(billable_seconds))}" if billable_seconds else ""
            rows.append(("training", format_duration(sum(training_seconds)) + cost))
        if result.step is not None:
            rows.append(("checkpoint", f"step {result.step}"))
        if result.exit_code is not None:
            rows.append(("exit code", str(result.exit_code)))
        if result.hint:
            rows.append(("hint", result.hint))
        if len(jobs) > 1:
            rows.extend((each_job.name, summarize_job(each_job)) for each_job in jobs)
        for line in align_columns(rows):
            echo(mask_text(line))
        if job.failure is not None and job.failure.traceback:
            echo(f"\n{job.failure.traceback}\n")
        print_results(result, connection)
    return 0


@click.command(cls=GroupedCommand, short_help="Print a run's log.")
@click.argument("run")
@connection_options
@grouped_option(
    "Which",
    "-f",
    "--follow",
    is_flag=True,
    help="Follow until the run has ended, and exit with its exit code.",
)
@grouped_option("Which", "--host", metavar="NAME", help="Lines of this host only, such as algo-2.")
@json_option
def logs(run: str, follow: bool, host: str | None, as_json: bool, **options: Any) -> int:
    """Print the log of a run, all hosts merged by time. With several hosts, lines begin with the host."""
    from smlaunch.cli.console import escape_controls, print_message
    from smlaunch.cli.display import is_endpoint_line
    from smlaunch.connection.connect import open_connection
    from smlaunch.errors import JobError, Problem
    from smlaunch.runs.run import Run

    if follow and as_json:
        raise JobError(
            [Problem("--json", "one JSON document cannot be written before the run has ended; leave out -f")]
        )
    with open_connection(options, read_only=True) as connection:
        attached_run = Run.attach(run, connection.target, on_message=print_message)
        if follow:
            from smlaunch.cli.display import Display
            from smlaunch.cli.follow import follow_to_end

            display = Display(attached_run.host_count(), only_host=host)
            return follow_to_end(attached_run, connection, display, as_json=False, from_first_job=True)
        lines = sorted(
            (line for line in attached_run.logs() if host in (None, line.host)), key=lambda line: line.at
        )
    if as_json:
        click.echo(
            json.dumps({"run": attached_run.name, "lines": [line._asdict() for line in lines]}, indent=2)
        )
        return 0
    has_several_hosts = len({line.host for line in lines}) > 1
    for line in lines:
        text = escape_controls(line.text) if is_endpoint_line(line.text) else line.text
        sys.stdout.write(f"{line.host} {text}\n" if has_several_hosts else f"{text}\n")
    return 0


@click.command(cls=GroupedCommand, short_help="Wait for a run and exit with its exit code.")
@click.argument("run")
@connection_options
@json_option
def wait(run: str, as_json: bool, **options: Any) -> int:
    """Wait until a run has ended, and exit with its exit code. States and progress go to stderr."""
    from smlaunch.cli.console import print_message
    from smlaunch.cli.display import Display
    from smlaunch.cli.follow import follow_to_end
    from smlaunch.connection.connect import open_connection
    from smlaunch.runs.run import Run

    with open_connection(options, read_only=True) as connection:
        attached_run = Run.attach(run, connection.target, on_message=print_message)
        return follow_to_end(attached_run, connection, Display(1, show_log=False), as_json=as_json)


@click.command(cls=GroupedCommand, short_help="Stop a run.")
@click.argument("run")
@connection_options
@json_option
def stop(run: str, as_json: bool, **options: Any) -> int:
    """Stop a run: every process gets SIGTERM, and SIGKILL after 120 seconds; no further segment is submitted.
    Does not wait for the end."""
    from smlaunch.cli.console import echo, print_message
    from smlaunch.connection.connect import open_connection
    from smlaunch.runs.outcome import summarize_run
    from smlaunch.runs.run import Run

    with open_connection(options, read_only=True) as connection:
        result = Run.attach(run, connection.target, on_message=print_message).stop()
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        echo(f"{result.run}: {summarize_run(result)}")
    return 0


@click.command(cls=GroupedCommand, short_help="Continue a run of several segments.")
@click.argument("run")
@connection_options
@json_option
def resume(run: str, as_json: bool, **options: Any) -> int:
    """Continue a run of several segments, from any machine: follow the running segment and submit the next
    ones, each from the newest checkpoint, until the run has ended.

    A run that was stopped or has failed is tried again. If another command drives the run at the same time,
    no job is submitted twice.
    """
    from smlaunch.cli.console import print_message
    from smlaunch.cli.display import Display
    from smlaunch.cli.follow import follow_to_end
    from smlaunch.connection.connect import open_connection
    from smlaunch.runs.run import Run

    with open_connection(options) as connection:
        attached_run = Run.attach(run, connection.target, on_message=print_message)
        attached_run.resume()
        display = Display(
            attached_run.host_count(), out=sys.stderr if as_json else sys.stdout, ignore_closed_stdout=True
        )
        return follow_to_end(
            attached_run, connection, display, as_json=as_json, is_embedded=connection.is_embedded
        )


def _describe_format(version: str | None) -> str:
    """Note for a run in a stored format that this release cannot show, resume or stop."""
    return "" if version is None else f" (another format: {version})"


def _describe_job(job: str) -> str:
    """Segment and attempt that a status is of, where the run has had more than one job."""
    task = parse_any_job_name(job)
    if task is None or (task.segment, task.attempt) == (1, 1):
        return ""
    attempt_text = f", attempt {task.attempt}" if task.attempt > 1 else ""
    return f" (segment {task.segment}{attempt_text})"


def align_columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Format rows as columns, each as wide as its widest cell; the last column is not padded."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
