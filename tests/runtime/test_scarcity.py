"""Exhausted memory and disk are reported with host, rank and exit code."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from smlaunch.contract.failure_reason import parse_failure, parse_unwritten_failure
from smlaunch.runtime import oom_kills
from smlaunch.runtime.failure_file import describe_failure
from smlaunch.runtime.host_outcome import FinishedProcess, HostOutcome
from tests.runtime.host import Host
from tests.tables import table

MakeHost = Callable[..., Host]

ALLOCATE_MEMORY = """
import os, signal
if os.environ["RANK"] == "1":
    eaten = [bytearray(os.urandom(1) * (8 << 20)) for _ in range(100)]
signal.pause()
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory control group of 96 MiB, of version 1 or 2."""
    for root, limit in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        folder = root / f"smlaunch-test-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        if (folder / limit).exists():
            (folder / limit).write_text(str(96 << 20))
            try:
                yield folder
            finally:
                _remove(folder)
            return
        folder.rmdir()
    pytest.skip("no memory control group can be made on this machine")


def _remove(folder: Path) -> None:
    """Remove a control group, which the kernel allows only a moment after its processes have ended."""
    end = time.monotonic() + 10
    while True:
        try:
            return folder.rmdir()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


@pytest.mark.root
def test_a_rank_that_the_kernel_kills_for_its_memory(make_host: MakeHost, group: Path) -> None:
    join = f'echo $$ > {group}/cgroup.procs && exec "$0" "$@"'
    host = make_host(ALLOCATE_MEMORY, wrapper=("sh", "-c", join))
    assert host.run(per_host=2).exit_code == 137
    assert host.failure == ("rank 1 on algo-1 was killed by SIGKILL: out of memory: the kernel killed it"), (
        oom_kills._list_cgroup_counter_files()
    )


def test_a_rank_that_is_refused_memory(make_host: MakeHost) -> None:
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (512 << 20,) * 2)\n"
    host = make_host(limit + ALLOCATE_MEMORY)
    assert host.run(per_host=2).exit_code == 1
    failure = parse_failure(host.failure)
    assert failure[:4] == ("MemoryError", "algo-1", 1, 1)


def test_a_neighbours_misfortune_is_not_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, machine = tmp_path / "cgroup", tmp_path / "vmstat"
    machine.write_text("pgfault 7\noom_kill 41\n")
    monkeypatch.setattr(oom_kills, "_CGROUP_MOUNT", str(tmp_path))
    monkeypatch.setattr(oom_kills, "_SELF_CGROUP_FILE", str(own))
    monkeypatch.setattr(oom_kills, "_VMSTAT", str(machine))
    assert oom_kills.count_oom_kills() == 41
    own.write_text("0::/job\n")
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "memory.events").write_text("low 0\nmax 3\noom 2\noom_kill 2\n")
    assert oom_kills.count_oom_kills() == 2
    own.write_text("4:cpu,memory:/docker/1\n0::/\n")
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert oom_kills.count_oom_kills() == 5
    own.write_text("nonsense\n")
    machine.unlink()
    assert oom_kills.count_oom_kills() == -1


ON_A_SMALL_DISK = 'mount -t tmpfs -o size=64k tmpfs "$0" && exec "$@"'
FILL_DISK = """
import os
if os.environ["RANK"] == "1":
    with open(os.path.join(os.environ["%s"], "weights"), "wb") as file:
        file.write(bytes(1 << 20))
import signal
signal.pause()
"""


@pytest.mark.root
def test_a_disk_that_is_full(make_host: MakeHost, tmp_path: Path) -> None:
    small = tmp_path / "ml" / "model"
    host = make_host(
        FILL_DISK % "SM_MODEL_DIR", wrapper=("unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK, str(small))
    )
    assert host.run(per_host=2).exit_code == 1
    failure = parse_failure(host.failure)
    assert failure[1:4] == ("algo-1", 1, 1)
    assert failure.cause.startswith(
        "OSError: [Errno 28] No space left on device; a disk of this host is full: "
    )
    assert "volume_gb" in failure.cause
    assert "in <module>" in failure.traceback


@table(
    ("last_words", "hint"),
    [
        ("OSError: [Errno 28] No space left on device: 'x'", "a disk of this host is full"),
        ("OSError: [Errno 122] Disk quota exceeded", "a disk of this host is full"),
        ("cp: error writing 'x': No space left on device", "a disk of this host is full"),
        ("RuntimeError: unable to write to file </torch_1_2>: No space left on device (28)", "/dev/shm"),
        ("ValueError: the queue is full", ""),
    ],
)
def test_what_helps_when_no_space_is_left(last_words: str, hint: str) -> None:
    process = FinishedProcess(rank=0, status=1, ended_at=1.0, failed_at=1.0, output_tail=last_words)
    text = describe_failure("algo-1", HostOutcome((process,)), oom_kill_happened=False)
    assert text is not None
    assert last_words in text
    assert hint in text
    assert ("full" in text.replace(last_words, "")) is bool(hint)


@pytest.mark.root
def test_a_full_disk_that_has_no_room_for_the_reason_either(make_host: MakeHost, tmp_path: Path) -> None:
    """The exit code and the log still report the failure."""
    small = tmp_path / "ml" / "output"
    host = make_host(
        FILL_DISK % "SM_OUTPUT_DIR", wrapper=("unshare", "--mount", "sh", "-c", ON_A_SMALL_DISK, str(small))
    )
    result = host.run(per_host=2)
    assert result.exit_code == 1
    lines = [line.partition("smlaunch: ")[2] for line in result.stderr.splitlines()]
    (failure,) = filter(None, map(parse_unwritten_failure, lines))
    assert failure[1:4] == ("algo-1", 1, 1)
    assert failure.cause.startswith(
        "OSError: [Errno 28] No space left on device; a disk of this host is full: "
    )
