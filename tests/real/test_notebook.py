"""notebooks/quickstart.ipynb, executed by a real kernel; the test reads the output of its cells."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import program

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "notebooks" / "quickstart.ipynb"


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Returns the cells after execution, beside the entry points as in a checkout."""
    root = tmp_path_factory.mktemp("checkout")
    (root / "notebooks").mkdir()
    shutil.copytree(ROOT / "entrypoints", root / "entrypoints")
    copy = Path(shutil.copy(NOTEBOOK, root / "notebooks"))
    subprocess.run(
        [program("frameworks", "jupyter-execute"), "--inplace", "--timeout", "100", str(copy)],
        env={**os.environ, "SMLAUNCH_HOME": str(root / "home")},
        check=True,
        timeout=115,
    )
    return code_cells(copy)


def find_cell(cells: list[Any], last_line: str) -> Any:
    (matching_cell,) = [cell for cell in cells if cell["source"][-1] == last_line]
    return matching_cell


def cell_output(cell: Any, kind: str) -> str:
    return "".join("".join(output["data"].get(kind, "")) for output in cell["outputs"] if "data" in output)


def test_a_plan_is_a_table_with_its_reasons(cells: list[Any]) -> None:
    page = cell_output(find_cell(cells, "decided"), "text/html")
    assert "<table" in page
    assert "imports torch.distributed: ddp starts every rank" in page


def test_the_run_was_real(cells: list[Any]) -> None:
    assert "held_out_accuracy" in cell_output(find_cell(cells, "outcome.metrics"), "text/plain")
    assert "train-ddp" in cell_output(find_cell(cells, "run"), "text/html")


def test_a_function_of_the_notebook_was_called_by_every_rank(cells: list[Any]) -> None:
    cell = find_cell(cells, "type(share) is Share, share.rank, share.pieces")
    assert cell_output(cell, "text/plain") == "(True, 0, ['a', 'c'])"


def test_what_a_script_lacks_is_said(cells: list[Any]) -> None:
    page = cell_output(cells[-1], "text/html")
    assert "a process group that joins the ranks" in page
    assert "Machines compared" in page


def test_the_notebook_is_kept_without_outputs() -> None:
    assert not any(cell["outputs"] for cell in code_cells(NOTEBOOK))
