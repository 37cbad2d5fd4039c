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

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs.channel_listing import InputDataError
from smlaunch.local.jobs.job_spec import S3Location
from smlaunch.local.jobs.s3_folder_sync import S3FolderSync
from smlaunch.local.stores.object_store import ObjectStore
from tests.local.jobs.conftest import tree


class SyncHarness:
    """A sync whose scans are called by the test."""

    def __init__(
        self,
        objects: ObjectStore,
        hosts: list[JobHost],
        path: str = "/opt/ml/checkpoints",
        **settings: Any,
    ) -> None:
        self.notes: list[str] = []
        self.objects = objects
        self.folders = [host.opt_ml_folder / path.removeprefix("/opt/ml/") for host in hosts]
        self.sync = S3FolderSync(
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
            self.sync._sync_once(hosts_have_ended=False)

    def stored(self) -> dict[str, str]:
        return {
            entry.key: self.objects.object_body_path("data", entry.key).read_text()
            for entry in self.objects.list_objects("data", "ckpt/")
        }


@pytest.fixture
def harness(objects: ObjectStore, hosts: list[JobHost]) -> SyncHarness:
    objects.put_object_bytes("data", "ckpt/step-1/part", b"one")
    objects.put_object_bytes("data", "ckpt-of-another/part", b"not mine")
    return SyncHarness(objects, hosts)


def test_every_host_begins_with_all_that_is_there(harness: SyncHarness) -> None:
    for folder in harness.folders:
        assert tree(folder) == {"step-1/part": "one"}
    harness.scan(3)
    assert harness.stored() == {"ckpt/step-1/part": "one"}


def test_creates_changes_and_deletes_follow(harness: SyncHarness) -> None:
    new = harness.folders[0] / "step-2" / "part"
    new.parent.mkdir()
    new.write_text("two")
    harness.scan()
    assert "ckpt/step-2/part" not in harness.stored()  # observed once only: it may still be growing
    harness.scan()
    assert harness.stored()["ckpt/step-2/part"] == "two"
    new.write_text("two again")
    harness.scan(2)
    assert harness.stored()["ckpt/step-2/part"] == "two again"
    (harness.folders[1] / "step-1" / "part").unlink()
    harness.scan()
    assert set(harness.stored()) == {"ckpt/step-2/part"}


def test_a_file_that_is_open_for_writing_waits(harness: SyncHarness) -> None:
    path = harness.folders[0] / "half"
    with path.open("w") as stream:
        stream.write("half")
        stream.flush()
        harness.scan(3)
        if sys.platform == "linux":
            assert "ckpt/half" not in harness.stored()
        stream.write(" and whole")
    harness.scan(2)
    assert harness.stored()["ckpt/half"] == "half and whole"


def test_the_last_sync_takes_everything_at_once(harness: SyncHarness) -> None:
    (harness.folders[0] / "last").write_text("words")
    harness.sync.start()
    harness.sync.finish()
    assert harness.stored()["ckpt/last"] == "words"


def test_a_commit_written_last_is_uploaded_last(
    harness: SyncHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded: list[str] = []
    put = harness.objects.put_object_files

    def record_upload(bucket: str, files: Sequence[tuple[str, Path]], move: bool = False) -> object:
        uploaded.extend(key for key, _ in files)
        return put(bucket, files, move)

    monkeypatch.setattr(harness.objects, "put_object_files", record_upload)
    for second, name in enumerate(["z-part", "m-part", "COMMIT"]):
        path = harness.folders[0] / name
        path.write_text(name)
        os.utime(path, ns=(second * 10**9, second * 10**9))
    harness.scan(2)
    assert uploaded == ["ckpt/z-part", "ckpt/m-part", "ckpt/COMMIT"]


def test_a_symbolic_link_is_told_once_and_left(harness: SyncHarness) -> None:
    (harness.folders[0] / "latest").symlink_to("step-1")
    harness.scan(3)
    assert set(harness.stored()) == {"ckpt/step-1/part"}
    assert len(harness.notes) == 1
    assert "latest" in harness.notes[0]


def test_a_directory_that_became_a_link_is_not_followed(harness: SyncHarness, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("of this machine")
    for folder in harness.folders:
        folder.rename(folder.with_name("away"))
        folder.symlink_to(tmp_path / "secret")
    harness.scan(3)
    harness.sync._sync_once(hosts_have_ended=True)
    assert harness.stored() == {"ckpt/step-1/part": "one"}
    assert sum("has become a symbolic link" in note for note in harness.notes) == 1


def test_what_cannot_be_looked_at_has_not_been_deleted(harness: SyncHarness) -> None:
    """Uploaded files stay in S3 when their directory becomes a link or unreadable."""
    harness.scan(2)
    for folder in harness.folders:
        (folder / "step-1").rename(folder / "moved")
        (folder / "step-1").symlink_to("moved")
    harness.scan(3)
    assert harness.stored()["ckpt/step-1/part"] == "one"
    for folder in harness.folders:
        (folder / "step-1").unlink()
        (folder / "moved").rename(folder / "step-1")
        (folder / "step-1").chmod(0)  # root can read it anyway
    harness.scan(2)
    harness.sync._sync_once(hosts_have_ended=True)
    assert harness.stored()["ckpt/step-1/part"] == "one"
    shutil.rmtree(harness.folders[0] / "step-1")
    harness.scan()
    assert "ckpt/step-1/part" not in harness.stored()


def test_a_name_that_is_no_key_is_told_once_and_keeps_nobody(harness: SyncHarness) -> None:
    odd = os.fsdecode(b"odd-\xff")
    folder = harness.folders[0]
    for name in (odd, "new\nline", "x" * 255):
        (folder / name).write_text("x")
    deep = folder / "/".join(["d" * 250] * 5)
    deep.mkdir(parents=True)
    (folder / "f\u00fc\u00df").write_text("x")
    for _ in range(3):
        harness.sync._sync_and_log_errors(hosts_have_ended=False)
    harness.sync.finish()
    assert set(harness.stored()) == {
        f"ckpt/{name}" for name in ("step-1/part", "new\nline", "x" * 255, "f\u00fc\u00df")
    }
    first, second, last = harness.notes
    file_notes = {first, second}
    assert (
        "checkpoint odd-\\xff cannot be uploaded: its name is not UTF-8, and S3 has no other keys"
        in file_notes
    )
    assert any("its key would have more than 1024 bytes" in note for note in file_notes)
    assert last == (
        "after the last sync at least 2 of the files in /opt/ml/checkpoints did not reach S3 and they are "
        "lost with this host; this log names each, or its directory"
    )
    assert {name for _, name in harness.sync.problem_by_file} == {odd, "/".join(["d" * 250] * 5)}


def test_a_sync_that_goes_wrong_is_not_the_last(harness: SyncHarness) -> None:
    (harness.folders[0] / "new").write_text("x")
    index = sqlite3.connect(harness.objects.root / "_store" / "index.sqlite")
    index.execute(
        "CREATE TRIGGER t BEFORE INSERT ON objects BEGIN SELECT RAISE(ABORT, 'the disk broke'); END"
    )
    index.commit()
    for _ in range(4):
        harness.sync._sync_and_log_errors(hosts_have_ended=False)
    assert harness.notes == ["checkpoint new could not be uploaded: the disk broke (every sync tries again)"]
    index.execute("DROP TRIGGER t")
    index.commit()
    index.close()
    harness.sync._sync_and_log_errors(hosts_have_ended=False)
    assert harness.stored()["ckpt/new"] == "x"
    assert harness.sync.problem_by_file == {}


def test_the_last_sync_leaves_every_file_where_it_is(harness: SyncHarness) -> None:
    """Files are not moved to the store: the hosts' trees are removed later anyway."""
    (harness.folders[0] / "last").write_text("words")
    index = sqlite3.connect(harness.objects.root / "_store" / "index.sqlite")
    index.execute(
        "CREATE TRIGGER t BEFORE INSERT ON objects BEGIN SELECT RAISE(ABORT, 'the disk broke'); END"
    )
    index.commit()
    harness.sync.finish()
    assert (harness.folders[0] / "last").read_text() == "words"
    assert sum("last could not be uploaded: the disk broke" in note for note in harness.notes) == 1
    index.execute("DROP TRIGGER t")
    index.commit()
    index.close()
    harness.sync.finish()
    assert harness.stored()["ckpt/last"] == "words"
    assert (harness.folders[0] / "last").read_text() == "words"


def test_a_delete_that_s3_refuses_is_tried_again(harness: SyncHarness) -> None:
    harness.scan()
    index = sqlite3.connect(harness.objects.root / "_store" / "index.sqlite")
    index.execute("CREATE TRIGGER t BEFORE DELETE ON objects BEGIN SELECT RAISE(ABORT, 'not now'); END")
    index.commit()
    for folder in harness.folders:
        (folder / "step-1" / "part").unlink()
    harness.scan(2)
    assert len(harness.notes) == 2
    assert "step-1/part could not be deleted in S3: not now" in harness.notes[0]
    index.execute("DROP TRIGGER t")
    index.commit()
    index.close()
    harness.scan()
    assert harness.stored() == {}


def test_keys_that_cannot_be_paths(objects: ObjectStore, hosts: list[JobHost]) -> None:
    """Keys that cannot be files stay in S3; a key that conflicts with another one fails the job by name."""
    for key in ("a//b", "../up", "./c", "nul-\0"):
        objects.put_object_bytes("data", f"ckpt/{key}", b"x")
    harness = SyncHarness(objects, hosts)
    assert [tree(folder) for folder in harness.folders] == [{}, {}]
    assert len(harness.notes) == 4
    harness.scan(3)
    assert len(harness.stored()) == 4
    objects.put_object_bytes("data", "ckpt/both", b"x")
    objects.put_object_bytes("data", "ckpt/both/of-them", b"x")
    with pytest.raises(
        InputDataError, match=r"ckpt/both/of-them .* cannot be written to /opt/ml/checkpoints"
    ):
        SyncHarness(objects, hosts)


def test_different_checkpoints_of_one_name_are_named(harness: SyncHarness) -> None:
    """Not those that are equal, that one host alone has changed, or that have a host's name."""
    for number, folder in enumerate(harness.folders):
        (folder / "state.json").write_text(f"{number}")
        (folder / "log").write_text("." * number)
        (folder / "equal").write_text("x")
        (folder / f"host-{number}").write_text(f"{number}")
    (harness.folders[0] / "step-1/part").write_text("two")
    harness.scan(2)
    harness.sync.finish()
    (warning,) = [note for note in harness.notes if note.startswith("warning: ")]
    assert "different checkpoints under the same names" in warning
    assert (
        "the next job finds that on every host: log, state.json. Give such names a rank or a host." in warning
    )
    harness.notes.clear()
    for folder in harness.folders:
        (folder / "state.json").write_text("the same")
        (folder / "log").unlink()
    harness.sync.finish()
    assert harness.notes == []


def test_another_local_path(objects: ObjectStore, hosts: list[JobHost]) -> None:
    harness = SyncHarness(objects, hosts, "/opt/ml/my/own/")
    (hosts[0].opt_ml_folder / "my/own/file").write_text("x")
    harness.scan(2)
    assert harness.stored() == {"ckpt/file": "x"}


def test_a_bucket_that_does_not_exist(objects: ObjectStore, hosts: list[JobHost]) -> None:
    sync = S3FolderSync(
        S3Location("absent", ""), "/opt/ml/checkpoints", hosts, objects, Settings(), lambda *_: None
    )
    with pytest.raises(InputDataError, match="absent"):
        sync.download(lambda: None)


@pytest.mark.skipif(sys.platform != "linux", reason="leases are Linux'")
def test_a_writer_that_breaks_our_lease_does_not_end_us(tmp_path: Path) -> None:
    """SIGIO, the default signal of a broken lease, kills; the program holds a lease when a writer opens."""
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
    result = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (0, "survived 0\n")


def write(path: Path, text: str, second: int) -> None:
    path.write_text(text)
    os.utime(path, ns=(second * 10**9, second * 10**9))


@pytest.mark.parametrize("order", ["oldest-first", "newest-first", "shuffled"])
@pytest.mark.parametrize("winner", [0, 1])
def test_the_last_writer_wins(objects: ObjectStore, hosts: list[JobHost], order: str, winner: int) -> None:
    harness = SyncHarness(objects, hosts, checkpoint_sync_order=order)
    for host in (0, 1):
        write(harness.folders[host] / "shared", f"of host {host}", 100 + (host == winner))
    harness.scan(3)
    assert harness.stored() == {"ckpt/shared": f"of host {winner}"}
    # The other host changes it again: its version is the latest now.
    write(harness.folders[1 - winner] / "shared", "again", 200)
    harness.scan(2)
    assert harness.stored() == {"ckpt/shared": "again"}


def test_a_name_that_one_host_deletes_and_another_writes_is_there(harness: SyncHarness) -> None:
    (harness.folders[0] / "step-1" / "part").unlink()
    write(harness.folders[1] / "step-1" / "part", "newer", 2**31)
    harness.sync.finish()
    assert harness.stored() == {"ckpt/step-1/part": "newer"}


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

    def record_upload(
        bucket: str, files: Sequence[tuple[str, Path]], move: bool = False
    ) -> dict[str, Exception]:
        uploaded.extend(key[-1] for key, _ in files)
        return {}

    monkeypatch.setattr(objects, "put_object_files", record_upload)
    orders = []
    for seed in (0, 0, 1):
        harness = SyncHarness(objects, hosts, checkpoint_sync_order=order, checkpoint_sync_seed=seed)
        for second, name in enumerate("abcd"):
            write(harness.folders[0] / name, name, 1000 + second)
        harness.scan(2)
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
    def stored_keys(seed: int) -> set[str]:
        harness = SyncHarness(objects, hosts[:1], checkpoint_sync_loss=0.5, checkpoint_sync_seed=seed)
        for number in range(40):
            write(harness.folders[0] / f"{number:02}", "first", 1000)
        harness.scan(2)
        keys = set(harness.stored())
        harness.sync.finish()
        assert set(harness.stored()) == keys, "the last sync brings nothing back"
        for number in range(40):
            write(harness.folders[0] / f"{number:02}", "second", 2000)
        harness.scan(2)
        assert "second" in harness.stored().values()
        assert "first" in harness.stored().values()
        for path in harness.folders[0].iterdir():
            path.unlink()
        harness.scan()
        assert 0 < len(harness.stored()) < 40, "deletes are changes too"
        for entry in list(objects.list_objects("data", "ckpt/")):
            objects.delete_object("data", entry.key)
        return keys

    first, repeated, other_seed = stored_keys(0), stored_keys(0), stored_keys(1)
    assert first == repeated != other_seed
    assert 8 < len(first) < 32


def test_the_last_sync_may_not_happen(objects: ObjectStore, hosts: list[JobHost]) -> None:
    harness = SyncHarness(objects, hosts, checkpoint_last_sync=False)
    (harness.folders[0] / "late").write_text("x")
    harness.sync.finish()
    assert harness.stored() == {}


def test_a_path_outside_the_contract_is_shown_to_the_host(objects: ObjectStore, hosts: list[JobHost]) -> None:
    sync = S3FolderSync(
        S3Location("data", "ckpt"), "/home/me/../me/ckpt/", hosts, objects, Settings(), lambda *note: None
    )
    objects.put_object_bytes("data", "ckpt/part", b"one")
    sync.download(lambda: None)
    for host in hosts:
        (view,) = sync.mounts_for_host(host)
        assert view.target == "/home/me/ckpt"
        assert view.shared
        assert not view.source.is_relative_to(host.opt_ml_folder)
        assert tree(view.source) == {"part": "one"}


def test_downloaded_files_are_as_old_as_their_objects(objects: ObjectStore, hosts: list[JobHost]) -> None:
    """A script may choose the newest checkpoint by its modification time."""
    names = ["z-first", "b", "a", "y", "m-last"]
    for name in names:
        objects.put_object_bytes("data", f"ckpt/{name}", b"x")
    for folder in SyncHarness(objects, hosts).folders:
        times = {path.name: path.stat().st_mtime for path in folder.iterdir()}
        assert len(set(times.values())) == len(names)
        assert sorted(times, key=times.__getitem__) == names


def test_what_no_sync_could_store_is_kept_and_the_next_job_stores_it(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path
) -> None:
    harness = SyncHarness(objects, hosts[:1])
    folder = harness.folders[0]
    (folder / "stored").write_text("x")
    harness.scan(2)
    (folder / "step-2").mkdir()
    (folder / "step-2" / "part").write_text("whole on the disk")
    index = sqlite3.connect(objects.root / "_store" / "index.sqlite")
    index.execute("CREATE TRIGGER t BEFORE INSERT ON objects BEGIN SELECT RAISE(ABORT, 'is full'); END")
    index.commit()
    harness.sync.finish()
    harness.sync.save_failed_uploads()
    unsaved_dir = harness.sync.failed_upload_folder_by_host["algo-1"]
    assert tree(unsaved_dir) == {"step-2/part": "whole on the disk"}
    assert any(str(unsaved_dir) in note for note in harness.notes)
    assert not (objects.root / "data" / "ckpt" / "step-2").exists(), "a body without a row is nobody's"

    def next_job(number: int) -> SyncHarness:
        return SyncHarness(objects, [replace(hosts[0], opt_ml_folder=tmp_path / f"again-{number}" / "ml")])

    assert any(str(unsaved_dir) in note for note in next_job(1).notes)
    index.execute("DROP TRIGGER t")
    index.commit()
    index.close()
    assert tree(next_job(2).folders[0]) == {"stored": "x", "step-2/part": "whole on the disk"}
    assert not unsaved_dir.exists()
