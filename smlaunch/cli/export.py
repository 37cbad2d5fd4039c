"""``smlaunch export``: write a job as a definition for an orchestrator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.console import print_message, print_retry
from smlaunch.cli.export_files import write_export_files
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
    from smlaunch.connection.open_connection import Connection
    from smlaunch.runs.plan_job import PreparedRun

_EXPORT = "Export"

out_option = grouped_option(
    _EXPORT,
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="Folder for the files; default: print the definition.",
)
name_option = grouped_option(
    _EXPORT, "--called", metavar="NAME", help="Name in the orchestrator; default: from the script."
)
no_stage_option = grouped_option(
    _EXPORT, "--no-stage", is_flag=True, help="Upload nothing; source and runtime were uploaded before."
)


@click.group(short_help="Write a job for Step Functions, Airflow or Pipelines.")
def export() -> None:
    """Write a job for an orchestrator, which then runs it without smlaunch.

    Source, runtime and local data are uploaded as by `smlaunch run`. With --name, the run has this name;
    otherwise every execution is a new run, named after the execution.
    """


@export.command("step-functions", cls=JobCommand, short_help="A state machine and the policies of its role.")
@job_options
@launch_options
@out_option
@name_option
@grouped_option(
    _EXPORT,
    "--embed",
    type=click.Choice(("machine", "task")),
    default="machine",
    help="task: also write a Task state that starts the machine from another state machine.",
)
@no_stage_option
@grouped_option(_EXPORT, "--deploy", is_flag=True, help="Create or update the state machine.")
@grouped_option(_EXPORT, "--machine-role", metavar="ARN", help="With --deploy: the role of its executions.")
@json_option
@click.pass_context
def step_functions(
    ctx: click.Context,
    /,
    job_path: str | None,
    embed: str,
    deploy: bool,
    machine_role: str | None,
    **options: Any,
) -> int:
    """Write a Step Functions state machine that drives the run like `smlaunch run`.

    Prints the definition. With --out, writes it together with the policies of its role. With --deploy, prints
    the ARN of the state machine.
    """
    if deploy and machine_role is None:
        raise JobError([Problem("--deploy", _MACHINE_ROLE_MISSING)])
    if machine_role is not None and not deploy:
        raise JobError(
            [Problem("--machine-role", "is used with --deploy only; the written files contain no role")]
        )
    export_options = ExportOptions.taken_from(options, deploys=deploy)
    # SCRIPT_ARGUMENTS: key of the arguments after "--".
    job = load_job(job_path, options, ctx.meta.get(SCRIPT_ARGUMENTS))

    from smlaunch.connection.open_connection import open_connection
    from smlaunch.export.step_functions import DEFINITION_FILE, export_step_functions, with_items_upload
    from smlaunch.render.plan import Plan
    from smlaunch.runs.plan_job import prepare_export, run_name_stem

    with open_connection(options, read_only=not export_options.uploads) as connection:
        if deploy and connection.has_embedded_endpoint:
            raise JobError([Problem("--deploy", _DEPLOY_NEEDS_BACKGROUND)])
        prepared_run = prepare_export(job, connection.target)
        if machine_role is not None:  # given with --deploy only
            _check_machine_role(machine_role, prepared_run)
        machine_name = export_options.name or run_name_stem(job.program)
        files = export_step_functions(
            prepared_run.plan,
            machine_name,
            fixed_run_id=job.name,  # None: each execution is a new run
            with_embedding_task=embed == "task",
            time_scale=connection.target.polling.time_scale,
        )
        # A machine of many shards reads a file of them, which is uploaded with the rest.
        prepared_run = prepared_run._replace(plan=Plan.of(with_items_upload(prepared_run.plan, files)))
        upload_and_write(export_options, files, DEFINITION_FILE, [prepared_run], connection)
        if machine_role is not None:
            deploy_and_report(
                export_options, prepared_run, machine_name, files[DEFINITION_FILE], machine_role
            )
    export_options.print_json()
    return 0


@export.command("pipeline", cls=JobCommand, short_help="A SageMaker pipeline of one or several jobs.")
@job_options
@launch_options
@out_option
@grouped_option(
    _EXPORT, "--called", metavar="NAME", help="Name of the pipeline; default: from its file or the script."
)
@no_stage_option
@grouped_option(
    _EXPORT, "--deploy", is_flag=True, help="Create or update the pipeline; its role is that of the job."
)
@json_option
@click.pass_context
def pipeline(ctx: click.Context, /, job_path: str | None, deploy: bool, **options: Any) -> int:
    """Write a SageMaker pipeline whose steps are the segments of the run. A pipeline file with several jobs
    is accepted too (docs/pipelines.md).

    Prints the definition. With --out, writes it. With --deploy, prints the ARN of the pipeline. Every
    execution is a new run, named by the service.
    """
    export_options = ExportOptions.taken_from(options, deploys=deploy)
    from smlaunch.cli.export_pipeline import deploy_and_report, load_steps, pipeline_role, prepare_steps
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.export.pipeline import DEFINITION_FILE

    pipeline_file = load_steps(ctx, job_path, options)  # of one step, if a job is given
    with open_connection(options, read_only=not export_options.uploads) as connection:
        if deploy and connection.has_embedded_endpoint:
            raise JobError([Problem("--deploy", _DEPLOY_NEEDS_BACKGROUND)])
        prepared_runs, files = prepare_steps(pipeline_file, connection.target)
        pipeline_name = export_options.name or pipeline_file.name
        pipeline_role_arn = pipeline_role(prepared_runs, pipeline_name) if deploy else None
        upload_and_write(export_options, files, DEFINITION_FILE, prepared_runs, connection)
        if pipeline_role_arn is not None:
            export_options.document |= deploy_and_report(
                connection.target, pipeline_name, files[DEFINITION_FILE], pipeline_role_arn
            )
            if not export_options.as_json:
                click.echo(export_options.document["pipeline"])
    export_options.print_json()
    return 0


@export.command("airflow", cls=JobCommand, short_help="An Airflow DAG with operators of the Amazon provider.")
@job_options
@launch_options
@out_option
@name_option
@no_stage_option
@json_option
@click.pass_context
def airflow(ctx: click.Context, /, job_path: str | None, **options: Any) -> int:
    """Write a DAG file that does not need smlaunch: it uses the training operator of the Amazon provider,
    with one task for each segment of a chain. Where smlaunch can be installed in Airflow, SmlaunchOperator
    does more.

    Prints the file. With --out, writes it.
    """
    export_options = ExportOptions.taken_from(options)
    job = load_job(job_path, options, ctx.meta.get(SCRIPT_ARGUMENTS))

    from smlaunch.connection.open_connection import open_connection
    from smlaunch.export.airflow import export_airflow
    from smlaunch.runs.plan_job import prepare_export, run_name_stem

    with open_connection(options, read_only=not export_options.uploads) as connection:
        prepared_run = prepare_export(job, connection.target)
        dag_id = export_options.name or run_name_stem(job.program)
        files = export_airflow(
            prepared_run.plan, dag_id, fixed_run_id=job.name, time_scale=connection.target.polling.time_scale
        )
        upload_and_write(export_options, files, f"{dag_id}.py", [prepared_run], connection)
    export_options.print_json()
    return 0


_MACHINE_ROLE_MISSING = (
    "the state machine needs a role: create one from trust.json and permissions.json (--out DIR writes them) "
    "and give its ARN with --machine-role"
)
_DEPLOY_NEEDS_BACKGROUND = (
    "the local endpoint of this command ends with the command, and the deployment with it; start a "
    "background endpoint first: `smlaunch local start`"
)


@dataclass
class ExportOptions:
    """Options of an export command, and the document that it prints."""

    out_dir: str | None
    """Folder for the files; None: print the definition."""

    name: str | None
    """Name in the orchestrator; None: from the script or the pipeline file."""

    uploads: bool
    """Whether source, runtime and data are uploaded."""

    as_json: bool
    deploys: bool = False
    """Whether the definition is deployed; it is then not printed."""

    document: dict[str, Any] = field(default_factory=dict)
    """Output of --json."""

    @classmethod
    def taken_from(cls, options: dict[str, Any], *, deploys: bool = False) -> ExportOptions:
        """Take them out of the command's options, which are then those of the job and its connection."""
        return cls(
            out_dir=options.pop("out"),
            name=options.pop("called"),
            uploads=not options.pop("no_stage"),
            as_json=options["as_json"],
            deploys=deploys,
        )

    def print_json(self) -> None:
        if self.as_json:
            print_json(self.document)


def upload_and_write(
    export_options: ExportOptions,
    text_by_file_name: dict[str, str],
    main_file_name: str,
    prepared_runs: Sequence[PreparedRun],
    connection: Connection,
) -> None:
    """Upload what the exported jobs read, then write the files of the export to the output folder, or print
    the one named ``main_file_name``. A definition that is deployed is not printed. A prepared run is a job's
    plan with its source folder; ``export_options.document``: what --json prints."""
    if export_options.deploys:
        for prepared_run in prepared_runs:
            prepared_run.require_account()
    source_folders = [prepared.source.root for prepared in prepared_runs if prepared.source is not None]
    # The files get their names only after the upload, so that none refers to what is not there.
    with write_export_files(export_options.out_dir, text_by_file_name, source_folders) as written_paths:
        try:
            upload_jobs(export_options, prepared_runs, connection)
        except KeyboardInterrupt:
            click.echo(
                "nothing was written; the next export does not upload again what is uploaded already",
                err=True,
            )
            raise
    run_id = prepared_runs[0].plan.job.name if len(prepared_runs) == 1 else None
    export_options.document |= {"run": run_id, "staged": export_options.uploads, "files": written_paths}
    prints_definition = export_options.out_dir is None and not export_options.deploys
    if export_options.as_json:  # the caller prints the document
        if prints_definition:
            export_options.document |= {"files": sorted(text_by_file_name), "contents": text_by_file_name}
    elif export_options.out_dir is not None:
        click.echo("\n".join(written_paths))
    elif prints_definition:
        click.echo(text_by_file_name[main_file_name], nl=False)


_NOT_UPLOADED = (
    "nothing was uploaded, because no account could be asked: executions fail until the same command has run "
    "with AWS credentials"
)


def upload_jobs(
    export_options: ExportOptions, prepared_runs: Sequence[PreparedRun], connection: Connection
) -> None:
    """Upload the sources and inputs of the exported jobs, unless the options forbid it, and print the
    warnings of their plans. A prepared run is the plan of a job with its source folder; with several, a
    warning names its run. ``connection``: to the region or local endpoint."""
    from smlaunch.runs.call_errors import translate_call_errors
    from smlaunch.runs.launch_plan import find_earlier_launches
    from smlaunch.runs.plan_upload import upload_plan_files

    for prepared_run in prepared_runs:
        if export_options.uploads and prepared_run.plan.facts.account_problem is not None:
            export_options.uploads = False
            print_message(f"warning: {_NOT_UPLOADED}")
        if export_options.uploads:
            with translate_call_errors(connection.target):
                # Raises JobError for the name of another job's run.
                find_earlier_launches(prepared_run.plan, connection.target)
                upload_plan_files(
                    prepared_run.plan,
                    prepared_run.source,
                    connection.target,
                    on_message=lambda text: click.echo(text, err=True),
                )
        run_prefix = f"{prepared_run.plan.run}: " if len(prepared_runs) > 1 else ""
        for warning in (*prepared_run.plan.warnings, *_secret_warnings(prepared_run)):
            print_message(f"warning: {run_prefix}{warning}")


def _secret_warnings(prepared: PreparedRun) -> Iterator[str]:
    """Warn of secrets in the export: an orchestrator needs their values, so they are not masked."""
    from smlaunch.secrets.masking import fields_with_secrets

    if fields := fields_with_secrets(prepared.plan.job.to_mapping()):
        values = "the value" if len(fields) == 1 else "the values"
        yield (
            f"the export contains {values} of {', '.join(fields)} in plain text; let the job's secrets name "
            "their places instead"
        )


def _check_machine_role(role: str, prepared: PreparedRun) -> None:
    """Raise JobError for a role that state machines of the account cannot use."""
    from smlaunch.runs.deploy_state_machine import state_machine_role_problems

    if problems := state_machine_role_problems(role, prepared.plan.facts.account):
        raise JobError(problems)


def deploy_and_report(
    export_options: ExportOptions, prepared: PreparedRun, name: str, definition: str, role: str
) -> None:
    """Create or update the state machine. Prints its ARN to stdout and the change to stderr."""
    from smlaunch.export.step_functions import machine_arn
    from smlaunch.runs.call_errors import translate_call_errors
    from smlaunch.runs.deploy_state_machine import deploy_state_machine

    with translate_call_errors(prepared.target):
        arn = machine_arn(prepared.plan.facts, name)
        deployment = deploy_state_machine(prepared.target, arn, definition, role, print_retry)
    export_options.document |= {"state_machine": deployment.arn, "change": deployment.change}
    start_command = f"aws stepfunctions start-execution --state-machine-arn {deployment.arn}"
    click.echo(f"{deployment.change}; each execution is a run: {start_command}", err=True)
    if not export_options.as_json:
        click.echo(deployment.arn)
