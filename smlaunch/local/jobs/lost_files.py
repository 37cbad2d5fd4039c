"""Files that a script has written where nothing is uploaded from: warns of them and keeps them.

On SageMaker they are lost with the host. Here they go to

    <state directory>/kept/<job>/<host>/<path on the host>

as far as they have not more than ``MAX_KEPT_BYTES`` altogether. Nothing deletes them.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs.job_spec import OPT_ML_ROOT
from smlaunch.local.untrusted_files import hard_link, path_too_long, printable_name, walk_folder
from smlaunch.text.format import format_size

MAX_KEPT_BYTES = 10**9
MAX_FILES = 1000
"""Files of a host that are looked at further."""

_MAX_SHOWN = 10
_STARTED_FILE = "smlaunch/importable/smlaunch/__init__.py"
"""Written by the runtime between unpacking the source and starting the ranks; relative to /opt/ml."""

_CONFIGURATION_FILE = "input/config/resourceconfig.json"
"""Written by this endpoint before the host starts; relative to /opt/ml."""

_TEMPORARY_NAME = re.compile(
    r"tmp[a-z0-9_]{8}(\.|$)|(torchelastic_|torchinductor_|pymp-|ompi\.|openmpi-|ray$|hsperfdata_|smlaunch-"
    r"|spark-|blockmgr-|matplotlib-|wandb|__pycache__$|\.)"
)
"""Beginning of a file's or folder's name that libraries give to what they need while they run."""


class LostFile(NamedTuple):
    """A file that is not uploaded."""

    root: Path
    """A directory of this machine that is ``root_on_host`` on SageMaker's hosts."""
    relative_path: str
    root_on_host: str
    size: int

    @property
    def path_on_host(self) -> str:
        return f"{self.root_on_host}/{self.relative_path}"


def keep_lost_files(hosts: Sequence[JobHost], kept_folder: Path) -> str:
    """Where no host has written to /opt/ml/model, keep the files of ended hosts that their scripts have
    written to the working directory or to /tmp, and return a warning that names them; empty if there are
    none. ``kept_folder``: for this job."""
    if any(map(_has_model, hosts)):
        return ""
    files_by_host = {host.name: list(find_lost_files(host)) for host in hosts}
    lost_files = [(host_name, file) for host_name, files in files_by_host.items() for file in files]
    if not lost_files:
        return ""
    kept_count, kept_bytes = 0, 0
    for host_name, file in lost_files:
        target = kept_folder / host_name / file.path_on_host.lstrip("/")
        if kept_bytes + file.size <= MAX_KEPT_BYTES and _keep(file, target):
            kept_count += 1
            kept_bytes += file.size
    texts = [
        f"{printable_name(file.path_on_host)} ({format_size(file.size)}, {host_name})"
        for host_name, file in lost_files[:_MAX_SHOWN]
    ]
    more_text = f" and {len(lost_files) - _MAX_SHOWN} more" if len(lost_files) > _MAX_SHOWN else ""
    kept_text = "All are" if kept_count == len(lost_files) else f"{kept_count} of {len(lost_files)} are"
    return (
        f"warning: the model is empty, but the script has written files that are not uploaded, and that "
        f"SageMaker deletes with the host: {', '.join(texts)}{more_text}. Save results in the folder of the "
        f"variable SM_MODEL_DIR (/opt/ml/model). {kept_text} kept in {kept_folder}"
    )


def _has_model(host: JobHost) -> bool:
    return any(
        entry.status is not None and not stat.S_ISDIR(entry.status.st_mode)
        for entry in walk_folder(host.opt_ml_folder, "model", fix_permissions=True)
    )


def find_lost_files(host: JobHost) -> Iterator[LostFile]:
    """Yield the new files of an ended host that are not uploaded, at most ``MAX_FILES``."""
    try:
        configured_at = (host.opt_ml_folder / _CONFIGURATION_FILE).lstat().st_mtime
    except OSError:
        return
    # Without the runtime nobody knows which files in the working directory are the unpacked source.
    with suppress(OSError):
        started_at = (host.opt_ml_folder / _STARTED_FILE).lstat().st_mtime
        yield from _new_files(host.opt_ml_folder, "code", f"{OPT_ML_ROOT}/code", started_at)
    tmp_folder = host.opt_ml_folder.parent / "tmp"
    if tmp_folder.is_dir() and not tmp_folder.is_symlink():
        yield from _new_files(tmp_folder, "", "/tmp", configured_at)  # noqa: S108


def _new_files(root: Path, folder: str, folder_on_host: str, after: float) -> Iterator[LostFile]:
    """Yield the regular files below ``root/folder`` that were written after a time, unless their names say
    that they are temporary. A hard link to another file is left out: it may be one of this machine."""
    count = 0
    for entry in walk_folder(root, folder, _path_problem, fix_permissions=True):
        status = entry.status
        if status is None or entry.error is not None or not stat.S_ISREG(status.st_mode):
            continue
        if status.st_size and status.st_nlink == 1 and status.st_mtime > after:
            yield LostFile(root / folder, entry.relative_path, folder_on_host, status.st_size)
            count += 1
            if count == MAX_FILES:
                return


def _path_problem(relative_path: str) -> OSError | None:
    """Return an error for what the walk leaves out and does not enter."""
    name = relative_path.rpartition("/")[2]
    return OSError(0, "temporary") if _TEMPORARY_NAME.match(name) else path_too_long(relative_path)


def _keep(file: LostFile, target: Path) -> bool:
    """Link a file to its place among those that are kept. Return whether that worked: the disk may be
    another."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        hard_link(file.root, file.relative_path, str(target))
        status = target.lstat()
        if stat.S_ISREG(status.st_mode):
            return True
        target.unlink()
    except OSError:
        pass
    return False
