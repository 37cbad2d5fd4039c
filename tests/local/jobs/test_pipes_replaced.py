"""A program may replace its FIFOs: data are written only into the FIFOs that the endpoint created."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

import pytest

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs import channel_data
from smlaunch.local.jobs.channel_listing import InputDataError
from smlaunch.local.jobs.pipe_mode import PipeFeeder
from smlaunch.local.stores.object_store import ObjectStore
from tests.local.jobs.conftest import channel, spec


@pytest.fixture
def folder(hosts: list[JobHost]) -> Path:
    path = hosts[0].opt_ml_folder / "input" / "data"
    path.mkdir(parents=True)
    return path


class Feed:
    def __init__(self, objects: ObjectStore, host: JobHost) -> None:
        objects.put_object_bytes("data", "train/part", b"data")
        wanted = spec([channel("train", "s3://data/train/", InputMode="Pipe")], hosts=1)
        channel_setup = channel_data.prepare_channels(
            wanted, [host], objects, Settings(), False, lambda: None
        )
        self.errors: list[InputDataError] = []
        self.broken = threading.Event()
        self.pipes = PipeFeeder(channel_setup.pipe_feeds, objects, self._break)
        self.pipes.start()

    def _break(self, error: InputDataError) -> None:
        self.errors.append(error)
        self.broken.set()


@pytest.fixture
def feed(objects: ObjectStore, hosts: list[JobHost], folder: Path) -> Feed:
    return Feed(objects, hosts[0])


def test_a_name_that_became_a_link_is_not_written_through(feed: Feed, folder: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("of this machine")
    descriptor = os.open(folder / "train_1", os.O_RDONLY | os.O_NONBLOCK)
    (folder / "train_1").unlink()
    (folder / "train_1").symlink_to(victim)
    assert (folder / "train_0").read_bytes() == b"data"
    poller = select.poll()  # a read before the writer opens would return no data
    poller.register(descriptor, select.POLLIN)
    assert poller.poll(30_000)
    assert os.read(descriptor, 100) == b"data", "the FIFO is the one that was made"
    os.close(descriptor)
    feed.pipes.finish()
    assert victim.read_text() == "of this machine"


def test_a_directory_that_became_a_link_gets_no_fifo(feed: Feed, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").mkdir()
    away = folder.with_name("away")
    folder.rename(away)
    folder.symlink_to(tmp_path / "victim")
    for epoch in range(4):
        assert (away / f"train_{epoch}").read_bytes() == b"data"
    feed.pipes.finish()
    assert list((tmp_path / "victim").iterdir()) == []


def test_a_name_that_is_taken_breaks_the_job(feed: Feed, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("of this machine")
    (folder / "train_2").symlink_to(tmp_path / "victim")
    assert (folder / "train_0").read_bytes() == b"data"
    assert feed.broken.wait(20)
    assert "train_2" in str(feed.errors[0])
    feed.pipes.finish()
    assert (tmp_path / "victim").read_text() == "of this machine"
