"""One rank's access to the checkpoint directory: write shards, commit, load, delete.

The directory's layout is ``contract.checkpoint_layout``'s. It never has an incomplete file under a shard's
name: a file is written beside the directory, forced to the disk, and renamed into it. So a sync at any moment
neither uploads a file that is still growing nor mistakes it for a shard.

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

from smlaunch.contract import checkpoint_layout as checkpoint_layout
from smlaunch.contract.checkpoint_layout import Manifest, Shard
from smlaunch.contract.run_names import RESERVED_FOLDER, CheckpointWriter
from smlaunch.contract.segment_outcome import SegmentOutcome, find_newest_outcome
from smlaunch.train import durable_files, tree_format
from smlaunch.train.checkpoint_retention import RetentionPolicy
from smlaunch.train.transports.base import CheckpointTransport, LoadFailed, SaveFailed

_HEADROOM_BYTES = 1 << 20
"""Bytes that must be free beside a shard: manifest, COMMIT and the outcome still have to fit."""

_TEMPORARY_NAME_PATTERN = re.compile(r"\.(?:shard|download|document)-(\d{5})")

_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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

    def __init__(self, manifest: Manifest, shard: Shard, content: tree_format.BytesLike) -> None:
        self.manifest = manifest
        self.shard = shard
        self._content = content

    def read_tree(self) -> Any:
        """Return the tree that was passed to ``tree_format.encode``. Raises InvalidTreeError for a file of
        another version."""
        return tree_format.decode_tree(self._content)


class CheckpointStore:
    """``directory`` is created if it is missing. Use methods from one thread at a time."""

    def __init__(
        self,
        directory: str,
        rank: int,
        world_size: int,
        *,
        keep_last: int = 3,
        job: Optional[str] = None,
        writer: Optional[CheckpointWriter] = None,
        transport: Optional[CheckpointTransport] = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open a checkpoint directory for one rank of a job.

        ``keep_last``: how many committed steps ``delete_old_steps`` retains. ``job``: this training job's
        name, written into manifests (a manifest lists a checkpoint's shards); ``writer``: its run, segment
        and attempt, for the names of the files that commit a checkpoint. ``transport``: how checkpoints reach
        S3; None: not at all. ``clock`` returns seconds. Raises ValueError, and OSError if the directory
        cannot be used."""
        if not 0 <= rank < world_size:
            raise ValueError("rank {} is not one of {}".format(rank, world_size))
        self.directory = os.path.abspath(directory)
        self.rank = rank
        self.world_size = world_size
        self.job = job
        self.writer = CheckpointWriter() if writer is None else writer
        self.transport = CheckpointTransport() if transport is None else transport
        os.makedirs(self.directory, exist_ok=True)
        self._reserved_folder = os.path.join(self.directory, RESERVED_FOLDER)  # smlaunch's, in the script's
        # Files are written in the scratch folder, then renamed into the directory.
        self._scratch_folder = durable_files.scratch_folder(self.directory)
        if self._scratch_folder == self.directory:
            # The directory is a mount, so that nothing can be renamed into it from a folder beside it.
            os.makedirs(self._reserved_folder, exist_ok=True)
            self._scratch_folder = self._reserved_folder
        self._delete_stale_temporary_files()
        # Decides which steps to delete. Only steps that have had time to reach S3 replace older ones.
        self._retention = RetentionPolicy(keep_last, self.transport.settle_seconds, clock)

    @property
    def is_leader(self) -> bool:
        return self.rank == 0

    def committed_manifests(self) -> List[Manifest]:
        """Return the steps that are complete as far as names and sizes tell, newest first.

        At a segment's start every host has all of them. Later a host has only the shards of its own ranks,
        and with several hosts no step saved since then is complete on any of them.
        """
        if self.transport.is_remote:
            manifests = list(
                checkpoint_layout.iter_committed(self.transport.list_files(), self.transport.read_file)
            )
        else:
            manifests = list(
                checkpoint_layout.iter_committed(_read_local_file_sizes(self.directory), self._read_local)
            )
        self._retention.add_found_steps(
            manifest.step for manifest in manifests if self.job and manifest.job == self.job
        )
        return manifests

    def newest_intact_manifest(
        self, ranks: Optional[Iterable[int]] = None, max_step: Optional[int] = None
    ) -> Optional[Manifest]:
        """Return the manifest of the newest committed step whose shards of ``ranks`` (None: of all ranks)
        match their hashes; None if there is none. Damaged steps are skipped, and steps after ``max_step``. A
        manifest lists the shards of a step's checkpoint, one of each rank."""
        ranks_to_verify = None if ranks is None else list(ranks)
        for manifest in self.committed_manifests():  # newest step first
            if max_step is not None and manifest.step > max_step:
                continue
            try:
                self.verify(manifest, ranks_to_verify)
            except DamagedFileError:
                continue
            return manifest
        return None

    def verify(self, manifest: Manifest, ranks: Optional[Iterable[int]] = None) -> None:
        """Read the shards of these ranks (None: of all). Raises DamagedFileError naming the first damaged
        one."""
        for rank in range(manifest.world_size) if ranks is None else ranks:
            self.open_shard(manifest, rank)

    def open_shard(self, step: Union[int, Manifest], rank: Optional[int] = None) -> ShardReader:
        """Return a rank's shard of a checkpoint, downloaded if necessary and verified by its hash.

        ``step``: the training step that was saved, or its manifest (the list of its shards). ``rank``: None:
        this one's own. Raises DamagedFileError naming the file, LoadFailed if S3 cannot be read, and
        LookupError for a step that is not committed or does not have the rank."""
        manifest = self._find_committed_manifest_of(step) if isinstance(step, int) else step
        wanted_rank = self.rank if rank is None else rank
        shard = next((shard for shard in manifest.shards if shard.rank == wanted_rank), None)
        if shard is None:
            raise LookupError(
                "step {} was saved by {} ranks: it has no part of rank {}".format(
                    manifest.step, manifest.world_size, wanted_rank
                )
            )
        path = os.path.join(self.directory, checkpoint_layout.step_directory(manifest.step), shard.name)
        content = self._read_if_intact(path, shard)
        # With a remote transport, checkpoints are in S3, and each rank downloads the shards it needs.
        if content is None and self.transport.is_remote:
            self._download_shard(manifest, shard, path)
            content = self._read_if_intact(path, shard)
        if content is None:
            raise DamagedFileError(path, _describe_damage(path, shard))
        return ShardReader(manifest, shard, content)

    def write_shard(
        self, step: int, chunks: Iterable[Union[bytes, memoryview]], size_bytes: int = 0
    ) -> Shard:
        """Write this rank's shard of a training step durably, to S3 too if the transport uploads it.

        ``chunks``: the content, as ``EncodedTree.chunks`` yields it; ``size_bytes``: its size if known,
        checked against the free space first. A shard that exists with the same content stays as it is, so
        that no sync uploads it again. Raises SaveFailed (DiskFullError, UploadFailed); no incomplete file
        remains.
        """
        self._ensure_disk_space(size_bytes + _HEADROOM_BYTES)  # small files are written after the shard
        self._retention.add_written_step(step)  # from now on it may have files, to be deleted when it is old
        temporary_path = self._temporary_path_for("shard")
        try:
            digest, written_bytes = durable_files.write_durably(temporary_path, chunks)
            shard = Shard(
                rank=self.rank,
                name=checkpoint_layout.shard_name(self.rank, self.world_size, digest),
                size=written_bytes,
                sha256=digest,
            )
            folder = os.path.join(self.directory, checkpoint_layout.step_directory(step))
            path = os.path.join(folder, shard.name)
            self._make_folder_durably(folder)
            if self._read_if_intact(path, shard) is None:  # else the same content is there already
                os.replace(temporary_path, path)
                durable_files.fsync_folder(folder)
        except OSError as error:
            raise self._save_failure(error, size_bytes, temporary_path) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary_path)
        self.transport.upload(checkpoint_layout.step_directory(step) + "/" + shard.name, path, shard.size)
        return shard

    def commit(self, step: int, shards: Sequence[Shard], total_samples: Optional[int] = None) -> Manifest:
        """Commit a step: called by the leader when all shards are durable. Nothing counts before it.

        ``total_samples``: used by all ranks together since the start. Raises ValueError unless every rank has
        one shard and this is the leader; SaveFailed as ``write_shard`` does.
        """
        if not self.is_leader:
            raise ValueError("rank {} is not the leader: only rank 0 commits".format(self.rank))
        sorted_shards = tuple(sorted(shards))
        if [shard.rank for shard in sorted_shards] != list(range(self.world_size)):
            raise ValueError(
                "step {}: only ranks {} of {} have shards".format(
                    step, [shard.rank for shard in sorted_shards], self.world_size
                )
            )
        manifest = Manifest(step, self.world_size, sorted_shards, total_samples, self.job)
        content = manifest.to_bytes()
        directory = checkpoint_layout.step_directory(step) + "/"
        self._write_small_file(directory + checkpoint_layout.manifest_name(content), content)
        self._write_small_file(
            directory + checkpoint_layout.commit_name(self.writer), checkpoint_layout.commit_content(content)
        )
        self.mark_committed(step)
        return manifest

    def mark_committed(self, step: int) -> None:
        """Record that the leader has committed this step: only such steps count in ``delete_old_steps``."""
        self._retention.add_committed_step(step)

    def delete_old_steps(self, protected: Iterable[int] = ()) -> List[int]:
        """Delete this rank's shards of this job's steps older than the newest ``keep_last``, committed or
        not, except ``protected`` ones. Return these steps.

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
        return find_newest_outcome(_read_local_file_sizes(self.directory), self._read_local, self.writer.run)

    def _ensure_disk_space(self, needed_bytes: int) -> None:
        """Delete old steps if the disk has less space than this. Raises DiskFullError if that is not
        enough."""
        if durable_files.free_bytes(self.directory) < needed_bytes:
            self.delete_old_steps()  # more may be deletable than after the last save: some had to reach S3
        if durable_files.free_bytes(self.directory) < needed_bytes:
            raise DiskFullError(self.directory, needed_bytes, durable_files.free_bytes(self.directory))

    def _find_committed_manifest_of(self, step: int) -> Manifest:
        for manifest in self.committed_manifests():
            if manifest.step == step:
                return manifest
        raise LookupError("{}: step {} is not committed, or not whole".format(self.directory, step))

    def _read_if_intact(self, path: str, shard: Shard) -> Optional[tree_format.BytesLike]:
        """Return the content of a shard file; None if it is missing, or if its size or hash is not the one in
        the manifest."""
        try:
            if os.stat(path).st_size != shard.size:
                return None
            content = tree_format.map_file(path)  # mapped into memory, not read
        except FileNotFoundError:
            return None
        return content if hashlib.sha256(content).hexdigest() == shard.sha256 else None

    def _download_shard(self, manifest: Manifest, shard: Shard, path: str) -> None:
        """Download a shard, which the checkpoint's manifest lists with its hash, from S3 to ``path``. Ranks
        of one host may do it at the same time: each renames the same content to it. Raises DamagedFileError
        if S3 has no such shard or another content, and LoadFailed if it cannot be written here."""
        temporary_path = self._temporary_path_for("download")  # this rank's own
        object_name = checkpoint_layout.step_directory(manifest.step) + "/" + shard.name
        try:
            self._make_folder_durably(os.path.dirname(path))  # it survives a crash of the host
            self.transport.download(object_name, temporary_path)
            if self._read_if_intact(temporary_path, shard) is None:
                raise DamagedFileError(object_name, "the object in S3 does not match the manifest")
            os.replace(temporary_path, path)
        except KeyError:  # how transports report a missing object
            raise DamagedFileError(object_name, "S3 does not have it any more") from None
        except OSError as error:
            raise LoadFailed(
                "{}: its {:,} bytes cannot be written here: {}".format(object_name, shard.size, error)
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary_path)

    def _delete_step(self, step: int) -> None:
        """Delete this rank's files of a step; the leader also deletes COMMIT and manifests."""
        folder = os.path.join(self.directory, checkpoint_layout.step_directory(step))
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(folder)
            own_names = [name for name in names if checkpoint_layout.parse_shard_rank(name) == self.rank]
            if self.is_leader:
                # COMMIT first: the step must not count any more when its first file is missing.
                manifests = [name for name in names if checkpoint_layout.is_manifest(name)]
                own_names = (
                    [name for name in names if checkpoint_layout.is_commit(name)] + manifests + own_names
                )
            for name in own_names:
                os.unlink(os.path.join(folder, name))
            self.transport.delete([checkpoint_layout.step_directory(step) + "/" + name for name in own_names])
            with contextlib.suppress(OSError):  # other ranks of this host have their parts in it
                os.rmdir(folder)

    def _write_small_file(self, name: str, content: bytes) -> None:
        """Replace a small file atomically."""
        temporary_path = self._temporary_path_for("document")
        path = os.path.join(self.directory, name)
        try:
            durable_files.write_durably(temporary_path, [content])
            self._make_folder_durably(os.path.dirname(path))
            os.replace(temporary_path, path)
            durable_files.fsync_folder(os.path.dirname(path))
        except OSError as error:
            raise self._save_failure(error, len(content), temporary_path) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary_path)
        self.transport.upload(name, path, len(content))

    def _save_failure(self, error: OSError, size_bytes: int, temporary_path: str) -> SaveFailed:
        """Return the error to raise for a failed write: a full disk or another cause."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary_path)  # before looking how much is free without it
        if error.errno not in _DISK_FULL_ERRNOS:
            return SaveFailed("{}: the checkpoint could not be written: {}".format(self.directory, error))
        free_bytes = durable_files.free_bytes(self.directory)
        return DiskFullError(self.directory, max(size_bytes, free_bytes + 1), free_bytes)

    def _make_folder_durably(self, folder: str) -> None:
        for path in (self._reserved_folder, folder):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path)
                durable_files.fsync_folder(os.path.dirname(path))

    def _read_local(self, name: str) -> bytes:
        with open(os.path.join(self.directory, name), "rb") as file:
            return file.read()

    def _temporary_path_for(self, kind: str) -> str:
        return os.path.join(self._scratch_folder, ".{}-{:05d}".format(kind, self.rank))

    def _delete_stale_temporary_files(self) -> None:
        """Delete temporary files that killed processes left: those of this rank and, on the leader, those of
        ranks that no longer exist.

        They are in the folder for files being written, and may also be in smlaunch's folder of the checkpoint
        directory, to where they may even have come back from S3."""
        for folder in {self._scratch_folder, self._reserved_folder}:
            if not os.path.isdir(folder):
                continue
            for name in os.listdir(folder):
                match = _TEMPORARY_NAME_PATTERN.fullmatch(name)
                if match is None:
                    continue
                writer_rank = int(match.group(1))  # the name ends with it
                is_of_missing_rank = writer_rank >= self.world_size
                if writer_rank == self.rank or (self.is_leader and is_of_missing_rank):
                    os.unlink(os.path.join(folder, name))


def _read_local_file_sizes(directory: str) -> Dict[str, int]:
    """Return the size in bytes of every file of checkpoints, and of outcomes (how attempts of a job ended),
    by its path relative to the checkpoint directory. Files that vanish meanwhile are omitted.

    They are in the reserved folder, which smlaunch has for itself there; releases before format 1.0 had the
    folders of steps in the checkpoint directory itself.
    """
    size_by_path: Dict[str, int] = {}
    reserved_folder = os.path.join(directory, RESERVED_FOLDER)
    for folder in (directory, reserved_folder):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            for name in os.listdir(folder):
                relative_path = os.path.relpath(os.path.join(folder, name), directory)
                if name.startswith("step-"):  # the folder of one checkpoint
                    size_by_path.update(_read_file_sizes_in_folder(directory, relative_path))
                elif folder == reserved_folder:
                    size_by_path[relative_path] = 0  # an outcome: nobody asks for its size
    return size_by_path


def _read_file_sizes_in_folder(directory: str, folder: str) -> Dict[str, int]:
    size_by_path: Dict[str, int] = {}
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(
        os.path.join(directory, folder)
    ) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                size_by_path[folder + "/" + entry.name] = entry.stat().st_size
    return size_by_path


def _describe_damage(path: str, shard: Shard) -> str:
    """Return why a file does not match the manifest."""
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        return "it is missing"
    if size != shard.size:
        return "it has {:,} bytes, the manifest says {:,}".format(size, shard.size)
    return "its content does not match the manifest (sha256)"
