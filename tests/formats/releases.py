"""Releases of smlaunch side by side, each with its own command line, on one state directory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from email import message_from_string
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement

from tests.conftest import ROOT

_COMMAND = "import sys; from smlaunch.cli.main import main; sys.exit(main())"


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    def json(self) -> Any:
        return json.loads(self.out)


class Release(NamedTuple):
    """``tree``: the folder that holds its package."""

    tree: Path

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        environ = {**os.environ, "PYTHONPATH": str(self.tree)}
        return subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=self.tree,  # the first place that Python looks for packages in
            start_new_session=True,
        )

    def __call__(self, *arguments: str | Path, timeout: float = 110) -> Answer:
        process = self.start(*arguments)
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        return Answer(process.returncode, out, err)


def today(folder: Path) -> Release:
    """Returns a copy of the working tree's package."""
    shutil.copytree(ROOT / "smlaunch", folder / "smlaunch", ignore=shutil.ignore_patterns("__pycache__"))
    return Release(folder)


def with_format_2(folder: Path) -> Release:
    """Today's package with version 2 of a run and of the outcome file: its ``result`` is ``ending``."""
    release = today(folder)
    contract = folder / "smlaunch" / "contract"
    _replace(
        contract / "formats.py",
        ('RUN = Format("run", "1.1")', 'RUN = Format("run", "2.0", (dict,))'),
        (
            'OUTCOME = Format("outcome file", "1.1")',
            "def _result_is_ending(document: Document) -> Document:\n"
            '    return {**document, "ending": document.pop("result")}\n\n\n'
            'OUTCOME = Format("outcome file", "2.0", (_result_is_ending,))',
        ),
    )
    _replace(
        contract / "segment_outcome.py",
        (
            '        del members["extra"], members["finished_in"]\n',
            '        del members["extra"], members["finished_in"]\n'
            '        members["ending"] = members.pop("result")\n',
        ),
        (
            '(formats.OUTCOME, content, document_name)\n    if document is None or document.get("result")',
            '(formats.OUTCOME, content, document_name)\n    if document is None or document.get("ending")',
        ),
        (
            ' = SegmentOutcome(\n        result=str(document["result"])',
            ' = SegmentOutcome(\n        result=str(document["ending"])',
        ),
    )
    return release


def of_commit(commit: str, folder: Path) -> Release:
    """Builds the wheel of a commit, and installs what it requires and this environment lacks beside it."""
    source, wheels, tree = folder / "source", folder / "wheels", folder / "tree"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=False)
    assert archive.returncode == 0, f"tests/previous-release names {commit}, which this clone does not have"
    subprocess.run(["tar", "-x", "-C", str(source)], input=archive.stdout, check=True)
    arguments = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(source)]
    subprocess.run([sys.executable, *arguments], check=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(tree)
    (metadata,) = tree.glob("*.dist-info/METADATA")
    requirements = map(Requirement, message_from_string(metadata.read_text()).get_all("Requires-Dist", []))
    missing = [str(requirement) for requirement in requirements if _is_missing(requirement)]
    if missing:
        arguments = ["-m", "pip", "install", "--quiet", "-c", str(source / "constraints.txt")]
        subprocess.run([sys.executable, *arguments, "--target", str(tree), *missing], check=True)
    return Release(tree)


def _is_missing(requirement: Requirement) -> bool:
    """Whether this environment lacks a requirement of the package itself, not of an extra."""
    if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
        return False
    try:
        return not requirement.specifier.contains(version(requirement.name))
    except PackageNotFoundError:
        return True


def _replace(path: Path, *changes: tuple[str, str]) -> None:
    text = path.read_text()
    for old_text, new_text in changes:
        assert text.count(old_text) == 1, f"{path}: {old_text!r}"
        text = text.replace(old_text, new_text)
    path.write_text(text)
