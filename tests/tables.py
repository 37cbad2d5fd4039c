"""One rule, many rows: a single test, whose failure names every row that fails."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

Test = Callable[..., None]


def table(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """As ``pytest.mark.parametrize``, with one test for all rows, which share its fixtures.

    For pure functions. A rule whose rows need a folder, a process or a database of their own is parametrized.
    """
    columns = (names,) if isinstance(names, str) else tuple(names)
    cases = [(row,) if isinstance(names, str) else tuple(row) for row in rows]
    assert cases, "a table without rows shows nothing"
    assert all(len(case) == len(columns) for case in cases)

    def decorate(test: Test) -> Test:
        signature = inspect.signature(test)
        assert set(columns) <= set(signature.parameters), "a column that the test does not take"

        @functools.wraps(test)
        def run(**fixtures: Any) -> None:
            failures = []
            for case in cases:
                row = dict(zip(columns, case, strict=True))
                try:
                    test(**fixtures, **row)
                except (Exception, pytest.fail.Exception) as error:
                    failures.append((row, error))
            if failures:
                lines = [f"{_describe_row(row)}: {type(error).__name__}: {error}" for row, error in failures]
                count = f"{len(failures)} of {len(cases)} rows fail"
                raise AssertionError("\n\n".join((count, *lines))) from failures[0][1]

        others = [value for name, value in signature.parameters.items() if name not in columns]
        run.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
        run.rows = len(cases)  # type: ignore[attr-defined]  # counted by tools/evidence_pytest.py
        return run

    return decorate


def _describe_row(row: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in row.items())
