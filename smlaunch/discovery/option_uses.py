"""Finds the option of the script's command line that a value in the script comes from."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from smlaunch.discovery.argument_parser import is_parse_call
from smlaunch.discovery.source_modules import SourceModule, keyword_value, literal_of
from smlaunch.facts.script_arguments import ArgumentParserFacts
from smlaunch.facts.script_program import OptionUse

_MAX_FOLLOWED = 5
"""Variables and parameters by way of which a value is followed, at most."""

_GROUP_FUNCTIONS = ("init_process_group", "init_distributed")


def find_option_of(
    module: SourceModule,
    node: ast.expr | None,
    modules: Sequence[SourceModule],
    parser: ArgumentParserFacts | None,
    followed_count: int = 0,
) -> str | None:
    """Return the attribute of the parsed arguments that an expression is, such as ``num_nodes`` for
    ``args.num_nodes``; None for any other value. Variables that are assigned once, parameters of functions
    that are called once, ``vars(args)[...]`` and ``int(...)`` are followed."""
    if parser is None or node is None or followed_count > _MAX_FOLLOWED:
        return None
    destinations = {argument.destination for argument in parser.arguments if not argument.is_flag}
    if isinstance(node, ast.Attribute):
        is_option = node.attr in destinations and _may_be_arguments(module, node.value, modules)
        return node.attr if is_option else None
    if isinstance(node, ast.Subscript):
        key = literal_of(node.slice, None)
        is_option = key in destinations if isinstance(key, str) else False
        return key if is_option and _is_dict_of_arguments(module, node.value, modules) else None
    if (
        isinstance(node, ast.Call)
        and len(node.args) == 1
        and module.qualified_name_of(node.func) in ("int", "str")
    ):
        return find_option_of(module, node.args[0], modules, parser, followed_count + 1)
    if isinstance(node, ast.Name):
        module, value = _value_of_name(module, node, modules)
        return find_option_of(module, value, modules, parser, followed_count + 1)
    return None


def find_group_options(
    modules: Sequence[SourceModule], parser: ArgumentParserFacts | None
) -> Iterator[tuple[str, OptionUse]]:
    """Yield ``rank`` and ``world_size`` of calls that make the process group, with the options that they
    come from."""
    for module in modules:
        for call in module.calls:
            if module.called_function(call) not in _GROUP_FUNCTIONS:
                continue
            for name in ("rank", "world_size"):
                option = find_option_of(module, keyword_value(call, name), modules, parser)
                if option is not None:
                    yield name, OptionUse(module.place_of(call), option)


def _may_be_arguments(module: SourceModule, node: ast.expr, modules: Sequence[SourceModule]) -> bool:
    """Whether an object, of which an attribute is read that has the name of an option, may be the parsed
    arguments: False for a variable that is certainly another object."""
    if not isinstance(node, ast.Name) or module.is_parameter(node):
        return isinstance(node, (ast.Name, ast.Attribute))
    value = module.values_assigned_once.get(node.id)
    return value is None or (isinstance(value, ast.Call) and _returns_arguments(module, value, modules))


def _returns_arguments(module: SourceModule, call: ast.Call, modules: Sequence[SourceModule]) -> bool:
    """Whether a call parses the arguments, or calls the function in which they are parsed."""
    if is_parse_call(call):
        return True
    parsing_functions = [
        module_that_parses.function_around(parse_call)
        for module_that_parses in modules
        for parse_call in module_that_parses.calls
        if is_parse_call(parse_call)
    ]
    called_function = module.called_function(call)
    return any(function is not None and function.name == called_function for function in parsing_functions)


def _is_dict_of_arguments(module: SourceModule, node: ast.expr, modules: Sequence[SourceModule]) -> bool:
    """Whether an expression is ``vars(args)``, or a variable that is assigned it."""
    if isinstance(node, ast.Name):
        value = module.values_assigned_once.get(node.id)
        return (
            value is not None
            and not isinstance(value, ast.Name)
            and _is_dict_of_arguments(module, value, modules)
        )
    if not isinstance(node, ast.Call) or module.qualified_name_of(node.func) != "vars" or len(node.args) != 1:
        return False
    (argument,) = node.args
    is_parse = isinstance(argument, ast.Call) and _returns_arguments(module, argument, modules)
    return is_parse or _may_be_arguments(module, argument, modules)


def _value_of_name(
    module: SourceModule, node: ast.Name, modules: Sequence[SourceModule]
) -> tuple[SourceModule, ast.expr | None]:
    """Return the only value of a variable, with the module that states it: for a parameter, what the only
    call of its function passes. The value is None where there are several, or it is not known."""
    function = module.function_around(node)
    if function is None or not module.is_parameter(node):
        return module, module.values_assigned_once.get(node.id)
    parameters = [parameter.arg for parameter in function.args.args]
    calls = [
        (calling_module, call)
        for calling_module in modules
        for call in calling_module.calls
        if calling_module.called_function(call) == function.name
    ]
    if len(calls) != 1 or parameters[0] in ("self", "cls"):
        return module, None
    calling_module, call = calls[0]
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return module, None
    position = parameters.index(node.id)
    positional_value = call.args[position] if position < len(call.args) else None
    return calling_module, keyword_value(call, node.id) or positional_value
