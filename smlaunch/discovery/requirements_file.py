"""Finds what pip certainly cannot read in a requirements file of the source. Nothing is installed."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Container, Iterator
from pathlib import Path, PurePosixPath

_BOMS = (codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
_CODING = re.compile(rb"^#.*coding[:=]", re.MULTILINE)
_COMMENT = re.compile(r"(^|\s+)#.*$")
_VARIABLE = re.compile(r"\$\{[A-Z0-9_]+\}")
_NAMED_FILE = re.compile(r"(?:-r|--requirement|-c|--constraint)(?:\s*=\s*|\s*)(\S.*)")
_OPTIONS_OF_REQUIREMENT = re.compile(r"\s--?[a-z].*$")
_REQUIREMENT = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\s*(?:\[[^\]]*\]\s*)?(?:@.*|\(?(?P<versions>[^;@]*?)\)?\s*(?:;.*)?)"
)
_VERSION = re.compile(r"\s*(?:===?|~=|!=|<=?|>=?)\s*[^\s=<>!~]\S*\s*")


def find_requirements_mistake(root: Path, file: str, sent_files: Container[str] | None) -> str | None:
    """Return what pip cannot read in a requirements file, or in one that it names, with the place; None if
    nothing certainly fails. ``file``: relative to the source folder ``root``, of which ``sent_files`` are
    sent; None if not known. Local paths, addresses and options of pip are not checked."""
    pending, known = [file], {file}
    while pending:
        name = pending.pop()
        try:
            content = (root / name).read_bytes()
        except OSError:
            continue  # reported elsewhere
        if content.startswith(_BOMS) or _CODING.search(b"\n".join(content.split(b"\n", 2)[:2])):
            continue  # pip knows how to decode it
        try:
            text = content.decode()
        except UnicodeDecodeError as error:
            return f"{name} is not UTF-8 (byte {error.start}), so that pip cannot read it"
        for number, line in _logical_lines(text):
            named_file = _NAMED_FILE.fullmatch(line)
            if named_file is not None:
                path = named_file[1].strip("\"'")
                if "://" in path or path.startswith(("/", "file:")):
                    continue
                target = PurePosixPath(os.path.normpath(PurePosixPath(name).parent / path)).as_posix()
                if target.startswith(".."):
                    return f"{name}:{number} names {path}, which is outside of the source"
                if sent_files is not None and target not in sent_files:
                    return f"{name}:{number} names {path}, and {target} is not sent with the source"
                if target not in known:
                    known.add(target)
                    pending.append(target)
            elif not _may_be_requirement(line):
                return f"{name}:{number}: {line!r} is no requirement that pip can read, such as name==1.0"
    return None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that say something, as pip reads them, each with the number of its first one: without
    comments, and joined where they end with a backslash."""
    joined, first_number = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first_number = first_number or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            joined += line[:-1]
            continue
        logical_line = _COMMENT.sub("", joined + line).strip()
        if logical_line:
            yield first_number, logical_line
        joined, first_number = "", 0


def _may_be_requirement(line: str) -> bool:
    """False for a line that is certainly neither a requirement nor anything else that pip takes."""
    if (
        line.startswith("-")
        or _VARIABLE.search(line)
        or "/" in line
        or line.endswith((".whl", ".zip", ".gz"))
    ):
        return True  # an option, a path or an address
    match = _REQUIREMENT.fullmatch(_OPTIONS_OF_REQUIREMENT.sub("", line))
    if match is None:
        return False
    versions = (match["versions"] or "").split(",")
    return all(_VERSION.fullmatch(version) for version in versions if version.strip())
