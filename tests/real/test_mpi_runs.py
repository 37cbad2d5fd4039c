"""strategy: mpi on two hosts of two ranks, with every MPI that can be had here, and no sshd anywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
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
class Ran:
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


class Place:
    """An endpoint whose hosts' Python has mpi4py, and which MPI it finds first."""

    def __init__(self, mpi: str, home: Path) -> None:
        self.mpi = mpi
        self.home = home
        environment, self.own = MPIS[mpi]
        self._smlaunch = [program(environment, "python"), "-c", COMMAND]
        if mpi == "Open MPI 4" and not (Path(LIBRARY).exists() and shutil.which("mpicc")):
            pytest.skip("Debian's Open MPI is not installed: make test-real, as root")
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        self._variables = {**kept, "HOME": str(home), "SMLAUNCH_HOME": str(home / "smlaunch")}
        self.ask("local", "start")

    def words(self, entry: Path, *more: str) -> list[str]:
        own = [word for name, value in self.own.items() for word in ("--env", f"{name}={value}")]
        shape = ["--strategy", "mpi", "--hosts", "2", "--processes-per-host", "2", "--local"]
        return [*self._smlaunch, "run", str(entry), *shape, *own, *more]

    def start(self, entry: Path, *more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.words(entry, "--json", *more),
            env=self._variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    def run(self, entry: Path, *more: str) -> Ran:
        with self.start(entry, *more) as process:
            return self.finish(process)

    def finish(self, process: subprocess.Popen[str], said: str = "") -> Ran:
        try:
            out, log = process.communicate(timeout=120)
        except subprocess.TimeoutExpired as late:
            process.kill()
            told = (late.stderr or b"").decode(errors="replace")
            processes = subprocess.run(["ps", "-eo", "pid,ppid,stat,wchan:20,args"], capture_output=True)
            pytest.fail(f"not over after 120 s:\n{said}{told}\n{processes.stdout.decode(errors='replace')}")
        return Ran(process.returncode, out, said + log)

    def ask(self, *words: str) -> str:
        command = [*self._smlaunch, *words]
        done = subprocess.run(command, env=self._variables, capture_output=True, text=True, timeout=100)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module", params=MPIS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place(request.param, tmp_path_factory.mktemp("mpi"))
    yield made
    made.ask("local", "stop")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sklearn")
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, ENTRYPOINTS / "prepare_digits.py", "--out", folder], check=True)
    return folder


def one_process(folder: Path) -> np.ndarray:
    """The same steps as entrypoints/train_mpi.py takes, without an MPI."""
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


def test_four_ranks_learn_what_one_process_learns(place: Place, digits: Path, tmp_path: Path) -> None:
    inputs = ("--input", f"train={digits / 'train'}", "--input", f"test={digits / 'test'}")
    ran = place.run(ENTRYPOINTS / "train_mpi.py", *inputs, "--name", "learns")
    assert ran.code == 0, ran.log
    told = re.findall(r"(algo-\d) \[(\d)\] rank (\d) of 4 on (\S+): weights sha256 ([0-9a-f]{64})", ran.log)
    assert {(host, rank, number, on) for host, rank, number, on, _ in told} == {
        (f"algo-{1 + rank // 2}", str(rank), str(rank), f"algo-{1 + rank // 2}") for rank in range(4)
    }, ran.log
    assert len({digest for *_, digest in told}) == 1, told
    name = {"Open MPI 4": "Open MPI v4", "Open MPI 5": "Open MPI v5", "MPICH": "MPICH Version"}[place.mpi]
    assert f"with {name}" in ran.log.replace("\t", " ").replace(":      ", ""), ran.log

    shutil.unpack_archive(next(place.home.rglob("learns-s1-a1/output/model.tar.gz")), tmp_path)
    np.testing.assert_allclose(np.load(tmp_path / "weights.npy"), one_process(digits), rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize(
    ("how", "code", "cause"),
    [
        ("raise", 1, "ValueError: planted"),
        ("exit", 7, ""),
        ("kill", 137, "not by smlaunch"),
        ("abort", 5, "MPI_Abort was called with 5"),
    ],
)
def test_the_rank_that_failed_is_told_with_host_and_code(
    place: Place, how: str, code: int, cause: str
) -> None:
    """Others wait in a barrier for ever; whatever the MPI says and kills, this is what is told."""
    ran = place.run(ENTRYPOINTS / "mpi_fails.py", "--hp", f"how={how}", "--name", f"fails-{how}")
    assert ran.code == 1, ran.log
    failure = ran.job["failure"]
    assert (failure["rank"], failure["host"], failure["exit_code"]) == (3, "algo-2", code), ran.log
    assert failure["cause"].startswith(cause), failure
    assert ("in fail" in failure["traceback"]) == (how == "raise"), failure
    for host in ("algo-1", "algo-2"):
        assert any(line.startswith(f"{host} smlaunch: rank 3 on algo-2 ") for line in ran.lines), ran.log


def test_a_stop_reaches_every_rank_once(place: Place) -> None:
    with place.start(JOBS / "waits.py", "--name", "waits") as process:
        assert process.stderr is not None
        said, ready = [], 0
        while ready < 4:
            line = process.stderr.readline()
            assert line, "".join(said)
            said.append(line)
            ready += "ready: rank" in line
        place.ask("stop", "waits", "--local")
        ran = place.finish(process, "".join(said))
    assert ran.code == 5, ran.log
    told = re.findall(r"\[(\d)\] told (\d) time\(s\): rank (\d) on (algo-\d)", ran.log)
    assert sorted(told) == [(str(n), "1", str(n), f"algo-{1 + n // 2}") for n in range(4)], ran.log


def test_a_ranks_place_and_where_the_secret_is_not(place: Place) -> None:
    """Not in a command line, an environment or a temporary file of any process of a host, nor in what the
    client says, sends or gets back."""
    own = ("--env", 'OWN=a b; $HOME "é"')
    planned = place.ask(*place.words(JOBS / "looks.py", *own)[3:], "--name", "looks", "--dry-run", "--json")
    ran = place.run(JOBS / "looks.py", *own, "--name", "looks")
    assert ran.code == 0, ran.log
    places = {int(rank): json.loads(text) for rank, text in re.findall(r"\[(\d)\] place ({.*})", ran.log)}
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
    (file,) = (place.home / "smlaunch" / "s3").rglob("looks/**/secret")
    secret = file.read_text()
    assert re.fullmatch("[0-9a-f]{64}", secret)
    shown = place.ask("show", "looks", "--local", "--json") + place.ask("logs", "looks", "--local")
    for text in (planned, ran.out, ran.log, shown):
        assert secret not in text
    for path in place.home.rglob("*"):
        if path.is_file() and path != file:
            assert secret.encode() not in path.read_bytes(), path


def test_a_hang_shows_where_the_ranks_were(place: Place, tmp_path: Path) -> None:
    """On the host that notices first; there the log has the stacks of all."""
    job = {"entry": str(JOBS / "hangs.py"), "limits": {"hang": "6s"}}
    (tmp_path / "job.json").write_text(json.dumps(job))
    (tmp_path / "job.json").rename(tmp_path / "job.yaml")
    ran = place.run(tmp_path / "job.yaml", "--name", "hangs")
    failure = ran.job["failure"]
    assert (ran.code, failure["host"] in ("algo-1", "algo-2")) == (1, True), ran.log
    assert "hang: no output and no CPU use for 6 s by ranks" in ran.log
    assert failure["cause"].startswith(("hang: ", "its ranks hung")), failure
    assert ran.log.count('hangs.py", line 9 in waits') >= 2, ran.log


def test_a_host_that_is_lost(place: Place) -> None:
    """The runtime's process there that the ranks' daemon belongs to is killed."""
    ran = place.run(JOBS / "ends.py", "--hp", "how=host", "--name", "lost")
    assert ran.code == 1, ran.log
    failure = ran.job["failure"]
    assert (failure["rank"], failure["host"]) == (None, "algo-2"), ran.log
    # Unless the endpoint, which has seen algo-2 end as well, has stopped algo-1 before it could say so.
    told = {line for line in ran.lines if line.startswith("algo-1 smlaunch: ")}
    assert all("algo-2 failed: it is gone: " in line for line in told), ran.log


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    made = Place("Open MPI 4", tmp_path_factory.mktemp("mpi-debian"))
    yield made
    made.ask("local", "stop")


def test_an_mpi_that_does_not_end_the_others(debian: Place) -> None:
    lenient = ("--option", "mpirun_options=--mca orte_abort_on_non_zero_status 0")
    ran = debian.run(JOBS / "ends.py", "--hp", "how=leaves", *lenient, "--name", "leaves")
    assert ran.code == 1, ran.log
    failure = ran.job["failure"]
    assert (failure["rank"], failure["host"], failure["exit_code"]) == (3, "algo-2", 3), ran.log


def test_a_program_that_is_no_python(debian: Place, tmp_path: Path) -> None:
    compiled = tmp_path / "sum"
    subprocess.run(["mpicc", JOBS / "sum.c", "-o", compiled], check=True, cwd=ROOT)
    ran = debian.run(compiled, "--name", "sum")
    assert ran.code == 0, ran.log
    expected = {f"algo-{1 + n // 2} [{n}] rank {n} of 4 on algo-{1 + n // 2}: the sum is 6" for n in range(4)}
    assert expected <= ran.lines, ran.log
    ran = debian.run(compiled, "--name", "fails", "--", "fail")
    failure = ran.job["failure"]
    assert (failure["rank"], failure["host"], failure["exit_code"]) == (2, "algo-2", 9), ran.log
