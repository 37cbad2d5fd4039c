"""Checkpoints that several hosts have written under one name, of which S3 has only one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from smlaunch.local.jobs.lost_files import have_equal_content
from smlaunch.local.jobs.s3_uploads import FileFingerprint, HostPath
from smlaunch.local.untrusted_files import printable_name

_MAX_SHOWN = 10

PathOnHost = Callable[[str, str], HostPath]
"""Where this process finds a file, by the host's name and the file's."""


def warn_of_shared_names(
    file_noun: str,
    written_files_by_host: Mapping[str, Mapping[str, FileFingerprint]],
    path_on_host: PathOnHost,
) -> str:
    """Return a warning that names the files which several hosts have written with different contents; empty
    if there are none. ``written_files_by_host``: what each ended host has, without what it has downloaded and
    not changed."""
    first_writer_by_name: dict[str, str] = {}
    shared_names: set[str] = set()
    for host_name, written_files in written_files_by_host.items():
        for file_name, fingerprint in written_files.items():
            first_writer = first_writer_by_name.setdefault(file_name, host_name)
            if first_writer == host_name or file_name in shared_names:
                continue
            first_path, path = path_on_host(first_writer, file_name), path_on_host(host_name, file_name)
            has_other_size = written_files_by_host[first_writer][file_name].size != fingerprint.size
            if has_other_size or not have_equal_content(
                first_path.trusted_root, path.trusted_root, path.relative_path
            ):
                shared_names.add(file_name)
    if not shared_names:
        return ""
    names_text = ", ".join(map(printable_name, sorted(shared_names)[:_MAX_SHOWN]))
    more_text = f" and {len(shared_names) - _MAX_SHOWN} more" if len(shared_names) > _MAX_SHOWN else ""
    return (
        f"warning: hosts have written different {file_noun}s under the same names, of which S3 has one "
        f"host's, and the next job finds that on every host: {names_text}{more_text}. Give such names a rank "
        "or a host."
    )
