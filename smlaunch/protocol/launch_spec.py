"""job.json: what the runtime starts on every host, compiled by a strategy on the client.

A command is a list of words. A word is literal text, which reaches the process byte for byte, or a reference
that only the host can fill in, written in JSON as ``{"ref": "source", "suffix": "/train.py"}``, or several of
both in one, ``{"join": [...]}``. Nothing is ever parsed as a shell line.

Three verbs: ``ranks`` are the user's program; ``services`` run beside it, from before its start until after
its end; and ranks that are started ``on`` the leader alone (or by its MPI launcher) are followed by the other
hosts, which end as the leader does.

References that a host fills in
    python            the interpreter that runs the runtime
    source            the directory the user's source was unpacked to
    ml                the contract's root, usually /opt/ml
    hyperparameters   (a whole word only) the hyperparameters as ``--key value`` words
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

from smlaunch.protocol.segment import CARRIERS, SYNC

VERSION = "1.3"
"""1.1 adds ``run``, ``checkpoints``, ``margin_seconds`` and ``deterministic``; 1.2 ``services``, ``join``,
``offset``, ranks that run ``on`` the leader alone, the launcher ``mpi`` and its ``options``; 1.3
``source_sha256``.
"""

REFERENCES = frozenset(
    (
        *("python", "source", "ml", "hyperparameters", "host", "leader", "host_rank", "hosts"),
        *("rank", "local_rank", "world_size", "per_host", "port", "own_port"),
        *("address", "leader_address", "each_host", "each_endpoint"),
    )
)

PORTS = frozenset(("port", "own_port", "each_endpoint"))
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
HOSTS = (ALL, LEADER, OTHERS)
"""Which hosts something runs on."""

FAILURE_GRACE = 5.0
"""Seconds. Peers of a failed rank wait for somebody who is gone; a failure is to be told within 10 s."""


class LaunchSpecError(ValueError):
    """job.json cannot be read, or asks for something this runtime does not know."""


class Ref(NamedTuple):
    name: str
    prefix: str = ""
    suffix: str = ""
    offset: int = 0


class Joined(NamedTuple):
    """One word made of several."""

    words: Tuple[Union[str, Ref], ...]


Word = Union[str, Ref, Joined]


def references(word: Word) -> Tuple[Ref, ...]:
    """What only a host can fill in of it."""
    parts = word.words if isinstance(word, Joined) else (word,)
    return tuple(part for part in parts if isinstance(part, Ref))


class Ranks(NamedTuple):
    """The processes of the user's program.

    ``rendezvous``: set RANK, WORLD_SIZE, MASTER_ADDR and the rest the way torchrun sets them. Without it a
    host runs one plain process that finds its peers itself. ``launcher``: one of LAUNCHERS; torchrun and mpi
    need ``rendezvous``, and words that differ from rank to rank are then not known beforehand. ``on``: ALL
    hosts, or the LEADER alone. ``options``: words for mpirun, before the program's own; for torchrun the
    program that starts it.
    """

    argv: Tuple[Word, ...]
    env: Tuple[Tuple[str, Word], ...] = ()
    per_host: Union[int, str] = 1
    rendezvous: bool = True
    launcher: str = RUNTIME
    on: str = ALL
    options: Tuple[Word, ...] = ()


class Service(NamedTuple):
    """A program beside the ranks, on HOSTS. It is started before them, and told to end when they have.

    ``ready``: a word ``host:port`` that must accept a connection before what follows is started; None: it
    need not be waited for. One on the LEADER is waited for by all hosts, any other by those it runs on, each
    for ``ready_seconds`` at most. A service that ends before the ranks do has failed, whatever its exit code
    is.
    """

    name: str
    argv: Tuple[Word, ...]
    env: Tuple[Tuple[str, Word], ...] = ()
    on: str = ALL
    ready: Optional[Word] = None
    ready_seconds: float = 300.0


class CheckpointSpec(NamedTuple):
    """Where checkpoints are kept: ``path`` on every host, as the contract names it (below /opt/ml), and
    ``uri`` in S3. ``carrier``: one of segment.CARRIERS. ``keep``: committed steps that stay. Times in
    seconds: ``interval_seconds`` None leaves the interval to what a checkpoint costs; ``failure_seconds`` is
    the mean time between failures to reckon with then.
    """

    path: str
    uri: Optional[str] = None
    carrier: str = SYNC
    keep: int = 3
    interval_seconds: Optional[float] = None
    failure_seconds: Optional[float] = None


class LaunchSpec(NamedTuple):
    """``source`` names the archive inside the source channel; None when the image brings the program.
    ``source_sha256``: of that archive before compression, in hex; None where nobody compares it.

    ``grace_seconds`` is how long ranks may take to leave after SIGTERM before they are killed; SageMaker
    itself allows 120 s, and the runtime must be gone before that. ``failure_grace_seconds`` is the same for
    the ranks that are stopped because another one failed: they wait for a peer that is gone, so it is
    short. ``hang_seconds``: for how long all ranks of a host may print nothing and use no CPU before that
    counts as a hang; None waits for ever. ``run``: the run this job is a segment of. ``margin_seconds``: what
    lies between a segment's planned end and its time limit. ``deterministic``: ranks are asked to compute so.
    """

    ranks: Ranks
    source: Optional[str] = None
    requirements: Optional[str] = None
    port: int = 29500
    grace_seconds: float = 110.0
    max_runtime_seconds: Optional[int] = None
    version: str = VERSION
    failure_grace_seconds: float = FAILURE_GRACE
    hang_seconds: Optional[float] = None
    run: Optional[str] = None
    checkpoints: Optional[CheckpointSpec] = None
    margin_seconds: Optional[float] = None
    deterministic: bool = False
    services: Tuple[Service, ...] = ()
    source_sha256: Optional[str] = None

    @property
    def linked(self) -> bool:
        """Hosts without ranks of their own follow the leader, and prove to each other who they are."""
        return self.ranks.launcher == MPI or self.ranks.on == LEADER

    def to_json(self) -> str:
        document: Dict[str, Any] = {
            "version": self.version,
            "ranks": {
                "argv": [_word_out(word) for word in self.ranks.argv],
                "env": {name: _word_out(word) for name, word in self.ranks.env},
                "per_host": self.ranks.per_host,
                "rendezvous": self.ranks.rendezvous,
                "launcher": self.ranks.launcher,
                "on": self.ranks.on,
                "options": [_word_out(word) for word in self.ranks.options],
            },
            "services": [
                {
                    "name": service.name,
                    "argv": [_word_out(word) for word in service.argv],
                    "env": {name: _word_out(word) for name, word in service.env},
                    "on": service.on,
                    "ready": None if service.ready is None else _word_out(service.ready),
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
        return json.dumps(document, indent=2, sort_keys=True, ensure_ascii=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "LaunchSpec":
        """Raises LaunchSpecError with the first thing that is wrong."""
        try:
            document = json.loads(text)
        except ValueError as error:
            raise LaunchSpecError("not JSON: {}".format(error)) from None
        if not isinstance(document, dict):
            raise LaunchSpecError("not a JSON object")
        version = str(document.get("version", ""))
        if version.split(".")[0] != VERSION.split(".")[0]:
            raise LaunchSpecError(
                "version {!r} is not understood by this runtime ({}): client and runtime differ".format(
                    version, VERSION
                )
            )
        ranks = document.get("ranks")
        if not isinstance(ranks, dict):
            raise LaunchSpecError("ranks: missing")
        services = _services_in(document)
        if services and ranks.get("launcher", RUNTIME) != RUNTIME:
            raise LaunchSpecError("services: only with ranks that the runtime starts, ranks.launcher runtime")
        return cls(
            ranks=_ranks_in(ranks),
            source=_text_in(document, "source"),
            requirements=_text_in(document, "requirements"),
            port=_number_in(document, "port", 29500),
            grace_seconds=_seconds_in(document, "grace_seconds", 110.0),
            max_runtime_seconds=_limit_in(document, "max_runtime_seconds"),
            version=version,
            failure_grace_seconds=_seconds_in(document, "failure_grace_seconds", FAILURE_GRACE),
            hang_seconds=_hang_in(document),
            run=_text_in(document, "run"),
            checkpoints=_checkpoints_in(document),
            margin_seconds=_optional_seconds_in(document, "margin_seconds"),
            deterministic=bool(document.get("deterministic", False)),
            services=services,
            source_sha256=_text_in(document, "source_sha256"),
        )


def _ranks_in(document: Mapping[str, Any]) -> Ranks:
    argv = _argv_in(document, "ranks")
    per_host = document.get("per_host", 1)
    if per_host != AUTO and (not isinstance(per_host, int) or isinstance(per_host, bool) or per_host < 1):
        raise LaunchSpecError("ranks.per_host: a number from 1 or {!r}, not {!r}".format(AUTO, per_host))
    rendezvous = bool(document.get("rendezvous", True))
    launcher = _one_of(document, "launcher", LAUNCHERS, RUNTIME, "ranks")
    if launcher == TORCHRUN and not rendezvous:
        raise LaunchSpecError("ranks.launcher: torchrun joins its ranks, so ranks.rendezvous must be true")
    on = _one_of(document, "on", (ALL, LEADER), ALL, "ranks")
    if on == LEADER and launcher != MPI and rendezvous:
        raise LaunchSpecError(
            "ranks.on: ranks on the leader alone join no others; ranks.rendezvous must be false"
        )
    options = _words_in(document.get("options", []), "ranks.options")
    return Ranks(argv, _env_in(document, "ranks"), per_host, rendezvous, launcher, on, options)


def _services_in(document: Mapping[str, Any]) -> Tuple[Service, ...]:
    listed = document.get("services", [])
    if not isinstance(listed, list):
        raise LaunchSpecError("services: a list is needed, not {!r}".format(listed))
    services = []
    for index, value in enumerate(listed):
        where = "services[{}]".format(index)
        if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
            raise LaunchSpecError("{}: an object with a name is needed, not {!r}".format(where, value))
        on = _one_of(value, "on", HOSTS, ALL, where)
        ready = None if value.get("ready") is None else _word_in(value["ready"], where + ".ready")
        seconds = _seconds_in(value, "ready_seconds", 300.0)
        argv, env = _argv_in(value, where), _env_in(value, where)
        services.append(Service(value["name"], argv, env, on, ready, seconds))
    return tuple(services)


def _argv_in(document: Mapping[str, Any], where: str) -> Tuple[Word, ...]:
    argv = document.get("argv")
    if not isinstance(argv, list) or not argv:
        raise LaunchSpecError("{}.argv: a list with at least one word is needed".format(where))
    return _words_in(argv, where + ".argv")


def _env_in(document: Mapping[str, Any], where: str) -> Tuple[Tuple[str, Word], ...]:
    env = document.get("env", {})
    if not isinstance(env, dict):
        raise LaunchSpecError("{}.env: an object is needed".format(where))
    return tuple(
        (str(name), _word_in(word, "{}.env.{}".format(where, name))) for name, word in sorted(env.items())
    )


def _words_in(words: Any, where: str) -> Tuple[Word, ...]:
    if not isinstance(words, list):
        raise LaunchSpecError("{}: a list of words is needed, not {!r}".format(where, words))
    return tuple(_word_in(word, "{}[{}]".format(where, index)) for index, word in enumerate(words))


def _one_of(document: Mapping[str, Any], key: str, known: Sequence[str], default: str, where: str) -> str:
    value = document.get(key, default)
    if value not in known:
        raise LaunchSpecError("{}.{}: one of {}, not {!r}".format(where, key, ", ".join(known), value))
    return str(value)


def _checkpoints_in(document: Mapping[str, Any]) -> Optional[CheckpointSpec]:
    value = document.get("checkpoints")
    if value is None:
        return None
    if not isinstance(value, dict) or not isinstance(value.get("path"), str):
        raise LaunchSpecError("checkpoints: an object with a path is needed, not {!r}".format(value))
    carrier = value.get("carrier", SYNC)
    if carrier not in CARRIERS:
        raise LaunchSpecError("checkpoints.carrier: one of {}, not {!r}".format(", ".join(CARRIERS), carrier))
    return CheckpointSpec(
        path=value["path"],
        uri=_text_in(value, "uri"),
        carrier=carrier,
        keep=_number_in(value, "keep", 3),
        interval_seconds=_optional_seconds_in(value, "interval_seconds"),
        failure_seconds=_optional_seconds_in(value, "failure_seconds"),
    )


def _word_out(word: Word) -> Any:
    if isinstance(word, str):
        return word
    if isinstance(word, Joined):
        return {"join": [_word_out(part) for part in word.words]}
    parts: Dict[str, Any] = {"ref": word.name}
    if word.prefix:
        parts["prefix"] = word.prefix
    if word.suffix:
        parts["suffix"] = word.suffix
    if word.offset:
        parts["offset"] = word.offset
    return parts


def _word_in(value: Any, where: str) -> Word:
    if isinstance(value, dict) and isinstance(value.get("join"), list):
        return Joined(tuple(_part_in(part, where) for part in value["join"]))
    return _part_in(value, where)


def _part_in(value: Any, where: str) -> Union[str, Ref]:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.get("ref") in REFERENCES:
        offset = value.get("offset", 0)
        if not isinstance(offset, int) or isinstance(offset, bool) or (offset and value["ref"] not in PORTS):
            raise LaunchSpecError("{}: no offset that a port could have: {!r}".format(where, value))
        return Ref(value["ref"], str(value.get("prefix", "")), str(value.get("suffix", "")), offset)
    raise LaunchSpecError("{}: neither text nor a known reference: {!r}".format(where, value))


def _text_in(document: Mapping[str, Any], key: str) -> Optional[str]:
    value = document.get(key)
    if value is not None and not isinstance(value, str):
        raise LaunchSpecError("{}: text is needed, not {!r}".format(key, value))
    return value


def _number_in(document: Mapping[str, Any], key: str, default: int) -> int:
    value = document.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise LaunchSpecError("{}: a number is needed, not {!r}".format(key, value))
    return value


def _seconds_in(document: Mapping[str, Any], key: str, default: float) -> float:
    value = document.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise LaunchSpecError("{}: a number of seconds from 0 is needed, not {!r}".format(key, value))
    return float(value)


def _optional_seconds_in(document: Mapping[str, Any], key: str) -> Optional[float]:
    return None if document.get(key) is None else _seconds_in(document, key, 0.0)


def _hang_in(document: Mapping[str, Any]) -> Optional[float]:
    seconds = _optional_seconds_in(document, "hang_seconds")
    if seconds == 0:
        raise LaunchSpecError("hang_seconds: more than 0 is needed; leave it out to wait for ever")
    return seconds


def _limit_in(document: Mapping[str, Any], key: str) -> Optional[int]:
    return None if document.get(key) is None else _number_in(document, key, 0)
