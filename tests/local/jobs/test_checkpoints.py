from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from smlaunch.local.executors.base import Place
from smlaunch.local.jobs.channels import DataError
from smlaunch.local.jobs.checkpoints import CheckpointSync
from smlaunch.local.jobs.spec import S3Location
from smlaunch.local.objects import ObjectStore
from tests.local.jobs.conftest import tree


class Bench:
    """A sync whose scans the test calls by hand."""

    def __init__(self, objects: ObjectStore, places: list[Place], path: str = "/opt/ml/checkpoints") -> None:
        self.notes: list[str] = []
        self.objects = objects
        self.folders = [place.tree / path.removeprefix("/opt/ml/") for place in places]
        self.sync = CheckpointSync(
            S3Location("data", "ckpt"),
            path,
            places,
            objects,
            60.0,
            lambda label, text: self.notes.append(text),
        )
        self.sync.download(lambda: None)

    def scan(self, times: int = 1) -> None:
        for _ in range(times):
            self.sync._scan(final=False)

    def stored(self) -> dict[str, str]:
        return {
            entry.key: self.objects.path("data", entry.key).read_text()
            for entry in self.objects.list("data", "ckpt/")
        }


@pytest.fixture
def bench(objects: ObjectStore, places: list[Place]) -> Bench:
    objects.put_bytes("data", "ckpt/step-1/part", b"one")
    objects.put_bytes("data", "ckpt-of-another/part", b"not mine")
    return Bench(objects, places)


def test_every_host_begins_with_all_that_is_there(bench: Bench) -> None:
    for folder in bench.folders:
        assert tree(folder) == {"step-1/part": "one"}
    bench.scan(3)
    assert bench.stored() == {"ckpt/step-1/part": "one"}


def test_creates_changes_and_deletes_follow(bench: Bench) -> None:
    new = bench.folders[0] / "step-2" / "part"
    new.parent.mkdir()
    new.write_text("two")
    bench.scan()
    assert "ckpt/step-2/part" not in bench.stored()  # seen once only: it may still be growing
    bench.scan()
    assert bench.stored()["ckpt/step-2/part"] == "two"
    new.write_text("two again")
    bench.scan(2)
    assert bench.stored()["ckpt/step-2/part"] == "two again"
    (bench.folders[1] / "step-1" / "part").unlink()
    bench.scan()
    assert set(bench.stored()) == {"ckpt/step-2/part"}


def test_a_file_that_is_open_for_writing_waits(bench: Bench) -> None:
    path = bench.folders[0] / "half"
    with path.open("w") as stream:
        stream.write("half")
        stream.flush()
        bench.scan(3)
        if sys.platform == "linux":
            assert "ckpt/half" not in bench.stored()
        stream.write(" and whole")
    bench.scan(2)
    assert bench.stored()["ckpt/half"] == "half and whole"


def test_the_last_sync_takes_everything_at_once(bench: Bench) -> None:
    (bench.folders[0] / "last").write_text("words")
    bench.sync.start()
    bench.sync.finish()
    assert bench.stored()["ckpt/last"] == "words"


def test_a_commit_written_last_is_uploaded_last(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: list[str] = []
    put = bench.objects.put_file

    def noting(bucket: str, key: str, source: Path, move: bool = False) -> object:
        uploaded.append(key)
        return put(bucket, key, source, move)

    monkeypatch.setattr(bench.objects, "put_file", noting)
    for second, name in enumerate(["z-part", "m-part", "COMMIT"]):
        path = bench.folders[0] / name
        path.write_text(name)
        os.utime(path, ns=(second * 10**9, second * 10**9))
    bench.scan(2)
    assert uploaded == ["ckpt/z-part", "ckpt/m-part", "ckpt/COMMIT"]


def test_a_symbolic_link_is_told_once_and_left(bench: Bench) -> None:
    (bench.folders[0] / "latest").symlink_to("step-1")
    bench.scan(3)
    assert set(bench.stored()) == {"ckpt/step-1/part"}
    assert len(bench.notes) == 1
    assert "latest" in bench.notes[0]


def test_another_local_path(objects: ObjectStore, places: list[Place]) -> None:
    bench = Bench(objects, places, "/opt/ml/my/own/")
    (places[0].tree / "my/own/file").write_text("x")
    bench.scan(2)
    assert bench.stored() == {"ckpt/file": "x"}


def test_a_bucket_that_does_not_exist(objects: ObjectStore, places: list[Place]) -> None:
    sync = CheckpointSync(
        S3Location("absent", ""), "/opt/ml/checkpoints", places, objects, 60.0, lambda *_: None
    )
    with pytest.raises(DataError, match="absent"):
        sync.download(lambda: None)


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux'")
def test_a_writer_that_breaks_our_lease_does_not_end_us(tmp_path: Path) -> None:
    """The default signal of a broken lease is SIGIO, which kills; here a writer comes while we hold one."""
    program = """
import fcntl, os, signal, subprocess, sys
path = sys.argv[1]
file = open(path, "rb")
fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
writer = subprocess.Popen([sys.executable, "-c", "import sys; open(sys.argv[1], 'w')", path])
try:
    writer.wait(1)
except subprocess.TimeoutExpired:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    print("survived", writer.wait())
"""
    path = tmp_path / "file"
    path.write_text("x")
    done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "survived 0\n")
