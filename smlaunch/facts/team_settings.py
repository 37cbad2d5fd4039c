"""What the configuration files of a team give a job that does not state it, and which file says so. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from smlaunch.job.model import Job, OtherMembers
from smlaunch.job.sections import Section
from smlaunch.job.team_config import TeamConfig, TeamPolicy

if TYPE_CHECKING:  # its sections take some milliseconds to make
    from smlaunch.job.sdk_config import SdkConfig, SdkNetwork, SdkProcessingJob, SdkTrainingJob, SdkVpc

NETWORK_FIELDS = ("subnets", "security_groups")
"""They belong together: a job that states one of them has no default for the other."""

MERGED_FIELDS = ("environment", "tags")
"""Mappings whose defaults a job completes, key by key."""

PROFILER_FIELD = "request.ProfilerConfig"

STAGING_FIELDS = ("bucket", "bucket_prefix", "image_registry")
"""Defaults of what no job states."""

_LOCAL_FIELDS = ("environment", "tags", "network_isolation")
"""Defaults that mean something on the local endpoint; it only records the members of the others."""


class Default(NamedTuple):
    """A value of a configuration file."""

    field: str
    """Field of the job, such as ``output.kms_key``; one of STAGING_FIELDS, or ``region``."""
    value: Any
    key: str
    """Where the file has it, such as ``SageMaker.TrainingJob.RoleArn``."""
    file: str

    @property
    def origin(self) -> str:
        return f"{self.key} of {self.file}"


class ReadFile(NamedTuple):
    """A configuration file that was read and is right."""

    file: str
    """Path, or address in S3."""
    config: TeamConfig | SdkConfig


@dataclass(frozen=True)
class TeamSettings:
    """What all configuration files say."""

    files: tuple[ReadFile, ...] = ()
    """The first that states a value counts."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why a file that counts was not read, a clause, by its address."""

    @property
    def policy(self) -> TeamPolicy | None:
        for file, config in self.files:
            if isinstance(config, TeamConfig) and config.policy.stated_fields:
                return TeamPolicy(config.policy, file)
        return None

    def defaults(self, is_processing: bool = False) -> tuple[Default, ...]:
        """Return the defaults of a training job, or of a processing job: of each field that of the first file
        that states it, of mappings those of each key. Of the two kinds of files, those of the SageMaker SDK
        are merged first: a list of tags replaces another one there."""
        own = [
            _defaults_of_team(config, file) for file, config in self.files if isinstance(config, TeamConfig)
        ]
        of_sdk = [
            list(_defaults_of_sdk(config, file, is_processing))
            for file, config in self.files
            if not isinstance(config, TeamConfig)
        ]
        tags_of_sdk = next((tags for tags in map(_tags_in, of_sdk) if tags), [])
        others = ([default for default in defaults if not _is_tag(default)] for defaults in of_sdk)
        return _first_of_each([*own, *others, tags_of_sdk])


@dataclass(frozen=True)
class TeamFacts:
    """What configuration files have given a job."""

    applied: tuple[Default, ...] = ()
    """Also those of STAGING_FIELDS, which no job states."""
    not_applied: tuple[Default, ...] = ()
    """Defaults that mean nothing on the local endpoint."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why a file that counts was not read, a clause, by its address."""
    policy: TeamPolicy | None = None

    def find(self, field_path: str) -> Default | None:
        """Return the default that a field has its value from."""
        return next((default for default in self.applied if default.field == field_path), None)

    def staging_value(self, name: str) -> str | None:
        """Return the value of one of STAGING_FIELDS."""
        default = self.find(name)
        return None if default is None else str(default.value)


NO_TEAM = TeamFacts()


def apply_defaults(
    job: Job, settings: TeamSettings, *, is_processing: bool, is_local: bool, has_role: bool = False
) -> tuple[Job, TeamFacts]:
    """Return the job with the defaults of the fields that it does not state, and where these come from.
    ``is_local``: it is for the local endpoint. ``has_role``: a variable of the environment names the role,
    which precedes a default."""
    missing = [default for default in settings.defaults(is_processing) if _lacks(job, default)]
    if has_role:
        missing = [default for default in missing if default.field != "role"]
    applied = [default for default in missing if not is_local or _first_name(default.field) in _LOCAL_FIELDS]
    not_applied = [default for default in missing if default not in applied]
    changes: dict[str, Any] = {}
    for default in applied:
        first, _, rest = default.field.partition(".")
        if first in MERGED_FIELDS:
            changes.setdefault(first, dict(getattr(job, first)))[rest] = default.value
        elif default.field == PROFILER_FIELD:
            changes[first] = OtherMembers({**job.request, rest: default.value})
        elif rest:
            section = getattr(job, first)
            changes[first] = (
                {rest: default.value} if section is None else section.with_changes(**{rest: default.value})
            )
        elif first not in STAGING_FIELDS:
            changes[first] = default.value
    facts = TeamFacts(tuple(applied), tuple(not_applied), settings.unread, settings.policy)
    return job.with_changes(**changes) if changes else job, facts


def _lacks(job: Job, default: Default) -> bool:
    """Whether the job leaves the field of the default open. A field that it states, even as nothing, is not
    open."""
    first, _, rest = default.field.partition(".")
    if first in MERGED_FIELDS:
        return rest not in getattr(job, first)
    if default.field in NETWORK_FIELDS:
        return not job.stated_fields.intersection(NETWORK_FIELDS)
    if first == "request":
        return rest not in job.request
    if default.field == "region" or default.field in STAGING_FIELDS:
        return default.field != "region"
    value = getattr(job, first)
    if rest:
        return not isinstance(value, Section) or rest not in value.stated_fields
    return first not in job.stated_fields


def _first_name(field_path: str) -> str:
    return field_path.partition(".")[0]


def _first_of_each(lists: Iterable[Iterable[Default]]) -> tuple[Default, ...]:
    """Return the first default of each field. Subnets and security groups are of one file."""
    first_by_field: dict[str, Default] = {}
    for defaults in lists:
        defaults = list(defaults)
        has_network = any(name in first_by_field for name in NETWORK_FIELDS)
        for default in defaults:
            if not (has_network and default.field in NETWORK_FIELDS):
                first_by_field.setdefault(default.field, default)
    return tuple(first_by_field.values())


def _is_tag(default: Default) -> bool:
    return default.field.startswith("tags.")


def _tags_in(defaults: Collection[Default]) -> list[Default]:
    return [default for default in defaults if _is_tag(default)]


def _defaults_of_team(config: TeamConfig, file: str) -> Iterator[Default]:
    for path, value in _stated_values(config.defaults):
        yield Default(path, value, f"defaults.{path}", file)


def _stated_values(section: Section, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of each field that a section states, and of each key of its mappings."""
    for name in sorted(section.stated_fields):
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _stated_values(value, f"{prefix}{name}.")
        elif isinstance(value, Mapping):
            yield from ((f"{prefix}{name}.{key}", item) for key, item in value.items())
        elif value is not None:
            yield f"{prefix}{name}", value


def _defaults_of_sdk(config: SdkConfig, file: str, is_processing: bool) -> Iterator[Default]:
    """Yield what a file of the SageMaker SDK says for jobs of a kind, by the fields of smlaunch's job."""
    parts = config.SageMaker
    kind = "ProcessingJob" if is_processing else "TrainingJob"
    if is_processing:
        members = _processing_members(parts.ProcessingJob)
    else:
        members = _training_members(parts.TrainingJob)
    for path, key, value in members:
        yield Default(path, value, f"SageMaker.{kind}.{key}", file)
    session = parts.PythonSDK.Modules.Session
    for path, key in (("bucket", "DefaultS3Bucket"), ("bucket_prefix", "DefaultS3ObjectKeyPrefix")):
        if (value := getattr(session, key)) is not None:
            yield Default(path, value, f"SageMaker.PythonSDK.Modules.Session.{key}", file)


_Member = tuple[str, str, Any]
"""Field of the job, name in the file, and value."""


def _training_members(section: SdkTrainingJob) -> Iterator[_Member]:
    yield from _common_members(section)
    yield from _network_members(section, "")
    if (key := section.OutputDataConfig.KmsKeyId) is not None:
        yield "output.kms_key", "OutputDataConfig.KmsKeyId", key
    if (key := section.ResourceConfig.VolumeKmsKeyId) is not None:
        yield "compute.volume_kms_key", "ResourceConfig.VolumeKmsKeyId", key
    if section.ProfilerConfig.stated_fields:
        yield PROFILER_FIELD, "ProfilerConfig", dict(section.ProfilerConfig.to_mapping())


def _processing_members(section: SdkProcessingJob) -> Iterator[_Member]:
    yield from _common_members(section)
    yield from _network_members(section.NetworkConfig, "NetworkConfig.")
    if (key := section.ProcessingOutputConfig.KmsKeyId) is not None:
        yield "output.kms_key", "ProcessingOutputConfig.KmsKeyId", key
    if (key := section.ProcessingResources.ClusterConfig.VolumeKmsKeyId) is not None:
        yield "compute.volume_kms_key", "ProcessingResources.ClusterConfig.VolumeKmsKeyId", key


def _common_members(section: SdkTrainingJob | SdkProcessingJob) -> Iterator[_Member]:
    if section.RoleArn is not None:
        yield "role", "RoleArn", section.RoleArn
    for name, value in section.Environment.items():
        yield f"environment.{name}", f"Environment.{name}", value
    for index, tag in enumerate(section.Tags):
        yield f"tags.{tag.Key}", f"Tags[{index}]", tag.Value


def _network_members(section: SdkTrainingJob | SdkNetwork, prefix: str) -> Iterator[_Member]:
    vpc: SdkVpc = section.VpcConfig
    if vpc.Subnets:
        yield "subnets", f"{prefix}VpcConfig.Subnets", vpc.Subnets
    if vpc.SecurityGroupIds:
        yield "security_groups", f"{prefix}VpcConfig.SecurityGroupIds", vpc.SecurityGroupIds
    for name, key in (
        ("network_isolation", "EnableNetworkIsolation"),
        ("encrypt_traffic", "EnableInterContainerTrafficEncryption"),
    ):
        if key in section.stated_fields:
            yield name, prefix + key, getattr(section, key)
