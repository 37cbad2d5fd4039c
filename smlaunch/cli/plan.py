"""``smlaunch plan``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

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
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.planning.plan import Plan
    from smlaunch.planning.simulate import Simulation

_WHAT = "What to say"


@click.command(cls=JobCommand, short_help="Decide and explain; changes nothing anywhere.")
@job_options
@launch_place_options
@option(_WHAT, "--simulate", "simulated", is_flag=True, help="Play a chain through under random failures.")
@option(_WHAT, "--seed", type=int, default=0, show_default=True, help="Of --simulate's failures.")
@json_option
@click.pass_context
def plan(
    ctx: click.Context, /, what: str | None, simulated: bool, seed: int, as_json: bool, **options: Any
) -> int:
    """Decide everything about a run and say why: strategy, hosts, image, cost, and the exact request.

    Looks at the script, the data and the account; writes nothing anywhere.
    """
    job = whole_job(what, options, ctx.meta.get(SCRIPT_ARGUMENTS))

    from smlaunch.place import open_place
    from smlaunch.runs.api import prepare

    with open_place(options, leaves_no_trace=True) as place:
        prepared = prepare(job, place.target)
    simulation = _simulate(prepared.plan, seed) if simulated else None
    if as_json:
        document = prepared.plan.to_dict()
        if simulation is not None:
            document["simulation"] = simulation.to_dict()
        click.echo(json.dumps(document, indent=2))
        return 0
    from smlaunch.planning.show import as_text

    # Away from a terminal click leaves the colours out.
    click.echo(as_text(prepared.plan, _paint))
    if simulation is not None:
        click.echo(f"\n{simulation}")
    return 0


_COLOURS: dict[str, dict[str, Any]] = {
    "heading": {"bold": True},
    "chosen": {"fg": "green"},
    "warning": {"fg": "yellow"},
}


def _paint(kind: str, text: str) -> str:
    return click.style(text, **_COLOURS[kind]) if kind in _COLOURS else text


def _simulate(plan: Plan, seed: int) -> Simulation:
    """Raises JobError for a plan that has nothing to play through."""
    import random

    from smlaunch.planning.simulate import Chain, simulate

    expected = plan.schedule
    if expected is None:
        raise JobError(
            [
                Problem(
                    "--simulate", "the run is one job; with --segment TIME it is a chain, which has segments"
                )
            ]
        )
    chain = Chain(
        work=expected.total * expected.goodput,
        segment=expected.segment,
        start=expected.start,
        interval=expected.interval,
        stall=expected.stall,
        restart=expected.restart,
        mtbf=expected.mtbf,
        gap=expected.gap,
    )
    return simulate(chain, random.Random(seed).random)  # noqa: S311  no secret is made of it
