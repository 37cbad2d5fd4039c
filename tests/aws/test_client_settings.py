"""Whatever a user configures, clients with reduced models do as botocore's own: endpoints with FIPS and dual
stack, of all partitions, addresses of S3, endpoints of the user's own, certificates and proxies."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import BotoCoreError
from botocore.loaders import Loader, create_loader
from botocore.session import Session

from smlaunch.aws.model_loader import ModelLoader, create_session
from tests.aws.test_service_models import Recorder, empty_response, method_of
from tests.tables import table

CALLS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "sagemaker": ("DescribeTrainingJob", {"TrainingJobName": "digits"}),
    "s3": ("GetObject", {"Bucket": "bucket", "Key": "a/ä b"}),
    "logs": ("GetLogEvents", {"logGroupName": "g", "logStreamName": "s"}),
    "sts": ("GetCallerIdentity", {}),
    "iam": ("GetRole", {"RoleName": "r"}),
    "service-quotas": ("ListServiceQuotas", {"ServiceCode": "sagemaker"}),
    "stepfunctions": ("DescribeExecution", {"executionArn": "arn:aws:states:us-east-1:1:execution:a:b"}),
}
REGIONS = (
    *("us-east-1", "ca-central-1", "us-gov-west-1", "cn-north-1", "us-iso-east-1", "eusc-de-east-1"),
    "xx-new-1",  # of a partition that this botocore does not know
)

SESSION = (
    b"<CreateSessionResult><Credentials><SessionToken>t</SessionToken><SecretAccessKey>s</SecretAccessKey>"
    b"<AccessKeyId>A</AccessKeyId><Expiration>2099-01-01T00:00:00Z</Expiration></Credentials>"
    b"</CreateSessionResult>"
)
SOME = ("sagemaker", "s3", "logs", "sts")


@pytest.fixture(autouse=True)
def _environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setattr(uuid, "uuid4", lambda: uuid.UUID(int=7))
    yield


@cache
def loader(is_reduced: bool) -> Loader:
    """One for all sessions: settings do not change what is read, and reading takes long."""
    loader: Loader = ModelLoader(None) if is_reduced else create_loader()
    return loader


def outcome(is_reduced: bool, service: str, region: str, bucket: str | None, options: Any) -> Any:
    """What a caller of a client can see: its request and connection, or the error."""
    session = create_session() if is_reduced else Session()
    session.register_component("data_loader", loader(is_reduced))
    recorder = Recorder(session)
    operation, params = CALLS[service]
    if bucket is not None and service == "s3":
        params = {**params, "Bucket": bucket}
    try:
        client = session.create_client(service, region_name=region, **options)
        recorder.response = empty_response(client, operation)
        if bucket is not None and bucket.endswith("--x-s3"):  # it gets credentials of its own first
            recorder.response = (200, {}, SESSION)
        called = recorder.call(client, method_of(client, operation), params)
    except (BotoCoreError, ValueError) as error:
        return type(error).__name__, str(error)
    http = client._endpoint.http_session
    connection = (http._verify, http._proxy_config._proxies, http._cert_file)
    meta = client.meta
    return called, meta.endpoint_url, meta.partition, meta.region_name, vars(meta.config), connection


def differences(
    region: str = "us-east-1", bucket: str | None = None, services: Any = CALLS, **options: Any
) -> list[str]:
    return [
        service
        for service in services
        if outcome(True, service, region, bucket, options) != outcome(False, service, region, bucket, options)
    ]


FLAGS = [
    (region, fips, dual_stack)
    for region in REGIONS
    for fips in (False, True)
    for dual_stack in (False, True)
    if fips or dual_stack
]


@table(("region", "fips", "dual_stack"), FLAGS)
def test_fips_and_dual_stack_in_all_partitions(region: str, fips: bool, dual_stack: bool) -> None:
    config = Config(use_fips_endpoint=fips, use_dualstack_endpoint=dual_stack)
    assert differences(region, services=SOME, config=config) == []


VARIABLES = [
    {"AWS_USE_FIPS_ENDPOINT": "true"},
    {"AWS_USE_DUALSTACK_ENDPOINT": "true"},
    {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
    {"AWS_ENDPOINT_URL": "http://127.0.0.1:9", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"},
    {
        "AWS_ENDPOINT_URL_SAGEMAKER": "https://sagemaker.example",
        "AWS_ENDPOINT_URL_S3": "https://s3.example",
        "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": "https://logs.example",
        "AWS_ENDPOINT_URL_STS": "https://sts.example",
        "AWS_ENDPOINT_URL_IAM": "https://iam.example",
        "AWS_ENDPOINT_URL_SERVICE_QUOTAS": "https://quotas.example",
        "AWS_ENDPOINT_URL_SFN": "https://states.example",
    },
    {"AWS_CA_BUNDLE": "/etc/company.pem"},
    {"HTTPS_PROXY": "http://proxy.example:3128", "NO_PROXY": "s3.amazonaws.com"},
    {"AWS_STS_REGIONAL_ENDPOINTS": "legacy"},
    {"AWS_S3_US_EAST_1_REGIONAL_ENDPOINT": "regional"},
    {"AWS_DEFAULTS_MODE": "in-region"},
    {"AWS_RETRY_MODE": "adaptive", "AWS_MAX_ATTEMPTS": "7"},
    {"AWS_SDK_UA_APP_ID": "training"},
    {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"},
]


@pytest.mark.parametrize("variables", VARIABLES, ids=lambda variables: next(iter(variables)))
def test_variables(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert differences() == []


FILES = [
    "use_fips_endpoint = true",
    "use_dualstack_endpoint = true",
    "endpoint_url = https://all.example",
    "ca_bundle = /etc/company.pem",
    "s3 =\n  addressing_style = path",
    "s3 =\n  addressing_style = virtual",
    "s3 =\n  use_accelerate_endpoint = true",
    "s3 =\n  payload_signing_enabled = true",
    "services = mine\n[services mine]\nsagemaker =\n  endpoint_url = https://sagemaker.example\n"
    "s3 =\n  endpoint_url = https://s3.example\ncloudwatch_logs =\n  endpoint_url = https://logs.example",
]


@table("lines", FILES)
def test_the_config_file(lines: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(f"[default]\n{lines}\n")
    assert differences("eu-west-1", services=SOME) == []


ACCESS_POINT = "arn:aws:s3:us-west-2:123456789012:accesspoint/mine"
BUCKETS = [
    (bucket, {"addressing_style": style})
    for bucket in ("bucket", "my.dotted.bucket", "UPPER_case", "bucket--use1-az4--x-s3", ACCESS_POINT)
    for style in ("auto", "path", "virtual")
] + [("bucket", {"use_accelerate_endpoint": True}), (ACCESS_POINT, {"use_arn_region": False})]


@table(("bucket", "s3"), BUCKETS)
def test_addresses_of_s3(bucket: str, s3: dict[str, Any]) -> None:
    assert differences("us-east-1", bucket, ["s3"], config=Config(s3=s3)) == []


OPTIONS: list[dict[str, Any]] = [
    {"verify": False},
    {"verify": "/etc/company.pem"},
    {"use_ssl": False},
    {"endpoint_url": "https://vpce-1.sagemaker.example"},
    {"config": Config(proxies={"https": "http://proxy.example:1"}, client_cert="/etc/client.pem")},
]


@table("options", OPTIONS)
def test_options_of_a_client(options: dict[str, Any]) -> None:
    assert differences("eu-west-1", services=SOME, **options) == []


def test_a_difference_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    reduced = outcome(True, "sagemaker", "us-east-1", None, {})
    monkeypatch.setenv("AWS_USE_FIPS_ENDPOINT", "true")
    assert outcome(False, "sagemaker", "us-east-1", None, {}) != reduced
    (request,), _ = outcome(True, "sagemaker", "us-gov-west-1", None, {})[0]
    assert request[1] == "https://api-fips.sagemaker.us-gov-west-1.amazonaws.com/"
