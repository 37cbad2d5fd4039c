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

_COPY_BYTES = 1 << 20


def unpack_source(archive: str, folder: str, sha256: Optional[str] = None) -> None:
    """Raises SetupError for an archive that is missing, damaged or not acceptable. ``sha256``: of the
    uncompressed archive; one with another hash is not unpacked.
    """
    try:
        if sha256 is not None:
            _check_sha256(archive, sha256)
        os.makedirs(folder, exist_ok=True)
        with gzip.open(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r:") as members:
                _unpack_members(members, folder)
            # tarfile stops after the last member; the gzip checksum follows it.
            while stream.read(_COPY_BYTES):
                pass
    except FileNotFoundError as error:
        raise SetupError("{}: the source archive is missing".format(error.filename or archive)) from None
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise SetupError("{}: the source cannot be unpacked: {}".format(archive, error)) from None


def _check_sha256(archive: str, sha256: str) -> None:
    """Raise SetupError if the archive was replaced: anybody who may write to the bucket
    could have done so.
    """
    digest = hashlib.sha256()
    with gzip.open(archive) as stream:
        while True:
            block = stream.read(_COPY_BYTES)
            if not block:
                break
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise SetupError(
            "{}: the source is not the one that was sent with the job: its sha256 is {}, not {}; see who may "
            "write into its bucket, delete the object and launch the run again".format(
                archive, digest.hexdigest(), sha256
            )
        )


def _unpack_members(members: tarfile.TarFile, folder: str) -> None:
    """Unpack files and folders, then links. Raises ValueError for a member that is not acceptable."""
    links: List[Tuple[str, str]] = []
    folders = {folder}
    for member in members:
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if member.name.startswith("/") or ".." in parts:
            raise ValueError("{!r} points outside the archive".format(member.name))
        if not parts:
            continue
        path = os.path.join(folder, *parts)
        parent = path if member.isdir() else os.path.dirname(path)
        if parent not in folders:
            os.makedirs(parent, exist_ok=True)
            folders.add(parent)
        if member.isdir():
            continue
        if member.issym():
            links.append((path, member.linkname))
        elif member.isfile() or member.islnk():
            try:
                content = members.extractfile(member)
            except KeyError:
                content = None
            if content is None:
                raise ValueError("{!r} is a link to nothing in the archive".format(member.name))
            _write_file(path, content, member.mode)
        else:
            raise ValueError("{!r} is neither a file nor a folder nor a link".format(member.name))
    _make_links(links, os.path.realpath(folder))


def _write_file(path: str, content: IO[bytes], mode: int) -> None:
    _remove_file(path)
    with open(path, "xb") as file:
        while True:
            block = content.read(_COPY_BYTES)
            if not block:
                break
            file.write(block)
    # The owner's permissions; never setuid, never writable for others.
    os.chmod(path, (mode & 0o755) | 0o600)


def _make_links(links: List[Tuple[str, str]], root: str) -> None:
    """Make the links; remove all of them and raise ValueError if one leads outside ``root``."""
    for path, target in links:
        _remove_file(path)
        os.symlink(target, path)
    for path, target in links:
        resolved = os.path.realpath(path)
        if resolved != root and not resolved.startswith(root + os.sep):
            for created_path, _ in links:
                _remove_file(created_path)
            raise ValueError("link {!r} leads outside the archive, to {!r}".format(path, target))


def _remove_file(path: str) -> None:
    """Remove a file or link at ``path``, so that nothing is written through it."""
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
