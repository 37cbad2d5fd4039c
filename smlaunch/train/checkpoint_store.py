"""One rank's access to the checkpoint directory: write shards, commit, load, delete.

The directory's layout is ``contract.checkpoint``'s. It never has an incomplete file under a shard's name: a
file is written beside the directory, forced to the disk, and renamed into it. So a sync at any moment neither
uploads a file that is still growing nor mistakes it for a shard.

The store does not communicate with other ranks. The callers agree which step all ranks have written, and then
tell the leader to ``commit`` and every rank to ``mark_committed``.
"""

import contextlib
import errno
import hashlib
import os
import re
import time
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    List,
    Optional,
    Sequence,
    Union,
)

from smlaunch.contract import checkpoint as layout
from smlaunch.contract.checkpoint import Manifest, Shard
from smlaunch.contract.names import RESERVED_FOLDER, CheckpointWriter
from smlaunch.contract.outcome import SegmentOutcome, find_newest_outcome
from smlaunch.train import durable_files
from smlaunch.train import tree_format as part_file
from smlaunch.train.retention import RetentionPolicy
from smlaunch.train.transports.base import CheckpointTransport, LoadFailed, SaveFailed

_RESERVED_BYTES = 1 << 20
"""Bytes beyond a shard that must be free: manifest, COMMIT and the outcome still have to fit."""

_TEMPORARY_NAME = re.compile(r"\.(?:shard|download|document)-(\d{5})")

_DISK_FULL_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DamagedFileError(Exception):
    """A file of a committed step that does not match the manifest."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        self.problem = problem
        super().__init__("{}: {}".format(path, problem))


class DiskFullError(SaveFailed):
    """A checkpoint that does not fit on the disk. ``needed_bytes`` is a lower bound."""

    def __init__(self, directory: str, needed_bytes: int, free_bytes: int) -> None:
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        super().__init__(
            "{}: a checkpoint needs {:,} bytes here and {:,} are free; training goes on and the next save "
            "tries again. Keep fewer checkpoints, save more rarely, or use a larger volume".format(
                directory, needed_bytes, free_bytes
            )
        )


class ShardReader:
    """One rank's shard of a step, verified. Its buffers are read from the disk as they are used."""

    def __init__(self, manifest: Manifest, shard: Shard, content: part_file.BytesLike) -> None:
        self.manifest = manifest
        self.shard = shard
        self._content = content

    def read_tree(self) -> Any:
        """Return the tree that was passed to ``tree_format.encode``. Raises InvalidTreeError for a file of
        another version."""
        return part_file.decode(self._content)


class CheckpointStore:
    """``directory`` is created if it is missing. Use methods from one thread at a time."""

    def __init__(
        self,
        directory: str,
        rank: int,
        world_size: int,
        *,
        keep: int = 3,
        job: Optional[str] = None,
        writer: Optional[CheckpointWriter] = None,
        transport: Optional[CheckpointTransport] = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``keep``: committed steps that ``delete_old_steps`` retains. ``job``: this training job's name, for
        the manifests; ``writer``: its run, segment and attempt, for the names of COMMITs. ``clock`` returns
        seconds. Raises ValueError, and OSError if the directory cannot be used."""
        if not 0 <= rank < world_size:
            raise ValueError("rank {} is not one of {}".format(rank, world_size))
        self.directory = os.path.abspath(directory)
        self.rank = rank
        self.world_size = world_size
        self.job = job
        self.writer = CheckpointWriter() if writer is None else writer
        self.transport = CheckpointTransport() if transport is None else transport
        os.makedirs(self.directory, exist_ok=True)
        self._reserved_folder = os.path.join(self.directory, RESERVED_FOLDER)
        self._scratch_folder = durable_files.scratch_folder(self.directory)
        if self._scratch_folder == self.directory:
            os.makedirs(self._reserved_folder, exist_ok=True)
            self._scratch_folder = self._reserved_folder
        self._delete_stale_files()
        self._retention = RetentionPolicy(keep, self.transport.settle_seconds, clock)

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def committed_manifests(self) -> List[Manifest]:
        """Return the steps that are complete as far as names and sizes tell, newest first.

        At a segment's start every host has all of them. Later a host has only the shards of its own ranks,
        and with several hosts no step saved since then is complete on any of them.
        """
        if self.transport.is_remote:
            manifests = list(layout.iter_committed(self.transport.list_files(), self.transport.read_file))
        else:
            manifests = list(layout.iter_committed(_local_files(self.directory), self._read_local))
        self._retention.add_found(
            manifest.step for manifest in manifests if self.job and manifest.job == self.job
        )
        return manifests

    def newest_intact(
        self, ranks: Optional[Iterable[int]] = None, at_most: Optional[int] = None
    ) -> Optional[Manifest]:
        """Return the newest committed step, not after ``at_most``, whose shards of these ranks verify by
        hash; None if there is none. Damaged steps are skipped."""
        wanted_ranks = None if ranks is None else list(ranks)
        for manifest in self.committed_manifests():
            if at_most is None or manifest.step <= at_most:
                with contextlib.suppress(DamagedFileError):
                    self.verify(manifest, wanted_ranks)
                    return manifest
        return None

    def verify(self, manifest: Manifest, ranks: Optional[Iterable[int]] = None) -> None:
        """Read the shards of these ranks (None: of all). Raises DamagedFileError naming the first damaged
        one."""
        for rank in range(manifest.world_size) if ranks is None else ranks:
            self.open_shard(manifest, rank)

    def open_shard(self, step: Union[int, Manifest], rank: Optional[int] = None) -> ShardReader:
        """Return a rank's shard (None: one's own), downloaded if necessary and verified by its hash.

        Raises DamagedFileError naming the file, LoadFailed if S3 cannot be read, and LookupError for a step
        that is not committed or does not have the rank.
        """
        manifest = self._find_manifest(step) if isinstance(step, int) else step
        wanted_rank = self.rank if rank is None else rank
        shard = next((shard for shard in manifest.shards if shard.rank == wanted_rank), None)
        if shard is None:
            raise LookupError(
                "step {} was saved by {} ranks: it has no part of rank {}".format(
                    manifest.step, manifest.world_size, wanted_rank
                )
            )
        path = os.path.join(self.directory, layout.step_directory(manifest.step), shard.name)
        content = self._verified_content(path, shard)
        if content is None and self.transport.is_remote:
            self._download(manifest, shard, path)
            content = self._verified_content(path, shard)
        if content is None:
            raise DamagedFileError(path, _describe_damage(path, shard))
        return ShardReader(manifest, shard, content)

    def write_shard(
        self, step: int, chunks: Iterable[Union[bytes, memoryview]], size_bytes: int = 0
    ) -> Shard:
        """Write this rank's shard of a step durably, to S3 too if the transport uploads it.

        ``chunks``: the content, as ``EncodedTree.chunks`` yields it; ``size_bytes``: its size if known,
        checked against the free space first. A shard that exists with the same content stays as it is, so
        that no sync uploads it again. Raises SaveFailed (DiskFullError, UploadFailed); no incomplete file
        remains.
        """
        if durable_files.free_bytes(self.directory) < size_bytes + _RESERVED_BYTES:
            self.delete_old_steps()  # steps that had not settled after the last save may be deletable now
        if durable_files.free_bytes(self.directory) < size_bytes + _RESERVED_BYTES:
            raise DiskFullError(
                self.directory, size_bytes + _RESERVED_BYTES, durable_files.free_bytes(self.directory)
            )
        self._retention.add_written(step)
        temporary_path = self._temporary_path("shard")
        try:
            digest, written_bytes = durable_files.write_durably(temporary_path, chunks)
            shard = Shard(
                self.rank, layout.shard_name(self.rank, self.world_size, digest), written_bytes, digest
            )
            folder = os.path.join(self.directory, layout.step_directory(step))
            path = os.path.join(folder, shard.name)
            self._make_folder(folder)
            if self._verified_content(path, shard) is None:
                os.replace(temporary_path, path)
                durable_files.fsync_folder(folder)
        except OSError as error:
            raise self._save_error(error, size_bytes, temporary_path) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary_path)
        self.transport.upload(layout.step_directory(step) + "/" + shard.name, path, shard.size)
        return shard

    def commit(self, step: int, shards: Sequence[Shard], samples: Optional[int] = None) -> Manifest:
        """Commit a step: called by the leader when all shards are durable. Nothing counts before it.

        ``samples``: consumed by all ranks together since the start. Raises ValueError unless every rank has
        one shard and this is the leader; SaveFailed as ``write_shard`` does.
        """
        if not self.is_leader:
            raise ValueError("rank {} is not the leader: only rank 0 commits".format(self.rank))
        sorted_parts = tuple(sorted(shards))
        if [shard.rank for shard in sorted_parts] != list(range(self.world_size)):
            raise ValueError(
                "step {}: only ranks {} of {} have shards".format(
                    step, [shard.rank for shard in sorted_parts], self.world_size
                )
            )
        manifest = Manifest(step, self.world_size, sorted_parts, samples, self.job)
        content = manifest.to_bytes()
        directory = layout.step_directory(step) + "/"
        self._write_small_file(directory + layout.manifest_name(content), content)
        self._write_small_file(directory + layout.commit_name(self.writer), layout.commit_content(content))
        self.mark_committed(step)
        return manifest

    def mark_committed(self, step: int) -> None:
        """Record that the leader has committed this step: only such steps count in ``delete_old_steps``."""
        self._retention.add_committed(step)

    def delete_old_steps(self, protected: Iterable[int] = ()) -> List[int]:
        """Delete this rank's shards of this job's steps older than the newest ``keep``, committed or not,
        except ``protected`` ones. Return these steps.

        A step counts among the newest only ``transport.settle_seconds`` after its commit: until then it may
        not have reached S3, where every delete is repeated. Steps of other jobs are deleted only by the
        driver of the run.
        """
        old_steps = self._retention.steps_to_delete(protected)
        for step in old_steps:
            self._delete_step(step)
            self._retention.forget_step(step)
        return old_steps

    def write_outcome(self, result: str, step: Optional[int] = None) -> None:
        """Write how this attempt of the segment ended: FINISHED or CONTINUE, and at which committed step. The
        last write of the leader. Raises SaveFailed."""
        writer = self.writer
        outcome = SegmentOutcome(result, step, writer.run, self.job, writer.segment, writer.attempt)
        self._write_small_file(outcome.path, outcome.to_bytes())

    def read_outcome(self) -> Optional[SegmentOutcome]:
        """Return the outcome of the run's newest attempt that wrote one; None without one."""
        if self.transport.is_remote:
            return find_newest_outcome(self.transport.list_files(), self.transport.read_file, self.writer.run)
        return find_newest_outcome(_local_files(self.directory), self._read_local, self.writer.run)

    def _find_manifest(self, step: int) -> Manifest:
        for manifest in self.committed_manifests():
            if manifest.step == step:
                return manifest
        raise LookupError("{}: step {} is not committed, or not whole".format(self.directory, step))

    def _verified_content(self, path: str, shard: Shard) -> Optional[part_file.BytesLike]:
        """Return the content of a shard; None if it is missing or does not match."""
        try:
            if os.stat(path).st_size != shard.size:
                return None
            content = part_file.map_file(path)
        except FileNotFoundError:
            return None
        return content if hashlib.sha256(content).hexdigest() == shard.sha256 else None

    def _download(self, manifest: Manifest, shard: Shard, path: str) -> None:
        """Download a shard from S3. If ranks of one host do it at the same time, each renames the same
        content in."""
        temporary_path = self._temporary_path("download")
        name = layout.step_directory(manifest.step) + "/" + shard.name
        try:
            self._make_folder(os.path.dirname(path))
            self.transport.download(name, temporary_path)
            if self._verified_content(temporary_path, shard) is None:
                raise DamagedFileError(name, "the object in S3 does not match the manifest")
            os.replace(temporary_path, path)
        except KeyError:
            raise DamagedFileError(name, "S3 does not have it any more") from None
        except OSError as error:
            raise LoadFailed(
                "{}: its {:,} bytes cannot be written here: {}".format(name, shard.size, error)
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary_path)

    def _delete_step(self, step: int) -> None:
        """Delete this rank's files of a step; the leader also deletes COMMIT and manifests."""
        folder = os.path.join(self.directory, layout.step_directory(step))
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(folder)
            own_names = [name for name in names if layout.parse_shard_rank(name) == self.rank]
            if self.is_leader:
                # COMMIT first: the step must not count any more when its first file is missing.
                manifests = [name for name in names if layout.is_manifest(name)]
                own_names = [name for name in names if layout.is_commit(name)] + manifests + own_names
            for name in own_names:
                os.unlink(os.path.join(folder, name))
            self.transport.delete([layout.step_directory(step) + "/" + name for name in own_names])
            with contextlib.suppress(OSError):  # other ranks of this host have their parts in it
                os.rmdir(folder)

    def _write_small_file(self, name: str, content: bytes) -> None:
        """Replace a small file atomically."""
        temporary_path = self._temporary_path("document")
        path = os.path.join(self.directory, name)
        try:
            durable_files.write_durably(temporary_path, [content])
            self._make_folder(os.path.dirname(path))
            os.replace(temporary_path, path)
            durable_files.fsync_folder(os.path.dirname(path))
        except OSError as error:
            raise self._save_error(error, len(content), temporary_path) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary_path)
        self.transport.upload(name, path, len(content))

    def _save_error(self, error: OSError, size_bytes: int, temporary_path: str) -> SaveFailed:
        """Return the error to raise for a failed write: a full disk or another cause."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary_path)  # before looking how much is free without it
        if error.errno not in _DISK_FULL_CODES:
            return SaveFailed("{}: the checkpoint could not be written: {}".format(self.directory, error))
        free_bytes = durable_files.free_bytes(self.directory)
        return DiskFullError(self.directory, max(size_bytes, free_bytes + 1), free_bytes)

    def _make_folder(self, folder: str) -> None:
        for path in (self._reserved_folder, folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
                durable_files.fsync_folder(os.path.dirname(path))

    def _read_local(self, name: str) -> bytes:
        with open(os.path.join(self.directory, name), "rb") as file:
            return file.read()

    def _temporary_path(self, kind: str) -> str:
        return os.path.join(self._scratch_folder, ".{}-{:05d}".format(kind, self.rank))

    def _delete_stale_files(self) -> None:
        """Delete files left by killed processes: of this rank and, on the leader, of ranks that no longer
        exist. In the directory itself they may even come from S3."""
        for folder in {self._scratch_folder, self._reserved_folder}:
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                match = _TEMPORARY_NAME.fullmatch(name)
                rank = int(match.group(1)) if match else -1
                if rank == self.rank or (self.is_leader and rank >= self.world_size):
                    os.unlink(os.path.join(folder, name))


def _local_files(directory: str) -> Dict[str, int]:
    """Return the paths of checkpoints and outcomes below the directory, with sizes. Files that vanish
    meanwhile are omitted. Folders of the checkpoint directory itself are listed too: releases before format
    1.0 used them."""
    size_by_name: Dict[str, int] = {}
    reserved_folder = os.path.join(directory, RESERVED_FOLDER)
    for folder in (directory, reserved_folder):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(folder):
                path = os.path.relpath(os.path.join(folder, name), directory)
                if name.startswith("step-"):
                    size_by_name.update(_sizes_in_folder(directory, path))
                elif folder == reserved_folder:
                    size_by_name[path] = 0
    return size_by_name


def _sizes_in_folder(directory: str, folder: str) -> Dict[str, int]:
    size_by_name: Dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(
        os.path.join(directory, folder)
    ) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                size_by_name[folder + "/" + entry.name] = entry.stat().st_size
    return size_by_name


def _describe_damage(path: str, shard: Shard) -> str:
    """Return why a file does not match the manifest."""
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        return "it is missing"
    if size != shard.size:
        return "it has {:,} bytes, the manifest says {:,}".format(size, shard.size)
    return "its content does not match the manifest (sha256)"
