"""The page with the answers to fifty mistakes is what the commands answer."""

from __future__ import annotations

import re

from tests.cli.mistakes import MISTAKES, ORDINARY, PAGE, all_answers, page


def test_every_mistake_of_the_table_is_made() -> None:
    rows = re.findall(r"^\| (\d+) \|", (ORDINARY / "mistakes.md").read_text(), re.MULTILINE)
    assert [str(mistake.number) for mistake in MISTAKES] == rows and len(rows) == 50


def test_the_answers() -> None:
    """Mistakes that are answered with an error upload nothing, which ``all_answers`` asserts."""
    answers = all_answers()
    assert {reply.exit_code for reply in answers.values()} <= {0, 2, 3, 4}
    assert page(answers) == PAGE.read_text(), "python -m tests.cli.mistakes writes it"
