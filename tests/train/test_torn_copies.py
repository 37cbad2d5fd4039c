"""For any partial copy of a checkpoint directory the newest complete step is loaded, and only that."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from smlaunch.contract import checkpoint_layout
from smlaunch.contract.checkpoint_layout import Manifest, step_directory
from smlaunch.contract.run_names import CheckpointWriter
from smlaunch.train.checkpoint_store import CheckpointStore
from smlaunch.train.transports.base import CheckpointTransport
from tests.train.sync_model import Files, Model, Saved


def models_at_random_moments(seed: int) -> Iterator[Model]:
    """Yields models without end, each stopped at moments at which a reader reads."""
    for number in itertools.count():
        model = Model(Random(f"{seed} {number}"))
        for _ in model.moments():
            yield model


def load_newest(files: Files) -> tuple[Manifest, Files] | None:
    """Loads as ``CheckpointStore.newest_intact_manifest`` does, without a disk."""
    sizes = {name: len(content) for name, content in files.items()}
    for manifest in checkpoint_layout.iter_committed(sizes, files.__getitem__):
        names = {part: f"{step_directory(manifest.step)}/{part.name}" for part in manifest.shards}
        if all(hashlib.sha256(files[name]).hexdigest() == part.sha256 for part, name in names.items()):
            return manifest, {name: files[name] for name in names.values()}
    return None


def check(loaded: tuple[Manifest, Files] | None, expected: Saved | None) -> None:
    if expected is None:
        assert loaded is None
        return
    assert loaded is not None
    manifest, parts = loaded
    assert manifest.step == expected.step
    assert parts == {name: content for name, content in expected.files.items() if name.endswith(".shard")}


@pytest.mark.parametrize("cases", [10_000, pytest.param(200_000, marks=pytest.mark.chaos)])
def test_any_copy_gives_the_newest_whole_step(cases: int) -> None:
    steps: set[int | None] = set()
    resaved = 0
    for model in itertools.islice(models_at_random_moments(seed=1), cases):
        expected = model.expected()
        check(load_newest(model.s3), expected)
        steps.add(expected.step if expected else None)
        resaved += expected is not None and sum(save.step == expected.step for save in model.saves) > 1
    assert None in steps and len(steps) > 10, "the model has shown nothing, little and much"
    assert resaved > cases // 20, "and steps that were saved again"


@pytest.mark.parametrize("cases", [200, pytest.param(10_000, marks=pytest.mark.chaos)])
def test_the_store_takes_the_same_step_from_a_real_directory(tmp_path: Path, cases: int) -> None:
    for number, model in enumerate(itertools.islice(models_at_random_moments(seed=2), 0, cases * 7, 7)):
        folder = tmp_path / str(number)
        for name, content in model.s3.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
        check(load_from_store(CheckpointStore(str(folder), 0, 1)), model.expected())


class InMemory(CheckpointTransport):
    """A transport of S3 with an incomplete copy in it."""

    is_remote = True

    def __init__(self, files: Files) -> None:
        self._files = files

    def list_files(self) -> dict[str, int]:
        return {name: len(content) for name, content in self._files.items()}

    def read_file(self, name: str) -> bytes:
        return self._files[name]

    def download(self, name: str, path: str) -> None:
        Path(path).write_bytes(self._files[name])


@pytest.mark.parametrize("cases", [100, pytest.param(10_000, marks=pytest.mark.chaos)])
def test_so_does_one_that_fetches_what_it_opens(tmp_path: Path, cases: int) -> None:
    for number, model in enumerate(itertools.islice(models_at_random_moments(seed=3), 0, cases * 7, 7)):
        store = CheckpointStore(str(tmp_path / str(number)), 0, 1, transport=InMemory(model.s3))
        check(load_from_store(store), model.expected())


def load_from_store(store: CheckpointStore) -> tuple[Manifest, Files] | None:
    manifest = store.newest_intact_manifest()
    if manifest is None:
        return None
    directory = step_directory(manifest.step)
    names = [f"{directory}/{part.name}" for part in manifest.shards]
    return manifest, {name: (Path(store.directory) / name).read_bytes() for name in names}


def test_an_error_of_the_disk_is_not_taken_for_a_torn_copy(tmp_path: Path) -> None:
    """Loading an older step, because one cannot be read just now, would lose work silently."""
    store = CheckpointStore(str(tmp_path), 0, 1)
    for step in (1, 2):
        store.commit(step, [store.write_shard(step, [b"content"])])
    commit = tmp_path / step_directory(2) / checkpoint_layout.commit_name(CheckpointWriter())
    commit.unlink()
    commit.mkdir()
    with pytest.raises(IsADirectoryError):
        store.newest_intact_manifest()
