"""Problems of a compiled request: what the service's model and the endpoint reject, by the fields of the job
that the user wrote."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from smlaunch.api.job_kinds import JobKind, get_at_path, job_kind_of
from smlaunch.api.validation.request_check import check_request
from smlaunch.api.validation.violation import Violation, path_text
from smlaunch.errors import Problem
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.model import Job
from smlaunch.planner.plan_context import Diagnostics

_FIELDS_WITH_CONSTANTS = ("image", "output")
"""Fields that also stand for the object that has their member, and for the constants in it."""

REQUEST_FIELD = "request"

_INPUT_FIELDS_IN_MESSAGES = (
    *("uri", "mode", "split", "content_type"),
    *("access", "attributes", "instance_groups", "compression", "record_wrapper", "shuffle_seed"),
)
_INPUT_FIELD_BY_DATA_TYPE = {"AugmentedManifestFile": "attributes", "ManifestFile": "manifest"}

_RULES_LEFT_TO_SERVICE = {("compute.instance_type", "enum"), ("compute.instance_preferences", "enum")}
"""Violations that are only warnings: the service knows new instance types before any client's tables."""


def check_compiled_request(
    job: Job, request: Mapping[str, Any], diagnostics: Diagnostics, segment: int
) -> None:
    """Add a problem for each field of the job because of which the service would reject the request, unless
    the field already has one. The request is checked by the service's own model of its API.
    ``segment``: number of the request's segment."""
    field_by_path = segment_fields_of(job, segment)
    reported_fields = {problem.path for problem in diagnostics.problems}
    kind = job_kind_of(request)
    if not get_at_path(request, kind.request_path_by_field["image"]):
        # No image could be chosen; the field at fault (framework_version, or the type) is already reported.
        reported_fields.add("image")
    # A violation: a member of the request, and the limit of the model that it breaks.
    for violation in check_request(kind.create_operation, request):
        field = _field_of_violation(job, violation, request)
        # The model may be older than the service, which knows newer instance types.
        is_left_to_service = (field, violation.rule) in _RULES_LEFT_TO_SERVICE
        field = field_by_path.get(field, field)
        if field in reported_fields or is_left_to_service:
            continue
        if field == "compute.spot" and "compute.instance_preferences" in reported_fields:
            continue  # the two exclude each other; that is reported for the other field
        diagnostics.add_problem(field, violation.to_problem().message)
        reported_fields.add(field)


def _field_of_violation(job: Job, violation: Violation, request: Mapping[str, Any]) -> str:
    """Return the field of the job that a violation is about, among those of which the job states one."""
    field = job_field_of_member(violation.path, request)
    section, _, name = field.partition(".")
    if section == "inputs" and name and name.partition(".")[0] not in job.inputs and job.request:
        return f"{REQUEST_FIELD}.{violation.dotted_path()}"  # only ``request`` has this input
    if field.startswith("args") and job.container.arguments:
        return f"container.arguments{field.removeprefix('args')}"
    return field


def request_channels(job: Job, kind: JobKind) -> frozenset[str]:
    """Return the names of the inputs that only the job's ``request`` has."""
    entries = get_at_path(job.request, kind.request_path_by_field["inputs"]) or ()
    return frozenset(get_at_path(entry, kind.input_path_by_field["name"]) for entry in entries) - set(
        job.inputs
    )


def segment_fields_of(job: Job, segment: int) -> dict[str, str]:
    """Return the fields that a segment changes: by the job's own field, ``compute.hosts``, that of the
    segment, ``segments[1].compute.hosts``. ``segment``: from 1."""
    if segment > len(job.segments):
        return {}
    paths = field_paths_of(job.segments[segment - 1].to_mapping())
    return {path: f"segments[{segment - 1}].{path}" for path in paths}


_HOST_CHANGES = ("compute.instance_type", "compute.processes_per_host", "compute.hosts")


def at_segment(problem: Problem, field_by_path: Mapping[str, str]) -> Problem:
    """Return a problem at the field of a segment that causes it: the one of its name, otherwise the first
    difference in the hosts. ``field_by_path``: what the segment changes, ``segment_fields_of``."""
    if problem.path in field_by_path:
        return problem._replace(path=field_by_path[problem.path])
    host_changes = [field_by_path[path] for path in _HOST_CHANGES if path in field_by_path]
    return Problem(host_changes[0], f"{problem.path}: {problem.message}") if host_changes else problem


def report_endpoint_limits(
    job: Job, request: Mapping[str, Any], facts: DiscoveredFacts, diagnostics: Diagnostics
) -> None:
    """Report members of the request that the endpoint rejects (a problem) or records without effect: a
    warning if the job states the field that the member comes from, otherwise a reason."""
    endpoint = facts.endpoint
    hosts = job.compute.host_count
    if endpoint.max_hosts is not None and hosts > endpoint.max_hosts:
        message = (
            f"this machine can stand for {endpoint.max_hosts} hosts of a job, not for {hosts}; take fewer"
        )
        diagnostics.add_problem("compute.hosts", message)
    for warning in endpoint.warnings:
        diagnostics.add_warning(warning)
    if not (endpoint.rejected_members or endpoint.recorded_members):  # a region
        return
    # The fields that the user states, without those that the plan has filled in.
    stated_fields = field_paths_of(job.to_mapping()) - diagnostics.fields_chosen_by_plan
    fields_by_member = _fields_by_member(request)
    # Both mappings of the endpoint: a sentence by the member's dotted path (ResourceConfig.VolumeSizeInGB).
    for member_path, sentence in endpoint.rejected_members.items():
        for field in fields_by_member.get(member_path, ()):
            diagnostics.add_problem(field, sentence)
    for member_path, sentence in endpoint.recorded_members.items():
        fields_of_member = fields_by_member.get(member_path)
        if fields_of_member is None:
            continue  # the request does not have this member
        fields_without_effect = [field for field in fields_of_member if field in stated_fields]
        for field in fields_without_effect:
            diagnostics.add_warning(f"{job.written_path(field)}: {sentence}")
        if not fields_without_effect:
            capitalized_sentence = sentence[:1].upper() + sentence[1:].rstrip(".") + "."
            diagnostics.add_reason(f"endpoint.{member_path}", capitalized_sentence)


def _fields_by_member(request: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the fields of the job that each member of the request comes from, by the member's dotted path
    without list indices, and also by that path with its value: ``InputDataConfig.InputMode=Pipe``."""
    fields_by_key: dict[str, list[str]] = {}
    for path, value in walk_request_members(request):
        member_names = tuple(name for name in path if isinstance(name, str))  # without list indices
        member_path = dotted_path(member_names)
        has_plain_value = not isinstance(value, (dict, list))
        # An endpoint may have no support for one value of a member only.
        keys = [member_path, f"{member_path}={value}"] if has_plain_value else [member_path]
        job_field = job_field_of_member(path, request)
        for key in keys:
            fields_of_key = fields_by_key.setdefault(key, [])
            if job_field not in fields_of_key:
                fields_of_key.append(job_field)
    return fields_by_key


def field_paths_of(mapping: Mapping[str, Any], prefix: str = "") -> set[str]:
    """Dotted paths of all fields of the job that are stated."""
    field_names: set[str] = set()
    for key, value in mapping.items():
        field_names.add(prefix + key)
        if isinstance(value, Mapping):
            field_names |= field_paths_of(value, f"{prefix}{key}.")
    return field_names


def job_field_of_member(member_path: tuple[str | int, ...], request: Mapping[str, Any]) -> str:
    """Return the name of the job's field that a member of a request comes from, such as ``compute.hosts`` or
    ``inputs.train.uri``; its path in the job's ``request`` if there is none.

    ``member_path``: keys and list indices from the top of the request to the member.
    """
    kind = job_kind_of(request)
    fields_by_path = {path: field for field, path in kind.request_path_by_field.items()}
    # A constant, and the object around it, are reported by the field that has its member in that object.
    field_by_path = {path: field for path, field in fields_by_path.items() if field not in kind.constants}
    for field in _FIELDS_WITH_CONSTANTS:
        object_path = kind.request_path_by_field[field][:-1]
        constant_paths = [
            path
            for path, name in fields_by_path.items()
            if name in kind.constants and path[: len(object_path)] == object_path
        ]
        field_by_path |= dict.fromkeys([object_path, *constant_paths], field)
    # The longest beginning of the path that belongs to a field.
    for length in range(len(member_path), 0, -1):
        matching_field = field_by_path.get(member_path[:length])
        if matching_field is None:
            continue
        # Key or index of the entry that the member belongs to, and what follows.
        path_from_entry = member_path[length:]
        if not path_from_entry:
            return matching_field
        if matching_field in _FIELDS_WITH_CONSTANTS:
            break  # another member of the object
        entry = get_at_path(request, member_path[: length + 1])
        return matching_field + _entry_suffix(matching_field, kind, path_from_entry, entry)
    return f"{REQUEST_FIELD}.{path_text(member_path)}"


def dotted_path(member_path: tuple[str | int, ...]) -> str:
    """Return the path's keys and indices joined by dots."""
    return ".".join(str(member) for member in member_path)


def _entry_suffix(field: str, kind: JobKind, path_from_entry: tuple[str | int, ...], entry: Any) -> str:
    """Return the end of the name of an entry's field, if the field is a mapping or a list of named entries,
    such as ``.lr`` of hyperparameters, ``.team`` of tags, ``[0]`` of args; otherwise nothing.

    ``path_from_entry``: key or index of ``entry``, and the path in it, such as ``(0, "Value")`` of a tag.
    """
    key_or_index, *path_in_entry = path_from_entry
    if field in ("hyperparameters", "environment"):
        return f".{key_or_index}"
    if field == "args":
        return f"[{key_or_index}]"
    if field == "tags":
        return f".{entry['Key']}"
    if field != "inputs":
        return ""
    input_suffix = f".{get_at_path(entry, kind.input_path_by_field['name'])}"
    # The job's inputs have fields of their own, such as inputs.train.uri for a member S3Uri.
    for name in _INPUT_FIELDS_IN_MESSAGES:
        if kind.input_path_by_field.get(name) == tuple(path_in_entry):
            return f"{input_suffix}.{name}"
    data_type_path = kind.input_path_by_field["data_type"]
    if data_type_path == tuple(path_in_entry):
        field_of_type = _INPUT_FIELD_BY_DATA_TYPE.get(get_at_path(entry, data_type_path))
        return input_suffix if field_of_type is None else f"{input_suffix}.{field_of_type}"
    return input_suffix


def walk_request_members(
    value: Any, path: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield path and value of every member of a request, parents before children. ``path``: keys and list
    indices from the top of the request to ``value``. A member is a key of a mapping, or an entry of a list,
    with its value."""
    if path:
        yield path, value
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from walk_request_members(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from walk_request_members(item, (*path, index))
