"""Constants with their names in a function's code: of variables, attributes, keys and keywords."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from types import CodeType
from typing import Any

_Constants = tuple[Any, ...]
"""What a place of the stack may hold, as far as it comes from constants: one for each way there."""

_UNKNOWN: _Constants = ()

_PATH_ENDS = ("RETURN_", "RAISE_", "RERAISE", "JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_ABSOLUTE")
"""Prefixes of instructions after which the next one is reached by a jump only."""

_PUSH_NOTHING = (
    *("POP_", "STORE_", "DELETE_", "JUMP_", "LIST_APPEND", "SET_ADD", "MAP_ADD", "DICT_", "KW_NAMES"),
    *("NOP", "NOT_TAKEN", "RESUME", "CACHE", "EXTENDED_ARG", "GEN_START", "MAKE_CELL", "COPY_FREE_VARS"),
)
"""Prefixes of instructions that leave what is on the stack, or take from it only."""


_DEFAULTS = 1
"""Of a function that is made: its positional defaults are on the stack, below all its other parts."""

_CODE_PLACES = 2 if sys.version_info < (3, 11) else 1
"""On top of the stack where a function is made: its code, and before Python 3.11 its name."""


def named_constants(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Yield the constants that the code gives to a name, a keyword, an attribute or a key, whatever stands
    around them in the statement (``os.environ["HF_TOKEN"] = "..."``), and those that follow a text in a call
    or a list (``setdefault("HF_TOKEN", "...")``)."""
    stack: list[_Constants] = []
    stacks_of_jumps: dict[int, list[_Constants]] = {}
    is_reached = True
    keywords: _Constants = _UNKNOWN
    for instruction in dis.get_instructions(code):
        from_jump = stacks_of_jumps.pop(instruction.offset, None)
        if not is_reached:  # where no jump comes from either, an exception is handled
            stack = from_jump or []
        elif from_jump is not None:
            ways = zip(reversed(stack), reversed(from_jump), strict=False)
            stack = [one if one == other else one + other for one, other in ways][::-1]
        if instruction.opname == "KW_NAMES":  # in Python 3.11 and 3.12
            keywords = (code.co_consts[instruction.arg or 0],)
        for names, values in _find_pairs(instruction, stack, keywords):
            for name in names:
                if isinstance(name, (str, bytes)):
                    yield from ((_as_text(name), value) for value in values)
        if instruction.opname.startswith(("PRECALL", "CALL")):
            keywords = _UNKNOWN
        if instruction.opcode in dis.hasjrel or instruction.opcode in dis.hasjabs:
            jumped = stacks_of_jumps[instruction.argval] = list(stack)
            _change_depth(jumped, dis.stack_effect(instruction.opcode, instruction.arg, jump=True))
        _execute(instruction, stack)
        is_reached = not instruction.opname.startswith(_PATH_ENDS)


def _as_text(name: str | bytes) -> str:
    return name if isinstance(name, str) else name.decode("utf-8", "replace")


def _find_pairs(
    instruction: dis.Instruction, stack: Sequence[_Constants], keywords: _Constants
) -> Iterator[tuple[_Constants, _Constants]]:
    """Yield the possible names and values that an instruction brings together. ``keywords``: the names of a
    call's last values, if they are not on the stack."""
    kind, count, target = instruction.opname, instruction.arg or 0, instruction.argval
    if kind == "STORE_SUBSCR" and len(stack) > 2:
        yield stack[-1], stack[-3]
    elif kind == "STORE_ATTR" and len(stack) > 1:
        yield (target,), stack[-2]
    elif kind.startswith(("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF")):
        names = target if isinstance(target, tuple) else (target,)  # two at once since Python 3.13
        for name, values in zip(names[: kind.count("STORE")], reversed(stack), strict=False):
            yield (name,), values
    elif kind == "MAP_ADD" and len(stack) > 1:
        yield stack[-2], stack[-1]
    elif kind == "SET_FUNCTION_ATTRIBUTE" and count == _DEFAULTS and len(stack) > 1:  # since Python 3.13
        yield from _pair_defaults(stack[-1], stack[-2])
    elif kind == "MAKE_FUNCTION" and count & _DEFAULTS:
        depth = bin(count).count("1") + _CODE_PLACES
        if len(stack) >= depth:
            yield from _pair_defaults(stack[-_CODE_PLACES], stack[-depth])
    elif kind == "BUILD_MAP":
        items = stack[-2 * count :] if count else ()
        yield from zip(items[::2], items[1::2], strict=False)
    elif kind in ("CALL_KW", "CALL_FUNCTION_KW", "BUILD_CONST_KEY_MAP") and stack:
        yield from _pair_keywords(stack[-1], stack[-1 - count : -1])
    elif kind.startswith(("PRECALL", "CALL", "BUILD_TUPLE", "BUILD_LIST")) and kind != "CALL_FUNCTION_EX":
        yield from _pair_keywords(keywords, stack[-count:] if count else ())


def _pair_keywords(
    keywords: _Constants, values: Sequence[_Constants]
) -> Iterator[tuple[_Constants, _Constants]]:
    names = keywords[0] if keywords and isinstance(keywords[0], tuple) else ()
    first = max(0, len(values) - len(names))
    yield from pairwise(values[:first])
    yield from (((name,), value) for name, value in zip(names, values[first:], strict=False))


def _pair_defaults(codes: _Constants, defaults: _Constants) -> Iterator[tuple[_Constants, _Constants]]:
    for code, values in zip(codes, defaults, strict=False):
        if isinstance(code, CodeType) and isinstance(values, tuple):
            names = code.co_varnames[: code.co_argcount]
            yield from (
                ((name,), (value,)) for name, value in zip(reversed(names), reversed(values), strict=False)
            )


def _execute(instruction: dis.Instruction, stack: list[_Constants]) -> None:
    """Change the stack as the instruction does, as far as constants are concerned."""
    kind, count = instruction.opname, instruction.arg or 0
    if kind in ("SWAP", "ROT_TWO"):
        count = max(count, 2)
        if len(stack) >= count:
            stack[-1], stack[-count] = stack[-count], stack[-1]
        return
    pushed = _UNKNOWN
    if kind.startswith(("LOAD_CONST", "RETURN_CONST")):
        pushed = (instruction.argval,)
    elif kind in ("COPY", "DUP_TOP"):
        pushed = stack[-max(count, 1)] if len(stack) >= count else _UNKNOWN
    elif kind in ("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET") and count:
        pushed = (tuple(chain.from_iterable(stack[-count:])),)
    elif kind in ("LIST_EXTEND", "SET_UPDATE") and count == 1:  # [a, b, c] of constants
        pushed = stack[-1] if stack else _UNKNOWN
    elif kind == "MAKE_FUNCTION" and len(stack) >= _CODE_PLACES:
        pushed = stack[-_CODE_PLACES]  # as long as it gets its defaults
    elif kind == "SET_FUNCTION_ATTRIBUTE" and stack:
        pushed = stack[-1]
    elif kind in ("CALL", "CALL_METHOD") and count == 0 and len(stack) > 1:  # "...".encode()
        pushed = stack[-2]
    elif kind == "UNPACK_SEQUENCE" and stack:
        unpacked = stack.pop()
        items = unpacked[0] if unpacked and isinstance(unpacked[0], tuple) else ()
        stack += [(item,) for item in reversed(items)] if len(items) == count else [_UNKNOWN] * count
        return
    _change_depth(stack, dis.stack_effect(instruction.opcode, instruction.arg, jump=False))
    if not kind.startswith(_PUSH_NOTHING):
        stack[-1:] = [pushed]


def _change_depth(stack: list[_Constants], change: int) -> None:
    if change < 0:
        del stack[change:]
    else:
        stack += [_UNKNOWN] * change
