"""Job: what the user wants, in one class tree for Python and for YAML.

Objects are frozen. Building one, or reading one from a mapping or a file, checks everything that can be
checked without looking around, and raises one ``JobError`` that lists every mistake with its path. What
needs a look around (does the script exist, is the prefix empty) is the plan's business.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeVar
from urllib.parse import unquote

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationError,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from smlaunch.errors import JobError, Problem
from smlaunch.protocol.launch_spec import AUTO
from smlaunch.protocol.names import RUN_LIMIT, is_run_id
from smlaunch.suggest import did_you_mean, nearest

StrategyName = Literal["custom", "ddp"]
"""The names in the registry of ``smlaunch.strategies``, which is above this module; a test compares them."""

LauncherName = Literal["runtime", "torchrun"]
"""protocol.launch_spec.LAUNCHERS; a test compares them."""

InputMode = Literal["File", "FastFile", "Pipe"]

DEFAULT_CHECKPOINT_PATH = "/opt/ml/checkpoints"

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?")
_S3 = re.compile(r"s3://[^/\s]+(/.*)?", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_CHANNEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,511}")
"""Both as CreateTrainingJob has them (botocore's service model): ChannelName, TrainingEnvironmentKey."""

_DEEPEST = 32
_Function = TypeVar("_Function", bound=Callable[..., Any])


# ---- durations -----------------------------------------------------------------------------------


def parse_duration(text: str) -> int:
    """Seconds in ``90m``, ``24h``, ``60d`` or ``1h30m``. Raises ValueError with what is wrong."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text!r} is not a duration; write a number with its unit, such as 90m, 24h or 60d")
    seconds = sum(int(n or 0) * size for n, size in zip(match.groups(), _UNITS.values(), strict=True))
    if seconds < 1:
        raise ValueError(f"{text!r} is no time at all; one second is the least")
    return seconds


def format_duration(seconds: int) -> str:
    """The shortest exact text: 5400 is ``90m``, 86400 is ``24h``, 172800 is ``2d``."""
    if seconds % 86400 == 0 and seconds > 86400:
        return f"{seconds // 86400}d"
    for unit in "hms":
        if seconds % _UNITS[unit] == 0:
            return f"{seconds // _UNITS[unit]}{unit}"
    raise AssertionError("every whole number of seconds ends in s")


# ---- field types ---------------------------------------------------------------------------------


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("job", "{message}", {"message": message})


def _sendable(text: str) -> str:
    """Words end up as process arguments and UTF-8 JSON, which some Python strings cannot be."""
    if "\0" in text:
        raise _wrong("a NUL character cannot be passed to a process; take it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _wrong(f"character {error.start} is half of a surrogate pair, which is not text") from None
    return text


def _whole_number_as_text(value: Any) -> Any:
    """``3`` may stand for ``"3"``; ``0.10`` and ``true`` have more than one spelling and must be quoted."""
    return str(value) if type(value) is int else value


def _path(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _not_empty(text: str) -> str:
    if not text.strip():
        raise _wrong("it is empty")
    return text


def _duration(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        example = f"{value}s" if type(value) is int else "90m"
        raise _wrong(f"a duration with its unit is needed, such as {example} or 24h, not {value!r}")
    try:
        return format_duration(parse_duration(value))
    except ValueError as error:
        raise _wrong(str(error)) from None


def _processes(value: Any) -> Any:
    if value is None or value == AUTO or (type(value) is int and value >= 1):
        return value
    raise _wrong(f"a number from 1 or {AUTO!r} (one per accelerator) is needed, not {value!r}")


def _s3_uri(text: str) -> str:
    if not _S3.fullmatch(text):
        raise _wrong(f"{text!r} is not an S3 address; write s3://bucket/prefix/")
    return text


def _data_uri(text: str) -> str:
    scheme = _SCHEME.match(text)
    if scheme is None:
        return text
    if scheme.group().lower() == "file://":
        return _path_of(text)
    return _s3_uri(text)


def _path_of(uri: str) -> str:
    """The local path a ``file://`` address means (RFC 8089): no host but localhost, %XX for odd bytes."""
    host, slash, path = uri[len("file://") :].partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise _wrong(f"{uri!r} is no file on this machine; write file:///absolute/path, or the path itself")
    local = unquote(slash + path)
    if "\0" in local:
        raise _wrong(f"{uri!r} holds a zero byte, which no path can")
    return local


def _entry(text: str) -> str:
    if not text.endswith((".py", ".sh")):
        raise _wrong(f"{text!r} is neither a .py nor a .sh script")
    return text


def _channel_name(text: str) -> str:
    if not _CHANNEL.fullmatch(text):
        raise _wrong("a channel's name is 1 to 64 letters, digits, dots, dashes and underscores")
    return text


def _variable(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise _wrong("a variable's name is letters, digits and underscores, and no digit first")
    return text


def _instance_type(text: str) -> str:
    if not re.fullmatch(r"ml\.[a-z0-9-]+\.[a-z0-9-]+", text):
        hint = f", did you mean 'ml.{text}'?" if re.fullmatch(r"[a-z0-9-]+\.[a-z0-9-]+", text) else ""
        raise _wrong(f"{text!r} is not an instance type such as ml.m5.xlarge{hint}")
    return text


def _run_id(text: str) -> str:
    if not is_run_id(text):
        raise _wrong(
            f"{text!r} cannot name a run: lower-case letters, digits and single dashes between them, "
            f"{RUN_LIMIT} characters at most"
        )
    return text


def _json_value(value: Any, depth: int = 0) -> Any:
    """A copy made of JSON's own types. Tuples become lists, so that YAML gives back the same job."""
    if depth > _DEEPEST:
        raise _wrong(f"nested more than {_DEEPEST} levels deep, or within itself")
    if isinstance(value, str):
        return _sendable(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise _wrong(f"{value} is not a JSON number; write it as text in quotes")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_json_value(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _wrong(f"key {key!r} inside it is not text; write it in quotes")
        return {_sendable(key): _json_value(item, depth + 1) for key, item in value.items()}
    raise _wrong(f"a {type(value).__name__} cannot be written as JSON; use text, numbers, lists or mappings")


def _as_mapping(key: str, value: Any) -> Any:
    """A bare string stands for the object whose first field it is: ``train: s3://bucket/data/``."""
    return {key: _path(value)} if isinstance(value, (str, os.PathLike)) else value


Text = Annotated[str, Field(strict=True), AfterValidator(_sendable)]
ChannelName = Annotated[Text, AfterValidator(_channel_name)]
VariableName = Annotated[Text, AfterValidator(_variable)]
FilledText = Annotated[Text, AfterValidator(_not_empty)]
Word = Annotated[Text, BeforeValidator(_whole_number_as_text)]
Path = Annotated[FilledText, BeforeValidator(_path)]
S3Uri = Annotated[Text, AfterValidator(_s3_uri)]
Duration = Annotated[str | None, PlainValidator(_duration, json_schema_input_type=str | None)]
Hyperparameter = Annotated[Any, PlainValidator(_json_value, json_schema_input_type=Any)]
Count = Annotated[int, Field(strict=True, ge=1)]
Flag = Annotated[bool, Field(strict=True)]
Dollars = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


# ---- the tree ------------------------------------------------------------------------------------


def _outermost(function: _Function) -> _Function:
    """Marks an ``__init__`` that only translates errors: nested mappings are validated without it, so that
    the outermost object reports all mistakes, each by its full path."""
    function.__dict__["__pydantic_base_init__"] = True
    return function


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

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
    ``split``: None gives every host all of it; ``key`` gives every host a part of the objects.
    """

    uri: Annotated[Path, AfterValidator(_data_uri)]
    mode: InputMode = "File"
    split: Literal["key"] | None = None
    content_type: FilledText | None = None

    @_outermost
    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        mode: InputMode = "File",
        split: Literal["key"] | None = None,
        content_type: str | None = None,
    ) -> None:
        _fill(self, {"uri": uri, "mode": mode, "split": split, "content_type": content_type})

    @property
    def is_local(self) -> bool:
        return not self.uri.startswith("s3://")


class Compute(_Part):
    """The machines.

    ``processes_per_host``: a number, ``auto`` (one per accelerator, else one), or None to let the plan say.
    ``volume_gb``: the disk of each host, in GB (types with their own NVMe disk ignore it).
    ``price_per_hour``: US dollars for one host and hour, where the catalog knows none or an old one.
    """

    hosts: Count = 1
    processes_per_host: Annotated[
        int | Literal["auto"] | None,
        PlainValidator(_processes, json_schema_input_type=int | Literal["auto"] | None),
    ] = None
    instance_type: Annotated[Text, AfterValidator(_instance_type)] | None = None
    volume_gb: Count | None = None
    spot: Flag = False
    price_per_hour: Dollars | None = None


class Limits(_Part):
    """Where a run is ended whatever it does.

    ``max_runtime``: training time. ``max_wait``: training time and waiting for spot capacity together, only
    with spot. ``hang``: for how long all ranks of a host may print nothing and use no CPU; None leaves it to
    the strategy. ``max_cost``: US dollars; a plan that could cost more is refused before anything starts.
    """

    max_runtime: Duration = None
    max_wait: Duration = None
    hang: Duration = None
    max_cost: Dollars | None = None


class Checkpoints(_Part):
    """An S3 prefix that is brought to ``local_path`` on every host before the start, and kept equal to it
    while training (SageMaker's checkpoint sync: a file deleted locally is deleted in S3 too)."""

    uri: S3Uri
    local_path: FilledText = DEFAULT_CHECKPOINT_PATH

    @_outermost
    def __init__(self, uri: str, *, local_path: str = DEFAULT_CHECKPOINT_PATH) -> None:
        _fill(self, {"uri": uri, "local_path": local_path})


class Job(_Part):
    """A training job.

    ``entry``: the script, ``.py`` or ``.sh``. ``source``: the directory that is sent with it, by default the
    script's own. ``requirements``: a pip requirements file, relative to ``source``, installed on every host
    before the start. ``args`` go to the script before the hyperparameters, word for word.
    ``launcher``: who starts a host's ranks, smlaunch's own runtime or PyTorch's torchrun.
    ``image``: a container image; without one the plan takes AWS's PyTorch image, of ``framework_version``
    where that is given. ``output``: the S3 prefix below which model and output are written.
    """

    entry: Annotated[Path, AfterValidator(_entry)]
    strategy: StrategyName | None = None
    launcher: LauncherName = "runtime"
    args: tuple[Word, ...] = ()
    hyperparameters: dict[FilledText, Hyperparameter] = {}
    compute: Compute = Compute()
    inputs: dict[ChannelName, Annotated[Channel, BeforeValidator(partial(_as_mapping, "uri"))]] = {}
    source: Path | None = None
    requirements: FilledText | None = None
    image: FilledText | None = None
    framework_version: FilledText | None = None
    environment: dict[VariableName, Word] = {}
    limits: Limits = Limits()
    checkpoints: Annotated[Checkpoints | None, BeforeValidator(partial(_as_mapping, "uri"))] = None
    output: S3Uri | None = None
    role: FilledText | None = None
    network_isolation: Flag = False
    encrypt_traffic: Flag = False
    subnets: tuple[FilledText, ...] = ()
    security_groups: tuple[FilledText, ...] = ()
    tags: dict[Text, Word] = {}
    name: Annotated[Text, AfterValidator(_run_id)] | None = None

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Job:
        """Raises JobError with every mistake. Relative paths stay relative to the working directory."""
        if not isinstance(mapping, Mapping):
            raise JobError([Problem("", f"a mapping with the key 'entry' is needed, not {mapping!r}")])
        try:
            return cls.model_validate(dict(mapping))
        except ValidationError as error:
            raise JobError(problems_of(error, cls)) from None

    @classmethod
    def from_file(cls, path: str | os.PathLike[str], changes: Mapping[str, Any] | None = None) -> Job:
        """Reads a YAML job file; relative paths in it are relative to the file.

        ``changes`` (the command line's) are laid over the file, key by key within mappings; relative paths in
        them stay relative to the working directory. Raises JobError, for a syntax error with line and column.
        """
        from smlaunch.job_file import merged, read_mapping

        return cls.from_mapping(merged(read_mapping(path), changes or {}))

    def to_mapping(self) -> dict[str, Any]:
        """What differs from the defaults, in plain types; ``from_mapping`` gives the same job back."""
        mapping: dict[str, Any] = self.model_dump(mode="json", exclude_defaults=True)
        return mapping

    def to_yaml(self) -> str:
        """The job as a job file; reading it gives the same job back."""
        from smlaunch.job_file import write_mapping

        return write_mapping(self.to_mapping())


# ---- mistakes ------------------------------------------------------------------------------------

_SECTIONS: Mapping[str, type[_Part]] = {
    "compute": Compute,
    "limits": Limits,
    "checkpoints": Checkpoints,
    "inputs": Channel,
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
    section = _SECTIONS.get(str(location[0])) if location and model is Job else model
    return list((section or model).model_fields)


def _known_keys(location: list[int | str], model: type[BaseModel]) -> str:
    name = str(location[-1])
    siblings = _fields_at(location if len(location) > 1 else [], model)
    if nearest(name, siblings) is None and model is Job:
        for section, part in _SECTIONS.items():
            if name in part.model_fields and section != "inputs":
                return f", did you mean '{section}.{name}'?"
        if name in Job.model_fields:
            return f", did you mean {name!r} at the top of the job?"
    return did_you_mean(name, siblings)


def _spelled(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _shown(value: Any) -> str:
    text = _spelled(value) if isinstance(value, bool) else "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
