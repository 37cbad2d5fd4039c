"""The program that mpirun calls instead of ssh."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smlaunch.runtime.mpi.exec_agent import ExecAgent
from smlaunch.runtime.mpi.mpi_host import module_command
from smlaunch.runtime.mpi.rsh import RemoteCommand, parse_arguments
from tests.runtime.host import runtime_archive

KEY = bytes(range(32))
HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("words", "call"),
    [
        # As Open MPI 4 and 5 call it, with the line quoted for a shell; as hydra does.
        (["algo-2", '  PATH=/x/bin:$PATH ; export PATH ;  orted -mca ess "env"'], None),
        (["-x", "algo-2", '"/usr/bin/hydra_pmi_proxy"', "--proxy-id", "1"], None),
        (["-l", "root", "-p", "22", "-oBatchMode=yes", "algo-2", "true"], RemoteCommand("algo-2", "true")),
        (["user@algo-2", "--", "-c"], RemoteCommand("algo-2", "-- -c")),
        (["--", "algo-2", "true"], RemoteCommand("algo-2", "true")),
    ],
)
def test_words(words: list[str], call: RemoteCommand | None) -> None:
    host = words.index("algo-2") + 1 if "algo-2" in words else 0
    assert parse_arguments(words) == (call or RemoteCommand("algo-2", " ".join(words[host:])))


@pytest.mark.parametrize("words", [[], ["algo-2"], ["-x", "algo-2"], ["-l", "root"]])
def test_no_host_or_no_command(words: list[str]) -> None:
    assert parse_arguments(words) is None


@pytest.fixture
def agent() -> Iterator[ExecAgent]:
    exec_agent = ExecAgent(KEY, HOST, HOST, 0, {b"PATH": os.environb[b"PATH"]})
    exec_agent.start()
    yield exec_agent
    exec_agent.close()


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "runtime.pyz"
    path.write_bytes(runtime_archive(True))
    return path


def rsh(
    archive: Path, port: int, *words: str, key: bytes = KEY, timeout_seconds: float = 5
) -> subprocess.CompletedProcess[str]:
    secret = archive.with_name("secret")
    secret.write_text(key.hex())
    command = [
        *module_command("mpi.rsh", sys.executable, str(archive)),
        str(port),
        str(secret),
        str(timeout_seconds),
    ]
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, env={})


def test_it_is_as_if_the_command_ran_here(agent: ExecAgent, archive: Path) -> None:
    result = rsh(archive, agent.port, "-x", HOST, "echo", '"$((40 + 2))";', "echo no >&2;", "exit", "9")
    assert (result.returncode, result.stdout, result.stderr) == (9, "42\n", "no\n")
    assert rsh(archive, agent.port, HOST, "kill -9 $$").returncode == 137


def test_the_wrong_key(agent: ExecAgent, archive: Path, tmp_path: Path) -> None:
    result = rsh(archive, agent.port, HOST, f"touch {tmp_path}/ran", key=bytes(32))
    assert (result.returncode, result.stdout) == (255, "")
    assert result.stderr == f"smlaunch: {HOST}: {HOST} does not know this job's secret\n"
    assert not (tmp_path / "ran").exists()


def test_nobody_there(archive: Path) -> None:
    import socket

    with socket.create_server((HOST, 0)) as server:
        port = server.getsockname()[1]
    result = rsh(archive, port, HOST, "true", timeout_seconds=0.1)
    assert result.returncode == 255
    assert "no runtime of this job answers there" in result.stderr


def test_no_command(archive: Path) -> None:
    result = rsh(archive, 1, HOST)
    assert (result.returncode, result.stderr) == (255, "smlaunch: a host and a command are needed\n")
