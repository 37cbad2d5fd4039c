"""The behaviour of the Checkpointer on one rank, and its messages on failures."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smlaunch.runs.log_tail import warning_of_host
from smlaunch.train import Checkpointer, ResumableOrder, sample_seed
from smlaunch.train.save_interval import FIRST_SAVE_SECONDS, SaveInterval
from smlaunch.train.step_trace import tree_sha256
from smlaunch.train.stop_signal import StopSignal

np = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def outside_of_a_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("SMLAUNCH_") or name == "WORLD_SIZE"]:
        monkeypatch.delenv(name)
    former = signal.getsignal(signal.SIGTERM)
    torch.set_num_threads(1)  # many tests share few processors
    yield
    signal.signal(signal.SIGTERM, former)


class Sum:
    """A component whose state is no tensor."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"total": 0, "seen": [], "mean": np.zeros(3), "count": np.int64(0)}

    def add(self, samples: list[int]) -> None:
        self.state["total"] += sum(samples)
        self.state["seen"].append(tuple(samples))
        self.state["mean"] += random.random()
        self.state["count"] += np.int64(len(samples))

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


class Numbers:
    """A data set: sample i is i, with numbers from the global generators."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[int, float, float, float, int]:
        return index, random.random(), np.random.random(), float(torch.rand(())), sample_seed() % 1000


def train(
    folder: Path, last_step: int | None = None, epochs: int = 3, per_step: int = 1, **fields: Any
) -> Sum:
    total = Sum()
    order = ResumableOrder(10, 3, seed=1)
    with Checkpointer(order=order, total=total, directory=str(folder), **fields) as run:
        loader = order.loader(Numbers(), collate_fn=list)
        sample_indices: list[int] = []
        for number, batch in enumerate(run.batches(loader, epochs=epochs), 1):
            sample_indices += [index for index, *_ in batch]
            if number % per_step == 0:
                total.add(sample_indices)
                sample_indices = []
                run.step()
                if run.steps_done == last_step:
                    os.kill(os.getpid(), signal.SIGTERM)
    assert run.finished == (outcome(folder)["result"] == "finished")
    return total


def outcome(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "smlaunch/outcome-s1-a1.json").read_text())
    return document


@pytest.mark.parametrize("per_step", [1, 2])
def test_state_of_any_kind_goes_on(tmp_path: Path, per_step: int) -> None:
    random.seed(1)
    uncut = train(tmp_path / "whole", per_step=per_step)
    random.seed(1)
    first = train(tmp_path / "cut", last_step=3, per_step=per_step)
    assert outcome(tmp_path / "cut")["step"] == len(first.state["seen"]) < len(uncut.state["seen"])
    random.seed(99)  # given back
    second = train(tmp_path / "cut", per_step=per_step)
    assert second.state["mean"].tolist() == uncut.state["mean"].tolist()
    assert isinstance(second.state["count"], np.int64)
    assert {**second.state, "mean": 0} == {**uncut.state, "mean": 0}


def test_a_batch_size_may_change_and_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    used_samples: list[int] = []
    for batch_size, last_step in ((4, 1), (2, 99)):
        order = ResumableOrder(10, batch_size, seed=1)
        with Checkpointer(order=order, directory=str(tmp_path)) as run:
            for batch in run.batches(order.loader(Numbers(), collate_fn=list), epochs=1):
                used_samples += [index for index, *_ in batch]
                run.step()
                if run.steps_done == last_step:
                    os.kill(os.getpid(), signal.SIGTERM)
    assert sorted(used_samples) == list(range(10))
    assert "not bit-identical: 4 samples per step before, 2 now" in capsys.readouterr().out


def test_a_finished_training_has_nothing_to_do_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line that the client shows again below "completed"."""
    finished = train(tmp_path)
    assert "trained no step" not in capsys.readouterr().out
    second_run = train(tmp_path)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "trained no step" in line]
    assert (warning_of_host(line) or "").startswith(
        "this job trained no step: the checkpoint that it continued"
    )
    assert second_run.state["seen"] == finished.state["seen"]
    assert outcome(tmp_path)["result"] == "finished"


def test_loading_samples_leaves_the_generators_alone() -> None:
    loader = ResumableOrder(10, 10).loader(Numbers(), collate_fn=list)
    states_before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    (first,) = loader
    assert (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    ) == states_before
    assert (
        len(
            {
                draws
                for _, *draws in ((index, *map(str, values)) for index, *values in first)
                for draws in draws
            }
        )
        > 30
    )
    by_worker = {
        row[0]: row for batch in ResumableOrder(10, 3).loader(Numbers(), collate_fn=list) for row in batch
    }
    assert {row[0]: row for row in first} == by_worker


def test_sample_seed_is_for_samples() -> None:
    with pytest.raises(RuntimeError, match="__getitem__"):
        sample_seed()


def test_a_handler_of_the_scripts_own_is_called_too(tmp_path: Path) -> None:
    received = []
    former = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        train(tmp_path, last_step=2)
        os.kill(os.getpid(), signal.SIGTERM)  # on its way out: it leaves already
        assert received == [signal.SIGTERM, signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, former)
    assert outcome(tmp_path)["result"] == "continue"


def test_a_finished_training_gives_the_handler_back(tmp_path: Path) -> None:
    former = signal.getsignal(signal.SIGTERM)
    train(tmp_path)
    assert signal.getsignal(signal.SIGTERM) == former


def test_a_second_attempt_does_not_pass_the_segments_last_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMLAUNCH_UNTIL_STEP", "3")
    for _ in range(2):
        train(tmp_path)
        assert (outcome(tmp_path)["result"], outcome(tmp_path)["step"]) == ("continue", 3)


def test_the_stop_file_and_the_planned_end(tmp_path: Path) -> None:
    file = tmp_path / "stop"
    stop_signal = StopSignal(str(file), 1000.0, clock=lambda: 900.0)
    assert stop_signal.reason_to_stop(needed_seconds=50) is None
    assert stop_signal.seconds_left() == 100
    assert stop_signal.reason_to_stop(needed_seconds=100) == "the planned end of the segment"
    file.touch()
    assert stop_signal.reason_to_stop() == "the host's stop file"


def test_without_a_directory_nothing_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    order = ResumableOrder(10, 5)
    with Checkpointer(order=order) as run:
        for _ in run.batches(order.loader(Numbers(), collate_fn=list), steps=3):
            run.step(loss=torch.ones(()))
    assert run.finished
    output = capsys.readouterr().out
    assert "no checkpoint directory: nothing is saved" in output
    assert "smlaunch: progress step=3 steps=3 loss=1\n" in output


def test_a_loader_of_ones_own_is_skipped_to_its_place(tmp_path: Path) -> None:
    def job(last_step: int) -> list[int]:
        used_batches = []
        with Checkpointer(directory=str(tmp_path), every_steps=1) as run:
            for batch in run.batches(range(4), epochs=2):
                used_batches.append(batch)
                run.step()
                if run.steps_done == last_step:
                    os.kill(os.getpid(), signal.SIGTERM)
        return used_batches

    first, second = job(last_step=4), job(last_step=99)
    assert first + second == [0, 1, 2, 3, 0, 1, 2, 3]
    assert 4 <= len(first) <= 6


def test_what_cannot_be_kept_is_named(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match=r"one: a dict has no state_dict.*\n.*two: a int has no state_dict"):
        Checkpointer(one={}, two=3)
    with pytest.raises(TypeError, match="shared: nothing is registered as ema"):
        Checkpointer(shared=["ema"])
    total = Sum()
    total.state = {"hook": print}
    with (
        pytest.raises(RuntimeError, match=r"step 1 cannot be saved: .*\n.*own\.total\.hook: a builtins"),
        Checkpointer(total=total, directory=str(tmp_path), every_steps=1) as run,
    ):
        for _ in run.batches(range(9), steps=9):
            run.step()


def test_a_checkpoint_of_another_script_is_refused(tmp_path: Path) -> None:
    train(tmp_path, last_step=2)
    with (
        pytest.raises(ValueError, match="also has the state of total"),
        Checkpointer(order=ResumableOrder(10, 3, seed=1), directory=str(tmp_path)),
    ):
        pass
    with (
        pytest.raises(
            ValueError,
            match=r"ema: the checkpoint of step \d has no such state, only: .*order, smlaunch.rng, total",
        ),
        Checkpointer(total=Sum(), order=ResumableOrder(10, 3, seed=1), ema=Sum(), directory=str(tmp_path)),
    ):
        pass
    with (
        pytest.raises(
            ValueError,
            match=r"order: the state of step \d does not fit: .* seed: 1 in the checkpoint, 2 in the script",
        ),
        Checkpointer(total=Sum(), order=ResumableOrder(10, 3, seed=2), directory=str(tmp_path)),
    ):
        pass


def test_a_full_disk_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda directory: SimpleNamespace(free=1000))
    with Checkpointer(total=Sum(), directory=str(tmp_path), every_steps=2) as run:
        for _ in run.batches(range(9), steps=6):
            run.step()
            if run.steps_done == 4:
                run._checkpoint_manager.finish_save()  # type: ignore[union-attr]
                monkeypatch.undo()
    assert "step 2 was not saved: rank 0: " in capsys.readouterr().out
    assert outcome(tmp_path)["step"] == 6
    assert [path.name for path in tmp_path.glob("smlaunch/step-*")] == ["step-000000000006"]


def test_ranks_that_do_not_know_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(RuntimeError, match=r"WORLD_SIZE is 4, and torch.distributed is not initialised"):
        Checkpointer(directory=str(tmp_path)).__enter__()


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), capturable=False, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, lr=0.1, centered=True),
        lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3),
    ],
)
def test_models_and_optimizers_of_many_kinds(tmp_path: Path, make: Any) -> None:
    def job(folder: Path, last_step: int) -> dict[str, Any]:
        torch.manual_seed(3)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3).to(memory_format=torch.channels_last),
            torch.nn.BatchNorm2d(4),
            torch.nn.Flatten(),
            torch.nn.Dropout(0.2),
            torch.nn.Linear(16, 2).to(torch.bfloat16).float(),
        )
        optimizer = make(model.parameters())
        generator = torch.Generator().manual_seed(1)
        plain = random.Random(2)
        modern = np.random.default_rng(3)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        with Checkpointer(
            model=model,
            optimizer=optimizer,
            scheduler=schedule,
            generator=generator,
            plain=plain,
            modern=modern,
            directory=str(folder),
            every_steps=2,
        ) as run:
            for _ in run.batches(range(100), steps=8):
                inputs = torch.randn(3, 1, 4, 4, generator=generator) * plain.random() + modern.random()

                def closure(inputs: Any = inputs) -> Any:
                    optimizer.zero_grad()
                    loss = model(inputs.float()).square().mean()
                    loss.backward()
                    return loss

                schedule.step(optimizer.step(closure))
                run.step()
                if run.steps_done == last_step:
                    os.kill(os.getpid(), signal.SIGTERM)
        return {**model.state_dict(), "drawn": torch.rand(3), "plain": torch.tensor(plain.random())}

    uncut = job(tmp_path / "whole", 99)
    job(tmp_path / "cut", 3)
    resumed = job(tmp_path / "cut", 99)
    assert all(torch.equal(resumed[name], tensor) for name, tensor in uncut.items())


def test_deterministic_algorithms_are_set_and_checked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":8:8")
    try:
        with pytest.raises(RuntimeError, match="CUBLAS_WORKSPACE_CONFIG is :8:8; set it to :4096:8 or :16:8"):
            Checkpointer(deterministic=True).__enter__()
        monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
        monkeypatch.setenv("SMLAUNCH_DETERMINISTIC", "1")
        with Checkpointer():
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
            assert torch.are_deterministic_algorithms_enabled()
            assert torch.backends.cudnn.deterministic
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor([1.5, -0.0, float("nan"), float("inf")], dtype=torch.bfloat16),
        torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn),
        torch.tensor([[1 + 2j], [3 - 4j]]).conj(),
        torch.tensor([True, False]),
        torch.tensor(2**62),
        torch.empty(0, 3),
        torch.arange(24).reshape(2, 3, 4).transpose(0, 2),
        torch.arange(9, dtype=torch.uint8)[1::2],
    ],
)
@pytest.mark.parametrize("shared", [True, False])
def test_tensors_of_every_kind_come_back(tmp_path: Path, tensor: Any, shared: bool) -> None:
    component = Sum()
    component.state = {"deep": [({3: tensor},)]}
    with Checkpointer(thing=component, shared=["thing"] if shared else [], directory=str(tmp_path)) as run:
        run.step()
    loaded = Sum()
    with Checkpointer(thing=loaded, shared=["thing"] if shared else [], directory=str(tmp_path)) as run:
        assert run.restored_step == 1
    back = loaded.state["deep"][0][0][3]
    assert (back.dtype, back.shape) == (tensor.dtype, tensor.shape)
    assert repr(back.tolist() if tensor.itemsize > 1 else back.float().tolist()) == repr(
        tensor.resolve_conj().tolist() if tensor.itemsize > 1 else tensor.float().tolist()
    )
    assert tree_sha256(back) == tree_sha256(tensor)


def test_the_interval_follows_from_what_a_save_costs() -> None:
    interval = SaveInterval(None, failure_seconds=86400, now=0)
    assert interval.interval_seconds == FIRST_SAVE_SECONDS
    for _ in range(9):
        interval.record_step(1.0, is_saving=False)
    interval.record_save_start(60)
    interval.record_step(1.5, is_saving=True)
    message = interval.record_save_end(stall_seconds=0.5, write_seconds=3)
    assert message is not None
    assert "a save costs 1.00 s" in message
    assert interval.interval_seconds == pytest.approx((2 * 1.0 * 86400) ** 0.5, rel=0.01)
    assert not interval.is_due(60 + 400, None)
    assert interval.is_due(60 + 420, None)
    assert not interval.is_due(60 + 420, seconds_left=100), "the planned end saves anyway"
    assert interval.record_save_end(stall_seconds=1.0, write_seconds=3) is None, "no news"
    assert SaveInterval(7, None, 0).interval_seconds == 7
