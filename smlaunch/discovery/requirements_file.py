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
        for line_number, line in _logical_lines(text):
            named_file = _NAMED_FILE.fullmatch(line)
            if named_file is None:
                if not _may_be_requirement(line):
                    return (
                        f"{name}:{line_number}: {line!r} is no requirement that pip can read, such as "
                        "name==1.0"
                    )
                continue
            path = named_file[1].strip("\"'")
            if "://" in path or path.startswith(("/", "file:")):
                continue
            named_path = PurePosixPath(os.path.normpath(PurePosixPath(name).parent / path)).as_posix()
            if named_path.startswith(".."):
                return f"{name}:{line_number} names {path}, which is outside of the source"
            if sent_files is not None and named_path not in sent_files:
                return f"{name}:{line_number} names {path}, and {named_path} is not sent with the source"
            if named_path not in known:
                known.add(named_path)
                pending.append(named_path)
    return None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that say something, as pip reads them, each with the number of its first one: without
    comments, and joined where they end with a backslash."""
    continued_text, first_number = "", 0
    for number, line in enumerate(text.splitlines(), 1):
        first_number = first_number or number
        if line.endswith("\\") and not line.lstrip().startswith("#"):
            continued_text += line[:-1]
            continue
        logical_line = _COMMENT.sub("", continued_text + line).strip()
        if logical_line:
            yield first_number, logical_line
        continued_text, first_number = "", 0


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
