"""A hang is reported with the stacks of every rank; a rank that is only quiet or only busy does not hang."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from smlaunch.contract.failure_reason import MAX_REASON_LENGTH, parse_failure
from smlaunch.runtime import hang_detector
from tests.runtime.host import Host
from tests.runtime.test_ranks import python_of

MakeHost = Callable[..., Host]

SECONDS = 0.8

HANG_SCRIPT = """
import os, signal, sys, threading
def waits_for_nobody():
    signal.pause()
def waits_elsewhere():
    threading.Event().wait()
print("ready", flush=True)
waits_elsewhere() if os.environ["RANK"] == "1" else waits_for_nobody()
"""


def test_a_hang_shows_where_every_rank_was(make_host: MakeHost) -> None:
    host = make_host(HANG_SCRIPT)
    result = host.run(per_host=3, hang_seconds=SECONDS)
    assert result.exit_code == hang_detector.HANG_EXIT_CODE == 124
    failure = parse_failure(host.failure)
    assert failure.host == "algo-1"
    assert failure.cause == "hang: no output and no CPU use for 0.8 s by ranks 0, 1 and 2"
    odd, _, others = failure.traceback.partition("ranks 0 and 2:")
    assert odd.startswith("rank 1:")
    assert "in waits_elsewhere" in odd
    assert "in waits_for_nobody" in others
    assert len(f"AlgorithmError: {host.failure}, exit code: 124") <= MAX_REASON_LENGTH
    for rank, place in enumerate(("waits_for_nobody", "waits_elsewhere", "waits_for_nobody")):
        assert [line for line in result.lines if line.startswith(f"[{rank}] ") and place in line]
    assert "smlaunch: algo-1 failed: hang: no output" in result.stderr


@pytest.mark.parametrize("version", ["3.8", "3.13"])
def test_the_oldest_and_the_newest_python_show_their_stacks(make_host: MakeHost, version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    host = make_host("import signal\ndef waits(): signal.pause()\nwaits()", python=python)
    assert host.run(hang_seconds=SECONDS).exit_code == 124
    assert "\nrank 0:\n  File " in host.failure
    assert "line 2 in waits" in host.failure


def test_who_had_left_is_told(make_host: MakeHost) -> None:
    """A rank that exits early with 0 has not failed; the ranks that wait for it have."""
    train = "import os, signal\nos.environ['RANK'] == '0' or signal.pause()"
    host = make_host(train)
    assert host.run(per_host=2, hang_seconds=SECONDS).exit_code == 124
    assert host.failure.startswith(
        "rank 1 on algo-1 failed: hang: no output and no CPU use for 0.8 s by rank 1; "
        "rank 0 had left with exit code 0\nrank 1:\n  File "
    )


@pytest.mark.parametrize(
    "keeps_on",
    [
        pytest.param("print(step, flush=True); time.sleep(0.1)", id="output"),
        pytest.param("end = time.monotonic() + 0.1\n    while time.monotonic() < end: pass", id="cpu"),
        pytest.param(
            "subprocess.run([sys.executable, '-S', '-c', 'sum(range(3000000))'])",
            id="children that come and go",
        ),
    ],
)
def test_one_rank_at_work_is_enough(make_host: MakeHost, keeps_on: str) -> None:
    train = f"""
import os, subprocess, sys, time
end_of_work = time.monotonic() + 3 * {SECONDS}
step = 0
while time.monotonic() < end_of_work:
    step += 1
    if os.environ["RANK"] == "1":
        time.sleep(3 * {SECONDS})
        continue
    {keeps_on}
"""
    host = make_host(train)
    assert (host.run(per_host=2, hang_seconds=SECONDS).exit_code, host.failure) == (0, "")


def test_what_ranks_have_started_shows_its_stack_too(make_host: MakeHost) -> None:
    """Often a loader worker hangs, below a shell that is no Python process."""
    train = "import signal\ndef worker(): signal.pause()\nworker()"
    host = make_host(train)
    result = host.run(argv=("sh", "-c", "python3 train.py; exit 1"), rendezvous=False, hang_seconds=SECONDS)
    assert result.exit_code == 124
    assert host.failure == "algo-1 failed: hang: no output and no CPU use for 0.8 s"
    assert "in worker" in result.stdout


def test_who_does_not_answer_is_killed(make_host: MakeHost) -> None:
    train = "import signal\nsignal.signal(signal.SIGABRT, signal.SIG_IGN)\nwhile True: signal.pause()"
    host = make_host(train)
    assert host.run(hang_seconds=SECONDS, failure_grace_seconds=0.2).exit_code == 124
    assert host.failure == "rank 0 on algo-1 failed: hang: no output and no CPU use for 0.8 s by rank 0"


def test_no_image_of_the_memory_is_left(make_host: MakeHost) -> None:
    train = (
        "import resource, signal\nresource.setrlimit(resource.RLIMIT_CORE, (2**20, 2**20))\nsignal.pause()"
    )
    host = make_host(train)
    assert host.run(hang_seconds=SECONDS).exit_code == 124
    assert not list(Path(host.paths.code).glob("core*"))


def test_a_stop_is_not_taken_for_a_hang(make_host: MakeHost) -> None:
    """A rank that saves without output after SIGTERM has its whole grace period."""
    train = f"""
import signal, sys, time
def leave(number, frame):
    time.sleep(3 * {SECONDS})
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""
    with make_host(train).start(hang_seconds=SECONDS) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        assert process.wait(timeout=30) == 0


def test_without_a_limit_nobody_is_watched(make_host: MakeHost) -> None:
    assert make_host("import time\ntime.sleep(1)").run().exit_code == 0


def test_a_machine_that_slept_has_not_been_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hours between two samples, as on a suspended machine, do not count as silence."""
    monkeypatch.setattr(hang_detector, "_read_cpu_seconds_by_child", lambda *_: {7: 1.0})
    watch = hang_detector.HangDetector(8.0, now=0.0)
    assert not watch.detect_hang(0.5)
    assert not watch.detect_hang(10_000.0)
    assert [watch.detect_hang(10_000.0 + second) for second in range(1, 8)] == [False] * 6 + [True]


@pytest.mark.parametrize(("used", "busy"), [(0.004, False), (0.006, True), (-0.5, True)])
def test_what_counts_as_use(monkeypatch: pytest.MonkeyPatch, used: float, busy: bool) -> None:
    readings = iter([{7: 1.0, 8: 2.0}] * 8 + [{7: 1.0, 8: 2.0 + used}])
    monkeypatch.setattr(hang_detector, "_read_cpu_seconds_by_child", lambda *_: next(readings))
    watch = hang_detector.HangDetector(8.0, now=0.0)
    assert [watch.detect_hang(float(second)) for second in range(1, 9)] == [False] * 7 + [not busy]


def test_a_crash_shows_its_stack(make_host: MakeHost) -> None:
    train = "import os, signal\ndef crash(): os.kill(os.getpid(), signal.SIGSEGV)\ncrash()"
    host = make_host(train)
    result = host.run()
    assert result.exit_code == 139
    failure = parse_failure(host.failure)
    assert (failure.cause, failure.rank) == ("Fatal Python error: Segmentation fault", 0)
    assert "in crash" in failure.traceback


def test_a_script_may_do_without(make_host: MakeHost) -> None:
    host = make_host(
        "import faulthandler\nprint(faulthandler.is_enabled())", environ={"PYTHONFAULTHANDLER": ""}
    )
    assert host.run().lines == ["[0] False"]


def test_nobody_is_left(make_host: MakeHost) -> None:
    train = "import signal, subprocess\nsubprocess.Popen(['sleep', '4711'])\nsignal.pause()"
    assert make_host(train).run(hang_seconds=SECONDS).exit_code == 124
    process_list = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert "sleep 4711" not in process_list, os.getpid()
