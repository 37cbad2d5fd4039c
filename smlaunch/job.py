"""Job: what the user wants, in one class tree for Python and for YAML.

Objects are frozen. Building one, or reading one from a mapping or a file, checks everything that can be
checked without looking around, and raises one ``JobError`` that lists every mistake with its path. What
needs a look around (does the script exist, is the prefix empty) is the plan's business.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from smlaunch.errors import JobError, Problem
from smlaunch.job_fields import (
    AccountId,
    ChannelName,
    Count,
    DataUri,
    Dollars,
    Duration,
    Entry,
    FilledText,
    Flag,
    Hyperparameter,
    InstanceTypeName,
    Path,
    Processes,
    RunId,
    S3Uri,
    Size,
    StrategyName,
    Text,
    VariableName,
    Word,
    as_mapping,
)
from smlaunch.job_fields import format_duration as format_duration
from smlaunch.job_fields import parse_duration as parse_duration
from smlaunch.masking import MASK, mask, secret_name
from smlaunch.suggest import did_you_mean, nearest

LauncherName = Literal["runtime", "torchrun"]
"""Those of protocol.launch_spec.LAUNCHERS that a job may ask for; a test compares them."""

InputMode = Literal["File", "FastFile", "Pipe"]

SplitName = Literal["key", "bytes"]

CarryName = Literal["shards", "lists", "jobs"]

CarrierName = Literal["sync", "direct"]
"""protocol.segment.CARRIERS; a test compares them."""

DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"

_Function = TypeVar("_Function", bound=Callable[..., Any])


# ---- the tree ------------------------------------------------------------------------------------


def _outermost(function: _Function) -> _Function:
    """Marks an ``__init__`` that only translates errors: nested mappings are validated without it, so that
    the outermost object reports all mistakes, each by its full path."""
    function.__dict__["__pydantic_base_init__"] = True
    return function


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """As it may stand in a log: secrets are masked."""
        for name, value in super().__repr_args__():
            yield name, mask(value) if isinstance(value, (dict, tuple, str)) else value

    @_outermost
    def __init__(self, /, **fields: Any) -> None:
        _fill(self, fields)


def _fill(part: _Part, fields: Mapping[str, Any]) -> None:
    try:
        type(part).__pydantic_validator__.validate_python(fields, self_instance=part)
    except ValidationError as error:
        raise JobError(problems_of(error, type(part))) from None


class Channel(_Part):
    """One input: data that every host finds at ``/opt/ml/input/data/<name>``.

    ``uri``: an S3 prefix, or a local file or directory, which is sent to the run's bucket first.
    ``mode``: ``File`` (copied before the start), ``FastFile`` (read on demand) or ``Pipe``.
    ``split``: None gives every host all of it; ``key`` lets the service deal out the objects by number;
    ``bytes`` gives every host about the same number of bytes.
    ``carry``: how a split by bytes comes to the hosts; None lets the plan say. ``shards``: the prefix is
    packed in shards of one size (``smlaunch data pack``), which the service deals out. ``lists``: every host
    sees all of it and reads its own list (``smlaunch.train.part_files``). ``jobs``: a job for each part.
    ``content_type``: told to built-in algorithms, such as text/csv. ``bucket_owner``: the account (twelve
    digits) that has to own the bucket; None takes the bucket whosever it is, as for public data.
    """

    uri: DataUri
    mode: InputMode = "File"
    split: SplitName | None = None
    carry: CarryName | None = None
    content_type: FilledText | None = None
    bucket_owner: AccountId | None = None

    @_outermost
    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        mode: InputMode = "File",
        split: SplitName | None = None,
        carry: CarryName | None = None,
        content_type: str | None = None,
        bucket_owner: str | None = None,
    ) -> None:
        how = {"mode": mode, "split": split, "carry": carry}
        _fill(self, {"uri": uri, **how, "content_type": content_type, "bucket_owner": bucket_owner})

    @property
    def is_local(self) -> bool:
        return not self.uri.startswith("s3://")


class Compute(_Part):
    """The machines.

    ``hosts``: how many. ``instance_type``: such as ml.g5.12xlarge; left out, the plan chooses. ``spot``:
    managed spot capacity, which is cheaper and may be taken away.
    ``processes_per_host``: a number, ``auto`` (one per accelerator, else one), or None to let the plan say.
    ``volume_gb``: the disk of each host, in GB (types with their own NVMe disk ignore it).
    ``on_demand_fallback``: a segment that spot capacity does not come for is tried again on demand.
    ``price_per_hour``: US dollars for one host and hour, where the catalog knows none or an old one.
    ``instance_preferences``: types in order of preference instead of one ``instance_type``: the service takes
    the first that it has capacity for. ``keep_alive``: for how long hosts wait for the next job when this one
    has ended, and are billed (a warm pool).
    """

    hosts: Count = 1
    processes_per_host: Processes = None
    instance_type: InstanceTypeName | None = None
    volume_gb: Count | None = None
    spot: Flag = False
    on_demand_fallback: Flag = False
    price_per_hour: Dollars | None = None
    instance_preferences: Annotated[tuple[InstanceTypeName, ...], Field(max_length=5)] = ()
    keep_alive: Duration = None


class Limits(_Part):
    """Where a run is ended whatever it does.

    ``max_runtime``: training time, of all segments together. ``segment``: training time of one job at most; a
    run that may train longer is a chain of such segments, each going on from the checkpoints of the one
    before. ``max_wait``: training time and waiting for spot capacity together, of one job, only with spot.
    ``max_pending``: waiting for capacity of accelerated types, on demand.
    ``hang``: for how long all ranks of a host may print nothing and use no CPU; None leaves it to the
    strategy. ``attempts``: jobs tried per segment without progress, 3 in a chain and 1 otherwise where it is
    None. ``max_cost``: US dollars; a plan of one job that could cost more is refused before anything starts,
    a chain ends at a checkpoint before it does.
    """

    max_runtime: Duration = None
    segment: Duration = None
    max_wait: Duration = None
    max_pending: Duration = None
    hang: Duration = None
    attempts: Count | None = None
    max_cost: Dollars | None = None


class Checkpoints(_Part):
    """What is kept of a training while it runs, in S3 and in ``local_path`` on every host.

    ``uri``: the S3 prefix, by default one of the run's own. ``local_path``: where every host finds and writes
    them. ``interval``: between two checkpoints; None lets
    it follow from what a checkpoint costs and how often hosts fail. ``keep``: newest ones that stay.
    ``carrier``: ``sync`` brings the whole prefix to every host before its start and keeps both equal while
    training (SageMaker's checkpoint sync: a file deleted locally is deleted in S3 too), ``direct`` lets every
    rank move its own part; None lets the plan say. ``bucket_owner``: the account (twelve digits) that owns
    the bucket of ``uri``, where it is not the caller's own.
    """

    uri: S3Uri | None = None
    local_path: FilledText = DEFAULT_CHECKPOINT_PATH
    interval: Duration = None
    keep: Annotated[int, Field(strict=True, ge=3)] = 3
    carrier: CarrierName | None = None
    bucket_owner: AccountId | None = None

    @_outermost
    def __init__(
        self,
        uri: str | None = None,
        *,
        local_path: str = DEFAULT_CHECKPOINT_PATH,
        interval: str | None = None,
        keep: int = 3,
        carrier: CarrierName | None = None,
        bucket_owner: str | None = None,
    ) -> None:
        fields = {"local_path": local_path, "interval": interval, "keep": keep, "carrier": carrier}
        _fill(self, {"uri": uri, **fields, "bucket_owner": bucket_owner})


class Workload(_Part):
    """What only the user can know of the work, for the plan to choose by. Nothing of it is sent.

    ``kind``: None lets the plan see it from the script. ``model_memory``: what one replica needs on its
    accelerator while it trains (weights, gradients, optimizer state, activations). ``time_on_one``: what the
    work takes on one accelerator, or on one host without. ``measured_on``: the instance type that was seen
    on. ``wanted_time``: how long it may take. ``preprocessing``: how much the CPUs do for every batch.
    ``batch_size``: of one rank. ``learning_rate``: tuned for one rank with that batch size. ``optimizer``:
    such as sgd or adamw.
    """

    kind: Literal["training", "preparation", "inference"] | None = None
    model_memory: Size = None
    time_on_one: Duration = None
    measured_on: InstanceTypeName | None = None
    wanted_time: Duration = None
    preprocessing: Literal["light", "heavy"] | None = None
    batch_size: Count | None = None
    learning_rate: Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)] | None = None
    optimizer: FilledText | None = None


class SegmentCompute(_Part):
    """What may differ in the machines of a segment; None leaves it as the job has it.

    ``hosts``: how many. ``processes_per_host``: a number, or ``auto``. ``instance_type``: of all hosts.
    """

    hosts: Count | None = None
    processes_per_host: Processes = None
    instance_type: InstanceTypeName | None = None


class SegmentChange(_Part):
    """How one segment differs from the job: the first of the job's ``segments`` stands for the first segment,
    and so on; the last one holds for all that follow.

    ``hyperparameters``: laid over the job's own. ``compute``: machines that differ. ``until_step``: the
    training step after which the next change begins, however many segments that takes. ``length``: training
    time of such a segment at most.
    """

    hyperparameters: dict[FilledText, Hyperparameter] = {}
    compute: SegmentCompute = SegmentCompute()
    until_step: Count | None = None
    length: Duration = None


class Job(_Part):
    """A training job, or a processing job.

    It runs one thing. ``entry``: a script, ``.py`` or ``.sh``, or a program that can be executed.
    ``algorithm``: one of SageMaker's built-in algorithms instead. ``image``: a container image; with neither
    of the two it brings a program of its own, which nothing of smlaunch's is added to; where it is left out,
    the plan takes AWS's image for the strategy.

    ``strategy``: how it is distributed; left out, the plan chooses and says why. ``options``: what the
    strategy can be told; each names its own (docs/strategies.md). ``launcher``: who starts a host's ranks,
    smlaunch's own runtime or PyTorch's torchrun. ``args``: words for the script, before the hyperparameters
    and as they are; for an image's own program, its arguments. ``hyperparameters``: what the script gets as
    ``--key value``, an algorithm as its parameters. ``inputs``: data, by channel name. ``source``: the
    directory that is sent with the entry, by default its own. ``include_secrets``: send its files, and those
    of local inputs, also where they look like secrets. ``requirements``: a pip requirements file,
    relative to the source, installed on every host before the start. ``framework_version``: of AWS's image,
    such as 2.13. ``environment``: variables of every process. ``deterministic``: ranks that use
    smlaunch.train compute bit by bit the same every time, or say why not. ``segments``: changes of a chain's
    segments, in their order. ``checkpoints``: what is kept of a training while it runs. ``output``: the S3
    prefix below which model and output are written. ``bucket_owner``: the account (twelve digits) that owns
    the bucket of ``output``, where it is not the caller's own. ``role``: the execution role, by name or ARN.
    ``network_isolation``: hosts reach nothing outside. ``encrypt_traffic``: between the hosts. ``subnets``:
    of the VPC that hosts run in. ``security_groups``: the same. ``tags``: of every job that is made.
    ``name``: the run's id; the same job and name attach to the run that exists.
    """

    entry: Entry | None = None
    algorithm: FilledText | None = None
    strategy: StrategyName | None = None
    options: dict[FilledText, Hyperparameter] = {}
    launcher: LauncherName = "runtime"
    args: tuple[Word, ...] = ()
    hyperparameters: dict[FilledText, Hyperparameter] = {}
    compute: Compute = Compute()
    inputs: dict[ChannelName, Annotated[Channel, BeforeValidator(partial(as_mapping, "uri"))]] = {}
    source: Path | None = None
    include_secrets: Flag = False
    requirements: FilledText | None = None
    image: FilledText | None = None
    framework_version: FilledText | None = None
    environment: dict[VariableName, Word] = {}
    limits: Limits = Limits()
    workload: Workload = Workload()
    deterministic: Flag = False
    segments: tuple[SegmentChange, ...] = ()
    checkpoints: Annotated[Checkpoints | None, BeforeValidator(partial(as_mapping, "uri"))] = None
    output: S3Uri | None = None
    bucket_owner: AccountId | None = None
    role: FilledText | None = None
    network_isolation: Flag = False
    encrypt_traffic: Flag = False
    subnets: tuple[FilledText, ...] = ()
    security_groups: tuple[FilledText, ...] = ()
    tags: dict[Text, Word] = {}
    name: RunId | None = None

    @_outermost
    def __init__(self, /, **fields: Any) -> None:
        problems = _program_problems(fields)
        try:
            _fill(self, fields)
        except JobError as error:
            raise JobError([*problems, *error.problems]) from None
        if problems:
            raise JobError(problems)

    @property
    def program(self) -> str:
        """What is run, in a word: the script's path, the algorithm, or the image."""
        return self.entry or self.algorithm or self.image or ""

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Job:
        """Raises JobError with every mistake. Relative paths stay relative to the working directory."""
        if not isinstance(mapping, Mapping):
            raise JobError([Problem("", f"a mapping with the key 'entry' is needed, not {mapping!r}")])
        problems = _program_problems(mapping)
        try:
            job = cls.model_validate(dict(mapping))
        except ValidationError as error:
            raise JobError([*problems, *problems_of(error, cls)], mapping) from None
        if problems:
            raise JobError(problems, mapping)
        return job

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None) -> Job:
        """Reads a YAML job file; relative paths in it are relative to the file.

        ``changes`` (the command line's) are laid over the file, key by key within mappings; relative paths in
        them stay relative to the working directory. Raises JobError, for a syntax error with line and column.
        """
        from smlaunch.job_file import merged, read_mapping

        mapping = read_mapping(path)
        if "checkpoints" in mapping:
            # So that an interval of the command line joins the address of the file.
            mapping["checkpoints"] = as_mapping("uri", mapping["checkpoints"])
        return cls.from_mapping(merged(mapping, changes or {}))

    def to_mapping(self) -> dict[str, Any]:
        """What differs from the defaults, in plain types; ``from_mapping`` gives the same job back."""
        mapping: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        if "workload" in mapping and "hosts" in self.compute.model_fields_set:
            # With a workload the plan chooses how many, unless they are stated; one is a statement too.
            mapping.setdefault("compute", {})["hosts"] = self.compute.hosts
        return mapping

    def to_yaml(self) -> str:
        """The job as a job file; reading it gives the same job back."""
        from smlaunch.job_file import write_mapping

        return write_mapping(self.to_mapping())


def _program_problems(fields: Mapping[str, Any]) -> list[Problem]:
    """A job runs one thing."""
    entry, algorithm = fields.get("entry"), fields.get("algorithm")
    if entry is not None and algorithm is not None:
        told = "a built-in algorithm brings its own program; leave out algorithm, or entry"
        return [Problem("algorithm", told)]
    if entry is None and algorithm is None and fields.get("image") is None:
        told = "it is missing; name a script, or an algorithm, or an image with a program of its own"
        return [Problem("entry", told)]
    return []


# ---- mistakes ------------------------------------------------------------------------------------

_SECTIONS: Mapping[str, type[_Part]] = {
    "compute": Compute,
    "limits": Limits,
    "workload": Workload,
    "checkpoints": Checkpoints,
    "inputs": Channel,
    "segments": SegmentChange,
}

_NEEDED = {
    "int_type": "a whole number is needed",
    "float_type": "a number is needed",
    "finite_number": "a finite number is needed",
    "bool_type": "true or false is needed",
    "tuple_type": "a list is needed",
    "dict_type": "a mapping is needed",
}


def problems_of(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Pydantic's errors in this project's words: path as the user wrote it, cause, next step."""
    return [_problem(detail, model) for detail in error.errors(include_url=False)]


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> Problem:
    location = [part for part in detail["loc"] if part != "[key]"]
    value, context = detail["input"], detail.get("ctx", {})
    if any(isinstance(part, str) and secret_name(part) for part in location):
        value = MASK
    kind = detail["type"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).lstrip(".")
    if "[key]" in detail["loc"]:
        # A key's own location ends in the key itself, which may be anything but text.
        return Problem(".".join(map(str, location[:-1])), f"key {value!r} {_key_fault(detail)}")
    if kind == "extra_forbidden":
        return Problem(path, "unknown key" + _known_keys(location, model))
    if kind == "missing":
        return Problem(path, "it is missing")
    if kind == "literal_error":
        known = [word.strip("'") for word in re.split(r", | or ", context["expected"])]
        return Problem(path, f"{value!r} is unknown" + did_you_mean(str(value), known))
    if kind == "string_type":
        quoted = f"; write it in quotes: '{_spelled(value)}'" if isinstance(value, (bool, int, float)) else ""
        return Problem(path, f"text is needed, not {_shown(value)}{quoted}")
    if kind in ("model_type", "model_attributes_type"):
        keys = ", ".join(_fields_at(location, model))
        return Problem(path, f"a mapping is needed (keys: {keys}), not {_shown(value)}")
    if kind == "too_long":
        return Problem(path, f"{context['actual_length']} are too many: at most {context['max_length']}")
    if kind in ("greater_than", "greater_than_equal"):
        least = f"more than {context['gt']:g}" if "gt" in context else f"at least {context['ge']}"
        return Problem(path, f"{value!r} is too small: {least}")
    if kind in _NEEDED:
        return Problem(path, f"{_NEEDED[kind]}, not {_shown(value)}")
    return Problem(path, detail["msg"])


def _key_fault(detail: ErrorDetails) -> str:
    if detail["type"] == "string_type":
        return "is not text; write it in quotes"
    return f"will not do: {detail['msg']}"


def _fields_at(location: list[int | str], model: type[BaseModel]) -> list[str]:
    """Of the section that ``location`` leads into."""
    section = _SECTIONS.get(str(location[0])) if location and model is Job else model
    if section is SegmentChange and "compute" in location[2:3]:
        section = SegmentCompute
    return list((section or model).model_fields)


def _known_keys(location: list[int | str], model: type[BaseModel]) -> str:
    name = str(location[-1])
    siblings = _fields_at(location[:-1], model)
    if nearest(name, siblings) is None and model is Job:
        for section, part in _SECTIONS.items():
            if name in part.model_fields and section not in ("inputs", "segments"):
                return f", did you mean '{section}.{name}'?"
        if name in Job.model_fields:
            return f", did you mean {name!r} at the top of the job?"
    return did_you_mean(name, siblings)


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: Any) -> str:
    text = _spelled(value) if isinstance(value, bool) else "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
