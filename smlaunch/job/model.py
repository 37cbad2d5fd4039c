"""Job: what the user wants, in one class tree for Python and for YAML.

Objects are frozen, and their mappings read-only. Building one, or reading one from a mapping or a file,
checks everything that needs no access to files or services, and raises one ``JobError`` that lists every
mistake with its path. Other checks (does the script exist, is the prefix empty) are the plan's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from smlaunch.catalog.instances import DEFAULT_INSTANCE_TYPE
from smlaunch.errors import JobError, Problem
from smlaunch.job.channel import Channel as Channel
from smlaunch.job.channel import InputMode as InputMode
from smlaunch.job.field_types import (
    AccountId,
    ChannelName,
    Duration,
    Hyperparameter,
    ImageAddress,
    NonEmptyText,
    PathText,
    PositiveInt,
    PositiveNumber,
    ProcessCount,
    RunId,
    StrategyName,
    StrictBool,
    TextOrInteger,
    VariableName,
    at_most,
    copy_as_json,
)
from smlaunch.job.field_types import format_duration as format_duration
from smlaunch.job.field_types import parse_duration as parse_duration
from smlaunch.job.instance_types import InstanceTypeName
from smlaunch.job.program import Container as Container
from smlaunch.job.program import Entry as Entry
from smlaunch.job.read_only import ReadOnlyDict
from smlaunch.job.results import DEFAULT_CHECKPOINT_PATH as DEFAULT_CHECKPOINT_PATH
from smlaunch.job.results import Checkpoints as Checkpoints
from smlaunch.job.results import Metric as Metric
from smlaunch.job.results import Output as Output
from smlaunch.job.results import ProcessingOutput as ProcessingOutput
from smlaunch.job.results import UploadName as UploadName
from smlaunch.job.sections import FieldError, Section, expand_shorthand, section
from smlaunch.job.segment_changes import SegmentChange as SegmentChange
from smlaunch.job.segment_changes import SegmentCompute as SegmentCompute
from smlaunch.job.service_types import KmsKey, LambdaArn, RetryCount, SecretReferenceText, TrainingPlanArn
from smlaunch.job.workload import Workload as Workload

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from smlaunch.job.job_fields import JobFields

LauncherName = Literal["runtime", "torchrun"]
"""Those of contract.launch_spec.LAUNCHERS that a job may ask for; a test compares them."""


# ---- the tree ------------------------------------------------------------------------------------


@section
class GroupOfHosts(Section):
    """Hosts of one type among the hosts of a job (a heterogeneous cluster)."""

    name: NonEmptyText
    """Name of the group, which its hosts have in ``SM_CURRENT_INSTANCE_GROUP``."""
    type: InstanceTypeName
    """Their instance type."""
    hosts: PositiveInt = 1
    """Number of hosts."""


@section
class Compute(Section):
    """The hosts of a run."""

    hosts: PositiveInt = 1
    """Number of hosts."""
    processes_per_host: ProcessCount = None
    """A number, ``auto`` (one for each accelerator, else one), or None to let the plan choose."""
    instance_type: InstanceTypeName | None = None
    """Such as ml.g5.12xlarge. None lets the plan choose."""
    volume_gb: PositiveInt | None = None
    """Disk of each host, in GB. Types with their own NVMe disk ignore it."""
    volume_kms_key: KmsKey | None = None
    """The KMS key that encrypts the hosts' volumes: its id, its ARN, or an alias. Types with their own NVMe
    disk take none."""
    training_plan: TrainingPlanArn | None = None
    """ARN of a training plan, which has reserved the hosts. Not with spot."""
    spot: StrictBool = False
    """Use managed spot capacity, which is cheaper and may be interrupted."""
    on_demand_fallback: StrictBool = False
    """Retry a segment on demand when no spot capacity is available for it."""
    price_per_hour: PositiveNumber | None = None
    """US dollars for one host and hour of instance_type, or of the first of instance_preferences or
    instance_groups, where the price in the region is not known, or an old one. Other types keep their own. A
    change of the type, by ``with_changes`` or an option of the command line, that states no price drops it.
    """
    instance_preferences: Annotated[tuple[InstanceTypeName, ...], at_most(5)] = ()
    """Instance types in order of preference, instead of one instance_type: the service uses the first with
    capacity."""
    instance_groups: Annotated[tuple[GroupOfHosts, ...], at_most(5)] = ()
    """Hosts of several types in one job, instead of instance_type and hosts. The hosts of each group train
    together, and every group runs the same program."""
    keep_alive: Duration = None
    """How long hosts wait for the next job after this one has ended, and are billed (a warm pool)."""

    @property
    def host_count(self) -> int:
        """Number of hosts of a job, those of all groups."""
        return sum(group.hosts for group in self.instance_groups) or self.hosts

    @property
    def hosts_of_largest_group(self) -> int:
        """Number of hosts that train together at most; all without groups."""
        return max((group.hosts for group in self.instance_groups), default=self.hosts)

    @property
    def group_rows(self) -> tuple[tuple[str, str, int], ...]:
        """Name, type and number of hosts of each group."""
        return tuple((group.name, group.type, group.hosts) for group in self.instance_groups)

    @property
    def groups_text(self) -> str:
        """Such as ``loaders: 2 x ml.c5.xlarge, trainers: 1 x ml.g5.xlarge``; empty without groups."""
        return ", ".join(f"{name}: {hosts} x {type_name}" for name, type_name, hosts in self.group_rows)

    @property
    def field_of_types(self) -> str:
        """The field that states the instance types."""
        others = [name for name in ("instance_preferences", "instance_groups") if getattr(self, name)]
        return f"compute.{(others or ['instance_type'])[0]}"

    @property
    def instance_types(self) -> tuple[str, ...]:
        """Types that the hosts of a job may be of, or of which it has hosts at once."""
        group_types = tuple(dict.fromkeys(group.type for group in self.instance_groups))
        return group_types or self.instance_preferences or (self.own_instance_type,)

    @property
    def own_instance_type(self) -> str:
        """Instance type that the figures of the job are for, ``price_per_hour`` among them."""
        return str(_own_instance_type(vars(self)))

    @classmethod
    def fields_left_behind(cls, fields: Mapping[str, Any], changes: Mapping[str, Any]) -> Collection[str]:
        """The price stays with the type that it was stated for."""
        if "price_per_hour" not in fields or "price_per_hour" in changes:
            return ()
        is_same_type = _own_instance_type(fields) == _own_instance_type({**fields, **changes})
        return () if is_same_type else ("price_per_hour",)


def _own_instance_type(compute_fields: Mapping[str, Any]) -> Any:
    """Return the first of the preferred instance types or groups, the one that is named, or the default.
    ``compute_fields``: as they were given, and not checked."""
    preferences = compute_fields.get("instance_preferences")
    if isinstance(preferences, Sequence) and preferences:
        return preferences[0]
    groups = compute_fields.get("instance_groups")
    if isinstance(groups, Sequence) and groups:
        return groups[0].get("type") if isinstance(groups[0], Mapping) else getattr(groups[0], "type", None)
    return compute_fields.get("instance_type") or DEFAULT_INSTANCE_TYPE


@section
class Limits(Section):
    """When a run is ended, whatever its state."""

    max_runtime: Duration = None
    """Training time of all jobs together: all segments, and all attempts."""
    segment: Duration = None
    """Longest training time of one job. A longer run is a chain of such segments, each of which continues
    from the checkpoints of the one before."""
    max_wait: Duration = None
    """Training time and the wait for spot capacity together, of one job. Only with spot."""
    max_pending: Duration = None
    """Longest wait for capacity of accelerated types, on demand."""
    hang: Duration = None
    """How long all ranks of a host may print nothing and use no CPU. None leaves it to the strategy."""
    attempts: PositiveInt | None = None
    """Jobs that are tried for each segment without progress. None means 3 in a chain and 1 otherwise."""
    max_cost: PositiveNumber | None = None
    """US dollars of all jobs together. A plan of one job that could cost more is refused before anything
    starts; a chain ends at a checkpoint before it does. No further attempt starts once it is reached."""


class OtherMembers(ReadOnlyDict[str, Any]):
    """Members of a job's ``request`` that have no field of the job."""


_PROGRAM_FIELDS = ("entry", "algorithm", "image")
_ARGUMENTS_FIELD_BY_PROGRAM = {"entry": "args", "algorithm": "hyperparameters"}
_NO_PROGRAM = Problem(
    "entry", "it is missing; name a script, or an algorithm, or an image with a program of its own"
)


@section
class Job(Section):
    """A training job, or a processing job. It runs one program: ``entry``, ``algorithm`` or ``image``; a job
    for ``smlaunch.submit`` and ``remote`` names none, because the function is the program."""

    entry: Entry | None = None
    """The user's program: the path of a script, or a mapping with ``module`` or ``command``."""
    algorithm: NonEmptyText | None = None
    """One of SageMaker's built-in algorithms, instead of a script."""
    strategy: StrategyName | None = None
    """How the job is distributed. None lets the plan choose and explain its choice."""
    options: Mapping[NonEmptyText, Hyperparameter] = field(default_factory=dict)
    """Options of the strategy; each strategy names its own (docs/strategies.md)."""
    launcher: LauncherName = "runtime"
    """Program that starts a host's ranks: smlaunch's own runtime or PyTorch's torchrun."""
    args: tuple[TextOrInteger, ...] = ()
    """Arguments of the script, unchanged and before the hyperparameters; or arguments of an image's own
    program."""
    hyperparameters: Mapping[NonEmptyText, Hyperparameter] = field(default_factory=dict)
    """Passed to a script as ``--key value``, and to an algorithm as its parameters."""
    compute: Compute = Compute()
    """The hosts."""
    inputs: Mapping[ChannelName, Channel] = field(default_factory=dict)
    """Data, by channel name."""
    source: PathText | None = None
    """Directory that is uploaded with the entry; by default that of the script, for a module or a command
    that of the job file, or else the working directory."""
    include_secrets: StrictBool = False
    """Upload files of the source and of local inputs even if they look like secrets."""
    allow: tuple[NonEmptyText, ...] = ()
    """Rules of the plan whose errors become warnings, such as script.arguments: for a script about which the
    plan is wrong."""
    requirements: NonEmptyText | None = None
    """A pip requirements file, relative to the source, that is installed on every host before the start. By
    default a requirements.txt beside the script, if there is one; ``none`` installs nothing."""
    image: ImageAddress | None = None
    """Container image. With neither entry nor algorithm it brings its own program, and smlaunch adds nothing
    to it. None takes AWS's image for the strategy."""
    image_registry_credentials: LambdaArn | None = None
    """ARN of the Lambda function that returns the credentials of a private registry outside Amazon ECR, which
    the image is pulled from. Hosts reach the registry through ``subnets``."""
    container: Container = Container()
    """The command of an image that brings its own program."""
    framework_version: NonEmptyText | None = None
    """Version of AWS's image, such as 2.13."""
    environment: Mapping[VariableName, TextOrInteger] = field(default_factory=dict)
    """Environment variables of every process."""
    secrets: Mapping[VariableName, SecretReferenceText] = field(default_factory=dict)
    """Environment variables of every process whose values are secrets, each with the place of its value:
    ``secretsmanager:NAME-or-ARN`` or ``ssm:NAME``. The hosts read them there; no request has them."""
    limits: Limits = Limits()
    """When the run is ended."""
    retries: RetryCount | None = None
    """How often the service starts a training job again after an internal error of its own, 1 to 30, within
    the same time limit. None: never. ``limits.attempts`` counts jobs, each of which has these retries."""
    remote_debug: StrictBool = False
    """A shell on a host can be opened through AWS Systems Manager while the training job runs."""
    workload: Workload = Workload()
    """What only the user can know about the work."""
    deterministic: StrictBool = False
    """Ranks that use smlaunch.train compute the same result bit by bit every time, or report why they cannot.
    """
    segments: tuple[SegmentChange, ...] = ()
    """Changes of a chain's segments, in their order."""
    checkpoints: Checkpoints | None = None
    """Where and how the training saves its state."""
    output: Output | None = None
    """Where and how model and output are stored: an S3 prefix, or a mapping."""
    outputs: Mapping[ChannelName, ProcessingOutput] = field(default_factory=dict)
    """More outputs of a processing job, by name."""
    metrics: tuple[Metric, ...] = ()
    """Metrics that the service reads from what a training job prints."""
    bucket_owner: AccountId | None = None
    """The account (twelve digits) that owns the bucket of output, where it is not the caller's own."""
    role: NonEmptyText | None = None
    """The execution role, by name or ARN."""
    network_isolation: StrictBool = False
    """Hosts have no network access."""
    encrypt_traffic: StrictBool = False
    """Encrypt the traffic between hosts."""
    subnets: tuple[NonEmptyText, ...] = ()
    """Subnets of the VPC that hosts run in."""
    security_groups: tuple[NonEmptyText, ...] = ()
    """Security groups of the VPC that hosts run in."""
    tags: Mapping[NonEmptyText, TextOrInteger] = field(default_factory=dict)
    """Tags of every job that is created."""
    request: Mapping[NonEmptyText, Hyperparameter] = field(default_factory=dict)
    """Members of the request that creates each job (CreateTrainingJob, CreateProcessingJob), as the API names
    them. One that has a field of the job becomes that field's value."""
    name: RunId | None = None
    """The run's id. The same job and name attach to the existing run."""

    _file_folder: ClassVar[Path] = Path()
    """Folder of the file that this job was read from, which sets its own; the working directory without one.
    """

    _member_by_field: ClassVar[Mapping[str, str]] = {}
    """Where the user has written values of fields that are not written as fields: ``compute.hosts`` is in
    ``request.ResourceConfig.InstanceCount``. A job with any sets its own."""

    def __init__(self, /, **fields: Unpack[JobFields]) -> None:
        self._set_fields(fields)

    def _set_fields(self, fields: Mapping[str, Any]) -> None:
        problems: list[Problem] = []
        request = fields.get("request")
        # What is left of a request that was read, as of a job with changes, is not read again.
        if request and isinstance(request, Mapping) and not isinstance(request, OtherMembers):
            from smlaunch.job.request_members import fold_request

            with suppress(FieldError):  # the field's own reader says what is wrong
                folded = fold_request({**fields, "request": copy_as_json(request)})
                fields, problems = folded.fields, folded.problems
                object.__setattr__(self, "_member_by_field", folded.member_by_field())
        try:
            super()._set_fields(fields)
        except JobError as error:
            problems += error.problems
        if problems:
            raise self.as_written(JobError(problems))
        object.__setattr__(self, "request", OtherMembers(self.request))

    def written_path(self, field_path: str) -> str:
        """Return where the user has written a field of the job, such as ``request.RoleArn`` for the role."""
        matching_fields = [
            name
            for name in self._member_by_field
            if field_path == name or field_path.startswith((f"{name}.", f"{name}["))
        ]
        if not matching_fields:
            return field_path
        name = max(matching_fields, key=len)
        return self._member_by_field[name] + field_path[len(name) :]

    def as_written(self, error: JobError) -> JobError:
        """Return the error with its problems where the user has written the values."""
        problems = (problem._replace(path=self.written_path(problem.path)) for problem in error.problems)
        return JobError(dict.fromkeys(problems), error.job_mapping)

    @classmethod
    def find_contradictions(cls, fields: Mapping[str, Any]) -> Iterable[Problem]:
        entry, algorithm = fields.get("entry"), fields.get("algorithm")
        if entry is not None and algorithm is not None:
            message = "a built-in algorithm brings its own program; leave out algorithm, or entry"
            yield Problem("algorithm", message)
        container = fields.get("container")
        stated_container = container.to_mapping() if isinstance(container, Container) else container
        program = next((name for name in ("entry", "algorithm") if fields.get(name) is not None), None)
        if stated_container and program is not None:
            message = f"it is for an image that brings its own program, and {program} names one"
            yield Problem(
                "container", f"{message}; use {_ARGUMENTS_FIELD_BY_PROGRAM[program]}, or leave it out"
            )
        elif (
            isinstance(stated_container, Mapping) and stated_container.get("arguments") and fields.get("args")
        ):
            yield Problem("container.arguments", "args states the arguments too; keep one of them")

    @property
    def program(self) -> str:
        """The program: that of the entry, the algorithm, or the image."""
        return self.entry.program if self.entry is not None else self.algorithm or self.image or ""

    def hosts_of_channel(self, channel: Channel) -> int:
        """Return the number of hosts that get an input: those of its groups, or all."""
        groups = self.compute.instance_groups
        hosts = sum(group.hosts for group in groups if group.name in channel.instance_groups)
        return hosts or self.compute.host_count

    @property
    def image_arguments(self) -> tuple[str, ...]:
        """Arguments of an image's own program."""
        return self.container.arguments or self.args

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Job:
        """Return the job that a mapping with the keys of a job file describes. Raises JobError with every
        mistake: those of the fields, and that it names no program (script, algorithm or image) or two.

        Relative paths stay relative to the working directory.
        """
        if not isinstance(mapping, Mapping):
            raise JobError([Problem("", f"a mapping with the key 'entry' is needed, not {mapping!r}")])
        job = object.__new__(cls)
        problems: list[Problem] = []
        try:
            job._set_fields(mapping)
        except JobError as error:
            problems += error.problems
        if all(getattr(job, name, None) is None for name in _PROGRAM_FIELDS):
            problems.insert(0, _NO_PROGRAM)
        if problems:
            raise JobError(problems, mapping)
        return job

    def check_program(self) -> None:
        """Raise JobError for a job that names no program: only a submitted function needs none."""
        if not self.program:
            raise JobError([_NO_PROGRAM])

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None) -> Job:
        """Read a YAML job file. Relative paths in it are relative to the file.

        ``changes`` (the command line's) override the file, key by key within mappings; relative paths in them
        are relative to the working directory. Raises JobError, for a syntax error with line and column.
        """
        from smlaunch.job.yaml_file import merge_mappings, read_job_file

        mapping = read_job_file(path)
        changes = dict(changes or {})
        for section_name in ("checkpoints", "output"):
            # So that an interval of the command line joins the address of the file.
            for fields in (mapping, changes):
                if section_name in fields:
                    fields[section_name] = expand_shorthand("uri", fields[section_name])
        compute, compute_changes = mapping.get("compute"), changes.get("compute")
        if isinstance(compute, dict) and isinstance(compute_changes, Mapping):
            left_behind = Compute.fields_left_behind(compute, compute_changes)
            mapping["compute"] = {key: value for key, value in compute.items() if key not in left_behind}
        if changes and mapping.get("request"):
            from smlaunch.job.request_members import without_overridden_members

            with suppress(FieldError):
                request = copy_as_json(mapping["request"])
                mapping = dict(without_overridden_members({**mapping, "request": request}, changes))
        job = cls.from_mapping(merge_mappings(mapping, changes))
        object.__setattr__(job, "_file_folder", Path(path).parent)
        return job

    def with_changes(self, **changes: Any) -> Job:
        """Return a copy with other values of some fields. A mapping for a section, such as ``limits``,
        changes the members that it names and no others: ``job.with_changes(limits={"max_runtime": "2h"})``
        keeps ``max_cost``. Any other value, such as a section or the mapping of hyperparameters, replaces the
        field. Raises JobError."""
        job = super().with_changes(**changes)
        object.__setattr__(job, "_file_folder", self._file_folder)
        retained_members = {
            path: member
            for path, member in self._member_by_field.items()
            if re.split(r"[.\[]", path, maxsplit=1)[0] not in changes
        }
        if retained_members:
            members = {**retained_members, **vars(job).get("_member_by_field", {})}
            object.__setattr__(job, "_member_by_field", members)
        return job

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, in plain types. ``from_mapping`` gives the same
        job back."""
        mapping = super().to_mapping()
        if self.entry is not None and self.entry.script is not None:
            mapping["entry"] = self.entry.script
        if self.output is not None and mapping["output"].keys() == {"uri"}:
            mapping["output"] = self.output.uri
        if "workload" in mapping and "hosts" in self.compute.stated_fields:
            # With a workload the plan chooses the number of hosts, unless the job states it, even as 1.
            mapping.setdefault("compute", {})["hosts"] = self.compute.hosts
        return mapping

    def to_yaml(self) -> str:
        """Return the job as a job file. Reading it gives the same job back, if it is written into the folder
        of the file that the job was read from, or else into the working directory: a file's relative paths
        begin in its own folder."""
        from smlaunch.job.yaml_file import dump_job_yaml, relative_paths_to

        return dump_job_yaml(relative_paths_to(self._file_folder, self.to_mapping()))
