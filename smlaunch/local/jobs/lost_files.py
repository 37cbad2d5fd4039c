"""Files that a script has written where nothing is uploaded from: warns of them and keeps them.

On SageMaker they are lost with the host. Here they go to

    <state directory>/kept/<job>/<host>/<path on the host>

as far as they have not more than ``MAX_SAVED_BYTES`` altogether. Nothing deletes them.
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

MAX_SAVED_BYTES = 10**9
MAX_FILES = 1000
"""Files of a directory that are considered."""

_MAX_SHOWN = 10
_FILE_OF_RUNTIME = "smlaunch/importable/smlaunch/__init__.py"
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

    host_name: str
    root: Path
    """A directory of this machine that is ``root_on_host`` on SageMaker's hosts."""
    relative_path: str
    root_on_host: str
    size: int

    @property
    def path_on_host(self) -> str:
        return f"{self.root_on_host}/{self.relative_path}"


def save_lost_files(hosts: Sequence[JobHost], saved_folder: Path) -> str:
    """If no host has written to /opt/ml/model, save the files that the job's script has written elsewhere (to
    the working directory or to /tmp) in ``saved_folder``, a directory for this job. Return a warning that
    names them; empty if there are none. The hosts have ended."""
    if any(map(_has_model, hosts)):
        return ""
    lost_files = [file for host in hosts for file in _find_lost_files(host)]
    if not lost_files:
        return ""
    saved_count = _save_files(lost_files, saved_folder)
    file_texts = [
        f"{printable_name(file.path_on_host)} ({format_size(file.size)}, {file.host_name})"
        for file in lost_files[:_MAX_SHOWN]
    ]
    more_text = f" and {len(lost_files) - _MAX_SHOWN} more" if len(lost_files) > _MAX_SHOWN else ""
    saved_text = "All are" if saved_count == len(lost_files) else f"{saved_count} of {len(lost_files)} are"
    return (
        f"warning: the model is empty, but the script has written files that are not uploaded, and that "
        f"SageMaker deletes with the host: {', '.join(file_texts)}{more_text}. Save results in the folder of "
        f"the variable SM_MODEL_DIR (/opt/ml/model). {saved_text} kept in {saved_folder}"
    )


def _save_files(lost_files: Sequence[LostFile], saved_folder: Path) -> int:
    """Save files as ``saved_folder/HOST/PATH``, up to ``MAX_SAVED_BYTES`` altogether. Return how many could
    be saved."""
    saved_count, saved_bytes = 0, 0
    for file in lost_files:
        target = saved_folder / file.host_name / file.path_on_host.lstrip("/")
        if saved_bytes + file.size <= MAX_SAVED_BYTES and _try_hard_link(file, target):
            saved_count += 1
            saved_bytes += file.size
    return saved_count


def _has_model(host: JobHost) -> bool:
    return any(
        entry.file_stat is not None and not stat.S_ISDIR(entry.file_stat.st_mode)
        for entry in walk_folder(host.opt_ml_folder, "model", fix_permissions=True)
    )


def _find_lost_files(host: JobHost) -> Iterator[LostFile]:
    """Yield the files that the programs of an ended host have written and that are not uploaded, at most
    ``MAX_FILES`` of each directory."""
    try:
        host_start_time = (host.opt_ml_folder / _CONFIGURATION_FILE).lstat().st_mtime
    except OSError:
        return
    # Without the runtime nobody knows which files in the working directory are the unpacked source.
    with suppress(OSError):
        rank_start_time = (host.opt_ml_folder / _FILE_OF_RUNTIME).lstat().st_mtime
        yield from _files_written_after(
            rank_start_time, host, host.opt_ml_folder, "code", path_on_host=f"{OPT_ML_ROOT}/code"
        )
    tmp_folder = host.opt_ml_folder.parent / "tmp"
    if tmp_folder.is_dir() and not tmp_folder.is_symlink():
        yield from _files_written_after(host_start_time, host, tmp_folder, "", path_on_host="/tmp")  # noqa: S108


def _files_written_after(
    start_time: float, host: JobHost, root: Path, folder: str, path_on_host: str
) -> Iterator[LostFile]:
    """Yield the regular files below ``root/folder``, which is ``path_on_host`` on SageMaker, that were
    written after a time (seconds since the epoch), unless their names say that they are temporary. A file
    with another hard link is left out: it may be one of this machine."""
    file_count = 0
    for entry in walk_folder(root, folder, _reject_temporary_name, fix_permissions=True):
        file_stat = entry.file_stat
        if file_stat is None or entry.error is not None or not stat.S_ISREG(file_stat.st_mode):
            continue
        if file_stat.st_size and file_stat.st_nlink == 1 and file_stat.st_mtime > start_time:
            yield LostFile(host.name, root / folder, entry.relative_path, path_on_host, file_stat.st_size)
            file_count += 1
            if file_count == MAX_FILES:
                return


def _reject_temporary_name(relative_path: str) -> OSError | None:
    """Return an error for a path that the walk leaves out and does not enter."""
    name = relative_path.rpartition("/")[2]
    return OSError(0, "temporary") if _TEMPORARY_NAME.match(name) else path_too_long(relative_path)


def _try_hard_link(file: LostFile, target: Path) -> bool:
    """Make ``target`` a hard link to a file. Return whether that worked: it may be on another disk."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        hard_link(file.root, file.relative_path, str(target))
        if stat.S_ISREG(target.lstat().st_mode):
            return True
        target.unlink()
    except OSError:
        pass
    return False
