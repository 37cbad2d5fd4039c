"""One rank's hands on the checkpoint directory: parts, commits, what is loaded, what is deleted.

The directory's order is ``protocol.checkpoint``'s. What is half-written never lies in it under a part's name:
a file is written beside the directory, forced to the disk, and renamed in. A sync that looks at any moment
therefore takes nothing for a part that is none, and does not upload what is still growing.

Nothing here knows other ranks. Who is done with which step is agreed by the callers, which then tell the
leader to ``commit`` and everybody to ``remember``.
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

from smlaunch.protocol import checkpoint as protocol
from smlaunch.protocol.checkpoint import Manifest, Outcome, Part
from smlaunch.train import durable
from smlaunch.train import parts as part_file
from smlaunch.train.carriers.base import CannotLoad, Carrier, NotSaved
from smlaunch.train.retention import Kept

_SPARE = 1 << 20
"""Bytes beyond a part that must be free: manifest, COMMIT and the outcome still have to fit."""

_TEMPORARY = re.compile(r"\.(?:part|brought|small)-(\d{5})")

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Torn(Exception):
    """A file of a committed step that is not what the manifest says."""

    def __init__(self, path: str, why: str) -> None:
        self.path = path
        self.why = why
        super().__init__("{}: {}".format(path, why))


class NoRoom(NotSaved):
    """A checkpoint that does not fit. ``needed``, at least, and ``free`` in bytes."""

    def __init__(self, directory: str, needed: int, free: int) -> None:
        self.needed = needed
        self.free = free
        super().__init__(
            "{}: a checkpoint needs {:,} bytes here and {:,} are free; training goes on and the next save "
            "tries again. Keep fewer checkpoints, save more rarely, or use a larger volume".format(
                directory, needed, free
            )
        )


class PartReader:
    """One rank's part of a step, verified. Its buffers are read from the disk as they are used."""

    def __init__(self, manifest: Manifest, part: Part, content: part_file.BytesLike) -> None:
        self.manifest = manifest
        self.part = part
        self._content = content

    def tree(self) -> Any:
        """What was handed to ``parts.encode``. Raises ``parts.NotAPart`` for another version's file."""
        return part_file.decode(self._content)


class Store:
    """``directory`` is made when it is missing. Methods may be called from one thread at a time."""

    def __init__(
        self,
        directory: str,
        rank: int,
        world_size: int,
        *,
        keep: int = 3,
        job: Optional[str] = None,
        carrier: Optional[Carrier] = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``keep``: committed steps that ``retain`` leaves. ``job``: this training job's name, for the
        manifests. ``clock`` gives seconds. Raises ValueError, and OSError when the directory cannot be used.
        """
        if not 0 <= rank < world_size:
            raise ValueError("rank {} is not one of {}".format(rank, world_size))
        self.directory = os.path.abspath(directory)
        self.rank = rank
        self.world_size = world_size
        self.job = job
        self.carrier = Carrier() if carrier is None else carrier
        os.makedirs(self.directory, exist_ok=True)
        self._scratch = durable.scratch_of(self.directory)
        self._sweep()
        self._kept = Kept(keep, self.carrier.settle_seconds, clock)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def committed(self) -> List[Manifest]:
        """Steps that are whole as far as names and sizes tell, newest first.

        At a segment's start every host has all of them. Later a host sees the parts of its own ranks only,
        and with several hosts no step that was saved since is whole from where it stands.
        """
        if self.carrier.remote:
            found = list(protocol.committed(self.carrier.listing(), self.carrier.read))
        else:
            found = list(protocol.committed(_files_below(self.directory), self._read_here))
        self._kept.found(manifest.step for manifest in found if self.job and manifest.job == self.job)
        return found

    def newest_whole(
        self, ranks: Optional[Iterable[int]] = None, at_most: Optional[int] = None
    ) -> Optional[Manifest]:
        """The newest committed step, not after ``at_most``, of which the parts of these ranks verify by hash;
        None: there is none. Older ones are tried in turn, as often as one is torn."""
        wanted = None if ranks is None else list(ranks)
        for manifest in self.committed():
            if at_most is None or manifest.step <= at_most:
                with contextlib.suppress(Torn):
                    self.verify(manifest, wanted)
                    return manifest
        return None

    def verify(self, manifest: Manifest, ranks: Optional[Iterable[int]] = None) -> None:
        """Reads the parts of these ranks (None: of all). Raises Torn naming the first that is not whole."""
        for rank in range(manifest.world_size) if ranks is None else ranks:
            self.open(manifest, rank)

    def open(self, step: Union[int, Manifest], rank: Optional[int] = None) -> PartReader:
        """A rank's part (None: one's own), fetched if need be and verified by its hash.

        Raises Torn naming the file, CannotLoad where that cannot be known, and LookupError for a step that is
        not committed or a rank it has not.
        """
        manifest = self._manifest(step) if isinstance(step, int) else step
        wanted = self.rank if rank is None else rank
        part = next((part for part in manifest.parts if part.rank == wanted), None)
        if part is None:
            raise LookupError(
                "step {} was saved by {} ranks: it has no part of rank {}".format(
                    manifest.step, manifest.world_size, wanted
                )
            )
        path = os.path.join(self.directory, protocol.step_directory(manifest.step), part.name)
        content = self._whole(path, part)
        if content is None and self.carrier.remote:
            self._bring(manifest, part, path)
            content = self._whole(path, part)
        if content is None:
            raise Torn(path, _why_torn(path, part))
        return PartReader(manifest, part, content)

    def write(self, step: int, chunks: Iterable[Union[bytes, memoryview]], size: int = 0) -> Part:
        """Makes this rank's part of a step durable, in S3 too where the carrier takes it there.

        ``chunks``: the content, as ``parts.Encoded.chunks`` gives it; ``size``: its bytes if known, looked at
        before anything is written. A part that is there already with the same content is left alone, so that
        no sync uploads it again. Raises NotSaved (NoRoom, CannotCarry); nothing half-written is left.
        """
        if durable.free(self.directory) < size + _SPARE:
            self.retain()  # what had not settled after the last save may go by now
        if durable.free(self.directory) < size + _SPARE:
            raise NoRoom(self.directory, size + _SPARE, durable.free(self.directory))
        self._kept.written(step)
        temporary = self._temporary("part")
        try:
            digest, written = durable.write(temporary, chunks)
            part = Part(self.rank, protocol.part_name(self.rank, self.world_size, digest), written, digest)
            folder = os.path.join(self.directory, protocol.step_directory(step))
            path = os.path.join(folder, part.name)
            self._make_folder(folder)
            if self._whole(path, part) is None:
                os.replace(temporary, path)
                durable.sync_names(folder)
        except OSError as error:
            raise self._not_saved(error, size, temporary) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        self.carrier.take(protocol.step_directory(step) + "/" + part.name, path, part.size)
        return part

    def commit(self, step: int, parts: Sequence[Part], samples: Optional[int] = None) -> Manifest:
        """The leader's word that all parts of a step are durable; nothing counts before it.

        ``samples``: consumed by all ranks together since the start. Raises ValueError unless every rank has
        one part and this is the leader; NotSaved as ``write`` does.
        """
        if not self.leads:
            raise ValueError("rank {} does not lead: only rank 0 commits".format(self.rank))
        ordered = tuple(sorted(parts))
        if [part.rank for part in ordered] != list(range(self.world_size)):
            raise ValueError(
                "step {}: parts of ranks {} are there, of {} ranks in all".format(
                    step, [part.rank for part in ordered], self.world_size
                )
            )
        manifest = Manifest(step, self.world_size, ordered, samples, self.job)
        content = manifest.to_bytes()
        directory = protocol.step_directory(step) + "/"
        self._publish(directory + protocol.manifest_name(content), content)
        self._publish(directory + protocol.COMMIT, protocol.commit_content(content))
        self.remember(step)
        return manifest

    def remember(self, step: int) -> None:
        """The leader has committed this step: every rank is told, and only such steps count in ``retain``."""
        self._kept.committed(step)

    def retain(self, protected: Iterable[int] = ()) -> List[int]:
        """Deletes this rank's parts of steps this job made that are older than the newest ``keep``, committed
        or not; returns these steps. ``protected`` ones stay.

        A step counts among the newest only ``carrier.settle_seconds`` after its commit: until then it may not
        have reached S3, where every delete here is repeated. Steps of other jobs are the driver's.
        """
        gone = self._kept.to_delete(protected)
        for step in gone:
            self._delete(step)
            self._kept.deleted(step)
        return gone

    def write_outcome(self, outcome: Outcome) -> None:
        """How this segment ended; the last write of the leader. Raises NotSaved."""
        self._publish(protocol.OUTCOME, outcome.to_bytes())

    def read_outcome(self) -> Optional[Outcome]:
        """How the last segment ended; None when nobody has said."""
        read = self.carrier.read if self.carrier.remote else self._read_here
        try:
            content = read(protocol.OUTCOME)
        except (FileNotFoundError, KeyError):
            return None
        return protocol.parse_outcome(content)

    def _manifest(self, step: int) -> Manifest:
        for manifest in self.committed():
            if manifest.step == step:
                return manifest
        raise LookupError("{}: step {} is not committed, or not whole".format(self.directory, step))

    def _whole(self, path: str, part: Part) -> Optional[part_file.BytesLike]:
        """The content of a part, once it has been verified."""
        try:
            if os.stat(path).st_size != part.size:
                return None
            content = part_file.mapped(path)
        except FileNotFoundError:
            return None
        return content if hashlib.sha256(content).hexdigest() == part.sha256 else None

    def _bring(self, manifest: Manifest, part: Part, path: str) -> None:
        """From S3. Ranks of one host may both do it: whoever is last renames the same content in."""
        temporary = self._temporary("brought")
        name = protocol.step_directory(manifest.step) + "/" + part.name
        try:
            self._make_folder(os.path.dirname(path))
            self.carrier.bring(name, temporary)
            if self._whole(temporary, part) is None:
                raise Torn(name, "what S3 has under this name is not what the manifest says")
            os.replace(temporary, path)
        except KeyError:
            raise Torn(name, "S3 does not have it any more") from None
        except OSError as error:
            raise CannotLoad(
                "{}: its {:,} bytes cannot be written here: {}".format(name, part.size, error)
            ) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _delete(self, step: int) -> None:
        folder = os.path.join(self.directory, protocol.step_directory(step))
        with contextlib.suppress(FileNotFoundError):
            present = os.listdir(folder)
            own = [name for name in present if protocol.rank_of(name) == self.rank]
            if self.leads:
                # COMMIT first: what is taken apart has stopped to count before anything of it is missing.
                manifests = [name for name in present if protocol.is_manifest(name)]
                own = [name for name in present if name == protocol.COMMIT] + manifests + own
            for name in own:
                os.unlink(os.path.join(folder, name))
            self.carrier.delete([protocol.step_directory(step) + "/" + name for name in own])
            with contextlib.suppress(OSError):  # other ranks of this host have their parts in it
                os.rmdir(folder)

    def _publish(self, name: str, content: bytes) -> None:
        """A small file, replaced whole."""
        temporary = self._temporary("small")
        path = os.path.join(self.directory, name)
        try:
            durable.write(temporary, [content])
            self._make_folder(os.path.dirname(path))
            os.replace(temporary, path)
            durable.sync_names(os.path.dirname(path))
        except OSError as error:
            raise self._not_saved(error, len(content), temporary) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        self.carrier.take(name, path, len(content))

    def _not_saved(self, error: OSError, size: int, temporary: str) -> NotSaved:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)  # before looking how much is free without it
        if error.errno not in _NO_ROOM:
            return NotSaved("{}: the checkpoint could not be written: {}".format(self.directory, error))
        free = durable.free(self.directory)
        return NoRoom(self.directory, max(size, free + 1), free)

    def _make_folder(self, folder: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
            durable.sync_names(self.directory)

    def _read_here(self, name: str) -> bytes:
        with open(os.path.join(self.directory, name), "rb") as file:
            return file.read()

    def _temporary(self, what: str) -> str:
        return os.path.join(self._scratch, ".{}-{:05d}".format(what, self.rank))

    def _sweep(self) -> None:
        """What killed processes left: this rank's and, for the leader, those of ranks that are no more. In
        the directory itself it may even come from S3."""
        for folder in {self._scratch, self.directory}:
            for name in os.listdir(folder):
                match = _TEMPORARY.fullmatch(name)
                rank = int(match.group(1)) if match else -1
                if rank == self.rank or (self.leads and rank >= self.world_size):
                    os.unlink(os.path.join(folder, name))


def _files_below(directory: str) -> Dict[str, int]:
    """Paths below the directory, one level deep, with sizes. What vanishes meanwhile is not there."""
    found = {}
    for name in os.listdir(directory):
        if protocol.parse_step(name) is None:
            continue
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(
            os.path.join(directory, name)
        ) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found[name + "/" + entry.name] = entry.stat().st_size
    return found


def _why_torn(path: str, part: Part) -> str:
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        return "it is missing"
    if size != part.size:
        return "it has {:,} bytes and the manifest says {:,}".format(size, part.size)
    return "its content is not what the manifest says (sha256)"
