"""The cause of a failure is found in real output of Python."""

from __future__ import annotations

import subprocess
import sys

import pytest

from smlaunch.runtime import tracebacks
from tests.tables import table


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


WRAPPED_ERROR = """\
Usage: train.py [OPTIONS]
Try 'train.py --help' for help.
╭─ Error ──────────────────────────────────────────────────────────────────────╮
│ Invalid value for '--data': Directory '/opt/ml/input/data/train/points' does │
│ not exist.                                                                   │
╰──────────────────────────────────────────────────────────────────────────────╯
"""

BOXED_TRACEBACK = """\
smlaunch: progress step=1 loss=2
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /opt/ml/code/train.py:6 in main                                              │
│                                                                              │
│   5 │   print(f"smlaunch: progress step={step} loss={loss}")                 │
│ ❱ 6 │   open('/opt/ml/input/data/train/some/long/folder/points.csv')         │
│   7 main()                                                                   │
╰──────────────────────────────────────────────────────────────────────────────╯
FileNotFoundError: [Errno 2] No such file or directory:\x20
'/opt/ml/input/data/train/some/long/folder/points.csv'
"""
"""As rich prints it where it is not on a terminal; with PYTHONIOENCODING=ascii its lines are of ASCII."""

ASCII_BOX = """\
+-------- Traceback (most recent call last) ---------+
| /opt/ml/code/train.py:6 in main                    |
|                                                    |
| > 6     raise ValueError("x")                      |
+----------------------------------------------------+
ValueError: x
"""
PIP_CONFLICT = """\
ERROR: Cannot install click==8.0.0 and click==8.1.0 because they conflict.

The conflict is caused by:
    The user requested click==8.1.0

To fix this you could try to:
2. remove package versions to allow pip attempt to solve the dependency conflict

ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/en/latest/topics/dependency-resolution/
"""
PIP_NOTICE = """\
ERROR: No matching distribution found for numpy==99.0

[notice] A new release of pip is available: 24.0 -> 25.3
"""


@table(
    ("output", "last"),
    [
        ("a\n b \n\n", "b"),
        ("", ""),
        ("the data is empty\n=====\n~~~^^^\n", "the data is empty"),
        (
            WRAPPED_ERROR,
            "Invalid value for '--data': Directory '/opt/ml/input/data/train/points' does not exist.",
        ),
        ("╭─ Error ─╮\n│ gone    │\n╰─────────╯\n", "gone"),
        ("╭─ Error ─╮\n│ 1234567 │\n│ 89      │\n╰─────────╯\n", "123456789"),
        ("│ a column │\n╰──────────╯\n", "│ a column │"),
        (PIP_CONFLICT, "ERROR: Cannot install click==8.0.0 and click==8.1.0 because they conflict."),
        (PIP_NOTICE, "ERROR: No matching distribution found for numpy==99.0"),
    ],
)
def test_the_last_line_that_says_something(output: str, last: str) -> None:
    assert tracebacks.last_line(output) == last


def test_a_traceback_in_a_box() -> None:
    cause = tracebacks.find_cause(BOXED_TRACEBACK)
    assert cause is not None
    assert cause.error_line == (
        "FileNotFoundError: [Errno 2] No such file or directory: "
        "'/opt/ml/input/data/train/some/long/folder/points.csv'"
    )
    assert cause.traceback.startswith(
        "Traceback (most recent call last):\n  /opt/ml/code/train.py:6 in main\n"
    )
    assert cause.traceback.endswith(cause.error_line)
    ascii_cause = tracebacks.find_cause(ASCII_BOX)
    assert ascii_cause is not None
    assert ascii_cause.error_line == "ValueError: x"


TORCHRUN_TRACEBACK = """\
W1127 10:56:09.209000 10864 torch/distributed/elastic/multiprocessing/api.py:1028] Sending SIGTERM
E1127 10:56:09.215000 10864 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 7)
Traceback (most recent call last):
  File "/usr/lib/python3/site-packages/torch/distributed/run.py", line 1019, in run
    elastic_launch(
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\x20
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
"""
TORCHRUN_PEERS = """\
[1]:
  time      : 2026-11-27_10:56:09
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 10945)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 10945
"""
TORCHRUN_ROOT_CAUSE = """\
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-27_10:56:09
  rank      : 1 (local_rank: 1)
  exitcode  : 7 (pid: 10946)\x20
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""


def test_the_report_of_torchrun_is_that_of_its_rank() -> None:
    plain = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: planted\n'
    for report in (
        TORCHRUN_TRACEBACK + TORCHRUN_PEERS + TORCHRUN_ROOT_CAUSE,
        TORCHRUN_TRACEBACK + 7 * TORCHRUN_PEERS + TORCHRUN_ROOT_CAUSE,
    ):
        assert tracebacks.find_cause(plain + report) == ("ValueError: planted", plain.rstrip())
        assert tracebacks.find_reported_rank(plain + report) == (1, 7)
        assert tracebacks.find_cause("no data\n" + report) is None
        assert tracebacks.last_line("no data\n" + report) == "no data"
        assert tracebacks.last_line(report) == ""
        assert tracebacks.find_reported_rank(report + "the next part\n" * 40) is None


def test_the_error_under_accelerate_is_the_scripts() -> None:
    plain = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: planted\n'
    launcher = (
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3/accelerate/commands/launch.py", line 853, in simple_launcher\n'
        "    raise subprocess.CalledProcessError(returncode=process.returncode, cmd=cmd)\n"
        "subprocess.CalledProcessError: Command '['python', 'train.py']' returned non-zero exit status 1.\n"
    )
    assert tracebacks.find_cause(plain + launcher) == ("ValueError: planted", plain.rstrip())
    cause = tracebacks.find_cause("no data\n" + launcher)
    assert cause is not None
    assert cause.error_line.startswith("subprocess.CalledProcessError")


def test_torch_marks_every_line_with_the_rank() -> None:
    plain = 'Traceback (most recent call last):\n  File "train.py", line 7, in <module>\nValueError: planted'
    marked = "".join(f"[rank2]: {line}\n" for line in plain.splitlines())
    assert tracebacks.find_cause("step 1\n" + marked) == ("ValueError: planted", plain)
