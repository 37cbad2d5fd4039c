"""What a job leaves to its user: every file of model.tar.gz and output.tar.gz, with what it holds."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import IO, NamedTuple

from smlaunch.ports import CallError
from smlaunch.runs.target import Target
from smlaunch.runs.verify.contents import LARGEST, Leaf, Leaves, Mask, leaves, opaque

MODEL, OUTPUT = "model/", "output/data/"
"""How names of files begin here."""

_CHUNK = 1 << 20
_TENSORBOARD = "tfevents"
_MOST_LINES = 200_000


class File(NamedTuple):
    """``lines``: of a text that may be a log."""

    leaves: Leaves
    lines: tuple[str, ...] | None = None


Files = Mapping[str, File]


def fetch(target: Target, model: str | None, jobs: Collection[str], scratch: Path) -> dict[str, File]:
    """``model``: the address of the model's archive, beside which the other one lies. ``jobs``: names that
    are left out of texts, since they differ from run to run."""
    found: dict[str, File] = {}
    if model is None:
        return found
    bucket, _, key = model.removeprefix("s3://").partition("/")
    other = key.removesuffix("model.tar.gz") + "output.tar.gz"

    def mask(text: str) -> str:
        for job in jobs:
            text = text.replace(job, "(job)")
        return text

    for top, name in ((MODEL, key), (OUTPUT, other)):
        archive = scratch / "artefacts.tar.gz"
        try:
            with archive.open("wb") as file:
                file.writelines(target.storage.chunks(bucket, name))
        except CallError as error:
            if error.code != "NoSuchKey":
                raise
            continue  # nothing was written to the directory
        found.update({top + name: file for name, file in _members(archive, mask)})
        archive.unlink()
    return found


def _members(archive: Path, mask: Mask) -> Iterator[tuple[str, File]]:
    with tarfile.open(archive) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            name = name if name.isprintable() else ascii(name)
            if member.issym():
                digest = hashlib.sha256(member.linkname.encode("utf-8", "surrogateescape")).hexdigest()
                yield name, File({"": Leaf(digest, bulk=False)})
            file = tar.extractfile(member) if member.isfile() or member.islnk() else None
            if file is None:
                continue
            if member.size > LARGEST:
                yield name, File(opaque(_chunks(file)))
                continue
            content = file.read()
            held = leaves(content, mask)
            if _TENSORBOARD in member.name:  # every record of it has the time in it
                held = {place: leaf._replace(bulk=False) for place, leaf in held.items()}
            yield name, File(held, _lines(content, mask) if set(held) == {""} else None)


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK):
        yield chunk


def _lines(content: bytes, mask: Mask) -> tuple[str, ...] | None:
    try:
        lines = tuple(mask(content.decode("utf-8")).splitlines())
    except UnicodeDecodeError:
        return None
    return lines if 1 < len(lines) <= _MOST_LINES else None
