"""Log of every call that the endpoint answered, with the IAM permissions that it needs.

Tests check IAM policies and exports against it. It is written if ``Settings.call_log`` or the variable
SMLAUNCH_CALL_LOG names a file: one line of JSON for each call, in one write, so that several endpoints may
share a file. Bodies are not logged, nor are calls with a rejected signature, whose caller is unknown. Calls
that a pipeline makes for its jobs are logged like requests (pipelines/), its reads from S3 are not.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from smlaunch.api.job_kinds import JOB_KINDS
from smlaunch.errors import EndpointError
from smlaunch.local.front.http_messages import Request, Response
from smlaunch.local.front.request_context import RequestContext, arn_partition
from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.services.s3.operations import (
    S3Operation,
    bucket_and_key,
    find_operation,
    requested_subresource,
)

_VIA = re.compile(r"smlaunch-via/(\w+)")


@dataclass(frozen=True)
class IamPermission:
    """An IAM action and the ARN of its resource; ``*`` for actions without a resource."""

    action: str
    resource: str


@dataclass(frozen=True)
class LoggedCall:
    """One line of the log. The names of the fields are its JSON keys."""

    time: float
    """Time of the response, in seconds since the epoch."""
    service: str
    """Service name in the signature, such as ``sagemaker``."""
    operation: str
    """Name in the API, such as ``CreateTrainingJob``."""
    needs: tuple[IamPermission, ...]
    """Required permissions: first the operation's own action, then iam:PassRole for a role, sagemaker:AddTags
    for tags, s3:GetObject for the source of a copy."""
    region: str
    caller: str
    """ARN of the signer."""
    via: str
    """Service that made the call on the caller's behalf: ``states``, ``pipelines`` or empty."""
    status: int
    """HTTP status."""
    error: str
    """Error code of the API; empty for success."""
    request_id: str


class CallLog:
    """Appends calls to a log file. Raises EndpointError if the file cannot be opened."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EndpointError(f"the call log {path} cannot be written: {error.strerror}") from error

    def append_call(
        self,
        request: Request,
        service: str,
        body: bytes,
        context: RequestContext,
        status: int,
        error: str = "",
    ) -> None:
        """Log one answered call. ``body``: the request's body; empty for S3."""
        parameters = _request_parameters(request, body)
        operation = _s3_operation(request).name if service == "s3" else _operation_name(request, parameters)
        via_match = _VIA.search(request.headers.get("user-agent", ""))
        call = LoggedCall(
            time.time(),
            service,
            operation,
            tuple(_required_permissions(request, service, operation, parameters, context)),
            context.region,
            context.arn,
            via_match.group(1) if via_match else "",
            status,
            error,
            context.request_id,
        )
        os.write(self._descriptor, json.dumps(asdict(call), separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


def error_code(response: Response) -> str:
    """Return the error code of a service's response; empty for success."""
    if response.status < 400:
        return ""
    headers = {name.lower(): value for name, value in response.headers.items()}
    code = headers.get("x-amzn-errortype", "")
    if not code and isinstance(response.body, bytes) and response.body.startswith(b"{"):
        code = str(json.loads(response.body).get("__type", ""))
    return code.rpartition("#")[2] or f"HTTP {response.status}"


def read_call_log(path: Path) -> list[LoggedCall]:
    """Read a log, in the order of the responses."""
    calls = []
    for line in path.read_text("utf-8").splitlines():
        entry = json.loads(line)
        entry["needs"] = tuple(IamPermission(**need) for need in entry["needs"])
        calls.append(LoggedCall(**entry))
    return calls


def _request_parameters(request: Request, body: bytes) -> JsonObject:
    """Return an API call's top-level parameters: those of a JSON object as body, or those of the query and of
    a form. Empty for a body that is not valid JSON."""
    if body.startswith(b"{"):
        try:
            parameters: JsonObject = json.loads(body)
        except ValueError:
            return {}
        return parameters
    is_form = "x-www-form-urlencoded" in request.headers.get("content-type", "")
    form_text = body.decode("utf-8", "replace") if is_form else ""
    return {**request.query, **dict(parse_qsl(form_text, keep_blank_values=True))}


def _operation_name(request: Request, parameters: JsonMapping) -> str:
    """Return the operation that an API call names: in a header (JSON protocol), in its path (CBOR) or in the
    parameter Action (Query); for other protocols, such as that of S3, the method and the path."""
    return request.named_operation or str(parameters.get("Action") or f"{request.method} {request.path}")


_ACTION_PREFIX_BY_SIGNING_NAME = {"monitoring": "cloudwatch"}
"""Prefixes of IAM actions that differ from the service's signing name."""
_RESOURCE_PARAMETERS_BY_SERVICE: Mapping[str, tuple[tuple[str, str], ...]] = {
    "sagemaker": (
        ("HyperParameterTuningJobName", "hyper-parameter-tuning-job/{}"),
        ("PipelineName", "pipeline/{}"),
        ("PipelineExecutionArn", "{}"),
        ("ResourceArn", "{}"),
    ),
    "states": (
        ("executionArn", "{}"),
        ("stateMachineArn", "{}"),
        ("resourceArn", "{}"),
        ("name", "stateMachine:{}"),
    ),
    "secretsmanager": (("SecretId", "secret:{}"), ("Name", "secret:{}")),
    "logs": (("logGroupName", "log-group:{}"),),
    "ssm": (("Name", "parameter/{}"),),
    "sts": (("RoleArn", "{}"),),
    "iam": (("RoleArn", "{}"),),
}
"""By service: the parameters that name the resource of a call, in order of preference, each with the last
part of the resource's ARN."""


def _required_permissions(
    request: Request, service: str, operation: str, parameters: JsonMapping, context: RequestContext
) -> list[IamPermission]:
    """Return the permissions that IAM would require for an API call. ``service``: its name in the signature;
    ``operation``: such as CreateTrainingJob; ``parameters``: of the call, at top level; ``context``: the
    caller's account and region."""
    if service == "s3":
        return _required_s3_permissions(request, context)
    # Some services sign with another name than that of their IAM actions.
    action_prefix = _ACTION_PREFIX_BY_SIGNING_NAME.get(service, service)
    resource_arn = _resource_arn(service, parameters, context)
    permissions = [IamPermission(f"{action_prefix}:{operation}", resource_arn)]
    role_arn = parameters.get("RoleArn") or parameters.get("roleArn")
    # These two services assume the role that a call names, so the caller must be allowed to pass it.
    if service in ("sagemaker", "states") and isinstance(role_arn, str):
        permissions.append(IamPermission("iam:PassRole", role_arn))
    adds_tags = service == "sagemaker" and bool(parameters.get("Tags"))
    if adds_tags and operation != "AddTags":  # that one already has this permission
        permissions.append(IamPermission("sagemaker:AddTags", resource_arn))
    return permissions


def _resource_arn(service: str, parameters: JsonMapping, context: RequestContext) -> str:
    """Return the ARN of the resource that an API call's parameters name; ``*`` if they name none.
    ``context``: the caller's account and region, which an ARN contains."""
    # The service's parameters that name a resource, in order of preference, each with the pattern of the
    # ARN's last part: for example TrainingJobName with training-job/{}.
    resource_parameters = _RESOURCE_PARAMETERS_BY_SERVICE.get(service, ())
    if service == "sagemaker":
        names_of_jobs = ((kind.name_field, f"{kind.arn_resource}/{{}}") for kind in JOB_KINDS.values())
        resource_parameters = (*names_of_jobs, *resource_parameters)
    for parameter_name, arn_suffix_pattern in resource_parameters:
        name_or_arn = parameters.get(parameter_name)
        if not isinstance(name_or_arn, str) or not name_or_arn:
            continue
        if name_or_arn.startswith("arn:"):
            return name_or_arn
        if service == "sagemaker" and parameter_name.endswith("Name"):
            name_or_arn = name_or_arn.lower()  # SageMaker's ARNs are in lower case
        return context.resource_arn(service, arn_suffix_pattern.format(name_or_arn))
    return "*"


def _s3_operation(request: Request) -> S3Operation:
    """Return an S3 request's operation. An unknown one has the method and the sub-resource as its name."""
    unknown_name = f"{request.method} ?{requested_subresource(request)}"
    return find_operation(request) or S3Operation(unknown_name, unknown_name)


def _required_s3_permissions(request: Request, context: RequestContext) -> list[IamPermission]:
    """Return the IAM permissions that an S3 request needs; a copy also needs to read its source.
    ``context``: the caller's account and region."""
    operation, action = _s3_operation(request)
    bucket, key = bucket_and_key(request)
    arn_prefix = f"arn:{arn_partition(context.region)}:s3:::"
    if not bucket:
        resource_arn = "*"
    elif operation == "DeleteObjects":
        resource_arn = f"{arn_prefix}{bucket}/*"  # the keys are in the body, which is not logged
    else:
        resource_arn = f"{arn_prefix}{bucket}/{key}" if key else f"{arn_prefix}{bucket}"
    permissions = [IamPermission(f"s3:{action}", resource_arn)]
    copied_bucket_and_key = unquote(request.headers.get("x-amz-copy-source", "")).lstrip("/")
    if copied_bucket_and_key:
        permissions.append(IamPermission("s3:GetObject", arn_prefix + copied_bucket_and_key))
    return permissions
