"""Installing the source's requirements before the ranks start.

Into the interpreter that runs us, as the training toolkit does, when it is this job's own, as in a container.
Where it belongs to the machine (protocol.paths.SHARED_PYTHON_VARIABLE), into a virtual environment of the job
laid over it: what is installed below is seen and not installed again, and nothing below is ever changed.
"""

import os
import site
import sys
from typing import List, Mapping, Sequence

from smlaunch.protocol.paths import SHARED_PYTHON_VARIABLE, WHEELHOUSE_CHANNEL, Paths
from smlaunch.runtime.problems import Unusable


def target_python(python: str, paths: Paths, environ: Mapping[str, str]) -> str:
    """The interpreter to install for and to run the ranks with."""
    if environ.get(SHARED_PYTHON_VARIABLE) == "1":
        return overlay(python, paths.overlay)
    return python


def install_words(python: str, paths: Paths, requirements: str) -> List[str]:
    """``requirements`` is relative to the source. Raises Unusable when it is not there."""
    path = os.path.join(paths.code, requirements)
    if not os.path.isfile(path):
        raise Unusable("{}: the requirements file is not in the source".format(requirements))
    words = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-r", path]
    wheelhouse = paths.channel(WHEELHOUSE_CHANNEL)
    if os.path.isdir(wheelhouse):
        words += ["--no-index", "--find-links", wheelhouse]
    return words


def failed(requirements: str, tail: str) -> Unusable:
    """pip says what went wrong in lines that begin with ERROR; the first one is the reason."""
    said = [line.strip() for line in tail.splitlines() if line.strip()]
    errors = [line[len("ERROR:") :].strip() for line in said if line.startswith("ERROR:")]
    reason = (errors or said[-1:] or ["pip gave no reason"])[0]
    return Unusable("{}: the requirements could not be installed: {}".format(requirements, reason))


def overlay(python: str, folder: str) -> str:
    """A virtual environment over the one we run in; returns its interpreter.

    Made by hand in a millisecond: ``venv`` can only lay an environment over the interpreter itself, and would
    not see what is installed in the virtual environment that runs us.
    """
    base = os.path.realpath(python)
    version = "python{}.{}".format(*sys.version_info[:2])
    packages = os.path.join(folder, "lib", version, "site-packages")
    binary = os.path.join(folder, "bin", "python")
    os.makedirs(packages, exist_ok=True)
    os.makedirs(os.path.dirname(binary), exist_ok=True)
    _write(
        os.path.join(folder, "pyvenv.cfg"),
        ["home = " + os.path.dirname(base), "include-system-site-packages = true"],
    )
    # addsitedir and not the bare path, so that .pth files down there, such as those of editable installs,
    # count.
    _write(
        os.path.join(packages, "_below.pth"),
        ["import site; site.addsitedir({!r})".format(path) for path in site.getsitepackages()],
    )
    for name in ("python", "python3"):
        link = os.path.join(folder, "bin", name)
        if not os.path.islink(link):
            os.symlink(base, link)
    return binary


def _write(path: str, lines: Sequence[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
