"""``smlaunch run``."""

from __future__ import annotations

import sys
from typing import Any

import click

from smlaunch.cli.job_loader import load_job
from smlaunch.cli.json_output import print_json
from smlaunch.cli.options import (
    SCRIPT_ARGUMENTS,
    JobCommand,
    grouped_option,
    job_options,
    json_option,
    launch_options,
    quiet_option,
    verbose_option,
)

_ACTIONS = "Actions"


@click.command(cls=JobCommand, short_help="Plan, launch and follow a training job.")
@job_options
@launch_options
@grouped_option(
    _ACTIONS, "--dry-run", is_flag=True, help="Print the request with secrets masked; submit nothing."
)
@grouped_option(_ACTIONS, "--detach", is_flag=True, help="Return as soon as the first job is created.")
@grouped_option(_ACTIONS, "--faults", metavar="FILE", help="With --local: a JSON file of faults to inject.")
@json_option
@quiet_option
@verbose_option
@click.pass_context
def run(
    ctx: click.Context,
    /,
    job_path: str | None,
    dry_run: bool,
    detach: bool,
    faults: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **options: Any,
) -> int:
    """Plan, launch and follow a training job.

    The output of the script goes to stdout, states and progress to stderr. Arguments for the script follow
    a double dash: smlaunch run train.py --hosts 2 -- --epochs 3

    A chain of segments is driven to its end: each segment is submitted when the one before has ended with a
    checkpoint. If this command is interrupted, `smlaunch resume` continues the run.

    Ctrl-C detaches from the run, which continues (exit code 130). With --local and no background endpoint,
    the first Ctrl-C stops the run and the second one kills it.
    """
    job = load_job(job_path, options, ctx.meta.get(SCRIPT_ARGUMENTS))  # arguments after "--"

    from smlaunch.cli.console import print_message, upload_display
    from smlaunch.cli.display import Display
    from smlaunch.cli.follow import follow_to_end
    from smlaunch.cli.opening import print_opening
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.errors import JobError, Problem
    from smlaunch.runs.launch_plan import launch
    from smlaunch.runs.plan_job import prepare
    from smlaunch.secrets.masking import mask_document

    with open_connection(options, read_only=dry_run, faults_file=faults) as connection:
        # An embedded endpoint ends with this process, and its jobs with it.
        if detach and connection.has_embedded_endpoint and not dry_run:
            raise JobError([Problem("--detach", _DETACH_NEEDS_BACKGROUND)])
        prepared_run = prepare(job, connection.target)  # the plan, and the source to upload
        if dry_run:  # a sharded run has several requests
            requests = [mask_document(request) for request in prepared_run.plan.requests]
            print_json(requests[0] if len(requests) == 1 else requests)
            return 0
        prepared_run.require_account()
        run_id = prepared_run.plan.run
        print_opening(prepared_run.plan, connection.description, quiet=quiet, verbose=verbose)
        launched_run = launch(prepared_run, on_message=print_message, on_progress=upload_display())
        if launched_run.attached:  # a run of this name was started before
            print_message(f"{run_id} exists already with the same job: following it, no new job was started")
        if detach:
            if as_json:
                print_json(launched_run.describe().to_dict())
            else:
                click.echo(run_id)
                print_message(f"follow it: smlaunch logs {run_id} -f{connection.cli_flag}")
                if launched_run.chain_drivers:
                    print_message(
                        f"continue it after its first segment: smlaunch resume {run_id}{connection.cli_flag}"
                    )
            return 0
        log_stream = sys.stderr if as_json else sys.stdout
        display = Display(
            prepared_run.plan.hosts,
            out=log_stream,
            ignore_closed_stdout=True,
            show_states=not quiet,
            show_differences=False,  # the plan has them
        )
        return follow_to_end(
            launched_run,
            connection,
            display,
            as_json=as_json,
            has_embedded_endpoint=connection.has_embedded_endpoint,
            plan_warnings=prepared_run.plan.warnings,
        )


_DETACH_NEEDS_BACKGROUND = (
    "the local endpoint of this command ends with the command, and the run with it; start a background "
    "endpoint first: `smlaunch local start`"
)
