"""``smlaunch init``."""

from __future__ import annotations

from pathlib import Path

import click

from smlaunch.cli.json_output import print_json
from smlaunch.cli.options import complete_strategies, json_option
from smlaunch.errors import JobError, Problem, write_error


@click.command(short_help="Write a first job for a strategy.")
@click.argument("strategy", required=False, shell_complete=complete_strategies)
@click.argument("folder", required=False, default=".", type=click.Path(file_okay=False, path_type=Path))
@json_option
def init(strategy: str | None, folder: Path, as_json: bool) -> int:
    """Write a first job for a strategy into a folder: job.yaml and its script. Overwrites no file.

    Jobs that can run on this machine run without changes. For the others, comments in the job file say what
    to add: lines of the script for neuron, smp and horovod, the bucket for a built-in algorithm.

    Without a strategy, lists all strategies.
    """
    from smlaunch.catalog.strategies import known_strategies
    from smlaunch.cli.templates import TEMPLATES, write_template
    from smlaunch.text.did_you_mean import did_you_mean

    if strategy is None:
        summary_by_strategy = {name: _strategy_summary(name) for name in known_strategies()}
        if as_json:
            print_json({"strategies": summary_by_strategy})
            return 0
        name_width = max(map(len, summary_by_strategy))
        for name, summary in summary_by_strategy.items():
            click.echo(f"{name:{name_width}}  {summary}")
        click.echo("\nto write a first job: smlaunch init STRATEGY [FOLDER]")
        return 0
    if strategy not in TEMPLATES:  # job file and scripts of a first job, by strategy
        # Other packages may add strategies.
        problem_text = "comes from another package, which provides no first job"
        if strategy not in known_strategies():
            problem_text = f"is unknown{did_you_mean(strategy, TEMPLATES)}"
        raise JobError([Problem("STRATEGY", f"{strategy!r} {problem_text}")])
    try:
        written_files = write_template(strategy, folder)
    except FileExistsError as error:
        raise JobError([Problem("FOLDER", f"{error} exists already; nothing was written")]) from None
    except OSError as error:
        raise write_error("FOLDER", folder, error) from None
    next_commands = _commands_after_init(strategy, folder)
    if as_json:
        print_json({"written": list(map(str, written_files)), "next": next_commands})
        return 0
    click.echo("wrote " + ", ".join(map(str, written_files)) + "\n")
    for command in next_commands:
        click.echo(f"  {command}")
    return 0


def _strategy_summary(name: str) -> str:
    """One-line summary of a strategy, or the error message where it cannot be loaded."""
    from smlaunch.strategies import load_strategy

    try:
        return load_strategy(name).summary
    except JobError as error:
        return error.problems[0].message


_TESTED_VERSIONS = {"torch": "torch==2.13.0"}
"""Of constraints.txt, for a package whose newest version may need other libraries."""


def _commands_after_init(strategy: str, folder: Path) -> list[str]:
    """Return the commands with which the user plans and runs the job that ``smlaunch init`` has written. The
    prepare command makes the job's inputs. A strategy is how a job's processes are started, such as ddp."""
    from smlaunch.cli.templates import TEMPLATES

    template = TEMPLATES[strategy]
    commands = [] if folder == Path() else [f"cd {folder}"]
    # A job that runs elsewhere needs here only the packages of the command that makes its inputs.
    packages = template.required_packages if template.runs_locally else template.prepare_packages
    if packages:
        versions = (_TESTED_VERSIONS.get(package, package) for package in packages.split())
        commands.append(f"pip install {' '.join(versions)}")
    if template.prepare_command is not None:
        commands.append(template.prepare_command)
    target_options = "--local" if template.runs_locally else "--region us-east-1"
    commands.append(f"smlaunch plan job.yaml {target_options}")
    if template.runs_locally:
        commands.append("smlaunch run job.yaml --local")
    return commands
