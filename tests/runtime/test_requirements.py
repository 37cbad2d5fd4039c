"""Requirements from a channel of wheels, without a network and without touching the machine's own Python."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from smlaunch.runtime import requirements_install
from tests.runtime.host import Host
from tests.runtime.test_ranks import python_of
from tests.tables import table

MakeHost = Callable[..., Host]

SHARED = {"SMLAUNCH_SHARED_PYTHON": "1", "PIP_NO_INPUT": "1", "PIP_CONFIG_FILE": "/dev/null"}
PRINT_PLANTED = "import planted, sys\nprint(planted.VALUE, sys.prefix)"


def make_wheel(folder: str, modules: Mapping[str, str], name: str = "planted") -> None:
    """Write a minimal wheel of ``modules`` into ``folder``."""
    info = f"{name}-1.0.dist-info"
    files = {
        **modules,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()},"
        f"{len(text)}\n"
        for path, text in files.items()
    )
    with zipfile.ZipFile(Path(folder) / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, text in {**files, f"{info}/RECORD": record + f"{info}/RECORD,,\n"}.items():
            wheel.writestr(path, text)


@pytest.mark.parametrize(
    "version",
    [pytest.param("3.8", marks=pytest.mark.real), "3.11", pytest.param("3.13", marks=pytest.mark.real)],
)
def test_a_wheelhouse_needs_no_network(make_host: MakeHost, version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    host = make_host(
        PRINT_PLANTED,
        python=python,
        channels=["wheelhouse"],
        source={"deps/requirements.txt": "planted==1.0\n"},
        environ=SHARED,
    )
    make_wheel(host.paths.channel_dir("wheelhouse"), {"planted.py": "VALUE = 42\n"})
    result = host.run(per_host=2, requirements="deps/requirements.txt")
    assert result.exit_code == 0, result.stdout + result.stderr
    rank_lines = [line for line in result.lines if line.startswith("[")]
    assert sorted(rank_lines) == [f"[{rank}] 42 {host.paths.venv_overlay}" for rank in (0, 1)]
    assert "Successfully installed planted-1.0" in result.stdout
    assert not any(Path(sys.prefix).rglob("planted*"))


def test_what_cannot_be_installed_is_said(make_host: MakeHost) -> None:
    host = make_host(
        channels=["wheelhouse"], source={"requirements.txt": "nowhere-to-be-found\n"}, environ=SHARED
    )
    result = host.run(requirements="requirements.txt")
    assert result.exit_code == 2
    assert "requirements.txt: the requirements could not be installed: " in result.stderr
    assert "nowhere-to-be-found" in host.failure


UNREACHABLE = """\
WARNING: Retrying after connection broken by 'NewConnectionError(': Failed to establish a new connection: \
[Errno -3] Temporary failure in name resolution')': /simple/planted/
ERROR: Could not find a version that satisfies the requirement planted==1.0 (from versions: none)
ERROR: No matching distribution found for planted==1.0
"""


BUILD_FAILED = """\
  error: subprocess-exited-with-error
  ╰─> [3 lines of output]
      Traceback (most recent call last):
        File "<string>", line 1, in <module>
      ModuleNotFoundError: No module named 'x'
      [end of output]

error: metadata-generation-failed

╰─> See above for output.

hint: See above for details.
"""


@table(
    ("pip_output", "reason", "next_step"),
    [
        (
            UNREACHABLE,
            "could not be installed: No matching distribution found for planted==1.0;",
            "pip download -d wheels -r r.txt; --input wheelhouse=wheels)",
        ),
        (
            "/usr/bin/python: No module named pip\n",
            "No module named pip",
            "install pip in the Python of the hosts",
        ),
        (
            "ERROR: Ignored the following versions that require a different python version: 1.21.2\n"
            + UNREACHABLE,
            "could not be installed: No matching distribution found for planted==1.0;",
            "pip download",
        ),
        (
            BUILD_FAILED,
            "installed: metadata-generation-failed: ModuleNotFoundError: No module named 'x';",
            "",
        ),
        ("ERROR: Invalid requirement: '=1'\n", "Invalid requirement: '=1'", "correct the file"),
    ],
)
def test_what_cannot_be_installed_has_a_next_step(pip_output: str, reason: str, next_step: str) -> None:
    message = str(requirements_install.install_error("r.txt", pip_output))
    assert reason in message
    assert next_step in message
    assert "or install nothing (--requirements none)" in message


def test_a_missing_requirements_file_is_said(make_host: MakeHost) -> None:
    result = make_host().run(requirements="req.txt")
    assert (result.exit_code, "req.txt: the requirements file is not in the source" in result.stderr) == (
        2,
        True,
    )


def test_the_overlay_sees_all_that_is_below(tmp_path: Path) -> None:
    """It imports packages of the virtual environment below it, editable installs included."""
    python = requirements_install.make_overlay_venv(sys.executable, str(tmp_path / "python"))
    program = "import sys, smlaunch, pytest; print(sys.prefix)"
    result = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout.strip() == str(tmp_path / "python")
