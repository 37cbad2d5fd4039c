"""What of a source folder is sent, found and read without ever leaving the folder.

Folders are opened part by part, and no part may be a link: whoever puts a link in a folder's or file's place
between the listing and the reading gains nothing. Nothing is opened that could block.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from smlaunch.errors import JobError, Problem
from smlaunch.ignoring import OWN_FILE, Rules, Unusable, ignored, read_spec, rules_in, wished
from smlaunch.private_places import holds_state, identity, state_folder
from smlaunch.secret_contents import secret_in
from smlaunch.secret_files import Sign, named_secret

IGNORE_FILES = (OWN_FILE, ".gitignore")
"""In order of authority within one folder."""

ALWAYS_OUT = frozenset(
    (
        *(".git", ".hg", ".svn", ".smlaunch", ".DS_Store", "__pycache__", ".ipynb_checkpoints"),
        *(".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis", ".tox", ".nox", "node_modules"),
    )
)

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_TRIES = 3
"""Of reading a file that is being written."""

_ANOTHER_BY_NOW = (errno.ELOOP, errno.ENOTDIR, errno.ENOENT)
"""What opening says of a file or folder that was listed as one: a link, or nothing, has come in its place."""


class Entry(NamedTuple):
    """A file, or a link within the source to ``target``. ``sign``: what a name says that the content has the
    last word on. ``unquestioned``: sent whatever it holds."""

    relative: str
    status: os.stat_result
    target: str | None = None
    sign: Sign | None = None
    unquestioned: bool = False


@dataclass
class LeftOut:
    """What is not sent, by its relative path, though no ignore file names it. ``secrets``: with what they
    seem to hold; ``links``: with where they lead, out of the source; ``others``: with what they are."""

    secrets: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    others: dict[str, str] = field(default_factory=dict)


class SourceTree:
    """``include_secrets``: files are sent whatever they hold. Use as a context manager."""

    def __init__(self, root: Path, include_secrets: bool = False) -> None:
        self.root = root
        self.left_out = LeftOut()
        self._real = os.path.realpath(root)
        self._include_secrets = include_secrets
        self._state = state_folder()
        self._opened: list[tuple[str, int]] = []
        self._named_by_links: dict[str, Sign] = {}

    def __enter__(self) -> SourceTree:
        with _told(str(self.root)):
            self._opened = [("", os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))]
        return self

    def __exit__(self, *_: object) -> None:
        while self._opened:
            os.close(self._opened.pop()[1])

    # ---- finding -----------------------------------------------------------------------------------------

    def entries(self) -> Iterator[Entry]:
        """Files and links that stay inside; folders are none (an empty one is not sent)."""
        inherited = _rules_above(self._real)
        pending: list[tuple[str, list[Rules], bool]] = [("", inherited, self._include_secrets)]
        while pending:
            prefix, rules, unquestioned = pending.pop()
            with _told(self._path(prefix)):
                folder = self._folder(prefix)
                with os.scandir(folder) as listing:
                    found = sorted(listing, key=lambda item: item.name)
            names = {item.name for item in found}
            if prefix and holds_state(names):
                continue
            own = [name for name in IGNORE_FILES if name in names]
            if own:
                with _usable():
                    rules = [*rules_in(Path(self.root, prefix), prefix, own), *rules]
            for item in found:
                relative = prefix + item.name
                is_folder = item.is_dir(follow_symlinks=False)
                if item.name in ALWAYS_OUT or item.name.endswith(".pyc"):
                    continue
                if rules and ignored(rules, relative, is_folder):
                    continue
                try:
                    status = item.stat(follow_symlinks=False)
                except OSError as error:
                    raise _unreadable(self._path(relative), error) from error
                if is_folder:
                    if self._is_left_alone(relative, status):
                        continue
                    clear = unquestioned or self._is_clear(relative, rules, is_folder=True)
                    if clear is not None:
                        pending.append((relative + "/", rules, clear))
                    continue
                yield from self._entry(relative, status, rules, unquestioned)

    def _is_left_alone(self, relative: str, status: os.stat_result) -> bool:
        """A virtual environment, or smlaunch's own state, where each archive would hold the ones before."""
        return identity(status) == self._state or os.path.lexists(f"{self._path(relative)}/pyvenv.cfg")

    def _is_clear(self, relative: str, rules: list[Rules], is_folder: bool = False) -> bool | None:
        """True where a secret's name is wished for, None where it stays here, False for any other name."""
        sign = named_secret(relative, is_folder)
        if sign is None:
            return False
        if wished(rules, relative):
            return True
        self.left_out.secrets[relative + "/" * is_folder] = sign.what
        return None

    def _entry(
        self, relative: str, status: os.stat_result, rules: list[Rules], unquestioned: bool
    ) -> Iterator[Entry]:
        is_link = stat.S_ISLNK(status.st_mode)
        if not is_link and not stat.S_ISREG(status.st_mode):
            self.left_out.others[relative] = "neither file nor folder"
            return
        target = self._target(relative) if is_link else None
        if is_link and target is None:
            return
        unquestioned = unquestioned or wished(rules, relative)
        sign = None
        if not unquestioned:
            sign = named_secret(relative) or (named_secret(relative, is_folder=True) if is_link else None)
        if sign is not None and target is not None:
            self._named_by_links[os.path.normpath(Path(relative).parent / target)] = sign
        if sign is not None and sign.holds is None:
            self.left_out.secrets[relative] = sign.what
            return
        yield Entry(relative, status, target, sign, unquestioned)

    def _target(self, relative: str) -> str | None:
        """Where a link within the source leads, seen from its folder: by the shortest way, which holds
        wherever the source is unpacked."""
        path = Path(self._real, relative)
        with _told(str(path)):
            raw = path.readlink()
        end = Path(os.path.realpath(path))
        if not end.is_relative_to(self._real):
            self.left_out.links[relative] = str(raw)
            return None
        try:
            path.stat()
        except FileNotFoundError:
            pass  # what it leads to may come to be on the host
        except OSError as error:
            self.left_out.others[relative] = f"a link to {raw}: {error.strerror}"
            return None
        return os.path.relpath(end, path.parent)

    def named_by_links(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """The entries, once all are found, less those that a link gives a secret's name."""
        named = self._named_by_links
        for entry in entries:
            sign = named.get(entry.relative) if named else None
            for above in Path(entry.relative).parents if named else ():
                sign = sign or named.get(str(above))
            if sign is None or entry.unquestioned or entry.target is not None:
                yield entry
            elif sign.holds is not None:
                yield entry._replace(sign=sign)
            else:
                self.left_out.secrets[entry.relative] = sign.what

    # ---- reading -----------------------------------------------------------------------------------------

    def content(self, entry: Entry) -> bytes | None:
        """The file as a whole, or None where it holds a secret. Raises JobError for a file that cannot be
        read, is another one by now, or is never the same twice."""
        content = self._steady(entry.relative)
        if entry.unquestioned:
            return content
        sign = entry.sign
        named = sign is not None and sign.holds is not None and sign.holds(content)
        what = sign.what if sign is not None and named else secret_in(content)
        if what is None:
            return content
        self.left_out.secrets[entry.relative] = what
        return None

    def _steady(self, relative: str) -> bytes:
        prefix, _, name = relative.rpartition("/")
        try:
            descriptor = os.open(name, _READ, dir_fd=self._folder(prefix))
            try:
                for _ in range(_TRIES):
                    before = os.fstat(descriptor)
                    if not stat.S_ISREG(before.st_mode):
                        break
                    content = _read(descriptor, before.st_size + 1)
                    after = os.fstat(descriptor)
                    if len(content) == after.st_size and before.st_mtime_ns == after.st_mtime_ns:
                        return content
                    os.lseek(descriptor, 0, os.SEEK_SET)
            finally:
                os.close(descriptor)
        except OSError as error:
            if error.errno not in _ANOTHER_BY_NOW:
                raise _unreadable(self._path(relative), error) from error
        raise JobError(
            [Problem("source", f"{self._path(relative)} changes while it is being read; try again")]
        )

    def _folder(self, prefix: str) -> int:
        """Its descriptor, good until the next call. Those above it stay open: most files lie side by side."""
        parts = [part for part in prefix.split("/") if part]
        opened = self._opened
        depth = 0
        while depth < len(parts) and depth + 1 < len(opened) and opened[depth + 1][0] == parts[depth]:
            depth += 1
        while len(opened) > depth + 1:
            os.close(opened.pop()[1])
        for part in parts[depth:]:
            opened.append((part, os.open(part, _READ | os.O_DIRECTORY, dir_fd=opened[-1][1])))
        return opened[-1][1]

    def _path(self, relative: str) -> str:
        return os.path.join(self.root, relative)  # noqa: PTH118


def _read(descriptor: int, size: int) -> bytes:
    """At most so many bytes: a file may grow without end."""
    blocks = []
    while size > 0 and (block := os.read(descriptor, size)):
        blocks.append(block)
        size -= len(block)
    return blocks[0] if len(blocks) == 1 else b"".join(blocks)


def _rules_above(real_root: str) -> list[Rules]:
    """The rules of the folders above, nearest first, when the source lies inside a git repository."""
    rules: list[Rules] = []
    current, below = Path(real_root), ""
    while not os.path.lexists(current / ".git"):
        if current.parent == current:
            return []
        current, below = current.parent, f"{current.name}/{below}"
        ignore = current / ".gitignore"
        if os.path.isfile(ignore):  # noqa: PTH113  Path.is_file raises for a closed folder
            with _usable():
                above = Rules(read_spec(ignore), 0, below)
            # A folder that is itself ignored was named on purpose: its parent's rules would empty it.
            if not ignored([above], "", is_folder=False):
                rules.append(above)
    return rules


@contextmanager
def _usable() -> Iterator[None]:
    try:
        yield
    except Unusable as error:
        raise JobError([Problem("source", str(error))]) from error


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable(path, error) from error


def _unreadable(path: str, error: OSError) -> JobError:
    return JobError([Problem("source", f"{path} cannot be read: {error.strerror}")])
