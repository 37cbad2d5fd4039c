"""List the import cycles of smlaunch/, of files and of packages: `python tools/import_cycles.py`.

Imports inside functions count; those for type checkers only do not. Exit code 1: there is a cycle.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
Graph = Mapping[str, set[str]]


def module_graph(package: Path) -> dict[str, set[str]]:
    """Return the modules that each module imports, by their dotted names."""
    path_by_module = {_module_name(path, package): path for path in sorted(package.rglob("*.py"))}
    return {
        module: _imported_modules(path, path_by_module) - {module} for module, path in path_by_module.items()
    }


def package_graph(modules: Graph) -> dict[str, set[str]]:
    """Return the packages that each package directly below the root imports."""
    graph: dict[str, set[str]] = {}
    for module, imported in modules.items():
        package = _package_of(module)
        graph.setdefault(package, set()).update(set(map(_package_of, imported)) - {package})
    return graph


def find_cycles(graph: Graph) -> list[list[str]]:
    """Return the groups of nodes that reach each other: the strongly connected components of two and more."""
    reachable = {node: _reachable_from(node, graph) for node in graph}
    groups = {
        tuple(sorted(other for other in reachable[node] if node in reachable[other]))
        for node in graph
        if node in reachable[node]
    }
    return [list(group) for group in sorted(groups)]


def _reachable_from(start: str, graph: Graph) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo.extend(new)
    return found


def _module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def _imported_modules(path: Path, known: Mapping[str, Path]) -> set[str]:
    imported: set[str] = set()
    todo: list[ast.AST] = [ast.parse(path.read_text())]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            todo.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            imported.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= submodules & known.keys() or {node.module}
        todo.extend(ast.iter_child_nodes(node))
    return imported & known.keys()


def main() -> None:
    modules = module_graph(ROOT / "smlaunch")
    cycles = [*find_cycles(modules), *find_cycles(package_graph(modules))]
    for cycle in cycles:
        print("import cycle: " + ", ".join(cycle))
    print(f"{len(modules)} modules, {len(cycles)} import cycles")
    sys.exit(bool(cycles))


if __name__ == "__main__":
    main()
