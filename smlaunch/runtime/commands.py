"""Compile job.json and the facts of this host into the exact bytes that each rank is started with.

An argument is passed on unchanged, whatever it contains: there is no shell and no quoting. Only NUL, which no
argument or variable can contain, is refused.
"""

import os
import sys
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.contract.launch_spec import PORT_REFERENCES, Arg, Concat, LaunchSpec, Ref
from smlaunch.contract.paths import Paths
from smlaunch.runtime import rendezvous
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.hyperparameters import Hyperparameters

_HOST_SEPARATOR = ","
"""Separates hosts in one argument; no host name contains it."""

_ADDRESSES = {"address": "host", "leader_address": "leader"}


class RankFifo(NamedTuple):
    """A FIFO that a rank writes to which a launcher starts. ``prefix`` precedes its lines."""

    path: str
    rank: int
    prefix: bytes


class ProcessCommand(NamedTuple):
    """One process to start."""

    argv: Tuple[bytes, ...]
    env: Dict[bytes, bytes]
    ranks: Tuple[int, ...] = ()
    """Its own rank, the ranks that it will start, or none."""

    prefix: bytes = b""
    """Precedes its lines in the log."""

    rank_fifos: Tuple[RankFifo, ...] = ()
    """One for each rank that it will start."""

    service: str = ""
    """Name of the service; empty for a rank."""


class HostContext(NamedTuple):
    """Everything about this host that a reference in job.json can name."""

    cluster: Cluster
    paths: Paths
    hyperparameters: Hyperparameters
    python: str
    ranks_per_host: int
    port: int
    import_dir: str = ""
    """A folder from which ranks can import smlaunch.train."""

    def reference_values(self, local_rank: int) -> Dict[str, str]:
        """Return the values of the references, by name."""
        return {
            "python": self.python,
            "source": self.paths.code,
            "ml": self.paths.root,
            "host": self.cluster.current_host,
            "leader": self.cluster.leader,
            "host_rank": str(self.cluster.host_rank),
            "hosts": str(len(self.cluster.hosts)),
            "rank": str(self.cluster.host_rank * self.ranks_per_host + local_rank),
            "local_rank": str(local_rank),
            "world_size": str(len(self.cluster.hosts) * self.ranks_per_host),
            "per_host": str(self.ranks_per_host),
            "port": str(self.port),
            "own_port": str(self.port + self.cluster.host_rank),
            "each_host": _HOST_SEPARATOR.join(self.cluster.hosts),
        }


def rank_commands(spec: LaunchSpec, host: HostContext, environ: Mapping[str, str]) -> List[ProcessCommand]:
    """Return the commands of this host's ranks. ``environ``: the environment that every rank inherits. Raises
    SetupError.
    """
    rank_spec = spec.ranks
    host_env = base_environment(host, environ)
    if rank_spec.rendezvous:
        host_env.update(rendezvous.shared_variables(host.cluster, host.ranks_per_host, host.port, environ))
    commands = []
    for local_rank in range(host.ranks_per_host):
        references = host.reference_values(local_rank)
        rank = int(references["rank"])
        rank_env = dict(host_env)
        if rank_spec.rendezvous:
            rank_env.update(rendezvous.rank_variables(rank, local_rank))
        is_only_process = not rank_spec.rendezvous and host.ranks_per_host == 1
        commands.append(
            ProcessCommand(
                argv=resolve_argv(rank_spec.argv, references, host.hyperparameters),
                env=resolve_environment(rank_env, rank_spec.env, references),
                ranks=() if is_only_process else (rank,),
                prefix=b"[%d] " % rank if rank_spec.rendezvous else b"",
            )
        )
    return commands


def base_environment(host: HostContext, environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the environment of every program of the user."""
    variables = dict(environ)
    # Otherwise prints stay in a buffer until the script exits, and are lost when it is killed. AWS's images
    # set it too.
    variables.setdefault("PYTHONUNBUFFERED", "1")
    # Print stacks on SIGABRT, which ends a hang, and on SIGSEGV.
    variables.setdefault("PYTHONFAULTHANDLER", "1")
    # As in the toolkit, the source folder can be imported from. smlaunch.train of the runtime comes last
    # (importable.py).
    folders = (host.paths.code, environ.get("PYTHONPATH"), host.import_dir)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    return variables


def find_entry_point(spec: LaunchSpec) -> Optional[str]:
    """Return the user's program as a path within the source, or the module that ``-m`` names; None
    without either.
    """
    argv = spec.ranks.argv
    for arg in argv:
        if isinstance(arg, Ref) and arg.name == "source" and arg.suffix.strip("/"):
            return arg.suffix.strip("/")
    for index, arg in enumerate(argv):
        if arg == "-m" and index + 1 < len(argv) and isinstance(argv[index + 1], str):
            return str(argv[index + 1])
    return None


def helper_command(argv: Iterable[str], environ: Mapping[str, str]) -> ProcessCommand:
    """Return the command of one of the runtime's own helper programs."""
    return ProcessCommand(
        tuple(_encode(argument, "argument") for argument in argv), resolve_environment(environ)
    )


def check_source_files(spec: LaunchSpec, paths: Paths) -> None:
    """Check that every argument that names a file of the source names an existing one. Raises SetupError."""
    for arg in spec.ranks.argv:
        if not isinstance(arg, Ref) or arg.name != "source" or not arg.suffix:
            continue
        path = arg.prefix + paths.code + arg.suffix
        if not os.path.exists(path):
            raise SetupError(
                "{} is not in the source, which holds {}".format(
                    arg.suffix.strip("/"), _list_folder(paths.code)
                )
            )


def _list_folder(folder: str) -> str:
    """Return the first entries of a folder, for a message."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return "nothing"
    listing = ", ".join(names[:8])
    return listing + (" and {} more".format(len(names) - 8) if len(names) > 8 else "") or "nothing"


def resolve_argv(
    args: Iterable[Arg],
    references: Mapping[str, str],
    hyperparameters: Hyperparameters,
    spec_path: str = "ranks",
) -> Tuple[bytes, ...]:
    """Return the arguments as bytes. ``spec_path``: where they are in job.json, for messages. Raises
    SetupError."""
    argv: List[bytes] = []
    for index, arg in enumerate(args):
        arg_path = "{}.argv[{}]".format(spec_path, index)
        if isinstance(arg, Ref) and arg.name == "hyperparameters":
            if arg.prefix or arg.suffix:
                raise SetupError(
                    "job.json: {}: hyperparameters are whole arguments, without prefix or suffix".format(
                        arg_path
                    )
                )
            for key, option in hyperparameters.to_named_args():
                argv.extend(_encode(value, "hyperparameter {!r}".format(key)) for value in option)
        else:
            argv.append(_encode(resolve_arg(arg, references, arg_path), arg_path))
    return tuple(argv)


def resolve_arg(arg: Arg, references: Mapping[str, str], spec_path: str) -> str:
    """Return the text of one argument. Raises SetupError."""
    if isinstance(arg, str):
        return arg
    if isinstance(arg, Concat):
        return "".join(resolve_arg(part, references, spec_path) for part in arg.parts)
    if arg.name in ("each_host", "each_endpoint"):
        hosts = references["each_host"].split(_HOST_SEPARATOR)
        with_port = arg.name == "each_endpoint"
        first_port = int(references["port"]) + arg.offset
        names = (
            "{}:{}".format(host, first_port + index) if with_port else host
            for index, host in enumerate(hosts)
        )
        return _HOST_SEPARATOR.join(arg.prefix + text + arg.suffix for text in names)
    if arg.name in _ADDRESSES:
        return arg.prefix + _resolve_address(references[_ADDRESSES[arg.name]]) + arg.suffix
    if arg.name not in references:
        raise SetupError("job.json: {}: {!r} cannot be used here".format(spec_path, arg.name))
    value = references[arg.name]
    return arg.prefix + (str(int(value) + arg.offset) if arg.name in PORT_REFERENCES else value) + arg.suffix


def _resolve_address(name: str) -> str:
    """Return the IP address of a host, for programs that take no names. The leader's name is known to resolve
    (name_lookup.py).
    """
    import socket

    try:
        return socket.gethostbyname(name)
    except OSError as error:
        raise SetupError("{}: the name of this job's host does not resolve: {}".format(name, error)) from None


def resolve_environment(
    variables: Mapping[str, str],
    args: Iterable[Tuple[str, Arg]] = (),
    references: Optional[Mapping[str, str]] = None,
    spec_path: str = "ranks",
) -> Dict[bytes, bytes]:
    """Return the variables as bytes. ``args``: the job's own variables, which take precedence."""
    encoded: Dict[bytes, bytes] = {}
    job_variables = (
        (name, resolve_arg(arg, references or {}, "{}.env.{}".format(spec_path, name))) for name, arg in args
    )
    for name, value in (*variables.items(), *job_variables):
        # A hyperparameter may have a name that no variable can have. The script still gets it as an
        # argument and in SM_HPS.
        if name and "=" not in name and "\0" not in name:
            encoded[_encode(name, "a variable's name")] = _encode(value, name)
    return encoded


def _encode(text: str, description: str) -> bytes:
    """UTF-8 whatever the locale; bytes of the inherited environment that are no UTF-8 stay as they are."""
    if "\0" in text:
        raise SetupError(
            "{}: contains a NUL character, which no argument or variable can contain".format(description)
        )
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise SetupError(
            "{}: holds half a surrogate pair, which is no character".format(description)
        ) from None


def interpreter_path() -> str:
    """Return the Python that runs this process, for the ranks."""
    if not sys.executable:
        raise SetupError(
            "the path of the Python interpreter is not known: start the runtime by its full path"
        )
    return sys.executable
