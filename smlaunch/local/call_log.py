"""A record of every call that the endpoint answered: what policies and exports are checked against.

Off, unless ``Settings.call_log`` or the variable SMLAUNCH_CALL_LOG names a file. Each call is one line of
JSON, written whole, so several endpoints may write the same file. Bodies are not recorded. A call whose
signature was refused is not there: nobody knows whose it was. What a pipeline of this endpoint does with its
jobs is there as if requests came in for it (pipelines.door); what it reads from S3 is not.
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
from smlaunch.local.caller import Caller, partition
from smlaunch.local.messages import Request, Response
from smlaunch.local.services.s3.service import SUBRESOURCES, bucket_and_key

_VIA = re.compile(r"smlaunch-via/(\w+)")


@dataclass(frozen=True)
class Need:
    """An IAM action on a resource, by its ARN; ``*`` for actions that know none."""

    action: str
    resource: str


@dataclass(frozen=True)
class Call:
    """``service`` is the name that was signed for, ``operation`` the API's (``CreateTrainingJob``).

    ``needs``: what IAM would have to allow; first the operation's own action, then what comes with it
    (iam:PassRole for a role that is handed over, sagemaker:AddTags for tags, s3:GetObject for what is
    copied). ``caller``: the ARN of who signed. ``via``: the service that made the call on the caller's
    behalf, ``states``, ``pipelines`` or nothing. ``error`` is the API's code, or nothing; ``status`` HTTP's;
    ``time`` in seconds since the epoch, of the answer.
    """

    time: float
    service: str
    operation: str
    needs: tuple[Need, ...]
    region: str
    caller: str
    via: str
    status: int
    error: str
    request_id: str


class CallLog:
    """Raises EndpointError for a file that cannot be written."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise EndpointError(f"the call log {path} cannot be written: {error.strerror}") from error

    def add(
        self, request: Request, service: str, body: bytes, caller: Caller, status: int, error: str = ""
    ) -> None:
        """``body``: what was read before the service saw it; empty for S3."""
        members = _members(request, body)
        operation = _s3_operation(request)[0] if service == "s3" else _operation(request, members)
        via = _VIA.search(request.headers.get("user-agent", ""))
        call = Call(
            time.time(),
            service,
            operation,
            tuple(_needs(request, service, operation, members, caller)),
            caller.region,
            caller.arn,
            via.group(1) if via else "",
            status,
            error,
            caller.request_id,
        )
        os.write(self._descriptor, json.dumps(asdict(call), separators=(",", ":")).encode() + b"\n")

    def close(self) -> None:
        os.close(self._descriptor)


def error_code(response: Response) -> str:
    """Of an answer that a service made itself; empty for one that is no error."""
    if response.status < 400:
        return ""
    headers = {name.lower(): value for name, value in response.headers.items()}
    code = headers.get("x-amzn-errortype", "")
    if not code and isinstance(response.body, bytes) and response.body.startswith(b"{"):
        code = str(json.loads(response.body).get("__type", ""))
    return code.rpartition("#")[2] or f"HTTP {response.status}"


def read(path: Path) -> list[Call]:
    """In the order of the answers."""
    calls = []
    for line in path.read_text("utf-8").splitlines():
        entry = json.loads(line)
        entry["needs"] = tuple(Need(**need) for need in entry["needs"])
        calls.append(Call(**entry))
    return calls


def _members(request: Request, body: bytes) -> dict[str, Any]:
    """The parameters on the outside, of JSON and of forms."""
    if body.startswith(b"{"):
        try:
            found: dict[str, Any] = json.loads(body)
        except ValueError:
            return {}
        return found
    form = "x-www-form-urlencoded" in request.headers.get("content-type", "")
    text = body.decode("utf-8", "replace") if form else ""
    return {**request.query, **dict(parse_qsl(text, keep_blank_values=True))}


def _operation(request: Request, members: Mapping[str, Any]) -> str:
    target = request.headers.get("x-amz-target", "")
    if target:
        return target.rpartition(".")[2]
    if "/operation/" in request.path:
        return request.path.rpartition("/")[2]
    return str(members.get("Action") or f"{request.method} {request.path}")


_PREFIXES = {"monitoring": "cloudwatch"}
"""Of IAM's actions, where they are not what is signed for."""
_RESOURCES: Mapping[str, tuple[tuple[str, str], ...]] = {
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
"""Members that name what a call is about, the first that is there, and how it stands in the ARN."""


def _needs(
    request: Request, service: str, operation: str, members: Mapping[str, Any], caller: Caller
) -> list[Need]:
    if service == "s3":
        return _s3_needs(request, caller)
    prefix = _PREFIXES.get(service, service)
    resource = _resource(service, members, caller)
    needs = [Need(f"{prefix}:{operation}", resource)]
    role = members.get("RoleArn") or members.get("roleArn")
    if service in ("sagemaker", "states") and isinstance(role, str):
        needs.append(Need("iam:PassRole", role))
    if service == "sagemaker" and members.get("Tags") and operation != "AddTags":
        needs.append(Need("sagemaker:AddTags", resource))
    return needs


def _resource(service: str, members: Mapping[str, Any], caller: Caller) -> str:
    for member, form in _RESOURCES.get(service, ()):
        value = members.get(member)
        if isinstance(value, str) and value:
            name = value.lower() if service == "sagemaker" and member.endswith("Name") else value
            return value if value.startswith("arn:") else caller.resource_arn(service, form.format(name))
    return "*"


_ON_OBJECT = {
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
_ON_BUCKET = {
    ("GET", ""): ("ListObjects", "ListBucket"),
    ("HEAD", ""): ("HeadBucket", "ListBucket"),
    ("PUT", ""): ("CreateBucket", "CreateBucket"),
    ("DELETE", ""): ("DeleteBucket", "DeleteBucket"),
    ("GET", "location"): ("GetBucketLocation", "GetBucketLocation"),
    ("GET", "versions"): ("ListObjectVersions", "ListBucketVersions"),
    ("GET", "uploads"): ("ListMultipartUploads", "ListBucketMultipartUploads"),
    ("POST", "delete"): ("DeleteObjects", "DeleteObject"),
}
"""S3's operations, which a request does not name, and the actions that IAM has for them (Service
Authorization Reference, "Actions, resources, and condition keys for Amazon S3")."""


def _s3_operation(request: Request) -> tuple[str, str]:
    bucket, key = bucket_and_key(request)
    if not bucket:
        return "ListBuckets", "ListAllMyBuckets"
    found = sorted(SUBRESOURCES.intersection(request.query))
    place = (request.method, found[0] if found else "")
    unknown = f"{request.method} ?{place[1]}"
    operation, action = (_ON_OBJECT if key else _ON_BUCKET).get(place, (unknown, unknown))
    if operation == "ListObjects" and request.query.get("list-type") == "2":
        return "ListObjectsV2", action
    if operation == "PutObject" and "x-amz-copy-source" in request.headers:
        return "CopyObject", action
    return operation, action


def _s3_needs(request: Request, caller: Caller) -> list[Need]:
    operation, action = _s3_operation(request)
    bucket, key = bucket_and_key(request)
    name = "/*" if operation == "DeleteObjects" else f"/{key}" if key else ""
    arn = f"arn:{partition(caller.region)}:s3:::"
    needs = [Need(f"s3:{action}", f"{arn}{bucket}{name}" if bucket else "*")]
    source = unquote(request.headers.get("x-amz-copy-source", "")).lstrip("/")
    return needs + ([Need("s3:GetObject", f"{arn}{source}")] if source else [])
