"""``launcher: mpi`` without an MPI on the host; tests/real/test_mpi_runs.py runs real ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from smlaunch.contract.launch_spec import Ref
from smlaunch.contract.sagemaker_paths import RUNTIME_CHANNEL, SECRET_FILE
from tests.runtime.host import Host

MakeHost = Callable[..., Host]


@pytest.fixture
def bare_host(make_host: MakeHost, tmp_path: Path) -> Host:
    """A host whose PATH has no program."""
    if any((Path(sys.executable).parent / name).exists() for name in ("mpirun", "mpiexec")):
        pytest.skip("there is an MPI beside the Python that runs the tests")
    (tmp_path / "bin").mkdir()
    host = make_host("print('here')", environ={"PATH": str(tmp_path / "bin"), "TMPDIR": str(tmp_path)})
    (Path(host.paths.channel_dir(RUNTIME_CHANNEL)) / SECRET_FILE).write_text(bytes(range(32)).hex())
    return host


def test_no_mpi_is_told(bare_host: Host) -> None:
    result = bare_host.run(launcher="mpi", port=0)
    assert (result.exit_code, result.stdout) == (2, "")
    assert (
        "no mpirun and no mpiexec on this host's PATH: use an image that has Open MPI or MPICH"
        in bare_host.failure
    )


def test_an_mpi_that_nothing_is_known_of_is_told(bare_host: Host, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "mpirun"
    program.write_text("#!/bin/sh\necho 'mpirun (Some MPI) 1.0'\n")
    program.chmod(0o755)
    result = bare_host.run(launcher="mpi")
    assert result.exit_code == 2
    assert f"{program}: neither Open MPI, MPICH nor Intel MPI by what --version says" in bare_host.failure


def test_no_secret_is_told(bare_host: Host, tmp_path: Path) -> None:
    secret = Path(bare_host.paths.channel_dir(RUNTIME_CHANNEL)) / SECRET_FILE
    secret.unlink()
    program = tmp_path / "bin" / "mpirun"
    program.write_text("#!/bin/sh\necho 'HYDRA build details:'\n")
    program.chmod(0o755)
    result = bare_host.run(launcher="mpi")
    assert result.exit_code == 2
    assert f"{secret}: No such file or directory" in bare_host.failure


def test_words_that_differ_by_rank_are_refused(bare_host: Host) -> None:
    result = bare_host.run(argv=("echo", Ref("local_rank")), launcher="mpi")
    assert result.exit_code == 2
    assert "'local_rank' is not known before mpirun starts its ranks" in result.stderr


def test_nothing_stays_in_the_temporary_directory(bare_host: Host, tmp_path: Path) -> None:
    bare_host.run(launcher="mpi")
    assert sorted(os.listdir(tmp_path)) == ["bin", "ml"]
