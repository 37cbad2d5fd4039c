"""What a script defines, on a host and back in the script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import abc, contextlib, enum, functools, subprocess, sys, typing, weakref
from dataclasses import dataclass
from pathlib import Path

from smlaunch.functions.function_source import call_files
from smlaunch.functions.host_program import (
    OUTPUT_FOLDER, PICKLE, PROGRAM_FILE, SHA256_VARIABLE, result_file,
)
from smlaunch.functions.pickled_call import pickle_call
from smlaunch.functions.result_decoding import decode_result


class TextSlot:
    __slots__ = "x"

class BelowTextSlot(TextSlot):
    pass

class Private:
    __slots__ = ("__x", "_y")
    def __init__(self, x): self.__x = self._y = x
    def x(self): return self.__x

class Documented:
    __slots__ = {"x": "what it is"}

class WeakSlots:
    __slots__ = ("x", "__weakref__")

class OpenSlots:
    __slots__ = ("x", "__dict__")

@dataclass(frozen=True, slots=True)
class Frozen:
    x: int

class Pair(typing.NamedTuple):
    x: int
    y: int = 2

class Shape(abc.ABC):
    __slots__ = ()
    @abc.abstractmethod
    def area(self): ...

class Square(Shape):
    __slots__ = ("side",)
    def area(self): return self.side ** 2

class Colour(enum.Enum):
    RED = 1

class Stages:
    zzz = 0.1
    main = 0.01
    cool = 0.001

class Perm(enum.Flag):
    R = 1
    W = 2
    BOTH = 3
    READ = 1
    zzz = lambda self: 1
    cool = lambda self: 2

class Top:
    rate = 1.5
    def get(self): return "top"

class Left(Top):
    rate = Top.rate
    get = Top.get

class Right(Top):
    rate = 2.5
    def get(self): return "right"

class Bottom(Left, Right):
    pass

def attributes_of(made):
    return [name for name in vars(made) if not name.startswith("_")]

T = typing.TypeVar("T")

class Box(typing.Generic[T]):
    __slots__ = ("x",)


def filled(made, **values):
    for name, value in values.items():
        setattr(made, name, value)
    return made

def has_no_dict(value):
    return not hasattr(value, "__dict__")


class Lazy:
    calls = 0
    @functools.cached_property
    def doubled(self):
        self.calls += 1
        return 2 * self.x

class Tokens:
    @functools.lru_cache(maxsize=7)
    def encode(self, text): return [text]
    @staticmethod
    @functools.cache
    def size(): return 3
    def file(self): return __file__

@functools.singledispatch
def describe(value): return "something"

@describe.register
def _(value: int): return "a number"

@describe.register
def _(value: Lazy): return "lazy"

class Describer:
    @functools.singledispatchmethod
    def of(self, value): return "something"
    @of.register
    def _(self, value: int): return "a number"

@contextlib.contextmanager
def counted():
    COUNTS.append(1)
    yield

COUNTS = []

@counted()
def decorated(): return len(COUNTS)

def of_many_kinds():
    assert Describer().of(3) == "a number"
    return describe(3), describe("x"), describe(Lazy()), decorated(), decorated()

class Registry:
    pass

REGISTRY = weakref.WeakKeyDictionary()
KEY = Registry()
REGISTRY[KEY] = 5

describe(3)  # fills its cache
decorated()

Path(sys.argv[1], "binary").write_bytes(b"abcdef")
BINARY = open(Path(sys.argv[1], "binary"), "rb")
BINARY.read(3)

CASES = {
    # What the host does, what is true of its result here, and arguments.
    "a text as slots": (lambda: filled(TextSlot(), x=1), lambda r: type(r) is TextSlot and r.x == 1),
    "below a text": (lambda: filled(BelowTextSlot(), x=1, y=2), lambda r: (r.x, r.y) == (1, 2)),
    "private": (lambda: Private(3), lambda r: type(r) is Private and (r.x(), r._y) == (3, 3)),
    "documented": (lambda: filled(Documented(), x=1), lambda r: r.x == 1),
    "weak": (lambda: (filled(WeakSlots(), x=1), weakref.ref(WeakSlots()) and 1)[0], lambda r: r.x == 1),
    "open": (lambda: filled(OpenSlots(), x=1, z=2), lambda r: (r.x, r.z) == (1, 2)),
    "no dict there": (lambda: {has_no_dict(filled(TextSlot(), x=1))}, lambda r: r == {True}),
    "frozen": (lambda: Frozen(1), lambda r: r == Frozen(1)),
    "a named tuple": (lambda: Pair(1), lambda r: type(r) is Pair and r.y == 2),
    "abstract": (lambda: filled(Square(), side=3), lambda r: type(r) is Square and r.area() == 9),
    "enum": (lambda: Colour.RED, lambda r: r is Colour.RED),
    "the order of attributes": (
        lambda: {tuple(attributes_of(Stages))}, lambda r: r == {("zzz", "main", "cool")}
    ),
    "the order of an enum's attributes": (
        lambda: {tuple(name for name in attributes_of(Perm) if name in ("zzz", "cool"))},
        lambda r: r == {("zzz", "cool")},
    ),
    "all members": (
        lambda: {tuple(Perm.__members__), Perm["READ"].name, Perm["BOTH"].name, Perm(3)},
        lambda r: r == {("R", "W", "BOTH", "READ"), "R", "BOTH", Perm.BOTH},
    ),
    "an attribute that a base has too": (
        lambda: {(Bottom.rate, Bottom().get(), *attributes_of(Left))},
        lambda r: r == {(1.5, "top", "rate", "get")},
    ),
    "generic": (lambda: filled(Box[int](), x=1), lambda r: type(r) is Box and r.x == 1),
    "as an argument": (lambda given: given.x() + 1 and given, lambda r: r.x() == 4, Private(4)),
    "a cached property": (
        lambda: filled(Lazy(), x=2, y=filled(Lazy(), x=3).doubled),
        lambda r: (r.doubled, r.y) == (4, 6),
    ),
    "a cached method": (
        lambda: Tokens(),
        lambda r: type(r) is Tokens and r.encode("a") + [r.size()] == ["a", 3],
    ),
    "dispatch": (of_many_kinds, lambda r: r == ("a number", "something", "lazy", 2, 3)),
    "the dispatcher itself": (lambda: describe, lambda r: r(3) == "a number"),
    "a weak mapping": (lambda: {REGISTRY[KEY]}, lambda r: r == {5}),
    "a binary file": (
        lambda file: {file.read(), file.seek(0) or file.read()}, lambda r: r == {b"def", b"abcdef"}, BINARY
    ),
    "its file": (lambda: {__file__}, lambda r: r == {str(HOST / "program.py")}),
    "its file in a method": (lambda made: {made.file()}, lambda r: r == {str(HOST / "program.py")}, Tokens()),
}
HOST = Path(sys.argv[1])


def build_all():
    results = {}
    for name, (build, _, *args) in CASES.items():
        try:
            results[name] = build(*args)
        except Exception as error:
            results[name] = f"raised {error!r}"
    return results


call = pickle_call(build_all, (), {}, "build_all", Path(__file__).parent)
for path, content in call_files(call).items():
    (HOST / path).parent.mkdir(parents=True, exist_ok=True)
    (HOST / path).write_bytes(content)
environment = {SHA256_VARIABLE: call.sha256, "SM_OUTPUT_DATA_DIR": str(HOST)}
subprocess.run([sys.executable, str(HOST / PROGRAM_FILE)], env=environment, cwd=HOST, check=True)
results = decode_result(PICKLE, (HOST / OUTPUT_FOLDER / result_file(PICKLE)).read_bytes())
for name, (_, is_right, *_) in CASES.items():
    if not is_right(results[name]):
        print(f"{name}: {results[name]!r}")
"""


def test_they_come_back_as_they_are(tmp_path: Path) -> None:
    script, host = tmp_path / "program.py", tmp_path / "host"
    script.write_text(SCRIPT)
    host.mkdir()
    (host / "program.py").write_text("")  # as it is sent
    result = subprocess.run(
        [sys.executable, str(script), str(host)], capture_output=True, text=True, timeout=200
    )
    lines = [line for line in result.stdout.splitlines() if not line.startswith("smlaunch: function-result")]
    assert (lines, result.stderr) == ([], "")
