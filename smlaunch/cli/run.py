"""``smlaunch run``."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from smlaunch.cli.options import (
    SCRIPT_ARGUMENTS,
    JobCommand,
    job_options,
    json_option,
    launch_place_options,
    option,
)
from smlaunch.cli.whole_job import whole_job

_ACT = "What to do"


@click.command(cls=JobCommand, short_help="Plan, launch and follow a training job.")
@job_options
@launch_place_options
@option(_ACT, "--dry-run", is_flag=True, help="Print the request, secrets as ****; send nothing.")
@option(_ACT, "--detach", is_flag=True, help="Return once the (first) job is created.")
@option(_ACT, "--faults", metavar="FILE", help="With --local: what is to go wrong on purpose (JSON).")
@json_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    what: str | None,
    dry_run: bool,
    detach: bool,
    faults: str | None,
    as_json: bool,
    **options: Any,
) -> int:
    """Plan, launch and follow a training job.

    The script's own output goes to stdout, states and progress to stderr. Arguments for the script go after
    a double dash: smlaunch run train.py --hosts 2 -- --epochs 3

    A run of several segments is driven to its end: each is submitted when the one before has left its
    checkpoint. Whatever becomes of this command, smlaunch resume goes on from there.

    Ctrl-C leaves a run that has a home of its own (exit code 130); with --local and no standing endpoint it
    stops the run, and a second one kills it.
    """
    job = whole_job(what, options, ctx.meta.get(SCRIPT_ARGUMENTS))

    from smlaunch.cli.display import Display
    from smlaunch.cli.following import follow_to_end
    from smlaunch.cli.telling import introduce, tell, uploading
    from smlaunch.errors import JobError, Problem
    from smlaunch.masking import mask
    from smlaunch.place import open_place
    from smlaunch.runs.api import launch, prepare

    with open_place(options, leaves_no_trace=dry_run, faults=faults) as place:
        if detach and place.embedded and not dry_run:
            raise JobError([Problem("--detach", _NO_HOME)])
        prepared = prepare(job, place.target)
        if dry_run:
            requests = [mask(request) for request in prepared.plan.requests]
            click.echo(json.dumps(requests[0] if len(requests) == 1 else requests, indent=2))
            return 0
        name = prepared.plan.run
        tell(click.style(f"run {name}", bold=True) + f" on {place.words}")
        introduce(prepared)
        started = launch(prepared, told=tell, watch=uploading())
        if started.attached:
            tell(f"{name} was launched before with this very job: following it, nothing new was started")
        if detach:
            if as_json:
                click.echo(json.dumps(started.describe().to_dict(), indent=2))
            else:
                click.echo(name)
                tell(f"follow it: smlaunch logs {name} -f{place.flag}")
                if started.resumable:
                    tell(f"drive it on after its first segment: smlaunch resume {name}{place.flag}")
            return 0
        log = sys.stderr if as_json else sys.stdout
        display = Display(prepared.plan.hosts, out=log, outlives_reader=True)
        return follow_to_end(started, place, display, as_json=as_json, ours=place.embedded)


_NO_HOME = (
    "a run on an endpoint that lives in this command cannot outlive it; "
    "`smlaunch local start` keeps an endpoint standing, then --detach works"
)
