"""``smlaunch shell``: a shell in a running host."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from smlaunch.cli.options import GroupedCommand, complete_runs, connection_options, grouped_option
from smlaunch.errors import EndpointError, JobError, Problem


@click.command(cls=GroupedCommand, short_help="Open a shell in a running local host.")
@click.argument("run", shell_complete=complete_runs)
@connection_options
@grouped_option("Which", "--host", metavar="NAME", help="Host, such as algo-2; default: the first.")
def shell(run: str, host: str | None, **options: Any) -> int:
    """Open a shell in a running host of a run on this machine: with the processes, files, host name,
    environment and working directory that its script has. In a container it is the engine's exec.

    Without a terminal, standard input is a script:  echo 'df -h /opt/ml' | smlaunch shell RUN --local

    The exit code is that of the shell.
    """
    if not options["local"]:
        raise JobError([Problem("shell", _NOT_IN_A_REGION.format(run=run))])
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
        assert connection.state_dir is not None  # a local endpoint has one
        command = _shell_command(connection.state_dir, f"{job}.{connection.target.region_name}", run, host)
    sys.stdout.flush()
    os.execv(command[0], command)  # noqa: S606


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


_NOT_IN_A_REGION = (
    "opens a shell on hosts of this machine only (--local). Shells on the hosts of a region, through "
    "SageMaker's remote debugging (AWS Systems Manager), will come in a later release; until then "
    "`smlaunch logs {run} -f` follows the log of run {run}"
)
