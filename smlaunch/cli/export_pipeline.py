"""``smlaunch export pipeline``: the jobs of a pipeline file, or the single job of a job file or script."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.console import print_retry
from smlaunch.cli.job_loader import load_job
from smlaunch.cli.options import SCRIPT_ARGUMENTS, GroupedOption
from smlaunch.errors import JobError, Problem

if TYPE_CHECKING:
    from smlaunch.export.pipeline_file import PipelineFile, PipelineStep
    from smlaunch.planner.plan import RunPlan
    from smlaunch.runs.launch_target import Target
    from smlaunch.runs.plan_job import PreparedRun

_JOB_HEADINGS = frozenset({"Job", "Hosts", "Data", "Limits"})
"""Headings of the options that describe a job."""


def load_steps(ctx: click.Context, job_path: str | None, options: dict[str, Any]) -> PipelineFile:
    """Load a pipeline file; a single job or script becomes a pipeline of one unnamed step. ``options``: of
    the command line; they describe that single job.

    Raises JobError for problems of a job itself; other problems are in ``PipelineFile.problems``.
    """
    from smlaunch.export.pipeline_file import (
        NAME_NOT_ALLOWED,
        PipelineFile,
        PipelineStep,
        is_pipeline_file,
        read_pipeline_file,
    )
    from smlaunch.runs.plan_job import run_name_stem

    if job_path is not None and is_pipeline_file(job_path):
        if option_problems := list(_problems_of_job_options(ctx)):
            raise JobError(option_problems)
        pipeline_file = read_pipeline_file(job_path, options["role"])
        return replace(pipeline_file, name=pipeline_file.name or run_name_stem(job_path))
    job = load_job(job_path, options, ctx.meta.get(SCRIPT_ARGUMENTS))
    only_step = PipelineStep(job=job.with_changes(name=None))
    return PipelineFile(
        name=run_name_stem(job.program),
        steps=(only_step,),
        # Every execution of a pipeline is a new run, which the service names.
        problems=() if job.name is None else (Problem("name", NAME_NOT_ALLOWED),),
    )


def _problems_of_job_options(ctx: click.Context) -> Iterator[Problem]:
    """Yield a problem for each given option of the command line that describes a job (its heading in the help
    is one of those of a job): a pipeline file describes its jobs itself. SCRIPT_ARGUMENTS: key of the
    arguments after ``--``."""
    explanation = "a pipeline file describes its jobs itself; write it there"
    for parameter in ctx.command.params:
        parameter_name = parameter.name or ""
        is_given = ctx.get_parameter_source(parameter_name) is click.core.ParameterSource.COMMANDLINE
        if is_given and isinstance(parameter, GroupedOption) and parameter.heading in _JOB_HEADINGS:
            yield Problem(parameter.opts[0], explanation)
    if ctx.meta.get(SCRIPT_ARGUMENTS) is not None:
        yield Problem("--", explanation)


def prepare_steps(pipeline_file: PipelineFile, target: Target) -> tuple[list[PreparedRun], dict[str, str]]:
    """Plan the job of every step, and build the files of the export by name. Nothing is uploaded yet.
    ``target``: the region or local endpoint.

    Raises JobError with the problems of all jobs, each by its path in the pipeline file.
    """
    from smlaunch.export.pipeline import export_steps
    from smlaunch.export.pipeline_file import is_step_name
    from smlaunch.runs.plan_job import prepare_export

    problems = list(pipeline_file.problems)
    prepared_runs: list[PreparedRun] = []
    planned_steps: list[tuple[PipelineStep, RunPlan]] = []
    for step in pipeline_file.steps:
        step_name = step.name if is_step_name(step.name) else None  # an invalid name is in problems already
        try:
            # Pending: the inputs from other steps do not exist when the job is planned.
            prepared_run = prepare_export(
                step.job, target, step=step_name, pending_channels=frozenset(step.inputs)
            )
        except JobError as error:
            problems += [step.job_problem(problem) for problem in error.problems]
        else:
            prepared_runs.append(prepared_run)
            planned_steps.append((step, prepared_run.plan))
    # The only step of a job that is exported alone has no name; its program is the title.
    is_single_job = len(pipeline_file.steps) == 1 and not pipeline_file.steps[0].name
    title = pipeline_file.steps[0].job.program if is_single_job else pipeline_file.name
    text_by_file_name = export_steps(
        planned_steps, title or "", other_problems=problems, time_scale=target.polling.time_scale
    )
    return prepared_runs, text_by_file_name


def pipeline_role(prepared_runs: Sequence[PreparedRun], pipeline_name: str | None) -> str:
    """Return the ARN of the role of the pipeline's executions, which is that of its jobs. ``plan.facts``:
    what planning found in the account.

    Raises JobError where the jobs have different roles, and for an invalid pipeline name.
    """
    from smlaunch.export.pipeline_file import PIPELINE_NAME

    problems: list[Problem] = []
    if pipeline_name is None or not PIPELINE_NAME.fullmatch(pipeline_name):
        problem_text = (
            f"{pipeline_name!r} is not a valid pipeline name: letters, digits and dashes between them"
        )
        problems.append(Problem("--called", problem_text))
    role_arns = sorted({prepared_run.plan.facts.role or "" for prepared_run in prepared_runs})
    if len(role_arns) > 1:
        problem_text = (
            f"the jobs have different roles ({', '.join(role_arns)}), and a pipeline has one: give --role"
        )
        problems.append(Problem("--role", problem_text))
    if problems:
        raise JobError(problems)
    return role_arns[0]


def deploy_and_report(target: Target, name: str | None, definition: str, role: str) -> dict[str, str]:
    """Create or update the pipeline; return its members of the JSON output. Prints the change to stderr."""
    from smlaunch.runs.call_errors import translate_call_errors
    from smlaunch.runs.deploy_pipeline import deploy_pipeline

    with translate_call_errors(target):
        deployment = deploy_pipeline(target, name or "", definition, role, print_retry)
    start_command = f"aws sagemaker start-pipeline-execution --pipeline-name {name}"
    click.echo(f"{deployment.change}; each execution is a run: {start_command}", err=True)
    return {"pipeline": deployment.arn, "change": deployment.change}
