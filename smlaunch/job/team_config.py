"""A team's configuration file: defaults for its jobs, and the rules that they keep.

The keys below ``defaults`` are those of a job file, with four more for what no job states: ``bucket``,
``bucket_prefix``, ``image_registry`` and ``region``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple

from smlaunch.job.field_types import (
    NonEmptyText,
    PositiveNumber,
    StrictBool,
    TextOrInteger,
    VariableName,
)
from smlaunch.job.sections import FieldError, FieldRule, Section, section
from smlaunch.job.service_types import KmsKey

_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_ECR_REGISTRY = r"[0-9]{12}\.dkr\.ecr(?:-fips)?\.(?P<region>[a-z0-9-]+)\.[a-z0-9.-]+(?:/[a-z0-9._/-]+)?"
_TYPE_PATTERN = r"(?:ml\.|\*)[a-z0-9.*?-]*"
_REGION_PATTERN = r"[a-z*?][a-z0-9*?-]*"


def _check_form(pattern: str, needed: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise FieldError(f"{{}} is not {needed}", repr(text))
    return text


def _check_prefix(text: str) -> str:
    if text.startswith("s3://") or not text.strip("/"):
        raise FieldError("{} is not a folder in the bucket, such as teams/vision", repr(text))
    return text.strip("/")


def _check_not_empty(items: tuple[Any, ...]) -> tuple[Any, ...]:
    if not items:
        raise FieldError("an empty list allows nothing; name what is allowed, or leave it out")
    return items


BucketName = Annotated[NonEmptyText, FieldRule(partial(_check_form, _BUCKET, "the name of a bucket"))]
KeyPrefix = Annotated[NonEmptyText, FieldRule(_check_prefix)]
EcrRegistry = Annotated[
    NonEmptyText,
    FieldRule(
        partial(
            _check_form,
            _ECR_REGISTRY,
            "a registry of Amazon ECR, such as 123456789012.dkr.ecr.eu-west-1.amazonaws.com/mirror; training "
            "pulls AWS's images from no other",
        )
    ),
]
TypePattern = Annotated[
    NonEmptyText,
    FieldRule(partial(_check_form, _TYPE_PATTERN, "an instance type or a pattern of some, such as ml.g5.*")),
]
RegionPattern = Annotated[
    NonEmptyText,
    FieldRule(partial(_check_form, _REGION_PATTERN, "a region or a pattern of some, such as eu-*")),
]
_NOT_EMPTY_LIST = FieldRule(_check_not_empty)


def registry_region(registry: str) -> str:
    """Return the region of a registry that an ``EcrRegistry`` names."""
    match = re.fullmatch(_ECR_REGISTRY, registry)
    return match["region"] if match else ""


@section
class OutputDefaults(Section):
    """``output`` of a job."""

    kms_key: KmsKey | None = None
    """The KMS key that encrypts model and output."""


@section
class ComputeDefaults(Section):
    """``compute`` of a job."""

    volume_kms_key: KmsKey | None = None
    """The KMS key that encrypts the hosts' volumes."""


@section
class Defaults(Section):
    """Values of fields that a job does not state."""

    role: NonEmptyText | None = None
    """The execution role, by name or ARN."""
    subnets: tuple[NonEmptyText, ...] = ()
    """Subnets of the VPC that hosts run in; with ``security_groups``, for jobs that state neither."""
    security_groups: tuple[NonEmptyText, ...] = ()
    """Security groups of the VPC that hosts run in."""
    network_isolation: StrictBool = False
    """Hosts have no network access."""
    encrypt_traffic: StrictBool = False
    """Encrypt the traffic between hosts."""
    environment: Mapping[VariableName, TextOrInteger] = field(default_factory=dict)
    """Environment variables of every process; the job's own are added key by key."""
    tags: Mapping[NonEmptyText, TextOrInteger] = field(default_factory=dict)
    """Tags of every job; the job's own are added key by key."""
    output: OutputDefaults = OutputDefaults()
    """The output's key."""
    compute: ComputeDefaults = ComputeDefaults()
    """The volumes' key."""
    bucket: BucketName | None = None
    """Bucket of smlaunch's own files and, by default, of output and checkpoints."""
    bucket_prefix: KeyPrefix | None = None
    """Folder in that bucket."""
    image_registry: EcrRegistry | None = None
    """Registry with copies of AWS's images, by the same names and tags."""
    region: NonEmptyText | None = None
    """Region where neither an option, a variable nor the AWS configuration names one."""


@section
class Policy(Section):
    """What jobs of the team may be. Every rule that is stated is checked in a plan for a region."""

    instance_types: Annotated[tuple[TypePattern, ...], _NOT_EMPTY_LIST] | None = None
    """Instance types that jobs may run on, or patterns of them: ``ml.g5.*``."""
    regions: Annotated[tuple[RegionPattern, ...], _NOT_EMPTY_LIST] | None = None
    """Regions that jobs may run in, or patterns of them: ``eu-*``."""
    spot_only: StrictBool = False
    """Every job runs on spot capacity."""
    max_cost_per_run: PositiveNumber | None = None
    """US dollars that a run may cost at most, by its plan."""
    max_cost_per_hour: PositiveNumber | None = None
    """US dollars that all hosts of a run may cost in an hour."""
    required_tags: Annotated[tuple[NonEmptyText, ...], _NOT_EMPTY_LIST] | None = None
    """Tags that every job has, by their keys."""


@section
class TeamConfig(Section):
    """The file ``config.yaml``."""

    DOCUMENT: ClassVar[str] = "file"

    defaults: Defaults = Defaults()
    """Values of fields that a job does not state."""
    policy: Policy = Policy()
    """What jobs may be."""


class TeamPolicy(NamedTuple):
    """A policy, and the file that states it."""

    rules: Policy
    file: str
