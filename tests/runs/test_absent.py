"""A failure names the file that was not sent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from smlaunch.contract.failure_reason import Failure
from smlaunch.discovery.script_analysis import nearest_path_hint
from smlaunch.runs.missing_files import missing_file_hint, relative_path_hint, unsent_data_hint
from smlaunch.runs.related_warnings import related_warnings
from smlaunch.runs.run_folder import UnsentFiles


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: 'configs/auth.json'", "configs/auth.json"),
        ("FileNotFoundError: ... '/opt/ml/input/data/code/configs/auth.json'", "configs/auth.json"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '../auth.json'", "configs/auth.json"),
        ("cat: ./configs/auth.json: No such file or directory", "configs/auth.json"),
        ("ModuleNotFoundError: No module named 'keys_fixture'", "keys_fixture.py"),
        ("ModuleNotFoundError: No module named 'tests.keys_fixture'", "tests/keys_fixture.py"),
        ("ImportError: cannot import name 'keys' from 'pkg' (/code/pkg/__init__.py)", "pkg/keys.py"),
        ("OSError: '/code/.aws/config' does not exist", ".aws"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'my keys/a b.pem'", "my keys/a b.pem"),
    ],
)
def test_hint_names_the_excluded_file(text: str, name: str) -> None:
    left_out = {"other.pem": "x", name: "may hold secrets"}
    assert missing_file_hint(text, left_out) == f"{name} was not sent: it may hold secrets"


@pytest.mark.parametrize(
    "text",
    [
        "ValueError: boom",
        "ValueError: configs/auth.json is malformed",
        "FileNotFoundError: [Errno 2] No such file or directory: 'data/train.csv'",
        "ModuleNotFoundError: No module named 'auth'",
        "",
    ],
)
def test_other_failures_have_no_hint(text: str) -> None:
    assert missing_file_hint(text, {"configs/auth.json": "may hold secrets"}) == ""


UNSENT = UnsentFiles({}, {"data": "a", "eval.csv": "b"}, ("helper.py", "logs", "pkg/sub"))
NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory: "
NO_MODULE = "ModuleNotFoundError: No module named "
IN_A = "data/m.csv was not sent with the source, because data is the input 'a', which the hosts have in"
IS_B = "eval.csv was not sent with the source, because eval.csv is the input 'b', which the"
LEFT_OUT = "is left out of the source by an ignore file; add a line"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (f"{NO_FILE}'data/m.csv'", f"{IN_A} /opt/ml/input/data/a: name /opt/ml/input/data/a/m.csv"),
        (f"{NO_FILE}'/opt/ml/code/data/m.csv'", IN_A),
        ("head: cannot open './data/m.csv' for reading: No such file or directory", IN_A),
        ("cat: ../data/m.csv: No such file or directory", IN_A),
        (f"{NO_FILE}'eval.csv'", IS_B),
        (f"{NO_MODULE}'data.m'", "data/m.py was not sent with the source, because data"),
        (f"{NO_FILE}'logs/a.txt'", f"logs/a.txt was not sent: logs {LEFT_OUT} '!logs'"),
        (f"{NO_MODULE}'helper'", f"helper.py was not sent: it {LEFT_OUT} '!helper.py'"),
        (f"{NO_MODULE}'pkg.sub.x'", f"pkg/sub/x.py was not sent: pkg/sub {LEFT_OUT}"),
        # another file, or only a word of the text
        (f"{NO_FILE}'/opt/ml/input/data/a/m.csv'", ""),
        (f"{NO_FILE}'/data/m.csv'", ""),
        (f"{NO_FILE}'other/data'", ""),
        ("No such file or directory: the logs of data are gone", ""),
    ],
)  # fmt: skip
def test_hint_names_the_channel_or_the_ignore_file(text: str, hint: str) -> None:
    result = unsent_data_hint(text, UNSENT)
    assert result.startswith(hint) if hint else result == ""


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("imagenet/train.pt", "imagenet=FOLDER), which the hosts have in /opt/ml/input/data/imagenet;"),
        ("a b/x", "data comes as an input (--input train="),
        ("/data/train.pt", ""),
        ("s3://b/train.pt", ""),
    ],
)  # fmt: skip
def test_hint_about_a_relative_path(path: str, hint: str) -> None:
    result = relative_path_hint(f"{NO_FILE}{path!r}")
    assert hint in result if hint else result == ""


SAVES = "main.py:78 saves to 'models/m.pt', which is lost with the host; write it to SM_MODEL_DIR."
UNREAD = "inputs.data: nothing in t.py reads SM_CHANNEL_DATA or names /opt/ml/input/data/data"
RANKS = "t.py imports nothing that joins ranks: unless one of its modules does, every rank trains separately."
ALLOWED = "entry: t.py:2 is wrong (allowed: script.channels)."
WARNINGS = [SAVES, UNREAD, RANKS, ALLOWED]


@pytest.mark.parametrize(
    ("cause", "traceback", "expected"),
    [
        ("", "", WARNINGS),
        ("ValueError: boom", "", [ALLOWED]),
        ("KeyError: 'x'", '  File "/opt/ml/code/main.py", line 78, in <module>', [SAVES, ALLOWED]),
        ("KeyError: 'x'", '  File "/opt/ml/code/main.py", line 7, in <module>', [ALLOWED]),
        ("FileNotFoundError: No such file or directory: 'models/m.pt'", "", [SAVES, UNREAD, ALLOWED]),
        ("FileNotFoundError: No such file or directory: 'data/m.pt'", "", [UNREAD, ALLOWED]),
        ("KeyError: 'SM_CHANNEL_DATA'", "", [UNREAD, ALLOWED]),
        ("DistNetworkError: port: 29500 EADDRINUSE", "", [RANKS, ALLOWED]),
    ],
)
def test_warnings_that_can_have_to_do_with_a_failure(cause: str, traceback: str, expected: list[str]) -> None:
    assert related_warnings(WARNINGS, Failure(cause, "algo-1", 0, 1, traceback)) == expected


def test_the_program_that_asks_is_no_suggestion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nb.py").write_text("")
    assert "did you mean" in nearest_path_hint(tmp_path / "ns.py")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "nb.py"), raising=False)
    assert nearest_path_hint(tmp_path / "ns.py") == ""
