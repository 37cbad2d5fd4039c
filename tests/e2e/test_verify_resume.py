"""verify-resume on scripts that resume exactly, and on ones that are wrong in one way each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.command import smlaunch

SCRIPT = '''
import json, os, random, time
from smlaunch.train import Checkpointer, ResumableOrder


class Thing:
    def __init__(self, **values):
        self.__dict__.update(values)

    def state_dict(self):
        return dict(self.__dict__)

    def load_state_dict(self, state):
        self.__dict__.update(state)


class DecayLR(Thing):
    def factor(self):
        self.steps += 1
        return 0.1 * 0.9 ** self.steps


class Loader:
    """Augments by a generator of each sample's own."""

    def __init__(self, order):
        self.order = order

    def __len__(self):
        return self.order.steps_per_epoch

    def __iter__(self):
        for _, keys in self.order.batches():
            yield [index + random.Random(f"{epoch}/{index}").random() for epoch, index in keys]


random.seed(1)
weights, velocity, scheduler = Thing(value=0.0), Thing(value=0.0), DecayLR(steps=0)
order = ResumableOrder(20, batch_size=4, seed=1)
with Checkpointer(order=order, weights=weights, velocity=velocity, scheduler=scheduler) as run:
    for batch in run.batches(Loader(order), epochs=8):
        time.sleep(0.01)
        dropout = random.random() < 0.5
        error = weights.value - sum(batch) / len(batch)
        velocity.value = 0.9 * velocity.value + error * dropout
        weights.value -= scheduler.factor() * velocity.value
        run.step(loss=error * error)
if run.finished:
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights.json"), "w") as file:
        json.dump(weights.value, file)
'''

GLOBAL_AUGMENTATION = """
    def __iter__(self):
        ahead = []
        for _, keys in self.order.batches():
            ahead.append([index + random.random() for _, index in keys])
            if len(ahead) == 3:
                yield ahead.pop(0)
        yield from ahead
"""

OWN_CHECKPOINTS = """
import json, os, pathlib, random, time
state_file = pathlib.Path("/opt/ml/checkpoints/state.json")
state = json.loads(state_file.read_text()) if state_file.exists() else {"step": 0, "weight": 0.0}
random.seed(1)
for step in range(state["step"], 40):
    time.sleep(0.03)
    state = {"step": step + 1, "weight": state["weight"] + DRAW}
    state_file.with_suffix(".new").write_text(json.dumps(state))
    state_file.with_suffix(".new").rename(state_file)
    print(f"smlaunch: progress step={step + 1} steps=40", flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights.json"), "w") as file:
    json.dump(state["weight"], file)
"""


SLOW = SCRIPT.replace("sleep(0.01)", "sleep(0.04)")
"""Slow enough that its one cut is not late on a busy machine."""


def line_of(script: str, text: str) -> int:
    return script[: script.index(text)].count("\n") + 1


def verify(folder: Path, script: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Returns the exit code and the report."""
    (folder / "train.py").write_text(script)
    result = smlaunch("verify-resume", folder / "train.py", "--json", *arguments)
    assert result.code in (0, 1), result.text
    return result.code, json.loads(result.out)


def test_a_script_that_resumes_exactly(home: Path, tmp_path: Path) -> None:
    code, report = verify(tmp_path, SCRIPT, "--cuts", "2")
    assert code == 0, report
    assert report["identical"]
    assert (report["steps"], report["ranks"]) == (40, 1)
    assert report["compared"] == [
        "samples of 40 steps",
        "losses of 40 steps",
        "final state: order, scheduler, smlaunch.rng.python, velocity, weights",
        "model/weights.json",
    ]
    assert report["not_compared"] == ["output/data: no file in /opt/ml/output/data"]
    assert [trial["signal"] for trial in report["trials"]] == ["term", "kill"]
    for trial in report["trials"]:
        assert len(trial["cuts"]) + trial["late"] == 2
        for cut in trial["cuts"]:
            assert 1 <= cut["resumed"] <= 40
    assert not home.exists(), "it has a directory of its own"


def test_a_schedule_that_is_not_kept_is_named(home: Path, tmp_path: Path) -> None:
    script = SLOW.replace(", scheduler=scheduler)", ")")
    code, report = verify(tmp_path, script, "--cuts", "1", "--signal", "term")
    assert code == 1, report
    assert report["repeats"] is True
    (trial,) = report["trials"]
    assert "with the same samples" in trial["differences"][0]
    (cause,) = trial["causes"]
    line = line_of(script, "DecayLR(steps")
    assert cause.startswith(f"the state of the scheduler is not saved: train.py:{line} DecayLR starts again")


def test_augmentation_from_the_global_generator_is_named(home: Path, tmp_path: Path) -> None:
    # One epoch: where one ends, nothing is augmented ahead, and a cut there changes nothing.
    script_text = SLOW.replace("ResumableOrder(20,", "ResumableOrder(160,").replace("epochs=8", "epochs=1")
    head, _, script_end = script_text.partition("    def __iter__(self):")
    script = head + GLOBAL_AUGMENTATION + script_end[script_end.index("\n\n\nrandom.seed") :]
    code, report = verify(tmp_path, script, "--cuts", "1", "--signal", "term")
    assert code == 1, report
    assert report["repeats"] is True
    (trial,) = report["trials"]
    assert "the first one after cut 1" in trial["differences"][0]
    (cause,) = trial["causes"]
    assert "augmentation or dropout" in cause
    assert f"train.py:{line_of(script, 'index + random.random()')} random.random" in cause


@pytest.mark.real
def test_a_training_that_does_not_repeat_itself(home: Path, tmp_path: Path) -> None:
    script = SCRIPT.replace("random.seed(1)\n", "")
    code, report = verify(tmp_path, script, "--cuts", "1", "--signal", "term")
    assert code == 1
    assert report["repeats"] is False
    assert "two unsplit runs differ already" in report["trials"][0]["causes"][0]


@pytest.mark.real
@pytest.mark.parametrize("signal", ["term", "kill"])
def test_checkpoints_of_the_script_s_own(home: Path, tmp_path: Path, signal: str) -> None:
    options = ("--cuts", "1", "--signal", signal)
    code, report = verify(tmp_path, OWN_CHECKPOINTS.replace("DRAW", "step / 7"), *options)
    assert code == 0, report
    assert report["compared"] == ["model/weights.json"]
    assert "the script does not use the Checkpointer" in report["not_compared"][0]
    code, report = verify(tmp_path, OWN_CHECKPOINTS.replace("DRAW", "random.random()"), *options)
    assert code == 1
    (trial,) = report["trials"]
    (difference,) = trial["differences"]
    assert difference.startswith("model/weights.json differs in '")
    assert "train.py:8 random.random" in " ".join(trial["causes"])


def test_a_script_that_fails_by_itself_cannot_be_tried(home: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit('no data here')\n")
    result = smlaunch("verify-resume", tmp_path / "train.py")
    assert result.code == 2
    assert "the script fails without any cut" in result.err
