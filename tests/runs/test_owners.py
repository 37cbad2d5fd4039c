"""Expected bucket owners, and the report of a refusal, against real sockets."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from smlaunch.aws.bucket_owners import BucketOwners
from smlaunch.aws.interfaces import WRONG_BUCKET_OWNER, CallError
from smlaunch.aws.s3_multipart import S3Multipart
from smlaunch.aws.service_errors import to_user_error
from smlaunch.errors import AccountError
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.launch_target import Target

OTHER_ACCOUNT = "111111111111"


class DenyingHandler(BaseHTTPRequestHandler):
    """Refuses everything."""

    protocol_version = "HTTP/1.1"

    def _deny(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        error = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
        body = b"<ErrorResponse>" + error + b"</ErrorResponse>" if self.command == "POST" else error
        self.send_response(403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = _deny  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def info(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointInfo]:
    with Endpoint(tmp_path_factory.mktemp("home"), isolation="plain") as info:
        yield info


@pytest.fixture
def denying() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), DenyingHandler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def target_of(info: EndpointInfo, account: str | None) -> Target:
    return Target.endpoint(info.url, info.region, info.access_key, info.secret_key, account=account)


def test_the_account_is_requested_once() -> None:
    requests: list[str] = []

    def request_account() -> str:
        requests.append("asked")
        return "222222222222"

    owners = BucketOwners(request_account)
    assert owners.known_owner("data") is None
    assert owners.known_owner(f"sagemaker-eu-west-1-{OTHER_ACCOUNT}") == OTHER_ACCOUNT
    assert owners.known_owner(f"sagemaker-us-gov-west-1-{OTHER_ACCOUNT}") == OTHER_ACCOUNT
    assert owners.known_owner("sagemaker-sample-files") is None
    assert not requests
    assert (owners.expected_owner("data"), owners.expected_owner("other")) == ("222222222222", "222222222222")
    assert len(requests) == 1
    owners.add_from_environment({"SMLAUNCH_BUCKET_OWNERS": f"data={OTHER_ACCOUNT} more=333333333333"})
    assert (owners.expected_owner("data"), owners.known_owner("more")) == (OTHER_ACCOUNT, "333333333333")


def test_a_wrong_owner_differs_from_a_missing_permission(
    info: EndpointInfo, denying: str, tmp_path: Path
) -> None:
    own_target = target_of(info, None)
    own_target.storage.create_bucket("mine", info.region)
    own_target.storage.put_bytes("mine", "key", b"content")
    (tmp_path / "large").write_bytes(bytes(9 << 20))
    other = target_of(info, OTHER_ACCOUNT)
    parts = S3Multipart(other.owner_checked_s3_client())
    for refused_call in (
        lambda: other.storage.get_bytes("mine", "key"),
        lambda: other.storage.object_size("mine", "key"),
        lambda: list(other.storage.list_objects("mine", "")),
        lambda: other.storage.put_bytes("mine", "key", b"changed"),
        lambda: other.storage.put_if_absent("mine", "new", b"changed"),
        lambda: other.storage.put_file("mine", "large", tmp_path / "large"),
        lambda: other.storage.delete_objects("mine", ["key"]),
        lambda: other.storage.check_bucket_owner("mine"),
        lambda: other.input_storage.put_bytes("mine", "key", b"changed"),
        lambda: parts.create_multipart_upload("mine", "key"),
        lambda: parts.list_resumable_uploads("mine", "key"),
        lambda: parts.get_object_checksum("mine", "key"),
    ):
        with pytest.raises(CallError) as call_error:
            refused_call()
        assert call_error.value.code == WRONG_BUCKET_OWNER
        assert isinstance(to_user_error(call_error.value, "a region"), AccountError)
    assert other.input_storage.get_bytes("mine", "key") == b"content"
    assert [row.key for row in own_target.storage.list_objects("mine", "")] == ["key"]

    target_without_caller = Target.endpoint(denying, info.region, "a", "b", account=OTHER_ACCOUNT)
    with pytest.raises(AccountError) as account_error, translate_call_errors(target_without_caller):
        target_without_caller.storage.put_bytes("mine", "key", b"content")
    assert "the caller lacks the permission, or the bucket mine does not belong to the account" in str(
        account_error.value
    )
    assert "s3:PutObject" in str(account_error.value)


def test_nothing_is_sent_without_a_known_caller(info: EndpointInfo, denying: str) -> None:
    target_without_caller = Target.endpoint(denying, info.region, "a", "b")
    with pytest.raises(AccountError, match="GetCallerIdentity"), translate_call_errors(target_without_caller):
        target_without_caller.storage.put_bytes("mine", "key", b"content")


def test_a_bucket_name_of_another_account_is_reported() -> None:
    bucket_exists = CallError(
        "CreateBucket", "BucketAlreadyExists", "The requested bucket name is not available."
    )
    error = to_user_error(bucket_exists, "eu-west-1")
    assert error.exit_code == 3
    assert "another account has taken the name of the bucket" in str(error)
    assert "\n" not in str(error)
