"""Write the files of an export: all or none, and only after a test that they can be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from smlaunch.errors import JobError, Problem

_DRAFT = ".smlaunch-draft"
_IGNORED = "# Written by smlaunch export: no part of the source.\n"


@contextmanager
def write_export_files(
    out: str | None, files: Mapping[str, str], sources: Iterable[Path]
) -> Iterator[list[str]]:
    """Write drafts of the files, yield the final paths, and rename the drafts when the block ends.

    An exception in the block removes the drafts. ``sources``: root folders of the uploaded sources. Without
    ``out`` nothing is written. Raises JobError when the files cannot be written.
    """
    if out is None:
        yield []
        return
    folder = Path(out)
    final_path_by_draft = {folder / f"{name}{_DRAFT}": folder / name for name in sorted(files)}
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for draft, path in final_path_by_draft.items():
                draft.write_text(files[path.name], encoding="utf-8")
            if any(folder.resolve().is_relative_to(root.resolve()) for root in sources):
                _ignore_in_source(folder, files)
        except OSError as error:
            raise _write_error(folder, error) from None
        yield [str(path) for path in final_path_by_draft.values()]
        try:
            for draft, path in final_path_by_draft.items():
                draft.replace(path)
        except OSError as error:
            raise _write_error(folder, error) from None
    finally:
        for draft in final_path_by_draft:
            with suppress(OSError):  # the folder may not be writable
                draft.unlink()


def _write_error(folder: Path, error: OSError) -> JobError:
    return JobError([Problem("--out", f"{folder} cannot be written: {error.strerror}")])


def _ignore_in_source(folder: Path, files: Iterable[str]) -> None:
    """Add the files to the folder's .smlaunchignore: otherwise they change the source of the next export.

    An ignore file that a user wrote is not changed.
    """
    from smlaunch.discovery.gitignore import SMLAUNCHIGNORE

    ignore = folder / SMLAUNCHIGNORE
    existing = ignore.read_text(encoding="utf-8") if ignore.exists() else _IGNORED
    if existing.startswith(_IGNORED):
        lines = {*existing.splitlines()[1:], *(f"/{name}" for name in (SMLAUNCHIGNORE, *files))}
        ignore.write_text(_IGNORED + "".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
