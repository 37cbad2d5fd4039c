"""Unpack the user's source; nothing in the archive can reach outside the folder it is unpacked to.

``tarfile.extract`` is not used: not every Python 3.8 has its safe filter, and its default has changed since.
Here files and folders are made first and links last, so no file is written through a link of the archive;
then each link must lead to a path inside.
"""

import gzip
import hashlib
import os
import tarfile
import zlib
from typing import IO, List, Optional, Tuple

from smlaunch.runtime.errors import SetupError

_BLOCK_BYTES = 1 << 20


def unpack_source(archive_path: str, destination: str, sha256: Optional[str] = None) -> None:
    """Unpack the source of the job, a .tar.gz file, into the folder ``destination``. ``sha256``: of the
    uncompressed archive; one with another hash is not unpacked. Raises SetupError for an archive that is
    missing, damaged or not acceptable.
    """
    try:
        if sha256 is not None:
            _check_sha256(archive_path, sha256)
        os.makedirs(destination, exist_ok=True)
        with gzip.open(archive_path) as tar_stream:
            with tarfile.open(fileobj=tar_stream, mode="r:") as tar:
                _unpack_members(tar, destination)
            # tarfile stops after the last member; the gzip checksum follows it.
            # gzip verifies it when the end has been read.
            while tar_stream.read(_BLOCK_BYTES):
                pass
    except FileNotFoundError as error:
        raise SetupError("{}: the source archive is missing".format(error.filename or archive_path)) from None
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise SetupError("{}: the source cannot be unpacked: {}".format(archive_path, error)) from None


def _check_sha256(archive_path: str, sha256: str) -> None:
    """Raise SetupError if the uncompressed archive has another hash: anybody who may write to the bucket
    could have replaced it.
    """
    digest = hashlib.sha256()
    with gzip.open(archive_path) as tar_stream:
        while True:
            block = tar_stream.read(_BLOCK_BYTES)
            if not block:
                break
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise SetupError(
            "{}: the source is not the one that was sent with the job: its sha256 is {}, not {}; see who may "
            "write into its bucket, delete the object and launch the run again".format(
                archive_path, digest.hexdigest(), sha256
            )
        )


def _unpack_members(tar: tarfile.TarFile, destination: str) -> None:
    """Unpack the files and folders of an archive, then its symbolic links, so that nothing is written through
    a link. Raises ValueError for a member that is not acceptable.
    """
    symlinks: List[Tuple[str, str]] = []  # path and target
    created_folders = {destination}
    for member in tar:
        path_components = [part for part in member.name.split("/") if part not in ("", ".")]
        if member.name.startswith("/") or ".." in path_components:
            raise ValueError("{!r} points outside the archive".format(member.name))
        if not path_components:  # the folder itself: "./"
            continue
        path = os.path.join(destination, *path_components)
        parent = path if member.isdir() else os.path.dirname(path)
        if parent not in created_folders:
            os.makedirs(parent, exist_ok=True)
            created_folders.add(parent)
        if member.isdir():
            continue
        if member.issym():
            symlinks.append((path, member.linkname))
        elif member.isfile() or member.islnk():  # a hard link becomes a file of its own
            _write_file(path, _open_member(tar, member), member.mode)
        else:
            raise ValueError("{!r} is neither a file nor a folder nor a link".format(member.name))
    _make_symlinks(symlinks, os.path.realpath(destination))


def _open_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    """Return the content of a file, or of the file that a hard link names. Raises ValueError without it."""
    try:
        content = tar.extractfile(member)
    except KeyError:
        content = None
    if content is None:
        raise ValueError("{!r} is a link to nothing in the archive".format(member.name))
    return content


def _write_file(path: str, content: IO[bytes], mode: int) -> None:
    _remove_file(path)
    with open(path, "xb") as file:
        while True:
            block = content.read(_BLOCK_BYTES)
            if not block:
                break
            file.write(block)
    # The owner's permissions; never setuid, never writable for others.
    os.chmod(path, (mode & 0o755) | 0o600)


def _make_symlinks(symlinks: List[Tuple[str, str]], root: str) -> None:
    """Make the symbolic links, pairs of path and target; remove all of them and raise ValueError if one leads
    outside the folder ``root``.
    """
    for path, target in symlinks:
        _remove_file(path)
        os.symlink(target, path)
    for path, target in symlinks:
        resolved = os.path.realpath(path)
        if resolved != root and not resolved.startswith(root + os.sep):
            for created_path, _ in symlinks:
                _remove_file(created_path)
            raise ValueError("link {!r} leads outside the archive, to {!r}".format(path, target))


def _remove_file(path: str) -> None:
    """Remove a file or link at ``path``, so that nothing is written through it."""
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
