"""The parts of a container image's address, and what the names in it say of the image."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

from smlaunch.catalog.catalog_tables import load_catalog_table
from smlaunch.catalog.images import registry_accounts

PUBLIC_GALLERY = "public.ecr.aws"
DOCKER_HUB = "docker.io"

_ECR_HOST = re.compile(
    r"(?P<account>[0-9]{12})\.dkr[.-]ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.(?P<suffix>[a-z0-9.-]+)"
)
_CUDA_IN_TAG = re.compile(r"(?:^|[-_.])cu(?:da)?-?([0-9]{2})\.?([0-9])(?![0-9])")
_ARM_NAME = re.compile(r"(?:^|[-_./])(?:arm64|aarch64|graviton)(?:$|[-_./])")


class EcrHost(NamedTuple):
    """A private registry of Amazon ECR."""

    account: str
    region: str
    suffix: str
    """Domain of the partition, such as ``amazonaws.com``."""


class ImageAddress(NamedTuple):
    """``registry/repository:tag``."""

    registry: str
    """Host, with its port; DOCKER_HUB for an address without one, as Docker reads it."""

    repository: str
    tag: str
    """Empty for an address with a digest, or with neither."""

    reference: str
    """Repository with tag or digest."""

    @property
    def ecr_host(self) -> EcrHost | None:
        """None for a registry that is not a private one of Amazon ECR."""
        match = _ECR_HOST.fullmatch(self.registry)
        return None if match is None else EcrHost(**match.groupdict())

    @property
    def cuda(self) -> tuple[int, int] | None:
        """The version of CUDA that the tag names, ``(12, 4)`` of ``cu124``; None if it names none."""
        match = _CUDA_IN_TAG.search(self.tag)
        return None if match is None else (int(match[1]), int(match[2]))

    @property
    def is_for_arm(self) -> bool:
        """Whether repository or tag says that the image is for arm64."""
        return _ARM_NAME.search(f"{self.repository}/{self.tag}") is not None

    @property
    def is_of_aws(self) -> bool:
        """Whether an account of AWS's own images has it."""
        return self.ecr_host is not None and self.ecr_host.account in _aws_accounts()


def parse_image_address(image: str) -> ImageAddress:
    """Return the parts of an image's address."""
    first, slash, rest = image.partition("/")
    # As Docker tells a host from the first part of a repository's name.
    has_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    registry, reference = (first, rest) if has_host else (DOCKER_HUB, image)
    name, _, digest = reference.partition("@")
    repository, _, tag = name.partition(":")
    return ImageAddress(registry, repository, "" if digest else tag, reference)


def registry_host_elsewhere(host: EcrHost, region: str, partition: str) -> str | None:
    """Return the registry with the same images of AWS's in another region; None for a registry that is not
    AWS's, and for a region where none is known."""
    suffix = load_catalog_table("images")["dns_suffixes"].get(partition)
    for name in load_catalog_table("registries")["tables"]:
        account_by_region = registry_accounts(name)
        is_this_registry = host.account in account_by_region.values()
        if is_this_registry and region in account_by_region and suffix is not None:
            return f"{account_by_region[region]}.dkr.ecr.{region}.{suffix}"
    return None


def dns_suffix_of(partition: str) -> str | None:
    """Return the domain of a partition's registries; None if it is not known."""
    suffix: str | None = load_catalog_table("images")["dns_suffixes"].get(partition)
    return suffix


@cache
def _aws_accounts() -> frozenset[str]:
    tables = load_catalog_table("registries")["tables"]
    return frozenset(account for table in tables.values() for account in table)
