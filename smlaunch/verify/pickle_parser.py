"""Parses a pickle without running it: opcodes act on plain values, and imports and calls are only recorded. A
hostile file can do no more than be rejected."""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from io import BytesIO
from typing import Any, NamedTuple

_MAX_OPCODES = 2_000_000


class UnreadableContent(ValueError):
    """Content that is not a pickle, is of an unsupported kind, or is too large."""


class GlobalRef(NamedTuple):
    """A global that unpickling would import."""

    module: str
    name: str


class PersistentRef(NamedTuple):
    """A reference to an object beside the pickle, such as one of PyTorch's storages."""

    persistent_id: Any


class DictItems(list[tuple[Any, Any]]):
    """A dict, as pairs whose keys are not hashed here."""


class SetItems(list[Any]):
    """A set or frozenset."""


class ConstructedObject:
    """An object, described by the call that would make it."""

    def __init__(self, constructor: Any, arguments: Any) -> None:
        self.constructor = constructor
        self.arguments = arguments
        self.state: Any = None
        """The state that it would be given; None without one."""
        self.list_items: list[Any] = []
        self.dict_items = DictItems()


_MARK = object()


def parse_pickle(content: bytes) -> Any:
    """Return the value that a pickle describes, or a list for several consecutive pickles. Nothing is
    executed: an object is described by the call that would make it.

    Raises UnreadableContent for content that is no pickle, or a broken or too large one.
    """
    file = BytesIO(content)
    values: list[Any] = []
    try:
        while file.tell() < len(content):
            values.append(_parse_next_pickle(file))
    except UnreadableContent:
        raise
    except Exception as error:  # a broken or hostile file may raise anything
        raise UnreadableContent(f"{type(error).__name__}: {error}") from error
    return values[0] if len(values) == 1 else values


def _parse_next_pickle(file: BytesIO) -> Any:
    """Return the value of the next pickle in the file, without executing it. Raises UnreadableContent.

    A pickle is a program of opcodes that build the value on a stack; the last one is STOP.
    """
    machine = _PickleMachine()
    for opcode_number, (opcode, argument, _) in enumerate(pickletools.genops(file)):  # ends after STOP
        if opcode_number > _MAX_OPCODES:
            raise UnreadableContent("too many opcodes")
        if opcode.name != "STOP":
            machine.execute_opcode(opcode.name, argument)
    return machine.stack.pop()


class _PickleMachine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def execute_opcode(self, opcode_name: str, argument: Any) -> None:
        """Apply one opcode to this machine's stack and memo (values that are kept by number), as unpickling
        would, but import and call nothing.

        ``argument``: the opcode's own, as pickletools decodes it. Raises UnreadableContent for an opcode that
        plain data does not need.
        """
        # The tables: opcodes without an effect on the value; those that push their argument; those that push
        # a constant (an empty list, for example); and a method of this class for each of the others.
        if opcode_name in _OPCODES_WITHOUT_EFFECT:
            return
        if opcode_name in _OPCODES_PUSHING_ARGUMENT:
            self.stack.append(argument)
        elif opcode_name in _CONSTANT_FACTORY_BY_OPCODE:
            make_constant = _CONSTANT_FACTORY_BY_OPCODE[opcode_name]
            self.stack.append(make_constant())
        elif opcode_name.endswith("GET"):  # GET, BINGET, LONG_BINGET: push a value of the memo
            self.stack.append(self.memo[int(argument)])
        elif opcode_name.endswith("PUT"):  # PUT, BINPUT, LONG_BINPUT: keep the topmost value
            self.memo[int(argument)] = self.stack[-1]
        elif opcode_name in _HANDLER_BY_OPCODE:
            handle_opcode = _HANDLER_BY_OPCODE[opcode_name]
            handle_opcode(self, argument)
        else:
            raise UnreadableContent(f"opcode {opcode_name}")

    def pop_to_mark(self) -> list[Any]:
        """Remove the values above the last mark and the mark itself from the stack, and return the values."""
        mark_index = len(self.stack) - 1
        while self.stack[mark_index] is not _MARK:
            mark_index -= 1
            if mark_index < 0:
                raise UnreadableContent("no mark")
        items = self.stack[mark_index + 1 :]
        del self.stack[mark_index:]
        return items

    def pop_values(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise UnreadableContent("the stack is empty")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def memoize(self, _: Any) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def push_global(self, argument: Any) -> None:
        module, name = self.pop_values(2) if argument is None else argument.split(" ", 1)
        self.stack.append(GlobalRef(str(module), str(name)))

    def call(self, _: Any) -> None:
        constructor, arguments = self.pop_values(2)
        self.stack.append(ConstructedObject(constructor, arguments))

    def call_with_names(self, _: Any) -> None:
        constructor, arguments, keywords = self.pop_values(3)
        self.stack.append(ConstructedObject(constructor, (arguments, keywords)))

    def set_state(self, _: Any) -> None:
        (state,) = self.pop_values(1)
        target = self.stack[-1]
        if not isinstance(target, ConstructedObject):
            raise UnreadableContent("a state for a value that is not an object")
        target.state = state

    def append_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        items = target.list_items if isinstance(target, ConstructedObject) else target
        if type(items) not in (list, SetItems):
            raise UnreadableContent("items for a value that is not a list")
        items += values

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        pairs = target.dict_items if isinstance(target, ConstructedObject) else target
        if type(pairs) is not DictItems:
            raise UnreadableContent("keys for a value that is not a dict")
        pairs += zip(values[::2], values[1::2], strict=True)

    def push(self, values: Any) -> None:
        self.stack.append(values)


def _as_dict_items(values: list[Any]) -> DictItems:
    return DictItems(zip(values[::2], values[1::2], strict=True))


_OPCODES_WITHOUT_EFFECT = frozenset(("PROTO", "FRAME"))

_OPCODES_PUSHING_ARGUMENT = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
        *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "SHORT_BINUNICODE", "BINUNICODE"),
        *("BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "BYTEARRAY8"),
    )
)

_CONSTANT_FACTORY_BY_OPCODE: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "MARK": lambda: _MARK,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_DICT": DictItems,
    "EMPTY_SET": SetItems,
}

_HANDLER_BY_OPCODE: dict[str, Callable[[_PickleMachine, Any], Any]] = {
    "LIST": lambda machine, _: machine.push(machine.pop_to_mark()),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine, _: machine.push(tuple(machine.pop_values(1))),
    "TUPLE2": lambda machine, _: machine.push(tuple(machine.pop_values(2))),
    "TUPLE3": lambda machine, _: machine.push(tuple(machine.pop_values(3))),
    "DICT": lambda machine, _: machine.push(_as_dict_items(machine.pop_to_mark())),
    "FROZENSET": lambda machine, _: machine.push(SetItems(machine.pop_to_mark())),
    "APPEND": lambda machine, _: machine.append_items(machine.pop_values(1)),
    "APPENDS": lambda machine, _: machine.append_items(machine.pop_to_mark()),
    "ADDITEMS": lambda machine, _: machine.append_items(machine.pop_to_mark()),
    "SETITEM": lambda machine, _: machine.set_items(machine.pop_values(2)),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_to_mark()),
    "POP": lambda machine, _: machine.pop_values(1),
    "POP_MARK": lambda machine, _: machine.pop_to_mark(),
    "DUP": lambda machine, _: machine.push(machine.stack[-1]),
    "MEMOIZE": _PickleMachine.memoize,
    "GLOBAL": _PickleMachine.push_global,
    "STACK_GLOBAL": _PickleMachine.push_global,
    "REDUCE": _PickleMachine.call,
    "NEWOBJ": _PickleMachine.call,
    "NEWOBJ_EX": _PickleMachine.call_with_names,
    "BUILD": _PickleMachine.set_state,
    "PERSID": lambda machine, argument: machine.push(PersistentRef(argument)),
    "BINPERSID": lambda machine, _: machine.push(PersistentRef(machine.pop_values(1)[0])),
}
