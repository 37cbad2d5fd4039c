"""Writes the table of docs/isolation.md anew from smlaunch/local/executors/isolation_matrix.py."""

from __future__ import annotations

from pathlib import Path

from smlaunch.local.executors.isolation_matrix import BEGIN, END, table

PAGE = Path(__file__).resolve().parent.parent / "docs" / "isolation.md"


def rewritten(text: str) -> str:
    """``text`` with what stands between the two marks replaced."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(rewritten(PAGE.read_text()))
