"""Verify signatures of requests: Signature Version 4 in headers and presigned URLs, and Version 2 of S3 URLs.

Sources: the AWS General Reference, "Signature Version 4 signing process" and, for bodies signed chunk by
chunk, the S3 API reference, sigv4-streaming and sigv4-streaming-trailers; Version 2 query strings as
botocore's HmacV1QueryAuth writes them.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import hmac
import io
import re
import time
from collections.abc import Callable, Collection, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_plus

from smlaunch.local.credentials import Keyring, SigningIdentity
from smlaunch.local.http_messages import EMPTY_SHA256, Payload, Request, parse_chunk_size

ALGORITHM = "AWS4-HMAC-SHA256"
MAX_CLOCK_SKEW_SECONDS = 15 * 60
"""Seconds by which clocks may differ."""
UNSIGNED_PAYLOAD = "UNSIGNED-PAYLOAD"
STREAMING_PREFIX = "STREAMING-"
_MAX_PRESIGNED_SECONDS = 7 * 86_400
_SUBRESOURCES = frozenset(
    """
    accelerate acl cors defaultObjectAcl location logging partNumber policy requestPayment torrent
    versioning versionId versions website uploads uploadId response-content-type
    response-content-language response-expires response-cache-control response-content-disposition
    response-content-encoding delete lifecycle tagging restore storageClass notification replication
    analytics metrics inventory select select-type object-lock
    """.split()  # noqa: SIM905  a list of thirty quoted words reads worse
)


_ALWAYS_SIGNED_HEADERS = frozenset(("x-amz-content-sha256", "x-amz-date"))
"""Headers that are part of the string to sign, whether SignedHeaders lists them or not."""


class SignatureRejected(Exception):
    """``kind`` names the cause; dispatch has each protocol's error code for it. ``unsigned_headers``: headers
    that should have been signed."""

    def __init__(self, kind: str, unsigned_headers: Sequence[str] = ()) -> None:
        super().__init__(kind)
        self.kind = kind
        self.unsigned_headers = unsigned_headers


class VerifiedSignature(NamedTuple):
    """A verified signature, its signer, and the service and body that it is valid for."""

    access_key: str
    identity: SigningIdentity
    region: str
    service: str
    payload_hash: str
    """A SHA-256 in hex, UNSIGNED-PAYLOAD, or one of the STREAMING- values."""
    signature: str
    date: str = ""

    def payload(self, request: Request) -> Payload:
        """Return the request's body as a payload that checks the signed hash or chunk signatures."""
        if not self.payload_hash.startswith(STREAMING_PREFIX):
            expected_sha256 = None if self.payload_hash == UNSIGNED_PAYLOAD else self.payload_hash
            return Payload(request.stream, expected_sha256, max_bytes=request.content_length)
        key = None
        if not self.payload_hash.startswith("STREAMING-UNSIGNED"):
            key = _signing_key(self.identity.secret_key, self.date[:8], self.region, self.service)
        chunks = _SignedChunks(request.stream, self, key)
        return Payload(
            io.BufferedReader(chunks, 1 << 16), trailers=chunks.trailers, max_bytes=request.content_length
        )


def credential_scope(request: Request) -> tuple[str, str] | None:
    """Return the (region, service) that the client claims to have signed for, without verifying it."""
    credential = request.query.get("X-Amz-Credential") or _authorization_fields(request).get("Credential", "")
    parts = credential.split("/")
    if len(parts) >= 5:
        return parts[-3], parts[-2]
    if "AWSAccessKeyId" in request.query and "Signature" in request.query:
        return "us-east-1", "s3"
    return None


def verify(request: Request, keyring: Keyring, hash_body: Callable[[], str], now: float) -> VerifiedSignature:
    """Verify a request's signature. Raises SignatureRejected.

    ``hash_body`` reads the body and returns its SHA-256. It is called when no header states the hash, after
    all checks that do not need the body. ``now``: seconds since the epoch.
    """
    query = request.query
    if "X-Amz-Signature" in query:
        return _verify_presigned_v4(request, keyring, now)
    if "AWSAccessKeyId" in query and "Signature" in query:
        return _verify_presigned_v2(request, keyring, now)
    fields = _authorization_fields(request)
    if not fields:
        raise SignatureRejected(
            "old" if request.headers.get("authorization", "").startswith("AWS ") else "missing"
        )
    try:
        signed_headers = fields["SignedHeaders"].split(";")
        signature, credential = fields["Signature"], fields["Credential"]
        date = request.headers["x-amz-date"]
    except KeyError:
        raise SignatureRejected("incomplete") from None
    if abs(_parse_amz_date(date) - now) > MAX_CLOCK_SKEW_SECONDS:
        raise SignatureRejected("skewed")
    is_s3 = credential.endswith("/s3/aws4_request")  # bodies of S3 are not read into memory
    payload_hash = request.headers.get("x-amz-content-sha256") or (EMPTY_SHA256 if is_s3 else hash_body)
    token = request.headers.get("x-amz-security-token")
    return _verify_v4(request, keyring, now, credential, signed_headers, date, signature, payload_hash, token)


def _verify_presigned_v4(request: Request, keyring: Keyring, now: float) -> VerifiedSignature:
    """Verify a presigned URL of Signature Version 4. ``now``: seconds since the epoch. Raises
    SignatureRejected."""
    query = request.query
    try:
        date, lifetime = query["X-Amz-Date"], int(query["X-Amz-Expires"])
        signed_headers, credential = query["X-Amz-SignedHeaders"].split(";"), query["X-Amz-Credential"]
    except (KeyError, ValueError):
        raise SignatureRejected("incomplete") from None
    signed_at = _parse_amz_date(date)
    if signed_at - now > MAX_CLOCK_SKEW_SECONDS or not 0 < lifetime <= _MAX_PRESIGNED_SECONDS:
        raise SignatureRejected("skewed")
    if signed_at + lifetime < now:
        raise SignatureRejected("expired")
    token, signature = query.get("X-Amz-Security-Token"), query["X-Amz-Signature"]
    payload_hash = UNSIGNED_PAYLOAD if credential.endswith("/s3/aws4_request") else EMPTY_SHA256
    if "x-amz-content-sha256" in signed_headers:
        payload_hash = request.headers.get("x-amz-content-sha256", payload_hash)
    return _verify_v4(request, keyring, now, credential, signed_headers, date, signature, payload_hash, token)


def _verify_v4(
    request: Request,
    keyring: Keyring,
    now: float,
    credential: str,
    signed_headers: list[str],
    date: str,
    signature: str,
    payload_hash_source: str | Callable[[], str],
    token: str | None,
) -> VerifiedSignature:
    """Verify a signature of Version 4. ``credential``: access key, day, region and service, separated by
    slashes. ``date``: of the request, in the form of x-amz-date. ``payload_hash_source``: the SHA-256 of the
    body, or what computes it. ``token``: of temporary credentials. Raises SignatureRejected."""
    scope_parts = credential.split("/")
    if (
        len(scope_parts) != 5
        or scope_parts[4] != "aws4_request"
        or not date.startswith(scope_parts[1])
        or "host" not in signed_headers
    ):
        raise SignatureRejected("incomplete")
    access_key, day, region, service, _ = scope_parts
    identity = keyring.find(access_key, token, now)
    if identity is None:
        raise SignatureRejected("unknown")
    _require_signed_headers(request, signed_headers)
    payload_hash = payload_hash_source if isinstance(payload_hash_source, str) else payload_hash_source()
    headers = "".join(
        f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in signed_headers
    )
    query_parameters = sorted(
        (quote(unquote_plus(name), safe="-_.~"), quote(unquote_plus(value), safe="-_.~"))
        for name, value in request.raw_query
        if name != "X-Amz-Signature"
    )
    query = "&".join(f"{name}={value}" for name, value in query_parameters)
    key = _signing_key(identity.secret_key, day, region, service)
    # Clients differ in the characters of a path that they encode; these are all forms of the same path.
    encoded = quote(unquote(request.path), safe="/-_.~")
    for path in dict.fromkeys((request.path, encoded, quote(encoded, safe="/-_.~"))):
        canonical = "\n".join((request.method, path, query, headers, ";".join(signed_headers), payload_hash))
        digest = hashlib.sha256(canonical.encode("latin-1", "replace")).hexdigest()
        string_to_sign = f"{ALGORITHM}\n{date}\n{day}/{region}/{service}/aws4_request\n{digest}"
        if _equal_signatures(_hmac_hex(key, string_to_sign), signature):
            return VerifiedSignature(access_key, identity, region, service, payload_hash, signature, date)
    raise SignatureRejected("mismatch")


def _require_signed_headers(request: Request, names: Collection[str]) -> None:
    """Reject x-amz- headers that are not signed: they change what a request does (copy source, tags).
    ``_`` in a name counts as ``-``, as moto's server reads it."""
    unsigned_headers = [
        name
        for name in request.headers
        if name not in names
        and name not in _ALWAYS_SIGNED_HEADERS
        and name.replace("_", "-").startswith("x-amz-")
    ]
    if unsigned_headers:
        raise SignatureRejected("unsigned", unsigned_headers)


def _verify_presigned_v2(request: Request, keyring: Keyring, now: float) -> VerifiedSignature:
    """Verify a presigned URL of Signature Version 2. ``now``: seconds since the epoch. Raises
    SignatureRejected."""
    query = request.query
    access_key, expires = query["AWSAccessKeyId"], query.get("Expires", "")
    if not re.fullmatch("[0-9]{1,12}", expires):
        raise SignatureRejected("incomplete")
    if int(expires) < now:
        raise SignatureRejected("expired")
    identity = keyring.find(access_key, query.get("x-amz-security-token"), now)
    if identity is None:
        raise SignatureRejected("unknown")

    def header_or_query(name: str) -> str:
        return request.headers.get(name) or query.get(name, "")

    amz_names = {name for name in (*request.headers, *query) if name.startswith("x-amz-")}
    amz_headers = "".join(f"{name}:{header_or_query(name)}\n" for name in sorted(amz_names))
    subresources = sorted(
        (unquote_plus(name), unquote_plus(value))
        for name, value in request.raw_query
        if unquote_plus(name) in _SUBRESOURCES
    )
    resource = "&".join(f"{name}={value}" if value else name for name, value in subresources)
    string_to_sign = "\n".join(
        (
            request.method,
            header_or_query("content-md5"),
            header_or_query("content-type"),
            expires,
            amz_headers + request.path,
        )
    )
    string_to_sign += f"?{resource}" if resource else ""
    digest = hmac.new(identity.secret_key.encode(), string_to_sign.encode(), hashlib.sha1).digest()
    if not _equal_signatures(base64.b64encode(digest).decode(), query["Signature"]):
        raise SignatureRejected("mismatch")
    _require_signed_headers(request, amz_names)
    return VerifiedSignature(access_key, identity, "us-east-1", "s3", UNSIGNED_PAYLOAD, query["Signature"])


class _SignedChunks(io.RawIOBase):
    """Body with Content-Encoding ``aws-chunked``: chunks with sizes. If ``key`` is given, each chunk has a
    signature that covers the previous one."""

    def __init__(
        self, stream: io.BufferedIOBase, request_signature: VerifiedSignature, key: bytes | None
    ) -> None:
        self._stream = stream
        self._request_signature = request_signature
        self._key = key
        day, region, service = request_signature.date[:8], request_signature.region, request_signature.service
        self._scope = f"{day}/{region}/{service}/aws4_request"
        self._previous_signature = request_signature.signature
        self._expected_signature = ""
        self._remaining_bytes = 0
        self._digest = hashlib.sha256()
        self._is_finished = False
        self.trailers: dict[str, str] = {}

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read into ``buffer`` from the current chunk, or begin the next one; return the number of bytes, 0
        at the end. Raises SignatureRejected for a chunk with a wrong signature."""
        if self._is_finished:
            return 0
        if self._remaining_bytes == 0:
            size, _, extension = self._stream.readline(512).partition(b";")
            self._remaining_bytes = parse_chunk_size(size)
            self._expected_signature = (
                extension.strip().removeprefix(b"chunk-signature=").decode("ascii", "replace")
            )
            self._digest = hashlib.sha256()
            if self._remaining_bytes == 0:
                self._is_finished = True
                self._check_chunk_signature()
                self._read_trailers()
                return 0
        view = memoryview(buffer)[: self._remaining_bytes]
        read_bytes = self._stream.readinto1(view)
        if read_bytes == 0:
            raise SignatureRejected("mismatch")
        if self._key is not None:
            self._digest.update(view[:read_bytes])
        self._remaining_bytes -= read_bytes
        if self._remaining_bytes == 0:
            self._stream.read(2)
            self._check_chunk_signature()
        return read_bytes

    def _check_chunk_signature(self) -> None:
        if self._key is None:
            return
        text = f"{EMPTY_SHA256}\n{self._digest.hexdigest()}"
        self._check_signature("AWS4-HMAC-SHA256-PAYLOAD", text, self._expected_signature)

    def _read_trailers(self) -> None:
        """Read the headers after the last chunk, and check their signature if they have one."""
        lines = []
        signature = ""
        while line := self._stream.readline(4096).strip():
            name, _, value = line.decode("latin-1").partition(":")
            if name.lower() == "x-amz-trailer-signature":
                signature = value.strip()
            else:
                self.trailers[name.lower()] = value.strip()
                lines.append(f"{name.lower()}:{value.strip()}\n")
        if self._key is not None and self._request_signature.payload_hash.endswith("-TRAILER"):
            digest = hashlib.sha256("".join(lines).encode("latin-1")).hexdigest()
            self._check_signature("AWS4-HMAC-SHA256-TRAILER", digest, signature)

    def _check_signature(self, algorithm: str, text: str, signature: str) -> None:
        assert self._key is not None
        text = (
            f"{algorithm}\n{self._request_signature.date}\n{self._scope}\n{self._previous_signature}\n{text}"
        )
        self._previous_signature = _hmac_hex(self._key, text)
        if not _equal_signatures(self._previous_signature, signature):
            raise SignatureRejected("mismatch")


def _authorization_fields(request: Request) -> dict[str, str]:
    """Return the fields of a Version 4 Authorization header; empty without such a header."""
    algorithm, _, parameters = request.headers.get("authorization", "").partition(" ")
    if algorithm != ALGORITHM:
        return {}
    pairs = (parameter.strip().partition("=") for parameter in parameters.split(","))
    return {name: value for name, _, value in pairs}


@lru_cache(maxsize=64)
def _signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for scope_part in (day, region, service, "aws4_request"):
        key = hmac.new(key, scope_part.encode(), hashlib.sha256).digest()
    return key


def _hmac_hex(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _equal_signatures(ours: str, theirs: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(ours.encode(), theirs.encode())


def _parse_amz_date(date: str) -> float:
    if not re.fullmatch("[0-9]{8}T[0-9]{6}Z", date):
        raise SignatureRejected("incomplete")
    try:
        return calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise SignatureRejected("incomplete") from None
