"""No process of a host survives, whichever process is killed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from smlaunch.local.executors import process_allocation, process_cleanup
from tests.conftest import IS_ROOT, ROOT
from tests.local import ordinary_user
from tests.local.executors.conftest import eventually, level_or_skip
from tests.local.executors.test_processes import ESCAPING_CHILDREN

PROGRAM = Path(__file__).with_name("owner_process.py")


def start(folder: Path, owner: str, level: str, prefix: Sequence[str] = ()) -> subprocess.Popen[str]:
    """Start the owner process; return when both hosts run their process trees."""
    process = subprocess.Popen(
        [*prefix, sys.executable, str(PROGRAM), str(folder), owner, level, ESCAPING_CHILDREN + "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


@pytest.fixture
def owner() -> Iterator[str]:
    name = f"orphans-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    # As at the next endpoint's start: no process runs, and the short links of a killed endpoint are removed.
    process_allocation.remove_leftovers(name)
    assert list(Path(tempfile.gettempdir()).glob(f"sml-{name}*")) == []


@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_endpoint(
    tmp_path: Path, owner: str, level: str, signal_number: signal.Signals
) -> None:
    process = start(tmp_path, owner, level)
    assert len(process_cleanup.find_processes_of_owner(owner + "/")) >= 8
    process.send_signal(signal_number)
    process.communicate()
    assert eventually(lambda: process_cleanup.find_processes_of_owner(owner + "/") == [])


def test_hosts_survive_the_thread_that_started_them(tmp_path: Path, owner: str, level: str) -> None:
    """PDEATHSIG fires at the end of a thread: the supervisor must not have it."""
    process = start(tmp_path, owner, level)
    before = set(process_cleanup.find_processes_of_owner(owner + "/"))
    time.sleep(0.3)
    assert set(process_cleanup.find_processes_of_owner(owner + "/")) == before
    process.kill()
    process.communicate()


def test_endpoint_and_supervisors_killed_at_once_are_swept_by_the_next(
    tmp_path: Path, owner: str, level: str
) -> None:
    process = start(tmp_path, owner, level)
    supervisors = [
        pid for pid in process_cleanup.find_descendants(process.pid) if _parent(pid) == process.pid
    ]
    process.kill()
    process_cleanup.kill_processes(supervisors)
    process.communicate()
    process_allocation.remove_leftovers(owner)
    assert eventually(lambda: process_cleanup.find_processes_of_owner(owner + "/") == [])


def _parent(pid: int) -> int:
    text = Path(f"/proc/{pid}/stat").read_text()
    return int(text.rpartition(")")[2].split()[1])


@pytest.mark.parametrize("name", ["user", "plain"])
def test_an_ordinary_user_too(owner: str, name: str) -> None:
    level_or_skip(name)
    folder = Path(tempfile.mkdtemp())
    try:
        if IS_ROOT:
            os.chown(folder, ordinary_user.UID, ordinary_user.UID)
        process = start(folder, owner, name, ordinary_user.prefix())
        assert len(process_cleanup.find_processes_of_owner(owner + "/")) >= 8
        process.kill()
        process.communicate()
        assert eventually(lambda: process_cleanup.find_processes_of_owner(owner + "/") == [])
    finally:
        shutil.rmtree(folder)
