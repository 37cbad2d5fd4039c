"""``smlaunch plan``."""

from __future__ import annotations

import json
from typing import Any

import click

from smlaunch.cli.options import (
    SCRIPT_ARGUMENTS,
    JobCommand,
    job_options,
    json_option,
    launch_place_options,
    read_job,
)


@click.command(cls=JobCommand, short_help="Decide and explain; changes nothing anywhere.")
@job_options
@launch_place_options
@json_option
@click.pass_context
def plan(ctx: click.Context, /, what: str, as_json: bool, **options: Any) -> int:
    """Decide everything about a run and say why: strategy, hosts, image, cost, and the exact request.

    Looks at the script, the data and the account; writes nothing anywhere.
    """
    job = read_job(what, options, ctx.meta.get(SCRIPT_ARGUMENTS))

    from smlaunch.cli.place import open_place
    from smlaunch.launch.api import prepare

    with open_place(options, leaves_no_trace=True) as place:
        prepared = prepare(job, place.target)
    notes = prepared.source.notes if prepared.source is not None else ()
    if as_json:
        document = prepared.plan.to_dict()
        document["warnings"] = [*notes, *document["warnings"]]
        click.echo(json.dumps(document, indent=2))
        return 0
    click.echo(str(prepared.plan))
    for note in notes:
        click.echo(f"warning: {note}")
    return 0
