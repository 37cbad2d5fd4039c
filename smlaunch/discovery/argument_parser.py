"""Reads the argparse parser of a script from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from typing import Any

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
    return module.name_of(call.func) == "argparse.ArgumentParser"


def _calls_function_around(entry: SourceModule, module: SourceModule) -> bool:
    """Whether the entry script calls a function of the module in which its parser parses, such as
    ``options.get_args()``."""
    functions = {
        function.name
        for call in module.calls
        if is_parse_call(call) and (function := module.function_around(call)) is not None
    }
    called_names = {entry.name_of(call.func).rpartition(".")[2] for call in entry.calls}
    return not functions.isdisjoint(called_names)


def is_parse_call(call: ast.Call) -> bool:
    """Whether a call is that of a method by which a parser parses the command line."""
    return isinstance(call.func, ast.Attribute) and call.func.attr in _PARSE_METHODS


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
    is_complete = not any(
        keyword.arg in (*_PARSER_SETTINGS_THAT_CHANGE_PARSING, None) for keyword in parser_call.keywords
    )
    arguments: list[ScriptArgument] = []
    members_by_group: dict[tuple[str, bool], list[ScriptArgument]] = {}
    # Positional and optional arguments in any order; an alias, such as ``add = parser.add_argument``.
    if "intermixed" in parse_call.func.attr or any(_has_alias(each) for each in modules):
        is_complete = False
    has_subcommands = False  # then no argument is required of every command
    calls = list(module.calls)
    for function_module, function in _functions_given_a_parser(module, modules):
        if function is None:
            is_complete = False  # a library's, which may add any argument
        elif function_module is not module:
            calls += [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    for call in calls:
        if not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr == "add_subparsers":
            has_subcommands = True
        if call.func.attr in ("add_subparsers", "add_argparse_args"):
            is_complete = False
        if call.func.attr != "add_argument":
            continue
        owner = next(each for each in modules if call in each.call_set)
        argument = _read_argument(owner, call)
        if argument is None:
            is_complete = False
        else:
            arguments.append(argument)
            group = _exclusive_group_of(owner, call)
            if group is not None:
                members_by_group.setdefault(group, []).append(argument)
    names = [name for argument in arguments for name in argument.names]
    return ArgumentParserFacts(
        arguments=tuple(
            argument._replace(is_certain=argument.is_certain and not has_subcommands)
            for argument in arguments
        ),
        place=module.place_of(parse_call),
        is_complete=is_complete and len(names) == len(set(names)),
        rejects_unknown="known" not in parse_call.func.attr,
        is_certain=module.runs_certainly(parse_call)
        and literal_of(keyword_value(parser_call, "exit_on_error"), True) is True,
        allows_abbreviations=literal_of(keyword_value(parser_call, "allow_abbrev"), True) is not False,
        required_groups=frozenset(
            name
            for (name, is_required), members in members_by_group.items()
            if is_required and all(each.is_certain and each.exclusive_group for each in members)
        ),
    )


def _exclusive_group_of(module: SourceModule, call: ast.Call) -> tuple[str, bool] | None:
    """Return the name of the exclusive group that an argument is added to, and whether the group is certainly
    required; None for another argument."""
    if not isinstance(call.func, ast.Attribute) or not isinstance(call.func.value, ast.Name):
        return None
    name = call.func.value.id
    group = module.values_assigned_once.get(name)
    if not isinstance(group, ast.Call) or not isinstance(group.func, ast.Attribute):
        return None
    if group.func.attr != "add_mutually_exclusive_group":
        return None
    return name, literal_of(keyword_value(group, "required"), False) is True and module.runs_certainly(group)


def _has_alias(module: SourceModule) -> bool:
    """Whether a module uses ``add_argument`` otherwise than by calling it."""
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
    parameters = [each.arg for each in function.args.args]
    defaults = dict(zip(parameters[::-1], function.args.defaults[::-1], strict=False))
    calls = [
        call for call in module.calls if isinstance(call.func, ast.Name) and call.func.id == function.name
    ]
    if value.id not in parameters or (not calls and value.id not in defaults):
        return False
    index = parameters.index(value.id)
    given = [dict(enumerate(call.args)).get(index) or keyword_value(call, value.id) for call in calls]
    values = [defaults.get(value.id) if each is None else each for each in given] or [defaults[value.id]]
    return all(each is not None and text_of(each) in _COMMAND_LINES for each in values)


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
        function_name = module.name_of(call.func).rpartition(".")[2]
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
    if not names and isinstance(dest := literal_of(keywords.get("dest"), None), str):
        names = [dest]
    if not names or not all(isinstance(name, str) and name for name in names):
        return None
    action_node = keywords.get("action")
    action = "store" if action_node is None else literal_of(action_node, None)
    if action_node is not None and not isinstance(action, str):
        action = module.name_of(action_node).rpartition(".")[2]
    nargs = _read_nargs(module, keywords.get("nargs"))
    dest = literal_of(keywords.get("dest"), None)
    is_unknown = nargs is _UNKNOWN or ("dest" in keywords and not isinstance(dest, str))
    is_class = action not in ACTIONS and action != "BooleanOptionalAction"
    if is_class and nargs == 0:  # of an own action, which argparse's do not take
        action, nargs = "store_const", None
    if is_unknown or (action not in ACTIONS and "nargs" not in keywords and "action" in keywords):
        return None
    type_node = keywords.get("type")
    is_builtin = isinstance(type_node, ast.Name) and type_node.id in _SAFE_TYPES
    type_name = type_node.id if isinstance(type_node, ast.Name) and is_builtin else None
    if type_name is not None and _defines(module, type_name):
        type_name = None
    choices = _read_choices(keywords.get("choices")) if type_node is None or type_name else None
    group = _exclusive_group_of(module, call)
    return ScriptArgument(
        names=tuple(str(name) for name in names),
        place=module.place_of(call),
        action=action,
        nargs=nargs,
        type_name=type_name,
        choices=choices,
        required=literal_of(keywords.get("required"), False) is True,
        dest=dest if str(names[0]).startswith("-") else None,
        default=literal_of(keywords.get("default"), None),
        is_certain=module.runs_certainly(call),
        # A value that is the default does not count, as argparse sees it.
        exclusive_group=None if group is None or "default" in keywords else group[0],
    )


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
    value = by_name.get(module.name_of(node)) if isinstance(node, ast.Attribute) else literal_of(node, None)
    return value if isinstance(value, (int, str)) else _UNKNOWN


def _read_choices(node: ast.expr | None) -> tuple[Any, ...] | None:
    """Return the values that an argument may have; None for any, or where literals do not show them."""
    if (
        isinstance(node, ast.Call)
        and text_of(node.func) == "range"
        and all(isinstance(literal_of(arg, None), int) for arg in node.args)
    ):
        return tuple(range(*(literal_of(arg, 0) for arg in node.args)))[:1000] or None
    value = literal_of(node, None)
    return tuple(value) if isinstance(value, (list, tuple, set, dict)) and value else None
