"""Strategies, executors, job kinds and rules by name: built-in ones, and those that others add.

A file adds one for the process that runs it, by a call such as ``register_strategy(Ring)``. An installed
package adds one for every process, by an entry point::

    [project.entry-points."smlaunch.strategies"]
    ring = "my_package.ring:Ring"

A name is looked up among the built-in ones, the registered ones and the installed ones, in this order.
Nothing is imported before its name is used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Generic, TypeVar, cast

from smlaunch.errors import JobError, Problem

Entry = TypeVar("Entry")


class Registry(Generic[Entry]):
    """The entries of one kind: subclasses or instances of one class."""

    def __init__(
        self,
        group: str,
        noun: str,
        entry_class: str,
        built_in: Mapping[str, Entry | str] | None = None,
        field: str = "",
    ) -> None:
        """``group`` is the group of entry points, ``noun`` what messages call an entry. ``entry_class`` is
        the address of the class, as ``module:Class``; ``built_in`` has entries or their addresses. ``field``
        is the field of the job, or the option, by which a user chooses an entry; empty where all apply."""
        self._group = group
        self._noun = noun
        self._entry_class = entry_class
        self._built_in = built_in or {}
        self._field = field
        self._registered: dict[str, Entry] = {}

    def register(self, name: str, entry: Entry) -> None:
        """Add an entry for this process. Raises ValueError if the name is built in or registered."""
        if name in self._built_in or name in self._registered:
            raise ValueError(f"there is a {self._noun} {name} already")
        self._registered[name] = entry

    def names(self) -> Iterator[str]:
        """Yield all names. Those of installed packages come last and are read last."""
        yield from self._built_in
        yield from self._registered
        yield from [name for name in _installed(self._group) if name not in self._without_packages]

    def values(self) -> Iterator[Entry]:
        """Yield all entries, in the order of ``names``. Raises JobError as a lookup does."""
        return (self[name] for name in self.names())

    def get(self, name: str) -> Entry | None:
        """Return an entry; None for an unknown name. Raises JobError as a lookup does."""
        try:
            return self[name]
        except KeyError:
            return None

    def __contains__(self, name: object) -> bool:
        return name in self._without_packages or name in _installed(self._group)

    def __getitem__(self, name: str) -> Entry:
        """Raises KeyError for an unknown name, and JobError for a package's entry that cannot be used."""
        if name in self._without_packages:
            entry_or_address = self._without_packages[name]
            if isinstance(entry_or_address, str):
                return cast("Entry", _load(entry_or_address))
            return entry_or_address
        address = _installed(self._group)[name]
        try:
            entry = _load(address)  # code of another package runs here
        except Exception as error:
            raise self._load_error(name, address, f"{type(error).__name__}: {error}") from error
        required_class = cast("type[object]", _load(self._entry_class))
        is_subclass = required_class in getattr(entry, "__mro__", ())
        if not is_subclass and not isinstance(entry, required_class):
            required_name = self._entry_class.replace(":", ".")
            raise self._load_error(name, address, f"it is no {required_name}")
        return cast("Entry", entry)

    def _load_error(self, name: str, address: str, reason: str) -> JobError:
        subject = repr(name) if self._field else f"the {self._noun} {name!r}"
        advice = "repair or uninstall that package"
        if self._field:
            advice += f", or take another {self._noun}"
        message = f"{subject}, which another package registers as {address}, cannot be loaded ({reason})"
        return JobError([Problem(self._field, f"{message}; {advice}")])

    @property
    def _without_packages(self) -> dict[str, Entry | str]:
        return {**self._registered, **self._built_in}


def _load(address: str) -> object:
    module, _, attribute = address.partition(":")
    return getattr(import_module(module), attribute)


@cache
def _installed(group: str) -> Mapping[str, str]:
    """Return the addresses of a group's entry points by their names."""
    if not _is_any_installed():
        return {}
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group)}


@cache
def _is_any_installed() -> bool:
    """Return whether an installed package has an entry point for smlaunch. This takes 1 ms; the import of
    importlib.metadata takes 45 ms, which every plan would need, since rules of packages apply to it."""
    return any(
        _has_own_entry_point(Path(import_folder, name))
        for import_folder in sys.path
        for name in _list_names(import_folder or os.curdir)
        if name.endswith((".dist-info", ".egg-info"))
    )


def _list_names(folder: str) -> list[str]:
    """Return the names in a folder; none if it cannot be read."""
    try:
        return os.listdir(folder)  # noqa: PTH208 - faster, and every plan waits for it
    except OSError:
        return []


def _has_own_entry_point(metadata_folder: Path) -> bool:
    """Return whether a package's metadata have an entry point of one of smlaunch's groups."""
    try:
        return b"[smlaunch." in Path(metadata_folder, "entry_points.txt").read_bytes()
    except OSError:
        return False
