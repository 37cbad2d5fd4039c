"""Which MPI this is, and the arguments that make it start ranks on the job's hosts through our agents.

    Open MPI 4    mpirun, whose daemon orted is started by a remote-shell agent
    Open MPI 5    the same through PRRTE (prterun, prted), whose parameters have other names
    hydra         MPICH's mpiexec, and that of what comes from it: Intel MPI, MVAPICH

Pure functions of plain values. The user's own options come last and replace ours.
"""

import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

OPEN_MPI_4 = "Open MPI 4"
OPEN_MPI_5 = "Open MPI 5"
HYDRA = "hydra"

LAUNCHER_NAMES = ("mpirun", "mpiexec")

_OPEN_MPI = re.compile(r"\(Open MPI\) (\d+)\.")
_PRRTE = re.compile(r"\b(?:prterun|prte)\b.*?\d+\.\d+", re.IGNORECASE)
_HYDRA = re.compile(r"HYDRA build details|Intel\(R\) MPI Library|\bMVAPICH", re.IGNORECASE)

LOOPBACK_INTERFACE = "lo"


class MpiWorld(NamedTuple):
    """The hosts and ranks of the program."""

    hosts: Tuple[str, ...]
    ranks_per_host: int
    remote_shell: str
    """Path of the program that replaces ssh."""

    network_interface: Optional[str] = None
    """The interface by which the hosts reach each other; None where the MPI chooses."""

    is_root: bool = False
    is_oversubscribed: bool = False
    """There are more ranks than processors, counting hosts that share a machine."""

    shares_hostname: bool = False
    """The hosts are known by their addresses only, and all have the same hostname."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.hosts) * self.ranks_per_host


def detect_mpi(version_output: str) -> Optional[str]:
    """Return which MPI this is, from what ``mpirun --version`` prints; None for an unknown one. Its launcher
    decides: HYDRA is that of MPICH, Intel MPI and MVAPICH.
    """
    open_mpi_match = _OPEN_MPI.search(version_output)
    if open_mpi_match is not None:
        return OPEN_MPI_4 if int(open_mpi_match.group(1)) < 5 else OPEN_MPI_5
    if _PRRTE.search(version_output):  # the launcher of Open MPI 5, which may name only itself
        return OPEN_MPI_5
    return HYDRA if _HYDRA.search(version_output) else None


def build_command(mpi: str, program: str, world: MpiWorld, options: Sequence[str]) -> List[str]:
    """Return the launcher's command up to the ranks' own program."""
    option_groups = {OPEN_MPI_4: _open_mpi_4, OPEN_MPI_5: _open_mpi_5, HYDRA: _hydra}[mpi](world)
    user_option_keys = _option_keys(options)
    arguments = [
        argument
        for option_group in option_groups
        if _option_key(option_group) not in user_option_keys
        for argument in option_group
    ]
    return [program, *arguments, *options]


_OptionGroups = List[Tuple[str, ...]]


def _open_mpi_4(world: MpiWorld) -> _OptionGroups:
    groups = _common_open_mpi_options(world)
    groups += [
        # We count the slots. Otherwise it refuses more ranks than processors.
        ("--oversubscribe",),
        ("--mca", "plm_rsh_agent", world.remote_shell),
        # All daemons are started from here: the other hosts have no remote shell.
        ("--mca", "plm_rsh_no_tree_spawn", "1"),
    ]
    if world.network_interface is not None:
        groups += [
            ("--mca", "oob_tcp_if_include", world.network_interface),
            ("--mca", "btl_tcp_if_include", world.network_interface),
        ]
    return groups


def _open_mpi_5(world: MpiWorld) -> _OptionGroups:
    """Without --oversubscribe, which would put all ranks on the first host; the slots suffice. PRRTE accepts
    no loopback interface, so that is not named to it.
    """
    groups = _common_open_mpi_options(world)
    if world.shares_hostname:
        groups.append(("--mca", "coll", "^han,sm,xhc,acoll"))  # these share memory too
    groups += [
        ("--prtemca", "plm_ssh_agent", world.remote_shell),
        ("--prtemca", "plm_ssh_no_tree_spawn", "1"),
    ]
    if world.network_interface not in (None, LOOPBACK_INTERFACE):
        groups += [
            ("--prtemca", "prte_if_include", str(world.network_interface)),
            ("--mca", "btl_tcp_if_include", str(world.network_interface)),
        ]
    return groups


def _common_open_mpi_options(world: MpiWorld) -> _OptionGroups:
    """Return the arguments of mpirun that Open MPI 4 and 5 have in common, in groups of an option and its
    values. ``world``: the hosts and ranks of the program.
    """
    option_groups: _OptionGroups = [("--allow-run-as-root",)] if world.is_root else []
    option_groups += [
        ("--host", ",".join("{}:{}".format(host, world.ranks_per_host) for host in world.hosts)),
        ("-np", str(world.world_size)),
        ("--map-by", "slot"),
        # Several hosts on one machine would all bind to its first processors, and a rank's threads to one.
        ("--bind-to", "none"),
        # Daemons stay connected, so that their errors are seen.
        ("--leave-session-attached",),
    ]
    if world.is_oversubscribed:  # more ranks than processors: a waiting rank must not take one for itself
        option_groups.append(("--mca", "mpi_yield_when_idle", "1"))
    if world.shares_hostname:
        # Hosts on one machine: Open MPI assumes that ranks with the same hostname share memory; use TCP.
        option_groups += [("--mca", "pml", "ob1"), ("--mca", "btl", "self,tcp")]
    return option_groups


def _hydra(world: MpiWorld) -> _OptionGroups:
    return [
        ("-launcher", "ssh"),
        ("-launcher-exec", world.remote_shell),
        ("-hosts", ",".join(world.hosts)),
        ("-ppn", str(world.ranks_per_host)),
        ("-n", str(world.world_size)),
    ]


_SYNONYMS = {"n": "np", "c": "np", "H": "host", "rank-by": "rank-by"}
_PARAMETER_OPTIONS = frozenset(("mca", "prtemca", "pmixmca", "gmca"))


def _option_key(option_group: Sequence[str]) -> Tuple[str, ...]:
    """Return what a group of arguments sets: ``--mca btl_tcp_if_include lo`` sets that parameter."""
    name = option_group[0].lstrip("-")
    if name in _PARAMETER_OPTIONS and len(option_group) > 1:
        return ("mca", option_group[1])
    return (_SYNONYMS.get(name, name),)


def _option_keys(options: Sequence[str]) -> List[Tuple[str, ...]]:
    return [
        _option_key(options[index : index + 2])
        for index, argument in enumerate(options)
        if argument.startswith("-")
    ]


RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
LOCAL_RANK_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
WORLD_SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_WORLD_SIZE_VARIABLES = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Variables in which MPIs pass a rank its numbers; the first one that is set counts."""
