"""Every stored format, byte for byte: a file that this release writes otherwise is a change of its format.

A new minor version adds members: write the golden files anew (`python -m tests.formats.test_golden`), raise
the version in smlaunch/contract/formats.py, and keep the file of the version before under its old name with
`-1.0` in it, so that it is read for ever.
"""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from smlaunch.chain.workflow import Workflow
from smlaunch.contract import formats
from smlaunch.contract.formats import Format, FormatError
from smlaunch.contract.segment_outcome import parse_outcome
from smlaunch.local.state_errors import StateDamaged
from smlaunch.local.stores.sqlite_database import Database, DatabaseSpec
from smlaunch.runs.run_folder import UnsentFiles
from tests.formats.documents import (
    GOLDEN,
    OUTCOME,
    SPEC,
    UNSENT,
    WORKFLOW,
    Golden,
    databases,
    documents,
    schema_of,
    with_version,
)

EARLIER = {
    "excluded-1.0.json": "excluded.json",
    "job-1.0.json": "job.json",
    "job-1.1.json": "job.json",
    "job-1.2.json": "job.json",
    "outcome-1.0.json": "outcome.json",
    "workflow-1.0.json": "workflow.json",
}
"""Files of an earlier minor version, and the document of today as which they are read."""

EARLIER_VALUES = {
    "excluded-1.0.json": UnsentFiles(UNSENT.reasons),
    "job-1.0.json": SPEC._replace(job_hash=None, secrets=()),
    "job-1.1.json": SPEC._replace(job_hash=None, secrets=()),
    "job-1.2.json": SPEC._replace(secrets=()),
    "outcome-1.0.json": OUTCOME._replace(job_hash=None),
    "workflow-1.0.json": replace(WORKFLOW, hash_without_max_runtime=""),
}
"""What they read as, where that is less than the document of today."""

NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.suffix != ".sql" and path.name not in EARLIER)
JSON_NAMES = [name for name in NAMES if name.endswith(".json") and name not in ("rows.json", "job-hash.json")]


@pytest.fixture
def golden_by_name(tmp_path: Path) -> dict[str, Golden]:
    return {golden.name: golden for golden in documents(tmp_path)}


def test_every_document_has_a_golden_file(golden_by_name: dict[str, Golden]) -> None:
    assert sorted(golden_by_name) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_document_is_written_and_read_as_it_was(golden_by_name: dict[str, Golden], name: str) -> None:
    content = (GOLDEN / name).read_bytes()
    assert golden_by_name[name].content == content
    assert golden_by_name[name].read(content) == golden_by_name[name].value


@pytest.mark.parametrize("name", EARLIER)
def test_a_document_of_an_earlier_minor_version_is_read(golden_by_name: dict[str, Golden], name: str) -> None:
    content, golden = (GOLDEN / name).read_bytes(), golden_by_name[EARLIER[name]]
    assert content != golden.content
    assert golden.read(content) == EARLIER_VALUES.get(name, golden.value)


@pytest.mark.parametrize("name", JSON_NAMES)
def test_another_major_version_and_none_are_refused_by_name(
    golden_by_name: dict[str, Golden], name: str
) -> None:
    """The endpoint's own files, and job.json, wrap the same words in an error that names the file."""
    for version, message in (
        ("2.0", "version 2.0, and this smlaunch reads up to 1.x"),
        (None, "has no version"),
    ):
        with pytest.raises(Exception, match=message):
            golden_by_name[name].read(with_version(golden_by_name[name].content, version))


@pytest.mark.parametrize("name", JSON_NAMES)
def test_a_later_minor_version_is_read(golden_by_name: dict[str, Golden], name: str) -> None:
    read = golden_by_name[name].read(with_version(golden_by_name[name].content, "1.7", later={"added": [1]}))
    if name == "outcome.json":
        assert dict(read.extra) == {"later": {"added": [1]}}
        read = read._replace(extra=())
    assert read == golden_by_name[name].value


def test_what_a_later_minor_version_added_is_written_again(golden_by_name: dict[str, Golden]) -> None:
    outcome = parse_outcome(with_version(golden_by_name["outcome.json"].content, "1.7", later=[1]))
    assert outcome is not None
    assert json.loads(outcome._replace(ranks_succeeded=False).to_bytes())["later"] == [1]
    stored_workflow = json.loads(with_version(golden_by_name["workflow.json"].content, "1.7", later=[1]))
    stored_workflow["policy"]["further"] = 2
    rewritten = json.loads(WORKFLOW.to_json(json.dumps(stored_workflow)))
    assert (rewritten["later"], rewritten["policy"]["further"], rewritten["version"]) == ([1], 2, "1.7")
    assert Workflow.from_json(json.dumps(rewritten)) == WORKFLOW


def test_an_older_major_version_is_upgraded_step_by_step() -> None:
    def second(document: dict[str, object]) -> dict[str, object]:
        return {"count": document["n"]}

    def third(document: dict[str, object]) -> dict[str, object]:
        return {"count": [document["count"]]}

    form = Format("list", "3.1", (second, third))
    assert form.upgrade_document({"version": "1.4", "n": 5}, "x") == {"count": [5]}
    assert form.upgrade_document({"version": "2.0", "count": 5}, "x") == {"count": [5]}
    assert form.upgrade_document({"version": "3.9", "count": [5], "new": 1}, "x") == {"count": [5], "new": 1}
    with pytest.raises(FormatError, match=r"x: this list has version 4\.0, and this smlaunch reads up to"):
        form.upgrade_document({"version": "4.0"}, "x")


@pytest.mark.parametrize("version", [None, "", "1", "x.y", "0.9", "v1.0", "-1.0"])
def test_what_is_no_version(version: object) -> None:
    with pytest.raises(FormatError, match=r"has no version: it was written before format 1\.0"):
        formats.WORKFLOW.check_version(version, "workflow.json")


# ---- databases --------------------------------------------------------------------------------------------


def test_the_schemas_of_the_databases(tmp_path: Path) -> None:
    for name, path in databases(tmp_path).items():
        assert schema_of(path) == (GOLDEN / _schema_file(name)).read_text(), name


def _schema_file(name: str) -> str:
    return Path(name).with_suffix(".sql").name


class TestMigrations:
    FIRST = DatabaseSpec("rows", "CREATE TABLE IF NOT EXISTS rows (a INTEGER);", Format("rows", "1.0"))
    SECOND = DatabaseSpec(
        "rows",
        "CREATE TABLE IF NOT EXISTS rows (a INTEGER, b TEXT DEFAULT 'later');",
        Format("rows", "1.1"),
        migrations=("ALTER TABLE rows ADD COLUMN b TEXT DEFAULT 'later';",),
    )

    def rows(self, path: Path, contents: DatabaseSpec) -> list[tuple[object, ...]]:
        database = Database(path, contents)
        connection = database.open_connection()
        with database.write_transaction(connection):
            connection.execute("INSERT INTO rows (a) VALUES (1)")
        stored_rows = connection.execute("SELECT * FROM rows").fetchall()
        connection.close()
        database.close()
        return stored_rows

    def test_an_older_minor_version_is_migrated_and_a_newer_one_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.sqlite"
        assert self.rows(path, self.FIRST) == [(1,)]
        assert self.rows(path, self.SECOND) == [(1, "later"), (1, "later")]
        connection = sqlite3.connect(path)
        assert connection.execute("PRAGMA user_version").fetchone() == (1001,)
        connection.close()
        with pytest.raises(StateDamaged, match=r"version 1\.1, this release knows 1\.0.*use that one"):
            self.rows(path, self.FIRST)

    def test_another_major_version_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.sqlite"
        self.rows(path, self.FIRST)
        newer = DatabaseSpec("rows", self.FIRST.schema, Format("rows", "2.0"))
        with pytest.raises(StateDamaged, match=r"version 1\.0, this release knows 2\.0"):
            self.rows(path, newer)


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        for golden in documents(Path(folder)):
            (GOLDEN / golden.name).write_bytes(golden.content)
        for name, path in databases(Path(folder)).items():
            (GOLDEN / _schema_file(name)).write_text(schema_of(path))
