"""Reads what a script shows about itself as a program: how it starts its ranks, the variables that it reads,
where it saves, its parser. Nothing is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from smlaunch.discovery.argument_parser import read_argument_parser
from smlaunch.discovery.fixed_checkpoint_files import find_fixed_checkpoint_files
from smlaunch.discovery.gpu_calls import find_gpu_calls
from smlaunch.discovery.option_uses import find_group_options, find_option_of
from smlaunch.discovery.saved_files import find_saved_files
from smlaunch.discovery.source_modules import (
    SourceModule,
    SourceProgram,
    keyword_value,
    literal_of,
    text_of,
)
from smlaunch.facts.script_arguments import ArgumentParserFacts
from smlaunch.facts.script_program import (
    NO_PROGRAM,
    FixedValue,
    ProgramFacts,
    RankStart,
    RelativeImport,
    TrainerCall,
    VariableUse,
)

RANK_STARTERS = (
    "torch.multiprocessing.spawn",
    "torch.multiprocessing.start_processes",
    "accelerate.notebook_launcher",
    "accelerate.debug_launcher",
)
"""Functions that start ranks on the host, each with the rank as its first argument."""

_PROCESS_CLASSES = ("multiprocessing.Process", "torch.multiprocessing.Process")
_LAUNCHER_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
_LIGHTNING_PACKAGES = ("lightning", "pytorch_lightning", "lightning_fabric")
_LAUNCH_TEXTS = ("environ", "getenv", "local_rank", "LOCAL_RANK", "torchrun", "elastic")
_VARIABLES_OF_ALL_CHANNELS = frozenset(
    ("SM_INPUT_DIR", "SM_INPUT_DATA_CONFIG", "SM_CHANNELS", "SM_TRAINING_ENV", "SM_INPUT_DATA_DIR")
)
_ONE_CHANNEL = re.compile(r"SM_CHANNEL_[A-Z0-9_]+")
TEXTS_OF_CHANNELS = (
    *("/opt/ml/input", "/opt/ml/processing", "SM_CHANNEL", "SM_INPUT", "SM_TRAINING_ENV"),
    "inputdataconfig",
)
_FUNCTIONS_THAT_SET_VARIABLES = ("os.environ.setdefault", "os.putenv", "os.environ.__setitem__")
_NAMES_OF_THIS_HOST = ("socket.gethostname", "socket.getfqdn", "platform.node")
_FUNCTIONS_THAT_READ_VARIABLES = ("os.environ.get", "os.getenv", "os.environ.setdefault", "os.environ.pop")


def read_program(program: SourceProgram) -> ProgramFacts:
    """Return what the entry script and the modules of the source that it imports show. Empty for a script
    that is not Python, or cannot be parsed."""
    modules = program.modules
    if not modules:
        return NO_PROGRAM
    variable_uses: dict[str, VariableUse] = {}
    own_variables = {name for module in modules for name in _iter_variables_set(module)}
    has_unknown_own_variables = "" in own_variables
    for module in modules:
        for name, use in _iter_variable_uses(module):
            if name in own_variables or has_unknown_own_variables:  # the program itself may set it first
                use = use._replace(is_required=False)
            known_use = variable_uses.get(name)
            if known_use is None or (use.is_required and not known_use.is_required):
                variable_uses[name] = use
    entry_module = modules[0]
    fixed_values = dict(_iter_fixed_values(modules))
    sets_rank = any(
        name == "RANK" and not isinstance(value, ast.Constant)
        for module in modules
        for name, value, _ in _iter_variable_assignments(module)
    )
    parser = read_argument_parser(modules)
    imports = program.library_imports
    return ProgramFacts(
        was_read=True,
        parser=parser,
        rank_start=_find_rank_start(entry_module, modules),
        fixed_values=fixed_values,
        variable_uses=variable_uses,
        reads_any_channel=_reads_any_channel(modules, variable_uses),
        computes_rank_of_host=sets_rank and not {"SM_HOSTS", "SM_CURRENT_HOST"}.isdisjoint(variable_uses),
        nccl_backend=_find_nccl_backend(modules),
        gpu_calls=find_gpu_calls(modules),
        calls=frozenset(module.called_function(call) for module in modules for call in module.calls),
        trainer_calls=tuple(_iter_trainer_calls(modules, parser)),
        group_options=dict(find_group_options(modules, parser)),
        has_lightning_cli=any(
            module.called_function(call) == "LightningCLI" for module in modules for call in module.calls
        ),
        saved_files=tuple(find_saved_files(modules, parser)),
        fixed_checkpoint_files=tuple(find_fixed_checkpoint_files(modules)),
        relative_import=_find_relative_import(entry_module),
        imports=imports.names,
        optional_imports=imports.optional,
        files_of_imports={name: modules[number].file for name, number in imports.module_by_name.items()},
    )


def _find_relative_import(entry: SourceModule) -> RelativeImport | None:
    """Return the first relative import that the entry script certainly runs, and how it can be run."""
    relative_imports = [
        node
        for node in entry.nodes
        if isinstance(node, ast.ImportFrom) and node.level and entry.runs_certainly(node)
    ]
    sets_package = any(isinstance(node, ast.Name) and node.id == "__package__" for node in entry.nodes)
    if not relative_imports or sets_package:
        return None
    first_import = min(relative_imports, key=lambda statement: statement.lineno)
    if first_import.module is None:
        absolute_import = text_of(ast.Import(first_import.names))
    else:
        absolute_import = text_of(ast.ImportFrom(first_import.module, first_import.names, level=0))
    module, folder = _module_of_file(Path.cwd() / entry.path, first_import.level)
    return RelativeImport(
        entry.place_of(first_import), text_of(first_import), absolute_import, module, folder
    )


def _module_of_file(path: Path, level: int) -> tuple[str, str]:
    """Return the dotted name of a file that lies in packages, at least ``level`` of them, and the folder from
    which Python finds it; empty for the working directory. No name for a file whose folder is no package."""
    names = [] if path.stem == "__main__" else [path.stem]
    folder = path.parent
    if not (folder / "__init__.py").is_file():
        return "", ""
    while folder.name and (level > 0 or (folder / "__init__.py").is_file()):
        names.insert(0, folder.name)
        folder, level = folder.parent, level - 1
    return ".".join(names), "" if folder == Path.cwd() else str(folder)


# ---- variables --------------------------------------------------------------------------------------------


def _iter_variable_uses(module: SourceModule) -> Iterator[tuple[str, VariableUse]]:
    """Yield each environment variable that a module reads by a literal name."""
    for node in module.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            name = literal_of(node.slice, None)
            if isinstance(name, str) and module.qualified_name_of(node.value) == "os.environ":
                yield name, VariableUse(module.place_of(node), node in module.reach.certain)
        elif (
            isinstance(node, ast.Call)
            and module.qualified_name_of(node.func) in _FUNCTIONS_THAT_READ_VARIABLES
            and node.args
        ):
            name = literal_of(node.args[0], None)
            if isinstance(name, str):
                yield name, VariableUse(module.place_of(node), is_required=False)


def _reads_any_channel(modules: Sequence[SourceModule], variable_uses: Mapping[str, VariableUse]) -> bool:
    """Whether the program may find channels in other ways than by their own variables."""
    if not _VARIABLES_OF_ALL_CHANNELS.isdisjoint(variable_uses):
        return True
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                is_one_channel = _ONE_CHANNEL.fullmatch(node.value) is not None
                if not is_one_channel and any(text in node.value for text in TEXTS_OF_CHANNELS):
                    return True
            elif isinstance(node, ast.Call) and module.qualified_name_of(node.func).startswith(
                "smlaunch.train"
            ):
                return True
    return False


def _iter_variables_set(module: SourceModule) -> Iterator[str]:
    """Yield each environment variable that a module may set; an empty name for one that is not known."""
    for node in module.nodes:
        if node not in module.reach.possible:
            continue
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            if module.qualified_name_of(node.value) == "os.environ":
                yield str(literal_of(node.slice, ""))
        elif isinstance(node, ast.AugAssign) and module.qualified_name_of(node.target) == "os.environ":
            yield ""
        elif isinstance(node, ast.Call):
            function = module.qualified_name_of(node.func)
            if function in _FUNCTIONS_THAT_SET_VARIABLES and node.args:
                yield str(literal_of(node.args[0], ""))
            elif function == "os.environ.update":
                yield from (keyword.arg or "" for keyword in node.keywords)
                for argument in node.args:
                    keys = argument.keys if isinstance(argument, ast.Dict) else [None]
                    yield from (str(literal_of(key, "")) for key in keys)


def _iter_variable_assignments(
    module: SourceModule,
) -> Iterator[tuple[str, ast.expr, ast.Assign | ast.Call]]:
    """Yield each assignment ``os.environ["NAME"] = value``, and the items of ``os.environ.update``, with the
    statement or call."""
    for node in module.nodes:
        if isinstance(node, ast.Assign):
            for target, value in _target_value_pairs(node):
                if (
                    isinstance(target, ast.Subscript)
                    and module.qualified_name_of(target.value) == "os.environ"
                ):
                    name = literal_of(target.slice, None)
                    if isinstance(name, str):
                        yield name, value, node
        elif isinstance(node, ast.Call) and module.qualified_name_of(node.func) == "os.environ.update":
            for name, value in _items_of_update(node):
                yield name, value, node


def _items_of_update(call: ast.Call) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names and values that ``update`` sets by keywords and by a literal mapping, none of which
    another mapping in it may replace."""
    mappings = [argument for argument in call.args if isinstance(argument, ast.Dict)]
    has_expanded_keywords = any(keyword.arg is None for keyword in call.keywords)  # **settings
    if has_expanded_keywords or any(None in mapping.keys for mapping in mappings):
        return
    yield from ((keyword.arg, keyword.value) for keyword in call.keywords if keyword.arg is not None)
    for mapping in mappings:
        for key, value in zip(mapping.keys, mapping.values, strict=True):
            name = literal_of(key, None)
            if isinstance(name, str):
                yield name, value


def _target_value_pairs(statement: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target with its value, also of ``a, b = 1, 2``."""
    value = statement.value
    for target in statement.targets:
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            yield from zip(target.elts, value.elts, strict=False)
        else:
            yield target, value


def _iter_fixed_values(modules: Sequence[SourceModule]) -> Iterator[tuple[str, FixedValue]]:
    """Yield, by the launcher's variable, each value that the program fixes itself whatever the launcher
    says: variables that are assigned a literal, and an address of this machine for ``init_method``."""
    for module in modules:
        for name, value, node in _iter_variable_assignments(module):
            is_fixed = isinstance(literal_of(value, None), str) or _is_name_of_this_host(module, value)
            if name in _LAUNCHER_VARIABLES and is_fixed and module.runs_certainly(node):
                yield name, _fixed_value(module, name, value, node)
        for call in module.calls:
            init_method = literal_of(keyword_value(call, "init_method"), None)
            if (
                module.called_function(call) == "init_process_group"
                and isinstance(init_method, str)
                and any(host in init_method for host in ("localhost", "127.0.0.1"))
                and module.runs_certainly(call)
            ):
                fixed_value = FixedValue(
                    module.place_of(call),
                    f'init_method="{init_method}"',
                    'init_method="env://"',
                    module.edit_for_keyword(call, "init_method"),
                )
                yield "MASTER_ADDR", fixed_value


def _fixed_value(module: SourceModule, name: str, value: ast.expr, node: ast.Assign | ast.Call) -> FixedValue:
    """Return the environment variable ``name`` that an assignment or ``os.environ.update`` sets, with the
    text that keeps the launcher's value. ``os.environ["RANK"] = "0"`` alone can be replaced in its line; what
    sets several variables is only shown."""
    target = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
    if not isinstance(target, ast.Subscript):
        new_text = f'os.environ.setdefault("{name}", {text_of(value)})'
        # Of a call only this item: others may be secrets.
        old_text = text_of(node) if isinstance(node, ast.Assign) else f"{name}={text_of(value)}"
        return FixedValue(module.place_of(node), old_text, new_text, None)
    new_text = f'{text_of(target).partition("[")[0]}.setdefault("{name}", {text_of(value)})'
    return FixedValue(module.place_of(node), text_of(node), new_text, module.edit_of(node))


def _is_name_of_this_host(module: SourceModule, value: ast.expr) -> bool:
    return isinstance(value, ast.Call) and module.qualified_name_of(value.func) in _NAMES_OF_THIS_HOST


def _find_nccl_backend(modules: Sequence[SourceModule]) -> FixedValue | None:
    """Return the backend ``"nccl"`` of a call of init_process_group that does not look for a GPU first."""
    for module in modules:
        for call in module.calls:
            if module.called_function(call) != "init_process_group" or not module.runs_certainly(call):
                continue
            backend = keyword_value(call, "backend") or next(iter(call.args), None)
            value = module.values_assigned_once.get(backend.id) if isinstance(backend, ast.Name) else backend
            if backend is not None and str(literal_of(value, "")).lower() == "nccl":
                return FixedValue(module.place_of(call), '"nccl"', '"gloo"', module.edit_of(backend))
    return None


# ---- ranks ------------------------------------------------------------------------------------------------


def _find_rank_start(entry: SourceModule, modules: Sequence[SourceModule]) -> RankStart | None:
    """Return the call by which the entry script starts ranks itself; None without one, and for a script that
    looks first whether a launcher has started it."""
    joins_ranks = any(
        module.called_function(call) == "init_process_group" for module in modules for call in module.calls
    )
    for call in entry.calls:
        name = entry.qualified_name_of(call.func)
        starts_processes = name in _PROCESS_CLASSES and joins_ranks and entry.is_in_loop(call)
        if name not in RANK_STARTERS and not starts_processes:
            continue
        conditions = entry.conditions_of(call)
        if any(text in text_of(condition) for condition in conditions for text in _LAUNCH_TEXTS):
            continue
        flag = None
        nearest_condition = next(iter(conditions), None)
        if isinstance(nearest_condition, ast.Attribute) and _runs_if(entry, call, nearest_condition):
            flag = nearest_condition.attr  # if args.multiprocessing_distributed:
        return RankStart(entry.place_of(call), text_of(call.func), flag)
    return None


def _runs_if(module: SourceModule, node: ast.AST, test: ast.expr) -> bool:
    """Whether a node is executed if the test holds, and not otherwise."""
    child = node
    for ancestor in module.ancestors(node):
        if isinstance(ancestor, ast.If) and ancestor.test is test:
            return child in ancestor.body
        child = ancestor
    return False


def _iter_trainer_calls(
    modules: Sequence[SourceModule], parser: ArgumentParserFacts | None
) -> Iterator[TrainerCall]:
    """Yield each call of Lightning's Trainer or Fabric."""
    for module in modules:
        for call in module.calls:
            package, _, class_name = module.qualified_name_of(call.func).rpartition(".")
            is_lightning = package.partition(".")[0] in _LIGHTNING_PACKAGES
            if not is_lightning or class_name not in ("Trainer", "Fabric"):
                continue
            keywords = {keyword.arg: keyword.value for keyword in call.keywords}
            has_expanded_keywords = None in keywords  # **settings
            devices, num_nodes = (_literal_setting(keywords.get(name)) for name in ("devices", "num_nodes"))
            devices_option, num_nodes_option = (
                find_option_of(module, keywords.get(name), modules, parser)
                for name in ("devices", "num_nodes")
            )
            are_devices_known = devices is not _COMPUTED or devices_option is not None
            are_nodes_known = num_nodes is not _COMPUTED or num_nodes_option is not None
            yield TrainerCall(
                place=module.place_of(call),
                class_name=class_name,
                devices=devices if isinstance(devices, (int, str)) else None,
                num_nodes=num_nodes if isinstance(num_nodes, int) else None,
                is_known=are_devices_known and are_nodes_known and not has_expanded_keywords,
                num_nodes_edit=module.edit_for_keyword(call, "num_nodes"),
                devices_edit=module.edit_for_keyword(call, "devices"),
                num_nodes_option=num_nodes_option,
                devices_option=devices_option,
            )


_COMPUTED = object()


def _literal_setting(node: ast.expr | None) -> object:
    """The literal value of a keyword, of a list its length; None without it."""
    if node is None:
        return None
    value = literal_of(node, _COMPUTED)
    return len(value) if isinstance(value, (list, tuple)) else value
