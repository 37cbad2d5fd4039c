"""The cause of a failure is found in real output of Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

from smlaunch.runtime import tracebacks


def output_of(program: str, python: str = sys.executable, *options: str) -> str:
    result = subprocess.run(
        [python, *options, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return result.stdout.decode("utf-8", "replace")


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("raise ValueError('boom')", "ValueError: boom"),
        ("raise ValueError", "ValueError"),
        ("raise ValueError('first\\n\\nthird')", "ValueError: first"),
        ("class Odd(Exception): pass\nraise Odd('x')", "Odd: x"),
        ("try:\n  1/0\nexcept Exception:\n  raise KeyError('k')", "KeyError: 'k'"),
        ("try:\n  1/0\nexcept Exception as e:\n  raise KeyError('k') from e", "KeyError: 'k'"),
        ("def f(): f()\nf()", "RecursionError: maximum recursion depth exceeded"),
        ("assert False", "AssertionError"),
        (
            "raise ExceptionGroup('all', [ValueError(1), OSError(2)])",
            "ExceptionGroup: all (2 sub-exceptions)",
        ),
        ("x = (", "SyntaxError: '(' was never closed"),
        (" x = 1", "IndentationError: unexpected indent"),
        ("import faulthandler, os\nfaulthandler.enable()\nos.abort()", "Fatal Python error: Aborted"),
        ("import atexit\natexit.register(print, 'bye')\nraise ValueError('boom')", "ValueError: boom"),
        ("import sys\nprint('a' * 70000)\nsys.stdout.flush()\nraise ValueError('late')", "ValueError: late"),
        ("raise ValueError('\\x1b[31mred\\x1b[0m')", "ValueError: red"),
    ],
)
def test_the_cause(program: str, cause: str) -> None:
    if "ExceptionGroup" in program and sys.version_info < (3, 11):
        pytest.skip("no exception groups in this Python")
    failure_cause = tracebacks.find_cause(output_of(program))
    assert failure_cause is not None
    assert failure_cause.error_line.startswith(cause)
    assert failure_cause.error_line.split(":")[0] in failure_cause.traceback


def test_noise_between_the_frames() -> None:
    """A line of another thread inside a traceback is not mistaken for the exception."""
    tail = (
        "Traceback (most recent call last):\n"
        '  File "train.py", line 1, in <module>\n'
        "[W1121 15:59:10 socket.cpp:200] The client socket has failed\n"
        "    main()\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    )
    failure_cause = tracebacks.find_cause(tail)
    assert failure_cause is not None
    assert (
        failure_cause.error_line == "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
    )


@pytest.mark.parametrize(
    "tail", ["", "\n\n", "just lines\nof text\n", "Traceback (most recent call last):\n"]
)
def test_nothing_to_find(tail: str) -> None:
    assert tracebacks.find_cause(tail) is None


def test_the_last_line() -> None:
    assert tracebacks.last_line("a\n b \n\n") == "b"
    assert tracebacks.last_line("") == ""


def test_torch_marks_every_line_with_the_rank() -> None:
    plain = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: planted'
    marked = "".join(f"[rank2]: {line}\n" for line in plain.splitlines())
    assert tracebacks.find_cause("step 1\n" + marked) == ("ValueError: planted", plain)
