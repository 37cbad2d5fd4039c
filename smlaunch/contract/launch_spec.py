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
from typing import Any, Dict, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from smlaunch.contract import formats
from smlaunch.contract.formats import FormatError
from smlaunch.contract.sagemaker_paths import LAUNCH_FILE
from smlaunch.contract.segment import SYNC, UPLOAD_MODES

REFERENCES = frozenset(
    (
        *("python", "source", "ml", "hyperparameters", "host", "leader", "host_rank", "hosts"),
        *("rank", "local_rank", "world_size", "per_host", "port", "own_port"),
        *("address", "leader_address", "each_host", "each_endpoint"),
    )
)

PORT_REFERENCES = frozenset(("port", "own_port", "each_endpoint"))
"""References that an offset may be added to."""

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


def host_references(arg: Arg) -> Tuple[Ref, ...]:
    """The references in an argument."""
    arg_parts = arg.parts if isinstance(arg, Concat) else (arg,)
    return tuple(part for part in arg_parts if isinstance(part, Ref))


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

    checkpoints: Optional[CheckpointSpec] = None
    margin_seconds: Optional[float] = None
    """Between a segment's planned end and its time limit."""

    deterministic: bool = False
    """Ask the ranks to compute deterministically."""

    services: Tuple[ServiceSpec, ...] = ()
    source_sha256: Optional[str] = None
    """Of the source archive before compression, in hex; None for no check."""

    @property
    def needs_secret(self) -> bool:
        """Whether hosts connect to each other and have to prove who they are: hosts without ranks follow the
        leader.
        """
        return self.ranks.launcher == MPI or self.ranks.runs_on == LEADER

    def to_json(self) -> str:
        """The text of job.json."""
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
            "checkpoints": None if self.checkpoints is None else self.checkpoints._asdict(),
            "margin_seconds": self.margin_seconds,
            "deterministic": self.deterministic,
        }
        return (
            json.dumps(formats.LAUNCH_SPEC.stamp(document), indent=2, sort_keys=True, ensure_ascii=True)
            + "\n"
        )

    @classmethod
    def from_json(cls, text: str) -> "LaunchSpec":
        """Parse job.json, which tells the runtime (smlaunch's launcher in the container) what to start: the
        ranks (processes of the user's program), and services beside them. Raises LaunchSpecError with the
        first mistake, also for a format that this release does not read."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise LaunchSpecError("not JSON: {}".format(error)) from None
        if not isinstance(document, dict):
            raise LaunchSpecError("not a JSON object")
        try:
            document = formats.LAUNCH_SPEC.upgrade_document(document, LAUNCH_FILE)
        except FormatError as error:
            raise LaunchSpecError(str(error)) from None
        ranks_document = document.get("ranks")
        if not isinstance(ranks_document, dict):
            raise LaunchSpecError("ranks: missing")
        services = _parse_services(document)
        if services and ranks_document.get("launcher", RUNTIME) != RUNTIME:
            raise LaunchSpecError("services: only with ranks that the runtime starts, ranks.launcher runtime")
        return cls(
            ranks=_parse_ranks(ranks_document),
            source=_parse_text(document, "source"),
            requirements=_parse_text(document, "requirements"),
            port=_parse_integer(document, "port", 29500),
            grace_seconds=_parse_seconds(document, "grace_seconds", 110.0),
            max_runtime_seconds=_parse_optional_integer(document, "max_runtime_seconds"),
            failure_grace_seconds=_parse_seconds(
                document, "failure_grace_seconds", DEFAULT_FAILURE_GRACE_SECONDS
            ),
            hang_seconds=_parse_hang_seconds(document),
            run=_parse_text(document, "run"),
            checkpoints=_parse_checkpoints(document),
            margin_seconds=_parse_optional_seconds(document, "margin_seconds"),
            deterministic=bool(document.get("deterministic", False)),
            services=services,
            source_sha256=_parse_text(document, "source_sha256"),
        )


def _parse_ranks(ranks_document: Mapping[str, Any]) -> RankSpec:
    """Return how the ranks (the processes of the user's program) are started, from the member ``ranks`` of
    job.json. Raises LaunchSpecError for an invalid one. ``launcher``: RUNTIME (smlaunch's own), torchrun or
    mpirun; ``on``: ALL hosts or the LEADER (first host) alone; ``independent``: each trains on its own."""
    ranks = RankSpec(
        argv=_parse_argv(ranks_document, "ranks"),
        per_host=_parse_ranks_per_host(ranks_document),
        # Ranks join each other, by the variables that torchrun sets too; otherwise they are plain processes.
        rendezvous=bool(ranks_document.get("rendezvous", True)),
        launcher=_parse_choice(ranks_document, "launcher", LAUNCHERS, RUNTIME, "ranks"),
        runs_on=_parse_choice(ranks_document, "on", (ALL, LEADER), ALL, "ranks"),
        launcher_options=_parse_args(ranks_document.get("options", []), "ranks.options"),
        independent=bool(ranks_document.get("independent", False)),
        env=_parse_env(ranks_document, "ranks"),
    )
    if ranks.launcher == TORCHRUN and not ranks.rendezvous:
        raise LaunchSpecError("ranks.launcher: torchrun joins its ranks, so ranks.rendezvous must be true")
    # mpirun runs on the leader and starts ranks on all hosts.
    if ranks.runs_on == LEADER and ranks.launcher != MPI and ranks.rendezvous:
        raise LaunchSpecError(
            "ranks.on: ranks on the leader alone join no others; ranks.rendezvous must be false"
        )
    if ranks.independent and (ranks.rendezvous or ranks.launcher != RUNTIME or ranks.runs_on != ALL):
        raise LaunchSpecError(
            "ranks.independent: only for plain processes on all hosts, without a rendezvous"
        )
    return ranks


def _parse_ranks_per_host(ranks_document: Mapping[str, Any]) -> Union[int, str]:
    """Return the number of ranks on each host, or AUTO: one for each accelerator."""
    per_host: Union[int, str] = ranks_document.get("per_host", 1)
    is_count = isinstance(per_host, int) and not isinstance(per_host, bool) and per_host >= 1
    if per_host != AUTO and not is_count:
        raise LaunchSpecError("ranks.per_host: a number from 1 or {!r}, not {!r}".format(AUTO, per_host))
    return per_host


def _parse_services(launch_document: Mapping[str, Any]) -> Tuple[ServiceSpec, ...]:
    """Return the processes that run beside the ranks, such as a parameter server, from the member
    ``services`` of job.json. Raises LaunchSpecError for an invalid one."""
    service_documents = launch_document.get("services", [])
    if not isinstance(service_documents, list):
        raise LaunchSpecError("services: a list is needed, not {!r}".format(service_documents))
    return tuple(
        _parse_service(service_document, "services[{}]".format(index))
        for index, service_document in enumerate(service_documents)
    )


def _parse_service(service_document: Any, path: str) -> ServiceSpec:
    """Return one service. ``path``: of its object in job.json, for messages."""
    if (
        not isinstance(service_document, dict)
        or not isinstance(service_document.get("name"), str)
        or not service_document["name"]
    ):
        raise LaunchSpecError("{}: an object with a name is needed, not {!r}".format(path, service_document))
    ready_document = service_document.get("ready")
    return ServiceSpec(
        name=service_document["name"],
        runs_on=_parse_choice(service_document, "on", HOST_SETS, ALL, path),
        ready_address=None if ready_document is None else _parse_arg(ready_document, path + ".ready"),
        ready_seconds=_parse_seconds(service_document, "ready_seconds", 300.0),
        argv=_parse_argv(service_document, path),
        env=_parse_env(service_document, path),
    )


def _parse_argv(document: Mapping[str, Any], path: str) -> Tuple[Arg, ...]:
    argv = document.get("argv")
    if not isinstance(argv, list) or not argv:
        raise LaunchSpecError("{}.argv: a list with at least one argument is needed".format(path))
    return _parse_args(argv, path + ".argv")


def _parse_env(document: Mapping[str, Any], path: str) -> Tuple[Tuple[str, Arg], ...]:
    env = document.get("env", {})
    if not isinstance(env, dict):
        raise LaunchSpecError("{}.env: an object is needed".format(path))
    return tuple(
        (str(name), _parse_arg(arg, "{}.env.{}".format(path, name))) for name, arg in sorted(env.items())
    )


def _parse_args(values: Any, path: str) -> Tuple[Arg, ...]:
    if not isinstance(values, list):
        raise LaunchSpecError("{}: a list of arguments is needed, not {!r}".format(path, values))
    return tuple(_parse_arg(arg, "{}[{}]".format(path, index)) for index, arg in enumerate(values))


def _parse_choice(
    document: Mapping[str, Any], key: str, choices: Sequence[str], default: str, path: str
) -> str:
    value = document.get(key, default)
    if value not in choices:
        raise LaunchSpecError("{}.{}: one of {}, not {!r}".format(path, key, ", ".join(choices), value))
    return str(value)


def _parse_checkpoints(launch_document: Mapping[str, Any]) -> Optional[CheckpointSpec]:
    """Return where and how often checkpoints are saved, from the member ``checkpoints`` of job.json; None
    without checkpoints. ``upload``: SYNC (the service copies ``path`` to S3) or DIRECT (the job does).
    ``keep``: number of checkpoints that are kept; ``failure_seconds``: mean time between failures, for the
    interval. Raises LaunchSpecError for an invalid one."""
    checkpoints_document = launch_document.get("checkpoints")
    if checkpoints_document is None:
        return None
    if not isinstance(checkpoints_document, dict) or not isinstance(checkpoints_document.get("path"), str):
        raise LaunchSpecError(
            "checkpoints: an object with a path is needed, not {!r}".format(checkpoints_document)
        )
    upload = checkpoints_document.get("upload", SYNC)
    if upload not in UPLOAD_MODES:
        raise LaunchSpecError(
            "checkpoints.upload: one of {}, not {!r}".format(", ".join(UPLOAD_MODES), upload)
        )
    return CheckpointSpec(
        path=checkpoints_document["path"],
        uri=_parse_text(checkpoints_document, "uri"),
        upload=upload,
        keep=_parse_integer(checkpoints_document, "keep", 3),
        interval_seconds=_parse_optional_seconds(checkpoints_document, "interval_seconds"),
        failure_seconds=_parse_optional_seconds(checkpoints_document, "failure_seconds"),
    )


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


def _parse_arg(value: Any, path: str) -> Arg:
    if isinstance(value, dict) and isinstance(value.get("join"), list):
        return Concat(tuple(_parse_literal_or_reference(part, path) for part in value["join"]))
    return _parse_literal_or_reference(value, path)


def _parse_literal_or_reference(literal_or_reference: Any, path: str) -> Union[str, Ref]:
    """Return a literal text, or a reference to a value that only the host knows, such as ``{"ref": "rank"}``;
    of a port also with an offset, which is added to it. ``path``: of the value in job.json, for messages.
    Raises LaunchSpecError for anything else."""
    if isinstance(literal_or_reference, str):
        return literal_or_reference
    if not (isinstance(literal_or_reference, dict) and literal_or_reference.get("ref") in REFERENCES):
        raise LaunchSpecError(
            "{}: neither text nor a known reference: {!r}".format(path, literal_or_reference)
        )
    offset = literal_or_reference.get("offset", 0)
    is_integer = isinstance(offset, int) and not isinstance(offset, bool)
    is_port = literal_or_reference["ref"] in PORT_REFERENCES
    if not is_integer or (offset and not is_port):
        raise LaunchSpecError("{}: no offset that a port could have: {!r}".format(path, literal_or_reference))
    return Ref(
        name=literal_or_reference["ref"],
        prefix=str(literal_or_reference.get("prefix", "")),
        suffix=str(literal_or_reference.get("suffix", "")),
        offset=offset,
    )


def _parse_text(document: Mapping[str, Any], key: str) -> Optional[str]:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise LaunchSpecError("{}: text is needed, not {!r}".format(key, value))
    return value


def _parse_integer(document: Mapping[str, Any], key: str, default: int) -> int:
    value = document.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise LaunchSpecError("{}: a number is needed, not {!r}".format(key, value))
    return value


def _parse_seconds(document: Mapping[str, Any], key: str, default: float) -> float:
    value = document.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise LaunchSpecError("{}: a number of seconds from 0 is needed, not {!r}".format(key, value))
    return float(value)


def _parse_optional_seconds(document: Mapping[str, Any], key: str) -> Optional[float]:
    return None if document.get(key) is None else _parse_seconds(document, key, 0.0)


def _parse_hang_seconds(document: Mapping[str, Any]) -> Optional[float]:
    seconds = _parse_optional_seconds(document, "hang_seconds")
    if seconds == 0:
        raise LaunchSpecError("hang_seconds: more than 0 is needed; leave it out to wait for ever")
    return seconds


def _parse_optional_integer(document: Mapping[str, Any], key: str) -> Optional[int]:
    return None if document.get(key) is None else _parse_integer(document, key, 0)
