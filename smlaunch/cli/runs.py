"""``smlaunch ls | show | logs | wait | stop | resume``: commands for existing runs."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.json_output import print_json
from smlaunch.cli.options import (
    GroupedCommand,
    complete_runs,
    connection_options,
    grouped_option,
    json_option,
    quiet_option,
)
from smlaunch.contract.run_names import parse_any_job_name

if TYPE_CHECKING:
    from smlaunch.runs.run_list import RunSummary
    from smlaunch.runs.run_outcome import RunOutcome


@click.command(cls=GroupedCommand, short_help="List runs, newest first.")
@connection_options
@grouped_option(
    "Which", "--limit", type=click.IntRange(1), default=20, show_default=True, help="Maximum number of runs."
)
@grouped_option(
    "Which",
    "--status",
    "statuses",
    type=click.Choice(("InProgress", "Completed", "Failed", "Stopping", "Stopped"), case_sensitive=False),
    multiple=True,
    help="Only runs with this status; repeatable.",
)
@json_option
def ls(limit: int, statuses: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """List runs, newest first. Training jobs of other clients are listed under their own names, or by their
    ARNs where a run has the same name. COST is an estimate from on-demand prices; METRIC is the newest one
    that the script has reported."""
    from smlaunch.cli.console import echo
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.runs.run_list import list_runs

    with open_connection(options, read_only=True) as connection:
        listed_runs = list_runs(connection.target, limit, statuses)
    if as_json:
        rows = [{**listed_run._asdict(), "metrics": dict(listed_run.metrics)} for listed_run in listed_runs]
        print_json({"runs": rows})
        return 0
    if not listed_runs:
        which = f" with status {' or '.join(statuses)}" if statuses else ""
        click.echo(f"no runs{which} on {connection.description}", err=True)
        return 0
    heading = ("RUN", "STATUS", "CREATED", "DURATION", "HOSTS", "COST", "METRIC")
    table_rows = [heading, *(_ls_row(listed_run, time.time()) for listed_run in listed_runs)]
    heading_line, *lines = align_columns(table_rows)
    echo(heading_line, bold=True)
    for line, listed_run in zip(lines, listed_runs, strict=True):
        echo(line, fg=_STATUS_COLOURS.get(listed_run.status))
    return 0


_STATUS_COLOURS = {"Completed": "green", "Failed": "red", "Stopped": "yellow", "Stopping": "yellow"}


def _ls_row(listed_run: RunSummary, now: float) -> tuple[str, ...]:
    """Return the cells of a row; ``-`` for what is not known. ``now``: seconds since the epoch."""
    from smlaunch.text.format import format_dollars, format_elapsed

    # Another release of smlaunch may store runs in a format that this one cannot read.
    notes = _segment_and_attempt_note(listed_run.job) + _other_format_note(listed_run.other_format)
    hosts_text = "-"
    if listed_run.hosts is not None:
        hosts_text = f"{listed_run.hosts} x {listed_run.instance_type or 'several types'}"
    cost_text = "-" if listed_run.dollars is None else format_dollars(listed_run.dollars)
    metric_texts = [f"{name} {value:.4g}" for name, value in listed_run.metrics.items()]
    return (
        listed_run.run,
        listed_run.status + notes,
        time.strftime("%Y-%m-%d %H:%M", time.localtime(listed_run.created)),
        format_elapsed((listed_run.ended or now) - listed_run.created),
        hosts_text,
        cost_text,
        metric_texts[0] if metric_texts else "-",
    )


@click.command(cls=GroupedCommand, short_help="Show the state or the result of a run.")
@click.argument("run", shell_complete=complete_runs)
@click.option(
    "--metrics", "with_metrics", is_flag=True, help="Read the whole log, and show the course of each metric."
)
@connection_options
@json_option
def show(run: str, with_metrics: bool, as_json: bool, **options: Any) -> int:
    """Show the state or the result of a run: status, times, failure, and locations of its results."""
    from smlaunch.cli.console import echo
    from smlaunch.cli.follow import print_results
    from smlaunch.cli.run_connection import open_connection_to_run
    from smlaunch.runs.attach_run import attach
    from smlaunch.runs.missing_files import add_missing_file_hint
    from smlaunch.secrets.masking import mask_text

    with open_connection_to_run(run, options, read_only=True) as connection:
        # The hint: the script failed for want of a file that was excluded from the upload.
        attached_run = attach(run, connection.target)
        outcome = add_missing_file_hint(attached_run.describe(reads_logs=True), connection.target)
        metrics = attached_run.metrics if with_metrics else None
        if as_json:
            history = {} if metrics is None else {"metric_history": list(metrics)}
            print_json({**outcome.to_dict(), **history})
            return 0
        for line in align_columns(list(_labelled_rows(outcome))):
            echo(mask_text(line))
        last_failure = outcome.last_job.failure
        if last_failure is not None and last_failure.traceback:
            echo(f"\n{last_failure.traceback}\n")
        if metrics is not None:
            echo(str(metrics))
        print_results(outcome, connection)
    return 0


@click.command(cls=GroupedCommand, short_help="Print a run's log.")
@click.argument("run", shell_complete=complete_runs)
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
    from smlaunch.cli.run_connection import open_connection_to_run
    from smlaunch.errors import JobError, Problem
    from smlaunch.runs.attach_run import attach
    from smlaunch.runs.log_tail import live_text, visible_text

    if follow and as_json:
        raise JobError(
            [Problem("--json", "one JSON document cannot be written before the run has ended; leave out -f")]
        )
    with open_connection_to_run(run, options, read_only=True) as connection:
        attached_run = attach(run, connection.target, on_message=print_message)
        if follow:
            from smlaunch.cli.display import Display
            from smlaunch.cli.follow import follow_to_end

            display = Display(attached_run.host_count(), only_host=host)
            return follow_to_end(attached_run, connection, display, as_json=False, from_first_job=True)
        log_lines = sorted(
            (line for line in attached_run.logs() if host in (None, line.host)),
            key=lambda line: line.at,
        )
    if as_json:
        print_json({"run": attached_run.name, "lines": [line._asdict() for line in log_lines]})
        return 0
    last_line_by_host = {line.host: line for line in log_lines}
    has_several_hosts = len(last_line_by_host) > 1
    for line in log_lines:
        state = live_text(line.text)  # of a line that is not complete
        if state is not None and last_line_by_host[line.host] is not line:
            continue
        # The script's own output stays as it is; a line of the endpoint may quote anything.
        line_text = escape_controls(line.text) if is_endpoint_line(line.text) else visible_text(line.text)
        line_text = state or line_text
        sys.stdout.write(f"{line.host} {line_text}\n" if has_several_hosts else f"{line_text}\n")
    return 0


@click.command(cls=GroupedCommand, short_help="Wait for a run and exit with its exit code.")
@click.argument("run", shell_complete=complete_runs)
@connection_options
@json_option
@quiet_option
def wait(run: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Wait until a run has ended, and exit with its exit code. States and progress go to stderr."""
    from smlaunch.cli.console import print_message
    from smlaunch.cli.display import Display
    from smlaunch.cli.follow import follow_to_end
    from smlaunch.cli.run_connection import open_connection_to_run
    from smlaunch.runs.attach_run import attach

    with open_connection_to_run(run, options, read_only=True) as connection:
        attached_run = attach(run, connection.target, on_message=print_message)
        display = Display(1, show_log=False, show_states=not quiet)
        return follow_to_end(attached_run, connection, display, as_json=as_json)


@click.command(cls=GroupedCommand, short_help="Stop a run.")
@click.argument("run", shell_complete=complete_runs)
@connection_options
@json_option
def stop(run: str, as_json: bool, **options: Any) -> int:
    """Stop a run: every process gets SIGTERM, and SIGKILL after 120 seconds; no further segment is submitted.
    Does not wait for the end."""
    from smlaunch.cli.console import echo, print_message
    from smlaunch.cli.run_connection import open_connection_to_run
    from smlaunch.runs.attach_run import attach
    from smlaunch.runs.run_outcome import summarize_run

    with open_connection_to_run(run, options, read_only=True) as connection:
        result = attach(run, connection.target, on_message=print_message).stop()
    if as_json:
        print_json(result.to_dict())
    else:
        echo(f"{result.run}: {summarize_run(result)}")
    return 0


@click.command(cls=GroupedCommand, short_help="Continue a run of several segments.")
@click.argument("run", shell_complete=complete_runs)
@connection_options
@json_option
@quiet_option
def resume(run: str, as_json: bool, quiet: bool, **options: Any) -> int:
    """Continue a run of several segments, from any machine: follow the running segment and submit the next
    ones, each from the newest checkpoint, until the run has ended.

    A run that was stopped or has failed is tried again. If another command drives the run at the same time,
    no job is submitted twice.
    """
    from smlaunch.cli.console import print_message
    from smlaunch.cli.display import Display
    from smlaunch.cli.follow import follow_to_end
    from smlaunch.cli.run_connection import open_connection_to_run
    from smlaunch.runs.attach_run import attach

    with open_connection_to_run(run, options) as connection:
        attached_run = attach(run, connection.target, on_message=print_message)
        attached_run.resume()
        display = Display(
            attached_run.host_count(),
            out=sys.stderr if as_json else sys.stdout,
            ignore_closed_stdout=True,
            show_states=not quiet,
        )
        return follow_to_end(
            attached_run,
            connection,
            display,
            as_json=as_json,
            has_embedded_endpoint=connection.has_embedded_endpoint,
        )


def _labelled_rows(outcome: RunOutcome) -> Iterator[tuple[str, str]]:
    """Yield label and text of each row of ``smlaunch show``; what is not known is left out. A run has several
    jobs if it is a chain of segments, or if a job was tried again. ``outcome``: how the run ended, or how far
    it has come."""
    from smlaunch.chain.orchestrator_execution import describe_driver
    from smlaunch.runs.run_outcome import summarize_job, summarize_run
    from smlaunch.text.format import format_elapsed

    first_job, last_job = outcome.jobs[0], outcome.last_job
    yield "run", outcome.run
    yield "job", last_job.name
    yield "status", summarize_run(outcome)
    if outcome.execution is not None:  # an orchestrator's, which starts the jobs instead of smlaunch
        yield "driven by", describe_driver(outcome.execution)
    if first_job.created is not None:
        yield "created", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(first_job.created))
        yield "duration", format_elapsed((last_job.ended or time.time()) - first_job.created)
    training_seconds = [job.training_seconds for job in outcome.jobs if job.training_seconds is not None]
    billable_seconds = [job.billable_seconds for job in outcome.jobs if job.billable_seconds is not None]
    if training_seconds:
        billed_text = f", billed {format_elapsed(sum(billable_seconds))}" if billable_seconds else ""
        yield "training", format_elapsed(sum(training_seconds)) + billed_text
    if outcome.step is not None:
        yield "checkpoint", f"step {outcome.step}"
    if outcome.exit_code is not None:
        yield "exit code", str(outcome.exit_code)
    if outcome.hint:
        yield "hint", outcome.hint
    for warning in outcome.warnings:
        yield "warning", warning
    if len(outcome.jobs) > 1:
        for job in outcome.jobs:
            yield job.name, summarize_job(job)


def _other_format_note(version: str | None) -> str:
    """Return a note for a run in a stored format that this release cannot show, resume or stop."""
    return "" if version is None else f" (another format: {version})"


def _segment_and_attempt_note(job: str) -> str:
    """Return the segment and attempt that a status is of, where the run has had more than one job."""
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
