"""Members of the service's API that a job states by its ``request``: any of the request that creates the job.

A member that has a field of the job is another spelling of that field: it becomes the field's value, so that
whatever reads the job reads it there. The others stay in ``request``, and are merged into each request that
is compiled (``smlaunch.api.request_merge``).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from smlaunch.api.hyperparameter_text import hyperparameter_text
from smlaunch.api.job_kinds import (
    JOB_KINDS,
    PROCESSING,
    TRAINING,
    FieldPath,
    JobKind,
    get_at_path,
    set_at_path,
)
from smlaunch.api.request_merge import NAME_BY_LIST, plain_copy
from smlaunch.api.validation.request_check import check_request, member_paths
from smlaunch.api.validation.violation import Violation, path_text
from smlaunch.catalog.strategies import STRATEGIES
from smlaunch.contract.sagemaker_paths import RUNTIME_CHANNEL, SOURCE_CHANNEL
from smlaunch.errors import Problem
from smlaunch.job.nested_members import paths_without_value, remove_at_path
from smlaunch.job.request_inputs import as_instance_groups, channel_members
from smlaunch.job.sections import Section, expand_shorthand
from smlaunch.secrets.shown_values import shown_value
from smlaunch.text.did_you_mean import nearest_match

REQUEST = "request"

OWN_TAG_PREFIX = "smlaunch:"

REFUSAL_BY_MEMBER: Mapping[str, str] = {
    TRAINING.name_field: "smlaunch names each job of a run itself; name the run by the job's name",
    PROCESSING.name_field: "smlaunch names each job of a run itself; name the run by the job's name",
    "ServerlessJobConfig": "a serverless job has no hosts, image or channels that smlaunch could plan",
    "AlgorithmSpecification.AlgorithmName": (
        "smlaunch plans an image, and no algorithm resource; give image, or algorithm for one of SageMaker's"
    ),
}
"""Members that no job may state, with the reason, by their dotted paths."""

_OWN_CHANNELS = {
    RUNTIME_CHANNEL: "it brings smlaunch's runtime to the hosts",
    SOURCE_CHANNEL: "it brings the source to the hosts",
}

_REASON_BY_PROGRAM = {
    "entry": "smlaunch's runtime starts the entry, with the arguments in args; leave it out",
    "algorithm": "a built-in algorithm is started by its own command; leave it out",
}
"""Why a job's request may not state the container's command."""

_SECTION_OF_TEXT = {"checkpoints": "uri", "output": "uri", "entry": "script"}
"""Sections that a bare text may stand for, with the field that it is then."""

_WORDS_BY_TYPE = {
    "structure": "a mapping",
    "map": "a mapping",
    "list": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "long": "a whole number",
    "float": "a number",
    "double": "a number",
}
"""What a type of the model is in a job file; every other one is text."""

_INSTANCE_TYPE_MEMBER = "InstanceType"


def _as_duration(seconds: int) -> str:
    return f"{seconds}s"


_READER_BY_FIELD: Mapping[str, Callable[[Any], Any]] = {
    "compute.keep_alive": _as_duration,
    "limits.max_runtime": _as_duration,
    "limits.max_wait": _as_duration,
    "limits.max_pending": _as_duration,
    "compute.instance_groups": as_instance_groups,
    "output.compression": str.lower,
}
"""How a field's value is made of that of the member, where they differ."""


@dataclasses.dataclass
class FoldedRequest:
    """The fields of a job, with the values that its ``request`` states for them."""

    fields: dict[str, Any]
    """As they were given; ``request`` has what no field stands for."""

    path_by_field: dict[str, FieldPath]
    """Where ``request`` has the value of a field."""

    problems: list[Problem]

    def note_member(self, field: str, path: FieldPath) -> None:
        self.path_by_field[field] = path

    def member_by_field(self) -> dict[str, str]:
        """Return where the user wrote the value of a field: ``compute.hosts`` is in
        ``request.ResourceConfig.InstanceCount``."""
        return {field: f"{REQUEST}.{path_text(path)}" for field, path in self.path_by_field.items()}


def fold_request(fields: Mapping[str, Any]) -> FoldedRequest:
    """Return the fields of a job with the members of its ``request``, a mapping of JSON values. ``fields``:
    not checked otherwise."""
    folding = _Folding(fields)
    folding.remove_refused_members()
    folding.check_by_model()
    folding.fold_inputs()
    folding.fold_fields()
    folded = folding.result
    folded.fields.pop(REQUEST)
    if folding.members:
        folded.fields[REQUEST] = folding.members
    return folded


def without_overridden_members(fields: Mapping[str, Any], changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of a job without the members of its ``request`` that changes of its fields, such as
    options of the command line, replace."""
    request = fields.get(REQUEST)
    if not isinstance(request, Mapping) or not request:
        return fields
    members = plain_copy(request)
    overridden_paths = [
        path for field, path in fold_request(fields).path_by_field.items() if _states_field(changes, field)
    ]
    # The last entries of lists come first, so that the others keep their places.
    for path in sorted(overridden_paths, key=lambda path: tuple(f"{step:>9}" for step in path), reverse=True):
        remove_at_path(members, path)
    return {**fields, REQUEST: members}


def _states_field(changes: Mapping[str, Any], field: str) -> bool:
    """Return whether the changes of a job have a value for a field."""
    section, _, name = field.partition(".")
    value = changes.get(section)
    if not name or not isinstance(value, Mapping):
        return value is not None
    if section != "inputs":
        return name in value
    channel_name, _, channel_field = name.rpartition(".")
    channel = _as_mapping(section, value.get(channel_name)) or {}
    return channel_field in channel


class _Folding:
    """One reading of a job's ``request``."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self.result = FoldedRequest(dict(fields), {}, [])
        self.members: dict[str, Any] = plain_copy(fields[REQUEST])
        self.kind = _kind_of_strategy(fields.get("strategy"))
        self._program = next(
            (name for name in ("entry", "algorithm") if fields.get(name) is not None), "image"
        )

    # ---- what is refused ----------------------------------------------------------------------------

    def remove_refused_members(self) -> None:
        for dotted_path, reason in REFUSAL_BY_MEMBER.items():
            path: FieldPath = tuple(dotted_path.split("."))
            if self._get(path) is not None:
                self._refuse(path, reason)
        for path in list(paths_without_value(self.members)):
            self._refuse(path, "it has no value; leave it out")
        for index, tag in self._entries(self.kind.request_path_by_field["tags"]):
            if str(tag.get("Key", "")).lower().startswith(OWN_TAG_PREFIX):
                message = f"tags that begin with {OWN_TAG_PREFIX} are smlaunch's own; choose another key"
                self._refuse(("Tags", index, "Key"), message)
        inputs_path = self.kind.request_path_by_field["inputs"]
        for index, entry in self._entries(inputs_path):
            name = entry.get(self._name_of_inputs)
            if name in _OWN_CHANNELS:
                message = f"the channel {name} is smlaunch's own: {_OWN_CHANNELS[name]}; take another name"
                self._refuse((*inputs_path, index, self._name_of_inputs), message)
        command_reason = _REASON_BY_PROGRAM.get(self._program)
        for field in ("container.entrypoint", "args"):
            command_path = self.kind.request_path_by_field[field]
            if command_reason is not None and self._get(command_path) is not None:
                self._refuse(command_path, command_reason)

    def check_by_model(self) -> None:
        """Refuse what the service's model of its API rejects whatever else the request has."""
        violation_by_path: dict[FieldPath, Violation] = {}
        for violation in check_request(self.kind.create_operation, self.members):
            if violation.path not in violation_by_path or violation.rule == "pattern":  # it says most
                violation_by_path[violation.path] = violation
        for violation in violation_by_path.values():
            is_about_whole_request = violation.rule in ("service", "union")
            is_completed = violation.rule == "required" and (
                self._is_completed(violation.path[:-1])
                or violation.path[2:] == self._local_path_of_inputs != ()
            )
            # The service knows new types before any client's model does.
            is_new_type = violation.rule == "enum" and violation.path[-1] == _INSTANCE_TYPE_MEMBER
            if not (is_about_whole_request or is_completed or is_new_type):
                self._refuse(violation.path, self._violation_text(violation))

    def _violation_text(self, violation: Violation) -> str:
        if violation.rule == "type":
            hint = (
                "; write it in quotes" if violation.limit == "string" and _is_plain(violation.value) else ""
            )
            found_text = shown_value(violation.path, violation.value)
            return f"{_WORDS_BY_TYPE.get(violation.limit, 'text')} is needed, not {found_text}{hint}"
        if violation.rule != "unknown":
            return violation.to_problem().message
        name = str(violation.value)
        message = f"{self.kind.create_operation} has no such member"
        for other_kind in JOB_KINDS.values():
            if len(violation.path) == 1 and (name,) in member_paths(other_kind.create_operation):
                return f"{message}; {other_kind.create_operation} has: strategy names the kind of job"
        match = nearest_match(name, violation.limit)
        if match is not None:
            return f"{message}; did you mean {match!r}?"
        elsewhere = [
            ".".join(path)
            for path in member_paths(self.kind.create_operation)
            if path[-1].casefold() == name.casefold()
        ]
        if elsewhere:
            return f"{message} here; did you mean {' or '.join(elsewhere[:2])}?"
        return message

    def _is_completed(self, path: FieldPath) -> bool:
        """Whether smlaunch adds members to the structure at this path."""
        names = _without_indices(path)
        inputs_path = self.kind.request_path_by_field["inputs"]
        if names[: len(inputs_path)] == inputs_path:
            entry = self._get(path[: len(inputs_path) + 1])
            inputs = self.result.fields.get("inputs")
            if not isinstance(inputs, Mapping) or not isinstance(entry, Mapping):
                return False
            return entry.get(self._name_of_inputs) in inputs
        if len(names) < len(path):  # an entry of another list, such as an output
            entry = self._get(path[: path.index(next(step for step in path if isinstance(step, int))) + 1])
            own_name = self.kind.constants.get("output_name")
            return own_name is not None and own_name in (entry or {}).values()
        return any(
            _without_indices(own_path)[: len(names)] == names
            for own_path in self.kind.request_path_by_field.values()
            if len(own_path) > len(names)
        )

    # ---- what has a field ---------------------------------------------------------------------------

    def fold_fields(self) -> None:
        """Move the members that have a field of the job to that field."""
        for field, path in self.kind.request_path_by_field.items():
            value = self._get(path)
            if value is None or field in self.kind.constants or field == "inputs":
                continue
            if field in ("environment", "hyperparameters"):
                read = self._hyperparameter if field == "hyperparameters" else str
                for key, text in list(value.items()):
                    self._move((*path, key), field, key, read(text))
            elif field == "tags":
                self._fold_tags(path, value)
            elif field == "metrics":
                self._fold_metrics(path, value)
            elif field == "compute.instance_preferences":
                self._fold_preferences(path, value)
            elif field == "output" and any(isinstance(step, int) for step in path):
                self._check_own_output(path)
            else:
                section, _, name = field.rpartition(".")
                self._move(path, section, name, _READER_BY_FIELD.get(field, lambda value: value)(value))
        self._refuse_ambiguous_values()

    def _hyperparameter(self, text: str) -> Any:
        """Return the job's value for the API's text, which the request of a script's job has again: there it
        is JSON unless it is text or a number."""
        if self._program != "entry" or hyperparameter_text(text) == text:
            return text
        return json.loads(text)

    def _fold_tags(self, path: FieldPath, tags: Sequence[Mapping[str, Any]]) -> None:
        for index, tag in reversed(list(enumerate(tags))):
            self._move((*path, index), "tags", tag.get("Key", ""), tag.get("Value", ""))

    def _fold_metrics(self, path: FieldPath, definitions: Sequence[Mapping[str, Any]]) -> None:
        """Append the metrics to those of the job."""
        stated = list(self.result.fields.get("metrics") or ())
        names = [(_as_mapping("metrics", metric) or {}).get("name") for metric in stated]
        for index, definition in enumerate(definitions):
            if definition.get("Name") in names:
                self._refuse_both((*path, index), f"metrics[{names.index(definition.get('Name'))}]")
            self.result.note_member(f"metrics[{len(stated)}]", (*path, index))
            stated.append({"name": definition.get("Name"), "regex": definition.get("Regex")})
        self.result.fields["metrics"] = stated
        self._remove(path)

    def _fold_preferences(self, path: FieldPath, preferences: Sequence[Mapping[str, Any]]) -> None:
        """Move the types to their field, and the number of hosts, which a plan has once for all types, to
        its own. Entries with other members stay, as they are."""
        types = [entry.get(_INSTANCE_TYPE_MEMBER) for entry in preferences]
        compute = _as_mapping("compute", self.result.fields.get("compute")) or {}
        if types == list(compute.get("instance_preferences") or ()):
            return  # the job was read before, and these have members without a field
        counts = {entry.get("InstanceCount") for entry in preferences}
        if counts != {None}:
            if len(counts) > 1:
                self._refuse(path, "smlaunch plans one number of hosts; give InstanceCount in ResourceConfig")
                return
            self._set(path, "compute", "hosts", counts.pop())
            preferences = [
                {name: value for name, value in entry.items() if name != "InstanceCount"}
                for entry in preferences
            ]
        has_other_members = any(set(entry) != {_INSTANCE_TYPE_MEMBER} for entry in preferences)
        if self._set(path, "compute", "instance_preferences", types):
            self._remove(path)
            if has_other_members:
                set_at_path(self.members, path, list(preferences))

    def _check_own_output(self, path: FieldPath) -> None:
        """Refuse the address of the output that the job states too; the other outputs are not smlaunch's."""
        list_path = path[: path.index(0)]
        output = _as_mapping("output", self.result.fields.get("output")) or {}
        for index, entry in self._entries(list_path):
            is_own = entry.get(NAME_BY_LIST[str(list_path[-1])]) == self.kind.constants["output_name"]
            if is_own and output.get("uri") and get_at_path(entry, path[path.index(0) + 1 :]):
                self._refuse_both((*list_path, index, *path[path.index(0) + 1 :]), "output")

    def _refuse_ambiguous_values(self) -> None:
        fields, members = self.result.fields, self.result.member_by_field()
        limits = _as_mapping("limits", fields.get("limits")) or {}
        member = members.get("limits.max_runtime")
        if member is not None and (limits.get("segment") or fields.get("segments")):
            field = "limits.segment" if limits.get("segment") else "segments"
            message = f"{field} makes a chain of jobs, for which smlaunch sets it; use limits.max_runtime"
            self.result.problems.append(Problem(member, message))

    # ---- inputs -------------------------------------------------------------------------------------

    def fold_inputs(self) -> None:
        """Move what an input's entry says of a channel to the job's ``inputs``. An entry without an address
        that a channel can have stays."""
        inputs_path = self.kind.request_path_by_field["inputs"]
        given_inputs = self.result.fields.get("inputs")
        if given_inputs is not None and not isinstance(given_inputs, Mapping):
            return
        inputs = {
            name: _as_mapping("inputs", channel) or {} for name, channel in (given_inputs or {}).items()
        }
        if any(not channel for channel in inputs.values()):
            return  # the reader says what is wrong with it
        remaining_entries = []
        for index, entry in self._entries(inputs_path):
            name = entry.get(self._name_of_inputs)
            members = list(channel_members(entry, self.kind.input_path_by_field))
            if name not in inputs and not any(member.field == "uri" for member in members):
                remaining_entries.append(entry)
                continue
            if name not in inputs:
                self.result.note_member(f"inputs.{name}", (*inputs_path, index))
            channel = inputs.setdefault(name, {})
            for path, field, value in members:
                member = (*inputs_path, index, *path)
                if field and channel.get(field) is not None:
                    self._refuse_both(member, f"inputs.{name}.{field}")
                    continue
                if field:
                    channel[field] = value
                    self.result.note_member(f"inputs.{name}.{field}", member)
                remove_at_path(entry, path)
            if set(entry) != {self._name_of_inputs}:
                remaining_entries.append(entry)
        if self._get(inputs_path) is None and not self._default_mode:
            return
        for name, channel in inputs.items():
            if self._default_mode and channel.get("mode") is None:
                channel["mode"] = self._default_mode
                self.result.note_member(f"inputs.{name}.mode", self.kind.request_path_by_field["input_mode"])
        self.result.fields["inputs"] = inputs
        self._remove(inputs_path)
        if remaining_entries:
            set_at_path(self.members, inputs_path, remaining_entries)

    @property
    def _default_mode(self) -> str | None:
        """The mode of inputs that state none."""
        path = self.kind.request_path_by_field.get("input_mode")
        return None if path is None else self._get(path)

    @property
    def _local_path_of_inputs(self) -> FieldPath:
        """Where an input's entry has its folder on the hosts, which smlaunch adds; empty for none."""
        return self.kind.input_path_by_field.get("local_path", ())

    @property
    def _name_of_inputs(self) -> str:
        return str(self.kind.input_path_by_field["name"][0])

    # ---- the parts of both --------------------------------------------------------------------------

    def _get(self, path: FieldPath) -> Any:
        value: Any = self.members
        for step in path:
            if isinstance(step, int):
                value = value[step] if isinstance(value, list) and step < len(value) else None
            else:
                value = value.get(step) if isinstance(value, Mapping) else None
        return value

    def _entries(self, path: FieldPath) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield index and value of the objects in the list at a path."""
        entries = self._get(path)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            if isinstance(entry, dict):
                yield index, entry

    def _remove(self, path: FieldPath) -> None:
        remove_at_path(self.members, path)

    def _refuse(self, path: FieldPath, message: str) -> None:
        self.result.problems.append(Problem(f"{REQUEST}.{path_text(path)}", message))
        # The other entries of its list have no place without it.
        first_index = next((place for place, step in enumerate(path) if isinstance(step, int)), len(path))
        self._remove(path[:first_index])

    def _refuse_both(self, path: FieldPath, field: str) -> None:
        message = f"{field} states it too; keep one of them"
        self.result.problems.append(Problem(f"{REQUEST}.{path_text(path)}", message))

    def _move(self, path: FieldPath, section: str, name: str, value: Any) -> None:
        if self._set(path, section, name, value):
            self._remove(path)

    def _set(self, path: FieldPath, section: str, name: str, value: Any) -> bool:
        """Set a field, or an entry of a mapping, of the job, ``name`` in ``section`` (empty for the job
        itself). Refuse the member if it has a value; return whether it was set."""
        fields = self.result.fields
        if not section and isinstance(fields.get(name), (str, Section)) and name in _SECTION_OF_TEXT:
            section, name = name, _SECTION_OF_TEXT[name]
        elif not section and name == "output":
            section, name = "output", "uri"
        field = f"{section}.{name}" if section else name
        holder = _as_mapping(section, fields.get(section)) if section else fields
        if holder is None:  # no section; the reader says so
            return True
        if holder.get(name) not in (None, (), []):
            self._refuse_both(path, field)
            return False
        if section:
            fields[section] = {**holder, name: value}
        else:
            fields[name] = value
        self.result.note_member(field, path)
        return True


def _kind_of_strategy(strategy: Any) -> JobKind:
    """Return the kind of job that a strategy starts; training for none, and for one that is unknown."""
    strategy_class = STRATEGIES.get(strategy) if isinstance(strategy, str) else None
    return TRAINING if strategy_class is None else strategy_class.job_kind


def _as_mapping(section: str, value: Any) -> dict[str, Any] | None:
    """Return the stated fields of a section, in whatever form it was given; None for what is no section."""
    if value is None:
        return {}
    if isinstance(value, Section):
        return {name: getattr(value, name) for name in value.stated_fields}
    value = expand_shorthand(_SECTION_OF_TEXT.get(section, "uri"), value)
    return dict(value) if isinstance(value, Mapping) else None


def _is_plain(value: Any) -> bool:
    return isinstance(value, (bool, int, float))


def _without_indices(path: FieldPath) -> FieldPath:
    return tuple(step for step in path if isinstance(step, str))
