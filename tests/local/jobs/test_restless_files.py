"""Checkpoints that never come to rest reach S3 while the job runs, and a killed job goes on from them."""

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

from smlaunch.local.executors.base import JobHost
from smlaunch.local.jobs.leases import is_closed
from smlaunch.local.jobs.patience import UPLOAD_CLOSED_AFTER, UPLOAD_TORN_AFTER
from smlaunch.local.object_store import ObjectStore
from tests.local.jobs.test_checkpoints import Bench

_MAY_BE_TORN = f"had changed, at each of {UPLOAD_TORN_AFTER} syncs: what S3 has of it may be torn"
_TICK = 0.02
"""Longer than a tick of a file system's clock: what was written before is older than what comes after."""

RENAMED = """
def load():
    return int(open("last").read()) if os.path.exists("last") else 0
def save(step):
    with open("last.tmp", "w") as file: file.write(str(step))
    os.replace("last.tmp", "last")
"""

NUMBERED = """
def load():
    return max((int(name) for name in os.listdir(".") if name.isdigit()), default=0)
def save(step):
    with open("partial", "w") as file: file.write("x")
    os.rename("partial", str(step))
    if os.path.exists(str(step - 1)): os.remove(str(step - 1))
"""

DATABASE = """
import sqlite3
db = sqlite3.connect("study.db", isolation_level=None)
db.execute("PRAGMA journal_mode=WAL")
db.execute("CREATE TABLE IF NOT EXISTS steps (step INTEGER)")
def load():
    return db.execute("SELECT coalesce(max(step), 0) FROM steps").fetchone()[0]
def save(step):
    db.execute("INSERT INTO steps VALUES (?)", (step,))
"""

MAPPED = """
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
def training(save: str, folder: Path) -> Iterator[Callable[[], None]]:
    """A program that saves all the time; what it yields waits for one more step."""
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


def begins_at(save: str, folder: Path) -> int:
    program = "import os, sys, time\n" + save + _LOOP
    done = subprocess.run(
        [sys.executable, "-c", program, "look"], cwd=folder, capture_output=True, text=True, check=True
    )
    return int(done.stdout.removeprefix("begins at "))


@pytest.mark.parametrize(
    ("save", "looks"),
    [
        (RENAMED, 4 * UPLOAD_CLOSED_AFTER),
        (NUMBERED, 4 * UPLOAD_CLOSED_AFTER),
        (DATABASE, UPLOAD_TORN_AFTER + 1),
        (MAPPED, UPLOAD_TORN_AFTER + 1),
    ],
    ids=["renamed", "numbered", "database", "mapped"],
)
def test_what_never_rests_is_there_after_a_kill(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path, save: str, looks: int
) -> None:
    bench = Bench(objects, hosts[:1])
    with training(save, bench.folders[0]) as step:
        for _ in range(looks):
            step()
            bench.scan()
    again = JobHost("algo-1", "algo-1", "127.64.0.1", tmp_path / "again" / "ml", "/opt/ml")
    assert begins_at(save, Bench(objects, [again]).folders[0]) > 0


def replace(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)
    time.sleep(_TICK)


def test_a_file_that_is_replaced_before_each_look_is_stored_whole(bench_of_one: Bench) -> None:
    last = bench_of_one.folders[0] / "last"
    for number in range(UPLOAD_CLOSED_AFTER + 1):
        assert bench_of_one.stored() == {}
        replace(last, f"state {number}")
        bench_of_one.scan()
    if sys.platform == "linux":
        assert bench_of_one.stored() == {"ckpt/last": f"state {UPLOAD_CLOSED_AFTER}"}
    assert bench_of_one.notes == []


def test_a_rewrite_that_sets_its_own_time_and_keeps_the_size_is_stored(bench_of_one: Bench) -> None:
    path = bench_of_one.folders[0] / "fixed"
    for text in ("00000020", "00000040", "00000060"):
        with path.open("r+" if path.exists() else "w") as file:
            file.write(text)
        os.utime(path, (1_000_000_000, 1_000_000_000))
        time.sleep(_TICK)
        bench_of_one.scan(2)
        assert bench_of_one.stored() == {"ckpt/fixed": text}


def test_s3_always_has_one_of_a_program_that_keeps_one(bench_of_one: Bench) -> None:
    """It deletes the last one when the next one is whole: a job killed then would find neither in S3."""
    folder = bench_of_one.folders[0]
    (folder / "0").write_text("state")
    bench_of_one.scan(2)
    assert bench_of_one.stored() == {"ckpt/0": "state"}
    for number in range(1, 4 * UPLOAD_CLOSED_AFTER):
        (folder / str(number)).write_text("state")
        (folder / str(number - 1)).unlink()
        if number % 2:
            time.sleep(_TICK)
        bench_of_one.scan()
        assert bench_of_one.stored()
    bench_of_one.scan(2)
    assert bench_of_one.stored() == {f"ckpt/{number}": "state"}, "and no more than it keeps"


def test_a_file_open_for_writing_is_stored_late_and_the_log_says_that_it_may_be_torn(
    bench_of_one: Bench,
) -> None:
    with (bench_of_one.folders[0] / "log").open("w") as stream:
        stream.write("one")
        stream.flush()
        bench_of_one.scan(UPLOAD_TORN_AFTER)
        if sys.platform == "linux":
            assert bench_of_one.stored() == {}
            bench_of_one.scan()
            assert bench_of_one.stored() == {"ckpt/log": "one"}
            stream.write(" two")
            stream.flush()
            bench_of_one.scan(2 * UPLOAD_TORN_AFTER)
            assert bench_of_one.stored() == {"ckpt/log": "one two"}
            (note,) = bench_of_one.notes
            assert note.startswith("checkpoint log was open for writing")
            assert _MAY_BE_TORN in note
    bench_of_one.scan(2)
    assert bench_of_one.stored() == {"ckpt/log": (bench_of_one.folders[0] / "log").read_text()}


def test_what_was_stored_while_it_was_written_is_stored_again_at_the_end(bench_of_one: Bench) -> None:
    """A write through a mapping changes a page again without a new time of modification."""
    path = bench_of_one.folders[0] / "weights"
    with path.open("wb") as stream:
        stream.write(b"old")
        stream.flush()
        bench_of_one.scan(UPLOAD_TORN_AFTER + 1)
        kept = path.stat()
        stream.seek(0)
        stream.write(b"new")
    os.utime(path, ns=(kept.st_atime_ns, kept.st_mtime_ns))
    bench_of_one.sync.finish()
    assert bench_of_one.stored() == {"ckpt/weights": "new"}


def test_a_marker_is_not_stored_before_what_it_names(
    bench_of_one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look may find a new name that was made after it had passed the file that the name stands for."""
    folder = bench_of_one.folders[0]
    (folder / "busy").write_text("x")
    for number in range(UPLOAD_CLOSED_AFTER):
        replace(folder / "busy", str(number))
        bench_of_one.scan()
    patience = bench_of_one.sync._schedules["algo-1"]
    begin = patience.begin_scan

    def made_meanwhile() -> None:
        begin()
        time.sleep(_TICK)
        (folder / "COMMIT").write_text("part-1")

    monkeypatch.setattr(patience, "begin_scan", made_meanwhile)
    bench_of_one.scan()
    assert "ckpt/COMMIT" not in bench_of_one.stored()


def test_a_file_that_is_replaced_between_look_and_copy_waits(
    bench_of_one: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = bench_of_one.folders[0] / "last"
    last.write_text("first")
    bench_of_one.scan()
    ready = bench_of_one.sync._sort_changes

    def replacing(changes: Iterator[object]) -> object:
        found = ready(changes)  # type: ignore[arg-type]
        replace(last, "other")
        return found

    monkeypatch.setattr(bench_of_one.sync, "_sort_changes", replacing)
    bench_of_one.scan()
    assert bench_of_one.stored() == {}


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux'")
def test_whether_a_file_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with path.open("w"), path.open() as reader:
        assert is_closed(reader.fileno()) is False
    with path.open() as reader:
        assert is_closed(reader.fileno()) is True


@pytest.fixture
def bench_of_one(objects: ObjectStore, hosts: list[JobHost]) -> Bench:
    return Bench(objects, hosts[:1])
