"""Compile job.json and the facts of this host into the exact bytes that each rank is started with.

An argument is passed on unchanged, whatever it contains: there is no shell and no quoting. Only NUL, which no
argument or variable can contain, is refused.
"""

import os
import sys
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.contract.launch_spec import PORT_REFERENCES, Arg, Concat, LaunchSpec, Ref, host_references
from smlaunch.contract.sagemaker_paths import Paths
from smlaunch.runtime import rendezvous
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.errors import SetupError
from smlaunch.runtime.hyperparameters import Hyperparameters

_HOST_SEPARATOR = ","
"""Separates hosts in one argument; no host name contains it."""

_HOST_REFERENCE_BY_ADDRESS_REFERENCE = {"address": "host", "leader_address": "leader"}
"""References that stand for the IP address of the host that another reference names."""

_RANK_REFERENCES = ("rank", "local_rank")
"""References whose value differs from rank to rank."""


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

    aborts_ranks: bool = False
    """On SIGABRT, which ends a hang, it makes its ranks print their stacks by itself."""


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

    def reference_values_of_host(self) -> Dict[str, str]:
        """Return the values, by name, of the references that stand for the same in all ranks of the host."""
        values = self.reference_values(local_rank=0)
        return {name: value for name, value in values.items() if name not in _RANK_REFERENCES}

    def reference_values(self, local_rank: int) -> Dict[str, str]:
        """Return the values of all references for a rank, by name."""
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


def build_rank_commands(
    spec: LaunchSpec, host: HostContext, environ: Mapping[str, str]
) -> List[ProcessCommand]:
    """Return the commands of this host's ranks, by local rank. Raises SetupError.

    ``environ``: the environment that every rank inherits. References in job.json, which stand for values that
    only a host knows, such as ``rank``, are replaced. Ranks that meet at a rendezvous get torchrun's
    variables (RANK, MASTER_ADDR ...), and a prefix in the log.
    """
    rank_spec = spec.ranks
    host_env = base_environment(host, environ)
    if rank_spec.rendezvous:
        host_env.update(rendezvous.shared_variables(host.cluster, host.ranks_per_host, host.port, environ))
    commands = []
    for local_rank in range(host.ranks_per_host):
        reference_values = host.reference_values(local_rank)
        rank = int(reference_values["rank"])
        rank_env = dict(host_env)
        if rank_spec.rendezvous:
            rank_env.update(rendezvous.rank_variables(rank, local_rank))
        is_only_process = not rank_spec.rendezvous and host.ranks_per_host == 1
        commands.append(
            ProcessCommand(
                argv=resolve_argv(rank_spec.argv, reference_values, host.hyperparameters),
                env=resolve_environment(rank_env, rank_spec.env, reference_values),
                ranks=() if is_only_process else (rank,),  # messages about the only process name no rank
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
    # (importable_package.py).
    folders = (host.paths.code, environ.get("PYTHONPATH"), host.import_dir)
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, folders))
    return variables


def find_entry_point(spec: LaunchSpec) -> Optional[str]:
    """Return the user's program in the command of the ranks: a path within the source, or the module that
    ``-m`` names; None without either.
    """
    argv = spec.ranks.argv
    # A file of the source is a reference to the folder ``source`` with the path as suffix.
    for arg in argv:
        if isinstance(arg, Ref) and arg.name == "source" and arg.suffix.strip("/"):
            return arg.suffix.strip("/")
    for option, module in zip(argv, argv[1:]):
        if option == "-m" and isinstance(module, str) and module != "mpi4py":  # which runs the user's module
            return module
    return None


def helper_command(argv: Iterable[str], environ: Mapping[str, str]) -> ProcessCommand:
    """Return the command of one of the runtime's own helper programs."""
    return ProcessCommand(
        tuple(_encode(argument, "argument") for argument in argv), resolve_environment(environ)
    )


def check_source_files(spec: LaunchSpec, paths: Paths) -> None:
    """Raise SetupError if an argument of the ranks' command names a file that the unpacked source lacks. Such
    an argument is a reference to the folder ``source`` with the file's path as suffix.
    """
    for arg in spec.ranks.argv:
        if not isinstance(arg, Ref) or arg.name != "source" or not arg.suffix:
            continue
        path = arg.prefix + paths.code + arg.suffix
        if not os.path.exists(path):
            raise SetupError(
                "{} is not in the source, which holds {}".format(
                    arg.suffix.strip("/"), _describe_folder_content(paths.code)
                )
            )


def _describe_folder_content(folder: str) -> str:
    """Return the first entries of a folder, for a message."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return "nothing"
    if not names:
        return "nothing"
    listed_names = ", ".join(names[:8])
    return listed_names if len(names) <= 8 else "{} and {} more".format(listed_names, len(names) - 8)


def reject_rank_references(args: Iterable[Arg], launcher_name: str) -> None:
    """Raise SetupError if one of ``args`` refers to the number of a rank: the launcher (torchrun or mpirun)
    numbers the ranks when it starts them, after these arguments are resolved.
    """
    for arg in args:
        for reference in host_references(arg):
            if reference.name in _RANK_REFERENCES:
                raise SetupError(
                    "job.json: {!r} is not known before {} starts its ranks; "
                    "read RANK and LOCAL_RANK in the program".format(reference.name, launcher_name)
                )


def resolve_argv(
    args: Iterable[Arg],
    reference_values: Mapping[str, str],
    hyperparameters: Hyperparameters,
    json_path: str = "ranks",
) -> Tuple[bytes, ...]:
    """Return the command line that ``args`` of job.json stand for, as bytes. Raises SetupError.

    An argument may contain references (``Ref``) to values that only the host knows. ``reference_values``:
    these values, by name. The reference ``hyperparameters`` becomes one option with its value for each
    hyperparameter. ``json_path``: the parent of ``args`` in job.json, for messages.
    """
    argv: List[bytes] = []
    for index, arg in enumerate(args):
        arg_path = "{}.argv[{}]".format(json_path, index)
        if isinstance(arg, Ref) and arg.name == "hyperparameters":
            if arg.prefix or arg.suffix:
                raise SetupError(
                    "job.json: {}: hyperparameters are whole arguments, without prefix or suffix".format(
                        arg_path
                    )
                )
            for key, option_and_value in hyperparameters.to_named_args():
                argv.extend(_encode(text, "hyperparameter {!r}".format(key)) for text in option_and_value)
        else:
            argv.append(_encode(resolve_argument(arg, reference_values, arg_path), arg_path))
    return tuple(argv)


def resolve_argument(arg: Arg, reference_values: Mapping[str, str], json_path: str) -> str:
    """Return the text that an argument of job.json stands for: itself, the concatenation of its parts, or the
    value of the reference (a name for a value that only the host knows) between its prefix and suffix.
    ``json_path``: where it is in job.json, for messages. Raises SetupError.
    """
    if isinstance(arg, str):
        return arg
    if isinstance(arg, Concat):
        return "".join(resolve_argument(part, reference_values, json_path) for part in arg.parts)
    if arg.name in ("each_host", "each_endpoint"):  # a list: of the hosts, or of host:port
        values = _resolve_list_reference(arg, reference_values)
        return _HOST_SEPARATOR.join(arg.prefix + value + arg.suffix for value in values)
    if arg.name in _HOST_REFERENCE_BY_ADDRESS_REFERENCE:  # ``leader_address``: the IP address of ``leader``
        host = reference_values[_HOST_REFERENCE_BY_ADDRESS_REFERENCE[arg.name]]
        return arg.prefix + look_up_ip_address(host) + arg.suffix
    if arg.name not in reference_values:
        raise SetupError("job.json: {}: {!r} cannot be used here".format(json_path, arg.name))
    value = reference_values[arg.name]
    if arg.name in PORT_REFERENCES:  # a port is the job's first one and an offset
        value = str(int(value) + arg.offset)
    return arg.prefix + value + arg.suffix


def _resolve_list_reference(reference: Ref, reference_values: Mapping[str, str]) -> List[str]:
    """Return what ``each_host`` stands for, the names of all hosts, or ``each_endpoint``, host:port of all
    hosts, each with a port of its own.
    """
    hosts = reference_values["each_host"].split(_HOST_SEPARATOR)
    if reference.name == "each_host":
        return hosts
    first_port = int(reference_values["port"]) + reference.offset
    return ["{}:{}".format(host, first_port + index) for index, host in enumerate(hosts)]


def look_up_ip_address(name: str) -> str:
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
    job_variable_args: Iterable[Tuple[str, Arg]] = (),
    reference_values: Optional[Mapping[str, str]] = None,
    json_path: str = "ranks",
) -> Dict[bytes, bytes]:
    """Return the variables as bytes. ``job_variable_args``: the job's own ones, which take precedence."""
    encoded: Dict[bytes, bytes] = {}
    job_variables = (
        (name, resolve_argument(arg, reference_values or {}, "{}.env.{}".format(json_path, name)))
        for name, arg in job_variable_args
    )
    for name, value in (*variables.items(), *job_variables):
        # A hyperparameter may have a name that no variable can have. The script still gets it as an
        # argument and in SM_HPS.
        if name and "=" not in name and "\0" not in name:
            encoded[_encode(name, "a variable's name")] = _encode(value, name)
    return encoded


def _encode(text: str, description: str) -> bytes:
    """Return a text as UTF-8, whatever the locale; bytes of the inherited environment that are no UTF-8 stay
    as they are."""
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
