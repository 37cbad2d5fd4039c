"""The notebooks. quickstart.ipynb is executed by a real kernel with the package as it is installed, without a
checkout; the tests read the output of its cells. studio.ipynb's job is planned without an account."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.real.conftest import program

ROOT = Path(__file__).parents[2]
QUICKSTART, STUDIO = (ROOT / "notebooks" / name for name in ("quickstart.ipynb", "studio.ipynb"))

LAST_PLANNED_LINE = "decided"
"""Of studio.ipynb: the cells up to this one need no account."""


def code_cells(path: Path) -> list[Any]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(scope="module")
def installed_package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder that a wheel of this checkout is installed in."""
    wheels, site = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("site")
    pip = [program("notebook", "python"), "-m", "pip", "--disable-pip-version-check", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run(build, check=True, timeout=120)
    (wheel,) = wheels.glob("smlaunch-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(site), str(wheel)], check=True, timeout=120)
    return site


@pytest.fixture(scope="module")
def cells(tmp_path_factory: pytest.TempPathFactory, installed_package: Path) -> list[Any]:
    """Returns the cells of quickstart.ipynb after execution, in a folder of its own."""
    folder = tmp_path_factory.mktemp("notebook")
    copy = Path(shutil.copy(QUICKSTART, folder))
    environment = {
        **os.environ,
        "SMLAUNCH_HOME": str(tmp_path_factory.mktemp("home")),
        "PYTHONPATH": str(installed_package),
        "OMP_NUM_THREADS": "1",
    }
    find_package = [program("notebook", "python"), "-c", "import smlaunch; print(smlaunch.__file__)"]
    result = subprocess.run(
        find_package, env=environment, cwd=folder, check=True, capture_output=True, text=True
    )
    assert Path(result.stdout.strip()) == installed_package / "smlaunch" / "__init__.py"
    subprocess.run(
        [program("notebook", "jupyter-execute"), "--inplace", "--timeout", "300", str(copy)],
        env=environment,
        check=True,
        timeout=360,
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


def test_one_card_has_followed_the_run_and_says_how_it_ended(cells: list[Any]) -> None:
    waiting_cell = find_cell(cells, "outcome = run.result()")
    cards = [output for output in waiting_cell["outputs"] if output["output_type"] == "display_data"]
    assert len(cards) == 1, waiting_cell["outputs"]
    page = cell_output(waiting_cell, "text/html")
    for text in (
        ": completed</p>",
        "model.tar.gz",
        "held_out_accuracy",
        "<polyline",
        "it runs on this machine",
    ):
        assert text in page
    assert cell_output(find_cell(cells, "run"), "text/html") == page


def test_the_run_was_real(cells: list[Any]) -> None:
    assert "held_out_accuracy" in cell_output(find_cell(cells, "outcome.metrics"), "text/plain")
    assert "held_out_accuracy" in cell_output(find_cell(cells, "run.metrics"), "text/html")
    (printed_text,) = find_cell(cells, "print(run.metrics)")["outputs"]
    assert "loss" in "".join(printed_text["text"])


def test_its_name_finds_the_run_again(cells: list[Any]) -> None:
    cell = find_cell(cells, 'again.describe(reads_logs=True).status, again.metrics["loss"][-1]')
    assert re.fullmatch(r"\('Completed', \d\.\d+\)", cell_output(cell, "text/plain"))


def test_a_function_of_the_notebook_was_called_by_every_rank(cells: list[Any]) -> None:
    cell = find_cell(cells, "type(share) is Share, share.rank, share.pieces")
    assert cell_output(cell, "text/plain") == "(True, 0, ['a', 'c'])"


def test_what_a_script_lacks_is_said(cells: list[Any]) -> None:
    page = cell_output(cells[-1], "text/html")
    assert "a process group that joins the ranks" in page
    assert "Machines compared" in page


def test_the_job_for_a_region_is_planned_without_an_account(tmp_path: Path) -> None:
    sources = ["".join(cell["source"]) for cell in code_cells(STUDIO)]
    (planning_cell,) = [
        number for number, source in enumerate(sources) if source.splitlines()[-1] == LAST_PLANNED_LINE
    ]
    assert not any("launch(" in source for source in sources[: planning_cell + 1])
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "work").mkdir()
    result = subprocess.run(
        [sys.executable, "-c", "\n".join([*sources[: planning_cell + 1], "print(decided)"])],
        cwd=tmp_path / "work",
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
            "HOME": str(home),
            "AWS_EC2_METADATA_DISABLED": "true",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr
    for text in ("us-east-1", "2 x ml.c5.xlarge", "spot", "ddp", "cost"):
        assert text in result.stdout


@pytest.mark.parametrize("notebook", [QUICKSTART, STUDIO], ids=lambda path: path.stem)
def test_the_first_cells_survive_run_all_twice(notebook: Path, tmp_path: Path) -> None:
    """After a kernel's restart, with the files of the first time in the folder."""
    (setup,) = ["".join(cell["source"]) for cell in code_cells(notebook) if "prepare_digits" in str(cell)]
    contents = []
    for _ in range(2):
        subprocess.run([sys.executable, "-c", setup], cwd=tmp_path, check=True, timeout=120)
        contents.append({path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()})
    assert contents[0] == contents[1], "the same job, so that the same name finds the run"


@pytest.mark.parametrize("notebook", [QUICKSTART, STUDIO], ids=lambda path: path.stem)
def test_the_notebook_is_kept_without_outputs(notebook: Path) -> None:
    assert not any(cell["outputs"] for cell in code_cells(notebook))
