"""Finds where a script saves its results, as far as literals show it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

from smlaunch.discovery.source_modules import SourceModule, keyword_value, literal_of, text_of
from smlaunch.facts.script_arguments import ArgumentParserFacts
from smlaunch.facts.script_program import SavedFile

_PATH_INDEX_BY_FUNCTION = {
    "torch.save": 1,
    "joblib.dump": 1,
    "safetensors.torch.save_file": 1,
    "tensorflow.saved_model.save": 1,
    "tensorflow.keras.models.save_model": 1,
    "keras.saving.save_model": 1,
    "numpy.save": 0,
    "numpy.savez": 0,
}
"""Index of the path among the arguments, by the function."""

_PATH_INDEX_BY_METHOD = {
    "save_pretrained": 0,
    "save_model": 0,
    "save_weights": 0,
    "save_checkpoint": 0,
}
"""The same for methods of any object; ``save`` only of a model."""

_PATH_KEYWORDS = ("f", "path", "filename", "filepath", "save_directory", "output_dir", "fname", "dir_name")
_MODEL_WORDS = ("model", "net", "network", "clf", "classifier", "estimator", "pipeline")
_PATH_FUNCTIONS = ("os.path.join", "os.path.abspath", "pathlib.Path", "str")
_FILE_WRITERS = ("pickle.dump", "json.dump", "cloudpickle.dump", "dill.dump")


def find_saved_files(
    modules: Sequence[SourceModule], parser: ArgumentParserFacts | None
) -> Iterator[SavedFile]:
    """Yield each call that saves a model or the like to a path that literals show: one in the call, one of a
    variable that is assigned once, or the default of an option."""
    for module in modules:
        assigned = module.values_assigned_once
        for call in module.calls:
            node = _path_argument(module, call)
            if node is None:
                continue
            path, option = _resolve_path(module, node, assigned, modules)
            if path:
                yield SavedFile(module.place_of(call), text_of(call.func), path, option)


def _path_argument(module: SourceModule, call: ast.Call) -> ast.expr | None:
    """Return the argument that is the path which a call saves to; None for any other call."""
    function, method = module.qualified_name_of(call.func), module.called_function(call)
    index = _PATH_INDEX_BY_FUNCTION.get(function)
    if index is None and isinstance(call.func, ast.Attribute):
        saved_object = text_of(call.func.value).rpartition(".")[2].lower()
        is_model = any(saved_object == word or saved_object.endswith("_" + word) for word in _MODEL_WORDS)
        if method in _PATH_INDEX_BY_METHOD or (method == "save" and is_model):
            index = _PATH_INDEX_BY_METHOD.get(method, 0)
        elif function in _FILE_WRITERS and len(call.args) > 1:  # pickle.dump(model, open(path, "wb"))
            return _opened_path(call.args[1])
    if index is None:
        return None
    for keyword in _PATH_KEYWORDS:
        value = keyword_value(call, keyword)
        if value is not None:
            return value
    return call.args[index] if len(call.args) > index else None


def _opened_path(node: ast.expr) -> ast.expr | None:
    """``path`` of ``open(path, "wb")``."""
    is_open = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
    return node.args[0] if is_open and isinstance(node, ast.Call) and node.args else None


def _path_of_opened_file(module: SourceModule, node: ast.Name) -> ast.expr | None:
    """``path`` of ``with open(path, "wb") as file`` around the use of ``file``."""
    for ancestor in module.ancestors(node):
        for item in ancestor.items if isinstance(ancestor, ast.With) else ():
            if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == node.id:
                return _opened_path(item.context_expr)
    return None


def _resolve_path(
    module: SourceModule,
    node: ast.expr,
    assigned: Mapping[str, ast.expr],
    modules: Sequence[SourceModule],
    depth: int = 0,
) -> tuple[str, str | None]:
    """Return the path that an expression stands for, or its beginning where only that is literal, and the
    option whose default it is, such as ``--output``. Both are empty where that is not known. Variables are
    followed; ``depth`` counts how many."""
    literal = literal_of(node, None)
    if isinstance(literal, str):
        return literal, None
    if depth > 4:
        return "", None
    if isinstance(node, ast.Name):
        opened_path = _path_of_opened_file(module, node)
        if opened_path is not None:
            return _resolve_path(module, opened_path, assigned, modules, depth + 1)
        if node.id in assigned and not module.is_parameter(node):
            return _resolve_path(module, assigned[node.id], assigned, modules, depth + 1)
        return _default_of_parameter(module, node), None
    beginning = _beginning_of_path(module, node)
    if beginning is not None:
        return _resolve_path(module, beginning, assigned, modules, depth + 1)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return default_of_option(node.attr, modules)
    return "", None


def _beginning_of_path(module: SourceModule, node: ast.expr) -> ast.expr | None:
    """Return the first part of an expression that makes a path of several: ``folder`` of ``folder / "x.pt"``,
    ``os.path.join(folder, "x.pt")`` and ``f"{folder}/x.pt"``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Div, ast.Mod)):
        return node.left
    if isinstance(node, ast.JoinedStr) and node.values:
        first_value = node.values[0]
        return first_value.value if isinstance(first_value, ast.FormattedValue) else first_value
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return node.func.value
    is_path_function = module.qualified_name_of(node.func) in _PATH_FUNCTIONS
    return node.args[0] if is_path_function and node.args else None


def _default_of_parameter(module: SourceModule, node: ast.Name) -> str:
    """Return the literal default of a function's parameter; empty if there is none, or a call of the module
    passes another value."""
    function = module.function_around(node)
    if function is None:
        return ""
    parameters = [parameter.arg for parameter in function.args.args]
    default_by_parameter = dict(zip(parameters[::-1], function.args.defaults[::-1], strict=False))
    default = literal_of(default_by_parameter.get(node.id), None)
    if not isinstance(default, str):
        return ""
    # A call of a method does not pass ``self`` as an argument.
    position = parameters.index(node.id) - (1 if parameters[0] == "self" else 0)
    for call in module.calls:
        passes_value = keyword_value(call, node.id) is not None or len(call.args) > position
        if module.called_function(call) == function.name and passes_value:
            return ""
    return default


def default_of_option(attribute: str, modules: Sequence[SourceModule]) -> tuple[str, str | None]:
    """Return the literal default of the option that the parser stores as this attribute of the parsed
    arguments, and the option, such as ``--output-dir``; an empty default and None if that is not known."""
    for module in modules:
        assigned = module.values_assigned_once
        for call in module.calls:
            if not (isinstance(call.func, ast.Attribute) and call.func.attr == "add_argument"):
                continue
            names = [name for arg in call.args if isinstance(name := literal_of(arg, None), str)]
            long_names = [name for name in names if name.startswith("--")]
            if any(name.lstrip("-").replace("-", "_") == attribute for name in long_names):
                node = keyword_value(call, "default")
                if isinstance(node, ast.Name):
                    node = assigned.get(node.id)
                default = literal_of(node, None)
                return (default, long_names[0]) if isinstance(default, str) else ("", None)
    return "", None
