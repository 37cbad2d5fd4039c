"""docs/troubleshooting.md: each text that it quotes is one that smlaunch prints."""

from __future__ import annotations

import ast
import re
from functools import cache

from tests.conftest import ROOT

PAGE = ROOT / "docs" / "troubleshooting.md"
VARIABLE = "..."


def quoted_texts() -> list[str]:
    """The texts of the headings: what a user searches for."""
    return re.findall(r"^### `([^`]+)`", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@cache
def messages() -> str:
    """All texts in the code, one a line; a value that is filled in is a space of its own."""
    texts: list[str] = []
    for path in sorted((ROOT / "smlaunch").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                texts.append(
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values
                    )
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_each_quoted_text_is_in_a_message() -> None:
    texts = quoted_texts()
    assert len(texts) >= 30 and len(set(texts)) == len(texts)
    missing = [
        text
        for text in texts
        if not re.search("[^\n]*".join(map(re.escape, re.split(r" ?\.\.\. ?", text))), messages())
    ]
    assert missing == []


def test_every_exit_code_of_the_table_is_one_of_the_program() -> None:
    from smlaunch import errors

    page = PAGE.read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([\d, ]+) \|", page, re.MULTILINE)
    listed = {int(code) for row in rows for code in row.split(",")}
    known = {value for name, value in vars(errors).items() if name.startswith("EXIT_")}
    assert listed <= known
    assert {int(code) for code in re.findall(r"exit code (\d)", page)} <= listed
