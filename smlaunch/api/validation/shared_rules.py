"""Rules beyond the model that several operations share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from smlaunch.api.validation.violation import Violation
from smlaunch.catalog.instances import find_instance_type

RequestPath = tuple[str | int, ...]


def service_violation(path: RequestPath, value: Any, text: str) -> Violation:
    return Violation(path, value, "service", text)


def check_volume_key(
    path: RequestPath, resources: Mapping[str, Any], entries: Iterable[Mapping[str, Any]]
) -> Iterator[Violation]:
    """Yield a violation for each type with local disks whose volume is to be encrypted with a key, as far as
    the catalog knows them. ``entries``: all that name an instance type."""
    key = resources.get("VolumeKmsKeyId")
    if not key:
        return
    instance_types = sorted({entry["InstanceType"] for entry in entries if entry.get("InstanceType")})
    for instance_type in instance_types:
        catalog_type = find_instance_type(instance_type)
        if catalog_type is not None and catalog_type.nvme_gb:
            text = (
                "VolumeKmsKeyId cannot be given with an instance type that has local storage, as "
                f"{instance_type}"
            )
            yield service_violation((*path, "VolumeKmsKeyId"), key, text)


def check_tags(tags: Sequence[Mapping[str, Any]]) -> Iterator[Violation]:
    """Unique keys without reserved prefixes."""
    yield from check_unique(("Tags",), "Key", tags)
    for index, tag in enumerate(tags):
        key = str(tag.get("Key", ""))
        if key.lower().startswith("aws:"):
            yield service_violation(
                ("Tags", index, "Key"), key, f"Tag keys beginning with 'aws:' are reserved: {key}"
            )


def check_unique(path: RequestPath, field: str, entries: Iterable[Mapping[str, Any]]) -> Iterator[Violation]:
    """A member whose value must be unique among the entries."""
    counts = Counter(entry.get(field) for entry in entries)
    for name, count in counts.items():
        if name is not None and count > 1:
            yield service_violation(path, name, f"{field} {name!r} is given {count} times; it must be unique")
