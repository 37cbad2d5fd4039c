"""``smlaunch export``: a job in the words of an orchestrator that a team has already."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.export_files import written
from smlaunch.cli.options import (
    SCRIPT_ARGUMENTS,
    JobCommand,
    job_options,
    json_option,
    launch_place_options,
    option,
)
from smlaunch.cli.telling import tell
from smlaunch.cli.whole_job import whole_job
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.place import Place
    from smlaunch.runs.api import Prepared

_EXPORT = "The export"

out_option = option(
    _EXPORT, "--out", metavar="DIR", type=click.Path(file_okay=False), help="Writes its files there."
)
called_option = option(
    _EXPORT, "--called", metavar="NAME", help="What it is called there; default: after the script."
)
no_stage_option = option(
    _EXPORT, "--no-stage", is_flag=True, help="Upload nothing: source and job file are there already."
)


@click.group(short_help="Write a job for Step Functions, Airflow or Pipelines.")
def export() -> None:
    """Write a job for an orchestrator that drives it without smlaunch.

    What the jobs read (source, runtime, data) is uploaded as `run` does it. With --name the run has that
    name; without, every execution is a run of its own name.
    """


@export.command("step-functions", cls=JobCommand, short_help="A state machine, and policies for its role.")
@job_options
@launch_place_options
@out_option
@called_option
@option(
    _EXPORT,
    "--embed",
    type=click.Choice(("machine", "task")),
    default="machine",
    help="task: with a Task state that starts the machine from a flow of your own.",
)
@no_stage_option
@option(_EXPORT, "--deploy", is_flag=True, help="Create the state machine, or update it.")
@option(_EXPORT, "--machine-role", metavar="ARN", help="With --deploy: what its executions run under.")
@json_option
@click.pass_context
def step_functions(
    ctx: click.Context,
    /,
    what: str | None,
    embed: str,
    deploy: bool,
    machine_role: str | None,
    **options: Any,
) -> int:
    """Write a Step Functions state machine that drives the run as `smlaunch run` does.

    Prints the definition; with --out, writes it with the policies of its role; with --deploy, prints the
    state machine's ARN.
    """
    if deploy and machine_role is None:
        raise JobError([Problem("--deploy", _NO_ROLE)])
    if machine_role is not None and not deploy:
        raise JobError([Problem("--machine-role", "it is used with --deploy only; the files name no role")])
    wishes = Wishes(
        options.pop("out"), options.pop("called"), not options.pop("no_stage"), options["as_json"], deploy
    )
    job = whole_job(what, options, ctx.meta.get(SCRIPT_ARGUMENTS))

    from smlaunch.export.step_functions import FILE, export_step_functions, staged
    from smlaunch.place import open_place
    from smlaunch.runs.api import prepare_export, stem_of

    with open_place(options, leaves_no_trace=not wishes.stages) as place:
        if deploy and place.embedded:
            raise JobError([Problem("--deploy", _NOT_STANDING)])
        prepared = prepare_export(job, place.target)
        if machine_role is not None:
            _check_role(machine_role, prepared)
        name = wishes.called or stem_of(job.program)
        run, pace = job.name, place.target.cadence.pace
        files = export_step_functions(prepared.plan, name, run=run, embed=embed, pace=pace)
        prepared = replace(prepared, plan=staged(prepared.plan, files))
        deliver(wishes, files, FILE, [prepared], place)
        if machine_role is not None:
            deploy_machine(wishes, prepared, name, files[FILE], machine_role)
    wishes.tell()
    return 0


@export.command("pipeline", cls=JobCommand, short_help="A SageMaker pipeline, of one job or several.")
@job_options
@launch_place_options
@out_option
@option(
    _EXPORT, "--called", metavar="NAME", help="What it is called there; default: by its file, or the script."
)
@no_stage_option
@option(_EXPORT, "--deploy", is_flag=True, help="Create the pipeline, or update it; its role is the job's.")
@json_option
@click.pass_context
def pipeline(ctx: click.Context, /, what: str | None, deploy: bool, **options: Any) -> int:
    """Write a SageMaker pipeline whose steps are the run's segments. The file may also be one of a pipeline
    with several jobs (docs/pipelines.md).

    Prints the definition; with --out, writes it; with --deploy, prints the pipeline's ARN. Each execution is
    a run of its own, named by the service.
    """
    wishes = Wishes(
        options.pop("out"), options.pop("called"), not options.pop("no_stage"), options["as_json"], deploy
    )
    from smlaunch.cli.export_pipeline import deploy_steps, prepared_steps, role_of, steps_of
    from smlaunch.export.pipeline import FILE
    from smlaunch.place import open_place

    wanted = steps_of(ctx, what, options)
    with open_place(options, leaves_no_trace=not wishes.stages) as place:
        if deploy and place.embedded:
            raise JobError([Problem("--deploy", _NOT_STANDING)])
        jobs, files = prepared_steps(wanted, place.target)
        name = wishes.called or wanted.name
        role = role_of(jobs, name) if deploy else None
        deliver(wishes, files, FILE, jobs, place)
        if role is not None:
            wishes.document |= deploy_steps(place.target, name, files[FILE], role)
            if not wishes.as_json:
                click.echo(wishes.document["pipeline"])
    wishes.tell()
    return 0


@export.command("airflow", cls=JobCommand, short_help="An Airflow DAG of the Amazon provider's operators.")
@job_options
@launch_place_options
@out_option
@called_option
@no_stage_option
@json_option
@click.pass_context
def airflow(ctx: click.Context, /, what: str | None, **options: Any) -> int:
    """Write a plain DAG file that needs nothing of smlaunch: the Amazon provider's own training operator, a
    chain unrolled. Where smlaunch may be installed in Airflow, SmlaunchOperator does more.

    Prints the file; with --out, writes it.
    """
    wishes = Wishes(
        options.pop("out"), options.pop("called"), not options.pop("no_stage"), options["as_json"]
    )
    job = whole_job(what, options, ctx.meta.get(SCRIPT_ARGUMENTS))

    from smlaunch.export.airflow import export_airflow
    from smlaunch.place import open_place
    from smlaunch.runs.api import prepare_export, stem_of

    with open_place(options, leaves_no_trace=not wishes.stages) as place:
        prepared = prepare_export(job, place.target)
        name = wishes.called or stem_of(job.program)
        files = export_airflow(prepared.plan, name, run=job.name, pace=place.target.cadence.pace)
        deliver(wishes, files, f"{name}.py", [prepared], place)
    wishes.tell()
    return 0


_NO_ROLE = (
    "the state machine needs a role: make one of trust.json and permissions.json (--out DIR writes them) and "
    "give its ARN with --machine-role"
)
_NOT_STANDING = (
    "the local endpoint would end with this command, and what is deployed there with it; keep one standing: "
    "`smlaunch local start`"
)


@dataclass
class Wishes:
    """What was asked for; ``document`` is what --json prints. ``deploys``: what is made of the export is
    its result then, and its text is for --out alone."""

    out: str | None
    called: str | None
    stages: bool
    as_json: bool
    deploys: bool = False
    document: dict[str, Any] = field(default_factory=dict)

    def tell(self) -> None:
        if self.as_json:
            click.echo(json.dumps(self.document, indent=2))


def deliver(wishes: Wishes, files: dict[str, str], main: str, jobs: Sequence[Prepared], place: Place) -> None:
    """Stages what the export refers to, and writes its files, or prints ``main``."""
    roots = [prepared.source.root for prepared in jobs if prepared.source is not None]
    with written(wishes.out, files, roots) as paths:
        try:
            stage_all(wishes, jobs, place)
        except KeyboardInterrupt:
            click.echo("nothing was written; what is uploaded is not sent again by the next export", err=True)
            raise
    run = jobs[0].plan.job.name if len(jobs) == 1 else None
    wishes.document |= {"run": run, "staged": wishes.stages, "files": paths}
    if wishes.as_json:
        if wishes.out is None and not wishes.deploys:
            wishes.document |= {"files": sorted(files), "contents": files}
    elif wishes.out is not None:
        click.echo("\n".join(paths))
    elif not wishes.deploys:
        click.echo(files[main], nl=False)


def stage_all(wishes: Wishes, jobs: Sequence[Prepared], place: Place) -> None:
    from smlaunch.runs.run import answers_of
    from smlaunch.runs.stage import stage

    for prepared in jobs:
        if wishes.stages:
            with answers_of(place.target):
                stage(prepared.plan, prepared.source, place.target, lambda text: click.echo(text, err=True))
        of = f"{prepared.plan.run}: " if len(jobs) > 1 else ""
        for warning in (*prepared.plan.warnings, *_written_secrets(prepared)):
            tell(f"warning: {of}{warning}")


def _written_secrets(prepared: Prepared) -> Iterator[str]:
    """An orchestrator has to know the true values: there is nothing to mask."""
    from smlaunch.masking import secret_fields

    if fields := secret_fields(prepared.plan.job.to_mapping()):
        values = "the value" if len(fields) == 1 else "the values"
        yield (
            f"the export holds {values} of {', '.join(fields)} for all who may read it; give secrets through "
            "AWS Secrets Manager"
        )


def _check_role(role: str, prepared: Prepared) -> None:
    """Before anything is uploaded."""
    from smlaunch.runs.deploy import machine_role_problems

    if problems := machine_role_problems(role, prepared.plan.surroundings.account):
        raise JobError(problems)


def deploy_machine(wishes: Wishes, prepared: Prepared, name: str, definition: str, role: str) -> None:
    """Its ARN goes to stdout, what was done with it to stderr."""
    from smlaunch.export.step_functions import machine_arn
    from smlaunch.ports import CallError
    from smlaunch.runs.deploy import deploy_state_machine
    from smlaunch.runs.run import answers_of

    def told(error: CallError, seconds: float) -> None:
        click.echo(f"{error.operation}: {error.message}; trying again in {seconds:.0f} s", err=True)

    with answers_of(prepared.target):
        arn = machine_arn(prepared.plan.surroundings, name)
        made = deploy_state_machine(prepared.target, arn, definition, role, told)
    wishes.document |= {"state_machine": made.arn, "change": made.change}
    start = f"aws stepfunctions start-execution --state-machine-arn {made.arn}"
    click.echo(f"{made.change}; every execution is a run: {start}", err=True)
    if not wishes.as_json:
        click.echo(made.arn)
