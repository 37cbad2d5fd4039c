"""Whether a call is the same one: in another process, after an edit, with another value."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import pytest

from smlaunch.discovery.named_scripts import names_script
from smlaunch.functions.call_identity import SCRIPT_FILE, hash_of_parts, identify_call
from smlaunch.functions.pickled_call import pickle_call
from tests.tables import table

CELL = """
import collections, enum, functools, typing
from dataclasses import dataclass

SCALE = 2
NAMES = {"left", "right", "up"}
T = typing.TypeVar("T")

class Base:
    rate = 1

class Box(Base, typing.Generic[T]):
    __slots__ = ("x",)
    def get(self) -> int:
        return self.rate

@dataclass
class Config:
    activation: typing.Callable = max
    second: int = 2

class Colour(enum.Enum):
    RED = 1

def helper(x, *, by=1):
    return [part * SCALE + by for part in x if part in NAMES]

def enclosing(value):
    def inner():
        return value
    return inner

inner = enclosing([1, (2, "three")])

def train(x: T, y=(1, 2.0)) -> T:
    if x:
        return helper(x), Config(), Box(), Colour.RED, inner(), 0.0, {1, 2}
    return unused() if False else None
"""


def parts_of(cell: str, *args: Any, **kwargs: Any) -> dict[str, str]:
    main = ModuleType("__main__")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", main)
        exec(compile(cell, "/tmp/ipykernel_1/2.py", "exec"), vars(main))
        return identify_call(cloudpickle, vars(main)["train"], args, kwargs, None)


@table(
    ("before", "after"),
    [
        ("SCALE = 2\n", "# a comment\n\n\nSCALE = 2\n"),
        ("    if x:\n", "    # why\n\n    if x:\n"),
        ("def helper", "def not_used():\n    pass\n\ndef helper"),
        ("SCALE = 2\n", "SCALE = 2\nOTHER = object()\n"),
        ("class Base:", "class NotUsed(int): pass\n\nclass Base:"),
        ('{"left", "right", "up"}', '{"up", "left", "right"}'),
        ("import collections, enum", "import enum, json, collections"),
    ],
)
def test_an_edit_that_the_function_does_not_reach_makes_no_other_call(before: str, after: str) -> None:
    assert before in CELL
    edited = CELL.replace(before, after) + "\nprint('end', file=open('/dev/null', 'w'))\n"
    assert parts_of(edited, [1]) == parts_of(CELL, [1])


@table(
    ("before", "after", "changed"),
    [
        ("SCALE = 2", "SCALE = 2.0", {"the global SCALE"}),
        ("SCALE = 2", "SCALE = True", {"the global SCALE"}),
        ('"up"}', '"down"}', {"the global NAMES"}),
        ("part * SCALE + by", "part * SCALE - by", {"the function helper"}),
        ("by=1", "by=2", {"the function helper"}),
        ("y=(1, 2.0)", "y=(1, 2)", {"the function train"}),
        ("0.0, {", "-0.0, {", {"the function train"}),
        ("{1, 2}", "{1, 3}", {"the function train"}),
        ("rate = 1", "rate = 3", {"the class Base"}),
        ("return self.rate", "return -self.rate", {"the function Box.get"}),
        ('("x",)', '("x", "y")', {"the class Box"}),
        ("(Base, typing", "(typing", {"the class Box", "the class Base"}),
        ("RED = 1", "RED = 2", {"the class Colour"}),
        ("RED = 1", "RED = 1; ROT = 1", {"the class Colour"}),
        ("rate = 1", "limit = 2; rate = 1", {"the class Base"}),
        ('(2, "three")', '(2, "four")', {"the enclosed variable value"}),
        ('TypeVar("T")', 'TypeVar("T", bound=int)', None),
        ("def helper(x, *", "def helper(x, z=1, *", {"the function helper"}),
    ],
)
def test_what_is_edited_is_named(before: str, after: str, changed: set[str] | None) -> None:
    assert before in CELL
    old, new = parts_of(CELL, [1]), parts_of(CELL.replace(before, after), [1])
    assert hash_of_parts(old) != hash_of_parts(new)
    different = {name for name in old | new if old.get(name) != new.get(name)}
    assert changed is None or different == changed


def test_the_order_of_attributes_is_part_of_a_class() -> None:
    before = CELL.replace("rate = 1", "rate = 1; limit = 2")
    after = CELL.replace("rate = 1", "limit = 2; rate = 1")
    assert parts_of(before)["the class Base"] != parts_of(after)["the class Base"]


def shared(item: list[int]) -> list[list[int]]:
    return [item, item]


def ring(length: int) -> list[Any]:
    first: list[Any] = []
    last = first
    for _ in range(length - 1):
        last = [last]
    first.append(last)
    return first


@table(
    ("left", "right"),
    [
        (1, 1.0),
        (1, True),
        (0.0, -0.0),
        ("a", b"a"),
        ((1, 2), [1, 2]),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({1, 2}, frozenset({1, 2})),
        ({(1, "a"), (2, "b")}, {(1, "b"), (2, "a")}),
        ([1, [2]], [[1], 2]),
        ([[], [[]]], [[[]], []]),
        (shared([1]), [[1], [1]]),
        (ring(2), ring(3)),
        ([None, "x"], ["x", None]),
        (len, max),
        (int, float),
        (bytearray(b"a"), b"a"),
        (sys, os),
        (Path("a"), "a"),
    ],
)
def test_another_argument_is_another_call(left: Any, right: Any) -> None:
    first, again, other = (parts_of(CELL, value) for value in (left, left, right))
    assert first == again
    assert first["the argument x"] != other["the argument x"]


def test_deep_and_shared_values_have_an_identity() -> None:
    deep: Any = ()
    for _ in range(700):
        deep = [deep]
    wide: Any = (1,)
    for _ in range(100):
        wide = (wide, wide)
    assert parts_of(CELL, deep) != parts_of(CELL, wide)


def test_a_value_that_cannot_be_described_leaves_the_call_to_be_itself_alone() -> None:
    class Once:
        is_pickled = False

        def __reduce__(self) -> Any:
            if self.is_pickled:
                raise RuntimeError("once only")
            self.is_pickled = True
            return int, ()

    call = pickle_call(len, (Once(),), {}, "len")
    assert call.parts == {"the call": call.sha256}


def test_a_call_that_reads_the_path_of_its_script_depends_on_it() -> None:
    main = {"__name__": "__main__", "__file__": "/x/script.py"}
    exec("def f(): return __file__\ndef g(): return __name__", main)
    assert SCRIPT_FILE in identify_call(cloudpickle, main["f"], (), {}, None)
    assert SCRIPT_FILE not in identify_call(cloudpickle, main["g"], (), {}, None)


@table(
    ("content", "named"),
    [
        ("import train", True),
        ("from package.train import x", True),
        ("from . import train", True),
        ("import importlib\nimportlib.import_module('package.train')", True),
        ("run(['python', 'src/train.py'])", True),
        ("os.system('python train.py --rate 1')", True),
        ("train = {'train': 1}\ndef train(): pass", False),
        ('"""Started by python train.py."""\nimport trainer', False),
        ("def train(:", True),
        ("x = 1", False),
    ],
)
def test_whether_a_module_names_the_script(content: str, named: bool) -> None:
    assert names_script(content.encode(), "package/train.py") is named


SCRIPT = """
import abc, dataclasses, functools, random, typing, sys
import numpy as np
from smlaunch.functions.pickled_call import pickle_call
from smlaunch.functions.call_identity import hash_of_parts

T = typing.TypeVar("T")

def activate(x): return x

@dataclasses.dataclass
class Config:
    activation: typing.Callable = activate
    tags: frozenset = frozenset({"a", "b", "c", "d"})

class Model(typing.Generic[T]):
    names = {"a", "b", "c", "d"}
    def __init__(self, x): self.x = x

class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...
    @abc.abstractmethod
    def size(self): ...

class Square: pass
class Circle: other = Square
Shape.register(Square)
Shape.register(Circle)

@functools.singledispatch
def describe(x): return 1

def use(*values): return Model, Shape, describe

values = [
    {"x", "y", "z"}, {Square, Circle, int}, Model({frozenset("ab"), frozenset("cd")}), random.Random(3),
    np.arange(6).reshape(2, 3).T, np.array([{"k"}], dtype=object), Model[int], typing.Dict[str, T],
    Config(),
]
if len(sys.argv) > 1:
    import torch
    torch.manual_seed(0)
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    net.layer(torch.ones(2)).sum().backward()
    optimizer.step()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    values = [
        torch.arange(5.0), {"w": torch.zeros(2)}, net, optimizer, schedule, torch.zeros(0),
        torch.eye(3).to_sparse(), torch.nn.Parameter(torch.ones(2)), torch.arange(9)[::2],
        torch.ones(2, device="meta"),
    ]
for value in values:
    first, again = (hash_of_parts(pickle_call(use, (value,), {}, "use").parts) for _ in range(2))
    print(first)
    assert first == again, value
"""


@pytest.mark.parametrize("uses_torch", [False, pytest.param(True, marks=pytest.mark.torch)])
def test_the_same_values_of_another_process_are_the_same_call(tmp_path: Path, uses_torch: bool) -> None:
    if uses_torch:
        pytest.importorskip("torch")
    script = tmp_path / "values.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), *(["torch"] if uses_torch else [])]
    first, second = (
        subprocess.run(
            command,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=200,
            check=True,
        )
        for seed in ("1", "2")
    )
    assert first.stderr == ""
    hashes = first.stdout.split()
    assert hashes == second.stdout.split()
    assert len(set(hashes)) == len(hashes) >= 8
