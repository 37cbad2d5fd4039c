"""The command line that a script reads with argparse, as static analysis shows it, and what argparse will say
about the arguments of a job. Pure.

The check asks argparse itself, with a parser of the same arguments, so that abbreviations, numbers of values
and negative numbers count as they do in the script.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from smlaunch.facts.source_place import SourcePlace
from smlaunch.secrets.masking import MASK, is_secret_name
from smlaunch.text.did_you_mean import did_you_mean

_TYPES: Mapping[str, type] = {"int": int, "float": float, "str": str}
_FLAG_ACTIONS = ("store_true", "store_false", "BooleanOptionalAction")
_ACTIONS_WITHOUT_VALUE = (*_FLAG_ACTIONS, "store_const", "append_const", "count", "help", "version")
_ACTIONS_WITH_VALUE = ("store", "append", "extend")
ACTIONS = (*_ACTIONS_WITHOUT_VALUE, *_ACTIONS_WITH_VALUE)
"""Those that argparse itself has."""

TOOL_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("nproc_per_node", "num_gpus", "num_processes"), "--processes-per-host"),
    **dict.fromkeys(("nnodes", "num_nodes", "num_machines"), "--hosts"),
    **dict.fromkeys(
        (
            "node_rank",
            "machine_rank",
            "master_addr",
            "master_port",
            "rdzv_endpoint",
            "rdzv_backend",
            "rdzv_id",
        ),
        "",
    ),
    **dict.fromkeys(("main_process_ip", "main_process_port", "hostfile", "standalone", "multi_gpu"), ""),
}
"""Options of torchrun, accelerate and deepspeed, with the option of smlaunch that does the same; empty where
smlaunch sets it by itself."""

_MISSING = "the following arguments are required"
_UNRECOGNIZED_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.-]*)")


class ScriptArgument(NamedTuple):
    """One argument that the script's parser accepts."""

    names: tuple[str, ...]
    """Its option strings, or the name of a positional argument."""

    place: SourcePlace
    action: str = "store"
    nargs: int | str | None = None
    type_name: str | None = None
    """``int``, ``float`` or ``str``; None where any text may be valid."""

    choices: tuple[Any, ...] | None = None
    required: bool = False
    """Of an option; a positional argument is required by its ``nargs``."""

    dest: str | None = None
    default: Any = None
    """A literal; None, too, where it is computed."""

    is_certain: bool = True
    """False for one that is added under a condition."""

    exclusive_group: str | None = None
    """Name of the group of which one argument at most may be given."""

    @property
    def is_positional(self) -> bool:
        return not self.names[0].startswith("-")

    @property
    def destination(self) -> str:
        """Name of the attribute that gets the value."""
        if self.dest is not None:
            return self.dest
        long_names = [name for name in self.names if name.startswith("--")]
        return (long_names or self.names)[0].lstrip("-").replace("-", "_")

    @property
    def long_name(self) -> str:
        """Its first option string with two dashes, or the only kind that it has."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def is_flag(self) -> bool:
        """Whether it is given without a value, and means true or false."""
        return self.action in _FLAG_ACTIONS


class ArgumentParserFacts(NamedTuple):
    """The parser of a script."""

    arguments: tuple[ScriptArgument, ...]
    place: SourcePlace
    """Where the command line is parsed."""

    is_complete: bool = True
    """No other argument can exist."""

    rejects_unknown: bool = True
    """By ``parse_args``, unlike ``parse_known_args``."""

    is_certain: bool = True
    """The script certainly parses its command line so."""

    allows_abbreviations: bool = True
    has_help: bool = True
    """It has argparse's own option ``-h, --help``."""

    required_groups: frozenset[str] = frozenset()
    """Exclusive groups of which one argument must be given."""

    def find_option(self, names: Sequence[str]) -> ScriptArgument | None:
        """The first argument of which one of the names, such as ``--rank``, is an option string."""
        return next((each for each in self.arguments if not set(names).isdisjoint(each.names)), None)

    def option_names(self) -> list[str]:
        """The option strings of all arguments, such as ``--rank``."""
        return [name for each in self.arguments if not each.is_positional for name in each.names]

    def argument_of(self, destination: str) -> ScriptArgument | None:
        """The first argument whose value becomes this attribute of the parsed arguments."""
        return next((each for each in self.arguments if each.destination == destination), None)

    def flags(self) -> dict[str, str]:
        """Return, by a flag's name without dashes, the option that states the opposite; empty without one."""
        opposite_by_flag: dict[str, str] = {}
        for argument in self.arguments:
            has_opposites = argument.action == "BooleanOptionalAction"
            for name in argument.names if argument.is_flag else ():
                has_opposite = has_opposites and name.startswith("--")
                opposite_by_flag[name.lstrip("-")] = f"--no-{name[2:]}" if has_opposite else ""
        return opposite_by_flag


class ArgumentMistake(NamedTuple):
    """Why the script's parser will reject its arguments."""

    message: str
    names: tuple[str, ...] = ()
    """The argument at fault, such as ``--epoch``, by all its names; empty if one is missing."""


class _ParserError(Exception):
    """argparse rejects the arguments."""


class _ParserExits(_ParserError):
    """argparse prints its help or a version, and exits with 0."""


class _RaisingParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _ParserError(message)

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise _ParserExits(message or "")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Print neither the help nor a version."""


class _Token(str):
    """One argument of a command line, which argparse returns as the same object: another one with the same
    text may have another meaning."""

    __slots__ = ()


def find_argument_mistakes(parser: ArgumentParserFacts, argv: Sequence[str]) -> list[ArgumentMistake]:
    """Return what argparse will reject about the arguments ``argv`` of the script: unknown ones, missing
    ones, and values of a wrong type. Where the parser may have further arguments, only missing options."""
    if not parser.is_complete:
        return list(_find_missing_options(parser, argv))
    arguments: list[str] = [_Token(token) for token in argv]
    mistakes: list[ArgumentMistake] = []
    lacks_positional = False
    try:
        _, unknown_tokens = _build_parser(parser).parse_known_args(arguments)
    except _ParserExits:  # unless a value before the option at which it exits is wrong
        unknown_tokens = []
    except _ParserError as error:
        mistakes.append(_mistake_of(parser, str(error)))
        if not str(error).startswith(_MISSING):
            return mistakes
        # A positional argument is missing: what else is wrong?
        lacks_positional = True
        _, unknown_tokens = _build_parser(parser, lacks_positional=True).parse_known_args(arguments)
        unknown_tokens = [token for token in unknown_tokens if token.startswith("-")]
    known_arguments = arguments
    if parser.rejects_unknown:
        mistakes += _unknown_arguments(parser, unknown_tokens)
        # The value behind an unknown option must not be taken for a wrong one of another argument.
        unknown_ids = {id(token) for token in unknown_tokens}
        known_arguments = [token for token in arguments if id(token) not in unknown_ids]
    # argparse stops at the first mistake: a wrong value must not hide a missing option.
    for checks in ({"checks_values": True}, {"checks_required_options": True}):
        try:
            _build_parser(parser, lacks_positional=lacks_positional, **checks).parse_known_args(
                known_arguments
            )
        except _ParserExits:
            break
        except _ParserError as error:
            mistakes.append(_mistake_of(parser, str(error)))
    return mistakes


def find_abbreviations(parser: ArgumentParserFacts, argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield each option of ``argv`` that argparse accepts as the beginning of another one, and that one."""
    if not (parser.is_complete and parser.allows_abbreviations):
        return
    options = set(parser.option_names())
    for token in argv:
        name = token.partition("=")[0]
        if name.startswith("--") and len(name) > 2 and name not in options:
            matches = [option for option in options if option.startswith(name)]
            if len(matches) == 1:
                yield name, matches[0]


def parse_script_arguments(parser: ArgumentParserFacts, argv: Sequence[str]) -> dict[str, Any]:
    """Return the values that ``argv`` states, by the attribute's name: without the script's defaults, which
    analysis does not know."""
    try:
        namespace, _ = _build_parser(parser, lacks_positional=True).parse_known_args(list(argv))
    except _ParserError:
        return {}
    return {name: value for name, value in vars(namespace).items() if value is not None}


def _build_parser(
    parser: ArgumentParserFacts,
    *,
    checks_values: bool = False,
    checks_required_options: bool = False,
    lacks_positional: bool = False,
) -> argparse.ArgumentParser:
    """Return a parser of the script's arguments that raises _ParserError. ``checks_values``: types and
    choices. ``lacks_positional``: positional arguments may be missing."""
    own_parser = _RaisingParser(
        prog="",
        argument_default=argparse.SUPPRESS,
        allow_abbrev=parser.allows_abbreviations,
        add_help=parser.has_help,
        conflict_handler="resolve",  # for an option that is added in each of two branches
    )
    groups: dict[str, Any] = {}
    for argument in parser.arguments:
        settings: dict[str, Any] = {"action": _builtin_action(argument)}
        takes_value = argument.action not in _ACTIONS_WITHOUT_VALUE
        if argument.action in ("store_const", "append_const"):
            settings["const"] = True
        if argument.action == "version":
            settings["version"] = ""
        if takes_value and argument.nargs is not None:
            settings["nargs"] = argument.nargs
        if takes_value and checks_values and argument.is_certain:
            settings["type"] = _TYPES.get(argument.type_name or "str", str)
            if argument.choices is not None:
                settings["choices"] = argument.choices
        if argument.is_positional:
            settings["default"] = None  # not converted by the type
            if lacks_positional and argument.nargs in (None, "+"):
                settings["nargs"] = "?" if argument.nargs is None else "*"
        else:
            if argument.action not in ("help", "version"):
                required = argument.required and argument.is_certain and checks_required_options
                settings["required"] = required
            if argument.dest is not None:
                settings["dest"] = argument.dest
        group = argument.exclusive_group
        if group is not None and group not in groups:
            required = checks_required_options and group in parser.required_groups
            groups[group] = own_parser.add_mutually_exclusive_group(required=required)
        try:
            adder = own_parser if group is None else groups[group]
            adder.add_argument(*argument.names, **settings)
        except (argparse.ArgumentError, TypeError, ValueError) as error:  # the script itself would fail here
            raise _ParserError(f"argument {'/'.join(argument.names)}: {error}") from None
    return own_parser


def _builtin_action(argument: ScriptArgument) -> Any:
    """Return the action of argparse that takes as many values as the argument's own action, which may be a
    class of the script."""
    if argument.action == "BooleanOptionalAction":
        return argparse.BooleanOptionalAction
    return argument.action if argument.action in ACTIONS else "store"


def _unknown_arguments(
    parser: ArgumentParserFacts, unknown_tokens: Sequence[str]
) -> Iterator[ArgumentMistake]:
    """Yield a mistake for each option that the script's parser does not know, with the nearest that it knows,
    and one for what has no option before it."""
    options = parser.option_names()
    positional_names = {argument.names[0] for argument in parser.arguments if argument.is_positional}
    for token in unknown_tokens:
        match = _UNRECOGNIZED_OPTION.match(token)
        if match is None:
            if unknown_tokens[0] is token:
                message = f"the script takes no further argument {token!r} ({parser.place})"
                yield ArgumentMistake(message, (token,))
            continue
        name = token.partition("=")[0]
        tool_option = TOOL_OPTIONS.get(match["name"].replace("-", "_"))
        if tool_option is not None:
            hint = (
                f"; smlaunch's own option for it is {tool_option}"
                if tool_option
                else "; smlaunch sets it, leave it out"
            )
        elif name.lstrip("-") in positional_names:
            hint = f"; {name.lstrip('-')} is given by its place: put its value after --, without a name"
        else:
            hint = did_you_mean(name, options)
        yield ArgumentMistake(f"the script has no argument {name} ({parser.place}){hint}", (name,))


def _find_missing_options(parser: ArgumentParserFacts, argv: Sequence[str]) -> Iterator[ArgumentMistake]:
    """Yield a mistake for each option that must be given and is not, of a parser that may have further
    arguments."""
    for argument in parser.arguments:
        prefixes = tuple(f"{name}=" for name in argument.names)
        is_given = any(token in argument.names or token.startswith(prefixes) for token in argv)
        if argument.required and argument.is_certain and not argument.is_positional and not is_given:
            yield ArgumentMistake(f"the script requires {'/'.join(argument.names)} ({argument.place})")


def _names_at_fault(message: str) -> tuple[str, ...]:
    """The names in argparse's message ``argument -e/--epochs: invalid int value: 'x'``."""
    match = re.match(r"argument (\S+?):", message)
    return tuple(match.group(1).split("/")) if match is not None else ()


def _mistake_of(parser: ArgumentParserFacts, message: str) -> ArgumentMistake:
    """The mistake that argparse's message is about, with the place of the argument that it names."""
    names = _names_at_fault(message)
    argument = parser.find_option(names)
    place = parser.place if argument is None else argument.place
    if any(is_secret_name(name.lstrip("-")) for name in names) and "'" in message:
        message = message.partition("'")[0] + MASK  # behind it the value
    return ArgumentMistake(f"the script rejects its arguments: {message} ({place})", names)
