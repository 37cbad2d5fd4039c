"""What a pickle holds, without running it: each opcode is carried out on plain values, and what would be
imported or called becomes a note of it. So a hostile file can do nothing but be refused."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

_MOST_OPCODES = 2_000_000


class Unreadable(ValueError):
    """Not a pickle, one of a kind that is not followed here, or too large a one."""


class Name(NamedTuple):
    """Something that would be imported."""

    module: str
    name: str


class Kept(NamedTuple):
    """Something that lies beside the pickle, as PyTorch's storages do."""

    what: Any


class Pairs(list[tuple[Any, Any]]):
    """A dict, whose keys are not hashed here."""


class Members(list[Any]):
    """A set or frozenset."""


class Called:
    """An object by how it would be made. ``state``: what it would be given, None without."""

    def __init__(self, what: Any, arguments: Any) -> None:
        self.what = what
        self.arguments = arguments
        self.state: Any = None
        self.items: list[Any] = []
        self.pairs = Pairs()


_MARK = object()


def read(content: bytes) -> Any:
    """What it makes; a list where it is several pickles, one after the other. Raises Unreadable, also where
    something else follows."""
    file, found = BytesIO(content), []
    try:
        while file.tell() < len(content):
            found.append(_one(file))
    except Unreadable:
        raise
    except Exception as error:  # what a broken or hostile file may raise is not foreseen
        raise Unreadable(f"{type(error).__name__}: {error}") from error
    return found[0] if len(found) == 1 else found


def _one(file: BytesIO) -> Any:
    machine = _Machine()
    for number, (opcode, argument, _) in enumerate(pickletools.genops(file)):
        if number > _MOST_OPCODES:
            raise Unreadable("too many opcodes")
        if opcode.name != "STOP":
            machine.do(opcode.name, argument)
    return machine.stack.pop()


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def do(self, name: str, argument: Any) -> None:
        if name in _IGNORED:
            return
        if name in _PUSHED:
            self.stack.append(argument)
        elif name in _CONSTANTS:
            self.stack.append(_CONSTANTS[name]())
        elif name.endswith("GET"):
            self.stack.append(self.memo[int(argument)])
        elif name.endswith("PUT"):
            self.memo[int(argument)] = self.stack[-1]
        elif name in _OPCODES:
            _OPCODES[name](self, argument)
        else:
            raise Unreadable(f"opcode {name}")

    def since_mark(self) -> list[Any]:
        place = len(self.stack) - 1
        while self.stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise Unreadable("no mark")
        found = self.stack[place + 1 :]
        del self.stack[place:]
        return found

    def last(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise Unreadable("the stack is empty")
        found = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return found

    def memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def import_(self, argument: Any) -> None:
        module, name = self.last(2) if argument is None else argument.split(" ", 1)
        self.stack.append(Name(str(module), str(name)))

    def call(self, _: Any) -> None:
        what, arguments = self.last(2)
        self.stack.append(Called(what, arguments))

    def call_with_names(self, _: Any) -> None:
        what, arguments, names = self.last(3)
        self.stack.append(Called(what, (arguments, names)))

    def build(self, _: Any) -> None:
        (state,) = self.last(1)
        target = self.stack[-1]
        if not isinstance(target, Called):
            raise Unreadable("a state for what is no object")
        target.state = state

    def append(self, values: list[Any]) -> None:
        target = self.stack[-1]
        items = target.items if isinstance(target, Called) else target
        if type(items) not in (list, Members):
            raise Unreadable("items for what is no list")
        items += values

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        pairs = target.pairs if isinstance(target, Called) else target
        if type(pairs) is not Pairs:
            raise Unreadable("keys for what is no dict")
        pairs += zip(values[::2], values[1::2], strict=True)

    def make(self, values: Any) -> None:
        self.stack.append(values)


def _pairs(values: list[Any]) -> Pairs:
    return Pairs(zip(values[::2], values[1::2], strict=True))


_IGNORED = frozenset(("PROTO", "FRAME"))

_PUSHED = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE"),
        *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)

_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": Pairs,
    "EMPTY_SET": Members,
}

_OPCODES: dict[str, Callable[[_Machine, Any], Any]] = {
    "LIST": lambda machine, _: machine.make(machine.since_mark()),
    "TUPLE": lambda machine, _: machine.make(tuple(machine.since_mark())),
    "TUPLE1": lambda machine, _: machine.make(tuple(machine.last(1))),
    "TUPLE2": lambda machine, _: machine.make(tuple(machine.last(2))),
    "TUPLE3": lambda machine, _: machine.make(tuple(machine.last(3))),
    "DICT": lambda machine, _: machine.make(_pairs(machine.since_mark())),
    "FROZENSET": lambda machine, _: machine.make(Members(machine.since_mark())),
    "APPEND": lambda machine, _: machine.append(machine.last(1)),
    "APPENDS": lambda machine, _: machine.append(machine.since_mark()),
    "ADDITEMS": lambda machine, _: machine.append(machine.since_mark()),
    "SETITEM": lambda machine, _: machine.set_items(machine.last(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.since_mark()),
    "POP": lambda machine, _: machine.last(1),
    "POP_MARK": lambda machine, _: machine.since_mark(),
    "DUP": lambda machine, _: machine.make(machine.stack[-1]),
    "MEMOIZE": _Machine.memoize,
    "GLOBAL": _Machine.import_,
    "STACK_GLOBAL": _Machine.import_,
    "REDUCE": _Machine.call,
    "NEWOBJ": _Machine.call,
    "NEWOBJ_EX": _Machine.call_with_names,
    "BUILD": _Machine.build,
    "PERSID": lambda machine, argument: machine.make(Kept(argument)),
    "BINPERSID": lambda machine, _: machine.make(Kept(machine.last(1)[0])),
}
