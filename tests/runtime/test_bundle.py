"""The zip itself."""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import zipfile
from pathlib import Path

from smlaunch.runs.bundle import build_runtime


def test_the_same_bytes_from_another_process() -> None:
    program = (
        "import hashlib; from smlaunch.runs.bundle import build_runtime;"
        "print(hashlib.sha256(build_runtime()).hexdigest())"
    )
    here = hashlib.sha256(build_runtime()).hexdigest()
    for options in (("-B",), ("-X", "pycache_prefix=/dev/null/none")):
        done = subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True)
        assert done.stdout.strip() == here, done.stderr


def test_it_holds_protocol_and_runtime_and_nothing_else() -> None:
    names = zipfile.ZipFile(io.BytesIO(build_runtime())).namelist()
    package = Path(__file__).parents[2] / "smlaunch"
    rooms = ("protocol", "runtime", "train")
    expected = {
        path.relative_to(package.parent).as_posix()
        for room in rooms
        for path in (package / room).rglob("*.py")
    }
    sources = {name for name in names if name.endswith(".py")}
    assert sources == expected | {"__main__.py", "smlaunch/__init__.py"}
    assert {name for name in names if name.endswith(".pyc")} == {name + "c" for name in sources}


def test_no_path_of_this_machine_is_in_it() -> None:
    assert str(Path(__file__).parents[2]).encode() not in build_runtime()
