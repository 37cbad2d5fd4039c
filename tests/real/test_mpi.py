"""SDK v3's MPI driver, as far as it works at all: two hosts that meet over real ssh, and a real mpirun.

The driver needs what its image would bring: an sshd, keys that let root in, mpi4py and an Open MPI. The
endpoint runs no images, so mpi_image.sh lays these over the machine for the endpoint and its hosts alone; the
driver also writes every variable into /etc/environment, which must not be the machine's own.

On a region and here alike, its `-np` is the number of processes of one host: of 2 x 2 ranks it starts two,
all on the first host. With `--map-by node` these two lie on two hosts. A worker looks every
30 s whether all is over.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real.conftest import HERE, REAL, Client, RunningEndpoint, program, start_endpoint, stop_endpoint

pytestmark = [pytest.mark.root]


@pytest.fixture(scope="module")
def mpi_endpoint() -> Iterator[RunningEndpoint]:
    if not (REAL / "sshd" / "usr/sbin/sshd").exists():
        pytest.skip("no sshd was to be had: make test-real")
    programs = Path(program("toolkit", "python")).parent
    # Not below /tmp, which hosts have of their own.
    folder = Path(tempfile.mkdtemp(prefix="smlaunch-mpi-", dir="/var/tmp"))
    command = ("unshare", "--mount", "--propagation", "private", "sh", str(HERE / "mpi_image.sh"))
    endpoint = start_endpoint(
        folder, {}, prefix_command=(*command, str(folder), str(REAL / "sshd"), str(programs))
    )
    yield endpoint
    stop_endpoint(endpoint)
    shutil.rmtree(folder)


def test_mpi_driver(mpi_endpoint: RunningEndpoint, tmp_path: Path) -> None:
    machine = Path("/etc/environment")
    content_before = machine.read_bytes() if machine.exists() else None

    def start(name: str, end: str, options: list[str]) -> Client:
        job = {
            "name": name,
            "driver": "mpi",
            "source": str(HERE / "jobs" / "mpi"),
            "entry": "sums.py",
            "hyperparameters": {"end": end},
            "options": {"mpi_additional_options": options},
        }
        (tmp_path / name).mkdir()
        return Client(mpi_endpoint, "sdk3", "sdk3.py", job, tmp_path / name)

    # One after the other: every job's sshd takes port 22.
    result = start("mpi-plain", "well", []).wait_for_end()
    assert result.status == ("Completed", "Completed"), result.text
    assert result.client_error is None, result.text
    for rank in (0, 1):
        assert result.count_lines_with(f"rank {rank} of 2 on algo-1: the sum is 3") == 1, result.text

    result = start("mpi-map", "raise", ["--map-by", "node"]).wait_for_end()
    for rank, host in enumerate(("algo-1", "algo-2")):
        assert result.count_lines_with(f"rank {rank} of 2 on {host}: the sum is 3") == 1, result.text
    assert result.status == ("Failed", "Failed"), result.text
    assert result.reason.startswith("AlgorithmError: "), result.reason
    assert result.count_lines_with("planted on") >= 1, result.text

    assert (machine.read_bytes() if machine.exists() else None) == content_before
