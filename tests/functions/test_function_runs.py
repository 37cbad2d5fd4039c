"""Functions on hosts of this machine: every rank calls, rank 0's result comes back, exceptions too."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, CancelledError, TimeoutError, as_completed, wait
from pathlib import Path
from typing import Any

import cloudpickle
import numpy
import pytest

import smlaunch
from smlaunch import Compute, FunctionError, Future, Job, JobError, RemoteTraceback, ServiceError, Target
from smlaunch.connection.open_connection import Connection, open_connection

TWO_BY_TWO = Compute(hosts=2, processes_per_host=2)


@pytest.fixture(scope="module")
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory for this file, and an endpoint with hosts that any machine can have."""
    folder = tmp_path_factory.mktemp("functions") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMLAUNCH_HOME", str(folder))
        for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        yield folder


@pytest.fixture(scope="module")
def connection(state_folder: Path) -> Iterator[Connection]:
    options = {"local": True, "region": None, "profile": None, "isolation": "plain"}
    # What this file defines travels by value, as what a notebook defines: hosts do not have it.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with open_connection(options) as connection:
        yield connection
    cloudpickle.unregister_pickle_by_value(sys.modules[__name__])


@pytest.fixture
def target(connection: Connection) -> Target:
    return connection.target


@pytest.fixture
def job(tmp_path: Path) -> Job:
    (tmp_path / "source").mkdir()
    return Job(source=tmp_path / "source")


class Weights:
    """A class that a host has only from the call."""

    unit = "gram"

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def total(self) -> float:
        return sum(self.values)


class Diverged(Exception):
    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def rank_of_this_process() -> int:
    return int(os.environ["RANK"])


def test_every_rank_calls_and_rank_0_answers(target: Target, job: Job) -> None:
    def train(rate: float, *, weights: Weights) -> dict[str, Any]:
        print(f"called with {rate}", flush=True)
        weights.values = [value * rate for value in weights.values]
        return {"rank": rank_of_this_process(), "world": int(os.environ["WORLD_SIZE"]), "weights": weights}

    weights, total = Weights([1.0, 2.0]), Weights.total
    future = smlaunch.submit(
        train, 0.5, weights=weights, job=job.with_changes(compute=TWO_BY_TWO), target=target
    )
    result = future.result(timeout=100)
    assert (result["rank"], result["world"]) == (0, 4)
    # The class is this process's own, and is as it was.
    assert type(result["weights"]) is Weights and result["weights"].total() == 1.5
    assert Weights.total is total and weights.values == [1.0, 2.0]
    calls = sorted(line.text for line in future.run.logs() if "called with" in line.text)
    assert calls == [f"[{rank}] called with 0.5" for rank in range(4)]
    assert future.run.describe().status == "Completed"


def test_the_exception_of_any_rank_arrives_as_itself(target: Target, job: Job) -> None:
    def train() -> None:
        if rank_of_this_process() == 3:
            raise Diverged(7)
        time.sleep(100)  # waits for the lost rank, as an all-reduce does

    future = smlaunch.submit(train, job=job.with_changes(compute=TWO_BY_TWO), target=target)
    error = future.exception(timeout=100)
    assert type(error) is Diverged and error.step == 7
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "in train" in str(error.__cause__) and "Diverged: 7" in str(error.__cause__)
    outcome = future.run.describe()
    assert outcome.status == "Failed"
    assert outcome.last_job.failure is not None and outcome.last_job.failure.rank == 3


class NeedsTwo(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} {second}")


def test_what_comes_of_other_endings(target: Target, job: Job) -> None:
    def end(how: str) -> Any:
        if how == "unpicklable":
            raise NeedsTwo(1, 2)
        if how == "exit":
            sys.exit(3)
        os._exit(9)

    futures = {
        how: smlaunch.submit(end, how, job=job, target=target) for how in ("unpicklable", "exit", "dies")
    }
    error = futures["unpicklable"].exception(timeout=100)
    assert isinstance(error, FunctionError)
    assert (
        error.type_name.endswith("NeedsTwo") and "NeedsTwo: 1 2" in str(error) and "in end" in error.traceback
    )
    error = futures["exit"].exception(timeout=100)
    assert isinstance(error, FunctionError) and "SystemExit: 3" in str(error)
    error = futures["dies"].exception(timeout=100)
    assert type(error) is smlaunch.TrainingFailed and "exited with code 9" in str(error)


def first_line(future: Future[Any], text: str) -> None:
    """Wait until the hosts have printed the text."""
    deadline = time.monotonic() + 100
    while not any(text in line.text for line in future.run.logs()):
        assert time.monotonic() < deadline and not future.done()
        time.sleep(0.05)


def test_a_future_is_one_of_the_standard_library(target: Target, job: Job) -> None:
    def waits(for_file: str) -> str:
        print("started", flush=True)
        while not os.path.exists(for_file):
            time.sleep(0.05)
        return for_file

    gate = Path(str(job.source)).parent / "gate"
    slow = smlaunch.submit(waits, str(gate), job=job, target=target)
    quick = smlaunch.submit(lambda: 1, job=job, target=target)
    assert slow.running() and not slow.done()
    with pytest.raises(TimeoutError):
        slow.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        slow.exception(timeout=0.01)
    finished: list[Any] = []
    slow.add_done_callback(finished.append)
    assert wait([slow, quick], timeout=100, return_when=FIRST_COMPLETED).done == {quick}
    first_line(slow, "started")
    gate.touch()
    assert {future.result() for future in as_completed([slow, quick], timeout=100)} == {1, str(gate)}
    assert finished == [slow] and not slow.running() and not slow.cancelled()
    assert slow.cancel() is False


def test_cancel_stops_the_run(target: Target, job: Job) -> None:
    def waits() -> None:
        print("started", flush=True)
        time.sleep(1000)

    future = smlaunch.submit(waits, job=job, target=target)
    first_line(future, "started")
    assert future.cancel() and future.cancelled() and future.done() and not future.running()
    assert future.cancel() is True
    assert wait([future], timeout=1).done == {future}
    with pytest.raises(CancelledError):
        future.result()
    assert future.run.wait().status == "Stopped"
    assert future.cancelled()


def test_large_results_come_as_they_are(target: Target, job: Job) -> None:
    def make() -> tuple[Any, bytes]:
        import numpy

        return numpy.arange(4_000_000, dtype="float64"), b"x" * 5_000_000

    array, text = smlaunch.submit(make, job=job, target=target).result(timeout=100)
    assert numpy.array_equal(array, numpy.arange(4_000_000)) and text == b"x" * 5_000_000


def test_the_same_call_under_the_same_name_is_the_same_run(
    target: Target, job: Job, state_folder: Path
) -> None:
    def add(left: int, right: int) -> list[int]:
        print("adding", flush=True)
        return [left + right]

    named = job.with_changes(name="adding")
    first = smlaunch.submit(add, 1, 2, job=named, target=target)
    assert first.result(timeout=100) == [3] and not first.run.attached
    second = smlaunch.submit(add, 1, 2, job=named, target=target)
    assert second.result(timeout=100) == [3] and second.run.attached
    with pytest.raises(JobError, match="was made of another call: different are the argument right;"):
        smlaunch.submit(add, 1, 3, job=named, target=target)
    assert sum("adding" in line.text for line in second.run.logs()) == 1

    # Somebody changes the result in the bucket: it is refused, and not as what it was.
    (archive,) = (state_folder / "s3").rglob("adding/output/adding-*/output/output.tar.gz")
    changed = archive.with_name("changed")
    with tarfile.open(archive) as old, tarfile.open(changed, "w:gz") as new:
        for member in old:
            file = old.extractfile(member) if member.isfile() else None
            if file is None:
                new.addfile(member)
                continue
            content = file.read().replace(b"3", b"4")
            new.addfile(member, io.BytesIO(content))
    target.storage.put_bytes(
        archive.parts[archive.parts.index("s3") + 1], key_of(archive), changed.read_bytes()
    )
    with pytest.raises(ServiceError, match="is not the file that the host has written"):
        smlaunch.submit(add, 1, 2, job=named, target=target).result(timeout=100)


def key_of(path: Path) -> str:
    return "/".join(path.parts[path.parts.index("s3") + 2 :])
