"""Rules beyond the model that several operations share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from smlaunch.api.validation.violation import Violation
from smlaunch.catalog.instances import find_instance_type

RequestPath = tuple[str | int, ...]


def service_violation(path: RequestPath, value: Any, text: str) -> Violation:
    """Return a violation of a rule of the service that the API model does not have."""
    return Violation(path, value, rule="service", limit=text)


def check_volume_key(
    path: RequestPath, resources: Mapping[str, Any], typed_entries: Iterable[Mapping[str, Any]]
) -> Iterator[Violation]:
    """Yield a violation for each instance type with local disks if VolumeKmsKeyId is given, as far as the
    catalog knows the types. ``resources`` is the ResourceConfig or ClusterConfig at ``path``;
    ``typed_entries`` are it and its parts, each with an InstanceType or without."""
    kms_key = resources.get("VolumeKmsKeyId")
    if not kms_key:
        return
    instance_types = sorted({entry["InstanceType"] for entry in typed_entries if entry.get("InstanceType")})
    for instance_type in instance_types:
        catalog_type = find_instance_type(instance_type)
        if catalog_type is not None and catalog_type.nvme_gb:  # local disks have a key of their own
            message = (
                "VolumeKmsKeyId cannot be given with an instance type that has local storage, as "
                f"{instance_type}"
            )
            yield service_violation((*path, "VolumeKmsKeyId"), kms_key, message)


def check_tags(tags: Sequence[Mapping[str, Any]]) -> Iterator[Violation]:
    """Yield violations of tag keys that are not unique, or have the reserved prefix."""
    yield from check_unique(("Tags",), "Key", tags)
    for index, tag in enumerate(tags):
        key = str(tag.get("Key", ""))
        if key.lower().startswith("aws:"):
            yield service_violation(
                ("Tags", index, "Key"), key, f"Tag keys beginning with 'aws:' are reserved: {key}"
            )


def check_unique(path: RequestPath, member: str, entries: Iterable[Mapping[str, Any]]) -> Iterator[Violation]:
    """Yield a violation for each value of a member that several entries have."""
    counts = Counter(entry.get(member) for entry in entries)
    for value, count in counts.items():
        if value is not None and count > 1:
            yield service_violation(
                path, value, f"{member} {value!r} is given {count} times; it must be unique"
            )
