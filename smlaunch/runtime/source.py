"""Unpacking the user's source, where nothing in the archive can reach outside the folder it is unpacked to.

Not by ``tarfile.extract``: its safe filter is not in every Python 3.8, and its default has changed since.
Here files and folders are made first and links last, so that no file is ever written through a link of the
archive; then each link must lead to a place inside.
"""

import gzip
import hashlib
import os
import tarfile
import zlib
from typing import IO, List, Optional, Tuple

from smlaunch.runtime.problems import Unusable

_COPY = 1 << 20


def unpack(archive: str, folder: str, sha256: Optional[str] = None) -> None:
    """Raises Unusable for an archive that is missing, damaged or not acceptable. ``sha256``: of what it
    holds, before compression; another one is not touched."""
    try:
        if sha256 is not None:
            _compare(archive, sha256)
        os.makedirs(folder, exist_ok=True)
        with gzip.open(archive) as stream:
            with tarfile.open(fileobj=stream, mode="r:") as members:
                _unpack(members, folder)
            # tarfile stops where the members end; the checksum of everything before comes after that.
            while stream.read(_COPY):
                pass
    except FileNotFoundError as error:
        raise Unusable("{}: the source archive is missing".format(error.filename or archive)) from None
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
        raise Unusable("{}: the source cannot be unpacked: {}".format(archive, error)) from None


def _compare(archive: str, sha256: str) -> None:
    """Whoever may write into the bucket may have replaced it since it was sent, or put it there before."""
    digest = hashlib.sha256()
    with gzip.open(archive) as stream:
        while True:
            block = stream.read(_COPY)
            if not block:
                break
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise Unusable(
            "{}: the source is not the one that was sent with the job: its sha256 is {}, not {}; see who may "
            "write into its bucket, delete the object and launch the run anew".format(
                archive, digest.hexdigest(), sha256
            )
        )


def _unpack(members: tarfile.TarFile, folder: str) -> None:
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
            _write(path, content, member.mode)
        else:
            raise ValueError("{!r} is neither a file nor a folder nor a link".format(member.name))
    _link(links, os.path.realpath(folder))


def _write(path: str, content: IO[bytes], mode: int) -> None:
    _remove(path)
    with open(path, "xb") as file:
        while True:
            block = content.read(_COPY)
            if not block:
                break
            file.write(block)
    # What the owner may do; never setuid, never writable for others.
    os.chmod(path, (mode & 0o755) | 0o600)


def _link(links: List[Tuple[str, str]], root: str) -> None:
    for path, target in links:
        _remove(path)
        os.symlink(target, path)
    for path, target in links:
        end = os.path.realpath(path)
        if end != root and not end.startswith(root + os.sep):
            for made, _ in links:
                _remove(made)
            raise ValueError("link {!r} leads outside the archive, to {!r}".format(path, target))


def _remove(path: str) -> None:
    """Whatever is in the way, so that nothing is written through it."""
    if os.path.islink(path) or os.path.isfile(path):
        os.unlink(path)
