"""``smlaunch export pipeline``: the jobs of a pipeline's file, or the one of a job file or script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.options import SCRIPT_ARGUMENTS, Grouped
from smlaunch.cli.whole_job import whole_job
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.export.pipeline_file import PipelineFile
    from smlaunch.runs.api import Prepared
    from smlaunch.runs.target import Target

_OF_A_JOB = frozenset({"The job", "Hosts", "Data", "Limits"})
"""The headings of the help under which a job is described."""


def steps_of(ctx: click.Context, what: str | None, options: dict[str, Any]) -> PipelineFile:
    """One job alone is a pipeline of one step, which has no name. Raises JobError with all that is wrong with
    a job as such; what else is wrong stands in ``problems``."""
    from smlaunch.export.pipeline_file import OWN_NAMES, PipelineFile, Step, is_pipeline, read_pipeline
    from smlaunch.runs.api import stem_of

    if what is not None and is_pipeline(what):
        if given := list(_given_for_a_job(ctx)):
            raise JobError(given)
        found = read_pipeline(what, options["role"])
        return PipelineFile(found.name or stem_of(what), found.steps, found.problems)
    job = whole_job(what, options, ctx.meta.get(SCRIPT_ARGUMENTS))
    problems = () if job.name is None else (Problem("name", OWN_NAMES),)
    return PipelineFile(stem_of(job.program), (Step(job=job.model_copy(update={"name": None})),), problems)


def _given_for_a_job(ctx: click.Context) -> Iterator[Problem]:
    why = "each job of a pipeline's file is described there; write it there"
    for parameter in ctx.command.params:
        name = parameter.name or ""
        given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if given and isinstance(parameter, Grouped) and parameter.group in _OF_A_JOB:
            yield Problem(parameter.opts[0], why)
    if ctx.meta.get(SCRIPT_ARGUMENTS) is not None:
        yield Problem("--", why)


def prepared_steps(wanted: PipelineFile, target: Target) -> tuple[list[Prepared], dict[str, str]]:
    """Every job, ready to be staged, and the files of the export. Raises JobError with all that is wrong with
    any of them, by the places in the file."""
    from smlaunch.export.pipeline import export_steps
    from smlaunch.export.pipeline_file import is_step_name
    from smlaunch.runs.api import prepare_export

    problems = list(wanted.problems)
    prepared: list[Prepared] = []
    planned = []
    for step in wanted.steps:
        name = step.name if is_step_name(step.name) else None  # another one is among the problems already
        try:
            one = prepare_export(step.job, target, step=name, pending=frozenset(step.inputs))
        except JobError as error:
            problems += [step.problem_of_job(problem) for problem in error.problems]
        else:
            prepared.append(one)
            planned.append((step, one.plan))
    title = wanted.name if len(wanted.steps) != 1 or wanted.steps[0].name else wanted.steps[0].job.program
    files = export_steps(planned, title or "", others=problems, pace=target.cadence.pace)
    return prepared, files


def role_of(jobs: Sequence[Prepared], name: str | None) -> str:
    """What the pipeline's executions run under. Raises JobError where its jobs have several, and for what
    cannot be a pipeline's ``name``: before anything is uploaded."""
    from smlaunch.export.pipeline_file import PIPELINE_NAME

    problems = []
    if name is None or not PIPELINE_NAME.fullmatch(name):
        text = f"{name!r} is no name of a pipeline: letters, digits and dashes between them"
        problems.append(Problem("--called", text))
    roles = sorted({job.plan.surroundings.role or "" for job in jobs})
    if len(roles) > 1:
        text = f"the jobs have several ({', '.join(roles)}), and a pipeline runs under one: give it here"
        problems.append(Problem("--role", text))
    if problems:
        raise JobError(problems)
    return roles[0]


def deploy_steps(target: Target, name: str | None, definition: str, role: str) -> dict[str, str]:
    """What --json tells of it; what was done goes to stderr."""
    from smlaunch.ports import CallError
    from smlaunch.runs.deploy_pipelines import deploy_pipeline
    from smlaunch.runs.run import answers_of

    def told(error: CallError, seconds: float) -> None:
        click.echo(f"{error.operation}: {error.message}; trying again in {seconds:.0f} s", err=True)

    with answers_of(target):
        made = deploy_pipeline(target, name or "", definition, role, told)
    start = f"aws sagemaker start-pipeline-execution --pipeline-name {name}"
    click.echo(f"{made.change}; every execution is a run: {start}", err=True)
    return {"pipeline": made.arn, "change": made.change}
