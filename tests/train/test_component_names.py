"""Names of components: each works, or is refused when the Checkpointer is created."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from smlaunch.train import Checkpointer
from smlaunch.train.checkpoint_components import GlobalGeneratorsComponent
from smlaunch.train.step_trace import component_sha256s


@pytest.fixture(autouse=True)
def outside_of_a_job(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("SMLAUNCH_") or name == "WORLD_SIZE"]:
        monkeypatch.delenv(name)
    former = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, former)


class Thing:
    def __init__(self, value: float = 0.0) -> None:
        self.value = value

    def state_dict(self) -> dict[str, float]:
        return {"value": self.value}

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.value = state["value"]


def train(folder: Path, components: dict[str, Any], steps: int) -> None:
    with Checkpointer(directory=str(folder), every_steps=1, **components) as run:
        for _ in run.batches(range(100), steps=steps):
            for component in components.values():
                if isinstance(component, Thing):
                    component.value += 1
            run.step()


@pytest.mark.parametrize(
    "name", ["smlaunch.rng", "smlaunch.run", "smlaunch.mine", "model.buffers", "", "line\nbreak", "\ud800"]
)
def test_a_name_that_is_taken_is_refused_before_any_training(tmp_path: Path, name: str) -> None:
    for component in (Thing(), random.Random(1)):
        with pytest.raises(ValueError, match="name") as caught:
            Checkpointer(directory=str(tmp_path), **{name: component})
        assert repr(name) in str(caught.value)
    assert not list(tmp_path.iterdir())


PICKED = (
    *("self", "step", "steps", "state", "own", "tensors", "pieces", "spread", "rank", "world_size"),
    *("$", "digests", "loss", "samples", "epoch", "batches", "model", "optimizer", "scheduler", "scaler"),
    *(
        "a/b",
        "..",
        ".",
        "../../x",
        "/etc/passwd",
        "a b",
        "A",
        "a",
        "\u00e9",
        "e\u0301",
        "日本",
        "n" * 400,
        "N" * 400,
    ),
    *("CON", "manifest.json", "COMMIT", "outcome.json", "buffers", "0"),
    *("rng", "run", "rng.python", "smlaunch"),
)


def test_all_other_names_are_kept_side_by_side(tmp_path: Path) -> None:
    first = {name: Thing(float(index)) for index, name in enumerate(PICKED)}
    assert len(first) == len(PICKED)
    train(tmp_path / "kept", first, steps=2)
    second = {name: Thing() for name in PICKED}
    train(tmp_path / "kept", second, steps=3)
    assert [component.value for component in second.values()] == [index + 3.0 for index in range(len(PICKED))]
    assert {path.name for path in tmp_path.iterdir()} <= {"kept", ".kept-writing"}, "no name is a path"


def test_each_component_has_a_digest_of_its_own() -> None:
    with Checkpointer(**{name: Thing(float(index)) for index, name in enumerate(PICKED)}) as run:
        digests = component_sha256s([*run._components])
    assert len({digests[name] for name in PICKED}) == len(PICKED)
    assert {name for name in digests if name not in PICKED} == set(
        component_sha256s([GlobalGeneratorsComponent()])
    )


@pytest.mark.parametrize(
    "setting", ["order", "shared", "directory", "every", "every_steps", "keep", "deterministic", "group"]
)
def test_a_component_under_a_setting_s_name_is_refused(tmp_path: Path, setting: str) -> None:
    settings: dict[str, Any] = {"directory": str(tmp_path), setting: Thing()}
    with pytest.raises(ValueError, match=rf"^{setting}: .*, not a Thing; .* another name"):
        Checkpointer(**settings)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("keep", 0),
        ("keep", True),
        ("every", float("nan")),
        ("every", -1),
        ("every_steps", 0),
        ("every_steps", 1.5),
        ("shared", "ema"),
        ("shared", [1]),
        ("deterministic", "yes"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_by_its_name(setting: str, value: Any) -> None:
    settings: dict[str, Any] = {setting: value}
    with pytest.raises(ValueError, match=f"^{setting}: "):
        Checkpointer(**settings)


@pytest.mark.parametrize("name", ["model", "optimizer", "scheduler", "scaler", "ema"])
def test_what_has_no_state_is_refused_under_any_name(name: str) -> None:
    components: dict[str, Any] = {name: [Thing(), Thing()]}
    with pytest.raises(TypeError, match=f"^{name}: a list has no state_dict"):
        Checkpointer(**components)
