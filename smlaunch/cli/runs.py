"""``smlaunch ls | show | logs | wait | stop | resume``: runs that exist."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

import click

from smlaunch.cli.options import GroupedCommand, json_option, option, place_options
from smlaunch.protocol.names import task_of


@click.command(cls=GroupedCommand, short_help="List runs, newest first.")
@place_options
@option("Which", "--limit", type=click.IntRange(1), default=20, show_default=True, help="How many at most.")
@json_option
def ls(limit: int, as_json: bool, **options: Any) -> int:
    """List runs, newest first. Training jobs that smlaunch did not start are listed by their own names."""
    from smlaunch.cli.display import duration
    from smlaunch.place import open_place
    from smlaunch.runs.run import list_runs

    with open_place(options, leaves_no_trace=True) as place:
        rows = list_runs(place.target, limit)
    if as_json:
        click.echo(json.dumps({"runs": [row._asdict() for row in rows]}, indent=2))
        return 0
    if not rows:
        click.echo(f"no runs on {place.words}", err=True)
        return 0
    now = time.time()
    table = [("RUN", "STATUS", "CREATED", "TOOK")]
    for row in rows:
        created = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.created))
        took = duration((row.ended or now) - row.created)
        table.append((row.run, row.status + _which(row.job), created, took))
    for line in aligned(table):
        click.echo(line)
    return 0


@click.command(cls=GroupedCommand, short_help="Show where a run is, or how it ended.")
@click.argument("run")
@place_options
@json_option
def show(run: str, as_json: bool, **options: Any) -> int:
    """Show where a run is, or how it ended: status, times, failure, and where its results lie."""
    from smlaunch.cli.display import duration
    from smlaunch.cli.following import print_results
    from smlaunch.masking import mask_text
    from smlaunch.place import open_place
    from smlaunch.planning.orchestrated import words_for
    from smlaunch.runs.absent import with_hint
    from smlaunch.runs.outcome import headline, headline_of
    from smlaunch.runs.run import Run

    with open_place(options, leaves_no_trace=True) as place:
        result = with_hint(Run.attach(run, place.target).glance(), place.target)
        if as_json:
            click.echo(json.dumps(result.to_dict(), indent=2))
            return 0
        job, jobs = result.last, result.jobs
        rows = [("run", result.run), ("job", job.name), ("status", headline_of(result))]
        if result.driver is not None:
            rows.append(("driven by", words_for(result.driver)))
        if jobs[0].created is not None:
            rows.append(("created", time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(jobs[0].created))))
            rows.append(("took", duration((job.ended or time.time()) - jobs[0].created)))
        trained = [each.training_seconds for each in jobs if each.training_seconds is not None]
        billed = [each.billable_seconds for each in jobs if each.billable_seconds is not None]
        if trained:
            cost = f", billed {duration(sum(billed))}" if billed else ""
            rows.append(("training", duration(sum(trained)) + cost))
        if result.step is not None:
            rows.append(("checkpoint", f"step {result.step}"))
        if result.exit_code is not None:
            rows.append(("exit code", str(result.exit_code)))
        if result.hint:
            rows.append(("hint", result.hint))
        if len(jobs) > 1:
            rows.extend((each.name, headline(each)) for each in jobs)
        for line in aligned(rows):
            click.echo(mask_text(line))
        if job.failure is not None and job.failure.traceback:
            click.echo(f"\n{job.failure.traceback}\n")
        print_results(result, place)
    return 0


@click.command(cls=GroupedCommand, short_help="Print a run's log.")
@click.argument("run")
@place_options
@option("Which", "-f", "--follow", is_flag=True, help="Go on until the run has ended; its exit code is ours.")
@option("Which", "--host", metavar="NAME", help="Only this host's lines, such as algo-2.")
@json_option
def logs(run: str, follow: bool, host: str | None, as_json: bool, **options: Any) -> int:
    """Print a run's log, all hosts merged by time. Lines begin with the host where there are several."""
    from smlaunch.cli.telling import tell
    from smlaunch.errors import JobError, Problem
    from smlaunch.place import open_place
    from smlaunch.runs.run import Run

    if follow and as_json:
        raise JobError(
            [Problem("--json", "one document cannot be written before the run has ended; leave out -f")]
        )
    with open_place(options, leaves_no_trace=True) as place:
        found = Run.attach(run, place.target, told=tell)
        if follow:
            from smlaunch.cli.display import Display
            from smlaunch.cli.following import follow_to_end

            display = Display(found.hosts(), host=host)
            return follow_to_end(found, place, display, as_json=False, whole=True)
        lines = sorted((line for line in found.logs() if host in (None, line.host)), key=lambda line: line.at)
    if as_json:
        click.echo(json.dumps({"run": found.name, "lines": [line._asdict() for line in lines]}, indent=2))
        return 0
    several = len({line.host for line in lines}) > 1
    sys.stdout.writelines(f"{line.host} {line.text}\n" if several else f"{line.text}\n" for line in lines)
    return 0


@click.command(cls=GroupedCommand, short_help="Wait for a run and end with its exit code.")
@click.argument("run")
@place_options
@json_option
def wait(run: str, as_json: bool, **options: Any) -> int:
    """Wait for a run to end, and end with its exit code. States and progress go to stderr."""
    from smlaunch.cli.display import Display
    from smlaunch.cli.following import follow_to_end
    from smlaunch.cli.telling import tell
    from smlaunch.place import open_place
    from smlaunch.runs.run import Run

    with open_place(options, leaves_no_trace=True) as place:
        found = Run.attach(run, place.target, told=tell)
        return follow_to_end(found, place, Display(1, lines=False), as_json=as_json)


@click.command(cls=GroupedCommand, short_help="Stop a run.")
@click.argument("run")
@place_options
@json_option
def stop(run: str, as_json: bool, **options: Any) -> int:
    """Stop a run: every process gets SIGTERM, and SIGKILL 120 seconds later; no further segment is started.
    Returns at once."""
    from smlaunch.cli.telling import tell
    from smlaunch.place import open_place
    from smlaunch.runs.outcome import headline_of
    from smlaunch.runs.run import Run

    with open_place(options, leaves_no_trace=True) as place:
        result = Run.attach(run, place.target, told=tell).stop()
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=2))
    else:
        click.echo(f"{result.run}: {headline_of(result)}")
    return 0


@click.command(cls=GroupedCommand, short_help="Go on with a run of several segments.")
@click.argument("run")
@place_options
@json_option
def resume(run: str, as_json: bool, **options: Any) -> int:
    """Go on with a run of several segments, from anywhere: follow the segment that runs, submit those that
    come next, from the newest checkpoint, to the run's end.

    A run that was stopped, or gave up, is tried again. A run that somebody else drives is only driven by two
    then: no job is started twice.
    """
    from smlaunch.cli.display import Display
    from smlaunch.cli.following import follow_to_end
    from smlaunch.cli.telling import tell
    from smlaunch.place import open_place
    from smlaunch.runs.run import Run

    with open_place(options) as place:
        found = Run.attach(run, place.target, told=tell)
        found.resume()
        display = Display(found.hosts(), out=sys.stderr if as_json else sys.stdout, outlives_reader=True)
        return follow_to_end(found, place, display, as_json=as_json, ours=place.embedded)


def _which(job: str) -> str:
    """Whose status it is, where a run has had more than one job: the run may go on after it."""
    task = task_of(job)
    if task is None or (task.segment, task.attempt) == (1, 1):
        return ""
    again = f", attempt {task.attempt}" if task.attempt > 1 else ""
    return f" (segment {task.segment}{again})"


def aligned(rows: Sequence[tuple[str, ...]]) -> list[str]:
    """Columns as wide as their widest cell; the last one is not padded."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
