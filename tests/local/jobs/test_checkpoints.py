from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smlaunch.local.executors.base import JobHost
from smlaunch.local.jobs.checkpoints import CheckpointSync
from smlaunch.local.jobs.listing import DataError
from smlaunch.local.jobs.spec import S3Location
from smlaunch.local.object_store import ObjectStore
from smlaunch.local.settings import Settings
from tests.local.jobs.conftest import tree


class Bench:
    """A sync whose scans the test calls by hand."""

    def __init__(
        self,
        objects: ObjectStore,
        hosts: list[JobHost],
        path: str = "/opt/ml/checkpoints",
        **settings: Any,
    ) -> None:
        self.notes: list[str] = []
        self.objects = objects
        self.folders = [host.tree / path.removeprefix("/opt/ml/") for host in hosts]
        self.sync = CheckpointSync(
            S3Location("data", "ckpt"),
            path,
            hosts,
            objects,
            Settings(checkpoint_sync_seconds=60.0, **settings),
            lambda label, text: self.notes.append(text),
        )
        self.sync.download(lambda: None)

    def scan(self, times: int = 1) -> None:
        for _ in range(times):
            self.sync._sync(hosts_have_ended=False)

    def stored(self) -> dict[str, str]:
        return {
            entry.key: self.objects.body_path("data", entry.key).read_text()
            for entry in self.objects.list_objects("data", "ckpt/")
        }


@pytest.fixture
def bench(objects: ObjectStore, hosts: list[JobHost]) -> Bench:
    objects.put_bytes("data", "ckpt/step-1/part", b"one")
    objects.put_bytes("data", "ckpt-of-another/part", b"not mine")
    return Bench(objects, hosts)


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
    put = bench.objects.put_files

    def noting(bucket: str, files: Sequence[tuple[str, Path]], move: bool = False) -> object:
        uploaded.extend(key for key, _ in files)
        return put(bucket, files, move)

    monkeypatch.setattr(bench.objects, "put_files", noting)
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


def test_a_directory_that_became_a_link_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("of this machine")
    for folder in bench.folders:
        folder.rename(folder.with_name("away"))
        folder.symlink_to(tmp_path / "secret")
    bench.scan(3)
    bench.sync._sync(hosts_have_ended=True)
    assert bench.stored() == {"ckpt/step-1/part": "one"}
    assert sum("has become a symbolic link" in note for note in bench.notes) == 1


def test_what_cannot_be_looked_at_has_not_been_deleted(bench: Bench) -> None:
    """A directory behind a link, or shut, is no reason to delete in S3 what has been uploaded from it."""
    bench.scan(2)
    for folder in bench.folders:
        (folder / "step-1").rename(folder / "moved")
        (folder / "step-1").symlink_to("moved")
    bench.scan(3)
    assert bench.stored()["ckpt/step-1/part"] == "one"
    for folder in bench.folders:
        (folder / "step-1").unlink()
        (folder / "moved").rename(folder / "step-1")
        (folder / "step-1").chmod(0)  # root can look at it all the same
    bench.scan(2)
    bench.sync._sync(hosts_have_ended=True)
    assert bench.stored()["ckpt/step-1/part"] == "one"
    shutil.rmtree(bench.folders[0] / "step-1")
    bench.scan()
    assert "ckpt/step-1/part" not in bench.stored()


def test_a_name_that_is_no_key_is_told_once_and_keeps_nobody(bench: Bench) -> None:
    odd = os.fsdecode(b"odd-\xff")
    folder = bench.folders[0]
    for name in (odd, "new\nline", "x" * 255):
        (folder / name).write_text("x")
    deep = folder / "/".join(["d" * 250] * 5)
    deep.mkdir(parents=True)
    (folder / "f\u00fc\u00df").write_text("x")
    for _ in range(3):
        bench.sync._sync_or_log(hosts_have_ended=False)
    bench.sync.finish()
    assert set(bench.stored()) == {
        f"ckpt/{name}" for name in ("step-1/part", "new\nline", "x" * 255, "f\u00fc\u00df")
    }
    first, second, last = bench.notes
    told = {first, second}
    assert "checkpoint odd-\\xff cannot be uploaded: its name is not UTF-8, and S3 has no other keys" in told
    assert any("its key would have more than 1024 bytes" in note for note in told)
    assert last == (
        "after the last sync at least 2 of the files in /opt/ml/checkpoints did not reach S3 and they are "
        "lost with this host; this log names each, or its directory"
    )
    assert {name for _, name in bench.sync.problems} == {odd, "/".join(["d" * 250] * 5)}


def test_a_sync_that_goes_wrong_is_not_the_last(bench: Bench) -> None:
    (bench.folders[0] / "new").write_text("x")
    index = sqlite3.connect(bench.objects.root / "_store" / "index.sqlite")
    index.execute(
        "CREATE TRIGGER t BEFORE INSERT ON objects BEGIN SELECT RAISE(ABORT, 'the disk broke'); END"
    )
    index.commit()
    for _ in range(4):
        bench.sync._sync_or_log(hosts_have_ended=False)
    assert bench.notes == ["checkpoint new could not be uploaded: the disk broke (every sync tries again)"]
    index.execute("DROP TRIGGER t")
    index.commit()
    index.close()
    bench.sync._sync_or_log(hosts_have_ended=False)
    assert bench.stored()["ckpt/new"] == "x"
    assert bench.sync.problems == {}


def test_the_last_sync_leaves_every_file_where_it_is(bench: Bench) -> None:
    """Nothing is taken away before it is stored; nor after that, since the hosts' trees go anyway."""
    (bench.folders[0] / "last").write_text("words")
    index = sqlite3.connect(bench.objects.root / "_store" / "index.sqlite")
    index.execute(
        "CREATE TRIGGER t BEFORE INSERT ON objects BEGIN SELECT RAISE(ABORT, 'the disk broke'); END"
    )
    index.commit()
    bench.sync.finish()
    assert (bench.folders[0] / "last").read_text() == "words"
    assert sum("last could not be uploaded: the disk broke" in note for note in bench.notes) == 1
    index.execute("DROP TRIGGER t")
    index.commit()
    index.close()
    bench.sync.finish()
    assert bench.stored()["ckpt/last"] == "words"
    assert (bench.folders[0] / "last").read_text() == "words"


def test_a_delete_that_s3_refuses_is_tried_again(bench: Bench) -> None:
    bench.scan()
    index = sqlite3.connect(bench.objects.root / "_store" / "index.sqlite")
    index.execute("CREATE TRIGGER t BEFORE DELETE ON objects BEGIN SELECT RAISE(ABORT, 'not now'); END")
    index.commit()
    for folder in bench.folders:
        (folder / "step-1" / "part").unlink()
    bench.scan(2)
    assert len(bench.notes) == 2
    assert "step-1/part could not be deleted in S3: not now" in bench.notes[0]
    index.execute("DROP TRIGGER t")
    index.commit()
    index.close()
    bench.scan()
    assert bench.stored() == {}


def test_keys_that_cannot_be_paths(objects: ObjectStore, hosts: list[JobHost]) -> None:
    """What is not here has not been deleted here; and what cannot be here at all fails the job by name."""
    for key in ("a//b", "../up", "./c", "nul-\0"):
        objects.put_bytes("data", f"ckpt/{key}", b"x")
    bench = Bench(objects, hosts)
    assert [tree(folder) for folder in bench.folders] == [{}, {}]
    assert len(bench.notes) == 4
    bench.scan(3)
    assert len(bench.stored()) == 4
    objects.put_bytes("data", "ckpt/both", b"x")
    objects.put_bytes("data", "ckpt/both/of-them", b"x")
    with pytest.raises(DataError, match=r"ckpt/both/of-them .* cannot be written to /opt/ml/checkpoints"):
        Bench(objects, hosts)


def test_another_local_path(objects: ObjectStore, hosts: list[JobHost]) -> None:
    bench = Bench(objects, hosts, "/opt/ml/my/own/")
    (hosts[0].tree / "my/own/file").write_text("x")
    bench.scan(2)
    assert bench.stored() == {"ckpt/file": "x"}


def test_a_bucket_that_does_not_exist(objects: ObjectStore, hosts: list[JobHost]) -> None:
    sync = CheckpointSync(
        S3Location("absent", ""), "/opt/ml/checkpoints", hosts, objects, Settings(), lambda *_: None
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


def write(path: Path, text: str, second: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(second * 10**9, second * 10**9))


@pytest.mark.parametrize("order", ["oldest-first", "newest-first", "shuffled"])
@pytest.mark.parametrize("winner", [0, 1])
def test_the_last_writer_wins(objects: ObjectStore, hosts: list[JobHost], order: str, winner: int) -> None:
    bench = Bench(objects, hosts, checkpoint_sync_order=order)
    for host in (0, 1):
        write(bench.folders[host] / "shared", f"of host {host}", 100 + (host == winner))
    bench.scan(3)
    assert bench.stored() == {"ckpt/shared": f"of host {winner}"}
    # The other one changes it again: it is the last one now.
    write(bench.folders[1 - winner] / "shared", "again", 200)
    bench.scan(2)
    assert bench.stored() == {"ckpt/shared": "again"}


def test_a_name_that_one_host_deletes_and_another_writes_is_there(bench: Bench) -> None:
    (bench.folders[0] / "step-1" / "part").unlink()
    write(bench.folders[1] / "step-1" / "part", "newer", 2**31)
    bench.sync.finish()
    assert bench.stored() == {"ckpt/step-1/part": "newer"}


@pytest.mark.parametrize(
    ("order", "expected"),
    [("oldest-first", ["a", "b", "c", "d"]), ("newest-first", ["d", "c", "b", "a"]), ("shuffled", None)],
)
def test_the_order_of_uploads_is_a_setting(
    objects: ObjectStore,
    hosts: list[JobHost],
    monkeypatch: pytest.MonkeyPatch,
    order: str,
    expected: list[str] | None,
) -> None:
    uploaded: list[str] = []

    def noting(bucket: str, files: Sequence[tuple[str, Path]], move: bool = False) -> dict[str, Exception]:
        uploaded.extend(key[-1] for key, _ in files)
        return {}

    monkeypatch.setattr(objects, "put_files", noting)
    orders = []
    for seed in (0, 0, 1):
        bench = Bench(objects, hosts, checkpoint_sync_order=order, checkpoint_sync_seed=seed)
        for second, name in enumerate("abcd"):
            write(bench.folders[0] / name, name, 1000 + second)
        bench.scan(2)
        orders.append(uploaded[:])
        uploaded.clear()
    assert orders[0] == orders[1]
    if expected is None:
        assert orders[0] != orders[2]
    else:
        assert orders[0] == orders[2] == expected


def test_lost_changes_are_lost_until_the_file_changes_again(
    objects: ObjectStore, hosts: list[JobHost]
) -> None:
    def kept(seed: int) -> set[str]:
        bench = Bench(objects, hosts[:1], checkpoint_sync_loss=0.5, checkpoint_sync_seed=seed)
        for number in range(40):
            write(bench.folders[0] / f"{number:02}", "first", 1000)
        bench.scan(2)
        found = set(bench.stored())
        bench.sync.finish()
        assert set(bench.stored()) == found, "the last sync brings nothing back"
        for number in range(40):
            write(bench.folders[0] / f"{number:02}", "second", 2000)
        bench.scan(2)
        assert "second" in bench.stored().values()
        assert "first" in bench.stored().values()
        for path in bench.folders[0].iterdir():
            path.unlink()
        bench.scan()
        assert 0 < len(bench.stored()) < 40, "deletes are changes too"
        for entry in list(objects.list_objects("data", "ckpt/")):
            objects.delete_object("data", entry.key)
        return found

    first, again, other = kept(0), kept(0), kept(1)
    assert first == again != other
    assert 8 < len(first) < 32


def test_the_last_sync_may_not_happen(objects: ObjectStore, hosts: list[JobHost]) -> None:
    bench = Bench(objects, hosts, checkpoint_last_sync=False)
    (bench.folders[0] / "late").write_text("x")
    bench.sync.finish()
    assert bench.stored() == {}


def test_a_path_outside_the_contract_is_shown_to_the_host(objects: ObjectStore, hosts: list[JobHost]) -> None:
    sync = CheckpointSync(
        S3Location("data", "ckpt"), "/home/me/../me/ckpt/", hosts, objects, Settings(), lambda *note: None
    )
    objects.put_bytes("data", "ckpt/part", b"one")
    sync.download(lambda: None)
    for host in hosts:
        (view,) = sync.mounts(host)
        assert view.target == "/home/me/ckpt"
        assert view.shared
        assert not view.source.is_relative_to(host.tree)
        assert tree(view.source) == {"part": "one"}


def test_downloaded_files_are_as_old_as_their_objects(objects: ObjectStore, hosts: list[JobHost]) -> None:
    """A script may take the newest checkpoint by its time."""
    names = ["z-first", "b", "a", "y", "m-last"]
    for name in names:
        objects.put_bytes("data", f"ckpt/{name}", b"x")
    for folder in Bench(objects, hosts).folders:
        times = {path.name: path.stat().st_mtime for path in folder.iterdir()}
        assert len(set(times.values())) == len(names)
        assert sorted(times, key=times.__getitem__) == names


def test_what_no_sync_could_store_is_kept_and_the_next_job_stores_it(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path
) -> None:
    bench = Bench(objects, hosts[:1])
    folder = bench.folders[0]
    (folder / "stored").write_text("x")
    bench.scan(2)
    (folder / "step-2").mkdir()
    (folder / "step-2" / "part").write_text("whole on the disk")
    index = sqlite3.connect(objects.root / "_store" / "index.sqlite")
    index.execute("CREATE TRIGGER t BEFORE INSERT ON objects BEGIN SELECT RAISE(ABORT, 'is full'); END")
    index.commit()
    bench.sync.finish()
    bench.sync.save_unsaved_files()
    kept = bench.sync.unsaved_files["algo-1"]
    assert tree(kept) == {"step-2/part": "whole on the disk"}
    assert any(str(kept) in note for note in bench.notes)
    assert not (objects.root / "data" / "ckpt" / "step-2").exists(), "a body without a row is nobody's"

    def again(number: int) -> Bench:
        return Bench(objects, [replace(hosts[0], tree=tmp_path / f"again-{number}" / "ml")])

    assert any(str(kept) in note for note in again(1).notes)
    index.execute("DROP TRIGGER t")
    index.commit()
    index.close()
    assert tree(again(2).folders[0]) == {"stored": "x", "step-2/part": "whole on the disk"}
    assert not kept.exists()
