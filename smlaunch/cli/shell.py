"""``smlaunch shell``: a shell in a running host, of this machine or, by AWS Systems Manager, of a region."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from smlaunch.cli.options import GroupedCommand, complete_runs, connection_options, grouped_option
from smlaunch.errors import EndpointError, JobError, MachineError, Problem


@click.command(cls=GroupedCommand, short_help="Open a shell in a running host.")
@click.argument("run", shell_complete=complete_runs)
@connection_options
@grouped_option("Which", "--host", metavar="NAME", help="Host, such as algo-2; default: the first.")
def shell(run: str, host: str | None, **options: Any) -> int:
    """Open a shell in a running host of a run. On this machine (--local) it has the processes, files, host
    name, environment and working directory that the host's script has. In a container it is the engine's
    exec. In a region AWS Systems Manager opens it: for jobs with remote_debug, by the AWS CLI and its Session
    Manager plugin.

    Without a terminal, standard input of a local shell is a script:
    echo 'df -h /opt/ml' | smlaunch shell RUN --local

    The exit code is that of the shell.
    """
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.runs.attach_run import attach

    with open_connection(options, read_only=True) as connection:
        attached_run = attach(run, connection.target)
        job, outcome = attached_run.jobs[-1], attached_run.describe()
        if outcome.exit_code is not None:
            text = (
                f"run {run} has ended ({outcome.status}), and its hosts with it; its log: smlaunch logs {run}"
            )
            raise JobError([Problem("", f"{text}{connection.cli_flag}")])
        region = connection.target.region_name
        if connection.state_dir is not None:  # that of a local endpoint
            command = _shell_command(connection.state_dir, f"{job}.{region}", run, host)
        else:
            description = connection.target.control_plane.describe_job(job)
            command = _session_command(job, description, host, region, options["profile"])
    sys.stdout.flush()
    os.execvp(command[0], command)  # noqa: S606


def _session_command(
    job: str, description: Mapping[str, Any], host: str | None, region: str, profile: str | None
) -> list[str]:
    """Return the AWS CLI's command for a shell in a host of a region's job; the first host without a name.
    ``description``: of DescribeTrainingJob. Raises JobError for a job without remote debugging or without
    that host, and MachineError where the AWS CLI is missing."""
    if not description.get("RemoteDebugConfig", {}).get("EnableRemoteDebug"):
        message = f"{job} was started without it; state remote_debug: true in the job of a new run"
        raise JobError([Problem("remote_debug", message)])
    resources = description.get("ResourceConfig", {})
    groups = resources.get("InstanceGroups") or [resources]
    host_count = sum(group.get("InstanceCount") or 1 for group in groups)
    host_names = [f"algo-{number}" for number in range(1, host_count + 1)]
    if host is not None and host not in host_names:
        raise JobError([Problem("--host", f"{job} has no host {host!r}; hosts: {', '.join(host_names)}")])
    session_target = f"sagemaker-training-job:{job}_{host or host_names[0]}"
    command = ["aws", "ssm", "start-session", "--target", session_target, "--region", region]
    command += [] if profile is None else ["--profile", profile]
    if shutil.which(command[0]) is None:
        raise MachineError(
            "the AWS CLI and its Session Manager plugin open shells in a region, and there is no program aws "
            f"on this machine; install both, and run this command again, or elsewhere: {' '.join(command)}"
        )
    return command


def _shell_command(state_root: Path, job: str, run: str, host: str | None) -> list[str]:
    """Return the command of a shell in the host of a job; the first host without a name. ``job`` is its name
    among the files of hosts. Raises EndpointError where no host of the job runs, and JobError for an unknown
    host."""
    from smlaunch.local.endpoint_settings import Settings
    from smlaunch.local.executors import EXECUTORS
    from smlaunch.local.executors.executor_base import EndpointContext
    from smlaunch.local.state_dir import StateDir
    from smlaunch.runs.job_poller import host_number

    context = EndpointContext(StateDir(state_root), Settings())
    folders = list(_job_folders(context.state_dir.hosts_dir, job))
    host_names = sorted({path.name for folder in folders for path in folder.iterdir()}, key=host_number)
    if host is not None and host_names and host not in host_names:
        raise JobError([Problem("--host", f"run {run} has no host {host!r}; hosts: {', '.join(host_names)}")])
    for folder in folders:
        for executor in EXECUTORS.values():  # the run may be that of another command, with any executor
            command = executor(context).shell_command(
                folder.parent.name, job, host or host_names[0], sys.stdin.isatty()
            )
            if command is not None:
                return command
    raise EndpointError(
        f"no process of {host or 'a host'} of run {run} runs now: the job is being prepared or is ending "
        f"(`smlaunch show {run} --local` says which); try again"
    )


def _job_folders(hosts_folder: Path, job: str) -> Iterator[Path]:
    """Yield the folder with the hosts of a job, which is below that of the endpoint that runs it."""
    for endpoint_folder in hosts_folder.iterdir():
        if (endpoint_folder / job).is_dir():
            yield endpoint_folder / job
