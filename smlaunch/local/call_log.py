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
from typing import Any
from urllib.parse import parse_qsl, unquote

from smlaunch.errors import EndpointError
from smlaunch.local.http_messages import Request, Response
from smlaunch.local.request_context import RequestContext, arn_partition
from smlaunch.local.services.s3.service import SUBRESOURCES, bucket_and_key

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

    def add(
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
        operation = _s3_operation(request)[0] if service == "s3" else _operation(request, parameters)
        via = _VIA.search(request.headers.get("user-agent", ""))
        call = LoggedCall(
            time.time(),
            service,
            operation,
            tuple(_required_permissions(request, service, operation, parameters, context)),
            context.region,
            context.arn,
            via.group(1) if via else "",
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


def _request_parameters(request: Request, body: bytes) -> dict[str, Any]:
    """Return the top-level parameters of a JSON body or a form."""
    if body.startswith(b"{"):
        try:
            parameters: dict[str, Any] = json.loads(body)
        except ValueError:
            return {}
        return parameters
    is_form = "x-www-form-urlencoded" in request.headers.get("content-type", "")
    text = body.decode("utf-8", "replace") if is_form else ""
    return {**request.query, **dict(parse_qsl(text, keep_blank_values=True))}


def _operation(request: Request, parameters: Mapping[str, Any]) -> str:
    target = request.headers.get("x-amz-target", "")
    if target:
        return target.rpartition(".")[2]
    if "/operation/" in request.path:
        return request.path.rpartition("/")[2]
    return str(parameters.get("Action") or f"{request.method} {request.path}")


_ACTION_PREFIXES = {"monitoring": "cloudwatch"}
"""Prefixes of IAM actions that differ from the service's signing name."""
_RESOURCE_MEMBERS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "sagemaker": (
        ("TrainingJobName", "training-job/{}"),
        ("ProcessingJobName", "processing-job/{}"),
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
    "sts": (("RoleArn", "{}"),),
    "iam": (("RoleArn", "{}"),),
}
"""Members that name the resource of a call, in order of preference, with its part of the ARN."""


def _required_permissions(
    request: Request, service: str, operation: str, parameters: Mapping[str, Any], context: RequestContext
) -> list[IamPermission]:
    """Return the permissions that IAM would require for a call."""
    if service == "s3":
        return _s3_permissions(request, context)
    prefix = _ACTION_PREFIXES.get(service, service)
    resource = _resource(service, parameters, context)
    permissions = [IamPermission(f"{prefix}:{operation}", resource)]
    role = parameters.get("RoleArn") or parameters.get("roleArn")
    if service in ("sagemaker", "states") and isinstance(role, str):
        permissions.append(IamPermission("iam:PassRole", role))
    if service == "sagemaker" and parameters.get("Tags") and operation != "AddTags":
        permissions.append(IamPermission("sagemaker:AddTags", resource))
    return permissions


def _resource(service: str, parameters: Mapping[str, Any], context: RequestContext) -> str:
    """Return the ARN of the resource that a call's parameters name; ``*`` if they name none."""
    for member, arn_pattern in _RESOURCE_MEMBERS.get(service, ()):
        value = parameters.get(member)
        if isinstance(value, str) and value:
            name = value.lower() if service == "sagemaker" and member.endswith("Name") else value
            return (
                value if value.startswith("arn:") else context.resource_arn(service, arn_pattern.format(name))
            )
    return "*"


_OBJECT_OPERATIONS = {
    ("GET", ""): ("GetObject", "GetObject"),
    ("HEAD", ""): ("HeadObject", "GetObject"),
    ("PUT", ""): ("PutObject", "PutObject"),
    ("DELETE", ""): ("DeleteObject", "DeleteObject"),
    ("GET", "tagging"): ("GetObjectTagging", "GetObjectTagging"),
    ("PUT", "tagging"): ("PutObjectTagging", "PutObjectTagging"),
    ("DELETE", "tagging"): ("DeleteObjectTagging", "DeleteObjectTagging"),
    ("GET", "attributes"): ("GetObjectAttributes", "GetObjectAttributes"),
    ("GET", "acl"): ("GetObjectAcl", "GetObjectAcl"),
    ("POST", "uploads"): ("CreateMultipartUpload", "PutObject"),
    ("PUT", "uploadId"): ("UploadPart", "PutObject"),
    ("POST", "uploadId"): ("CompleteMultipartUpload", "PutObject"),
    ("DELETE", "uploadId"): ("AbortMultipartUpload", "AbortMultipartUpload"),
    ("GET", "uploadId"): ("ListParts", "ListMultipartUploadParts"),
}
_BUCKET_OPERATIONS = {
    ("GET", ""): ("ListObjects", "ListBucket"),
    ("HEAD", ""): ("HeadBucket", "ListBucket"),
    ("PUT", ""): ("CreateBucket", "CreateBucket"),
    ("DELETE", ""): ("DeleteBucket", "DeleteBucket"),
    ("GET", "location"): ("GetBucketLocation", "GetBucketLocation"),
    ("GET", "versions"): ("ListObjectVersions", "ListBucketVersions"),
    ("GET", "uploads"): ("ListMultipartUploads", "ListBucketMultipartUploads"),
    ("POST", "delete"): ("DeleteObjects", "DeleteObject"),
}
"""S3 operation and IAM action by method and sub-resource (Service Authorization Reference, "Actions,
resources, and condition keys for Amazon S3")."""


def _s3_operation(request: Request) -> tuple[str, str]:
    """Return the S3 operation and the IAM action of a request."""
    bucket, key = bucket_and_key(request)
    if not bucket:
        return "ListBuckets", "ListAllMyBuckets"
    subresources = sorted(SUBRESOURCES.intersection(request.query))
    method_and_subresource = (request.method, subresources[0] if subresources else "")
    unknown = f"{request.method} ?{method_and_subresource[1]}"
    operation, action = (_OBJECT_OPERATIONS if key else _BUCKET_OPERATIONS).get(
        method_and_subresource, (unknown, unknown)
    )
    if operation == "ListObjects" and request.query.get("list-type") == "2":
        return "ListObjectsV2", action
    if operation == "PutObject" and "x-amz-copy-source" in request.headers:
        return "CopyObject", action
    return operation, action


def _s3_permissions(request: Request, context: RequestContext) -> list[IamPermission]:
    """Return the IAM permissions that an S3 request needs; a copy also needs to read its source."""
    operation, action = _s3_operation(request)
    bucket, key = bucket_and_key(request)
    object_part = "/*" if operation == "DeleteObjects" else f"/{key}" if key else ""
    arn = f"arn:{arn_partition(context.region)}:s3:::"
    permissions = [IamPermission(f"s3:{action}", f"{arn}{bucket}{object_part}" if bucket else "*")]
    source = unquote(request.headers.get("x-amz-copy-source", "")).lstrip("/")
    return permissions + ([IamPermission("s3:GetObject", f"{arn}{source}")] if source else [])
