"""``smlaunch init``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from smlaunch.cli.options import json_option, strategies_from
from smlaunch.errors import JobError, Problem


@click.command(short_help="Write a first job for a strategy.")
@click.argument("strategy", required=False, shell_complete=strategies_from)
@click.argument("folder", required=False, default=".", type=click.Path(file_okay=False, path_type=Path))
@json_option
def init(strategy: str | None, folder: Path, as_json: bool) -> int:
    """Write a first job for a strategy into a folder: job.yaml and its script. Overwrites nothing.

    What runs on this machine runs as it is written. Of the others, the job file says what is still yours: the
    script's own lines for neuron, smp and horovod, the bucket of a built-in algorithm.

    Without a strategy it lists those there are.
    """
    from smlaunch.starters import STARTERS, write
    from smlaunch.strategy_names import known
    from smlaunch.suggest import did_you_mean

    if strategy is None:
        rows = {name: _summary(name) for name in known()}
        if as_json:
            click.echo(json.dumps({"strategies": rows}, indent=2))
            return 0
        width = max(map(len, rows))
        for name, summary in rows.items():
            click.echo(f"{name:{width}}  {summary}")
        click.echo("\nwrite a first job: smlaunch init STRATEGY [FOLDER]")
        return 0
    if strategy not in STARTERS:
        reason = "comes from another package, which has no job to begin with"
        if strategy not in known():
            reason = f"is unknown{did_you_mean(strategy, STARTERS)}"
        raise JobError([Problem("STRATEGY", f"{strategy!r} {reason}")])
    try:
        written = write(strategy, folder)
    except FileExistsError as error:
        raise JobError([Problem("FOLDER", f"{error} is there already; nothing was written")]) from None
    except OSError as error:
        raise JobError([Problem("FOLDER", f"{folder} cannot be written: {error.strerror}")]) from None
    steps = _steps(strategy, folder)
    if as_json:
        click.echo(json.dumps({"written": list(map(str, written)), "next": steps}, indent=2))
        return 0
    click.echo("wrote " + ", ".join(map(str, written)) + "\n")
    for step in steps:
        click.echo(f"  {step}")
    return 0


def _summary(name: str) -> str:
    """Also of one that another package brings, and that does not work: the others do."""
    from smlaunch.strategies import load

    try:
        return load(name).summary
    except JobError as error:
        return error.problems[0].message


def _steps(strategy: str, folder: Path) -> list[str]:
    """The commands that come next, as they are to be typed."""
    from smlaunch.starters import STARTERS

    starter = STARTERS[strategy]
    steps = [] if folder == Path() else [f"cd {folder}"]
    packages = starter.packages if starter.local else starter.make_packages
    if packages:
        steps.append(f"pip install {packages}")
    if starter.make is not None:
        steps.append(starter.make)
    place = "--local" if starter.local else "--region us-east-1"
    steps.append(f"smlaunch plan job.yaml {place}")
    if starter.local:
        steps.append("smlaunch run job.yaml --local")
    return steps
