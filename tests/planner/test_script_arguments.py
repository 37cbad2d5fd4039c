"""What static analysis says about a script's arguments, against argparse itself."""

from __future__ import annotations

import argparse
import contextlib
import io
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.facts.script_arguments import ArgumentParserFacts, ScriptArgument, find_argument_mistakes
from smlaunch.facts.source_place import SourcePlace

PLACE = SourcePlace("train.py", 4)
TYPES = {"int": int, "float": float, "str": str, None: str}


def real_parser(facts: ArgumentParserFacts) -> argparse.ArgumentParser:
    """Return the parser that a script with these arguments makes."""
    parser = argparse.ArgumentParser(allow_abbrev=facts.allows_abbreviations, add_help=facts.has_help)
    groups: dict[str, Any] = {}
    for argument in facts.arguments:
        settings_of_argument: dict[str, Any] = {"action": argument.action}
        if argument.action == "BooleanOptionalAction":
            settings_of_argument["action"] = argparse.BooleanOptionalAction
        if argument.action == "version":
            settings_of_argument["version"] = "1"
        if argument.action == "store":
            settings_of_argument["type"] = TYPES[argument.type_name]
            settings_of_argument["choices"] = argument.choices
            settings_of_argument["nargs"] = argument.nargs
        if argument.required:
            settings_of_argument["required"] = True
        adder: Any = parser
        if argument.exclusive_group is not None:
            required = argument.exclusive_group in facts.required_groups
            if argument.exclusive_group not in groups:
                groups[argument.exclusive_group] = parser.add_mutually_exclusive_group(required=required)
            adder = groups[argument.exclusive_group]
        adder.add_argument(*argument.names, **settings_of_argument)
    return parser


def is_refused(facts: ArgumentParserFacts, argv: list[str]) -> bool:
    parser = real_parser(facts)
    parse = parser.parse_args if facts.rejects_unknown else parser.parse_known_args
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            parse(argv)
        except SystemExit as ended:
            return ended.code != 0
    return False


ACTIONS = ("store", "store", "store", "store_true", "count", "BooleanOptionalAction", "version")
NAMES = ("--lr", "--lr-max", "--epochs", "--seed", "-s", "-e", "--height", "-1")


@st.composite
def options(draw: st.DrawFn, name: str) -> ScriptArgument:
    action = draw(st.sampled_from(ACTIONS))
    if action == "BooleanOptionalAction" and not name.startswith("--"):
        action = "store_true"
    group = draw(st.sampled_from([None, None, None, "group"])) if action != "version" else None
    type_name = draw(st.sampled_from(["int", "float", "str", None]))
    choices = {"int": (1, 5), "float": (0.5,), "str": ("a", "1"), None: None}[type_name]
    return ScriptArgument(
        names=(name,),
        place=PLACE,
        action=action,
        nargs=draw(st.sampled_from([None, None, "?", "*", "+", 2])) if action == "store" else None,
        type_name=type_name if action == "store" else None,
        choices=choices if action == "store" and draw(st.booleans()) else None,
        required=group is None and action != "version" and draw(st.sampled_from([False, False, True])),
        exclusive_group=group,
    )


@st.composite
def parsers(draw: st.DrawFn) -> ArgumentParserFacts:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=5))
    arguments = [draw(options(name)) for name in names]
    for name in draw(st.lists(st.sampled_from(["data", "out"]), unique=True, max_size=2)):
        nargs = draw(st.sampled_from([None, None, "?", "*", "+", "..."]))
        type_name = draw(st.sampled_from([None, "int"]))
        arguments.append(ScriptArgument((name,), PLACE, nargs=nargs, type_name=type_name))
    has_group = any(argument.exclusive_group for argument in arguments)
    return ArgumentParserFacts(
        tuple(arguments),
        PLACE,
        rejects_unknown=draw(st.booleans()),
        allows_abbreviations=draw(st.booleans()),
        has_help=draw(st.booleans()),
        required_groups=frozenset(["group"] if has_group and draw(st.booleans()) else []),
    )


TOKENS = st.sampled_from(
    [*NAMES, *("--l", "--lr-", "--ep", "--h", "--he", "-h", "--help", "--no-lr", "--wd", "-x", "-s5", "-se")]
    + ["1", "5", "0.5", "a", "-1", "-0.5", "", "--", "two words", "--lr=1", "--lr=", "--wd=1", "--e=5"]
)


@settings(max_examples=400, deadline=None)
@given(parser=parsers(), argv=st.lists(TOKENS, max_size=7))
def test_arguments_are_refused_where_argparse_refuses_them(
    parser: ArgumentParserFacts, argv: list[str]
) -> None:
    mistakes = find_argument_mistakes(parser, argv)
    assert bool(mistakes) == is_refused(parser, argv), mistakes


def test_an_unknown_argument_may_have_the_value_of_a_known_one() -> None:
    arguments = (
        ScriptArgument(("--lr",), PLACE, type_name="float"),
        ScriptArgument(("--epochs",), PLACE, type_name="int"),
    )
    parser = ArgumentParserFacts(arguments, PLACE, rejects_unknown=False)
    for argv in ("--epochs 1 --lr 0.5 --seed 1", "--lr 0.1 --epochs 5 --wd 0.1", "--wd 1 --epochs 1"):
        assert find_argument_mistakes(parser, argv.split()) == []
    (mistake,) = find_argument_mistakes(parser, ["--epochs", "x", "--wd", "x"])
    assert "argument --epochs: invalid int value: 'x'" in mistake.message
