"""botocore's service models, reduced to the operations that smlaunch calls.

A model describes all of a service: SageMaker's has 425 operations, 3,200 shapes and their documentation, of
which a run needs twenty operations. A reduction has these operations, the shapes that they reach, and all
errors of the service. Everything else is still there: the first use of another operation, shape or service
reads the full file.

Pure: ``model_loader`` knows botocore's files, and ``user_cache`` where reductions are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from smlaunch.api.job_kinds import JOB_KINDS

Document = dict[str, Any]
"""A JSON object."""


class ServiceIds(NamedTuple):
    """What botocore calls a service, beside the name by which a client is created."""

    endpoint_prefix: str
    """In endpoints.json."""
    event_id: str
    """In the names of events."""


SERVICE_IDS = {
    "sagemaker": ServiceIds("api.sagemaker", "sagemaker"),
    "s3": ServiceIds("s3", "s3"),
    "logs": ServiceIds("logs", "cloudwatch-logs"),
    "sts": ServiceIds("sts", "sts"),
    "iam": ServiceIds("iam", "iam"),
    "service-quotas": ServiceIds("servicequotas", "service-quotas"),
    "pricing": ServiceIds("api.pricing", "pricing"),
    "stepfunctions": ServiceIds("states", "sfn"),
}
"""The services with reduced models. botocore reads the others, such as sso for credentials, in full."""

_OPERATIONS = {
    "sagemaker": """
        ListTags Search
        CreatePipeline DescribePipeline UpdatePipeline
        DescribePipelineExecution ListPipelineExecutionSteps StopPipelineExecution
    """,
    "s3": """
        CreateBucket HeadBucket ListObjectsV2 GetObject HeadObject PutObject DeleteObjects
        CreateMultipartUpload UploadPart CompleteMultipartUpload AbortMultipartUpload
        ListMultipartUploads ListParts CreateSession
    """,
    "logs": "DescribeLogStreams GetLogEvents",
    # The last two are for botocore's own providers of credentials.
    "sts": "GetCallerIdentity AssumeRole AssumeRoleWithWebIdentity",
    "iam": "GetRole",
    "service-quotas": "ListServiceQuotas",
    "pricing": "GetProducts",
    "stepfunctions": """
        CreateStateMachine DescribeStateMachine UpdateStateMachine DescribeExecution StopExecution
    """,
}


def operations_of(service: str) -> list[str]:
    """Return the operations that smlaunch calls, those of all kinds of jobs included, in order."""
    operations = set(_OPERATIONS[service].split())
    if service == "sagemaker":
        for kind in JOB_KINDS.values():
            operations |= {
                kind.create_operation,
                kind.describe_operation,
                kind.stop_operation,
                kind.list_operation,
            }
    return sorted(operations)


class ReducedSection(dict[str, Any]):
    """A JSON object with some of its keys. The others are read when they are asked for: ``load_full`` returns
    the whole object. Its iteration yields only the keys that it has."""

    def __init__(self, content: Mapping[str, Any], load_full: Callable[[], Mapping[str, Any]]) -> None:
        super().__init__(content)
        self.load_full = load_full

    def __missing__(self, key: str) -> Any:
        return self.load_full()[key]

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or key in self.load_full()

    def get(self, key: str, default: Any = None) -> Any:
        try:
            return self[key]
        except KeyError:
            return default


class Reduction(NamedTuple):
    """How a file of botocore's is reduced."""

    parameters: Collection[str]
    """All that the reduced content depends on, beside the file."""
    reduce: Callable[[Document], Document]
    complete: Callable[[Document, Callable[[], Document]], Document]
    """Returns reduced content with sections that read what they lack from the full one."""


def reduction_of(name: str) -> Reduction | None:
    """Return the reduction of one of botocore's data files, by its path below botocore's folder without the
    suffix: ``endpoints``, ``s3/2006-03-01/service-2``. None for a file that is used in full."""
    if name == "endpoints":
        prefixes = sorted(ids.endpoint_prefix for ids in SERVICE_IDS.values())
        return Reduction(prefixes, partial(_reduce_endpoints, prefixes), _complete_endpoints)
    service, _, model_type = name.partition("/")
    if service == "s3" and model_type.endswith("/endpoint-rule-set-1"):
        # Complete; but 0.9 MB, which botocore unpacks and parses in 10 ms.
        return Reduction((), lambda rules: rules, lambda rules, _: rules)
    if service not in SERVICE_IDS or not model_type.endswith("/service-2"):
        return None
    operations = operations_of(service)
    return Reduction(operations, partial(_reduce_model, operations), _complete_model)


def _reduce_model(operations: Iterable[str], model: Document) -> Document:
    """Return a service model with these operations, as far as it has them, the shapes that they need, and no
    documentation."""
    shapes = model["shapes"]
    operation_by_name = {
        name: model["operations"][name] for name in operations if name in model["operations"]
    }
    # A response may name any error of the service, also one that the operation does not declare.
    needed_names = {name for name, shape in shapes.items() if shape.get("exception")}
    pending_names = list(needed_names)
    for operation in operation_by_name.values():
        pending_names.extend(_shape_names_in(operation))
    while pending_names:
        name = pending_names.pop()
        needed_names.add(name)
        pending_names.extend(_shape_names_in(shapes[name]) - needed_names)
    return {
        **model,
        "operations": _without_documentation(operation_by_name),
        "shapes": {name: _without_documentation(shapes[name]) for name in shapes if name in needed_names},
    }


def _shape_names_in(definition: Mapping[str, Any]) -> set[str]:
    """Return the shapes that an operation or a shape refers to."""
    references = [
        *(definition.get(key) for key in ("input", "output", "member", "key", "value")),
        *definition.get("errors", ()),
        *definition.get("members", {}).values(),
    ]
    return {reference["shape"] for reference in references if reference}


def _without_documentation(value: Any) -> Any:
    """Return a copy of operations or shapes. A member that is called ``documentation`` stays: its value is an
    object."""
    if isinstance(value, dict):
        return {
            key: _without_documentation(entry)
            for key, entry in value.items()
            if key != "documentation" or not isinstance(entry, str)
        }
    return [_without_documentation(entry) for entry in value] if isinstance(value, list) else value


def _complete_model(model: Document, load_full: Callable[[], Document]) -> Document:
    sections = {
        name: ReducedSection(model[name], partial(_load_section, load_full, name))
        for name in ("operations", "shapes")
    }
    return {**model, **sections}


def _load_section(load_full: Callable[[], Document], name: str) -> Mapping[str, Any]:
    section: Mapping[str, Any] = load_full()[name]
    return section


def _reduce_endpoints(prefixes: Collection[str], endpoints: Document) -> Document:
    """Return the endpoints of all partitions and regions, for the services with these prefixes."""
    partitions = [
        {
            **partition,
            "services": {key: partition["services"][key] for key in prefixes if key in partition["services"]},
        }
        for partition in endpoints["partitions"]
    ]
    return {**endpoints, "partitions": partitions}


def _complete_endpoints(endpoints: Document, load_full: Callable[[], Document]) -> Document:
    def load_services(index: int) -> Mapping[str, Any]:
        services: Mapping[str, Any] = load_full()["partitions"][index]["services"]
        return services

    partitions = [
        {**partition, "services": ReducedSection(partition["services"], partial(load_services, index))}
        for index, partition in enumerate(endpoints["partitions"])
    ]
    return {**endpoints, "partitions": partitions}
