"""``strategy: mpi`` on two hosts of two ranks, with every MPI that is available here, and without an sshd."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.e2e.command import ENTRYPOINTS
from tests.real.conftest import HERE, program

JOBS = HERE / "jobs" / "mpi_runs"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libmpi.so.40"
MPIS = {
    # environment, the job's own variables
    "Open MPI 4": ("debianmpi", {"MPI4PY_MPIABI": "openmpi", "MPI4PY_LIBMPI": LIBRARY}),
    "Open MPI 5": ("toolkit", {}),
    "MPICH": ("mpich", {}),
}
COMMAND = "from smlaunch.cli.main import main; main()"
TOLERANCE = 1e-9
"""Of a weight. Ranks add gradients up in another order than one process does: in 200 steps that makes up to
1e-13. Ranks that did not share theirs would be off by more than 1e-2."""


@dataclass(frozen=True)
class RunResult:
    code: int
    out: str
    log: str

    @property
    def lines(self) -> set[str]:
        return {line.strip() for line in self.log.splitlines()}

    @property
    def job(self) -> Any:
        (job,) = json.loads(self.out)["jobs"]
        return job


class MpiEndpoint:
    """An endpoint whose hosts' Python has mpi4py, and the MPI that it finds first."""

    def __init__(self, mpi: str, home: Path) -> None:
        self.mpi = mpi
        self.home = home
        environment, self.own_variables = MPIS[mpi]
        self._smlaunch = [program(environment, "python"), "-c", COMMAND]
        if mpi == "Open MPI 4" and not (Path(LIBRARY).exists() and shutil.which("mpicc")):
            pytest.skip("Debian's Open MPI is not installed: make test-real, as root")
        variables = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        self._variables = {**variables, "HOME": str(home), "SMLAUNCH_HOME": str(home / "smlaunch")}
        self.run_command("local", "start")

    def run_arguments(self, entry: Path, *options: str) -> list[str]:
        own_options = [
            word for name, value in self.own_variables.items() for word in ("--env", f"{name}={value}")
        ]
        shape = ["--strategy", "mpi", "--hosts", "2", "--processes-per-host", "2", "--local"]
        return [*self._smlaunch, "run", str(entry), *shape, *own_options, *options]

    def start(self, entry: Path, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.run_arguments(entry, "--json", *options),
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def run(self, entry: Path, *options: str) -> RunResult:
        with self.start(entry, *options) as process:
            return self.finish(process)

    def finish(self, process: subprocess.Popen[str], earlier_log: str = "") -> RunResult:
        try:
            out, log = process.communicate(timeout=120)
        except subprocess.TimeoutExpired as late:
            process.kill()
            late_log = (late.stderr or b"").decode(errors="replace")
            processes = subprocess.run(["ps", "-eo", "pid,ppid,stat,wchan:20,args"], capture_output=True)
            pytest.fail(
                f"not over after 120 s:\n{earlier_log}{late_log}\n{processes.stdout.decode(errors='replace')}"
            )
        return RunResult(process.returncode, out, earlier_log + log)

    def run_command(self, *arguments: str) -> str:
        command = [*self._smlaunch, *arguments]
        result = subprocess.run(command, env=self._variables, capture_output=True, text=True, timeout=100)
        assert result.returncode == 0, result.stderr
        return result.stdout


@pytest.fixture(scope="module", params=MPIS)
def mpi_endpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MpiEndpoint]:
    endpoint = MpiEndpoint(request.param, tmp_path_factory.mktemp("mpi"))
    yield endpoint
    endpoint.run_command("local", "stop")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, ENTRYPOINTS / "prepare_digits.py", "--out", folder], check=True)
    return folder


def one_process(folder: Path) -> np.ndarray:
    """Takes the same steps as entrypoints/train_mpi.py, without an MPI."""
    parts = [np.load(path) for path in sorted((folder / "train").glob("*.npz"))]
    images = np.concatenate([part["images"] for part in parts]).astype(np.float64)
    labels = np.concatenate([part["labels"] for part in parts])
    features = np.hstack([images.reshape(len(images), -1), np.ones((len(images), 1))])
    weights = np.zeros((features.shape[1], 10))
    for _ in range(200):
        powers = np.exp((scores := features @ weights) - scores.max(axis=1, keepdims=True))
        chances = powers / powers.sum(axis=1, keepdims=True)
        weights -= 0.5 * features.T @ (chances - np.eye(10)[labels]) / len(labels)
    return weights


def test_four_ranks_learn_what_one_process_learns(
    mpi_endpoint: MpiEndpoint, digits: Path, tmp_path: Path
) -> None:
    inputs = ("--input", f"train={digits / 'train'}", "--input", f"test={digits / 'test'}")
    result = mpi_endpoint.run(ENTRYPOINTS / "train_mpi.py", *inputs, "--name", "learns")
    assert result.code == 0, result.log
    rank_lines = re.findall(
        r"(algo-\d) \[(\d)\] rank (\d) of 4 on (\S+): weights sha256 ([0-9a-f]{64})", result.log
    )
    assert {(host, rank, number, on) for host, rank, number, on, _ in rank_lines} == {
        (f"algo-{1 + rank // 2}", str(rank), str(rank), f"algo-{1 + rank // 2}") for rank in range(4)
    }, result.log
    assert len({digest for *_, digest in rank_lines}) == 1, rank_lines
    name = {"Open MPI 4": "Open MPI v4", "Open MPI 5": "Open MPI v5", "MPICH": "MPICH Version"}[
        mpi_endpoint.mpi
    ]
    assert f"with {name}" in result.log.replace("\t", " ").replace(":      ", ""), result.log

    objects = mpi_endpoint.home / "smlaunch" / "s3"  # not the hosts' folders: they are being removed
    shutil.unpack_archive(next(objects.rglob("learns-s1-a1/output/model.tar.gz")), tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "weights.npy"), one_process(digits), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("failure_kind", "code", "cause"),
    [
        ("raise", 1, "ValueError: planted"),
        ("exit", 7, ""),
        ("kill", 137, "not by smlaunch"),
        ("abort", 5, "MPI_Abort was called with 5"),
    ],
)
def test_the_rank_that_failed_is_told_with_host_and_code(
    mpi_endpoint: MpiEndpoint, failure_kind: str, code: int, cause: str
) -> None:
    """The other ranks wait in a barrier for ever; the report is the same for every MPI."""
    result = mpi_endpoint.run(
        ENTRYPOINTS / "mpi_fails.py", "--hp", f"how={failure_kind}", "--name", f"fails-{failure_kind}"
    )
    assert result.code == 1, result.log
    failure = result.job["failure"]
    assert (failure["rank"], failure["host"], failure["exit_code"]) == (3, "algo-2", code), result.log
    assert failure["cause"].startswith(cause), failure
    assert ("in fail" in failure["traceback"]) == (failure_kind == "raise"), failure
    log = mpi_endpoint.run_command("logs", f"fails-{failure_kind}", "--local")
    for host in ("algo-1", "algo-2"):
        assert f"{host} smlaunch: rank 3 on algo-2 " in log, log


def test_a_stop_reaches_every_rank_once(mpi_endpoint: MpiEndpoint) -> None:
    with mpi_endpoint.start(JOBS / "waits.py", "--name", "waits") as process:
        assert process.stderr is not None
        lines, ready = [], 0
        while ready < 4:
            line = process.stderr.readline()
            assert line, "".join(lines)
            lines.append(line)
            ready += "ready: rank" in line
        mpi_endpoint.run_command("stop", "waits", "--local")
        result = mpi_endpoint.finish(process, "".join(lines))
    assert result.code == 5, result.log
    rank_signals = re.findall(r"\[(\d)\] told (\d) time\(s\): rank (\d) on (algo-\d)", result.log)
    assert sorted(rank_signals) == [(str(n), "1", str(n), f"algo-{1 + n // 2}") for n in range(4)], result.log


def test_a_ranks_place_and_where_the_secret_is_not(mpi_endpoint: MpiEndpoint) -> None:
    """Not in a command line, an environment or a temporary file of any process of a host, nor in what the
    client says, sends or gets back."""
    own_variable = ("--env", 'OWN=a b; $HOME "é"')
    dry_run = mpi_endpoint.run_command(
        *mpi_endpoint.run_arguments(JOBS / "looks.py", *own_variable)[3:],
        "--name",
        "looks",
        "--dry-run",
        "--json",
    )
    result = mpi_endpoint.run(JOBS / "looks.py", *own_variable, "--name", "looks")
    assert result.code == 0, result.log
    places = {int(rank): json.loads(text) for rank, text in re.findall(r"\[(\d)\] place ({.*})", result.log)}
    for rank in range(4):
        assert places[rank] == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "WORLD_SIZE": "4",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "algo-1",
            "SM_CURRENT_HOST": f"algo-{1 + rank // 2}",
            "OWN": 'a b; $HOME "é"',
            "port": True,
            "source": True,
            "processes": True,
            "secret in": [],
        }
    (file,) = (mpi_endpoint.home / "smlaunch" / "s3").rglob("looks/**/secret")
    secret = file.read_text()
    assert re.fullmatch("[0-9a-f]{64}", secret)
    details = mpi_endpoint.run_command("show", "looks", "--local", "--json") + mpi_endpoint.run_command(
        "logs", "looks", "--local"
    )
    for text in (dry_run, result.out, result.log, details):
        assert secret not in text
    # os.walk passes over what is removed meanwhile: the hosts' folders are.
    for folder, _, names in os.walk(mpi_endpoint.home):
        for path in (Path(folder, name) for name in names):
            with suppress(FileNotFoundError):
                if path.is_file() and path != file:
                    assert secret.encode() not in path.read_bytes(), path


def test_a_hang_shows_where_the_ranks_were(mpi_endpoint: MpiEndpoint, tmp_path: Path) -> None:
    """The host that notices first reports the hang; its log has the stacks of all its ranks."""
    job = {"entry": str(JOBS / "hangs.py"), "limits": {"hang": "6s"}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "job.json").rename(tmp_path / "job.yaml")
    result = mpi_endpoint.run(tmp_path / "job.yaml", "--name", "hangs")
    failure = result.job["failure"]
    assert (result.code, failure["host"] in ("algo-1", "algo-2")) == (1, True), result.log
    assert "hang: no output and no CPU use for 6 s by ranks" in result.log
    assert failure["cause"].startswith(("hang: ", "its ranks hung")), failure
    ranks = {"algo-1": {0, 1}, "algo-2": {2, 3}}
    hung_hosts = re.findall(r"smlaunch: (algo-\d) failed: hang: ", result.log)
    printed = map(int, re.findall(r'\[(\d)\]   File ".*hangs.py", line 20 in waits', result.log))
    assert set(printed) >= set().union(*(ranks[host] for host in hung_hosts)), result.log


def test_a_host_that_is_lost(mpi_endpoint: MpiEndpoint) -> None:
    """The test kills the runtime's process that the ranks' daemon belongs to."""
    result = mpi_endpoint.run(JOBS / "ends.py", "--hp", "how=host", "--name", "lost")
    assert result.code == 1, result.log
    failure = result.job["failure"]
    assert (failure["rank"], failure["host"]) == (None, "algo-2"), result.log
    # Unless the endpoint, which has seen algo-2 end as well, has stopped algo-1 before it could say so.
    host_lines = {line for line in result.lines if line.startswith("algo-1 smlaunch: ")}
    assert all("algo-2 failed: it is gone: " in line for line in host_lines), result.log


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MpiEndpoint]:
    endpoint = MpiEndpoint("Open MPI 4", tmp_path_factory.mktemp("mpi-debian"))
    yield endpoint
    endpoint.run_command("local", "stop")


def test_an_mpi_that_does_not_end_the_others(debian: MpiEndpoint) -> None:
    lenient = ("--option", "mpirun_options=--mca orte_abort_on_non_zero_status 0")
    result = debian.run(JOBS / "ends.py", "--hp", "how=leaves", *lenient, "--name", "leaves")
    assert result.code == 1, result.log
    failure = result.job["failure"]
    assert (failure["rank"], failure["host"], failure["exit_code"]) == (3, "algo-2", 3), result.log


def test_a_program_that_is_no_python(debian: MpiEndpoint, tmp_path: Path) -> None:
    compiled = tmp_path / "sum"
    subprocess.run(["mpicc", JOBS / "sum.c", "-o", compiled], check=True, cwd=ROOT)
    result = debian.run(compiled, "--name", "sum")
    assert result.code == 0, result.log
    expected = {f"algo-{1 + n // 2} [{n}] rank {n} of 4 on algo-{1 + n // 2}: the sum is 6" for n in range(4)}
    assert expected <= result.lines, result.log
    result = debian.run(compiled, "--name", "fails", "--", "fail")
    failure = result.job["failure"]
    assert (failure["rank"], failure["host"], failure["exit_code"]) == (2, "algo-2", 9), result.log
