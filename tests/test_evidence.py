"""Every declaration of docs/evidence names tests, commands and records that exist."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.tables import table

pytest.importorskip("tomllib")  # Python 3.11
from tools.evidence import (
    FOLDER,
    DeclarationError,
    Point,
    choose_slice,
    find_problems,
    is_part_of,
    read_points,
    replace_points,
    summarize,
)

ISSUES = sorted(path.stem for path in FOLDER.glob("*.toml"))


@pytest.mark.parametrize("issue", ISSUES)
def test_declared_tests_and_records_exist(issue: str) -> None:
    assert find_problems(read_points(FOLDER / f"{issue}.toml")) == []


def test_a_record_has_no_point_that_is_not_declared() -> None:
    for path in FOLDER.glob("*.json"):
        record = json.loads(path.read_text())
        declared = {point.id for point in read_points(path.with_suffix(".toml"))}
        assert {entry["id"] for entry in record["points"]} <= declared, path.name


def test_each_missing_name_is_reported(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("class TestGroup:\n    def test_in(self): ...\n\ndef test_b(): ...\n")
    tests = ("test_a.py", "test_a.py::test_b[1-x]", "test_a.py::TestGroup::test_in")
    missing = (
        "test_c.py",
        "test_a.py::test_d",
        "test_a.py::TestGroup::test_b",
        "test_a.py::TestNone::test_in",
    )
    points = [
        Point("1", "good", tests),
        Point("2", "missing", missing[:2], missing[2:]),
        Point("3", "a command", commands=(("python", "tool.py"), ("make", "lint"))),
        Point("4", "nothing"),
        Point("5", "a record", record="page.md"),
    ]
    assert find_problems(points, tmp_path) == [
        *(f"2: {name} does not exist" for name in missing),
        "3: tool.py does not exist",
        "4: neither a test nor a command nor a record",
        "5: page.md does not exist",
    ]


@table(
    ("text", "message"),
    [
        ('[[point]]\nid = "1"\nsentence = ""\ntest = ["x"]', "1: unknown: test"),
        ('[[point]]\nid = "1"\nsentence = ""\n' * 2, "1 is declared twice"),
    ],
)
def test_an_invalid_declaration_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "X.toml"
    path.write_text(text)
    with pytest.raises(DeclarationError, match=message):
        read_points(path)


@table(
    ("test", "whole", "is_part"),
    [
        ("tests/test_a.py::test_b[1]", "tests/test_a.py::test_b", True),
        ("tests/test_a.py::test_b[1]", "tests/test_a.py", True),
        ("tests/test_a.py::test_b[1]", "tests", True),
        ("tests/test_a.py::test_b", "tests/test_a.py::test_b", True),
        ("tests/test_a.py::test_bc", "tests/test_a.py::test_b", False),
        ("tests/test_ab.py::test_b", "tests/test_a.py", False),
    ],
)
def test_tests_belong_to_what_names_them(test: str, whole: str, is_part: bool) -> None:
    assert is_part_of(test, whole) == is_part


def test_a_slice_is_the_same_for_a_seed() -> None:
    points = [Point(str(number), "", ("tests",) if number % 2 else ()) for number in range(20)]
    chosen = choose_slice(points, 3, 7)
    assert len(chosen) == 3 and chosen == choose_slice(points, 3, 7)
    assert len({tuple(choose_slice(points, 3, seed)) for seed in range(20)}) > 5
    assert choose_slice(points, 50, 1) == [point for point in points if point.tests]


@table(
    ("counts", "exit_codes", "real", "status"),
    [
        ((3, 0, 0), [], False, "passed"),
        ((3, 1, 0), [], False, "failed"),
        ((3, 0, 0), [1], False, "failed"),
        ((0, 0, 2), [], False, "skipped"),
        ((0, 0, 0), [0], True, "no test ran"),
        ((0, 0, 0), [], False, "no test ran"),
        (None, [], False, "not run"),
        (None, [0], True, "passed"),
    ],
)
def test_the_status_of_a_point(
    counts: tuple[int, int, int] | None, exit_codes: list[int], real: bool, status: str
) -> None:
    tests = dict(zip(("passed", "failed", "skipped"), counts, strict=True)) if counts else None
    point = Point("1", "", ("tests",), real_tests=("tests/real",))
    entry = summarize(point, tests, [{"exit_code": code} for code in exit_codes], real)
    assert entry["status"] == status
    assert ("not_run" in entry) == (not real)


def test_points_that_ran_later_say_when() -> None:
    first = {"issue": "K", "date": "monday", "points": [{"id": "1"}, {"id": "2", "status": "failed"}]}
    later = {"issue": "K", "date": "tuesday", "points": [{"id": "2", "status": "passed"}, {"id": "3"}]}
    run = {"date": "tuesday"}
    assert replace_points(first, later) == {
        "issue": "K",
        "date": "monday",
        "points": [{"id": "1"}, {"id": "2", "status": "passed", "run": run}, {"id": "3", "run": run}],
    }
