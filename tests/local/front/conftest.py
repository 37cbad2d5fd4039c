"""Real clients against the real server over loopback sockets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.config import Config

from smlaunch.local.front.credentials import Credentials, Keyring
from smlaunch.local.front.http_server import Server
from smlaunch.local.front.request_dispatcher import RequestDispatcher, Service
from smlaunch.local.services import standard_services
from smlaunch.local.services.json_service import JsonService
from smlaunch.local.stores.log_store import LogStore
from smlaunch.local.stores.metric_store import MetricStore
from smlaunch.local.stores.object_store import ObjectStore

CREDENTIALS = Credentials("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY")


class FakeSageMaker:
    """A fake service: one operation returns its parameters, one raises an exception."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []

    def create_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        from smlaunch.local.front.api_errors import ApiError
        from smlaunch.local.front.request_context import current_request_context

        self.requests.append(params)
        name = params["TrainingJobName"]
        if name == "taken":
            raise ApiError("ResourceInUse", "Job name must be unique within an AWS account")
        return {"TrainingJobArn": current_request_context().resource_arn("sagemaker", f"training-job/{name}")}

    def list_training_jobs(self, params: dict[str, Any]) -> dict[str, Any]:
        import datetime

        created_at = datetime.datetime(2026, 11, 1, 12, 0, tzinfo=datetime.timezone.utc)
        times = {"CreationTime": created_at.timestamp(), "LastModifiedTime": created_at.timestamp() + 0.25}
        job = {"TrainingJobName": "a", "TrainingJobArn": "arn", "TrainingJobStatus": "Completed", **times}
        return {"TrainingJobSummaries": [job]}

    def describe_training_job(self, params: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("a bug")


class ServerHarness:
    """A server on its own root, and clients for it."""

    def __init__(self, root: Path, clock: Callable[[], float] | None = None) -> None:
        self.root = root
        self.objects = ObjectStore(root / "s3")
        self.logs = LogStore(root / "logs")
        self.metrics = MetricStore(root / "metrics.sqlite")
        self.sagemaker = FakeSageMaker()
        keyring = Keyring(CREDENTIALS)
        services: dict[str, Service] = {
            **standard_services(self.objects, self.logs, self.metrics, keyring),
            "sagemaker": JsonService("sagemaker", self.sagemaker),
        }
        self.dispatch = RequestDispatcher(keyring, services, **({"clock": clock} if clock else {}))
        self.server = Server(self.dispatch)
        self.url = self.server.url
        self.port = self.server.port

    def client(self, service: str, **options: Any) -> Any:
        options = {
            "region_name": "us-east-1",
            "aws_access_key_id": CREDENTIALS.access_key,
            "aws_secret_access_key": CREDENTIALS.secret_key,
            "endpoint_url": self.url,
            "config": Config(retries={"total_max_attempts": 1}, connect_timeout=5, read_timeout=20),
            **options,
        }
        return boto3.session.Session().client(service, **options)

    def close(self) -> None:
        self.server.close()
        self.objects.close()


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerHarness]:
    harness = ServerHarness(tmp_path_factory.mktemp("front"))
    yield harness
    harness.close()


@pytest.fixture(scope="module")
def s3(front: ServerHarness) -> Any:
    return front.client("s3")


@pytest.fixture
def bucket(front: ServerHarness, request: pytest.FixtureRequest) -> str:
    """A new bucket for each test."""
    import hashlib

    name = f"test-{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:20]}"
    front.objects.create_bucket(name)
    return name
