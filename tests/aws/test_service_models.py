"""Clients with reduced models send the same requests, and parse the same responses, as botocore's own."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import botocore
import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError, UnknownServiceError
from botocore.loaders import JSONFileLoader, Loader
from botocore.session import Session

from smlaunch.api import job_kinds
from smlaunch.aws import model_loader
from smlaunch.aws.model_loader import create_session
from smlaunch.aws.service_models import SERVICE_IDS, ReducedSection, operations_of

SMLAUNCH = Path(__file__).resolve().parents[2] / "smlaunch"
OPERATIONS = [(service, operation) for service in SERVICE_IDS for operation in operations_of(service)]
ENDPOINT = "http://127.0.0.1:9"
REGIONS = ("us-east-1", "eu-central-1", "cn-north-1", "us-gov-west-1", "us-iso-east-1")
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
VARYING_HEADERS = ("X-Amz-Date", "amz-sdk-invocation-id")


@pytest.fixture(scope="module", autouse=True)
def _environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            patch.setenv(name, os.devnull)
        patch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=7))  # tokens that botocore adds to a request
        yield


class Recorder:
    """A session whose clients send nothing: it keeps their requests, and answers with ``response``."""

    def __init__(self, session: Any) -> None:
        self.session = session
        self.requests: list[Any] = []
        self.response: tuple[int, dict[str, str], bytes] = (200, {}, b"")
        session.set_credentials("AKIDEXAMPLE", "secret", "token")
        session.register("before-send", self._answer)
        self._clients: dict[Any, Any] = {}

    def _answer(self, request: Any, **_: object) -> AWSResponse:
        body = request.body
        # A stream of a body: what would be sent.
        content = body if isinstance(body, bytes | str | None) else body.read()
        headers = {
            name: re.sub(r"(Signature=|Credential=AKIDEXAMPLE/)[0-9a-f]+", r"\1", _text(value))
            for name, value in request.headers.items()
            if name not in VARYING_HEADERS
        }
        self.requests.append((request.method, request.url, headers, content))
        status, response_headers, response_body = self.response
        return AWSResponse(request.url, status, response_headers, _Raw(response_body))

    def client(self, service: str, region: str = "us-east-1", url: str | None = None) -> Any:
        key = service, region, url
        if key not in self._clients:
            config = Config(
                retries={"mode": "standard", "total_max_attempts": 1},
                s3={"addressing_style": "path"} if url else None,
            )
            self._clients[key] = self.session.create_client(
                service_name=service, region_name=region, endpoint_url=url, config=config
            )
        return self._clients[key]

    def call(self, client: Any, method: str, params: dict[str, Any]) -> Any:
        """Return all that a caller sees: the requests, and the response or the error."""
        self.requests.clear()
        try:
            result = getattr(client, method)(**params)
        except ClientError as error:
            result = (type(error).__name__, error.response)
        if isinstance(result, dict) and hasattr(result.get("Body"), "read"):
            result["Body"] = result["Body"].read()
        return list(self.requests), result


class _Raw:
    """A response's body, as urllib3 gives it."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def stream(self, *_: object, **__: object) -> Any:
        yield self._content

    def read(self, *_: object, **__: object) -> bytes:
        content, self._content = self._content, b""
        return content


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@pytest.fixture(scope="module")
def plain() -> Recorder:
    return Recorder(Session())


@pytest.fixture(scope="module")
def reduced() -> Recorder:
    return Recorder(create_session())


def example(shape: Any, name: str = "value", depth: int = 0) -> Any:
    """Return a value of a shape with all members, to a depth of 6; two entries in each list and map."""
    if shape.type_name == "structure":
        members = list(shape.members.items())
        is_union = getattr(shape, "is_tagged_union", False)
        if is_union:
            members = members[:1]
        return {
            key: example(member, key, depth + 1)
            for key, member in members
            if depth < 6 or is_union or key in shape.required_members
        }
    if shape.type_name == "list":
        count = max(shape.metadata.get("min", 0), min(2, shape.metadata.get("max", 2)))
        return [example(shape.member, f"{name}{index}", depth + 1) for index in range(count)]
    if shape.type_name == "map":
        return {f"{name}-{index} ü": example(shape.value, f"{name}{index}", depth + 1) for index in range(2)}
    if shape.type_name == "string":
        if name == "Bucket":
            return "sagemaker-bucket-123456789012"
        if shape.enum:
            return shape.enum[-1]
        return (f"{name}/ä b+%&<x>" * (1 + shape.metadata.get("min", 0) // 8))[
            : shape.metadata.get("max", 512)
        ]
    if shape.type_name in ("integer", "long", "float", "double"):
        return max(shape.metadata.get("min", 3), 3)
    return {"boolean": True, "timestamp": MOMENT, "blob": b"bytes \x00\xff"}[shape.type_name]


def params_of(plain: Recorder, service: str, operation: str) -> dict[str, Any]:
    model = plain.session.get_service_model(service).operation_model(operation)
    params = example(model.input_shape) if model.input_shape else {}
    for member in ("ExpectedBucketOwner", "SourceAccount"):
        if member in params:
            params[member] = "123456789012"
    if service == "s3":  # headers cannot have these characters, and one checksum excludes the others
        params = {
            name: "text"
            if isinstance(value, str) and "ä" in value and name not in ("Key", "Prefix")
            else value
            for name, value in params.items()
            if not name.startswith(("Checksum", "ContentMD5")) or name == "ChecksumSHA256"
        }
        if "Metadata" in params:
            params["Metadata"] = {"key": "some value"}
    return params


def empty_response(client: Any, operation: str) -> tuple[int, dict[str, str], bytes]:
    body_by_protocol = {"query": f"<R><{operation}Result/></R>", "ec2": "<R/>", "rest-xml": ""}
    return 200, {}, body_by_protocol.get(client.meta.service_model.resolved_protocol, "{}").encode()


def method_of(client: Any, operation: str) -> str:
    return next(method for method, name in client.meta.method_to_api_mapping.items() if name == operation)


@pytest.mark.parametrize(("service", "operation"), OPERATIONS)
def test_requests_are_the_same(service: str, operation: str, plain: Recorder, reduced: Recorder) -> None:
    params = params_of(plain, service, operation)
    reduced.response = plain.response = empty_response(plain.client(service), operation)
    for region, url in [*((region, None) for region in REGIONS), ("eu-west-1", ENDPOINT)]:
        client, plain_client = reduced.client(service, region, url), plain.client(service, region, url)
        method = method_of(plain_client, operation)
        call, plain_call = reduced.call(client, method, params), plain.call(plain_client, method, params)
        assert call == plain_call
        assert plain_call[0], "a request was sent"
        assert client.meta.endpoint_url == plain_client.meta.endpoint_url
        assert client.meta.partition == plain_client.meta.partition
        assert vars(client.meta.config) == vars(plain_client.meta.config)


@pytest.mark.parametrize(("service", "operation"), OPERATIONS)
def test_a_missing_or_wrong_parameter_is_named_in_the_same_words(
    service: str, operation: str, plain: Recorder, reduced: Recorder
) -> None:
    params = {"NoSuchMember": 1}
    problems = []
    for recorder in (plain, reduced):
        client = recorder.client(service)
        with pytest.raises(botocore.exceptions.ParamValidationError) as caught:
            getattr(client, method_of(client, operation))(**params)
        problems.append(str(caught.value))
    assert problems[0] == problems[1]


JSON_OPERATIONS = [
    (service, operation)
    for service, operation in OPERATIONS
    if service in ("sagemaker", "logs", "service-quotas", "stepfunctions")
]


@pytest.mark.parametrize(("service", "operation"), JSON_OPERATIONS)
def test_responses_are_parsed_the_same(
    service: str, operation: str, plain: Recorder, reduced: Recorder
) -> None:
    model = plain.session.get_service_model(service)
    assert model.resolved_protocol == "json"
    output = model.operation_model(operation).output_shape
    content = example(output) if output else {}
    body = json.dumps(content, default=lambda value: value.timestamp()).encode()
    reduced.response = plain.response = (200, {"x-amzn-RequestId": "one"}, body)
    params = params_of(plain, service, operation)
    method = method_of(plain.client(service), operation)
    call, plain_call = (
        recorder.call(recorder.client(service), method, params) for recorder in (reduced, plain)
    )
    assert call == plain_call
    assert set(plain_call[1]) > set(content)


LIST = b"""<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name>
<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken><KeyCount>1</KeyCount><Contents>
<Key>a%2Fb</Key><LastModified>2026-01-02T03:04:05.000Z</LastModified><ETag>&quot;e&quot;</ETag><Size>7</Size>
<Owner><ID>i</ID></Owner></Contents><CommonPrefixes><Prefix>p/</Prefix></CommonPrefixes></ListBucketResult>"""
PARTS = b"""<ListPartsResult><UploadId>u</UploadId>
<Part><PartNumber>1</PartNumber><Size>5</Size><ETag>x</ETag>
<ChecksumSHA256>c</ChecksumSHA256></Part><IsTruncated>false</IsTruncated></ListPartsResult>"""
UPLOADS = b"""<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId>u</UploadId></Upload>
<IsTruncated>false</IsTruncated></ListMultipartUploadsResult>"""
DELETED = b"""<DeleteResult><Deleted><Key>k</Key></Deleted><Error><Key>l</Key><Code>AccessDenied</Code>
<Message>no</Message></Error></DeleteResult>"""
OBJECT_HEADERS = {
    "ETag": '"e"',
    "Content-Length": "4",
    "Last-Modified": "Fri, 02 Jan 2026 03:04:05 GMT",
    "x-amz-meta-owner": "me",
    "x-amz-server-side-encryption": "aws:kms",
    "x-amz-expiration": 'expiry-date="Fri, 02 Jan 2026"',
    "Expires": "not a date",
}
XML_RESPONSES = [
    ("s3", "list_objects_v2", {"Bucket": "b"}, 200, {}, LIST),
    ("s3", "list_parts", {"Bucket": "b", "Key": "k", "UploadId": "u"}, 200, {}, PARTS),
    ("s3", "list_multipart_uploads", {"Bucket": "b"}, 200, {}, UPLOADS),
    ("s3", "delete_objects", {"Bucket": "b", "Delete": {"Objects": [{"Key": "k"}]}}, 200, {}, DELETED),
    ("s3", "get_object", {"Bucket": "b", "Key": "k"}, 200, OBJECT_HEADERS, b"body"),
    ("s3", "head_object", {"Bucket": "b", "Key": "k"}, 200, OBJECT_HEADERS, b""),
    ("s3", "put_object", {"Bucket": "b", "Key": "k", "Body": b"body"}, 200, OBJECT_HEADERS, b""),
    ("s3", "head_bucket", {"Bucket": "b"}, 404, {}, b""),
    (
        "s3",
        "get_object",
        {"Bucket": "b", "Key": "k"},
        403,
        {},
        b"<Error><Code>InvalidObjectState</Code><Message>cold</Message><StorageClass>GLACIER</StorageClass></Error>",
    ),
    (
        "s3",
        "create_bucket",
        {"Bucket": "b"},
        409,
        {},
        b"<Error><Code>BucketAlreadyOwnedByYou</Code><Message>yours</Message></Error>",
    ),
    (
        "iam",
        "get_role",
        {"RoleName": "r"},
        200,
        {},
        b"<GetRoleResponse><GetRoleResult><Role><Arn>arn:aws:iam::1:role/r</Arn><Tags><member><Key>k</Key>"
        b"<Value>v</Value></member></Tags><CreateDate>2026-01-02T03:04:05Z</CreateDate></Role></GetRoleResult>"
        b"</GetRoleResponse>",
    ),
    (
        "iam",
        "get_role",
        {"RoleName": "r"},
        404,
        {},
        b"<ErrorResponse><Error><Type>Sender</Type><Code>NoSuchEntity</Code><Message>none</Message></Error>"
        b"</ErrorResponse>",
    ),
    (
        "sts",
        "get_caller_identity",
        {},
        200,
        {},
        b"<GetCallerIdentityResponse><GetCallerIdentityResult><Account>123456789012</Account><Arn>a</Arn>"
        b"</GetCallerIdentityResult></GetCallerIdentityResponse>",
    ),
    # Errors that the operation does not declare.
    ("sagemaker", "list_tags", {"ResourceArn": "a"}, 400, {}, b'{"__type": "ResourceInUse", "Message": "u"}'),
    ("sagemaker", "search", {"Resource": "TrainingJob"}, 400, {}, b'{"__type": "ConflictException"}'),
    ("stepfunctions", "stop_execution", {"executionArn": "a"}, 400, {}, b'{"__type": "NoSuchThing"}'),
]


@pytest.mark.parametrize(("service", "method", "params", "status", "headers", "body"), XML_RESPONSES)
def test_recorded_responses_are_parsed_the_same(
    service: str,
    method: str,
    params: dict[str, Any],
    status: int,
    headers: dict[str, str],
    body: bytes,
    plain: Recorder,
    reduced: Recorder,
) -> None:
    reduced.response = plain.response = (status, headers, body)
    call, plain_call = (
        recorder.call(recorder.client(service), method, params) for recorder in (reduced, plain)
    )
    assert call == plain_call


RARE_CALLERS = ("account_changes", "policy_simulation")


def test_every_call_of_smlaunch_is_in_the_table() -> None:
    calls = re.compile(r'call_api[(,]\s*"([A-Z]\w+)"')
    # What `account` and `doctor --region` call is rare, and read from the whole models of IAM and quotas.
    paths = [path for path in SMLAUNCH.rglob("*.py") if path.stem not in RARE_CALLERS]
    called = {name for path in paths for name in calls.findall(path.read_text())}
    assert {"GetObject", "StopExecution", "Search"} <= called
    assert called <= {operation for _, operation in OPERATIONS}


def test_the_models_have_the_operations_and_ids_of_the_table(plain: Recorder) -> None:
    for service, ids in SERVICE_IDS.items():
        model = plain.session.get_service_model(service)
        assert set(operations_of(service)) <= set(model.operation_names)
        assert ids == (model.endpoint_prefix, model.service_id.hyphenize())


def test_from_the_second_time_on_no_full_file_is_read(
    plain: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [Recorder(create_session()).client(service) for service in SERVICE_IDS]  # fills the cache
    assert len(clients) == len(SERVICE_IDS)
    read: list[str] = []
    load_file = JSONFileLoader.load_file

    def load_and_record(self: JSONFileLoader, file_path: str) -> Any:
        content = load_file(self, file_path)
        if content is not None:
            read.append(os.path.relpath(file_path, Loader.BUILTIN_DATA_PATH))
        return content

    monkeypatch.setattr(JSONFileLoader, "load_file", load_and_record)
    monkeypatch.setattr(os, "listdir", _list_few(os.listdir))
    recorder = Recorder(create_session())
    for service, operation in OPERATIONS:
        client = recorder.client(service)
        recorder.response = empty_response(client, operation)
        recorder.call(client, method_of(client, operation), params_of(plain, service, operation))
    assert not [name for name in read if name.endswith("service-2") or name == "endpoints"]
    assert "partitions" in read


def _list_few(listdir: Any) -> Any:
    def list_folder(path: Any) -> list[str]:
        names: list[str] = listdir(path)
        assert len(names) < 100, f"{path} has a folder for each service"
        return names

    return list_folder


@pytest.mark.parametrize(
    ("service", "method", "params"),
    [
        ("sagemaker", "describe_endpoint", {"EndpointName": "e"}),
        ("s3", "get_bucket_tagging", {"Bucket": "b"}),
        ("logs", "filter_log_events", {"logGroupName": "g", "filterPattern": "p"}),
        ("iam", "list_roles", {}),
        ("sts", "get_session_token", {"DurationSeconds": 900}),
        ("sso", "get_role_credentials", {"roleName": "r", "accountId": "1", "accessToken": "t"}),
        ("sso-oidc", "register_client", {"clientName": "c", "clientType": "public"}),
        ("ec2", "describe_instances", {"InstanceIds": ["i"]}),
    ],
)
def test_other_operations_and_services_work_too(
    service: str, method: str, params: dict[str, Any], plain: Recorder, reduced: Recorder
) -> None:
    for region in REGIONS[:3]:
        client, plain_client = reduced.client(service, region), plain.client(service, region)
        reduced.response = plain.response = empty_response(
            plain_client, plain_client.meta.method_to_api_mapping[method]
        )
        assert reduced.call(client, method, params) == plain.call(plain_client, method, params)
        assert client.meta.endpoint_url == plain_client.meta.endpoint_url


def test_paginators_waiters_and_presigned_urls_of_other_operations(reduced: Recorder) -> None:
    sagemaker, s3 = reduced.client("sagemaker"), reduced.client("s3")
    reduced.response = (200, {}, b'{"Endpoints": [{"EndpointName": "e"}]}')
    pages = list(sagemaker.get_paginator("list_endpoints").paginate())
    assert [page["Endpoints"] for page in pages] == [[{"EndpointName": "e"}]]
    assert sagemaker.can_paginate("list_training_jobs")
    assert not sagemaker.can_paginate("describe_endpoint")
    reduced.response = (200, {}, b'{"EndpointStatus": "InService"}')
    sagemaker.get_waiter("endpoint_in_service").wait(EndpointName="e")
    address = urlsplit(s3.generate_presigned_url("get_object_tagging", {"Bucket": "b", "Key": "k"}))
    assert (address.path, address.query.startswith("tagging")) == ("/b/k", True)


def test_unknown_names_are_refused_as_by_botocore(plain: Recorder, reduced: Recorder) -> None:
    messages = []
    for recorder in (plain, reduced):
        assert not hasattr(recorder.client("sagemaker"), "_repr_html_")
        with pytest.raises(AttributeError) as unknown_method:
            recorder.client("sagemaker").no_such_operation()
        with pytest.raises(UnknownServiceError) as unknown_service:
            recorder.client("no-such-service")
        messages.append((str(unknown_method.value), str(unknown_service.value)))
    assert messages[0] == messages[1]
    assert list(reduced.session.get_available_services()) == list(plain.session.get_available_services())


def test_a_kind_of_job_that_is_registered_later(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Recorder(create_session()).client("sagemaker")
    monkeypatch.setattr(job_kinds.JOB_KINDS, "_registered", {})
    kind = job_kinds.JobKind(
        "Transform",
        request_path_by_field={},
        input_path_by_field={},
        input_modes=("File",),
        resources=(),
        constants={},
    )
    job_kinds.register_job_kind(kind)
    assert {"CreateTransformJob", "ListTransformJobs"} <= set(operations_of("sagemaker"))
    after = Recorder(create_session()).client("sagemaker")
    assert "CreateTransformJob" in after.meta.service_model.operation_names
    assert "CreateTransformJob" not in before.meta.service_model.operation_names
    assert callable(before.create_transform_job)


def test_credentials_of_a_role_come_from_sts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile base]\naws_access_key_id = A\naws_secret_access_key = S\n"
        "[profile role]\nrole_arn = arn:aws:iam::123456789012:role/r\nsource_profile = base\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    session = create_session(profile="role")
    session.register("before-send.sts", _answer_assume_role)
    session.create_client("sagemaker", region_name="eu-west-1")
    assert session.get_credentials().get_frozen_credentials().access_key == "ASSUMED"


def _answer_assume_role(request: Any, **_: object) -> AWSResponse:
    assert "AssumeRole" in str(request.body)
    body = (
        b"<AssumeRoleResponse><AssumeRoleResult><Credentials><AccessKeyId>ASSUMED</AccessKeyId>"
        b"<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken>"
        b"<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleResult></AssumeRoleResponse>"
    )
    return AWSResponse(request.url, 200, {}, _Raw(body))


@pytest.mark.parametrize("variable", ["AWS_DATA_PATH", "customer"])
def test_a_model_of_the_users_own_is_used_untouched(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Recorder(create_session()).client("logs")  # the reduction of botocore's own model is in the cache
    model = Loader().load_service_model("logs", "service-2")
    model["operations"] = {"GetLogEvents": {**model["operations"]["GetLogEvents"], "documentation": "mine"}}
    folder = tmp_path / "models" / "logs" / "2014-03-28"
    folder.mkdir(parents=True)
    (folder / "service-2.json").write_text(json.dumps(model))
    if variable == "AWS_DATA_PATH":
        monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path / "models"))
    else:
        monkeypatch.setattr(Loader, "CUSTOMER_DATA_PATH", str(tmp_path / "models"))
    client = Recorder(create_session()).client("logs")
    assert client.meta.service_model.operation_names == ["GetLogEvents"]
    assert client.meta.service_model.operation_model("GetLogEvents").documentation == "mine"
    with pytest.raises(AttributeError):
        _ = client.describe_log_streams


@pytest.mark.parametrize("changed", ["version", "file"])
def test_another_botocore_has_its_own_reduction(
    changed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "smlaunch"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def entries() -> set[str]:
        Recorder(create_session()).client("logs")
        return {path.name for path in cache.glob("logs-*-service-2-*")}

    first = entries()
    assert len(first) == 1
    assert entries() == first
    if changed == "version":
        monkeypatch.setattr(botocore, "__version__", "99.0.0")
    else:
        real = model_loader._stat_data_file

        def stat_newer_file(path: str) -> Any:
            status = real(path)
            assert status is not None
            newer = {"st_mtime_ns": status.st_mtime_ns + 1, "st_size": status.st_size}
            return type("Status", (), newer)

        monkeypatch.setattr(model_loader, "_stat_data_file", stat_newer_file)
    assert len(entries() - first) == 1


def test_a_model_in_a_format_of_the_future_is_left_to_botocore(monkeypatch: pytest.MonkeyPatch) -> None:
    future = {"version": "3.0", "metadata": {}, "operations": ["GetLogEvents"]}
    monkeypatch.setattr(JSONFileLoader, "load_file", lambda self, path: future)
    monkeypatch.setattr(botocore, "__version__", "100.0.0")
    assert create_session().get_component("data_loader").load_service_model("logs", "service-2") == future


def test_a_reduced_section_has_all_keys_and_lists_its_own() -> None:
    reads: list[int] = []

    def load() -> dict[str, int]:
        reads.append(1)
        return {"a": 1, "b": 2}

    section = ReducedSection({"a": 1}, load)
    assert (section["a"], section.get("a"), "a" in section, list(section)) == (1, 1, True, ["a"])
    assert not reads
    assert (section["b"], section.get("b"), "b" in section, list(section)) == (2, 2, True, ["a"])
    assert (section.get("c"), section.get("c", 3), "c" in section) == (None, 3, False)
    with pytest.raises(KeyError):
        _ = section["c"]
