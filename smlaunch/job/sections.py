"""The base class of a job's sections: frozen dataclasses whose fields are read and checked by their types.

A field's annotation says how it is read. ``Annotated[..., rule, rule]`` passes the value through its rules;
``X | None``, ``Literal``, ``tuple[X, ...]``, ``dict[K, V]`` and other sections are read part by part.
Whatever is wrong is collected with its path, so that one ``JobError`` lists all mistakes.

attrs with cattrs takes as long to import as pydantic did, and msgspec stops at the first mistake; neither
names a key of another section or quotes a number that should be text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from inspect import CO_VARKEYWORDS, Parameter, Signature
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn, TypeVar

from smlaunch.errors import JobError, Problem
from smlaunch.job.read_only import ReadOnlyDict
from smlaunch.job.written_float import WrittenFloat
from smlaunch.secrets.masking import mask_document
from smlaunch.secrets.shown_values import hides_value, kind_of_value, shorten_value, shown_key, shown_value
from smlaunch.text.did_you_mean import did_you_mean, nearest_match

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:
        """Of Python 3.11, for type checkers only."""
        return lambda decorator: decorator


Location = tuple[str | int, ...]
"""Keys and list indexes that lead to a value from the top of the job."""

_SectionClass = TypeVar("_SectionClass", bound="type[Section]")
_Self = TypeVar("_Self", bound="Section")
_Value = TypeVar("_Value")


class FieldError(ValueError):
    """A value that a field cannot have. The message is the rest of a line that begins with its path.

    ``message`` has ``{}`` where ``values`` stand, which are not printed if the field may hold a secret.
    """

    def __init__(self, message: str, *values: str) -> None:
        super().__init__(message.format(*values) if values else message)
        self._message, self._values = message, values

    def message_with(self, shown_value: str) -> str:
        """Return the message with another text for the values."""
        return self._message.format(*(shown_value for _ in self._values)) if self._values else str(self)


@dataclasses.dataclass(frozen=True, eq=False)  # by identity: part of an annotation, it must have a hash
class FieldRule:
    """Reads a value of one type."""

    read: Callable[[Any], Any]
    """Returns the value as the job has it. Raises FieldError."""

    schema: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What a JSON Schema can say of it."""


class _Reading:
    """One reading of a section and all that is in it."""

    def __init__(self, root: type[Section]) -> None:
        self.root = root
        self.problems: list[Problem] = []

    def add_problem(self, location: Location, message: str) -> None:
        path = "".join(
            f"[{key}]" if isinstance(key, int) else f".{shown_key(location[:-1], key)}" for key in location
        ).lstrip(".")
        self.problems.append(Problem(path, message))


_Reader = Callable[[Any, Location, _Reading], Any]
"""Reads a value at a location. A value that cannot be read is returned unchanged, with a problem added."""

_ANNOTATIONS: dict[type, Mapping[str, Any]] = {}
_READERS: dict[type, Mapping[str, _Reader]] = {}
"""Of the fields of each section, by their names."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(dataclasses.field,))
def section(section_class: _SectionClass) -> _SectionClass:
    """Make a class one of a job's sections. Editors and notebooks show its fields as its signature."""
    created = dataclasses.dataclass(init=False, repr=False, eq=False)(section_class)
    hints = typing.get_type_hints(created, include_extras=True)
    _ANNOTATIONS[created] = {name: hints[name] for name in field_names(created)}
    _READERS[created] = {name: _reader_for(annotation) for name, annotation in _ANNOTATIONS[created].items()}
    takes_any_fields = created.__init__.__code__.co_flags & CO_VARKEYWORDS
    if takes_any_fields:  # ``**fields``
        parameters = [
            Parameter(field.name, Parameter.KEYWORD_ONLY, default=_default_for_signature(field))
            for field in dataclasses.fields(created)
        ]
        created.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    return section_class


class Section:
    """Base class of the sections. A call raises one JobError with every mistake, each by its path."""

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    DOCUMENT: ClassVar[str] = "job"
    """What a message calls the whole of which this section is the top."""

    SHORTHAND_FIELD: ClassVar[str | None] = None
    """The field that a bare string or path stands for."""

    IS_USUALLY_TEXT: ClassVar[bool] = False
    """The bare string is the usual form: its problems have the section's path, without the field."""

    FIELDS_EXCLUDE_EACH_OTHER: ClassVar[bool] = False
    """A change of one field replaces the section."""

    def __init__(self, /, **fields: Any) -> None:
        self._set_fields(fields)

    # Here once, because dataclass(frozen=True) would compile both for every section.
    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

    @classmethod
    def find_contradictions(cls, fields: Mapping[str, Any]) -> Iterable[Problem]:
        """Return what is wrong with the fields together, such as one that excludes another; the values are
        as they were given. A problem's path is a field, or empty for the whole section."""
        return ()

    @classmethod
    def fields_left_behind(cls, fields: Mapping[str, Any], changes: Mapping[str, Any]) -> Collection[str]:
        """Return the names of fields that do not outlast changes of others, because their values belong to
        the values that are replaced. Both mappings are as they were given, and not checked."""
        return ()

    def _set_fields(self, fields: Mapping[str, Any]) -> None:
        """Set the fields to the values that were read. Raises JobError with all problems."""
        reading = _Reading(type(self))
        _read_fields(self, fields, (), reading)
        if reading.problems:
            raise JobError(reading.problems)

    @property
    def stated_fields(self) -> frozenset[str]:
        """Names of the fields that were given, even if as their defaults."""
        stated: frozenset[str] = vars(self)["_stated_fields"]
        return stated

    def with_changes(self: _Self, **changes: Any) -> _Self:
        """Return a copy with other values of some fields. A mapping for a section, such as ``limits``,
        changes the members that it names and no others. Any other value, such as a section, a shorthand or
        the mapping of hyperparameters, replaces the field. Raises JobError."""
        return type(self)(**_merge_changes(self, changes))

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults, in JSON's own types."""
        value_by_field = {field: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {
            field.name: _without_defaults(value)
            for field, value in value_by_field.items()
            if value != _default_of(field)
        }

    def __eq__(self, other: object) -> bool:
        """Whether all fields are the same in JSON: ``True``, ``1`` and ``1.0`` are three values, which a
        script gets as three texts."""
        if type(self) is not type(other) or not isinstance(other, Section):
            return NotImplemented
        return _canonical_json(self) == _canonical_json(other)

    def __hash__(self) -> int:
        return hash(_canonical_json(self))

    def __repr__(self) -> str:
        """Show what differs from the defaults. Secrets are masked, because a log may show the object."""
        field_texts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value == _default_of(field):
                continue
            # Sections mask their own values; numbers and booleans are no secrets.
            may_hold_secrets = isinstance(value, (dict, tuple, str))
            shown_value = mask_document(value) if may_hold_secrets else value
            field_texts.append(f"{field.name}={shown_value!r}")
        return f"{type(self).__name__}({', '.join(field_texts)})"


def _merge_changes(section: Section, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section's stated fields with the changes."""
    fields = {name: getattr(section, name) for name in section.stated_fields}
    for name in section.fields_left_behind(fields, changes):
        del fields[name]
    for name, change in changes.items():
        before = fields.get(name)
        if isinstance(before, Section) and isinstance(change, Mapping):
            change = change if before.FIELDS_EXCLUDE_EACH_OTHER else _merge_changes(before, change)
        fields[name] = change
    return fields


def annotations_of(section_class: type[Section]) -> Mapping[str, Any]:
    """Return the annotation of each field, by its name."""
    return _value_of_section(_ANNOTATIONS, section_class)


def _value_of_section(value_by_class: Mapping[type, _Value], section_class: type) -> _Value:
    """Return the value of a section, or, of a class derived from one, that of the section."""
    return next(value_by_class[base] for base in section_class.__mro__ if base in value_by_class)


def field_names(section_class: type[Section]) -> list[str]:
    return [field.name for field in dataclasses.fields(section_class)]


def _default_of(field: dataclasses.Field[Any]) -> Any:
    """Return a field's default; ``dataclasses.MISSING`` for a field that must be given."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _default_for_signature(field: dataclasses.Field[Any]) -> Any:
    default = _default_of(field)
    return Parameter.empty if default is dataclasses.MISSING else default


def _without_defaults(value: Any) -> Any:
    """Return a field's value in JSON's own types, of sections only the fields that differ from the
    defaults."""
    if isinstance(value, Section):
        return value.to_mapping()
    if isinstance(value, (list, tuple)):
        return [_without_defaults(item) for item in value]
    return {key: _without_defaults(item) for key, item in value.items()} if isinstance(value, dict) else value


def _canonical_json(section: Section) -> str:
    """Return a text that is the same for equal sections."""
    return json.dumps(_with_all_fields(section), sort_keys=True)


def _with_all_fields(value: Any) -> Any:
    """Return a field's value in JSON's own types, of sections all fields; a number as the file has it."""
    if isinstance(value, Section):
        return {
            field.name: _with_all_fields(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
    if isinstance(value, (list, tuple)):
        return [_with_all_fields(item) for item in value]
    if isinstance(value, WrittenFloat):
        return {"number": value.text}
    return {key: _with_all_fields(item) for key, item in value.items()} if isinstance(value, dict) else value


# ---- reading -------------------------------------------------------------------------------------


def _read_fields(target: Section, fields: Mapping[Any, Any], location: Location, reading: _Reading) -> None:
    """Set the fields of a section, ``target``, to what is read from a mapping, ``fields``, and add the
    problems of fields that are wrong, missing or unknown. ``location``: of the section in the job."""
    section_class = type(target)
    reader_by_field = _value_of_section(_READERS, section_class)
    for contradiction in section_class.find_contradictions(fields):
        path = (contradiction.path,) if contradiction.path else ()
        reading.add_problem((*location, *path), contradiction.message)
    for field in dataclasses.fields(section_class):
        if field.name in fields:
            read_value = reader_by_field[field.name]
            value = read_value(fields[field.name], (*location, field.name), reading)
        else:
            value = _default_of(field)
            if value is dataclasses.MISSING:
                reading.add_problem((*location, field.name), "it is missing")
        if isinstance(value, dict):
            value = ReadOnlyDict(value)
        object.__setattr__(target, field.name, value)
    object.__setattr__(target, "_stated_fields", frozenset(fields))
    for key in fields:
        if not isinstance(key, str):
            reading.add_problem(location, f"key {shorten_value(key)} is not text; write it in quotes")
        elif key not in reader_by_field:
            hint = _unknown_key_hint(key, fields, section_class, reading.root)
            key_text = "" if key.isprintable() else f" {key!a}, with a character that cannot be seen"
            reading.add_problem((*location, key), f"unknown key{key_text}{hint}")


def _reader_for(annotation: Any) -> _Reader:
    """Return the function that reads values of an annotation, such as ``tuple[SegmentChange, ...]``."""
    # Of tuple[X, ...]: tuple, and the arguments X and an ellipsis.
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        base, *rules = arguments
        is_container = typing.get_origin(base) in (tuple, Mapping)
        return _rules_reader(rules, _reader_for(base) if is_container else None)
    if origin is Literal:
        return _rules_reader([FieldRule(functools.partial(_read_choice, arguments))], None)
    if origin in (types.UnionType, typing.Union):  # X | None
        (non_none_type,) = [argument for argument in arguments if argument is not types.NoneType]
        return functools.partial(_read_optional, _reader_for(non_none_type))
    if origin is tuple:
        return functools.partial(_read_list, _reader_for(arguments[0]))
    if origin is Mapping:
        return functools.partial(_read_mapping, _reader_for(arguments[0]), _reader_for(arguments[1]))
    return functools.partial(_read_section, annotation)


def _rules_reader(rules: list[FieldRule], container_reader: _Reader | None) -> _Reader:
    """Return a reader that passes a value through the rules, one after the other. ``container_reader``: reads
    a list or a mapping first; None for other values."""

    def read(value: Any, location: Location, reading: _Reading) -> Any:
        if container_reader is not None:
            problems_before = len(reading.problems)
            value = container_reader(value, location, reading)
            if len(reading.problems) > problems_before:
                return value
        try:
            for rule in rules:
                value = rule.read(value)
        except FieldError as error:
            is_hidden = hides_value(location, value)
            message = error.message_with(kind_of_value(value)) if is_hidden else str(error)
            reading.add_problem(location, message)
        return value

    return read


def _read_optional(reader: _Reader, value: Any, location: Location, reading: _Reading) -> Any:
    return None if value is None else reader(value, location, reading)


def _read_choice(choices: tuple[str, ...], value: Any) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise FieldError("{} is unknown" + did_you_mean(str(value), choices), repr(value))
    return value


def _read_list(item_reader: _Reader, value: Any, location: Location, reading: _Reading) -> Any:
    if not isinstance(value, (list, tuple)):
        reading.add_problem(location, f"a list is needed, not {shown_value(location, value)}")
        return value
    return tuple(item_reader(item, (*location, index), reading) for index, item in enumerate(value))


def _read_mapping(
    key_reader: _Reader, item_reader: _Reader, value: Any, location: Location, reading: _Reading
) -> Any:
    if not isinstance(value, Mapping):
        reading.add_problem(location, f"a mapping is needed, not {shown_value(location, value)}")
        return value
    items = {}
    for key, item in value.items():
        if isinstance(key, str):
            key_reading = _Reading(reading.root)
            items[key_reader(key, (), key_reading)] = item_reader(item, (*location, key), reading)
            for problem in key_reading.problems:
                reading.add_problem(
                    location, f"key {shown_key(location, key)!r} is invalid: {problem.message}"
                )
        else:
            reading.add_problem(location, f"key {key!r} is not text; write it in quotes")
    return items


def _read_section(section_class: type[Section], value: Any, location: Location, reading: _Reading) -> Any:
    if isinstance(value, section_class):
        return value
    shorthand = section_class.SHORTHAND_FIELD
    fields = value if shorthand is None else expand_shorthand(shorthand, value)
    if not isinstance(fields, Mapping):
        keys = ", ".join(field_names(section_class))
        kinds = "a mapping" if shorthand is None else "text or a mapping"
        reading.add_problem(location, f"{kinds} is needed (keys: {keys}), not {shown_value(location, value)}")
        return value
    target = object.__new__(section_class)
    if section_class.IS_USUALLY_TEXT and fields is not value:
        text = _value_of_section(_READERS, section_class)[str(shorthand)](
            fields[shorthand], location, reading
        )
        fields, reading = {shorthand: text}, _Reading(reading.root)  # its problems are known
    _read_fields(target, fields, location, reading)
    return target


def expand_shorthand(field_name: str, value: Any) -> Any:
    """Let a bare string stand for the section whose field it is: ``train: s3://bucket/data/``."""
    return {field_name: os.fspath(value)} if isinstance(value, (str, os.PathLike)) else value


# ---- messages ------------------------------------------------------------------------------------


def _unknown_key_hint(
    key: str, stated_keys: Collection[Any], section_class: type[Section], root: type[Section]
) -> str:
    """Return a suggestion for an unknown key of a section: a similar key beside it, or the same key elsewhere
    in the job; empty without one. ``stated_keys``: those that the section has. ``root``: the class that is
    read, Job or one of its sections."""
    known_keys = field_names(section_class)
    sections_of_root = _single_sections(root)
    nearest_key = nearest_match(key, known_keys)
    if nearest_key in stated_keys:
        return f"; {nearest_key} is stated too, so remove this one"
    if nearest_key is not None or not sections_of_root:
        return did_you_mean(key, known_keys)
    for name, class_of_section in sections_of_root.items():
        if key in field_names(class_of_section):
            return f", did you mean '{name}.{key}'?"
    if key in field_names(root):
        return f", did you mean {key!r} at the top of the {root.DOCUMENT}?"
    return did_you_mean(key, known_keys)


def _single_sections(section_class: type[Section]) -> dict[str, type[Section]]:
    """Return the class of each field that holds one section, such as ``limits``; not of those that hold
    several."""
    class_by_field = {}
    for name, annotation in annotations_of(section_class).items():
        is_optional = typing.get_origin(annotation) in (types.UnionType, typing.Union)
        possible_types = typing.get_args(annotation) if is_optional else (annotation,)
        for possible_type in possible_types:
            if isinstance(possible_type, type) and issubclass(possible_type, Section):
                class_by_field[name] = possible_type
    return class_by_field


def text_of_scalar(value: Any) -> str:
    """Return a number or a truth value as a job file has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "..." if isinstance(value, int) and value.bit_length() > 10_000 else str(value)
