"""A run and a sync that keeps no promise, in memory: what S3 may look like at any moment of it.

Ranks save, are killed, begin again from a copy of what S3 has, save the same steps with other content, and
delete old ones. Meanwhile files reach S3 in any order, late, half, or never; deletes reach it late, too. The
model remembers what was really saved, so it can say what a reader ought to find without reading any hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from smlaunch.contract.checkpoint_layout import (
    Manifest,
    Shard,
    commit_content,
    commit_name,
    manifest_name,
    shard_name,
    step_directory,
)
from smlaunch.contract.run_names import CheckpointWriter

Files = dict[str, bytes]

COMMIT = commit_name(CheckpointWriter())


@dataclass(frozen=True)
class Saved:
    """One complete save of a step. ``files``: parts and manifest; ``commit`` commits it."""

    step: int
    commit: bytes
    files: Files


@dataclass
class Model:
    """``moments`` yields the content of S3 at random moments; ``expected`` is what a reader has to find in
    it."""

    random: Random
    directory: Files = field(default_factory=dict)
    s3: Files = field(default_factory=dict)
    saves: list[Saved] = field(default_factory=list)

    def moments(self) -> Iterator[Files]:
        for _ in range(self.random.randint(1, 3)):
            yield from self._run_life()
            # The job has ended, and files that have not reached S3 are lost. The next job begins with a copy.
            self.directory = dict(self.s3)

    def expected(self) -> Saved | None:
        """Returns the newest step of which S3 has COMMIT and all files that it names."""
        complete_saves = [
            save
            for save in self.saves
            if self.s3.get(f"{step_directory(save.step)}/{COMMIT}") == save.commit
            and all(self.s3.get(name) == content for name, content in save.files.items())
        ]
        return max(complete_saves, key=lambda save: save.step, default=None)

    def _run_life(self) -> Iterator[Files]:
        random = self.random
        newest = self.expected()
        first = 1 + (newest.step if newest else 0)
        self._world = random.randint(1, 4)
        self._synced = dict(self.directory)
        self._lossy = random.choice((0.0, 0.0, 0.1, 0.5))
        self._lost: set[tuple[str, bytes]] = set()
        for step in range(first, first + random.randint(1, 5)):
            for _ in self._save(step, f"{random.randrange(3)}"):
                if random.random() < 0.4:
                    yield from self._sync(random.randint(1, 4))
            if random.random() < 0.3:
                self._delete(step - random.randint(1, 3))
        if random.random() < 0.5:
            yield from self._sync(100)

    def _save(self, step: int, word: str) -> Iterator[None]:
        """Saves in the order of a store: parts by all ranks at once, the manifest, COMMIT."""
        directory = step_directory(step) + "/"
        parts, files = [], {}
        for rank in self.random.sample(range(self._world), self._world):
            content = f"{step} {rank} {word}".encode() * (1 + rank)
            digest = hashlib.sha256(content).hexdigest()
            parts.append(Shard(rank, shard_name(rank, self._world, digest), len(content), digest))
            files[directory + parts[-1].name] = content
        manifest = Manifest(step, self._world, tuple(sorted(parts))).to_bytes()
        files[directory + manifest_name(manifest)] = manifest
        self.saves.append(Saved(step, commit_content(manifest), files))
        for name, content in files.items():
            self.directory[name] = content
            yield
        self.directory[directory + COMMIT] = self.saves[-1].commit
        yield

    def _delete(self, step: int) -> None:
        """Deletes some or all files of a step: ranks delete at different speeds, and may be killed
        meanwhile."""
        old_names = sorted(name for name in self.directory if name.startswith(step_directory(step) + "/"))
        for name in self.random.sample(old_names, self.random.randint(0, len(old_names))):
            del self.directory[name]

    def _sync(self, changes: int) -> Iterator[Files]:
        """Copies some of the differences, in any order; S3 can be read between any two."""
        random = self.random
        pending = [name for name, content in self.directory.items() if self._synced.get(name) != content]
        pending += [name for name in self._synced if name not in self.directory]
        random.shuffle(pending)
        for name in pending[:changes]:
            present = self.directory.get(name)
            if present is None:
                del self._synced[name]
                self.s3.pop(name, None)
            elif random.random() < 0.15:
                self.s3[name] = _half(present, random)  # and again, as a whole, later on
            else:
                self._synced[name] = present
                if random.random() >= self._lossy:
                    self.s3[name] = present
            if random.random() < 0.4:
                yield self.s3


def _half(content: bytes, random: Random) -> bytes:
    """Returns a part of the content, or all of its length with a part not yet filled."""
    cut = random.randrange(len(content))
    return content[:cut] + random.choice((b"", bytes(len(content) - cut)))
