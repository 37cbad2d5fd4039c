"""The Python files that a job's program consists of: the entry script, and the modules of the source folder
that it imports, each with its syntax tree. Nothing is executed.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from smlaunch.discovery.code_reach import CodeReach, find_reach, is_main_test
from smlaunch.facts.source_place import LineEdit, SourcePlace

MAX_MODULES = 500


@dataclass(frozen=True)
class SourceModule:
    """One file of the program."""

    path: Path
    file: str
    """Relative to the source folder, with forward slashes."""

    tree: ast.Module
    is_entry: bool
    reach: CodeReach
    """Of the whole program."""

    @cached_property
    def imported_names(self) -> dict[str, str]:
        """Full names by the names that imports define."""
        return map_alias_to_imported_name(self.tree)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All nodes of the syntax tree."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def calls(self) -> tuple[ast.Call, ...]:
        """All calls, in the order of lines."""
        calls = [node for node in self.nodes if isinstance(node, ast.Call)]
        return tuple(sorted(calls, key=lambda call: (call.lineno, call.col_offset)))

    @cached_property
    def call_set(self) -> frozenset[ast.Call]:
        return frozenset(self.calls)

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        """The node above each node."""
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    @cached_property
    def values_assigned_once(self) -> dict[str, ast.expr]:
        """Values by the names that are assigned exactly once."""
        values: dict[str, list[ast.expr]] = {}
        changed_names: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        values.setdefault(target.id, []).append(node.value)
            elif isinstance(node, (ast.AugAssign, ast.AnnAssign)) and isinstance(node.target, ast.Name):
                changed_names.add(node.target.id)
        return {
            name: nodes[0] for name, nodes in values.items() if len(nodes) == 1 and name not in changed_names
        }

    @cached_property
    def lines(self) -> list[bytes]:
        """The file's lines, in which an offset of the syntax tree counts bytes."""
        return self.path.read_bytes().splitlines()

    def edit_of(self, node: ast.expr | ast.stmt | ast.keyword) -> LineEdit | None:
        """Return the text of the line before and after the node, for an edit that replaces the node; None for
        a node of several lines."""
        end_line, end_column = node.end_lineno or 0, node.end_col_offset or 0
        if end_line != node.lineno:
            return None
        return self._edit_at(node.lineno, node.col_offset, end_column)

    def edit_for_keyword(self, call: ast.Call, name: str) -> LineEdit | None:
        """Return the line in which ``name=value`` is to be written, in place of that keyword argument of the
        call, or before its closing bracket; None if that is no single line."""
        keyword = next((keyword for keyword in call.keywords if keyword.arg == name), None)
        if keyword is not None:
            return self.edit_of(keyword)
        end_line, end_column = call.end_lineno or 0, (call.end_col_offset or 0) - 1
        edit = self._edit_at(end_line, end_column, end_column)
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        if edit is None or not arguments:
            return edit
        # Behind the last argument there may be a comma already.
        last_line, last_column = max(
            (argument.end_lineno or 0, argument.end_col_offset or 0) for argument in arguments
        )
        if last_line == end_line:
            text_after_last = self.lines[end_line - 1][last_column:end_column]
        else:
            lines_between = self.lines[last_line : end_line - 1]
            text_after_last = self.lines[last_line - 1][last_column:] + b"".join(lines_between)
        has_comma = text_after_last.split(b"#")[0].strip().endswith(b",")
        return edit._replace(before=edit.before + ("" if has_comma else ", "))

    def _edit_at(self, line: int, column: int, end_column: int) -> LineEdit | None:
        try:
            text = self.lines[line - 1]
            return LineEdit(SourcePlace(self.file, line), text[:column].decode(), text[end_column:].decode())
        except (OSError, IndexError, UnicodeDecodeError):
            return None

    def place_of(self, node: ast.expr | ast.stmt) -> SourcePlace:
        return SourcePlace(self.file, node.lineno)

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes above a node, the nearest first."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def function_around(self, node: ast.AST) -> ast.FunctionDef | None:
        return next((each for each in self.ancestors(node) if isinstance(each, ast.FunctionDef)), None)

    def is_parameter(self, node: ast.Name) -> bool:
        """Whether the name is a parameter of the function around it."""
        function = self.function_around(node)
        return function is not None and any(each.arg == node.id for each in function.args.args)

    def conditions_of(self, node: ast.AST) -> list[ast.expr]:
        """The tests of the ``if`` statements and expressions around a node, in its own function or the
        module; without ``if __name__ == "__main__"``, which holds for a script."""
        conditions: list[ast.expr] = []
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                break
            if isinstance(ancestor, (ast.If, ast.IfExp)) and not is_main_test(ancestor.test):
                conditions.append(ancestor.test)
        return conditions

    def is_conditional(self, node: ast.AST) -> bool:
        """Whether a condition, an exception or a loop decides if a node is executed, once its function is
        called."""
        if self.conditions_of(node):
            return True
        for ancestor in self.ancestors(node):
            if isinstance(ancestor, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                return False
            if isinstance(ancestor, (ast.ExceptHandler, ast.For, ast.While)):
                return True
        return False

    def runs_certainly(self, node: ast.AST) -> bool:
        """Whether a node is executed whenever the program runs, at least once, unless an earlier line
        fails."""
        return node in self.reach.certain and not self.is_conditional(node)

    def is_in_loop(self, node: ast.AST) -> bool:
        return any(isinstance(each, (ast.For, ast.While, ast.comprehension)) for each in self.ancestors(node))

    def qualified_name_of(self, node: ast.expr) -> str:
        """Return the full name of an expression by this module's imports, such as
        ``torch.multiprocessing.spawn`` for ``mp.spawn``: see ``resolve_qualified_name``."""
        return resolve_qualified_name(node, self.imported_names)

    def called_function(self, call: ast.Call) -> str:
        """Return the last part of the name of what is called: ``spawn`` for ``mp.spawn(train)``."""
        return self.qualified_name_of(call.func).rpartition(".")[2]


@dataclass(frozen=True)
class SourceProgram:
    """A job's program, read and parsed once for all that is asked about it."""

    entry: Path
    source_root: Path
    modules: tuple[SourceModule, ...]
    """The entry script, first, and the modules that it imports; empty if it cannot be parsed."""

    @property
    def import_folders(self) -> tuple[Path, Path]:
        """Where Python searches modules first."""
        return self.entry.parent, self.source_root

    @cached_property
    def library_imports(self) -> LibraryImports:
        trees = [module.tree for module in self.modules]
        return find_library_imports(trees, self.import_folders, self.modules[0].reach if trees else None)


def read_source_program(entry: Path, source_root: Path) -> SourceProgram:
    parsed = tuple(_parse_reachable_modules(entry, source_root))
    reach = find_reach([tree for _, tree in parsed])
    modules = tuple(
        SourceModule(path, Path(os.path.relpath(path, source_root)).as_posix(), tree, path == entry, reach)
        for path, tree in parsed
    )
    return SourceProgram(entry, source_root, modules)


def literal_of(node: ast.expr | None, default: Any) -> Any:
    """The value of a literal; ``default`` for no node, and for an expression that is no literal."""
    try:
        return default if node is None else ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return default


def keyword_value(call: ast.Call, name: str) -> ast.expr | None:
    """The value that a call states for a keyword; None without it."""
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def text_of(node: ast.AST) -> str:
    """The source text of an expression or statement; empty for one that is nested too deeply."""
    try:
        return ast.unparse(node)
    except RecursionError:
        return ""


_PARSER_LOCK = Lock()
"""Of two threads that parse at once, one may get ``SystemError: AST constructor recursion depth mismatch``
from CPython (seen with 3.11.7)."""


def parse_python(content: bytes, path: Path) -> ast.Module | None:
    """Return the syntax tree of a Python file; None for one that is nested too deeply for one. Raises
    SyntaxError or ValueError for what Python rejects."""
    try:
        with _PARSER_LOCK:
            return ast.parse(content, filename=str(path))
    except (RecursionError, MemoryError):
        return None


def _parse_reachable_modules(entry: Path, source_root: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Yield path and syntax tree of the entry script and of each module of the source folder that it imports,
    directly or through another one, up to a number of modules. Those that cannot be parsed are skipped."""
    if entry.suffix != ".py" or not entry.is_file():
        return
    import_folders = list(dict.fromkeys((entry.parent, source_root)))  # where Python would search
    pending_paths, known_paths = [entry], {entry}
    while pending_paths and len(known_paths) <= MAX_MODULES:
        path = pending_paths.pop()
        try:
            syntax_tree = parse_python(path.read_bytes(), path)
        except (OSError, SyntaxError, ValueError):
            continue
        if syntax_tree is None:
            continue
        yield path, syntax_tree
        module_paths = [
            folder.joinpath(*dotted_name.split("."))
            for dotted_name in find_dotted_names_of_imports(syntax_tree)
            for folder in import_folders
        ]
        module_paths += _iter_relative_import_paths(syntax_tree, path)
        for module_file in _find_module_files(module_paths, import_folders):
            if module_file not in known_paths:
                known_paths.add(module_file)
                pending_paths.append(module_file)


def _iter_relative_import_paths(syntax_tree: ast.Module, path: Path) -> Iterator[Path]:
    """Yield the paths, without a suffix, of modules that a file may mean by imports such as ``from .model
    import Net``: ``model``, and ``model/Net``. ``path`` is the file's own."""
    for node in ast.walk(syntax_tree):
        # The level is the number of dots: 1 is the file's own folder, 2 the one above it.
        if isinstance(node, ast.ImportFrom) and 0 < node.level <= len(path.parents):
            package_folder = path.parents[node.level - 1]
            module_path = package_folder.joinpath(*(node.module.split(".") if node.module else ()))
            yield module_path
            for alias in node.names:
                yield module_path / alias.name


def _find_module_files(module_paths: Iterable[Path], import_folders: Collection[Path]) -> Iterator[Path]:
    """Yield the existing Python files of modules and of the packages that contain them, which Python imports
    too. ``module_paths`` have no suffix; ``import_folders``, where Python searches, are no packages."""
    for module_path in module_paths:
        for path in (module_path, *module_path.parents):  # upwards
            if path in import_folders or not path.name:  # without a name: the root of the file system
                break
            for file in (path.with_suffix(".py"), path / "__init__.py"):
                if file.is_file():
                    yield file


class LibraryImports(NamedTuple):
    """What a program imports that is not of the source, as dotted names."""

    names: frozenset[str]
    """Without imports that certainly do not run, such as those for type checkers."""

    optional: frozenset[str]
    """Those of them that only code imports that may not run."""

    module_by_name: Mapping[str, int]
    """The number of the first module that imports a name."""


def find_library_imports(
    trees: Sequence[ast.Module], own_folders: Collection[Path], reach: CodeReach | None = None
) -> LibraryImports:
    """Return what the modules of a program import, the entry script first, of libraries. A module of the
    source, which Python finds in ``own_folders``, is no library of that name."""
    reach = reach or find_reach(trees)
    module_by_name: dict[str, int] = {}
    certain_names: set[str] = set()
    for number, tree in enumerate(trees):
        for name in find_dotted_names_of_imports(tree, reach.possible):
            module_by_name.setdefault(name, number)
        certain_names |= find_dotted_names_of_imports(tree, reach.certain)
    is_own = {
        package: any(has_module_file(folder, package) for folder in own_folders)
        for package in {name.partition(".")[0] for name in module_by_name}
    }
    module_by_name = {
        name: number for name, number in module_by_name.items() if not is_own[name.partition(".")[0]]
    }
    names = frozenset(module_by_name)
    return LibraryImports(names, names - certain_names, module_by_name)


def has_module_file(folder: Path, name: str) -> bool:
    """Whether a folder has a module, or a package with an ``__init__.py``, of that name."""
    return (folder / f"{name}.py").is_file() or (folder / name / "__init__.py").is_file()


def find_dotted_names_of_imports(
    syntax_tree: ast.Module, statements: Container[ast.AST] | None = None
) -> set[str]:
    """Return the dotted names that a module imports, or that are attributes of imported names: for a call of
    ``torch.distributed.init_process_group`` also ``torch.distributed``, which callers search for.
    ``statements``: the imports that count; None for all."""
    dotted_names: set[str] = set()
    for node in ast.walk(syntax_tree):
        if statements is not None and node not in statements:
            continue
        if isinstance(node, ast.Import):
            dotted_names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            dotted_names.add(node.module)
            dotted_names.update(f"{node.module}.{alias.name}" for alias in node.names)
    imported_name_by_alias = map_alias_to_imported_name(syntax_tree, statements)
    for node in ast.walk(syntax_tree):
        if isinstance(node, ast.Attribute):
            dotted_name = resolve_dotted_name(node, imported_name_by_alias)  # None: not of an import
            while dotted_name and "." in dotted_name:
                dotted_names.add(dotted_name)
                dotted_name = dotted_name.rpartition(".")[0]
    return dotted_names


def map_alias_to_imported_name(
    syntax_tree: ast.Module, statements: Container[ast.AST] | None = None
) -> dict[str, str]:
    """Return, by each name that a module's imports define, the full name that it stands for: ``torch.nn`` by
    ``nn`` after ``from torch import nn``. Relative imports are omitted. ``statements``: the imports that
    count; None for all."""
    imported_name_by_alias: dict[str, str] = {}
    for node in ast.walk(syntax_tree):
        if statements is not None and node not in statements:
            continue
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    imported_name_by_alias[alias.asname] = alias.name
                else:  # ``import a.b`` defines ``a``
                    top_package = alias.name.split(".")[0]
                    imported_name_by_alias[top_package] = top_package
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            for alias in node.names:
                imported_name_by_alias[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return imported_name_by_alias


def resolve_dotted_name(node: ast.Attribute, imported_name_by_alias: Mapping[str, str]) -> str | None:
    """Return the full name that an expression such as ``nn.parallel.DDP`` stands for; None where its first
    name is not imported."""
    name = resolve_qualified_name(node, imported_name_by_alias)
    return None if name.startswith("?") else name


def resolve_qualified_name(node: ast.expr, imported_name_by_alias: Mapping[str, str]) -> str:
    """Return the full name of an expression: ``torch.multiprocessing.spawn`` for ``mp.spawn``; its own name
    for a name that is not imported, and ``?.method`` for a method of an object. ``imported_name_by_alias``:
    full names by the names that imports define."""
    attributes: list[str] = []  # from the last to the first
    while isinstance(node, ast.Attribute):
        attributes.append(node.attr)
        node = node.value
    first_name = "?"
    if isinstance(node, ast.Name):
        # A plain call, such as save(), keeps its name; a variable in front of a dot says nothing.
        first_name = imported_name_by_alias.get(node.id, "?" if attributes else node.id)
    return ".".join([first_name, *reversed(attributes)])
