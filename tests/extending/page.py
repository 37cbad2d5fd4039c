"""The examples of docs/extending.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"


def example(file_name: str) -> str:
    """Return the code that follows ``file_name`` on the page."""
    match = re.search(
        rf"`{re.escape(file_name)}`[^`]*\n\n```\w+\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL
    )
    assert match is not None, file_name
    return match[1]
