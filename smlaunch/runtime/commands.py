"""From job.json's words to the exact bytes each rank is started with.

A word goes through untouched, whatever is in it: there is no shell and no quoting anywhere on the way. Only a
NUL cannot be carried by any argument or variable, and is refused by name.
"""

import os
import sys
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.protocol.launch_spec import PORTS, Joined, LaunchSpec, Ref, Word
from smlaunch.protocol.paths import Paths
from smlaunch.runtime import rendezvous
from smlaunch.runtime.arguments import Hyperparameters
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.problems import Unusable

_SEPARATOR = ","
"""Between the hosts of a word; no host's name holds one."""

_ADDRESSES = {"address": "host", "leader_address": "leader"}


class Outlet(NamedTuple):
    """A FIFO that a rank writes to which somebody else starts; ``prefix`` goes before its lines."""

    path: str
    rank: int
    prefix: bytes


class Command(NamedTuple):
    """One process to start. ``ranks``: its own rank, those that it will start itself, or none; ``prefix``
    goes before its lines. ``service``: its name, when it is one and no rank.
    """

    argv: Tuple[bytes, ...]
    env: Dict[bytes, bytes]
    ranks: Tuple[int, ...] = ()
    prefix: bytes = b""
    outlets: Tuple[Outlet, ...] = ()
    service: str = ""


class Host(NamedTuple):
    """Everything about this host that a word may refer to. ``importable``: a folder that ranks find
    smlaunch.train in.
    """

    cluster: Cluster
    paths: Paths
    hyperparameters: Hyperparameters
    python: str
    per_host: int
    port: int
    importable: str = ""

    def values(self, local_rank: int) -> Dict[str, str]:
        return {
            "python": self.python,
            "source": self.paths.code,
            "ml": self.paths.root,
            "host": self.cluster.current,
            "leader": self.cluster.leader,
            "host_rank": str(self.cluster.rank),
            "hosts": str(len(self.cluster.hosts)),
            "rank": str(self.cluster.rank * self.per_host + local_rank),
            "local_rank": str(local_rank),
            "world_size": str(len(self.cluster.hosts) * self.per_host),
            "per_host": str(self.per_host),
            "port": str(self.port),
            "own_port": str(self.port + self.cluster.rank),
            "each_host": _SEPARATOR.join(self.cluster.hosts),
        }


def rank_commands(spec: LaunchSpec, host: Host, environ: Mapping[str, str]) -> List[Command]:
    """``environ`` is what every rank starts from. Raises Unusable."""
    ranks = spec.ranks
    shared = base_environment(host, environ)
    if ranks.rendezvous:
        shared.update(rendezvous.shared_variables(host.cluster, host.per_host, host.port, environ))
    commands = []
    for local_rank in range(host.per_host):
        values = host.values(local_rank)
        rank = int(values["rank"])
        env = dict(shared)
        if ranks.rendezvous:
            env.update(rendezvous.rank_variables(rank, local_rank))
        alone = not ranks.rendezvous and host.per_host == 1
        commands.append(
            Command(
                argv=argv_of(ranks.argv, values, host.hyperparameters),
                env=environment_of(env, ranks.env, values),
                ranks=() if alone else (rank,),
                prefix=b"[%d] " % rank if ranks.rendezvous else b"",
            )
        )
    return commands


def base_environment(host: Host, environ: Mapping[str, str]) -> Dict[str, str]:
    """What every program of the user starts with, whoever starts it."""
    variables = dict(environ)
    # Without this a script's prints stay in its buffer until it ends, and are lost when it is killed. AWS's
    # images set it as well.
    variables.setdefault("PYTHONUNBUFFERED", "1")
    # Stacks on SIGABRT, which ends a hang, and on SIGSEGV and its like.
    variables.setdefault("PYTHONFAULTHANDLER", "1")
    # As in the toolkit, the source can be imported from wherever in it the entry point lies. Last comes
    # smlaunch.train as it travels with the job (importable.py).
    parts = (host.paths.code, environ.get("PYTHONPATH"), host.importable)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, parts))
    return variables


def entry_point(spec: LaunchSpec) -> Optional[str]:
    """The user's program as a path within the source, or the module that ``-m`` names; None when neither is
    there.
    """
    words = spec.ranks.argv
    for word in words:
        if isinstance(word, Ref) and word.name == "source" and word.suffix.strip("/"):
            return word.suffix.strip("/")
    for index, word in enumerate(words):
        if word == "-m" and index + 1 < len(words) and isinstance(words[index + 1], str):
            return str(words[index + 1])
    return None


def plain_command(words: Iterable[str], environ: Mapping[str, str]) -> Command:
    """A helper program of the runtime's own."""
    return Command(tuple(_bytes(word, "argument") for word in words), environment_of(environ))


def check_entry(spec: LaunchSpec, paths: Paths) -> None:
    """Every word that names a file of the source must name one that is there. Raises Unusable."""
    for word in spec.ranks.argv:
        if not isinstance(word, Ref) or word.name != "source" or not word.suffix:
            continue
        path = word.prefix + paths.code + word.suffix
        if not os.path.exists(path):
            raise Unusable(
                "{} is not in the source, which holds {}".format(
                    word.suffix.strip("/"), _contents(paths.code)
                )
            )


def _contents(folder: str) -> str:
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return "nothing"
    shown = ", ".join(names[:8])
    return shown + (" and {} more".format(len(names) - 8) if len(names) > 8 else "") or "nothing"


def argv_of(
    words: Iterable[Word],
    values: Mapping[str, str],
    hyperparameters: Hyperparameters,
    of: str = "ranks",
) -> Tuple[bytes, ...]:
    argv: List[bytes] = []
    for index, word in enumerate(words):
        where = "{}.argv[{}]".format(of, index)
        if isinstance(word, Ref) and word.name == "hyperparameters":
            if word.prefix or word.suffix:
                raise Unusable(
                    "job.json: {}: hyperparameters are whole words, without prefix or suffix".format(where)
                )
            for key, pair in hyperparameters.named_words():
                argv.extend(_bytes(text, "hyperparameter {!r}".format(key)) for text in pair)
        else:
            argv.append(_bytes(text_of(word, values, where), where))
    return tuple(argv)


def text_of(word: Word, values: Mapping[str, str], where: str) -> str:
    if isinstance(word, str):
        return word
    if isinstance(word, Joined):
        return "".join(text_of(part, values, where) for part in word.words)
    if word.name in ("each_host", "each_endpoint"):
        hosts = values["each_host"].split(_SEPARATOR)
        endpoint = word.name == "each_endpoint"
        first = int(values["port"]) + word.offset
        texts = (
            "{}:{}".format(host, first + index) if endpoint else host for index, host in enumerate(hosts)
        )
        return _SEPARATOR.join(word.prefix + text + word.suffix for text in texts)
    if word.name in _ADDRESSES:
        return word.prefix + _address_of(values[_ADDRESSES[word.name]]) + word.suffix
    if word.name not in values:
        raise Unusable("job.json: {}: {!r} cannot be used here".format(where, word.name))
    value = values[word.name]
    return word.prefix + (str(int(value) + word.offset) if word.name in PORTS else value) + word.suffix


def _address_of(name: str) -> str:
    """For programs that take no names. The leader's has been waited for (names.py)."""
    import socket

    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise Unusable("{}: the name of this job's host does not resolve: {}".format(name, error)) from None


def environment_of(
    variables: Mapping[str, str],
    words: Iterable[Tuple[str, Word]] = (),
    values: Optional[Mapping[str, str]] = None,
    of: str = "ranks",
) -> Dict[bytes, bytes]:
    """``words``: the job's own variables, laid over the others."""
    env: Dict[bytes, bytes] = {}
    own = ((name, text_of(word, values or {}, "{}.env.{}".format(of, name))) for name, word in words)
    for name, value in (*variables.items(), *own):
        # A hyperparameter may be called what no variable can be called. It reaches the script as an
        # argument and in SM_HPS all the same.
        if name and "=" not in name and "\0" not in name:
            env[_bytes(name, "a variable's name")] = _bytes(value, name)
    return env


def _bytes(text: str, where: str) -> bytes:
    """UTF-8 whatever the locale; bytes that were not UTF-8 in our own environment come out as they were."""
    if "\0" in text:
        raise Unusable("{}: holds a NUL character, which no argument or variable can carry".format(where))
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Unusable("{}: holds half a surrogate pair, which is no character".format(where)) from None


def interpreter() -> str:
    """The Python that runs us, for the ranks."""
    if not sys.executable:
        raise Unusable("the path of the Python interpreter is not known: start the runtime by its full path")
    return sys.executable
