"""Signatures: AWS's own published examples, real clients, and everything that must be refused."""

from __future__ import annotations

import calendar
import io
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from itertools import product
from typing import Any
from urllib.parse import urlencode

import botocore.session
import pytest
from botocore.auth import S3SigV4Auth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.config import Config
from botocore.exceptions import ClientError

from smlaunch.local.front import sigv4
from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.credentials import Credentials, Keyring
from smlaunch.local.front.http_messages import Request
from tests.local.front.conftest import CREDENTIALS, ServerHarness

# S3 API reference, sig-v4-header-based-auth and sigv4-streaming: the published examples and their key.
PUBLISHED = Keyring(Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"))
PUBLISHED_TIME = float(calendar.timegm((2013, 5, 24, 0, 0, 0)))
SCOPE = "AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"


def published_request(
    method: str, target: str, signed: str, signature: str, body: bytes = b"", **headers: str
) -> Request:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    fields["authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={SCOPE},SignedHeaders={signed},Signature={signature}"
    )
    return Request(method, target, fields, io.BytesIO(body))


def fail_on_read() -> str:
    raise AssertionError("the body was read although its hash is stated")


GET_OBJECT: dict[str, Any] = {
    "method": "GET",
    "target": "/test.txt",
    "signed": "host;range;x-amz-content-sha256;x-amz-date",
    "signature": "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
    "host": "examplebucket.s3.amazonaws.com",
    "range": "bytes=0-9",
    "x_amz_content_sha256": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "x_amz_date": "20130524T000000Z",
}


def test_the_published_get() -> None:
    signed = sigv4.verify_signature(published_request(**GET_OBJECT), PUBLISHED, fail_on_read, PUBLISHED_TIME)
    assert (signed.region, signed.service) == ("us-east-1", "s3")


def test_the_published_listing() -> None:
    request = published_request(
        "GET",
        "/?max-keys=2&prefix=J",
        "host;x-amz-content-sha256;x-amz-date",
        "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        host="examplebucket.s3.amazonaws.com",
        x_amz_content_sha256=GET_OBJECT["x_amz_content_sha256"],
        x_amz_date="20130524T000000Z",
    )
    assert sigv4.verify_signature(request, PUBLISHED, fail_on_read, PUBLISHED_TIME).service == "s3"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"method": "DELETE"}, "mismatch"),
        ({"target": "/test2.txt"}, "mismatch"),
        ({"target": "/test.txt?acl"}, "mismatch"),
        ({"range": "bytes=0-10"}, "mismatch"),
        ({"host": "localhost"}, "mismatch"),
        ({"x_amz_date": "20130524T000001Z"}, "mismatch"),
        ({"x_amz_date": "yesterday"}, "incomplete"),
        ({"x_amz_date": "20130524T001501Z"}, "skewed"),
        ({"signature": "0" * 64}, "mismatch"),
        ({"signed": "range;x-amz-content-sha256;x-amz-date"}, "incomplete"),
    ],
)
def test_any_changed_byte_is_a_mismatch(change: dict[str, str], kind: str) -> None:
    with pytest.raises(sigv4.SignatureRejected) as refused:
        sigv4.verify_signature(
            published_request(**{**GET_OBJECT, **change}), PUBLISHED, fail_on_read, PUBLISHED_TIME
        )
    assert refused.value.kind == kind


def test_an_empty_hash_is_no_stated_hash() -> None:
    request = published_request(**{**GET_OBJECT, "x_amz_content_sha256": ""})
    request.headers["authorization"] = request.headers["authorization"].replace("/s3/", "/sts/")
    with pytest.raises(AssertionError, match="body was read"):
        sigv4.verify_signature(request, PUBLISHED, fail_on_read, PUBLISHED_TIME)


CHUNKS = (
    b"10000;chunk-signature=ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648\r\n"
    + b"a" * 65536
    + b"\r\n400;chunk-signature=0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497\r\n"
    + b"a" * 1024
    + b"\r\n0;chunk-signature=b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9\r\n\r\n"
)


def read_chunks(body: bytes) -> bytes:
    request = published_request(
        "PUT",
        "/examplebucket/chunkObject.txt",
        "content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;"
        "x-amz-storage-class",
        "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9",
        body,
        host="s3.amazonaws.com",
        x_amz_date="20130524T000000Z",
        x_amz_storage_class="REDUCED_REDUNDANCY",
        x_amz_content_sha256="STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        content_encoding="aws-chunked",
        x_amz_decoded_content_length="66560",
        content_length="66824",
    )
    return (
        sigv4.verify_signature(request, PUBLISHED, fail_on_read, PUBLISHED_TIME)
        .verified_payload(request)
        .read_all(1 << 20)
    )


def test_the_published_chunks() -> None:
    assert read_chunks(CHUNKS) == b"a" * 66560


@pytest.mark.parametrize(
    "tampered",
    [
        CHUNKS.replace(b"a" * 1024, b"a" * 1023 + b"b"),
        CHUNKS.replace(b"0055627c", b"0055627d"),
        CHUNKS[: CHUNKS.index(b"\r\n400;")] + b"\r\n0;chunk-signature=" + b"0" * 64 + b"\r\n\r\n",
        CHUNKS[:66000],
        b"not chunks",
    ],
)
def test_tampered_chunks_are_rejected(tampered: bytes) -> None:
    with pytest.raises((sigv4.SignatureRejected, ApiError)):
        read_chunks(tampered)


@pytest.mark.parametrize(
    ("service", "operation", "code"),
    [
        ("sagemaker", "list_training_jobs", "InvalidSignatureException"),
        ("logs", "describe_log_groups", "InvalidSignatureException"),
        ("s3", "list_buckets", "SignatureDoesNotMatch"),
        ("sts", "get_caller_identity", "SignatureDoesNotMatch"),
        ("iam", "list_roles", "SignatureDoesNotMatch"),
    ],
)
def test_a_wrong_secret(front: ServerHarness, service: str, operation: str, code: str) -> None:
    client = front.client(service, aws_secret_access_key="wrong")
    with pytest.raises(ClientError) as refused:
        getattr(client, operation)()
    assert refused.value.response["Error"]["Code"] == code
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403


def test_an_unknown_key_and_a_forged_token(front: ServerHarness) -> None:
    with pytest.raises(ClientError, match="InvalidClientTokenId"):
        front.client("sts", aws_access_key_id="AKIDNOBODY").get_caller_identity()
    for token in ("", "x", "e30.x", "."):
        with pytest.raises(ClientError):
            front.client("sts", aws_session_token=token or "-").get_caller_identity()


def test_temporary_credentials_survive_a_restart_and_expire(front: ServerHarness) -> None:
    role = "arn:aws:iam::000000000000:role/smlaunch-local"
    issued = front.client("sts").assume_role(RoleArn=role, RoleSessionName="me", DurationSeconds=900)
    credentials = issued["Credentials"]
    keys = {
        "aws_access_key_id": credentials["AccessKeyId"],
        "aws_secret_access_key": credentials["SecretAccessKey"],
        "aws_session_token": credentials["SessionToken"],
    }
    arn = "arn:aws:sts::000000000000:assumed-role/smlaunch-local/me"
    assert front.client("sts", **keys).get_caller_identity()["Arn"] == arn
    assert "Buckets" in front.client("s3", **keys).list_buckets()
    restarted = Keyring(CREDENTIALS)
    now = time.time()
    stored_credentials = restarted.find_identity(credentials["AccessKeyId"], credentials["SessionToken"], now)
    assert stored_credentials is not None
    assert stored_credentials.secret_key == credentials["SecretAccessKey"]
    assert restarted.find_identity(credentials["AccessKeyId"], credentials["SessionToken"], now + 901) is None
    assert restarted.find_identity("ASIAOTHER", credentials["SessionToken"], now) is None
    other = Keyring(Credentials("AKIDEXAMPLE", "another"))
    assert other.find_identity(credentials["AccessKeyId"], credentials["SessionToken"], now) is None


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_presigned_urls(front: ServerHarness, bucket: str, version: str) -> None:
    client = front.client("s3", config=Config(signature_version=version))
    key = "a b/ü+%~'()!*"
    front.objects.put_object_bytes(bucket, key, b"hello")
    link = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key})
    with urllib.request.urlopen(link) as answer:
        assert answer.read() == b"hello"
    put = client.generate_presigned_url(
        "put_object", Params={"Bucket": bucket, "Key": "p", "ContentType": "a/b"}
    )
    upload = urllib.request.Request(put, b"up", {"Content-Type": "a/b"}, method="PUT")
    with urllib.request.urlopen(upload) as answer:
        assert answer.status == 200
    params = {"Bucket": bucket, "Key": "p", "ResponseContentDisposition": "attachment; filename=x"}
    with urllib.request.urlopen(client.generate_presigned_url("get_object", Params=params)) as answer:
        assert answer.headers["Content-Disposition"] == "attachment; filename=x"
        assert answer.read() == b"up"
    for wrong in (link.replace("hello", "x").replace("ignature=", "ignature=x"), link.replace("/a", "/b", 1)):
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(wrong)
        assert refused.value.code == 403
    old = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=-5)
    with pytest.raises(urllib.error.HTTPError) as expired:
        urllib.request.urlopen(old)
    assert expired.value.code == 403


def send(method: str, url: str, body: bytes = b"", **headers: str) -> tuple[int, str]:
    """Send a request. Header names are Python names: ``x_amz_acl``, and ``__`` for an underscore."""
    header_fields = {
        name.replace("__", "?").replace("_", "-").replace("?", "_"): v for name, v in headers.items()
    }
    request = urllib.request.Request(url, body or None, header_fields, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("put_object", {"x_amz_copy_source": "/private/secret"}),
        ("put_object", {"X_AMZ_Copy_Source": "/private/secret"}),
        ("put_object", {"x__amz__copy__source": "/private/secret"}),
        ("put_object", {"x_amz_meta_owner": "somebody"}),
        ("put_object", {"x_amz_tagging": "a=b"}),
        ("put_object", {"x_amz_acl": "private"}),
        ("get_object", {"x_amz_security_token": "x"}),
        ("delete_object", {"x_amz_bypass_governance_retention": "true"}),
    ],
)
def test_a_presigned_url_is_valid_for_its_request_only(
    front: ServerHarness, bucket: str, method: str, headers: dict[str, str]
) -> None:
    front.objects.create_bucket("private")
    front.objects.put_object_bytes("private", "secret", b"secret")
    front.objects.put_object_bytes(bucket, "k", b"mine")
    client = front.client("s3", config=Config(signature_version="s3v4"))
    link = client.generate_presigned_url(method, Params={"Bucket": bucket, "Key": "k"})
    verb = {"put_object": "PUT", "get_object": "GET", "delete_object": "DELETE"}[method]
    status, text = send(verb, link, **headers)
    assert (status, "<Code>AccessDenied</Code>" in text) == (403, True), text
    name = next(iter(headers)).replace("__", "?").replace("_", "-").replace("?", "_").lower()
    assert f"<HeadersNotSigned>{name}</HeadersNotSigned>" in text
    assert front.client("s3").get_object(Bucket=bucket, Key="k")["Body"].read() == b"mine"


def test_a_presigned_copy_with_a_signed_source(front: ServerHarness, bucket: str) -> None:
    front.objects.put_object_bytes(bucket, "from", b"copied")
    client = front.client("s3", config=Config(signature_version="s3v4"))
    params = {"Bucket": bucket, "Key": "to", "CopySource": f"{bucket}/from", "Metadata": {"a": "b"}}
    link = client.generate_presigned_url("copy_object", Params=params)
    signed = {"x_amz_copy_source": f"{bucket}/from", "x_amz_meta_a": "b"}
    assert send("PUT", link, **signed)[0] == 200
    assert front.client("s3").get_object(Bucket=bucket, Key="to")["Body"].read() == b"copied"
    for changed in ({"x_amz_copy_source": "private/secret"}, {"x_amz_copy_source": f"{bucket}/from,x"}):
        assert "SignatureDoesNotMatch" in send("PUT", link, **{**signed, **changed})[1]


@pytest.mark.parametrize("version", ["s3v4", "s3"])
def test_a_presigned_request_cannot_be_changed(front: ServerHarness, bucket: str, version: str) -> None:
    front.objects.put_object_bytes(bucket, "k", b"mine")
    client = front.client("s3", config=Config(signature_version=version))
    params = {
        "Bucket": bucket,
        "Key": "k",
        "ResponseContentDisposition": "attachment; filename=a+b",
        "ResponseContentLanguage": "de",
        "ResponseContentEncoding": "identity",
    }
    link = client.generate_presigned_url("get_object", Params=params)
    with urllib.request.urlopen(link) as answer:
        assert answer.headers["Content-Disposition"] == "attachment; filename=a+b"
        assert answer.headers["Content-Language"] == "de"
    assert "a%2Bb" in link
    for changed in (
        link.replace("a%2Bb", "a+b"),
        link.replace("-language=de", "-language=fr"),
        link.replace("-encoding=identity", "-encoding=gzip"),
        link + "&response-content-type=text%2Fhtml",
    ):
        assert "SignatureDoesNotMatch" in send("GET", changed)[1], changed


@pytest.mark.parametrize("service", ["sagemaker", "s3"])
def test_unsigned_amz_headers_are_rejected(front: ServerHarness, bucket: str, service: str) -> None:
    session = botocore.session.Session()
    session.set_credentials(CREDENTIALS.access_key, CREDENTIALS.secret_key)
    auth = S3SigV4Auth if service == "s3" else SigV4Auth
    method, target = ("PUT", f"/{bucket}/k") if service == "s3" else ("POST", "/")
    request = AWSRequest(method, front.url + target, data=b"{}")
    auth(session.get_credentials(), service, "us-east-1").add_auth(request)
    signed = {name.replace("-", "_"): value for name, value in request.headers.items()}
    before = len(front.sagemaker.requests)
    unsigned = {"X_Amz_Target": "SageMaker.ListTrainingJobs"}
    status, text = send(method, request.url, b"{}", **signed, **unsigned)
    assert status == 403
    assert "not signed" in text
    assert "x-amz-target" in text
    assert len(front.sagemaker.requests) == before


def test_the_hash_of_a_body_is_signed_with_or_without_its_header(front: ServerHarness, bucket: str) -> None:
    """Some clients do not sign the header x-amz-content-sha256; the signed text has the hash anyway."""
    session = botocore.session.Session()
    session.set_credentials(CREDENTIALS.access_key, CREDENTIALS.secret_key)
    request = AWSRequest("PUT", f"{front.url}/{bucket}/k", data=b"body")
    signer = S3SigV4Auth(session.get_credentials(), "s3", "us-east-1")
    signer.headers_to_sign = lambda request: _headers_without_hash(signer, request)  # type: ignore[method-assign]
    signer.add_auth(request)
    assert "x-amz-content-sha256" not in request.headers["Authorization"]
    signed = {name.replace("-", "_"): value for name, value in request.headers.items()}
    assert send("PUT", request.url, b"body", **signed)[0] == 200
    assert send("PUT", request.url, b"ydob", **signed)[0] in (400, 403)


def _headers_without_hash(signer: SigV4Auth, request: AWSRequest) -> Any:
    headers = SigV4Auth.headers_to_sign(signer, request)
    del headers["x-amz-content-sha256"]
    return headers


def malformed_requests() -> Iterator[Request]:
    now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    scope = f"AKIDEXAMPLE/{now[:8]}/us-east-1/s3/aws4_request"
    dates = (now, "\u00b2" * 8 + "T000000Z", "99999999T999999Z", "00010101T000000Z", "")
    for signature, date, token in product(("\u00e9", "0" * 64, ""), dates, ("", ".", "\u00e9", "e30.\u00e9")):
        text = f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, Signature={signature}"
        headers = {"x-amz-date": date, "x-amz-security-token": token, "authorization": text}
        yield Request("GET", "/", {"host": "localhost", **headers}, io.BufferedReader(io.BytesIO()))
        link = {
            "X-Amz-Signature": signature,
            "X-Amz-Date": date,
            "X-Amz-Expires": "60",
            "X-Amz-Security-Token": token,
            "X-Amz-Credential": scope,
            "X-Amz-SignedHeaders": "host;\u00e9",
        }
        yield Request("GET", f"/?{urlencode(link)}", {"host": "localhost"}, io.BufferedReader(io.BytesIO()))
    for signature, expires in product(("x", "\u00e9"), ("9" * 10, "9" * 5000, "\u00b2", "-1", "")):
        old = {"AWSAccessKeyId": "AKIDEXAMPLE", "Signature": signature, "Expires": expires}
        yield Request("GET", f"/?{urlencode(old)}", {"host": "localhost"}, io.BufferedReader(io.BytesIO()))


def test_malformed_signatures_are_rejected_without_an_internal_failure(
    front: ServerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """An internal failure would let any client write tracebacks to the log."""
    for request in malformed_requests():
        assert front.dispatch(request).status == 403, (request.target, request.headers)
    assert not caplog.records


def test_signature_version_2_headers_are_rejected_as_by_aws(front: ServerHarness) -> None:
    with pytest.raises(ClientError, match="Please use AWS4-HMAC-SHA256"):
        front.client("s3", config=Config(signature_version="s3")).list_buckets()


def test_a_body_that_is_not_the_signed_one(front: ServerHarness, bucket: str) -> None:
    session = botocore.session.Session()
    session.set_credentials(CREDENTIALS.access_key, CREDENTIALS.secret_key)
    for auth, service, target in ((SigV4Auth, "sagemaker", "/"), (S3SigV4Auth, "s3", f"/{bucket}/k")):
        request = AWSRequest("POST" if service != "s3" else "PUT", front.url + target, data=b"{}")
        if service == "sagemaker":
            request.headers["X-Amz-Target"] = "SageMaker.ListTrainingJobs"
        auth(session.get_credentials(), service, "us-east-1").add_auth(request)
        sent = urllib.request.Request(request.url, b"[]", dict(request.headers), method=request.method)
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(sent)
        assert refused.value.code in (400, 403)
    with pytest.raises(ClientError, match="404"):
        front.client("s3").head_object(Bucket=bucket, Key="k")


def test_a_clock_that_differs(tmp_path: Any) -> None:
    front = ServerHarness(tmp_path, clock=lambda: time.time() + 3600)
    try:
        with pytest.raises(ClientError, match="clocks differ"):
            front.client("sagemaker").list_training_jobs()
    finally:
        front.close()
