"""Files beside the source folder that a script names by its own path."""

from __future__ import annotations

from pathlib import Path

import pytest

from smlaunch.discovery.outside_files import find_outside_file
from smlaunch.discovery.source_modules import read_source_program
from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.runs.plan_job import plan
from tests.runs.fakes import ROLE, fake_target
from tests.tables import table


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("project/code", "project/code/data", "project/data"):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / "project" / "code")
    return tmp_path / "project" / "code"


PATH_BY_TEXT: list[tuple[str, str | None]] = [
    ("from pathlib import Path\nx = Path(__file__).absolute().parents[1] / 'data'", "../data"),
    ("import pathlib\nx = pathlib.Path(__file__).resolve().parent.parent.joinpath('data', 'missing')", None),
    ("import os\nx = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', 'data')", "../data"),
    (
        "import os\nHERE = os.path.dirname(__file__)\nx = (lambda: os.path.join(HERE, '../data'))",
        "../data",
    ),
    ("from pathlib import Path\nROOT = Path(__file__).parent.parent\nx = ROOT / 'data'", "../data"),
    ("from pathlib import Path\nx = Path(__file__).parent.parent", None),
    ("from pathlib import Path\nx = Path(__file__).parent / 'data'", None),
    ("import os\nx = os.path.join(__file__, os.sep, 'data')", None),
    ("x = '../data'", None),
    ("x = (", None),
]


@table(("text", "path"), PATH_BY_TEXT)
def test_the_path_in_a_text(folder: Path, text: str, path: str | None) -> None:
    (folder / "train.py").write_text(text)
    outside_file = find_outside_file(read_source_program(Path("train.py"), Path()))
    assert (None if outside_file is None else outside_file.path) == path
    if outside_file is not None:
        assert (outside_file.folder_with_both, str(outside_file.place)) == (
            "..",
            f"train.py:{len(text.splitlines())}",
        )


def test_the_plan_has_the_option_that_sends_both(folder: Path) -> None:
    Path("train.py").write_text("from pathlib import Path\nx = Path(__file__).parents[1] / 'data'\n")
    with pytest.raises(JobError) as caught:
        plan(Job(entry="train.py", role=ROLE), fake_target())
    (problem,) = caught.value.problems
    assert problem.message.startswith("train.py:2 names ../data, which is outside of the source folder")
    assert problem.change == "--source .."
    facts = plan(Job(entry="train.py", source="..", role=ROLE), fake_target()).facts
    assert (facts.source.entry, facts.script.outside_file) == ("code/train.py", None)
    assert plan(
        Job(entry="train.py", allow=["source.outside"], role=ROLE), fake_target()
    ).facts.script.outside_file
