"""job.json: what the runtime starts on every host, compiled by a strategy on the client.

A command is a list of arguments. An argument is literal text, which reaches the process byte for byte, or a
reference that only the host can resolve, in JSON ``{"ref": "source", "suffix": "/train.py"}``, or several of
both in one, ``{"join": [...]}``. Nothing is ever parsed as a shell line.

``ranks`` are the user's program; ``services`` run beside it, from before its start until after its end. Where
ranks run on the leader alone (or its MPI launcher starts them), the other hosts follow the leader and end as
it does.

References that a host resolves
    python            the interpreter that runs the runtime
    source            the directory the user's source was unpacked to
    ml                the contract's root, usually /opt/ml
    hyperparameters   (a whole argument only) the hyperparameters as ``--key value`` arguments
    host, leader      names of this host and of the leader
    address, leader_address   the IP addresses that these names resolve to on this host
    host_rank, hosts  this host's index in the training group, and how many hosts it has
    rank, local_rank, world_size, per_host
    port              the job's first port plus ``offset``, the same on every host
    own_port          the same plus this host's index: hosts on one machine may share its ports
    each_host         the names of all hosts, each between prefix and suffix, with commas between them
    each_endpoint     the same with ``name:port``, the port being that host's own
"""

import json
from typing import Any, Dict, NamedTuple, Optional, Tuple, Union

from smlaunch.contract import formats
from smlaunch.contract.segment import SYNC

REFERENCES = frozenset(
    (
        *("python", "source", "ml", "hyperparameters", "host", "leader", "host_rank", "hosts"),
        *("rank", "local_rank", "world_size", "per_host", "port", "own_port"),
        *("address", "leader_address", "each_host", "each_endpoint"),
    )
)

PORT_REFERENCES = frozenset(("port", "own_port", "each_endpoint"))
"""References that an offset may be added to."""

_VERSION_WITHOUT_SECRETS = "1.2"

AUTO = "auto"
"""Ranks per host: as many as there are accelerators, else one."""

RUNTIME = "runtime"
TORCHRUN = "torchrun"
MPI = "mpi"
LAUNCHERS = (RUNTIME, TORCHRUN, MPI)
"""Who starts the ranks of a host: the runtime itself, one torchrun that the runtime starts, or the leader's
mpirun through the runtimes of all hosts.
"""

ALL = "all"
LEADER = "leader"
OTHERS = "others"
HOST_SETS = (ALL, LEADER, OTHERS)
"""Which hosts a program runs on."""

DEFAULT_FAILURE_GRACE_SECONDS = 5.0
"""Peers of a failed rank wait for a lost process; the failure should be reported within 10 s."""


class LaunchSpecError(ValueError):
    """job.json cannot be read, or requests something that this runtime does not know."""


class Ref(NamedTuple):
    """A value that only the host knows: one of REFERENCES, with text around it."""

    name: str
    prefix: str = ""
    suffix: str = ""
    offset: int = 0
    """Added to a port."""


class Concat(NamedTuple):
    """One argument made of several parts."""

    parts: Tuple[Union[str, Ref], ...]


Arg = Union[str, Ref, Concat]


def parts_of(arg: Arg) -> Tuple[Union[str, Ref], ...]:
    """The texts and references that an argument is joined of."""
    return arg.parts if isinstance(arg, Concat) else (arg,)


def host_references(arg: Arg) -> Tuple[Ref, ...]:
    """The references in an argument."""
    return tuple(part for part in parts_of(arg) if isinstance(part, Ref))


class RankSpec(NamedTuple):
    """The processes of the user's program."""

    argv: Tuple[Arg, ...]
    env: Tuple[Tuple[str, Arg], ...] = ()
    per_host: Union[int, str] = 1
    """Ranks on each host, or AUTO."""

    rendezvous: bool = True
    """Set RANK, WORLD_SIZE, MASTER_ADDR and so on, as torchrun does. Without it a host runs one plain process
    that finds its peers itself.
    """

    launcher: str = RUNTIME
    """One of LAUNCHERS. torchrun and mpi need ``rendezvous``; arguments that differ from rank to rank are
    unknown when they start.
    """

    runs_on: str = ALL
    """ALL hosts, or the LEADER alone."""

    launcher_options: Tuple[Arg, ...] = ()
    """Arguments for mpirun, before the program's own; for torchrun the program that starts it."""

    independent: bool = False
    """Ranks train apart from each other, and each may come to its end in another segment."""

    flags: Tuple[Tuple[str, str], ...] = ()
    """Hyperparameters that are flags of the script: ``--key`` alone if true; if false the option that is
    stated here with the key, or nothing."""


class ServiceSpec(NamedTuple):
    """A program beside the ranks. It is started before them and stopped after they have exited. A service
    that exits earlier has failed, whatever its exit code is.
    """

    name: str
    argv: Tuple[Arg, ...]
    env: Tuple[Tuple[str, Arg], ...] = ()
    runs_on: str = ALL
    """One of HOST_SETS."""

    ready_address: Optional[Arg] = None
    """``host:port`` that must accept a connection before anything else is started. All hosts wait for a
    service on the leader, otherwise the hosts that it runs on. None: do not wait.
    """

    ready_seconds: float = 300.0
    """How long to wait for it."""


class CheckpointSpec(NamedTuple):
    """Where checkpoints are stored, and how often. These are members of job.json."""

    path: str
    """On every host, as the contract names it (below /opt/ml)."""

    uri: Optional[str] = None
    """In S3."""

    upload: str = SYNC
    """One of segment.UPLOAD_MODES."""

    keep: int = 3
    """Number of committed steps that are kept."""

    interval_seconds: Optional[float] = None
    """None: derived from the cost of a checkpoint."""

    failure_seconds: Optional[float] = None
    """Mean time between failures, for the interval."""


class LaunchSpec(NamedTuple):
    """The content of job.json."""

    ranks: RankSpec
    source: Optional[str] = None
    """Name of the archive in the source channel; None when the image contains the program."""

    requirements: Optional[str] = None
    """Path of a requirements file in the source."""

    port: int = 29500
    """The job's first port."""

    grace_seconds: float = 110.0
    """How long ranks may run after SIGTERM before they are killed. SageMaker allows 120 s for the runtime
    itself.
    """

    max_runtime_seconds: Optional[int] = None
    failure_grace_seconds: float = DEFAULT_FAILURE_GRACE_SECONDS
    """The same for ranks that are stopped because another one failed: short, since they wait
    for a lost peer.
    """

    hang_seconds: Optional[float] = None
    """How long all ranks of a host may print nothing and use no CPU before this counts as a hang; None for
    ever.
    """

    run: Optional[str] = None
    """The run that this job is a segment of."""

    job_hash: Optional[str] = None
    """Of the job that was launched, for its outcome files; None in files of releases before format 1.2."""

    checkpoints: Optional[CheckpointSpec] = None
    margin_seconds: Optional[float] = None
    """Between a segment's planned end and its time limit."""

    deterministic: bool = False
    """Ask the ranks to compute deterministically."""

    services: Tuple[ServiceSpec, ...] = ()
    source_sha256: Optional[str] = None
    """Of the source archive before compression, in hex; None for no check."""

    secrets: Tuple[Tuple[str, str], ...] = ()
    """Variables of the ranks, each with the reference to the secret that is its value
    (``secret_reference.py``); none in files of releases before format 1.3."""

    @property
    def needs_secret(self) -> bool:
        """Whether hosts connect to each other and have to prove who they are: hosts without ranks follow the
        leader.
        """
        return self.ranks.launcher == MPI or self.ranks.runs_on == LEADER

    def to_json(self) -> str:
        """Return the text of job.json."""
        document: Dict[str, Any] = {
            "ranks": {
                "argv": [_arg_to_json(arg) for arg in self.ranks.argv],
                "env": {name: _arg_to_json(arg) for name, arg in self.ranks.env},
                "per_host": self.ranks.per_host,
                "rendezvous": self.ranks.rendezvous,
                "launcher": self.ranks.launcher,
                "on": self.ranks.runs_on,
                "options": [_arg_to_json(arg) for arg in self.ranks.launcher_options],
                "independent": self.ranks.independent,
                "flags": dict(self.ranks.flags),
            },
            "services": [
                {
                    "name": service.name,
                    "argv": [_arg_to_json(arg) for arg in service.argv],
                    "env": {name: _arg_to_json(arg) for name, arg in service.env},
                    "on": service.runs_on,
                    "ready": None if service.ready_address is None else _arg_to_json(service.ready_address),
                    "ready_seconds": service.ready_seconds,
                }
                for service in self.services
            ],
            "source": self.source,
            "source_sha256": self.source_sha256,
            "requirements": self.requirements,
            "port": self.port,
            "grace_seconds": self.grace_seconds,
            "failure_grace_seconds": self.failure_grace_seconds,
            "hang_seconds": self.hang_seconds,
            "max_runtime_seconds": self.max_runtime_seconds,
            "run": self.run,
            "job_hash": self.job_hash,
            "checkpoints": None if self.checkpoints is None else self.checkpoints._asdict(),
            "margin_seconds": self.margin_seconds,
            "deterministic": self.deterministic,
        }
        document = formats.LAUNCH_SPEC.with_version(document)
        if self.secrets:
            document["secrets"] = dict(self.secrets)
        else:
            # What has no member of 1.3 stays as it was, so that its address, of its content, does too.
            document[formats.VERSION_KEY] = _VERSION_WITHOUT_SECRETS
        return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True) + "\n"


def _arg_to_json(arg: Arg) -> Any:
    """Return a command-line argument as job.json has it: a literal text, a reference to a value that only the
    host knows (such as its rank), or both joined. ``prefix``, ``suffix``: texts around the value; ``offset``:
    added to a port."""
    if isinstance(arg, str):
        return arg
    if isinstance(arg, Concat):
        return {"join": [_arg_to_json(part) for part in arg.parts]}
    reference: Dict[str, Any] = {"ref": arg.name}
    if arg.prefix:
        reference["prefix"] = arg.prefix
    if arg.suffix:
        reference["suffix"] = arg.suffix
    if arg.offset:
        reference["offset"] = arg.offset
    return reference
