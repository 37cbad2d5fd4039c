"""The generated part of docs/airflow.md; ``python -m tests.export.airflow_page`` writes it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

from tests.conftest import ROOT
from tests.export.jobs import CHAIN
from tests.export.test_airflow import dag_functions, text_of

PAGE = ROOT / "docs" / "airflow.md"

_SHAPES = {"train": ("[[", "]]"), "more_to_train": ("{", "}"), "finished": ("((", "))")}
_PICTURE = re.compile(r"(<!-- generated: picture -->\n).*?(<!-- end -->)", re.DOTALL)


class _Task:
    """A stand-in for an Airflow task; records the order in which the exported file links tasks."""

    def __init__(self, dag: _Dag, kind: str, name: str) -> None:
        self.dag, self.kind, self.name = dag, kind, name
        self.output = self
        dag.tasks.append(self)

    def __rshift__(self, following: _Task) -> None:
        arrow = (self.name, following.name)
        if arrow not in self.dag.arrows:
            self.dag.arrows.append(arrow)


class _Dag:
    def __init__(self) -> None:
        self.tasks: list[_Task] = []
        self.arrows: list[tuple[str, str]] = []


class _Decorated:
    """A stand-in for a function decorated with ``@task``."""

    def __init__(self, dag: _Dag, kind: str, name: str) -> None:
        self.dag, self.kind, self.name = dag, kind, name

    def override(self, *, task_id: str) -> _Decorated:
        return _Decorated(self.dag, self.kind, task_id)

    def __call__(self, *values: Any) -> _Task:
        """Create a task; its arguments are dependencies too, as Airflow draws them."""
        task = _Task(self.dag, self.kind, self.name)
        for dependency in [each for value in values if isinstance(value, list) for each in value]:
            dependency >> task
        return task


def read_dag() -> _Dag:
    """Return the tasks of an exported chain in the order of its file."""
    dag = _Dag()
    decorated = {kind: _Decorated(dag, kind, kind) for kind in ("more_to_train", "finished")}
    space = dag_functions(
        CHAIN,
        SageMakerTrainingOperator=lambda **words: _Task(dag, "train", words["task_id"]),
        **decorated,
    )
    (block,) = (node for node in ast.parse(text_of(CHAIN)).body if isinstance(node, ast.With))
    exec(compile(ast.Module(block.body, []), "digits.py", "exec"), space)
    return dag


def _picture(dag: _Dag) -> Iterator[str]:
    yield "```mermaid"
    yield "flowchart LR"
    for task in dag.tasks:
        before, after = _SHAPES[task.kind]
        yield f'  {task.name}{before}"{task.name}"{after}'
    yield from (f"  {upstream} --> {downstream}" for upstream, downstream in dag.arrows)
    yield "```"


def update_page(page: str) -> str:
    """Return the page with its current picture."""
    text = "\n".join(_picture(read_dag()))
    assert _PICTURE.search(page)
    return _PICTURE.sub(lambda match: f"{match[1]}{text}\n{match[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text()))
