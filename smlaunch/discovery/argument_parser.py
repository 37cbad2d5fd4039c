"""Reads the argparse parser of a script from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from smlaunch.discovery.source_modules import SourceModule, keyword_value, literal_of, text_of
from smlaunch.facts.script_arguments import (
    ACTIONS,
    ArgumentParserFacts,
    ScriptArgument,
)

_PARSE_METHODS = ("parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args")
_PARSER_SETTINGS_THAT_CHANGE_PARSING = (
    "parents",
    "prefix_chars",
    "fromfile_prefix_chars",
    "conflict_handler",
)
_COMMAND_LINES = ("None", "sys.argv[1:]", "argv[1:]")
"""What ``parse_args`` may be given instead of nothing."""

_SAFE_TYPES = ("int", "float", "str")


def read_argument_parser(modules: Sequence[SourceModule]) -> ArgumentParserFacts | None:
    """Return the parser that reads the script's command line: that of the entry script, which comes first in
    ``modules``, or the only one of its modules. None where there is no such parser, or several."""
    entry, *imported_modules = modules
    if _count_parsers(entry) == 1:
        return _read_parser(entry, modules)
    modules_with_parser = [module for module in imported_modules if _count_parsers(module)]
    if _count_parsers(entry) or len(modules_with_parser) != 1 or _count_parsers(modules_with_parser[0]) != 1:
        return None
    parser = _read_parser(modules_with_parser[0], modules)
    if parser is None or not _calls_function_around(entry, modules_with_parser[0]):
        return None
    return parser


def _count_parsers(module: SourceModule) -> int:
    return sum(1 for call in module.calls if _is_parser_call(module, call))


def _is_parser_call(module: SourceModule, call: ast.Call) -> bool:
    return module.qualified_name_of(call.func) == "argparse.ArgumentParser"


def _calls_function_around(entry: SourceModule, module: SourceModule) -> bool:
    """Whether the entry script calls a function of the module in which its parser parses, such as
    ``options.get_args()``."""
    functions = {
        function.name
        for call in module.calls
        if is_parse_call(call) and (function := module.function_around(call)) is not None
    }
    called_names = {entry.called_function(call) for call in entry.calls}
    return not functions.isdisjoint(called_names)


def is_parse_call(call: ast.Call) -> bool:
    """Whether a call is that of a method by which a parser parses the command line."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in _PARSE_METHODS


class _AddedArguments(NamedTuple):
    """What the calls of ``add_argument`` and its like add to a parser."""

    arguments: tuple[ScriptArgument, ...]
    is_complete: bool
    """False if the parser may have further arguments, which literals do not show."""

    required_groups: frozenset[str]
    """Groups of which the command line certainly must have one argument, by the name of their variable."""


def _read_parser(module: SourceModule, modules: Sequence[SourceModule]) -> ArgumentParserFacts | None:
    """Return the only parser that the module makes; None where it does not parse the command line."""
    parser_call = next(call for call in module.calls if _is_parser_call(module, call))
    parse_calls = [call for call in module.calls if is_parse_call(call)]
    if len(parse_calls) != 1 or not _parses_command_line(module, parse_calls[0]):
        return None
    if any(_changes_command_line(node) for each in modules for node in each.nodes):
        return None
    parse_call = parse_calls[0]
    assert isinstance(parse_call.func, ast.Attribute)
    parse_method = parse_call.func.attr
    added = _read_added_arguments(module, modules)
    names = [name for argument in added.arguments for name in argument.names]
    has_unusual_settings = any(
        keyword.arg is None or keyword.arg in _PARSER_SETTINGS_THAT_CHANGE_PARSING
        for keyword in parser_call.keywords
    )
    # Positional arguments get their values by the number of all of them.
    are_positions_certain = all(each.is_certain or not each.is_positional for each in added.arguments)
    exits_on_error = literal_of(keyword_value(parser_call, "exit_on_error"), True) is True
    return ArgumentParserFacts(
        arguments=added.arguments,
        place=module.place_of(parse_call),
        is_complete=added.is_complete
        and are_positions_certain
        and not has_unusual_settings
        and "intermixed" not in parse_method  # positional and optional arguments in any order
        and len(names) == len(set(names)),
        rejects_unknown="known" not in parse_method,
        is_certain=module.runs_certainly(parse_call) and exits_on_error,
        allows_abbreviations=literal_of(keyword_value(parser_call, "allow_abbrev"), True) is not False,
        has_help=literal_of(keyword_value(parser_call, "add_help"), True) is not False,
        required_groups=added.required_groups,
    )


def _read_added_arguments(parser_module: SourceModule, modules: Sequence[SourceModule]) -> _AddedArguments:
    """Return what is added to the parser that a module makes: by the calls in that module, and in functions
    of other modules that it passes the parser to."""
    is_complete = not any(_has_alias(module) for module in modules)
    calls = list(parser_module.calls)
    for function_module, function in _functions_given_a_parser(parser_module, modules):
        if function is None:
            is_complete = False  # a library's, which may add any argument
        elif function_module is not parser_module:
            calls += [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    methods = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
    if not methods.isdisjoint(("add_subparsers", "add_argparse_args")):
        is_complete = False
    arguments: list[ScriptArgument] = []
    members_by_group: dict[_ExclusiveGroup, list[ScriptArgument]] = {}
    for call in calls:
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "add_argument":
            continue
        calling_module = next(module for module in modules if call in module.call_set)
        argument = _read_argument(calling_module, call)
        if argument is None:
            is_complete = False
            continue
        arguments.append(argument)
        group = _exclusive_group_of(calling_module, call)
        if group is not None:
            members_by_group.setdefault(group, []).append(argument)
    if "add_subparsers" in methods:  # then no argument is required of every command
        arguments = [argument._replace(is_certain=False) for argument in arguments]
    required_groups = frozenset(
        group.name
        for group, members in members_by_group.items()
        if group.is_required and all(member.is_certain and member.exclusive_group for member in members)
    )
    return _AddedArguments(tuple(arguments), is_complete, required_groups)


class _ExclusiveGroup(NamedTuple):
    """A group of arguments of which a command line may have one."""

    name: str
    """Name of the variable that is assigned the group."""

    is_required: bool
    """Whether a command line certainly must have one."""


def _exclusive_group_of(module: SourceModule, call: ast.Call) -> _ExclusiveGroup | None:
    """Return the exclusive group that a call of ``add_argument`` adds an argument to; None for another
    argument."""
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return None
    name = call.func.value.id
    group_call = module.values_assigned_once.get(name)
    if not isinstance(group_call, ast.Call) or not isinstance(group_call.func, ast.Attribute):
        return None
    if group_call.func.attr != "add_mutually_exclusive_group":
        return None
    is_stated = literal_of(keyword_value(group_call, "required"), False) is True
    return _ExclusiveGroup(name, is_stated and module.runs_certainly(group_call))


def _has_alias(module: SourceModule) -> bool:
    """Whether a module uses ``add_argument`` otherwise than by calling it: ``add = parser.add_argument`` may
    add any argument."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr == "add_argument"
        and not (isinstance(parent := module.parents.get(node), ast.Call) and parent.func is node)
        for node in module.nodes
    )


def _parses_command_line(module: SourceModule, parse_call: ast.Call) -> bool:
    """Whether a call of ``parse_args`` reads the command line, and not a list of the script's own."""
    value = parse_call.args[0] if parse_call.args else keyword_value(parse_call, "args")
    if value is None or text_of(value) in _COMMAND_LINES:
        return True
    function = module.function_around(parse_call)
    if not isinstance(value, ast.Name) or function is None:
        return False
    # def main(argv=None): parser.parse_args(argv), and main(), main(None) or main(sys.argv[1:])
    parameters = [parameter.arg for parameter in function.args.args]
    default_by_parameter = dict(zip(parameters[::-1], function.args.defaults[::-1], strict=False))
    calls = [
        call for call in module.calls if isinstance(call.func, ast.Name) and call.func.id == function.name
    ]
    if value.id not in parameters or (not calls and value.id not in default_by_parameter):
        return False
    index = parameters.index(value.id)
    default = default_by_parameter.get(value.id)
    passed_values = [
        dict(enumerate(call.args)).get(index) or keyword_value(call, value.id) or default for call in calls
    ] or [default]
    return all(passed is not None and text_of(passed) in _COMMAND_LINES for passed in passed_values)


def _changes_command_line(node: ast.AST) -> bool:
    """Whether a statement replaces or changes ``sys.argv``."""
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign):
        targets = [node.target]
    elif isinstance(node, ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        targets = (
            [node.func.value] if node.func.attr in ("append", "insert", "remove", "extend", "pop") else []
        )
    return any(text_of(target).startswith("sys.argv") for target in targets)


def _functions_given_a_parser(
    module: SourceModule, modules: Sequence[SourceModule]
) -> Iterator[tuple[SourceModule, ast.FunctionDef | None]]:
    """Yield each function that the module passes its parser to, with the module that defines it; None for one
    that is not of the source."""
    names = _names_of_parsers(module)
    for call in module.calls:
        values = [*call.args, *(keyword.value for keyword in call.keywords)]
        if not any(isinstance(value, ast.Name) and value.id in names for value in values):
            continue
        function_name = module.called_function(call)
        definitions = [
            (each, node)
            for each in modules
            for node in each.nodes
            if isinstance(node, ast.FunctionDef) and node.name == function_name
        ]
        yield definitions[0] if len(definitions) == 1 else (module, None)


def _names_of_parsers(module: SourceModule) -> set[str]:
    """Variables that are assigned the parser."""
    return {
        target.id
        for node in module.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _is_parser_call(module, node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _read_argument(module: SourceModule, call: ast.Call) -> ScriptArgument | None:
    """Return the argument that a call of ``add_argument`` adds; None where literals do not show it."""
    names = [literal_of(arg, None) for arg in call.args]
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    if None in keywords or module.is_in_loop(call):
        return None  # **settings
    if not isinstance(module.parents.get(call), ast.Expr):
        return None  # the action may be changed later
    dest = literal_of(keywords.get("dest"), None)
    if not names and isinstance(dest, str):
        names = [dest]
    if not names or not all(isinstance(name, str) and name for name in names):
        return None
    nargs = _read_nargs(module, keywords.get("nargs"))
    if nargs is _UNKNOWN or ("dest" in keywords and not isinstance(dest, str)):
        return None
    action = _read_action(module, keywords.get("action"))
    # A class of the script's own may take no value; argparse's actions reject this number.
    if action not in ACTIONS and action != "BooleanOptionalAction" and nargs == 0:
        action, nargs = "store_const", None
    if action not in ACTIONS and "action" in keywords and "nargs" not in keywords:
        return None
    type_name = _builtin_type_of(module, keywords.get("type"))
    has_literal_values = "type" not in keywords or type_name is not None
    group = _exclusive_group_of(module, call)
    return ScriptArgument(
        names=tuple(str(name) for name in names),
        place=module.place_of(call),
        action=action,
        nargs=nargs,
        type_name=type_name,
        choices=_read_choices(keywords.get("choices")) if has_literal_values else None,
        required=literal_of(keywords.get("required"), False) is True,
        dest=dest if str(names[0]).startswith("-") else None,
        default=literal_of(keywords.get("default"), None),
        is_certain=module.runs_certainly(call),
        # A value that is the default does not count, as argparse sees it.
        exclusive_group=None if group is None or "default" in keywords else group.name,
    )


def _read_action(module: SourceModule, node: ast.expr | None) -> str:
    """Return the action of an argument: a name such as ``store_true``, or that of a class."""
    if node is None:
        return "store"
    name = literal_of(node, None)
    return name if isinstance(name, str) else module.qualified_name_of(node).rpartition(".")[2]


def _builtin_type_of(module: SourceModule, node: ast.expr | None) -> str | None:
    """Return ``int``, ``float`` or ``str``; None for another type, also one of the script of such a name."""
    if not isinstance(node, ast.Name) or node.id not in _SAFE_TYPES or _defines(module, node.id):
        return None
    return node.id


_UNKNOWN: Any = object()


def _defines(module: SourceModule, name: str) -> bool:
    """Whether a module gives a built-in name another meaning."""
    return name in module.imported_names or any(
        (isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name)
        or (isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store))
        for node in module.nodes
    )


def _read_nargs(module: SourceModule, node: ast.expr | None) -> Any:
    if node is None:
        return None
    by_name = {"argparse.REMAINDER": "...", "argparse.OPTIONAL": "?", "argparse.ZERO_OR_MORE": "*"}
    value = (
        by_name.get(module.qualified_name_of(node))
        if isinstance(node, ast.Attribute)
        else literal_of(node, None)
    )
    return value if isinstance(value, (int, str)) else _UNKNOWN


_MAX_CHOICES = 1000


def _read_choices(node: ast.expr | None) -> tuple[Any, ...] | None:
    """Return the values that an argument may have; None for any, or where literals do not show them."""
    if (
        isinstance(node, ast.Call)
        and text_of(node.func) == "range"
        and all(isinstance(literal_of(arg, None), int) for arg in node.args)
    ):
        values = range(*(literal_of(arg, 0) for arg in node.args))
        return tuple(values) if 0 < len(values) <= _MAX_CHOICES else None
    value = literal_of(node, None)
    return tuple(value) if isinstance(value, (list, tuple, set, dict)) and value else None
