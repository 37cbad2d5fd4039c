"""Hostile hyperparameters, arguments, environment values and channel names, all the way to the script.

Through the command line, the API, the endpoint, the host and the runtime, each arrives exactly, or is refused
under its field.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

from tests.e2e.command import smlaunch

REPORTING_SCRIPT = """\
import json, os, sys
received = {"argv": sys.argv[1:], "env": {k: v for k, v in os.environ.items() if k.startswith("HOSTILE_")},
            "channels": sorted(os.listdir(os.path.join(os.environ["SM_INPUT_DIR"], "data")))}
open(os.path.join(os.environ["SM_MODEL_DIR"], "received.json"), "w").write(json.dumps(received))
"""

VALUES = [
    "'",
    '"',
    "'; touch /tmp/pwned; '",
    "$(touch /tmp/pwned)",
    "`touch /tmp/pwned`",
    "; rm -rf /",
    "&& false",
    "| cat",
    "> /tmp/pwned",
    "$HOME",
    "${PATH}",
    "%PATH%",
    "~",
    "*",
    "?",
    "[a-z]*",
    "{a,b}",
    "!!",
    "#no comment",
    "\\",
    "\\n",
    "a\\ b",
    "line\nbreak",
    "carriage\rreturn",
    "tab\tstop",
    " leading and trailing ",
    "",
    "-",
    "--",
    "--help",
    "-x",
    "=",
    "a=b",
    "a,b",
    "a b  c",
    "\u00fc\u00f1\u00ee\u00e7\u00f8d\u00e9",
    "\u65e5\u672c\u8a9e",
    "\U0001f680",
    "\u202eright to left",
    "\x1b[31mred",
    "null",
    "true",
    "007",
    "1e3",
    "NaN",
    "[1, 2]",
    '{"a": 1}',
    '"quoted"',
    "%s %d {0} {name}",
    "../../etc/passwd",
]
CHANNELS = ["train", "my-train", "a.b", "a_b", "A", "-x", "..a", "0"]

REFUSED_FIELDS = [
    ({"hyperparameters": {"x": "a\0b"}}, "hyperparameters.x"),
    ({"args": ["a\0b"]}, "args"),
    ({"environment": {"X": "a\0b"}}, "environment.X"),
    ({"environment": {"a b": "x"}}, "environment"),
    ({"environment": {"A=B": "x"}}, "environment"),
    ({"inputs": {"a b": "s3://b/x/"}}, "inputs"),
    ({"inputs": {"a/b": "s3://b/x/"}}, "inputs"),
    ({"inputs": {"": "s3://b/x/"}}, "inputs"),
    ({"inputs": {"smlaunch": "s3://b/x/"}}, "inputs.smlaunch"),
    ({"hyperparameters": {"": "x"}}, "hyperparameters"),
    ({"hyperparameters": {"x": "y" * 2501}}, "hyperparameters.x"),
    ({"environment": {"X": "y" * 513}}, "environment.X"),
]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "train.py").write_text(REPORTING_SCRIPT)
    return folder


def write(source: Path, **fields: object) -> Path:
    path = source / "job.yaml"
    path.write_text(
        json.dumps({"entry": "train.py", **fields}, ensure_ascii=False)
    )  # JSON is YAML, and leaves nothing to guess
    return path


def test_each_value_arrives_exactly(home: Path, source: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    data.write_text("x")
    job = write(
        source,
        strategy="custom",
        args=VALUES,
        hyperparameters={f"key-{number:02}.x": value for number, value in enumerate(VALUES)},
        environment={f"HOSTILE_{number:02}": value for number, value in enumerate(VALUES)},
        inputs={name: str(data) for name in CHANNELS},
    )
    result = smlaunch("run", job, "--local", "--name", "hostile")
    assert result.code == 0, result.text
    details = smlaunch("show", "hostile", "--local", "--json").json()
    with tarfile.open(home / "s3" / details["model_artifacts"].removeprefix("s3://")) as archive:
        member = next(name for name in archive.getnames() if name.endswith("received.json"))
        file = archive.extractfile(member)
        assert file is not None
        received = json.load(file)
    arguments = [word for number, value in enumerate(VALUES) for word in (f"--key-{number:02}.x", value)]
    assert received["argv"] == [*VALUES, *arguments]
    assert received["env"] == {f"HOSTILE_{number:02}": value for number, value in enumerate(VALUES)}
    assert set(CHANNELS) <= set(received["channels"])
    assert not Path("/tmp/pwned").exists()


@pytest.mark.parametrize(("fields", "path"), REFUSED_FIELDS)
def test_what_cannot_arrive_is_refused_under_its_field(
    home: Path, source: Path, fields: dict[str, object], path: str
) -> None:
    result = smlaunch("run", write(source, **fields), "--local")
    assert result.code == 2, result.text
    lines = [line.strip().removeprefix("error: ") for line in result.err.splitlines()]
    assert any(line.startswith(path) for line in lines), result.err
