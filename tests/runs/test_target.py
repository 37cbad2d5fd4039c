"""Targets and the botocore adapters, against real sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import boto3
import pytest

from smlaunch.aws.interfaces import UNREACHABLE, CallError
from smlaunch.errors import AccountError
from smlaunch.runs.launch_target import Target


class AnsweringHandler(BaseHTTPRequestHandler):
    """Returns the responses in ``answers``, and records the requests."""

    answers: ClassVar[list[tuple[int, dict[str, object]]]] = []
    requests: ClassVar[list[tuple[str, dict[str, object]]]] = []

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        operation = self.headers["X-Amz-Target"].rpartition(".")[2]
        self.requests.append((operation, json.loads(self.rfile.read(length))))
        status, body = self.answers.pop(0)
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/x-amz-json-1.1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service() -> Iterator[str]:
    AnsweringHandler.answers.clear()
    AnsweringHandler.requests.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), AnsweringHandler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def endpoint(service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Target:
    """The user's own AWS settings are broken in every way; none of them may matter."""
    config = tmp_path / "config"
    config.write_text("this is [not a configuration")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "does-not-exist")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    return Target.endpoint(service, "eu-west-1", "AKID", "secret")


def test_an_endpoint_ignores_the_users_aws_settings(endpoint: Target) -> None:
    AnsweringHandler.answers.append((200, {"TrainingJobArn": "arn:x"}))
    assert (
        endpoint.control_plane.create_job(
            {"TrainingJobName": "x", "RoleArn": "r" * 20, "OutputDataConfig": {"S3OutputPath": "s3://b"}}
        )
        == "arn:x"
    )
    assert AnsweringHandler.requests[0][0] == "CreateTrainingJob"


def test_pages_are_requested_lazily(endpoint: Target) -> None:
    def row(name: str) -> dict[str, object]:
        return {
            "TrainingJobName": name,
            "TrainingJobArn": f"arn:aws:sagemaker:eu-west-1:1:training-job/{name}",
            "CreationTime": 1.5,
            "TrainingJobStatus": "Completed",
        }

    older = {
        "ProcessingJobName": "p",
        "ProcessingJobArn": "arn:aws:sagemaker:eu-west-1:1:processing-job/p",
        "CreationTime": 1.0,
        "ProcessingJobStatus": "Completed",
    }
    AnsweringHandler.answers += [
        (200, {"TrainingJobSummaries": [row("a"), row("b")], "NextToken": "more"}),
        (200, {"ProcessingJobSummaries": [older]}),
        (200, {"TrainingJobSummaries": [row("c")]}),
    ]
    rows = endpoint.control_plane.list_jobs("x")
    assert next(rows).name == "a"
    assert [name for name, _ in AnsweringHandler.requests] == ["ListTrainingJobs", "ListProcessingJobs"]
    assert [row.name for row in rows] == ["b", "c", "p"]
    assert AnsweringHandler.requests[2][1]["NextToken"] == "more"
    assert all(parameters["NameContains"] == "x" for _, parameters in AnsweringHandler.requests)


def test_without_permission_for_processing_jobs_training_jobs_are_listed(endpoint: Target) -> None:
    access_denied: dict[str, object] = {"__type": "AccessDeniedException", "message": "no"}
    AnsweringHandler.answers += [(200, {"TrainingJobSummaries": []}), (400, access_denied)]
    assert list(endpoint.control_plane.list_jobs()) == []


def test_an_error_has_the_services_message(endpoint: Target) -> None:
    """The first service's: what is known is that there is no such training job."""
    AnsweringHandler.answers += [
        (400, {"__type": "ValidationException", "message": "Requested resource not found."}),
        (400, {"__type": "AccessDeniedException", "message": "no"}),
    ]
    with pytest.raises(CallError) as caught:
        endpoint.control_plane.describe_job("x")
    assert (caught.value.code, caught.value.message, caught.value.http_status) == (
        "ValidationException",
        "Requested resource not found.",
        400,
    )


def test_a_log_group_that_is_not_there_yet_has_no_streams(endpoint: Target) -> None:
    AnsweringHandler.answers.append((400, {"__type": "ResourceNotFoundException", "message": "no group"}))
    assert endpoint.logs.list_streams("/aws/sagemaker/TrainingJobs", "x/") == []


def test_an_unreachable_endpoint_is_reported() -> None:
    target = Target.endpoint("http://127.0.0.1:1", "eu-west-1", "AKID", "secret")
    with pytest.raises(CallError) as caught:
        target.control_plane.describe_job("x")
    assert caught.value.code == UNREACHABLE


def test_a_region_must_come_from_somewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(AccountError, match="no AWS region is set: give target="):
        Target.region()
    assert Target.region("eu-west-1").region_name == "eu-west-1"
    monkeypatch.setenv("AWS_REGION", "us-west-2")
    assert Target.region().region_name == "us-west-2"


def test_a_profile_that_does_not_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for region in (None, "eu-west-1"):
        with pytest.raises(AccountError, match="there is no AWS profile 'nobody'"):
            Target.region(region, "nobody")


@pytest.mark.parametrize("profile", [None, "team"])
def test_a_boto3_session_gives_its_region_credentials_and_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, profile: str | None
) -> None:
    """``boto3.Session`` without a profile calls it "default", though the file has none of that name."""
    config = tmp_path / "config"
    config.write_text("[profile team]\nregion = eu-west-1\nca_bundle = /team.pem\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    region = None if profile else "us-west-2"
    session = boto3.Session("key", "secret", "token", region_name=region, profile_name=profile)
    target = Target.region(session=session)
    assert target.region_name == ("eu-west-1" if profile else "us-west-2")
    assert target.session.get_credentials() is session.get_credentials()
    assert target.session.get_config_variable("ca_bundle") == ("/team.pem" if profile else None)
    client = target.client("sts")
    assert client.meta.endpoint_url == f"https://sts.{target.region_name}.amazonaws.com"
    assert "X-Amz-Security-Token=token" in client.generate_presigned_url("get_caller_identity")
