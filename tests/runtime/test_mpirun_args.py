"""The mpirun arguments for each MPI, written by hand from recipes that work (docs/mpi.md)."""

from __future__ import annotations

import pytest

from smlaunch.runtime.mpi.mpirun import _search_path
from smlaunch.runtime.mpi.mpirun_args import (
    HYDRA,
    OPEN_MPI_4,
    OPEN_MPI_5,
    MpiWorld,
    build_command,
    detect_mpi,
)

VERSIONS = [
    ("mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n", OPEN_MPI_4),
    ("mpirun (Open MPI) 3.1.6\n", OPEN_MPI_4),
    ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://www.open-mpi.org/community/help/\n", OPEN_MPI_5),
    ("mpirun (Open MPI) 6.0.0rc1\n", OPEN_MPI_5),
    ("prterun (PRRTE) 3.0.13\n", OPEN_MPI_5),
    ("HYDRA build details:\n    Version:                                 5.0.2\n", HYDRA),
    (
        "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260101\n"
        "Copyright 2003-2026, Intel Corporation.\n",
        HYDRA,
    ),
    ("mpirun (IBM Platform MPI) 09.01\n", None),
    ("", None),
]


@pytest.mark.parametrize(("version_text", "kind"), VERSIONS)
def test_which_mpi_it_is(version_text: str, kind: str | None) -> None:
    assert detect_mpi(version_text) == kind


TWO_HOSTS = MpiWorld(("algo-1", "algo-2"), 2, "/tmp/rsh")
SAGEMAKER_HOSTS = MpiWorld(
    ("algo-1", "algo-2", "algo-10"), 8, "/tmp/rsh", network_interface="eth0", is_root=True
)
ENDPOINT_HOSTS = MpiWorld(
    ("algo-1", "algo-2"), 2, "/tmp/rsh", network_interface="lo", is_root=True, is_oversubscribed=True
)

PLAIN_HOSTS = MpiWorld(
    ("127.64.0.1", "127.64.0.2"), 1, "/tmp/rsh", network_interface="lo", shares_hostname=True
)

COMMANDS = {
    (
        OPEN_MPI_4,
        ENDPOINT_HOSTS,
    ): "/usr/bin/mpirun --allow-run-as-root --host algo-1:2,algo-2:2 -np 4 --map-by slot "
    "--bind-to none --leave-session-attached --mca mpi_yield_when_idle 1 --oversubscribe "
    "--mca plm_rsh_agent /tmp/rsh --mca plm_rsh_no_tree_spawn 1 "
    "--mca oob_tcp_if_include lo --mca btl_tcp_if_include lo",
    (
        OPEN_MPI_4,
        SAGEMAKER_HOSTS,
    ): "/usr/bin/mpirun --allow-run-as-root --host algo-1:8,algo-2:8,algo-10:8 -np 24 "
    "--map-by slot --bind-to none --leave-session-attached --oversubscribe "
    "--mca plm_rsh_agent /tmp/rsh --mca plm_rsh_no_tree_spawn 1 "
    "--mca oob_tcp_if_include eth0 --mca btl_tcp_if_include eth0",
    (OPEN_MPI_4, TWO_HOSTS): "/usr/bin/mpirun --host algo-1:2,algo-2:2 -np 4 --map-by slot --bind-to none "
    "--leave-session-attached --oversubscribe "
    "--mca plm_rsh_agent /tmp/rsh --mca plm_rsh_no_tree_spawn 1",
    # Neither --oversubscribe (all ranks on the first host) nor loopback for PRRTE (it finds no interface).
    (
        OPEN_MPI_5,
        ENDPOINT_HOSTS,
    ): "/usr/bin/mpirun --allow-run-as-root --host algo-1:2,algo-2:2 -np 4 --map-by slot "
    "--bind-to none --leave-session-attached --mca mpi_yield_when_idle 1 "
    "--prtemca plm_ssh_agent /tmp/rsh --prtemca plm_ssh_no_tree_spawn 1",
    (
        OPEN_MPI_5,
        SAGEMAKER_HOSTS,
    ): "/usr/bin/mpirun --allow-run-as-root --host algo-1:8,algo-2:8,algo-10:8 -np 24 "
    "--map-by slot --bind-to none --leave-session-attached "
    "--prtemca plm_ssh_agent /tmp/rsh --prtemca plm_ssh_no_tree_spawn 1 "
    "--prtemca prte_if_include eth0 --mca btl_tcp_if_include eth0",
    # Hosts of isolation level plain all call themselves by the machine's own name.
    (
        OPEN_MPI_5,
        PLAIN_HOSTS,
    ): "/usr/bin/mpirun --host 127.64.0.1:1,127.64.0.2:1 -np 2 --map-by slot --bind-to none "
    "--leave-session-attached --mca pml ob1 --mca btl self,tcp --mca coll ^han,sm,xhc,acoll "
    "--prtemca plm_ssh_agent /tmp/rsh --prtemca plm_ssh_no_tree_spawn 1",
    (
        HYDRA,
        ENDPOINT_HOSTS,
    ): "/usr/bin/mpirun -launcher ssh -launcher-exec /tmp/rsh -hosts algo-1,algo-2 -ppn 2 -n 4",
    (
        HYDRA,
        SAGEMAKER_HOSTS,
    ): "/usr/bin/mpirun -launcher ssh -launcher-exec /tmp/rsh -hosts algo-1,algo-2,algo-10 -ppn 8 -n 24",
}


@pytest.mark.parametrize(("kind", "world"), COMMANDS)
def test_the_words(kind: str, world: MpiWorld) -> None:
    assert build_command(kind, "/usr/bin/mpirun", world, []) == COMMANDS[kind, world].split()


def test_the_users_words_come_last_and_stay_words() -> None:
    user_args = ["--map-by", "ppr:1:node", "-x", "NAME=a b; $HOME"]
    command = build_command(HYDRA, "mpiexec", TWO_HOSTS, user_args)
    assert command[-4:] == user_args
    assert command[:-4] == build_command(HYDRA, "mpiexec", TWO_HOSTS, [])


@pytest.mark.parametrize(
    ("kind", "user_args", "replaced_args"),
    [
        (OPEN_MPI_4, ["--bind-to", "core"], ("--bind-to", "none")),
        (OPEN_MPI_4, ["-bind-to", "core"], ("--bind-to", "none")),
        (OPEN_MPI_5, ["--map-by", "node"], ("--map-by", "slot")),
        (OPEN_MPI_4, ["-mca", "btl_tcp_if_include", "eth1"], ("--mca", "btl_tcp_if_include", "lo")),
        (OPEN_MPI_4, ["--oversubscribe"], ()),
    ],
)
def test_what_the_user_says_is_not_said_twice(
    kind: str, user_args: list[str], replaced_args: tuple[str, ...]
) -> None:
    """Open MPI 4 refuses a parameter that is given two values."""
    default_command, command = (
        build_command(kind, "mpirun", ENDPOINT_HOSTS, []),
        build_command(kind, "mpirun", ENDPOINT_HOSTS, user_args),
    )
    assert command.count(user_args[0]) >= 1
    assert sorted([*default_command, *user_args]) == sorted([*command, *(replaced_args or user_args)])


def test_an_mpi_beside_the_python_is_found_where_the_path_has_none_of_it() -> None:
    assert _search_path("/usr/bin:/bin", ["/v/bin/python", "/usr/bin/python3"]) == "/v/bin:/usr/bin:/bin"
    # An image's own order stands: its MPI may come before its Python.
    assert (
        _search_path("/opt/amazon/openmpi/bin:/usr/bin", ["/usr/bin/python3"])
        == "/opt/amazon/openmpi/bin:/usr/bin"
    )
