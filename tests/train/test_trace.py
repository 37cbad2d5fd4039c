"""The trace that a rank writes for verify-resume, and the generators in it that were drawn from."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smlaunch.contract.segment import TRACE_VARIABLE
from smlaunch.train.checkpoint_components import Component, GeneratorComponent, GlobalGeneratorsComponent
from smlaunch.train.step_trace import TraceWriter, tree_sha256

np = pytest.importorskip("numpy")


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "j-rank0.jsonl").read_text().splitlines()]


def drawn_generators(folder: Path, draw: Callable[[], Any], generator: random.Random) -> list[str]:
    components: list[Component] = [GeneratorComponent("noise", generator), GlobalGeneratorsComponent()]
    trace = TraceWriter.from_environment({TRACE_VARIABLE: str(folder)}, "j", 0)
    trace.record_start(0, components)
    draw()
    trace.record_end(1, components)
    names: list[str] = rows(folder)[-1]["drawn"]
    return names


DRAWS: dict[str, Callable[[], Any]] = {
    "": lambda: None,
    "smlaunch.rng.python": random.random,
    "smlaunch.rng.numpy": np.random.random,
}


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_that_was_drawn_from_is_named(tmp_path: Path, name: str) -> None:
    assert drawn_generators(tmp_path, DRAWS[name], random.Random(1)) == ([name] if name else [])


def test_a_registered_generator_too(tmp_path: Path) -> None:
    generator = random.Random(1)
    assert drawn_generators(tmp_path, generator.random, generator) == ["noise"]


def test_drawing_and_putting_back_is_no_drawing(tmp_path: Path) -> None:
    def draw_and_restore() -> None:
        state = random.getstate()
        random.random()
        random.setstate(state)

    assert drawn_generators(tmp_path, draw_and_restore, random.Random(1)) == []


@pytest.mark.parametrize(("draws", "names"), [(0, []), (1, ["smlaunch.rng.numpy"])])
def test_a_library_imported_while_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, draws: int, names: list[str]
) -> None:
    def draw_from_library() -> None:
        monkeypatch.undo()
        np.random.set_state(np.random.RandomState().get_state())  # as it is after the import
        np.random.random(draws)

    monkeypatch.delitem(sys.modules, "numpy")
    assert drawn_generators(tmp_path, draw_from_library, random.Random(1)) == names


@pytest.mark.parametrize(
    ("loss", "expected_loss"),
    [(1, 1.0), (np.float32(0.5), 0.5), (float("nan"), "nan"), ("high", "'high'"), ([1, 2], "[1, 2]")],
)
def test_whatever_is_handed_to_step_as_loss(tmp_path: Path, loss: Any, expected_loss: Any) -> None:
    trace = TraceWriter.from_environment({TRACE_VARIABLE: str(tmp_path)}, "j", 0)
    trace.record_step(1, [4], {"loss": loss})
    trace.record_step(2, [5], {"loss": None})
    first, second = rows(tmp_path)
    assert first["loss"] == expected_loss or str(first["loss"]) == expected_loss
    assert "loss" not in second


def test_a_dict_filled_in_another_order_is_the_same_state() -> None:
    first, other = {"a": {"x": 1, "y": 2.0}, "b": np.ones(2)}, {"b": np.ones(2), "a": {"y": 2.0, "x": 1}}
    assert tree_sha256(first) == tree_sha256(other)
    assert tree_sha256(first) != tree_sha256({**first, "b": np.zeros(2)})
    assert tree_sha256({1: "a", "1": "b"}) != tree_sha256({1: "b", "1": "a"})
