"""``launcher: torchrun``: the runtime starts one torchrun, which starts this host's ranks.

For users who want its agent. The rendezvous is static, as with AWS's own launchers. Each rank writes to a
FIFO of its own instead of one shared pipe: lines stay whole and have their rank's prefix, and the failure
file has the traceback of the rank that failed. Which one that was, torchrun reports at its end.
"""

import os
import re
import signal
from typing import Dict, List, Mapping, Optional, Tuple

from smlaunch.contract.launch_spec import LaunchSpec
from smlaunch.runtime import tracebacks
from smlaunch.runtime.host_outcome import (
    LOST_PEER_RETURNCODE,
    MAX_EXIT_DELAY_SECONDS,
    FinishedProcess,
    HostOutcome,
)
from smlaunch.runtime.process_commands import (
    HostContext,
    ProcessCommand,
    RankFifo,
    base_environment,
    reject_rank_references,
    resolve_argv,
    resolve_environment,
)
from smlaunch.runtime.rank_supervisor import Supervisor
from smlaunch.runtime.rendezvous import master_address, rendezvous_id, socket_interfaces, thread_limit

_TORCHRUN_MODULE = "torch.distributed.run"

_REDIRECT_PROGRAM = """import os, sys
out = os.open(sys.argv[1] + os.environ["LOCAL_RANK"], os.O_WRONLY)
os.dup2(out, 1)
os.dup2(out, 2)
os.close(out)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""What torchrun starts as each rank: it redirects the output and becomes the rank's program."""

_SIGNAL_EXCEPTION = re.compile(r"SignalException: Process \d+ got signal: (\d+)\s*$")
_SHUTDOWN_MARGIN_SECONDS = 5.0
_REPORT_DELAY_SECONDS = 30.0
"""Longest time between a rank's exception and torchrun's report of it, on a busy host."""


def run(
    spec: LaunchSpec, host: HostContext, environ: Mapping[str, str], supervisor: Supervisor
) -> HostOutcome:
    """Run torchrun; return when every process has exited. Raises SetupError."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="smlaunch-") as folder:
        return _replace_launcher_by_ranks(supervisor.run([_torchrun_command(spec, host, environ, folder)]))


def _torchrun_command(
    spec: LaunchSpec, host: HostContext, environ: Mapping[str, str], folder: str
) -> ProcessCommand:
    """Return the command of torchrun, and make the FIFOs that its ranks write to in ``folder``, which is
    empty. Raises SetupError.
    """
    reject_rank_references((*spec.ranks.argv, *(arg for _, arg in spec.ranks.env)), "torchrun")
    reference_values = host.reference_values_of_host()
    fifo_prefix = os.path.join(folder, "rank-")
    rank_fifos = _make_rank_fifos(host, fifo_prefix)
    torchrun_args = (
        *(host.python, "-m", _TORCHRUN_MODULE, "--no_python", "--max_restarts=0"),
        "--nnodes={}".format(len(host.cluster.hosts)),
        "--node_rank={}".format(host.cluster.host_rank),
        "--nproc_per_node={}".format(host.ranks_per_host),
        "--master_addr={}".format(master_address(host.cluster)),
        "--master_port={}".format(host.port),
        "--rdzv_id={}".format(rendezvous_id(environ)),
        # What torchrun starts in the place of each rank
        *(host.python, "-I", "-S", "-c", _REDIRECT_PROGRAM, fifo_prefix),
    )
    return ProcessCommand(
        argv=(
            *resolve_argv(spec.ranks.launcher_options, reference_values, host.hyperparameters),
            *(arg.encode("utf-8", "surrogateescape") for arg in torchrun_args),
            *resolve_argv(spec.ranks.argv, reference_values, host.hyperparameters),
        ),
        env=resolve_environment(_torchrun_environment(spec, host, environ), spec.ranks.env, reference_values),
        ranks=tuple(fifo.rank for fifo in rank_fifos),
        prefix=b"[torchrun] ",
        rank_fifos=rank_fifos,
    )


def _make_rank_fifos(host: HostContext, path_prefix: str) -> Tuple[RankFifo, ...]:
    """Make a FIFO for the output of each rank of this host, at the prefix and its local rank."""
    rank_fifos = []
    for local_rank in range(host.ranks_per_host):
        path = path_prefix + str(local_rank)
        os.mkfifo(path, 0o600)
        rank = host.cluster.host_rank * host.ranks_per_host + local_rank
        rank_fifos.append(RankFifo(path, rank, prefix=b"[%d] " % rank))
    return tuple(rank_fifos)


def _torchrun_environment(spec: LaunchSpec, host: HostContext, environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the variables that torchrun and its ranks inherit."""
    environment = base_environment(host, environ)
    environment.update(socket_interfaces(host.cluster, environ))
    # torchrun would set the same limit, and print six lines about it.
    environment.update(thread_limit(host.cluster, host.ranks_per_host, environ))
    # How long torchrun waits for its ranks after SIGTERM; it must exit before its own SIGKILL.
    shutdown_seconds = max(1, int(spec.grace_seconds - _SHUTDOWN_MARGIN_SECONDS))
    environment.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(shutdown_seconds))
    return environment


def _replace_launcher_by_ranks(outcome: HostOutcome) -> HostOutcome:
    """Return the outcome with the ranks that torchrun reports instead of torchrun itself, where it reports
    any."""
    processes: List[FinishedProcess] = []
    for launcher in outcome.processes:
        if outcome.detected_hang is not None:
            processes.extend(
                _make_rank_process(launcher, rank, launcher.status) for rank in launcher.rank_outputs
            )
        else:
            processes.append(_identify_failed_rank(launcher))
    return outcome._replace(processes=tuple(processes))


def _identify_failed_rank(torchrun_process: FinishedProcess) -> FinishedProcess:
    """Return the rank that failed first, by the report that torchrun prints at its end and by the tracebacks
    of its ranks; where that is not known, torchrun itself, as no rank.

    Statuses are exit codes, or minus the number of the signal.
    """
    reported = tracebacks.find_reported_rank(torchrun_process.output_tail)
    if torchrun_process.status != 0 and reported is not None:
        return _confirm_or_replace_reported_rank(torchrun_process, reported.rank, reported.status)
    # "SignalException: Process 12 got signal: 15"
    signal_exception_match = _SIGNAL_EXCEPTION.search(torchrun_process.output_tail)
    if torchrun_process.status == 1 and signal_exception_match is not None:
        # Peers on other hosts missed a rank, and their hosts ended before torchrun reported it here.
        failed_rank = _find_rank_failed_before(
            torchrun_process, before=torchrun_process.failed_at, seconds=_REPORT_DELAY_SECONDS
        )
        if failed_rank is not None:
            return _make_rank_process(torchrun_process, failed_rank, status=1)
        # torchrun exits with 1 after a signal, which it has sent on to its ranks.
        return torchrun_process._replace(rank=None, status=-int(signal_exception_match.group(1)))
    return torchrun_process._replace(rank=None)


def _confirm_or_replace_reported_rank(
    torchrun_process: FinishedProcess, reported_rank: int, reported_status: int
) -> FinishedProcess:
    """Return the rank that torchrun reports as the first to fail, or one that had its exception earlier: it
    may take a while to exit, and a peer that exits meanwhile, since it misses that rank, has torchrun stop
    it.
    """
    reported_process = _make_rank_process(torchrun_process, reported_rank, reported_status)
    if reported_status < 0 and reported_status != LOST_PEER_RETURNCODE:
        return reported_process  # no other signal ends a rank because it misses another one
    earlier_rank = _find_rank_failed_before(
        torchrun_process, reported_process.failed_at, MAX_EXIT_DELAY_SECONDS
    )
    if earlier_rank is None:
        return reported_process
    return _make_rank_process(torchrun_process, earlier_rank, status=1)  # as after any exception


def _find_rank_failed_before(
    torchrun_process: FinishedProcess, before: float, seconds: float
) -> Optional[int]:
    """Return the first rank whose output ends with an exception that was raised within ``seconds`` before
    ``before`` (in seconds since the epoch); None without one.
    """
    failures = [
        (traceback_at, rank)
        for rank, (output_tail, traceback_at) in torchrun_process.rank_outputs.items()
        if traceback_at is not None
        and before - seconds < traceback_at < before
        and tracebacks.find_cause(output_tail) is not None
    ]
    return min(failures)[1] if failures else None


def _make_rank_process(torchrun_process: FinishedProcess, rank: int, status: int) -> FinishedProcess:
    """Return the process of one of torchrun's ranks."""
    output_tail, traceback_at = torchrun_process.rank_outputs.get(rank, ("", None))
    failed_at = torchrun_process.ended_at
    if (
        traceback_at is not None
        and status != -signal.SIGKILL
        and tracebacks.find_cause(output_tail) is not None
    ):
        failed_at = min(failed_at, traceback_at)
    return torchrun_process._replace(
        rank=rank, status=status, failed_at=failed_at, output_tail=output_tail, rank_outputs={}
    )
