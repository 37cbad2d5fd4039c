"""A failure names the file that was not sent."""

from __future__ import annotations

import pytest

from smlaunch.runs.missing_files import missing_file_hint


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
