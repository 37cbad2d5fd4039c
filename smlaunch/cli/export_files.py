"""Write the files of an export: all or none, and only after a test that they can be written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from smlaunch.errors import write_error

_DRAFT_SUFFIX = ".smlaunch-draft"
_IGNORED = "# Written by smlaunch export: no part of the source.\n"


@contextmanager
def write_export_files(
    out_dir: str | None, text_by_file_name: Mapping[str, str], source_folders: Sequence[Path]
) -> Iterator[list[str]]:
    """Write drafts of the files, yield their final paths, and rename the drafts when the block ends; an
    exception in the block removes them. ``out_dir``: None writes nothing.

    ``source_folders``: folders that jobs upload; files written inside of one are excluded from its next
    upload. Raises JobError when the files cannot be written, and MachineError for a full disk.
    """
    if out_dir is None:
        yield []
        return
    folder = Path(out_dir)
    final_path_by_draft = {
        folder / f"{name}{_DRAFT_SUFFIX}": folder / name for name in sorted(text_by_file_name)
    }
    try:
        with _os_errors_as_job_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for draft_path, final_path in final_path_by_draft.items():
                draft_path.write_text(text_by_file_name[final_path.name], encoding="utf-8")
            if any(folder.resolve().is_relative_to(source.resolve()) for source in source_folders):
                _exclude_from_source(folder, text_by_file_name)
        yield [str(final_path) for final_path in final_path_by_draft.values()]
        with _os_errors_as_job_errors(folder):
            for draft_path, final_path in final_path_by_draft.items():
                draft_path.replace(final_path)
    finally:
        # Drafts that were renamed are gone already.
        for draft_path in final_path_by_draft:
            with suppress(OSError):  # the folder may not be writable
                draft_path.unlink()


@contextmanager
def _os_errors_as_job_errors(folder: Path) -> Iterator[None]:
    """Raise an OSError in the block as an error about the output folder."""
    try:
        yield
    except OSError as error:
        raise write_error("--out", folder, error) from None


def _exclude_from_source(folder: Path, files: Iterable[str]) -> None:
    """Add the files to the folder's .smlaunchignore: otherwise they change the source of the next export.

    An ignore file that a user wrote is not changed.
    """
    from smlaunch.discovery.gitignore import SMLAUNCHIGNORE

    ignore = folder / SMLAUNCHIGNORE
    existing = ignore.read_text(encoding="utf-8") if ignore.exists() else _IGNORED
    if existing.startswith(_IGNORED):
        lines = {*existing.splitlines()[1:], *(f"/{name}" for name in (SMLAUNCHIGNORE, *files))}
        ignore.write_text(_IGNORED + "".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
