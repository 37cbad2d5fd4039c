"""Install the source's requirements before the ranks start.

Into the interpreter that runs this process, as the training toolkit does, when it belongs to this job, as in
a container. Where it belongs to the machine (contract.paths.SHARED_PYTHON_VARIABLE), into a virtual
environment of the job on top of it: packages below are visible and not installed again, and never changed.
"""

import os
import site
import sys
from typing import List, Mapping, Sequence

from smlaunch.contract.sagemaker_paths import SHARED_PYTHON_VARIABLE, WHEELHOUSE_CHANNEL, Paths
from smlaunch.runtime import tracebacks
from smlaunch.runtime.errors import SetupError


def target_python(python: str, paths: Paths, environ: Mapping[str, str]) -> str:
    """Return the interpreter to install for and to run the ranks with."""
    if environ.get(SHARED_PYTHON_VARIABLE) == "1":
        return make_overlay_venv(python, paths.venv_overlay)
    return python


def path_with_interpreter(python: str, environ: Mapping[str, str]) -> str:
    """Return the PATH on which a command or a shell script finds this interpreter, and what pip installs
    beside it, first.
    """
    folder = os.path.dirname(python)
    other_folders = [part for part in environ.get("PATH", os.defpath).split(os.pathsep) if part != folder]
    return os.pathsep.join([folder] + other_folders)


def install_command(python: str, paths: Paths, requirements: str) -> List[str]:
    """Return the command of pip. ``requirements``: relative to the source. Raises SetupError when the file
    does not exist.
    """
    path = os.path.join(paths.code, requirements)
    if not os.path.isfile(path):
        raise SetupError("{}: the requirements file is not in the source".format(requirements))
    command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "-r", path]
    wheelhouse = paths.channel_dir(WHEELHOUSE_CHANNEL)
    if os.path.isdir(wheelhouse):
        command += ["--no-index", "--find-links", wheelhouse]
    return command


def install_error(requirements: str, pip_output: str) -> SetupError:
    """Return the error to raise when pip has failed: with pip's reason, which is its last error, and what the
    user can do. ``requirements``: the file's path.
    """
    reason = tracebacks.last_line(pip_output) or "pip gave no reason"
    reason = reason[len("ERROR: ") :] if reason.lower().startswith("error: ") else reason
    # Of pip itself, or of a package that it could not build.
    cause = tracebacks.find_cause(pip_output)
    if cause is not None and cause.error_line not in reason:
        reason = "{}: {}".format(reason.rstrip(":"), cause.error_line)
    return SetupError(
        "{}: the requirements could not be installed: {}; {}, or install nothing (--requirements none) if "
        "the hosts have what the program needs".format(
            requirements, reason.rstrip("."), _suggest_remedy(requirements, pip_output)
        )
    )


_PACKAGE_INDEX_ERRORS = (
    "Failed to establish a new connection",
    "Temporary failure in name resolution",
    "Name or service not known",
    "Network is unreachable",
    "Connection refused",
    "timed out",
)
"""What pip prints about an index that it cannot reach."""


def _suggest_remedy(requirements: str, pip_output: str) -> str:
    """Return what the user can do, for a message. ``requirements``: the file's path."""
    if "No module named pip" in pip_output:
        return "install pip in the Python of the hosts"
    if any(text in pip_output for text in _PACKAGE_INDEX_ERRORS):
        return (
            "pip reaches no package index: give the wheels as an input (pip download -d wheels -r {}; "
            "--input {}=wheels)".format(requirements, WHEELHOUSE_CHANNEL)
        )
    return "correct the file"


def make_overlay_venv(python: str, folder: str) -> str:
    """Make a virtual environment in ``folder`` that also sees the packages of the current one; return the
    path of its interpreter.

    Python's ``venv`` cannot do that: it bases an environment on the interpreter alone, not on another
    environment.
    """
    base_python = os.path.realpath(python)
    version = "python{}.{}".format(*sys.version_info[:2])
    site_packages = os.path.join(folder, "lib", version, "site-packages")
    overlay_python = os.path.join(folder, "bin", "python")
    os.makedirs(site_packages, exist_ok=True)
    os.makedirs(os.path.dirname(overlay_python), exist_ok=True)
    _write_lines(
        os.path.join(folder, "pyvenv.cfg"),
        ["home = " + os.path.dirname(base_python), "include-system-site-packages = true"],
    )
    # addsitedir and not the bare path, so that .pth files there, such as those of editable installs, are
    # read.
    _write_lines(
        os.path.join(site_packages, "_below.pth"),
        ["import site; site.addsitedir({!r})".format(path) for path in site.getsitepackages()],
    )
    for name in ("python", "python3"):
        link = os.path.join(folder, "bin", name)
        if not os.path.islink(link):
            os.symlink(base_python, link)
    return overlay_python


def _write_lines(path: str, lines: Sequence[str]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
