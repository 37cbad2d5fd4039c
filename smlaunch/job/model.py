"""Job: what the user wants, in one class tree for Python and for YAML.

Objects are frozen. Building one, or reading one from a mapping or a file, checks everything that needs no
access to files or services, and raises one ``JobError`` that lists every mistake with its path. Other checks
(does the script exist, is the prefix empty) are the plan's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from smlaunch.errors import JobError, Problem
from smlaunch.job.fields import (
    AccountId,
    ByteSize,
    ChannelName,
    DataUri,
    Dollars,
    Duration,
    Entry,
    Hyperparameter,
    InstanceTypeName,
    NonEmptyText,
    PathText,
    PositiveInt,
    ProcessCount,
    RunId,
    S3Uri,
    StrategyName,
    StrictBool,
    Text,
    TextOrInteger,
    VariableName,
    expand_shorthand,
)
from smlaunch.job.fields import format_duration as format_duration
from smlaunch.job.fields import parse_duration as parse_duration
from smlaunch.secrets.masking import MASK, is_secret_name, mask_document
from smlaunch.text.did_you_mean import did_you_mean, nearest_match

LauncherName = Literal["runtime", "torchrun"]
"""Those of contract.launch_spec.LAUNCHERS that a job may ask for; a test compares them."""

InputMode = Literal["File", "FastFile", "Pipe"]

SplitName = Literal["key", "bytes"]

SplitViaName = Literal["shards", "lists", "jobs"]

UploadName = Literal["sync", "direct"]
"""contract.segment.UPLOADS; a test compares them."""

DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"


# ---- the tree ------------------------------------------------------------------------------------


class _SectionType(type(BaseModel)):  # type: ignore[misc]  # pydantic does not export the type's name
    """Calling one of the classes raises one JobError with every mistake, each by its full path.

    pydantic builds nested sections from mappings without calling their classes, unless a class has an
    ``__init__`` of its own when it is created. The classes' ``__init__`` is only for callers, so it is added
    afterwards.
    """

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> Any:
        init = namespace.pop("__init__", None)
        section_class = super().__new__(cls, name, bases, namespace, **options)
        if init is not None:
            section_class.__init__ = init
            _, *parameters = signature(init).parameters.values()
            if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters):
                section_class.__signature__ = Signature(parameters, return_annotation=None)
        return section_class

    def __call__(cls, *arguments: Any, **fields: Any) -> Any:
        try:
            return super().__call__(*arguments, **fields)
        except ValidationError as error:
            raise JobError(validation_problems(error, cls)) from None


_section_type: Any = _SectionType
"""Typed as Any, so that type checkers take the classes below for ordinary models."""


class _Section(BaseModel, metaclass=_section_type):  # type: ignore[metaclass]
    model_config = ConfigDict(extra="forbid", frozen=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Mask secrets, because a log may show the object. pydantic calls this for its ``repr``."""
        for name, value in super().__repr_args__():
            yield name, mask_document(value) if isinstance(value, (dict, tuple, str)) else value


class Channel(_Section):
    """One input: data that every host finds at ``/opt/ml/input/data/<name>``."""

    uri: DataUri
    """An S3 prefix, or a local file or directory, which is uploaded to the run's bucket first."""
    mode: InputMode = "File"
    """How the data reaches the hosts: File (copied before the start), FastFile (read on demand) or Pipe."""
    split: SplitName | None = None
    """How data is divided among hosts: by key (the service deals out the objects by number) or by bytes
    (about the same number of bytes for every host). None gives every host all data."""
    split_via: SplitViaName | None = None
    """How a split by bytes reaches the hosts. ``shards``: the prefix is packed in shards of one size
    (``smlaunch data pack``), which the service deals out. ``lists``: every host sees all data and reads its
    own list (``smlaunch.train.shard_files``). ``jobs``: one job for each shard. None lets the plan choose."""
    content_type: NonEmptyText | None = None
    """Passed to built-in algorithms, such as text/csv."""
    bucket_owner: AccountId | None = None
    """The account (twelve digits) that must own the bucket. None accepts any owner, as for public data."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        mode: InputMode = "File",
        split: SplitName | None = None,
        split_via: SplitViaName | None = None,
        content_type: str | None = None,
        bucket_owner: str | None = None,
    ) -> None:
        BaseModel.__init__(
            self,
            uri=uri,
            mode=mode,
            split=split,
            split_via=split_via,
            content_type=content_type,
            bucket_owner=bucket_owner,
        )

    @property
    def is_local(self) -> bool:
        return not self.uri.startswith("s3://")


class Compute(_Section):
    """The hosts of a run."""

    hosts: PositiveInt = 1
    """Number of hosts."""
    processes_per_host: ProcessCount = None
    """A number, ``auto`` (one for each accelerator, else one), or None to let the plan choose."""
    instance_type: InstanceTypeName | None = None
    """Such as ml.g5.12xlarge. None lets the plan choose."""
    volume_gb: PositiveInt | None = None
    """Disk of each host, in GB. Types with their own NVMe disk ignore it."""
    spot: StrictBool = False
    """Use managed spot capacity, which is cheaper and may be interrupted."""
    on_demand_fallback: StrictBool = False
    """Retry a segment on demand when no spot capacity is available for it."""
    price_per_hour: Dollars | None = None
    """US dollars for one host and hour, where the catalog has no price or an old one."""
    instance_preferences: Annotated[tuple[InstanceTypeName, ...], Field(max_length=5)] = ()
    """Instance types in order of preference, instead of one instance_type: the service uses the first with
    capacity."""
    keep_alive: Duration = None
    """How long hosts wait for the next job after this one has ended, and are billed (a warm pool)."""


class Limits(_Section):
    """When a run is ended, whatever its state."""

    max_runtime: Duration = None
    """Training time of all segments together."""
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
    max_cost: Dollars | None = None
    """US dollars. A plan of one job that could cost more is refused before anything starts; a chain ends at a
    checkpoint before it does."""


class Checkpoints(_Section):
    """Where and how a training saves its state while it runs."""

    uri: S3Uri | None = None
    """The S3 prefix; by default one of the run's own."""
    local_path: NonEmptyText = DEFAULT_CHECKPOINT_PATH
    """Directory on every host that checkpoints are written to and read from."""
    interval: Duration = None
    """Time between two checkpoints. None derives it from the cost of a checkpoint and the rate of failures.
    """
    keep: Annotated[int, Field(strict=True, ge=3)] = 3
    """Number of newest checkpoints that are not deleted."""
    upload: UploadName | None = None
    """How checkpoints reach S3. ``sync`` copies the whole prefix to every host before its start and keeps
    both equal during the training (SageMaker's checkpoint sync: a file that is deleted locally is deleted in
    S3 too). ``direct`` lets every rank transfer its own part. None lets the plan choose."""
    bucket_owner: AccountId | None = None
    """The account (twelve digits) that owns the bucket of uri, where it is not the caller's own."""

    def __init__(
        self,
        uri: str | None = None,
        *,
        local_path: str = DEFAULT_CHECKPOINT_PATH,
        interval: str | None = None,
        keep: int = 3,
        upload: UploadName | None = None,
        bucket_owner: str | None = None,
    ) -> None:
        BaseModel.__init__(
            self,
            uri=uri,
            local_path=local_path,
            interval=interval,
            keep=keep,
            upload=upload,
            bucket_owner=bucket_owner,
        )


class Workload(_Section):
    """What only the user can know about the work, for the plan's choices. Nothing of it is sent."""

    kind: Literal["training", "preparation", "inference"] | None = None
    """The kind of work. None lets the plan derive it from the script."""
    model_memory: ByteSize = None
    """Memory that one replica needs on its accelerator during the training (weights, gradients, optimizer
    state, activations)."""
    time_on_one: Duration = None
    """Duration of the work on one accelerator, or on one host without any."""
    measured_on: InstanceTypeName | None = None
    """Instance type on which time_on_one was measured."""
    wanted_time: Duration = None
    """How long the work may take."""
    preprocessing: Literal["light", "heavy"] | None = None
    """How much work the CPUs do for every batch."""
    batch_size: PositiveInt | None = None
    """Batch size of one rank."""
    learning_rate: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = None
    """Learning rate tuned for one rank with that batch size."""
    optimizer: NonEmptyText | None = None
    """Such as sgd or adamw."""


class SegmentCompute(_Section):
    """Differences in the hosts of a segment. None leaves a field as the job has it."""

    hosts: PositiveInt | None = None
    """Number of hosts."""
    processes_per_host: ProcessCount = None
    """A number, or ``auto``."""
    instance_type: InstanceTypeName | None = None
    """Of all hosts."""


class SegmentChange(_Section):
    """How one segment differs from the job.

    The first of the job's ``segments`` applies to the first segment, and so on; the last one applies to all
    that follow.
    """

    hyperparameters: dict[NonEmptyText, Hyperparameter] = {}
    """Override the job's own."""
    compute: SegmentCompute = SegmentCompute()
    """Differences in the hosts."""
    until_step: PositiveInt | None = None
    """The training step after which the next change begins, however many segments that takes."""
    length: Duration = None
    """Longest training time of such a segment."""


class Job(_Section):
    """A training job, or a processing job. It runs one program: ``entry``, ``algorithm`` or ``image``."""

    entry: Entry | None = None
    """A script, ``.py`` or ``.sh``, or an executable program."""
    algorithm: NonEmptyText | None = None
    """One of SageMaker's built-in algorithms, instead of a script."""
    strategy: StrategyName | None = None
    """How the job is distributed. None lets the plan choose and explain its choice."""
    options: dict[NonEmptyText, Hyperparameter] = {}
    """Options of the strategy; each strategy names its own (docs/strategies.md)."""
    launcher: LauncherName = "runtime"
    """Program that starts a host's ranks: smlaunch's own runtime or PyTorch's torchrun."""
    args: tuple[TextOrInteger, ...] = ()
    """Arguments of the script, unchanged and before the hyperparameters; or arguments of an image's own
    program."""
    hyperparameters: dict[NonEmptyText, Hyperparameter] = {}
    """Passed to a script as ``--key value``, and to an algorithm as its parameters."""
    compute: Compute = Compute()
    """The hosts."""
    inputs: dict[ChannelName, Annotated[Channel, BeforeValidator(partial(expand_shorthand, "uri"))]] = {}
    """Data, by channel name."""
    source: PathText | None = None
    """Directory that is uploaded with the entry; by default the entry's own."""
    include_secrets: StrictBool = False
    """Upload files of the source and of local inputs even if they look like secrets."""
    requirements: NonEmptyText | None = None
    """A pip requirements file, relative to the source, that is installed on every host before the start."""
    image: NonEmptyText | None = None
    """Container image. With neither entry nor algorithm it brings its own program, and smlaunch adds nothing
    to it. None takes AWS's image for the strategy."""
    framework_version: NonEmptyText | None = None
    """Version of AWS's image, such as 2.13."""
    environment: dict[VariableName, TextOrInteger] = {}
    """Environment variables of every process."""
    limits: Limits = Limits()
    """When the run is ended."""
    workload: Workload = Workload()
    """What only the user can know about the work."""
    deterministic: StrictBool = False
    """Ranks that use smlaunch.train compute the same result bit by bit every time, or report why they cannot.
    """
    segments: tuple[SegmentChange, ...] = ()
    """Changes of a chain's segments, in their order."""
    checkpoints: Annotated[Checkpoints | None, BeforeValidator(partial(expand_shorthand, "uri"))] = None
    """Where and how the training saves its state."""
    output: S3Uri | None = None
    """The S3 prefix below which model and output are written."""
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
    tags: dict[Text, TextOrInteger] = {}
    """Tags of every job that is created."""
    name: RunId | None = None
    """The run's id. The same job and name attach to the existing run."""

    def __init__(self, /, **fields: Any) -> None:
        problems = _program_problems(fields)
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise JobError([*problems, *validation_problems(error, Job)]) from None
        if problems:
            raise JobError(problems)

    @property
    def program(self) -> str:
        """The program: the script's path, the algorithm, or the image."""
        return self.entry or self.algorithm or self.image or ""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Job:
        """Return the job of a mapping. Raises JobError with every mistake.

        Relative paths stay relative to the working directory.
        """
        if not isinstance(mapping, Mapping):
            raise JobError([Problem("", f"a mapping with the key 'entry' is needed, not {mapping!r}")])
        problems = _program_problems(mapping)
        try:
            job = cls.model_validate(dict(mapping))
        except ValidationError as error:
            raise JobError([*problems, *validation_problems(error, cls)], mapping) from None
        if problems:
            raise JobError(problems, mapping)
        return job

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None) -> Job:
        """Read a YAML job file. Relative paths in it are relative to the file.

        ``changes`` (the command line's) override the file, key by key within mappings; relative paths in them
        are relative to the working directory. Raises JobError, for a syntax error with line and column.
        """
        from smlaunch.job.yaml_file import merge_mappings, read_job_file

        mapping = read_job_file(path)
        if "checkpoints" in mapping:
            # So that an interval of the command line joins the address of the file.
            mapping["checkpoints"] = expand_shorthand("uri", mapping["checkpoints"])
        return cls.from_mapping(merge_mappings(mapping, changes or {}))

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, in plain types. ``from_mapping`` gives the same
        job back."""
        mapping: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        if "workload" in mapping and "hosts" in self.compute.model_fields_set:
            # With a workload the plan chooses the number of hosts, unless the job states it, even as 1.
            mapping.setdefault("compute", {})["hosts"] = self.compute.hosts
        return mapping

    def to_yaml(self) -> str:
        """Return the job as a job file. Reading it gives the same job back."""
        from smlaunch.job.yaml_file import dump_job_yaml

        return dump_job_yaml(self.to_mapping())


def _program_problems(fields: Mapping[str, Any]) -> list[Problem]:
    """Return the problems of a job that names no program, or two."""
    entry, algorithm = fields.get("entry"), fields.get("algorithm")
    if entry is not None and algorithm is not None:
        message = "a built-in algorithm brings its own program; leave out algorithm, or entry"
        return [Problem("algorithm", message)]
    if entry is None and algorithm is None and fields.get("image") is None:
        message = "it is missing; name a script, or an algorithm, or an image with a program of its own"
        return [Problem("entry", message)]
    return []


# ---- mistakes ------------------------------------------------------------------------------------

_SECTIONS: Mapping[str, type[_Section]] = {
    "compute": Compute,
    "limits": Limits,
    "workload": Workload,
    "checkpoints": Checkpoints,
    "inputs": Channel,
    "segments": SegmentChange,
}

_EXPECTED_TYPES = {
    "int_type": "a whole number is needed",
    "float_type": "a number is needed",
    "finite_number": "a finite number is needed",
    "bool_type": "true or false is needed",
    "tuple_type": "a list is needed",
    "dict_type": "a mapping is needed",
}


def validation_problems(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Translate pydantic's errors: path as the user wrote it, cause, next step."""
    return [_describe_error(detail, model) for detail in error.errors(include_url=False)]


def _describe_error(detail: ErrorDetails, model: type[BaseModel]) -> Problem:
    """Return the problem that a validation error of ``model`` means to the user, at the path of the job's
    field."""
    location = [element for element in detail["loc"] if element != "[key]"]
    value, context = detail["input"], detail.get("ctx", {})
    if any(isinstance(element, str) and is_secret_name(element) for element in location):
        value = MASK
    kind = detail["type"]
    path = "".join(
        f"[{element}]" if isinstance(element, int) else f".{element}" for element in location
    ).lstrip(".")
    if "[key]" in detail["loc"]:
        # A key's own location ends in the key itself, which may be anything but text.
        return Problem(".".join(map(str, location[:-1])), f"key {value!r} {_key_problem(detail)}")
    if kind == "extra_forbidden":
        return Problem(path, "unknown key" + _unknown_key_hint(location, model))
    if kind == "missing":
        return Problem(path, "it is missing")
    if kind == "literal_error":
        choices = [choice.strip("'") for choice in re.split(r", | or ", context["expected"])]
        return Problem(path, f"{value!r} is unknown" + did_you_mean(str(value), choices))
    if kind == "string_type":
        quoted = f"; write it in quotes: '{_as_yaml(value)}'" if isinstance(value, (bool, int, float)) else ""
        return Problem(path, f"text is needed, not {_quote_value(value)}{quoted}")
    if kind in ("model_type", "model_attributes_type"):
        keys = ", ".join(_fields_of_section(location, model))
        return Problem(path, f"a mapping is needed (keys: {keys}), not {_quote_value(value)}")
    if kind == "too_long":
        return Problem(path, f"{context['actual_length']} are too many: at most {context['max_length']}")
    if kind in ("greater_than", "greater_than_equal"):
        minimum = f"more than {context['gt']:g}" if "gt" in context else f"at least {context['ge']}"
        return Problem(path, f"{value!r} is too small: {minimum}")
    if kind in _EXPECTED_TYPES:
        return Problem(path, f"{_EXPECTED_TYPES[kind]}, not {_quote_value(value)}")
    return Problem(path, detail["msg"])


def _key_problem(detail: ErrorDetails) -> str:
    if detail["type"] == "string_type":
        return "is not text; write it in quotes"
    return f"is invalid: {detail['msg']}"


def _fields_of_section(location: list[int | str], model: type[BaseModel]) -> list[str]:
    """Return the field names of the section that ``location`` leads into."""
    section = _SECTIONS.get(str(location[0])) if location and model is Job else model
    if section is SegmentChange and "compute" in location[2:3]:
        section = SegmentCompute
    return list((section or model).model_fields)


def _unknown_key_hint(location: list[int | str], model: type[BaseModel]) -> str:
    """Return a suggestion for an unknown key: a similar key beside it, or the same key elsewhere in the job;
    empty without one. ``location``: path of the key."""
    name = str(location[-1])
    siblings = _fields_of_section(location[:-1], model)
    if nearest_match(name, siblings) is None and model is Job:
        for section_name, section_class in _SECTIONS.items():
            if name in section_class.model_fields and section_name not in ("inputs", "segments"):
                return f", did you mean '{section_name}.{name}'?"
        if name in Job.model_fields:
            return f", did you mean {name!r} at the top of the job?"
    return did_you_mean(name, siblings)


def _as_yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quote_value(value: Any) -> str:
    """Return the value as a message shows it, shortened to 60 characters."""
    text = _as_yaml(value) if isinstance(value, bool) else "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
