"""``smlaunch plan``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

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
)
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.chain.chain_simulation import Simulation
    from smlaunch.planner.plan import RunPlan

_OUTPUT = "Output"


@click.command(cls=JobCommand, short_help="Show what would run, and why; change nothing.")
@job_options
@launch_options
@grouped_option(
    _OUTPUT, "--simulate", "simulates_chain", is_flag=True, help="Simulate a chain with random failures."
)
@grouped_option(
    _OUTPUT,
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seed of the random failures of --simulate.",
)
@json_option
@click.pass_context
def plan(
    ctx: click.Context,
    /,
    job_path: str | None,
    simulates_chain: bool,
    seed: int,
    as_json: bool,
    **options: Any,
) -> int:
    """Show what would run, and why: strategy, hosts, image, cost, and the exact request.

    Reads the script, the data and the account; writes nothing.
    """
    job = load_job(job_path, options, ctx.meta.get(SCRIPT_ARGUMENTS))  # arguments after "--"

    from smlaunch.connection.open_connection import open_connection
    from smlaunch.runs.plan_job import prepare

    # The target: the region or the local endpoint. A prepared run is a plan with the job's source.
    with open_connection(options, read_only=True) as connection:
        prepared_run = prepare(job, connection.target)
    simulation = _simulate_failures(prepared_run.plan, seed) if simulates_chain else None
    if as_json:
        document = prepared_run.plan.to_dict()
        if simulation is not None:
            document["simulation"] = simulation.to_dict()
        print_json(document)
        return 0
    from smlaunch.cli.console import has_colours
    from smlaunch.render.plan_text import as_text
    from smlaunch.text.terminal import terminal_width

    paint = _paint if has_colours(sys.stdout) else None
    click.echo(as_text(prepared_run.plan, paint, terminal_width(sys.stdout)), color=has_colours(sys.stdout))
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


def _simulate_failures(plan: RunPlan, seed: int) -> Simulation:
    """Simulate the chain of a plan. Raises JobError for a plan of a single job."""
    import random

    from smlaunch.chain.chain_simulation import ChainModel, simulate

    expected = plan.schedule
    if expected is None:
        raise JobError(
            [Problem("--simulate", "the run is a single job; --segment TIME makes it a chain of segments")]
        )
    chain = ChainModel(
        work=expected.total * expected.goodput,
        segment=expected.segment,
        start=expected.start,
        interval=expected.interval,
        stall=expected.stall,
        restart=expected.restart,
        mtbf=expected.mtbf,
        gap=expected.gap,
    )
    return simulate(chain, random.Random(seed).random)  # noqa: S311  not used for secrets
