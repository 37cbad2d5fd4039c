"""Files that a script has written and that are not uploaded: warns of them and keeps them.

They lie where nothing is uploaded from, or another host's file of the same name is uploaded instead. On
SageMaker they are lost with the host. Here they go to

    <state directory>/kept/<job>/<host>/<path on the host>

as far as they have not more than ``MAX_SAVED_BYTES`` altogether. Nothing deletes them.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs.job_spec import OPT_ML_ROOT
from smlaunch.local.untrusted_files import (
    hard_link,
    make_private_folder,
    open_file,
    path_too_long,
    printable_name,
    walk_folder,
)
from smlaunch.text.format import format_size

MAX_SAVED_BYTES = 10**9
MAX_FILES = 1000
"""Files of a directory that are considered."""

MAX_COMPARED_BYTES = 10**10
"""Files of the same name are compared up to so many bytes altogether; further ones count as equal."""

_BLOCK_BYTES = 1 << 20
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


def saved_folder_of(job_name: str, object_store_root: Path) -> Path:
    """The directory for files of a job that are not uploaded. ``object_store_root``: below the state
    directory."""
    return object_store_root.parent / "kept" / job_name


def save_lost_files(hosts: Sequence[JobHost], saved_folder: Path) -> str:
    """If no host has written to /opt/ml/model, save the files that the job's script has written elsewhere (to
    the working directory or to /tmp) in ``saved_folder``, a directory for this job. Return a warning that
    names them; empty if there are none. The hosts have ended."""
    if any(map(_has_model, hosts)):
        return ""
    lost_files = [file for host in hosts for file in _find_lost_files(host)]
    if not lost_files:
        return ""
    names_text, saved_text = _save_and_list(lost_files, saved_folder)
    return (
        f"warning: the model is empty, but the script has written files that are not uploaded, and that "
        f"SageMaker deletes with the host: {names_text}. Save results in the folder of "
        f"the variable SM_MODEL_DIR (/opt/ml/model). {saved_text}"
    )


def save_replaced_files(hosts: Sequence[JobHost], result_folders: Iterable[str], saved_folder: Path) -> str:
    """Save those results of ended hosts in whose place an earlier host's file of the same name, with another
    content, is uploaded. Return a warning that names them; empty if there are none. To be called before the
    upload, which may move files. ``result_folders``: relative to /opt/ml. ``saved_folder``: a directory for
    this job."""
    replaced_files = list(_find_replaced_files(hosts, result_folders))
    if not replaced_files:
        return ""
    names_text, saved_text = _save_and_list(replaced_files, saved_folder)
    return (
        "warning: hosts have written different results under the same names, of which only one host's is "
        f"uploaded. Not uploaded: {names_text}. Give such names a rank or a host. {saved_text}"
    )


def _save_and_list(lost_files: Sequence[LostFile], saved_folder: Path) -> tuple[str, str]:
    """Save files; return a text that names them, and a sentence about where they are."""
    saved_count = _save_files(lost_files, saved_folder)
    file_texts = [
        f"{printable_name(file.path_on_host)} ({format_size(file.size)}, {file.host_name})"
        for file in lost_files[:_MAX_SHOWN]
    ]
    more_text = f" and {len(lost_files) - _MAX_SHOWN} more" if len(lost_files) > _MAX_SHOWN else ""
    saved_text = "All are" if saved_count == len(lost_files) else f"{saved_count} of {len(lost_files)} are"
    return ", ".join(file_texts) + more_text, f"{saved_text} kept in {saved_folder}"


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


def _find_replaced_files(hosts: Sequence[JobHost], result_folders: Iterable[str]) -> Iterator[LostFile]:
    """Yield each regular file among the results that an earlier host has too, with another content."""
    compared_bytes = 0
    for folder in result_folders:
        first_entry_by_path: dict[str, tuple[JobHost, os.stat_result]] = {}
        for host in hosts:
            for path, file_stat, error in walk_folder(host.opt_ml_folder, folder, fix_permissions=True):
                if file_stat is None or error is not None or stat.S_ISDIR(file_stat.st_mode):
                    continue
                first_host, first_stat = first_entry_by_path.setdefault(path, (host, file_stat))
                if first_host is host or not stat.S_ISREG(file_stat.st_mode):
                    continue
                if stat.S_ISREG(first_stat.st_mode) and file_stat.st_size == first_stat.st_size:
                    compared_bytes += file_stat.st_size
                    if compared_bytes > MAX_COMPARED_BYTES or have_equal_content(
                        first_host.opt_ml_folder, host.opt_ml_folder, f"{folder}/{path}"
                    ):
                        continue
                yield LostFile(
                    host.name, host.opt_ml_folder / folder, path, f"{OPT_ML_ROOT}/{folder}", file_stat.st_size
                )


def have_equal_content(root: Path, other_root: Path, path: str) -> bool:
    """Whether two directories have the same file at this path. True for one that cannot be read, which the
    upload reports."""
    try:
        with (
            os.fdopen(open_file(root, path, fix_permissions=True), "rb") as file,
            os.fdopen(open_file(other_root, path, fix_permissions=True), "rb") as other_file,
        ):
            while True:
                block = file.read(_BLOCK_BYTES)
                if block != other_file.read(_BLOCK_BYTES):
                    return False
                if not block:
                    return True
    except OSError:
        return True


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
        make_private_folder(target.parent)
        hard_link(file.root, file.relative_path, str(target))
        if stat.S_ISREG(target.lstat().st_mode):
            return True
        target.unlink()
    except OSError:
        pass
    return False
