"""``launcher: torchrun``: the runtime starts one torchrun, and torchrun starts this host's ranks.

For those who want its agent. The rendezvous is static, as AWS's own launchers have it. Each rank writes to
a FIFO of its own instead of the pipe that all would share: so lines are not torn, carry their rank, and the
traceback in a failure file is that of the rank that failed. Which one that was, torchrun reports at its end.
"""

import os
import re
import signal
from typing import List, Mapping, Optional

from smlaunch.protocol.launch_spec import LaunchSpec, references
from smlaunch.runtime import tracebacks
from smlaunch.runtime.commands import Command, Host, Outlet, argv_of, base_environment, environment_of
from smlaunch.runtime.outcome import Ended, Outcome
from smlaunch.runtime.problems import Unusable
from smlaunch.runtime.rendezvous import master_address, run_id, socket_interfaces, thread_limit
from smlaunch.runtime.supervise import Supervisor

_MODULE = "torch.distributed.run"

_REDIRECT = """import os, sys
out = os.open(sys.argv[1] + os.environ["LOCAL_RANK"], os.O_WRONLY)
os.dup2(out, 1)
os.dup2(out, 2)
os.close(out)
os.execvp(sys.argv[2], sys.argv[2:])
"""
"""What torchrun starts as each rank: it gives way to the rank's own program."""

_PER_RANK = frozenset(("rank", "local_rank"))

_ROOT_CAUSE = re.compile(
    r"Root Cause \(first observed failure\):.*?"
    r"\brank\s+: (?P<rank>\d+) \(local_rank: \d+\).*?\bexitcode\s+: (?P<status>-?\d+)",
    re.DOTALL,
)
"""torch.distributed.elastic.multiprocessing.errors.ChildFailedError, from torch 1.9 to 2.13."""

_SIGNALLED = re.compile(r"SignalException: Process \d+ got signal: (\d+)\s*$")
_SPARE_SECONDS = 5.0


def run(spec: LaunchSpec, host: Host, environ: Mapping[str, str], supervisor: Supervisor) -> Outcome:
    """Returns when every process is gone. Raises Unusable."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="smlaunch-") as folder:
        return _by_rank(supervisor.run([_command(spec, host, environ, folder)]))


def _command(spec: LaunchSpec, host: Host, environ: Mapping[str, str], folder: str) -> Command:
    """``folder``: an empty one, for the FIFOs. Raises Unusable."""
    _check(spec)
    values = {name: value for name, value in host.values(0).items() if name not in _PER_RANK}
    prefix = os.path.join(folder, "rank-")
    first = int(host.values(0)["rank"])
    outlets = []
    for local_rank in range(host.per_host):
        path = prefix + str(local_rank)
        os.mkfifo(path, 0o600)
        outlets.append(Outlet(path, first + local_rank, b"[%d] " % (first + local_rank)))
    env = base_environment(host, environ)
    env.update(socket_interfaces(host.cluster, environ))
    env.update(
        thread_limit(host.per_host, environ)
    )  # torchrun would do the same, and print six lines about it
    # What torchrun leaves its ranks after SIGTERM; it must itself be gone before we lose patience.
    env.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(max(1, int(spec.grace_seconds - _SPARE_SECONDS))))
    words = (
        *(host.python, "-m", _MODULE, "--no_python", "--max_restarts=0"),
        "--nnodes={}".format(len(host.cluster.hosts)),
        "--node_rank={}".format(host.cluster.rank),
        "--nproc_per_node={}".format(host.per_host),
        "--master_addr={}".format(master_address(host.cluster)),
        "--master_port={}".format(host.port),
        "--rdzv_id={}".format(run_id(environ)),
        *(host.python, "-I", "-S", "-c", _REDIRECT, prefix),
    )
    argv = argv_of(spec.ranks.options, values, host.hyperparameters)
    argv += tuple(word.encode("utf-8", "surrogateescape") for word in words)
    return Command(
        argv=argv + argv_of(spec.ranks.argv, values, host.hyperparameters),
        env=environment_of(env, spec.ranks.env, values),
        ranks=tuple(outlet.rank for outlet in outlets),
        prefix=b"[torchrun] ",
        outlets=tuple(outlets),
    )


def _check(spec: LaunchSpec) -> None:
    words = (*spec.ranks.argv, *(word for _, word in spec.ranks.env))
    for reference in (reference for word in words for reference in references(word)):
        if reference.name in _PER_RANK:
            raise Unusable(
                "job.json: {!r} is not known before torchrun starts its ranks; "
                "read RANK and LOCAL_RANK in the program".format(reference.name)
            )


def _by_rank(outcome: Outcome) -> Outcome:
    """The same outcome with the ranks that torchrun speaks of in its place, as far as it does."""
    processes: List[Ended] = []
    for agent in outcome.processes:
        if outcome.hang is not None:
            processes.extend(_as_rank(agent, rank, agent.status) for rank in agent.rank_tails)
        else:
            processes.append(_named(agent))
    return outcome._replace(processes=tuple(processes))


def _named(agent: Ended) -> Ended:
    report = _last(_ROOT_CAUSE, agent.tail)
    if agent.status != 0 and report is not None:
        return _as_rank(agent, int(report.group("rank")), int(report.group("status")))
    stopped = _SIGNALLED.search(agent.tail)
    if agent.status == 1 and stopped is not None:
        # Its way of dying of a signal, which it has passed on to its ranks.
        return agent._replace(rank=None, status=-int(stopped.group(1)))
    return agent._replace(rank=None)


def _as_rank(agent: Ended, rank: int, status: int) -> Ended:
    tail, traceback_at = agent.rank_tails.get(rank, ("", None))
    began = agent.ended
    if traceback_at is not None and status != -signal.SIGKILL and tracebacks.find(tail) is not None:
        began = min(began, traceback_at)
    return agent._replace(rank=rank, status=status, began=began, tail=tail, rank_tails={})


def _last(pattern: "re.Pattern[str]", text: str) -> Optional["re.Match[str]"]:
    found = None
    for match in pattern.finditer(text):
        found = match
    return found
