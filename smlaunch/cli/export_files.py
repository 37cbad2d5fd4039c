"""An export's files: whole or not at all, and known to be writable before anything is uploaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from smlaunch.errors import JobError, Problem

_DRAFT = ".smlaunch-draft"
_IGNORED = "# Written by smlaunch export: no part of the source.\n"


@contextmanager
def written(out: str | None, files: Mapping[str, str], sources: Iterable[Path]) -> Iterator[list[str]]:
    """Gives the files' paths. They have their names when the context is left, and are gone if that is by an
    exception. ``sources``: roots of what is staged. Raises JobError when they cannot be written; without
    ``out`` nothing is."""
    if out is None:
        yield []
        return
    folder = Path(out)
    drafts = {folder / f"{name}{_DRAFT}": folder / name for name in sorted(files)}
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for draft, path in drafts.items():
                draft.write_text(files[path.name], encoding="utf-8")
            if any(folder.resolve().is_relative_to(root.resolve()) for root in sources):
                _keep_out_of_the_source(folder, files)
        except OSError as error:
            raise _unwritable(folder, error) from None
        yield [str(path) for path in drafts.values()]
        try:
            for draft, path in drafts.items():
                draft.replace(path)
        except OSError as error:
            raise _unwritable(folder, error) from None
    finally:
        for draft in drafts:
            with suppress(OSError):  # the folder may be one in which nothing can be
                draft.unlink()


def _unwritable(folder: Path, error: OSError) -> JobError:
    return JobError([Problem("--out", f"{folder} cannot be written: {error.strerror}")])


def _keep_out_of_the_source(folder: Path, files: Iterable[str]) -> None:
    """Or the next export's source would have this one in it, and be another. What a person wrote stays."""
    from smlaunch.ignoring import OWN_FILE

    ignore = folder / OWN_FILE
    before = ignore.read_text(encoding="utf-8") if ignore.exists() else _IGNORED
    if before.startswith(_IGNORED):
        lines = {*before.splitlines()[1:], *(f"/{name}" for name in (OWN_FILE, *files))}
        ignore.write_text(_IGNORED + "".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
