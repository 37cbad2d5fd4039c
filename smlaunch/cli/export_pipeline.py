"""``smlaunch export pipeline``: the jobs of a pipeline file, or the single job of a job file or script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.job_loader import load_job
from smlaunch.cli.options import SCRIPT_ARGUMENTS, GroupedOption
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.export.pipeline_file import PipelineFile
    from smlaunch.runs.api import PreparedRun
    from smlaunch.runs.target import Target

_JOB_HEADINGS = frozenset({"Job", "Hosts", "Data", "Limits"})
"""Headings of the options that describe a job."""


def load_steps(ctx: click.Context, job_path: str | None, options: dict[str, Any]) -> PipelineFile:
    """Load a pipeline file; a single job becomes a pipeline of one unnamed step.

    Raises JobError for problems of a job itself; other problems are in ``PipelineFile.problems``.
    """
    from smlaunch.export.pipeline_file import (
        NAME_NOT_ALLOWED,
        PipelineFile,
        PipelineStep,
        is_pipeline_file,
        read_pipeline_file,
    )
    from smlaunch.runs.api import run_name_stem

    if job_path is not None and is_pipeline_file(job_path):
        if problems_of_options := list(_job_option_problems(ctx)):
            raise JobError(problems_of_options)
        pipeline_file = read_pipeline_file(job_path, options["role"])
        return PipelineFile(
            pipeline_file.name or run_name_stem(job_path), pipeline_file.steps, pipeline_file.problems
        )
    job = load_job(job_path, options, ctx.meta.get(SCRIPT_ARGUMENTS))
    problems = () if job.name is None else (Problem("name", NAME_NOT_ALLOWED),)
    return PipelineFile(
        run_name_stem(job.program), (PipelineStep(job=job.model_copy(update={"name": None})),), problems
    )


def _job_option_problems(ctx: click.Context) -> Iterator[Problem]:
    """Yield a problem for each option on the command line that describes a job."""
    explanation = "a pipeline file describes its jobs itself; write it there"
    for parameter in ctx.command.params:
        name = parameter.name or ""
        is_given = ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        if is_given and isinstance(parameter, GroupedOption) and parameter.heading in _JOB_HEADINGS:
            yield Problem(parameter.opts[0], explanation)
    if ctx.meta.get(SCRIPT_ARGUMENTS) is not None:
        yield Problem("--", explanation)


def prepare_steps(pipeline: PipelineFile, target: Target) -> tuple[list[PreparedRun], dict[str, str]]:
    """Prepare every job for upload, and build the files of the export.

    Raises JobError with the problems of all jobs, each by its path in the pipeline file.
    """
    from smlaunch.export.pipeline import export_steps
    from smlaunch.export.pipeline_file import is_step_name
    from smlaunch.runs.api import prepare_export

    problems = list(pipeline.problems)
    prepared_runs: list[PreparedRun] = []
    planned_steps = []
    for step in pipeline.steps:
        name = step.name if is_step_name(step.name) else None  # an invalid name is in problems already
        try:
            prepared_run = prepare_export(
                step.job, target, step=name, pending_channels=frozenset(step.inputs)
            )
        except JobError as error:
            problems += [step.job_problem(problem) for problem in error.problems]
        else:
            prepared_runs.append(prepared_run)
            planned_steps.append((step, prepared_run.plan))
    title = (
        pipeline.name if len(pipeline.steps) != 1 or pipeline.steps[0].name else pipeline.steps[0].job.program
    )
    files = export_steps(
        planned_steps, title or "", other_problems=problems, time_scale=target.polling.time_scale
    )
    return prepared_runs, files


def pipeline_role(jobs: Sequence[PreparedRun], name: str | None) -> str:
    """Return the role of the pipeline's executions, before anything is uploaded.

    Raises JobError where the jobs have different roles, and for an invalid pipeline ``name``.
    """
    from smlaunch.export.pipeline_file import PIPELINE_NAME

    problems = []
    if name is None or not PIPELINE_NAME.fullmatch(name):
        text = f"{name!r} is not a valid pipeline name: letters, digits and dashes between them"
        problems.append(Problem("--called", text))
    roles = sorted({job.plan.facts.role or "" for job in jobs})
    if len(roles) > 1:
        text = f"the jobs have different roles ({', '.join(roles)}), and a pipeline has one: give --role"
        problems.append(Problem("--role", text))
    if problems:
        raise JobError(problems)
    return roles[0]


def deploy_and_report(target: Target, name: str | None, definition: str, role: str) -> dict[str, str]:
    """Create or update the pipeline; return its members of the JSON output. Prints the change to stderr."""
    from smlaunch.aws.interfaces import CallError
    from smlaunch.runs.deploy_pipelines import deploy_pipeline
    from smlaunch.runs.run import translate_call_errors

    def on_retry(error: CallError, seconds: float) -> None:
        click.echo(f"{error.operation}: {error.message}; retrying in {seconds:.0f} s", err=True)

    with translate_call_errors(target):
        deployment = deploy_pipeline(target, name or "", definition, role, on_retry)
    start_command = f"aws sagemaker start-pipeline-execution --pipeline-name {name}"
    click.echo(f"{deployment.change}; each execution is a run: {start_command}", err=True)
    return {"pipeline": deployment.arn, "change": deployment.change}
