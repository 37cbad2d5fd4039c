"""Answers that are cut, emptied or replaced on their way, after the deed was done: the client finds its job.

Between boto3 and a real endpoint stands a proxy on a real socket that passes every request on, and spoils the
answer of those that a test names.
"""

from __future__ import annotations

import http.client
import itertools
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

from smlaunch.api.retry_policy import BackoffPolicy
from smlaunch.aws.interfaces import CallError
from smlaunch.aws.s3_multipart import S3Multipart
from smlaunch.aws.service_errors import call_with_retries, is_transient_error
from smlaunch.errors import ServiceError, StoppedByUser
from smlaunch.job.model import Compute, Job
from smlaunch.local.endpoint import Endpoint
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import prepare
from smlaunch.runs.submit_job import stop_job

HTML = b"<!DOCTYPE html><html><body>Please log in</body></html>"
_NUMBERS = itertools.count()


class Answer(NamedTuple):
    status: int
    headers: list[tuple[str, str]]
    body: bytes


Spoil = Callable[[Answer], "Answer | None"]
"""None closes the connection and says nothing."""


def replace_response(body: bytes, status: int = 200, kind: str = "application/x-amz-json-1.1") -> Spoil:
    return lambda answer: Answer(status, [("Content-Type", kind), ("Content-Length", str(len(body)))], body)


def cut_body(answer: Answer) -> Answer:
    """Keeps the length in the header, and half of the body."""
    return answer._replace(body=answer.body[: len(answer.body) // 2])


def cut_body_without_length(answer: Answer) -> Answer:
    half = answer.body[: len(answer.body) // 2]
    return Answer(answer.status, [("Content-Type", "application/x-amz-json-1.1")], half)


WAYS: dict[str, Spoil] = {
    "closed": lambda answer: None,
    "cut": cut_body,
    "cut without a length": cut_body_without_length,
    "empty": replace_response(b""),
    "HTML with 200": replace_response(HTML, kind="text/html"),
    "HTML with 502": replace_response(HTML, 502, "text/html"),
    "broken JSON": replace_response(b'{"TrainingJobArn": "arn:aws:sage'),
    "JSON of something else": replace_response(b"{}"),
    "a JSON list": replace_response(b"[]"),
}


class Proxy(ThreadingHTTPServer):
    """Passes requests on and damages some responses. ``faults``: by a part of the operation's name or of
    ``METHOD /path``, how its next responses are damaged. ``requests``: the names of all requests."""

    daemon_threads = True

    def __init__(self, url: str) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.backend_address = url.removeprefix("http://")
        self.faults: dict[str, list[Spoil]] = {}
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spoil(self, operation: str, way: Spoil, times: int = 1) -> None:
        self.faults[operation] = [way] * times

    def next_fault(self, name: str) -> Spoil | None:
        self.requests.append(name)
        for operation, ways in self.faults.items():
            if operation in name and ways:
                return ways.pop(0)
        return None


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _pass(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(length)
        behind = http.client.HTTPConnection(self.server.backend_address, timeout=30)
        behind.request(self.command, self.path, body, dict(self.headers.items()))
        response = behind.getresponse()
        headers = [
            (n, v) for n, v in response.getheaders() if n.lower() not in ("connection", "transfer-encoding")
        ]
        answer: Answer | None = Answer(response.status, headers, response.read())
        behind.close()
        name = self.headers.get("X-Amz-Target", "").rpartition(".")[2] or f"{self.command} {self.path}"
        fault = self.server.next_fault(name)
        if fault is not None:
            assert answer is not None
            answer = fault(answer)
        self.close_connection = True
        if answer is None:
            return
        self.send_response_only(answer.status)
        for header, value in answer.headers:
            self.send_header(header, value)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _pass  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    with Endpoint(tmp_path_factory.mktemp("home"), isolation="plain") as info:
        server = Proxy(info.url)
        server.target = Target.endpoint(  # type: ignore[attr-defined]
            server.url,
            info.region,
            info.access_key,
            info.secret_key,
            account=info.account,
            role=info.role_arn,
            bucket=info.bucket,
        )
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def target(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> Target:
    proxy.faults.clear()
    proxy.requests.clear()
    # What is waited between two tries is no part of this.
    monkeypatch.setattr(
        BackoffPolicy, "next_delay", lambda self, tries, waited, rng: 0.0 if tries < 4 else None
    )
    target: Target = proxy.target  # type: ignore[attr-defined]
    return target


@pytest.fixture
def job(tmp_path: Path) -> Job:
    script = tmp_path / "train.py"
    script.write_text("print('hello')\n")
    return Job(entry=script, strategy="custom", compute=Compute(instance_type="ml.m5.large"))


def jobs(proxy: Proxy, name: str) -> list[str]:
    target: Target = proxy.target  # type: ignore[attr-defined]
    proxy.faults.clear()
    return [row.name for row in target.control_plane.list_jobs(name)]


@pytest.mark.parametrize("way", WAYS)
def test_a_training_job_with_a_lost_response_is_found(
    proxy: Proxy, target: Target, job: Job, way: str
) -> None:
    name = f"lost-{next(_NUMBERS)}"
    proxy.spoil("CreateTrainingJob", WAYS[way])
    run = launch(prepare(job, target, name), target)
    assert not run.attached  # it was launched here, by this very call
    assert run.result().exit_code == 0
    assert jobs(proxy, name) == [f"{name}-s1-a1"]


@pytest.mark.parametrize("way", WAYS)
def test_a_processing_job_with_a_lost_response_is_found(
    proxy: Proxy, target: Target, job: Job, way: str
) -> None:
    name = f"lost-{next(_NUMBERS)}"
    processing = job.with_changes(strategy="processing")
    proxy.spoil("CreateProcessingJob", WAYS[way])
    run = launch(prepare(processing, target, name), target)
    assert run.result().exit_code == 0
    assert jobs(proxy, name) == [f"{name}-s1-a1"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("operation", ["DescribeTrainingJob", "ListTrainingJobs", "ListTags"])
def test_reads_are_repeated(proxy: Proxy, target: Target, job: Job, operation: str, way: str) -> None:
    """The same job under the same name attaches; an answer without members is no job, and no tag."""
    if (operation, way) == ("ListTags", "JSON of something else"):
        return  # which is how a job without tags may answer
    name = f"read-{next(_NUMBERS)}"
    proxy.spoil("CreateTrainingJob", WAYS["closed"])
    job_plan = prepare(job, target, name)
    launch(job_plan, target).result()
    proxy.spoil(operation, WAYS[way])
    second_run = launch(job_plan, target)
    assert second_run.attached and second_run.result().exit_code == 0
    assert [row.name for row in call_with_retries(lambda: list(target.control_plane.list_jobs(name)))] == [
        f"{name}-s1-a1"
    ]
    assert any(operation in request_name for request_name in proxy.requests)


@pytest.mark.parametrize("way", ["closed", "cut", "empty", "HTML with 200"])
def test_a_stop_with_a_lost_response_is_repeated(
    proxy: Proxy, target: Target, job: Job, tmp_path: Path, way: str
) -> None:
    """The second request finds a job that is stopping, or has stopped."""
    (tmp_path / "train.py").write_text("import time\ntime.sleep(600)\n")
    name = f"stopped-{next(_NUMBERS)}"
    run = launch(prepare(job, target, name), target)
    proxy.spoil("StopTrainingJob", WAYS[way])
    stop_job(f"{name}-s1-a1", target.control_plane)
    with pytest.raises(StoppedByUser):
        run.result()


@pytest.mark.parametrize("way", ["closed", "HTML with 200", "HTML with 502", "empty"])
@pytest.mark.parametrize("method", ["PUT /", "HEAD /", "GET /"])
def test_s3_requests_are_repeated(
    proxy: Proxy, target: Target, job: Job, tmp_path: Path, method: str, way: str
) -> None:
    """The response to a put has an ETag, and the response to a listing a list."""
    (tmp_path / "train.py").write_text(f"print({next(_NUMBERS)})\n")
    name = f"put-{next(_NUMBERS)}"
    job_plan = prepare(job, target, name)
    proxy.spoil(method, WAYS[way])
    run = launch(job_plan, target)
    assert run.result().exit_code == 0
    if method != "GET /":
        assert any(request_name.startswith(method) for request_name in proxy.requests)


@pytest.mark.parametrize("way", WAYS)
def test_without_any_response_the_error_names_the_run(
    proxy: Proxy, target: Target, job: Job, way: str
) -> None:
    """The error has exit code 4, says that the job may run, and how to attach; attaching finds the job."""
    name = f"silent-{next(_NUMBERS)}"
    job_plan = prepare(job, target, name)
    proxy.spoil("TrainingJob", WAYS[way], times=1000)
    with pytest.raises(ServiceError) as error:
        launch(job_plan._replace(has_generated_name=True), target)
    assert error.value.exit_code == 4
    text = str(error.value)
    assert f"the job {name}-s1-a1 may run nevertheless" in text
    assert f"`smlaunch show {name} --local`" in text and f"under the name {name}" in text
    proxy.faults.clear()
    second_run = launch(job_plan, target)
    assert second_run.attached and second_run.result().exit_code == 0
    assert jobs(proxy, name) == [f"{name}-s1-a1"]


def test_a_refusal_after_a_lost_response_is_checked(proxy: Proxy, target: Target, job: Job) -> None:
    """The second request is refused for a quota that the job of the first one holds."""
    response_body = b'{"__type": "ResourceLimitExceeded", "message": "no more"}'
    name = f"second-{next(_NUMBERS)}"
    proxy.faults["CreateTrainingJob"] = [WAYS["empty"], replace_response(response_body, 400)]
    assert launch(prepare(job, target, name), target).result().exit_code == 0
    assert jobs(proxy, name) == [f"{name}-s1-a1"]


def test_an_empty_response_is_no_empty_list(proxy: Proxy, target: Target) -> None:
    """A run would start from the beginning if its prefix looked empty."""
    for way in ("empty", "HTML with 200", "cut without a length"):
        proxy.spoil("GET /", WAYS[way], times=10)
        with pytest.raises(CallError) as error:
            list(target.storage.list_objects(str(target.bucket), "none/"))
        assert is_transient_error(error.value), way


def test_a_multipart_upload_with_a_lost_response_is_complete(proxy: Proxy, target: Target) -> None:
    bucket, parts = str(target.bucket), S3Multipart(target.owner_checked_s3_client())
    target.storage.create_bucket(bucket, target.region_name)
    upload = parts.create_multipart_upload(bucket, "large")
    parts_sent = [parts.upload_part(bucket, "large", upload, 1, b"content")]
    proxy.spoil("POST /", WAYS["closed"])
    parts.complete_multipart_upload(bucket, "large", upload, parts_sent)
    assert target.storage.get_bytes(bucket, "large") == b"content"
    with pytest.raises(CallError) as error:
        parts.complete_multipart_upload(bucket, "large", "no-such-upload", [parts_sent[0], parts_sent[0]])
    assert error.value.code == "NoSuchUpload"
