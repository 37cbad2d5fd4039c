"""``smlaunch.train`` in a rank: the installed one, or the archive's where none is installed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from smlaunch.contract.launch_spec import Ref
from tests.runtime.host import Host
from tests.runtime.test_ranks import VERSIONS, python_of
from tests.runtime.test_requirements import SHARED, make_wheel

MakeHost = Callable[..., Host]

PRINT_PATHS = """
import json, smlaunch.train, smlaunch.contract.checkpoint_layout
from smlaunch.contract.segment import Segment
print(json.dumps([smlaunch.__file__, smlaunch.train.__file__]))
"""
# A Python without smlaunch: without the site-packages of the tests' interpreter and of the user.
BARE_PYTHON = (Ref("python"), "-s", "-S", Ref("source", suffix="/train.py"))


def imported_paths(host: Host, **spec: object) -> list[str]:
    result = host.run(**spec)
    assert result.exit_code == 0, result.stderr + result.stdout
    # Compiled code in the zip is of this Python's version only.
    return [place.replace(".pyc", ".py") for place in result.documents()[0]]


def package_files(*rooms: str) -> dict[str, str]:
    """Return the files of an installed smlaunch that ``PRINT_PATHS`` imports, with their contents."""
    files = {f"smlaunch/{room}/__init__.py".replace("//", "/"): "" for room in ("", "contract", *rooms)}
    return {
        **files,
        "smlaunch/contract/checkpoint_layout.py": "",
        "smlaunch/contract/segment.py": "Segment = None\n",
    }


def install_at(folder: Path, *rooms: str) -> Path:
    """Write an installed smlaunch into ``folder``, as in site-packages."""
    for name, text in package_files(*rooms).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize("version", VERSIONS)
def test_a_python_without_smlaunch_imports_it_from_the_zip(make_host: MakeHost, version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    host = make_host(PRINT_PATHS, python=python)
    top, train = imported_paths(host, argv=BARE_PYTHON)
    assert top == f"{host.root}/smlaunch/importable/smlaunch/__init__.py"
    assert train.startswith(f"{host.runtime}/smlaunch/train/__init__.py")


@pytest.mark.parametrize("version", ["3.8", "3.11"])
def test_an_installed_smlaunch_is_the_one(make_host: MakeHost, tmp_path: Path, version: str) -> None:
    """Installed packages come after PYTHONPATH; the script adds them at its start, as ``site`` does."""
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    site = install_at(tmp_path / "site-packages", "train")
    host = make_host(f"import sys\nsys.path.append({str(site)!r})\n{PRINT_PATHS}", python=python)
    assert imported_paths(host, argv=BARE_PYTHON) == [
        str(site / "smlaunch" / "__init__.py"),
        str(site / "smlaunch" / "train" / "__init__.py"),
    ]


def test_one_that_is_installed_as_editable_is_the_one(make_host: MakeHost, tmp_path: Path) -> None:
    """setuptools installs a finder on sys.meta_path."""
    site = install_at(tmp_path / "checkout", "train")
    finder = (
        "import sys, importlib.machinery\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        f"        return importlib.machinery.PathFinder.find_spec(name, [{str(site)!r}])\n"
        "sys.meta_path.append(Finder)\n"
    )
    assert imported_paths(make_host(finder + PRINT_PATHS), argv=BARE_PYTHON)[0] == str(
        site / "smlaunch" / "__init__.py"
    )


def test_an_older_one_without_train_gives_way(make_host: MakeHost, tmp_path: Path) -> None:
    site = install_at(tmp_path / "site-packages")
    host = make_host(f"import sys\nsys.path.append({str(site)!r})\n{PRINT_PATHS}")
    assert (
        imported_paths(host, argv=BARE_PYTHON)[0] == f"{host.root}/smlaunch/importable/smlaunch/__init__.py"
    )


def test_one_in_the_source_comes_first(make_host: MakeHost) -> None:
    host = make_host(PRINT_PATHS, source=package_files("train"))
    assert imported_paths(host)[0] == f"{host.paths.code}/smlaunch/__init__.py"


def test_another_python_that_the_program_starts_sees_its_own(make_host: MakeHost, tmp_path: Path) -> None:
    """The runtime cannot know which Python a shell script will start."""
    site = install_at(tmp_path / "site-packages", "train")
    (tmp_path / "bin").mkdir()
    other = tmp_path / "bin" / "other-python"
    other.write_text(
        f"#!/bin/sh\nexec {sys.executable} -s -S -c "
        f'"import sys; sys.path.append(\'{site}\'); exec(open(sys.argv[1]).read())" "$@"\n'
    )
    other.chmod(0o755)
    host = make_host(PRINT_PATHS, source={"go.sh": f"exec {other} train.py\n"})
    places = imported_paths(host, argv=("bash", Ref("source", suffix="/go.sh")), rendezvous=False)
    assert places[0] == str(site / "smlaunch" / "__init__.py")


def test_workers_that_a_rank_spawns_find_it_too(make_host: MakeHost) -> None:
    train = (
        "import json, multiprocessing\n"
        "def place(_):\n"
        "    import smlaunch.train\n"
        "    return smlaunch.train.__file__\n"
        "if __name__ == '__main__':\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(json.dumps(pool.map(place, [0])))\n"
    )
    host = make_host(train)
    assert imported_paths(host, argv=BARE_PYTHON)[0].startswith(f"{host.runtime}/smlaunch/train/")


def test_what_requirements_bring_is_the_one(make_host: MakeHost) -> None:
    host = make_host(
        PRINT_PATHS, channels=["wheelhouse"], source={"requirements.txt": "smlaunch==1.0\n"}, environ=SHARED
    )
    make_wheel(host.paths.channel_dir("wheelhouse"), package_files("train"), "smlaunch")
    program = "import smlaunch.train; print(smlaunch.train.__file__)"
    result = host.run(requirements="requirements.txt", argv=(Ref("python"), "-c", program))
    assert result.exit_code == 0, result.stderr + result.stdout
    assert result.lines[-1].startswith(f"[0] {host.paths.venv_overlay}/lib/")
