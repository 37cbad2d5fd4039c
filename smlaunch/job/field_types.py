"""Types of a job's fields: durations, addresses, names, values, and messages for wrong ones.

Every message is the rest of a line that begins with the field's path.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import count
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from smlaunch.catalog.strategies import STRATEGIES, known_strategies
from smlaunch.contract.launch_spec import AUTO
from smlaunch.contract.run_names import MAX_RUN_ID_LENGTH, is_run_id
from smlaunch.job.file_system import FILE_SYSTEM_SCHEMA, check_file_system_uri, has_file_system_scheme
from smlaunch.job.read_only import ReadOnlyDict, ReadOnlyList
from smlaunch.job.sections import FieldError, FieldRule, text_of_scalar
from smlaunch.job.written_float import WrittenFloat
from smlaunch.secrets.shown_values import shorten_value
from smlaunch.text.did_you_mean import did_you_mean

_SECONDS_BY_UNIT = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(r"(?:([0-9]+)d)?(?:([0-9]+)h)?(?:([0-9]+)m)?(?:([0-9]+)s)?")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGTP]i?B|B)")
_MAX_BYTES = 2**63 - 1
_S3 = re.compile(r"s3://[^/\s]+(/.*)?", re.DOTALL)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_NON_PROGRAM_SUFFIXES = (
    *(".yaml", ".yml", ".ipynb", ".json", ".toml", ".txt", ".md", ".csv"),
    *(".zip", ".gz", "/"),
)
_ACCOUNT = re.compile(r"[0-9]{12}")
_CHANNEL = re.compile(r"[A-Za-z0-9._-]{1,64}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,511}")
"""Both as CreateTrainingJob has them (botocore's service model): ChannelName, TrainingEnvironmentKey."""

_MAX_DEPTH = 32
_MAX_VALUES = 100_000
"""How deep a hyperparameter may be nested, and how many values it may have: aliases of YAML multiply them."""

_MAX_INTEGER = 2**31 - 1
"""The largest value of an Integer in the service's API."""

_MAX_DURATION_LENGTH = 100
_MAX_NUMBER = 1e15
"""More than any price or rate; products of it with hosts and hours stay finite."""

_MAX_INTEGER_BITS = 6000
"""About 1,800 digits: CreateTrainingJob takes 2,500 characters, and Python prints at most 4,300 digits."""


# ---- durations -----------------------------------------------------------------------------------


def _example_duration(text: str) -> str:
    """Return the duration that a wrong text probably means, with an example of each unit otherwise."""
    if text.isascii() and text.isdigit() and len(text) <= _MAX_DURATION_LENGTH:
        return f"{text}s for seconds"
    worded = re.fullmatch(r"\s*([0-9]{1,9})\s*(s|m|h|d)(?:ec|econd|in|inute|our|r|ay)?s?\s*", text.lower())
    return "90m, 24h or 60d" if worded is None else f"{worded[1]}{worded[2]}"


def parse_duration(text: str) -> int:
    """Return the seconds of ``90m``, ``24h``, ``60d`` or ``1h30m``. Raises ValueError with a message for the
    user."""
    match = _DURATION.fullmatch(text)
    if match is None or not text:
        raise ValueError(
            f"{text!r} is not a duration; write a number with its unit, such as {_example_duration(text)}"
        )
    too_long = f"{shorten_value(text)} is too long; the longest duration is {_MAX_INTEGER // 86400}d"
    if len(text) > _MAX_DURATION_LENGTH:
        raise ValueError(too_long)
    seconds = sum(
        int(count or 0) * unit_seconds
        for count, unit_seconds in zip(match.groups(), _SECONDS_BY_UNIT.values(), strict=True)
    )
    if seconds > _MAX_INTEGER:
        raise ValueError(too_long)
    if seconds < 1:
        raise ValueError(f"{text!r} is zero; the shortest duration is one second")
    return seconds


def format_duration(seconds: int) -> str:
    """Return a duration in its shortest exact form: 5400 is ``90m``, 86400 is ``24h``, 172800 is ``2d``. The
    largest unit that divides it is taken; days only from two on."""
    if seconds % 86400 == 0 and seconds > 86400:  # one day, 86400 seconds, is 24h
        return f"{seconds // 86400}d"
    for unit in "hms":
        if seconds % _SECONDS_BY_UNIT[unit] == 0:
            return f"{seconds // _SECONDS_BY_UNIT[unit]}{unit}"
    raise AssertionError("every whole number of seconds ends in s")


def parse_size(text: str) -> int:
    """Return the bytes of ``60GB``, ``1.5 TB`` (powers of ten) or ``512MiB`` (powers of two). Raises
    ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write a number with its unit, such as 60GB or 1.5TB")
    power = "BKMGTP".index(match[2][0])
    size_bytes = float(match[1]) * (1024 if "i" in match[2] else 1000) ** power
    if size_bytes > _MAX_BYTES:
        raise ValueError(f"{shorten_value(text)} is too large: at most 9,000 PB")
    if size_bytes <= 0:
        raise ValueError(f"{text!r} is zero; leave it out where nothing is known")
    return max(1, int(size_bytes))


# ---- field types ---------------------------------------------------------------------------------


def _read_text(value: Any) -> str:
    """Return the text of a field. Raises FieldError for one that cannot be a process's argument or UTF-8
    JSON, as every text of a job becomes both."""
    if isinstance(value, (bool, int, float)):
        raise FieldError(
            "text is needed, not {}; write it in quotes: '{}'", shorten_value(value), text_of_scalar(value)
        )
    if not isinstance(value, str):
        raise FieldError("text is needed, not {}", shorten_value(value))
    if "\0" in value:
        raise FieldError("a NUL character cannot be passed to a process; take it out")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        code = ord(value[error.start])
        # What Python makes of a byte of an argument or a file's name that is not UTF-8.
        is_byte = 0xDC80 <= code <= 0xDCFF
        cause = f"byte 0x{code - 0xDC00:02x}, which is not UTF-8" if is_byte else "half of a surrogate pair"
        raise FieldError(f"character {error.start} is {cause}; write it in UTF-8") from None
    return str.__str__(value)  # of a subclass, such as a member of an Enum: its text


def _read_integer(minimum: int, maximum: int, value: Any) -> int:
    if type(value) is not int:  # true and false are integers for isinstance, and so are members of an Enum
        is_quoted = isinstance(value, str) and value.strip().isdecimal()
        hint = ", which is text because of its quotes; leave them out" if is_quoted else ""
        raise FieldError(f"a whole number is needed, not {{}}{hint}", shorten_value(value))
    if value < minimum:
        raise FieldError(f"{{}} is too small: at least {minimum}", shorten_value(value))
    if value > maximum:
        raise FieldError(f"{{}} is too large: at most {maximum}", shorten_value(value))
    return int(value)


def _read_positive_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FieldError("a number is needed, not {}", shorten_value(value))
    if isinstance(value, float) and not math.isfinite(value):
        raise FieldError("a finite number is needed, not {}", shorten_value(value))
    if value > _MAX_NUMBER:
        raise FieldError("{} is too large: at most 1e15", shorten_value(value))
    if value <= 0:
        raise FieldError("{} is too small: more than 0", shorten_value(value))
    return float(value)


def _read_truth_value(value: Any) -> bool:
    if not isinstance(value, bool):
        raise FieldError("true or false is needed, not {}", shorten_value(value))
    return value


def _integer_as_text(value: Any) -> Any:
    """Accept ``3`` for ``"3"``. ``0.10`` and ``true`` have more than one spelling and must be quoted."""
    return str(value) if type(value) is int and value.bit_length() <= _MAX_INTEGER_BITS else value


def _path_as_text(value: Any) -> Any:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _check_not_empty(text: str) -> str:
    if not text.strip():
        raise FieldError("it is empty")
    return text


def _parse_duration_field(duration: Any) -> str | None:
    """Return a duration field of a job in its shortest form, such as ``90m``; None for None. Raises
    FieldError."""
    if duration is None:
        return None
    if not isinstance(duration, str):
        # ``type``: true and false are integers for isinstance.
        example = f"{duration}s" if type(duration) is int and 1 <= duration <= _MAX_INTEGER else "90m"
        raise FieldError(
            f"a duration with its unit is needed, such as {example} or 24h, not {shorten_value(duration)}"
        )
    try:
        return format_duration(parse_duration(duration))
    except ValueError as error:
        raise FieldError(str(error)) from None


def _check_processes_per_host(value: Any) -> Any:
    is_count = type(value) is int and 1 <= value <= _MAX_INTEGER  # for isinstance True is an int too
    if value is None or value == AUTO or is_count:
        return value
    raise FieldError(
        f"a number from 1 or {AUTO!r} (one per accelerator) is needed, not {shorten_value(value)}"
    )


def _check_s3_uri(text: str) -> str:
    if not _S3.fullmatch(text):
        raise FieldError(f"{text!r} is not an S3 address; write {_similar_s3_uri(text)}")
    return text


_S3_WEB_ADDRESS = re.compile(
    r"https?://(?:(?P<host_bucket>[a-z0-9.-]+)\.)?s3[.a-z0-9-]*\.amazonaws\.com(?:\.cn)?/(?P<path>.*)"
)


def _similar_s3_uri(text: str) -> str:
    """Return the S3 address that a text seems to mean, such as a web address of S3 or ``S3:/bucket/``; an
    example of an address if it means none."""
    web_address = _S3_WEB_ADDRESS.fullmatch(text)
    if web_address is not None:
        bucket = web_address["host_bucket"]  # if the host's name has it; otherwise it begins the path
        uri = f"s3://{bucket}/{web_address['path']}" if bucket else f"s3://{web_address['path']}"
    else:
        uri = re.sub(r"^s3:/*", "s3://", text, flags=re.IGNORECASE)
    return uri if _S3.fullmatch(uri) else "s3://bucket/prefix/"


def _parse_data_uri(text: str) -> str:
    """Return an S3 address, that of a file system, or a local path; that of a ``file://`` address. Raises
    FieldError for other addresses."""
    if has_file_system_scheme(text):
        return check_file_system_uri(text)
    scheme_match = _SCHEME.match(text)
    if scheme_match is not None and scheme_match.group().lower() == "file://":
        return _path_of_file_uri(text)
    is_address = scheme_match is not None or text.lower().startswith("s3:")
    return _check_s3_uri(text) if is_address else text


def _path_of_file_uri(uri: str) -> str:
    """Return the local path of a ``file://`` address (RFC 8089): no host but localhost, %XX for odd bytes."""
    host, slash, path = uri[len("file://") :].partition("/")
    if host.lower() not in ("", "localhost") or not slash:
        raise FieldError(
            f"{uri!r} is no file on this machine; write file:///absolute/path, or the path itself"
        )
    local_path = unquote(slash + path)
    if "\0" in local_path:
        raise FieldError(f"{uri!r} holds a zero byte, which no path can")
    return local_path


def _check_script(text: str) -> str:
    if text.lower().endswith(".ipynb"):
        script = text[: -len(".ipynb")] + ".py"
        command = f"jupyter nbconvert --to script {text}"
        raise FieldError(f"{text!r} is a notebook, which cannot be run; `{command}` makes {script} of it")
    if text.endswith("/"):
        raise FieldError(f"{text!r} is a folder; name the script in it, such as {text}train.py")
    if text.lower().endswith(_NON_PROGRAM_SUFFIXES):
        raise FieldError(
            f"{text!r} is no program; name a .py or .sh script, or a program that can be executed"
        )
    return text


def _check_module(text: str) -> str:
    if all(name.isidentifier() for name in text.split(".")):
        return text
    hint = ""
    is_path = text.endswith(".py") or "/" in text
    if is_path:
        module_name = text.removesuffix(".py").strip("/").replace("/", ".")
        hint = f"; a script is named without -m, and a module with dots, such as {module_name}"
    raise FieldError(f"{{}} is not the name of a Python module such as package.module{hint}", repr(text))


def _check_command(arguments: tuple[str, ...]) -> tuple[str, ...]:
    if arguments and not arguments[0].strip():
        raise FieldError("it begins with an empty argument; the first one is the program")
    return arguments


def _check_strategy(text: str) -> str:
    if text.lower() == "mxnet":
        raise FieldError("MXNet is retired: AWS patches none of its images; move the script to PyTorch")
    if text not in STRATEGIES:
        raise FieldError(f"{text!r} is unknown{did_you_mean(text, known_strategies())}")
    return text


def _parse_size_field(size: Any) -> str | None:
    """Return a size field of a job, such as ``60GB``, unchanged if it is valid; None for None. Raises
    FieldError."""
    if size is None:
        return None
    if not isinstance(size, str):
        raise FieldError(f"a size with its unit is needed, such as 60GB or 1.5TB, not {shorten_value(size)}")
    try:
        parse_size(size)
    except ValueError as error:
        raise FieldError(str(error)) from None
    return size


def _check_channel_name(text: str) -> str:
    if not _CHANNEL.fullmatch(text):
        similar_name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")[:64]
        hint = f", such as {similar_name}" if similar_name else ""
        raise FieldError(f"a channel's name is 1 to 64 letters, digits, dots, dashes and underscores{hint}")
    if text in (".", ".."):
        raise FieldError(f"{text!r} cannot name a channel, whose folder is in /opt/ml/input/data")
    return text


def _check_variable_name(text: str) -> str:
    if not _VARIABLE.fullmatch(text):
        raise FieldError("a variable's name is letters, digits and underscores, and no digit first")
    return text


def _check_image(text: str) -> str:
    if not _IMAGE.fullmatch(text):
        raise FieldError(
            f"{shorten_value(text)} is not the address of an image, such as "
            "123456789012.dkr.ecr.eu-west-1.amazonaws.com/name:tag"
        )
    return text


def _check_run_id(text: str) -> str:
    if not is_run_id(text):
        raise FieldError(
            f"{text!r} cannot name a run: lower-case letters, digits and single dashes between them, "
            f"{MAX_RUN_ID_LENGTH} characters at most"
        )
    return text


def _check_account_id(text: str) -> str:
    if not _ACCOUNT.fullmatch(text):
        raise FieldError(f"{text!r} is not the id of an AWS account, which has twelve digits")
    return text


def copy_as_json(value: Any) -> Any:
    """Return a read-only deep copy of a value in JSON's own types; tuples become lists. Raises FieldError for
    a value that JSON does not have. A number of a job file keeps its text."""
    copied = _copy_item_as_json(value, 0, count(1))
    is_spelled_otherwise = isinstance(value, WrittenFloat) and value.text != repr(copied)
    return value if is_spelled_otherwise else copied


def _copy_item_as_json(value: Any, depth: int, value_numbers: Iterator[int]) -> Any:
    """Return a deep copy of a value, which is the field's or inside it; see ``copy_as_json``.

    ``depth``: how many lists and mappings are around the value; its limit also ends a value that contains
    itself. ``value_numbers``: counts the values of the field: a list that occurs in a list many times, and
    that one in another, may be billions."""
    if depth > _MAX_DEPTH:
        raise FieldError(f"nested more than {_MAX_DEPTH} levels deep, or within itself")
    if next(value_numbers) > _MAX_VALUES:
        raise FieldError(f"more than {_MAX_VALUES} values; put them into a file")
    if isinstance(value, str):
        return _read_text(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise FieldError(f"{value} is not a JSON number; write it as text in quotes")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > _MAX_INTEGER_BITS:
            raise FieldError("a number of more than 1,800 digits cannot be passed on; write a smaller one")
        return int(value)  # of a subclass, such as an IntEnum
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (list, tuple)):
        return ReadOnlyList(_copy_item_as_json(item, depth + 1, value_numbers) for item in value)
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise FieldError(f"key {key!r} inside it is not text; write it in quotes")
        return ReadOnlyDict(
            (_read_text(key), _copy_item_as_json(item, depth + 1, value_numbers))
            for key, item in value.items()
        )
    raise FieldError(
        f"a {type(value).__name__} cannot be written as JSON; use text, numbers, lists or mappings"
    )


def _check_length(most: int, items: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(items) > most:
        raise FieldError(f"{len(items)} are too many: at most {most}")
    return items


def at_most(count: int) -> FieldRule:
    """Return the rule of a list with a largest number of items."""
    return FieldRule(partial(_check_length, count), {"maxItems": count})


def integer_from(minimum: int, maximum: int = _MAX_INTEGER) -> FieldRule:
    """Return the rule of a whole number with a smallest and a largest value."""
    return FieldRule(partial(_read_integer, minimum, maximum), {"minimum": minimum, "maximum": maximum})


def _in_either_case(text: str) -> str:
    """Return a regular expression for the text in small and capital letters: a JSON Schema has no flag."""
    return "".join(f"[{char}{char.upper()}]" if char.isalpha() else re.escape(char) for char in text)


# JSON Schema's regular expressions are those of ECMA 262, and every validator has the part of them that is
# used here: no look-ahead. A later rule's pattern replaces an earlier one's, and says more.

_TEXT = FieldRule(_read_text)
_PATH = FieldRule(_path_as_text)
_NOT_EMPTY = FieldRule(_check_not_empty, {"pattern": r"\S"})
_POSITIVE = FieldRule(_read_positive_number, {"exclusiveMinimum": 0, "maximum": _MAX_NUMBER})
_DURATION_SCHEMA = {
    "pattern": r"^([0-9]+d)?([0-9]+h)?([0-9]+m)?([0-9]+s)?$",
    "not": {"pattern": "^[0dhms]*$"},  # nothing, or zero
}
_SIZE_SCHEMA = {
    "pattern": r"^\s*[0-9]+(\.[0-9]+)? ?([KMGTP]i?B|B)\s*$",
    "not": {"pattern": r"^\s*[0.]+ ?[A-Za-z]+\s*$"},
}
_S3_PATTERN = r"^s3://[^/\s]+(/[\s\S]*)?$"
_SCRIPT_SCHEMA = {"not": {"pattern": f"({'|'.join(map(_in_either_case, _NON_PROGRAM_SUFFIXES))})$"}}
_DATA_SCHEMA = {
    "allOf": [
        {
            "anyOf": [
                {"not": {"pattern": f"^{_SCHEME.pattern}"}},
                {"pattern": _S3_PATTERN},
                FILE_SYSTEM_SCHEMA,
                {
                    "pattern": f"^{_in_either_case('file://')}({_in_either_case('localhost')})?/",
                    "not": {"pattern": "%00"},
                },
            ]
        }
    ]
}
_CHANNEL_SCHEMA = {"pattern": f"^{_CHANNEL.pattern}$", "not": {"enum": [".", ".."]}}
_MODULE_SCHEMA = {"pattern": r"^[^\s./0-9-][^\s./-]*(\.[^\s./0-9-][^\s./-]*)*$"}
_COMMAND_SCHEMA = {"prefixItems": [{"type": ["string", "integer"], "pattern": r"\S"}]}

Text = Annotated[str, _TEXT]
ChannelName = Annotated[str, _TEXT, FieldRule(_check_channel_name, _CHANNEL_SCHEMA)]
VariableName = Annotated[str, _TEXT, FieldRule(_check_variable_name, {"pattern": f"^{_VARIABLE.pattern}$"})]
NonEmptyText = Annotated[str, _TEXT, _NOT_EMPTY]
TextOrInteger = Annotated[str, FieldRule(_integer_as_text, {"type": ["string", "integer"]}), _TEXT]
PathText = Annotated[str, _PATH, _TEXT, _NOT_EMPTY]
S3Uri = Annotated[str, _TEXT, FieldRule(_check_s3_uri, {"pattern": _S3_PATTERN})]
Duration = Annotated[str | None, FieldRule(_parse_duration_field, _DURATION_SCHEMA)]
Hyperparameter = Annotated[Any, FieldRule(copy_as_json)]
ScriptPath = Annotated[str, _PATH, _TEXT, _NOT_EMPTY, FieldRule(_check_script, _SCRIPT_SCHEMA)]
ModuleName = Annotated[str, _TEXT, _NOT_EMPTY, FieldRule(_check_module, _MODULE_SCHEMA)]
CommandLine = Annotated[tuple[TextOrInteger, ...], FieldRule(_check_command, _COMMAND_SCHEMA)]
DataUri = Annotated[str, _PATH, _TEXT, _NOT_EMPTY, FieldRule(_parse_data_uri, _DATA_SCHEMA)]
ImageAddress = Annotated[str, _TEXT, _NOT_EMPTY, FieldRule(_check_image, {"pattern": f"^{_IMAGE.pattern}$"})]
AccountId = Annotated[str, _TEXT, FieldRule(_check_account_id, {"pattern": "^[0-9]{12}$"})]
RunId = Annotated[
    str,
    _TEXT,
    FieldRule(_check_run_id, {"pattern": "^[a-z0-9](-?[a-z0-9])*$", "maxLength": MAX_RUN_ID_LENGTH}),
]
ProcessCount = Annotated[
    int | Literal["auto"] | None,
    FieldRule(_check_processes_per_host, {"minimum": 1, "maximum": _MAX_INTEGER}),
]
StrategyName = Annotated[str, _TEXT, FieldRule(_check_strategy)]
ByteSize = Annotated[str | None, FieldRule(_parse_size_field, _SIZE_SCHEMA)]
PositiveInt = Annotated[int, integer_from(1)]
StrictBool = Annotated[bool, FieldRule(_read_truth_value)]
PositiveNumber = Annotated[float, _POSITIVE]
