"""Types of a job's fields: durations, addresses, names, values, and messages for wrong ones.

Every message is the rest of a line that begins with the field's path.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator
from pydantic_core import PydanticCustomError

from smlaunch.contract.launch_spec import AUTO
from smlaunch.contract.names import MAX_RUN_ID_LENGTH, is_run_id
from smlaunch.strategies.registry import find_strategy as find_strategy
from smlaunch.strategies.registry import known_strategies as known_strategies
from smlaunch.text.did_you_mean import did_you_mean

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGTP]i?B|B)")
_S3 = re.compile(r"s3://[^/\s]+(/.*)?", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NON_PROGRAM_SUFFIXES = (
    ".yaml",
    ".yml",
    ".ipynb",
    ".json",
    ".toml",
    ".txt",
    ".md",
    ".csv",
    ".zip",
    ".gz",
    "/",
)
_ACCOUNT = re.compile(r"[0-9]{12}")
_CHANNEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,511}")
"""Both as CreateTrainingJob has them (botocore's service model): ChannelName, TrainingEnvironmentKey."""

_MAX_DEPTH = 32


# ---- durations -----------------------------------------------------------------------------------


def parse_duration(text: str) -> int:
    """Return the seconds of ``90m``, ``24h``, ``60d`` or ``1h30m``. Raises ValueError with a message for the
    user."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(f"{text!r} is not a duration; write a number with its unit, such as 90m, 24h or 60d")
    seconds = sum(
        int(count or 0) * unit_seconds
        for count, unit_seconds in zip(match.groups(), _UNITS.values(), strict=True)
    )
    if seconds < 1:
        raise ValueError(f"{text!r} is zero; the shortest duration is one second")
    return seconds


def format_duration(seconds: int) -> str:
    """Return the shortest exact text: 5400 is ``90m``, 86400 is ``24h``, 172800 is ``2d``."""
    if seconds % 86400 == 0 and seconds > 86400:
        return f"{seconds // 86400}d"
    for unit in "hms":
        if seconds % _UNITS[unit] == 0:
            return f"{seconds // _UNITS[unit]}{unit}"
    raise AssertionError("every whole number of seconds ends in s")


def parse_size(text: str) -> int:
    """Return the bytes of ``60GB``, ``1.5 TB`` (powers of ten) or ``512MiB`` (powers of two). Raises
    ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write a number with its unit, such as 60GB or 1.5TB")
    power = "BKMGTP".index(match[2][0])
    return int(float(match[1]) * (1024 if "i" in match[2] else 1000) ** power)


# ---- field types ---------------------------------------------------------------------------------


def _field_error(message: str) -> PydanticCustomError:
    return PydanticCustomError("job", "{message}", {"message": message})


def _check_text(text: str) -> str:
    """Texts become process arguments and UTF-8 JSON, which not every Python string can."""
    if "\0" in text:
        raise _field_error("a NUL character cannot be passed to a process; take it out")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise _field_error(
            f"character {error.start} is half of a surrogate pair, which is not text"
        ) from None
    return text


def _integer_as_text(value: Any) -> Any:
    """Accept ``3`` for ``"3"``. ``0.10`` and ``true`` have more than one spelling and must be quoted."""
    return str(value) if type(value) is int else value


def _path_as_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _check_not_empty(text: str) -> str:
    if not text.strip():
        raise _field_error("it is empty")
    return text


def _parse_duration_field(value: Any) -> str | None:
    """Return a duration in its shortest form, such as ``90m``; None for None. Raises a validation error."""
    if value is None:
        return None
    if not isinstance(value, str):
        example = f"{value}s" if type(value) is int else "90m"
        raise _field_error(f"a duration with its unit is needed, such as {example} or 24h, not {value!r}")
    try:
        return format_duration(parse_duration(value))
    except ValueError as error:
        raise _field_error(str(error)) from None


def _check_processes(value: Any) -> Any:
    if value is None or value == AUTO or (type(value) is int and value >= 1):
        return value
    raise _field_error(f"a number from 1 or {AUTO!r} (one per accelerator) is needed, not {value!r}")


def _check_s3_uri(text: str) -> str:
    if not _S3.fullmatch(text):
        raise _field_error(f"{text!r} is not an S3 address; write s3://bucket/prefix/")
    return text


def _parse_data_uri(text: str) -> str:
    scheme = _SCHEME.match(text)
    if scheme is None:
        return text
    if scheme.group().lower() == "file://":
        return _path_of_file_uri(text)
    return _check_s3_uri(text)


def _path_of_file_uri(uri: str) -> str:
    """Return the local path of a ``file://`` address (RFC 8089): no host but localhost, %XX for odd bytes."""
    host, slash, path = uri[len("file://") :].partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise _field_error(
            f"{uri!r} is no file on this machine; write file:///absolute/path, or the path itself"
        )
    local = unquote(slash + path)
    if "\0" in local:
        raise _field_error(f"{uri!r} holds a zero byte, which no path can")
    return local


def _check_entry(text: str) -> str:
    if text.endswith(_NON_PROGRAM_SUFFIXES):
        raise _field_error(
            f"{text!r} is no program; name a .py or .sh script, or a program that can be executed"
        )
    return text


def _check_strategy(text: str) -> str:
    if text.lower() == "mxnet":
        raise _field_error("MXNet is retired: AWS patches none of its images; move the script to PyTorch")
    if find_strategy(text) is None:
        raise _field_error(f"{text!r} is unknown{did_you_mean(text, known_strategies())}")
    return text


def _parse_size_field(value: Any) -> str | None:
    """Return a size unchanged if it is valid, such as ``60GB``. Raises a validation error."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise _field_error(f"a size with its unit is needed, such as 60GB or 1.5TB, not {value!r}")
    try:
        parse_size(value)
    except ValueError as error:
        raise _field_error(str(error)) from None
    return value


def _check_channel_name(text: str) -> str:
    if not _CHANNEL.fullmatch(text):
        raise _field_error("a channel's name is 1 to 64 letters, digits, dots, dashes and underscores")
    if text in (".", ".."):
        raise _field_error(f"{text!r} cannot name a channel, whose folder is in /opt/ml/input/data")
    return text


def _check_variable_name(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise _field_error("a variable's name is letters, digits and underscores, and no digit first")
    return text


def _check_instance_type(text: str) -> str:
    if not re.fullmatch(r"ml\.[a-z0-9-]+\.[a-z0-9-]+", text):
        hint = f", did you mean 'ml.{text}'?" if re.fullmatch(r"[a-z0-9-]+\.[a-z0-9-]+", text) else ""
        raise _field_error(f"{text!r} is not an instance type such as ml.m5.xlarge{hint}")
    return text


def _check_run_id(text: str) -> str:
    if not is_run_id(text):
        raise _field_error(
            f"{text!r} cannot name a run: lower-case letters, digits and single dashes between them, "
            f"{MAX_RUN_ID_LENGTH} characters at most"
        )
    return text


def _check_account_id(text: str) -> str:
    if not _ACCOUNT.fullmatch(text):
        raise _field_error(f"{text!r} is not the id of an AWS account, which has twelve digits")
    return text


def _copy_json_value(value: Any, depth: int = 0) -> Any:
    """Return a copy made of JSON's own types. Tuples become lists, so that YAML gives back the same job."""
    if depth > _MAX_DEPTH:
        raise _field_error(f"nested more than {_MAX_DEPTH} levels deep, or within itself")
    if isinstance(value, str):
        return _check_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise _field_error(f"{value} is not a JSON number; write it as text in quotes")
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_copy_json_value(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise _field_error(f"key {key!r} inside it is not text; write it in quotes")
        return {_check_text(key): _copy_json_value(item, depth + 1) for key, item in value.items()}
    raise _field_error(
        f"a {type(value).__name__} cannot be written as JSON; use text, numbers, lists or mappings"
    )


def expand_shorthand(field_name: str, value: Any) -> Any:
    """Let a bare string stand for the object whose first field it is: ``train: s3://bucket/data/``."""
    return {field_name: _path_as_text(value)} if isinstance(value, (str, os.PathLike)) else value


Text = Annotated[str, Field(strict=True), AfterValidator(_check_text)]
ChannelName = Annotated[Text, AfterValidator(_check_channel_name)]
VariableName = Annotated[Text, AfterValidator(_check_variable_name)]
NonEmptyText = Annotated[Text, AfterValidator(_check_not_empty)]
TextOrInteger = Annotated[Text, BeforeValidator(_integer_as_text)]
PathText = Annotated[NonEmptyText, BeforeValidator(_path_as_text)]
S3Uri = Annotated[Text, AfterValidator(_check_s3_uri)]
Duration = Annotated[str | None, PlainValidator(_parse_duration_field, json_schema_input_type=str | None)]
Hyperparameter = Annotated[Any, PlainValidator(_copy_json_value, json_schema_input_type=Any)]
Entry = Annotated[PathText, AfterValidator(_check_entry)]
DataUri = Annotated[PathText, AfterValidator(_parse_data_uri)]
InstanceTypeName = Annotated[Text, AfterValidator(_check_instance_type)]
AccountId = Annotated[Text, AfterValidator(_check_account_id)]
RunId = Annotated[Text, AfterValidator(_check_run_id)]
ProcessCount = Annotated[
    int | Literal["auto"] | None,
    PlainValidator(_check_processes, json_schema_input_type=int | Literal["auto"] | None),
]
StrategyName = Annotated[Text, AfterValidator(_check_strategy)]
ByteSize = Annotated[str | None, PlainValidator(_parse_size_field, json_schema_input_type=str | None)]
PositiveInt = Annotated[int, Field(strict=True, ge=1)]
StrictBool = Annotated[bool, Field(strict=True)]
Dollars = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
