"""Removing what a host leaves, whatever its programs have made of it: modes, links, any depth, any name."""
# Descriptors and single names: there are no paths that could be handed to pathlib.

from __future__ import annotations

import errno
import logging
import os
import secrets
import shlex
import stat
import time
from contextlib import suppress
from pathlib import Path

from smlaunch.local.host_files import OWN_FOLDER_FLAGS, error_text, open_folder_at, printable_name

_REMOVALS = 3
_MEETINGS = 50
_STEP_ASIDE = 0.002
"""Seconds, more with each meeting: 2.5 in all."""

log = logging.getLogger(__name__)


def remove_tree(folder: Path) -> None:
    """Two processes may be at it, and bring directories up while the other one is done; one that was just
    killed may have made its last file meanwhile: so it is tried again. What cannot be removed (an immutable
    file, a mount) keeps nothing else: then raises OSError."""
    for number in range(1, _MEETINGS + 1):
        try:
            at = os.open(folder.parent, OWN_FOLDER_FLAGS)
        except FileNotFoundError:
            return
        try:
            problem = _empty(at, folder.name)
        finally:
            os.close(at)
        if problem is None:
            return
        if number >= (_MEETINGS if problem.errno == errno.ENOTEMPTY else _REMOVALS):
            raise problem
        if problem.errno == errno.ENOTEMPTY:
            time.sleep(_STEP_ASIDE * number)  # the other one may not run at all meanwhile


def remove_or_warn(folder: Path) -> None:
    """As remove_tree, for a folder that the next endpoint removes too: what cannot be removed is named in one
    line, and no work fails for it."""
    try:
        remove_tree(folder)
    except OSError as error:
        remaining = _first_remaining(folder)
        log.warning(
            "%s cannot be removed (%s); where an attribute forbids it, `chattr -i -a %s` takes that away, "
            "and the next endpoint removes it",
            *(printable_name(remaining), error_text(error), printable_name(shlex.quote(remaining))),
        )


def _first_remaining(folder: Path) -> str:
    """A file where there is one. What remove_tree leaves is not deep."""
    for parent, _, files in os.walk(folder):
        if files:
            return os.path.join(parent, files[0])  # noqa: PTH118
    return str(folder)


def _empty(above: int, name: str) -> OSError | None:
    """Removes the directory ``name`` with all that is in it. The directories in it are brought up to its top
    first, so that no path, and no stack, becomes as deep as the tree. Returns what stood in the way."""
    try:
        top = open_folder_at(above, name, fix_permissions=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    try:
        waiting: list[str] = []
        problem = _clear(top, top, waiting)
        while waiting:
            problem = _dissolve(top, waiting.pop(), waiting) or problem
    finally:
        os.close(top)
    failed_name = _rmdir(above, name)
    return failed_name and (problem or failed_name)


def _dissolve(top: int, name: str, waiting: list[str]) -> OSError | None:
    try:
        at = open_folder_at(top, name, fix_permissions=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    try:
        problem = _clear(at, top, waiting)
    finally:
        os.close(at)
    failed_name = _rmdir(top, name)
    return failed_name and (problem or failed_name)


def _clear(at: int, top: int, waiting: list[str]) -> OSError | None:
    """What is in one directory: files go, directories wait at the top."""
    problem: OSError | None = None
    for name in _names(at):
        try:
            if _unlink(at, name):
                continue
            if at != top:
                # Its entry `..` changes: it has to be writable.
                os.close(open_folder_at(at, name, fix_permissions=True))
                brought = f"removed-{secrets.token_hex(8)}"
                os.rename(name, brought, src_dir_fd=at, dst_dir_fd=top)
                name = brought
            waiting.append(name)
        except FileNotFoundError:
            continue
        except OSError as error:
            problem = error
    return problem


def _rmdir(at: int, name: str) -> OSError | None:
    try:
        os.rmdir(name, dir_fd=at)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _names(at: int) -> list[str]:
    with suppress(OSError):
        return os.listdir(at)
    return []


def _unlink(at: int, name: str) -> bool:
    """False for a directory. Raises OSError."""
    try:
        if stat.S_ISDIR(os.stat(name, dir_fd=at, follow_symlinks=False).st_mode):
            return False
        os.unlink(name, dir_fd=at)
    except FileNotFoundError:
        pass
    return True
