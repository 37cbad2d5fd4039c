"""Which MPI this is, and the words that make it start ranks on the job's hosts through our agents.

    Open MPI 4    mpirun, whose daemon orted is started by a remote-shell agent
    Open MPI 5    the same through PRRTE (prterun, prted), whose parameters have other names
    hydra         MPICH's mpiexec, and that of what comes from it: Intel MPI, MVAPICH

All decided from plain values. The user's own options come last; what they say of a thing, we do not.
"""

import re
from typing import List, NamedTuple, Optional, Sequence, Tuple

OPEN_MPI_4 = "Open MPI 4"
OPEN_MPI_5 = "Open MPI 5"
HYDRA = "hydra"

PROGRAMS = ("mpirun", "mpiexec")

_OPEN_MPI = re.compile(r"\(Open MPI\) (\d+)\.")
_PRRTE = re.compile(r"\b(?:prterun|prte)\b.*?\d+\.\d+", re.IGNORECASE)
_HYDRA = re.compile(r"HYDRA build details|Intel\(R\) MPI Library|\bMVAPICH", re.IGNORECASE)

LOOPBACK = "lo"


class World(NamedTuple):
    """``interface``: by which the hosts reach each other, None where the MPI is to find it. ``crowded``:
    there are more ranks than processors, where hosts share a machine too. ``agent``: our remote shell.
    ``nameless``: hosts that are known by their addresses alone, and all call themselves by one name.
    """

    hosts: Tuple[str, ...]
    per_host: int
    agent: str
    interface: Optional[str] = None
    root: bool = False
    crowded: bool = False
    nameless: bool = False

    @property
    def size(self) -> int:
        return len(self.hosts) * self.per_host


def flavour(version: str) -> Optional[str]:
    """From what ``mpirun --version`` prints; None for one that nothing is known of."""
    found = _OPEN_MPI.search(version)
    if found is not None:
        return OPEN_MPI_4 if int(found.group(1)) < 5 else OPEN_MPI_5
    if _PRRTE.search(version):
        return OPEN_MPI_5
    return HYDRA if _HYDRA.search(version) else None


def words(kind: str, program: str, world: World, options: Sequence[str]) -> List[str]:
    """The launcher's command up to where the ranks' own program follows."""
    ours = {OPEN_MPI_4: _open_mpi_4, OPEN_MPI_5: _open_mpi_5, HYDRA: _hydra}[kind](world)
    stated = _stated(options)
    kept = [word for group in ours if _name(group) not in stated for word in group]
    return [program, *kept, *options]


_Groups = List[Tuple[str, ...]]


def _open_mpi_4(world: World) -> _Groups:
    groups = _open_mpi(world)
    groups += [
        # Slots are counted by us. Without this more ranks than it sees processors are refused.
        ("--oversubscribe",),
        ("--mca", "plm_rsh_agent", world.agent),
        # All daemons are started from here: the others have no remote shell of ours.
        ("--mca", "plm_rsh_no_tree_spawn", "1"),
    ]
    if world.interface is not None:
        groups += [
            ("--mca", "oob_tcp_if_include", world.interface),
            ("--mca", "btl_tcp_if_include", world.interface),
        ]
    return groups


def _open_mpi_5(world: World) -> _Groups:
    """Not --oversubscribe, which lets it put all ranks on the first host; the slots are enough. PRRTE finds
    no interface in loopback alone, so that one is not named to it.
    """
    groups = _open_mpi(world)
    if world.nameless:
        groups.append(("--mca", "coll", "^han,sm,xhc,acoll"))  # these share memory too
    groups += [
        ("--prtemca", "plm_ssh_agent", world.agent),
        ("--prtemca", "plm_ssh_no_tree_spawn", "1"),
    ]
    if world.interface not in (None, LOOPBACK):
        groups += [
            ("--prtemca", "prte_if_include", str(world.interface)),
            ("--mca", "btl_tcp_if_include", str(world.interface)),
        ]
    return groups


def _open_mpi(world: World) -> _Groups:
    groups: _Groups = [("--allow-run-as-root",)] if world.root else []
    groups += [
        ("--host", ",".join("{}:{}".format(host, world.per_host) for host in world.hosts)),
        ("-np", str(world.size)),
        ("--map-by", "slot"),
        # Several hosts on one machine would all take its first processors; and a rank with threads, one.
        ("--bind-to", "none"),
        # Daemons stay connected to us, and so do their errors.
        ("--leave-session-attached",),
    ]
    if world.crowded:
        groups.append(("--mca", "mpi_yield_when_idle", "1"))
    if world.nameless:
        # It takes ranks of the same name for neighbours that share memory.
        groups += [("--mca", "pml", "ob1"), ("--mca", "btl", "self,tcp")]
    return groups


def _hydra(world: World) -> _Groups:
    return [
        ("-launcher", "ssh"),
        ("-launcher-exec", world.agent),
        ("-hosts", ",".join(world.hosts)),
        ("-ppn", str(world.per_host)),
        ("-n", str(world.size)),
    ]


_SAME = {"n": "np", "c": "np", "H": "host", "rank-by": "rank-by"}
_PARAMETERS = frozenset(("mca", "prtemca", "pmixmca", "gmca"))


def _name(group: Sequence[str]) -> Tuple[str, ...]:
    """What a group of words is about: ``--mca btl_tcp_if_include lo`` is about that parameter."""
    name = group[0].lstrip("-")
    if name in _PARAMETERS and len(group) > 1:
        return ("mca", group[1])
    return (_SAME.get(name, name),)


def _stated(options: Sequence[str]) -> List[Tuple[str, ...]]:
    return [_name(options[index : index + 2]) for index, word in enumerate(options) if word.startswith("-")]


RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
LOCAL_RANK = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
WORLD_SIZE = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
LOCAL_WORLD_SIZE = ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS")
"""Where each MPI tells a rank its place; the first that is there."""
