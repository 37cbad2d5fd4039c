"""Rules that several operations have in common, beyond what the model's tables hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from smlaunch.catalog.instances import find
from smlaunch.validate.violation import Violation

Steps = tuple[str | int, ...]


def rule(path: Steps, value: Any, text: str) -> Violation:
    return Violation(path, value, "service", text)


def volume_key(
    at: Steps, resources: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]
) -> Iterator[Violation]:
    """A volume's key is refused for types with disks of their own, as far as the catalog knows them."""
    key = resources.get("VolumeKmsKeyId")
    if not key:
        return
    kinds = sorted({entry["InstanceType"] for entry in entries if entry.get("InstanceType")})
    for kind in kinds:
        known = find(kind)
        if known is not None and known.nvme_gb:
            text = f"VolumeKmsKeyId cannot be given with an instance type that has local storage, as {kind}"
            yield rule((*at, "VolumeKmsKeyId"), key, text)


def tags(given: Sequence[Mapping[str, Any]]) -> Iterator[Violation]:
    yield from unique(("Tags",), "Key", given)
    for index, tag in enumerate(given):
        key = str(tag.get("Key", ""))
        if key.lower().startswith("aws:"):
            yield rule(("Tags", index, "Key"), key, f"Tag keys beginning with 'aws:' are reserved: {key}")


def unique(at: Steps, field: str, entries: Iterable[Mapping[str, Any]]) -> Iterator[Violation]:
    counts = Counter(entry.get(field) for entry in entries)
    for name, count in counts.items():
        if name is not None and count > 1:
            yield rule(at, name, f"{field} {name!r} is given {count} times; it must be unique")
