"""What smlaunch prints about a job whose texts contain control characters."""

from __future__ import annotations

import pytest

from smlaunch.cli.console import echo, print_labeled, print_message
from tests.cli.conftest import Shell

ODD = "A\x1b]0;title\x07\x1b[2J\x9b1m\r\x7f\tB\nC"
PLAIN = "A\\x1b]0;title\\x07\\x1b[2J\\x9b1m\\x0d\\x7f\tB\nC\n"


def test_control_characters_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    echo(ODD)
    print_message(ODD)
    print_labeled("failed: ", ODD, bold=True)
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (PLAIN, f"{PLAIN}failed: {PLAIN}")


def test_a_jobs_failure_does_not_reach_the_terminal(endpoint_shell: Shell) -> None:
    script = endpoint_shell.folder / "odd.py"
    script.write_text("print('own \\x07', flush=True)\nraise RuntimeError('A\\x1b]0;title\\x07B')\n")
    result = endpoint_shell("run", script.name, "--local", "--name", "odd")
    assert (result.code, "own \x07" in result.out) == (1, True)
    assert "failed: algo-1 exited with code 1: RuntimeError: A\\x1b]0;title\\x07B" in result.err
    for arguments in (("show", "odd"), ("wait", "odd"), ("ls",)):
        result = endpoint_shell(*arguments, "--local")
        assert not {"\x1b", "\x07"} & {*result.out, *result.err}, arguments
