"""Checkpoints that change all the time reach S3 while the job runs; a killed job resumes from them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs.file_leases import is_closed_for_writing
from smlaunch.local.jobs.upload_schedule import SCANS_BEFORE_CLOSED_UPLOAD, SCANS_BEFORE_TORN_UPLOAD
from smlaunch.local.stores.object_store import ObjectStore
from tests.local.jobs.test_checkpoints import SyncHarness

_MAY_BE_TORN = f"had changed, at each of {SCANS_BEFORE_TORN_UPLOAD} syncs: what S3 has of it may be torn"
_TICK = 0.02
"""Seconds; longer than a tick of a file system's clock, so that later writes have later times."""

SAVE_BY_RENAME = """
def load():
    return int(open("last").read()) if os.path.exists("last") else 0
def save(step):
    with open("last.tmp", "w") as file: file.write(str(step))
    os.replace("last.tmp", "last")
"""

SAVE_NUMBERED = """
def load():
    return max((int(name) for name in os.listdir(".") if name.isdigit()), default=0)
def save(step):
    with open("partial", "w") as file: file.write("x")
    os.rename("partial", str(step))
    if os.path.exists(str(step - 1)): os.remove(str(step - 1))
"""

SAVE_TO_DATABASE = """
import sqlite3
db = sqlite3.connect("study.db", isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("CREATE TABLE IF NOT EXISTS steps (step INTEGER)")
def load():
    return db.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()[0]
def save(step):
    db.execute("INSERT INTO steps VALUES (?)", (step,))
"""

SAVE_TO_MAPPING = """
import mmap
new = not os.path.exists("weights")
file = open("weights", "w+b" if new else "r+b")
if new: file.truncate(1 << 16)
weights = mmap.mmap(file.fileno(), 0)
def load():
    return int.from_bytes(weights[:8], "big")
def save(step):
    weights[:8] = step.to_bytes(8, "big"); weights.flush()
"""

_LOOP = """
step = load()
print("begins at", step, flush=True)
while sys.argv[1] == "train":
    step += 1; save(step)
    print("step", step, flush=True); time.sleep(0.1)
"""


@contextmanager
def run_training(save: str, folder: Path) -> Iterator[Callable[[], None]]:
    """Run a program that saves all the time; yield a function that waits for its next step."""
    program = "import os, sys, time\n" + save + _LOOP
    process = subprocess.Popen(
        [sys.executable, "-c", program, "train"], cwd=folder, stdout=subprocess.PIPE, text=False, bufsize=0
    )
    assert process.stdout is not None
    output = process.stdout

    def step() -> None:
        assert output.read(1), "the program has ended"
        while select.select([output], [], [], 0)[0]:
            assert output.read(1 << 16), "the program has ended"
        time.sleep(_TICK)

    try:
        assert output.readline() == b"begins at 0\n"
        yield step
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
        output.close()


def starting_step(save: str, folder: Path) -> int:
    program = "import os, sys, time\n" + save + _LOOP
    result = subprocess.run(
        [sys.executable, "-c", program, "look"], cwd=folder, capture_output=True, text=True, check=True
    )
    return int(result.stdout.removeprefix("begins at "))


@pytest.mark.parametrize(
    ("save", "scans"),
    [
        (SAVE_BY_RENAME, 4 * SCANS_BEFORE_CLOSED_UPLOAD),
        (SAVE_NUMBERED, 4 * SCANS_BEFORE_CLOSED_UPLOAD),
        (SAVE_TO_DATABASE, SCANS_BEFORE_TORN_UPLOAD + 1),
        (SAVE_TO_MAPPING, SCANS_BEFORE_TORN_UPLOAD + 1),
    ],
    ids=["renamed", "numbered", "database", "mapped"],
)
def test_what_never_rests_is_there_after_a_kill(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path, save: str, scans: int
) -> None:
    harness = SyncHarness(objects, hosts[:1])
    with run_training(save, harness.folders[0]) as step:
        for _ in range(scans):
            step()
            harness.scan()
    next_place = JobHost("algo-1", "algo-1", "127.64.0.1", tmp_path / "again" / "ml", "/opt/ml")
    assert starting_step(save, SyncHarness(objects, [next_place]).folders[0]) > 0


def replace_file(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)
    time.sleep(_TICK)


def test_a_file_that_is_replaced_before_each_look_is_stored_whole(harness: SyncHarness) -> None:
    last = harness.folders[0] / "last"
    for number in range(SCANS_BEFORE_CLOSED_UPLOAD + 1):
        assert harness.stored() == {}
        replace_file(last, f"state {number}")
        harness.scan()
    if sys.platform == "linux":
        assert harness.stored() == {"ckpt/last": f"state {SCANS_BEFORE_CLOSED_UPLOAD}"}
    assert harness.notes == []


def test_a_rewrite_that_sets_its_own_time_and_keeps_the_size_is_stored(harness: SyncHarness) -> None:
    path = harness.folders[0] / "fixed"
    for text in ("00000020", "00000040", "00000060"):
        with path.open("r+" if path.exists() else "w") as file:
            file.write(text)
        os.utime(path, (1_000_000_000, 1_000_000_000))
        time.sleep(_TICK)
        harness.scan(2)
        assert harness.stored() == {"ckpt/fixed": text}


def test_s3_always_has_one_of_a_program_that_keeps_one(harness: SyncHarness) -> None:
    """It deletes each state after the next one; a job killed then must find one of them in S3."""
    folder = harness.folders[0]
    (folder / "0").write_text("state")
    harness.scan(2)
    assert harness.stored() == {"ckpt/0": "state"}
    for number in range(1, 4 * SCANS_BEFORE_CLOSED_UPLOAD):
        (folder / str(number)).write_text("state")
        (folder / str(number - 1)).unlink()
        if number % 2:
            time.sleep(_TICK)
        harness.scan()
        assert harness.stored()
    harness.scan(2)
    assert harness.stored() == {f"ckpt/{number}": "state"}, "and no more than it keeps"


def test_a_file_open_for_writing_is_stored_late_and_the_log_says_that_it_may_be_torn(
    harness: SyncHarness,
) -> None:
    with (harness.folders[0] / "log").open("w") as stream:
        stream.write("one")
        stream.flush()
        harness.scan(SCANS_BEFORE_TORN_UPLOAD)
        if sys.platform == "linux":
            assert harness.stored() == {}
            harness.scan()
            assert harness.stored() == {"ckpt/log": "one"}
            stream.write(" two")
            stream.flush()
            harness.scan(2 * SCANS_BEFORE_TORN_UPLOAD)
            assert harness.stored() == {"ckpt/log": "one two"}
            (note,) = harness.notes
            assert note.startswith("checkpoint log was open for writing")
            assert _MAY_BE_TORN in note
    harness.scan(2)
    assert harness.stored() == {"ckpt/log": (harness.folders[0] / "log").read_text()}


def test_what_was_stored_while_it_was_written_is_stored_again_at_the_end(harness: SyncHarness) -> None:
    """A second write to a mapped page does not change the time of modification."""
    path = harness.folders[0] / "weights"
    with path.open("wb") as stream:
        stream.write(b"old")
        stream.flush()
        harness.scan(SCANS_BEFORE_TORN_UPLOAD + 1)
        status = path.stat()
        stream.seek(0)
        stream.write(b"new")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    harness.sync.finish()
    assert harness.stored() == {"ckpt/weights": "new"}


def test_a_marker_is_not_stored_before_what_it_names(
    harness: SyncHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan may find a new marker after it has passed the file that the marker names."""
    folder = harness.folders[0]
    (folder / "busy").write_text("x")
    for number in range(SCANS_BEFORE_CLOSED_UPLOAD):
        replace_file(folder / "busy", str(number))
        harness.scan()
    patience = harness.sync._schedule_by_host["algo-1"]
    begin = patience.begin_scan

    def begin_and_commit() -> None:
        begin()
        time.sleep(_TICK)
        (folder / "COMMIT").write_text("part-1")

    monkeypatch.setattr(patience, "begin_scan", begin_and_commit)
    harness.scan()
    assert "ckpt/COMMIT" not in harness.stored()


def test_a_file_that_is_replaced_between_look_and_copy_waits(
    harness: SyncHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = harness.folders[0] / "last"
    last.write_text("first")
    harness.scan()
    ordered = harness.sync._upload_order.sort

    def order_and_replace(changes: Iterator[object]) -> object:
        result = ordered(changes)  # type: ignore[arg-type]
        replace_file(last, "other")
        return result

    monkeypatch.setattr(harness.sync._upload_order, "sort", order_and_replace)
    harness.scan()
    assert harness.stored() == {}


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux'")
def test_whether_a_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w"), path.open() as reader:
        assert is_closed_for_writing(reader.fileno()) is False
    with path.open() as reader:
        assert is_closed_for_writing(reader.fileno()) is True


@pytest.fixture
def harness(objects: ObjectStore, hosts: list[JobHost]) -> SyncHarness:
    return SyncHarness(objects, hosts[:1])
