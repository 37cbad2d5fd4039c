"""One rank's operations on the directory: what is durable, what is committed, what is deleted, and a full
disk."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from smlaunch.contract.checkpoint_layout import Manifest, step_directory
from smlaunch.contract.segment_outcome import CONTINUE, SegmentOutcome
from smlaunch.train.checkpoint_retention import RetentionPolicy
from smlaunch.train.checkpoint_store import CheckpointStore, DamagedFileError, DiskFullError
from smlaunch.train.tree_format import Buffer, encode_tree


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Ranks:
    """All ranks of one host, on one directory."""

    def __init__(self, folder: Path, world_size: int = 2, **settings: object) -> None:
        self.folder = folder / "checkpoints"
        self.clock = Clock()
        self.stores = [
            CheckpointStore(str(self.folder), rank, world_size, clock=self.clock, **settings)  # type: ignore[arg-type]
            for rank in range(world_size)
        ]
        self.leader = self.stores[0]

    def write(self, step: int, word: str = "") -> list[object]:
        return [store.write_shard(step, content(step, store.rank, word)) for store in self.stores]

    def save(self, step: int, word: str = "") -> Manifest:
        manifest = self.leader.commit(step, self.write(step, word), total_samples=10 * step)  # type: ignore[arg-type]
        for store in self.stores[1:]:
            store.mark_committed(step)
        return manifest

    def retain(self, *protected: int) -> None:
        for store in self.stores:
            store.delete_old_steps(protected)

    def steps(self) -> list[int]:
        return [manifest.step for manifest in self.leader.committed_manifests()]

    def files(self) -> set[str]:
        return {str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()}

    def part(self, step: int, rank: int) -> Path:
        (path,) = self.folder.glob(f"{step_directory(step)}/rank-{rank:05d}-*")
        return path


def content(step: int, rank: int, word: str = "") -> Iterator[bytes | memoryview]:
    return encode_tree(
        {"step": step, "rank": rank, "data": Buffer("any", (3,), b"abc"), "word": word}
    ).chunks()


def test_what_was_committed_is_read_back_newest_first(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, job="chain-s1-a1")
    for step in (5, 120, 9):
        ranks.save(step)
    assert ranks.steps() == [120, 9, 5]
    newest = ranks.leader.newest_intact_manifest()
    assert newest is not None
    assert (newest.step, newest.samples, newest.job, newest.world_size) == (120, 1200, "chain-s1-a1", 2)
    for store in ranks.stores:
        for rank in range(2):
            tree = store.open_shard(newest, rank).read_tree()
            assert (tree["step"], tree["rank"], bytes(tree["data"].data)) == (120, rank, b"abc")
        assert store.open_shard(9).read_tree()["rank"] == store.rank
    with pytest.raises(LookupError, match="no part of rank 2"):
        ranks.leader.open_shard(120, 2)
    with pytest.raises(LookupError, match="step 7 is not committed"):
        ranks.leader.open_shard(7)


def test_nothing_counts_before_the_commit(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    parts = ranks.write(1)
    assert ranks.steps() == [] and ranks.leader.newest_intact_manifest() is None
    with pytest.raises(ValueError, match="only rank 0 commits"):
        ranks.stores[1].commit(1, parts)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"only ranks \[0\] of 2 have shards"):
        ranks.leader.commit(1, parts[:1])  # type: ignore[arg-type]
    assert ranks.steps() == []


def test_a_torn_part_is_named_and_the_step_before_is_taken(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    for step in (1, 2, 3):
        ranks.save(step)
    part_bytes = ranks.part(3, 1).read_bytes()
    ranks.part(3, 1).write_bytes(part_bytes[:-1])
    ranks.part(2, 0).write_bytes(b"x" + ranks.part(2, 0).read_bytes()[1:])
    assert ranks.steps() == [2, 1], "a size tells at once, a content only when it is read"
    newest = ranks.leader.newest_intact_manifest()
    assert newest is not None and newest.step == 1
    assert ranks.leader.newest_intact_manifest(ranks=[1]) == ranks.leader.committed_manifests()[0]
    assert ranks.leader.newest_intact_manifest(max_step=0) is None
    with pytest.raises(
        DamagedFileError, match=r"rank-00000-.*: its content does not match the manifest"
    ) as caught:
        ranks.leader.open_shard(2)
    assert caught.value.path == str(ranks.part(2, 0))
    manifest = ranks.leader.committed_manifests()[0]
    ranks.part(2, 1).unlink()
    with pytest.raises(DamagedFileError, match="it is missing"):
        ranks.leader.verify(manifest, [1])


def test_the_same_content_is_not_written_again(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.save(1)
    status_before = ranks.part(1, 0).stat()
    second_ranks = Ranks(tmp_path)
    second_ranks.save(1)
    status_after = ranks.part(1, 0).stat()
    assert (status_before.st_ino, status_before.st_mtime_ns) == (
        status_after.st_ino,
        status_after.st_mtime_ns,
    )
    ranks.part(1, 0).write_bytes(b"x" * status_before.st_size)
    second_ranks.save(1)
    assert second_ranks.leader.open_shard(1).read_tree()["step"] == 1, (
        "a torn file of the same name and size is replaced"
    )


def test_a_step_saved_again_counts_with_its_last_content(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.save(1, "before the kill")
    ranks.save(1, "after the restart")
    assert ranks.leader.open_shard(1, 1).read_tree()["word"] == "after the restart"
    assert len(list((ranks.folder / step_directory(1)).glob("rank-*"))) == 4, (
        "older parts lie beside the newer"
    )


def test_nothing_half_written_lies_in_the_directory(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)

    def failing_chunks() -> Iterator[bytes]:
        yield b"a" * 100
        assert ranks.files() == set()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ranks.leader.write_shard(1, failing_chunks())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.root
def test_a_directory_that_is_a_mount_of_its_own(tmp_path: Path) -> None:
    """No file can be renamed into a mount from outside, even from the same device."""
    script = f"""
import os, subprocess, sys
from smlaunch.train.checkpoint_store import CheckpointStore
from smlaunch.train.tree_format import encode_tree
folder = {str(tmp_path)!r}
os.makedirs(folder + "/there/smlaunch"), os.makedirs(folder + "/checkpoints")
subprocess.run(["mount", "--bind", folder + "/there", folder + "/checkpoints"], check=True)
for rank in (0, 3):
    open(folder + "/checkpoints/smlaunch/.shard-%05d" % rank, "w").write("of a killed process, synced")
store = CheckpointStore(folder + "/checkpoints", 0, 1)
store.commit(1, [store.write_shard(1, encode_tree(1).chunks())])
print([manifest.step for manifest in store.committed_manifests()], sorted(os.listdir(folder + "/there")))
"""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[1] ['smlaunch']"


def test_a_kill_at_any_moment_leaves_every_commit_whole(tmp_path: Path) -> None:
    """A process that saves without a pause is killed; whatever is committed then can be loaded."""
    script = f"""
import sys
from smlaunch.train.checkpoint_store import CheckpointStore
from smlaunch.train.tree_format import Buffer, encode_tree
store = CheckpointStore({str(tmp_path / "checkpoints")!r}, 0, 1)
for step in range(1, 1 << 30):
    data = Buffer("any", (50000,), step.to_bytes(4, "big") * 12500)
    store.commit(step, [store.write_shard(step, encode_tree({{"step": step, "data": data}}).chunks())])
    print(step, flush=True)
"""
    for kill in range(3):
        process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        last = [process.stdout.readline() for _ in range(7 + kill)][-1]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        store = CheckpointStore(str(tmp_path / "checkpoints"), 0, 1)
        newest = store.newest_intact_manifest()
        assert newest is not None and newest.step >= int(last)
        assert store.open_shard(newest).read_tree()["step"] == newest.step
        for manifest in store.committed_manifests():
            store.verify(manifest)


def test_outcome(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    assert ranks.leader.read_outcome() is None
    ranks.leader.write_outcome(CONTINUE, 12)
    assert ranks.stores[1].read_outcome() == SegmentOutcome(CONTINUE, 12)


# ---- retention --------------------------------------------------------------------------------------------


def test_the_newest_stay_and_the_directory_does_not_grow(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, keep_last=3)
    for step in range(1, 30):
        ranks.clock.now += 60
        ranks.save(step)
        ranks.retain()
        assert len(ranks.steps()) <= 3 + 5, "300 s to settle are five steps"
    assert ranks.steps() == list(range(29, 21, -1))
    ranks.clock.now += 300
    ranks.retain(23)
    assert ranks.steps() == [29, 28, 27, 23]
    assert {str(path.relative_to(ranks.folder)) for path in ranks.folder.glob("smlaunch/*")} == {
        step_directory(step) for step in (29, 28, 27, 23)
    }


def test_each_rank_deletes_its_own_and_the_leader_what_makes_it_count(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, keep_last=1)
    ranks.save(1)
    ranks.save(2)
    ranks.clock.now += 1000
    remaining = {path for path in ranks.files() if path.startswith(step_directory(1))}
    ranks.stores[1].delete_old_steps()
    assert {Path(path).name[:10] for path in remaining - ranks.files()} == {"rank-00001"}
    assert ranks.steps() == [2]
    ranks.leader.delete_old_steps()
    assert not (ranks.folder / step_directory(1)).exists()


def test_steps_of_another_job_are_not_touched(tmp_path: Path) -> None:
    earlier = Ranks(tmp_path, job="run-s1-a1")
    for step in range(1, 6):
        earlier.save(step)
    later_ranks = Ranks(tmp_path, keep_last=1, job="run-s2-a1")
    for step in (6, 7):
        later_ranks.save(step)
    later_ranks.clock.now += 1000
    later_ranks.retain()
    assert later_ranks.steps() == [7, 5, 4, 3, 2, 1]


def test_a_job_that_was_restarted_goes_on_deleting_its_own(tmp_path: Path) -> None:
    first_ranks = Ranks(tmp_path, job="run-s1-a1")
    for step in (1, 2, 3):
        first_ranks.save(step)
    restarted_ranks = Ranks(tmp_path, keep_last=2, job="run-s1-a1")
    for store in restarted_ranks.stores:
        store.newest_intact_manifest()
    restarted_ranks.retain()
    assert restarted_ranks.steps() == [3, 2, 1], "what was found has to settle too"
    restarted_ranks.save(4)
    restarted_ranks.clock.now += 1000
    restarted_ranks.retain()
    assert restarted_ranks.steps() == [4, 3]


def test_an_uncommitted_step_goes_with_the_older_ones(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path, keep_last=1)
    ranks.write(1)
    ranks.save(2)
    ranks.save(3)
    ranks.clock.now += 1000
    ranks.retain()
    assert [path.name for path in ranks.folder.glob("smlaunch/*")] == [step_directory(3).split("/")[1]]


def test_commits_that_failed_take_nobodys_place() -> None:
    """Three saves of which the leader's commit failed must not push out the last good one."""
    policy = RetentionPolicy(2, 0.0, Clock())
    for step in (1, 2):
        policy.add_written_step(step)
        policy.add_committed_step(step)
    for step in (3, 4, 5):
        policy.add_written_step(step)
    assert policy.steps_to_delete() == []


def test_steps_beyond_the_one_that_was_loaded_take_nobodys_place() -> None:
    policy = RetentionPolicy(2, 0.0, Clock())
    policy.add_found_steps([80, 90, 100])
    policy.add_written_step(85)
    policy.add_committed_step(85)
    assert policy.steps_to_delete() == []
    policy.add_committed_step(86)
    assert policy.steps_to_delete() == [80]


# ---- a disk that is full ----------------------------------------------------------------------------------


def test_a_part_that_will_not_fit_is_not_begun(tmp_path: Path) -> None:
    ranks = Ranks(tmp_path)
    ranks.save(1)
    with pytest.raises(DiskFullError, match=r"needs 1,\d+,\d+,\d+,\d+,\d+ bytes here and [\d,]+ are free"):
        ranks.leader.write_shard(2, iter([b"a"]), size_bytes=1 << 50)
    assert ranks.steps() == [1] and not (ranks.folder / step_directory(2)).exists()


def test_room_is_made_by_what_may_go_by_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(tmp_path, world_size=1, keep_last=1)
    for step in (1, 2, 3):
        ranks.save(step)
    ranks.retain()
    assert ranks.steps() == [3, 2, 1], "none of them has settled"
    ranks.clock.now += 1000
    monkeypatch.setattr(
        "smlaunch.train.durable_files.free_bytes",
        lambda directory: 4_000_000 - 1_000_000 * len(ranks.steps()),
    )
    ranks.leader.write_shard(4, [b"a" * 1_500_000], size_bytes=1_500_000)
    assert ranks.steps() == [3]


@pytest.mark.root
def test_a_disk_that_fills_up_while_writing(tmp_path: Path) -> None:
    """On 4 MiB the save fails with a message, nothing half-written stays, and the next save works."""
    script = f"""
import os, subprocess, sys
from smlaunch.train.checkpoint_store import CheckpointStore, DiskFullError
folder = {str(tmp_path)!r}
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", folder], check=True)
store = CheckpointStore(folder + "/checkpoints", 0, 1)
store.commit(1, [store.write_shard(1, [b"a" * 1000])])
try:
    store.write_shard(2, iter([b"a" * (1 << 20)] * 8))
except DiskFullError as error:
    print("told", error.free_bytes > 0)
print([name for top, _, names in os.walk(folder) for name in names if "manifest" not in name])
store.commit(3, [store.write_shard(3, [b"a" * (1 << 20)])])
print([manifest.step for manifest in store.committed_manifests()])
"""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script]
    result = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr
    error_line, remaining_files, steps = result.stdout.splitlines()
    assert (error_line, steps) == ("told True", "[3, 1]")
    assert (
        "shard-" not in remaining_files
        and remaining_files.count("rank-") == 1
        and remaining_files.count("COMMIT") == 1
    )
