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
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_plus

from smlaunch.local.front.credentials import Keyring, SigningIdentity
from smlaunch.local.front.http_messages import EMPTY_SHA256, Payload, Request, parse_chunk_size

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

    def verified_payload(self, request: Request) -> Payload:
        """Return the body of the request that has this signature, as a payload that checks the signed hash,
        or the signature of each chunk, while it is read."""
        is_chunked = self.payload_hash.startswith(STREAMING_PREFIX)  # Content-Encoding aws-chunked
        if not is_chunked:
            expected_sha256 = None if self.payload_hash == UNSIGNED_PAYLOAD else self.payload_hash
            return Payload(request.stream, expected_sha256, max_bytes=request.content_length)
        chunk_signing_key = None  # None: chunks are not signed
        if not self.payload_hash.startswith("STREAMING-UNSIGNED"):
            chunk_signing_key = _derive_signing_key(
                self.identity.secret_key, self.date[:8], self.region, self.service
            )
        # The stream of the decoded body; its trailers, the headers after the body, are filled at its end.
        chunks = _AwsChunkedBody(request.stream, self, chunk_signing_key)
        return Payload(
            io.BufferedReader(chunks, 1 << 16), trailers=chunks.trailers, max_bytes=request.content_length
        )


def claimed_region_and_service(request: Request) -> tuple[str, str] | None:
    """Return the (region, service) that the client claims to have signed for, without verifying it; None
    without a signature."""
    credential = request.query.get("X-Amz-Credential") or _authorization_fields(request).get("Credential", "")
    credential_parts = credential.split("/")  # access key, day, region, service, "aws4_request"
    if len(credential_parts) >= 5:
        return credential_parts[-3], credential_parts[-2]
    if "AWSAccessKeyId" in request.query and "Signature" in request.query:  # Version 2 names neither
        return "us-east-1", "s3"
    return None


def verify_signature(
    request: Request, keyring: Keyring, hash_body: Callable[[], str], now: float
) -> VerifiedSignature:
    """Verify the AWS signature of a request: of Version 4 in its headers or in a presigned URL, or of Version
    2 in a presigned URL. Raises SignatureRejected with the kind of the problem. ``keyring`` finds the secret
    key of an access key. ``hash_body`` reads the body and returns its SHA-256; it is called when no header
    states the hash, after all checks that do not need the body. ``now``: seconds since the epoch."""
    query = request.query
    if "X-Amz-Signature" in query:
        return _verify_presigned_v4(request, keyring, now)
    if "AWSAccessKeyId" in query and "Signature" in query:
        return _verify_presigned_v2(request, keyring, now)
    authorization_fields = _authorization_fields(request)  # of the Authorization header of Version 4
    if not authorization_fields:
        has_version_2 = request.headers.get("authorization", "").startswith("AWS ")
        raise SignatureRejected("old" if has_version_2 else "missing")
    try:
        signed_headers = authorization_fields["SignedHeaders"].split(";")
        signature, credential = authorization_fields["Signature"], authorization_fields["Credential"]
        amz_date = request.headers["x-amz-date"]
    except KeyError:
        raise SignatureRejected("incomplete") from None
    if abs(_parse_amz_date(amz_date) - now) > MAX_CLOCK_SKEW_SECONDS:
        raise SignatureRejected("skewed")

    def get_payload_hash() -> str:
        # The signature covers the body's hash: the stated one, which is checked while the body is read.
        # Without one, the body is read now; not for S3, whose clients leave it out only without a body.
        stated_hash = request.headers.get("x-amz-content-sha256")
        if stated_hash:
            return stated_hash
        return EMPTY_SHA256 if _is_for_s3(credential) else hash_body()

    stated_signature = _StatedSignature(
        credential=credential,
        signed_headers=signed_headers,
        amz_date=amz_date,
        signature=signature,
        session_token=request.headers.get("x-amz-security-token"),
    )
    return _verify_signature_v4(request, keyring, now, stated_signature, get_payload_hash)


def _is_for_s3(credential: str) -> bool:
    """Return whether a signature's credential (key, day, region, service, terminator) names S3."""
    return credential.endswith("/s3/aws4_request")


def _verify_presigned_v4(request: Request, keyring: Keyring, now: float) -> VerifiedSignature:
    """Verify a presigned URL of Signature Version 4, which states its date and its lifetime in seconds (at
    most 7 days). ``keyring`` finds the secret key of an access key; ``now``: seconds since the epoch. Raises
    SignatureRejected with the kind of the problem."""
    query = request.query
    try:
        amz_date, lifetime_seconds = query["X-Amz-Date"], int(query["X-Amz-Expires"])
        signed_headers, credential = query["X-Amz-SignedHeaders"].split(";"), query["X-Amz-Credential"]
    except (KeyError, ValueError):
        raise SignatureRejected("incomplete") from None
    signed_at_seconds = _parse_amz_date(amz_date)
    is_from_future = signed_at_seconds - now > MAX_CLOCK_SKEW_SECONDS
    # A date up to 15 minutes ahead is accepted: clocks differ.
    if is_from_future or not 0 < lifetime_seconds <= _MAX_PRESIGNED_SECONDS:
        raise SignatureRejected("skewed")
    if signed_at_seconds + lifetime_seconds < now:
        raise SignatureRejected("expired")
    # Who signs an S3 URL does not know the body of the later request; other services' URLs have no body.
    payload_hash = UNSIGNED_PAYLOAD if _is_for_s3(credential) else EMPTY_SHA256
    if "x-amz-content-sha256" in signed_headers:
        payload_hash = request.headers.get("x-amz-content-sha256", payload_hash)
    stated_signature = _StatedSignature(
        credential=credential,
        signed_headers=signed_headers,
        amz_date=amz_date,
        signature=query["X-Amz-Signature"],
        session_token=query.get("X-Amz-Security-Token"),
    )
    return _verify_signature_v4(request, keyring, now, stated_signature, lambda: payload_hash)


class _StatedSignature(NamedTuple):
    """What a request states in its headers or in a presigned URL about its signature of Version 4."""

    credential: str
    """Access key, day, region, service and ``aws4_request``, separated by slashes."""
    signed_headers: list[str]
    """Names in lower case."""
    amz_date: str
    """When it was signed, such as 20261127T024530Z."""
    signature: str
    """In hex."""
    session_token: str | None
    """Of temporary credentials."""


def _verify_signature_v4(
    request: Request,
    keyring: Keyring,
    now: float,
    stated: _StatedSignature,
    get_payload_hash: Callable[[], str],
) -> VerifiedSignature:
    """Verify a signature of Version 4 (AWS General Reference, "Signature Version 4 signing process").

    ``now``: seconds since the epoch. ``get_payload_hash`` returns the SHA-256 of the body in hex; it may have
    to read the body, and is called after all other checks. Raises SignatureRejected."""
    credential_parts = stated.credential.split("/")
    if len(credential_parts) != 5 or "host" not in stated.signed_headers:
        raise SignatureRejected("incomplete")
    access_key, day, region, service, terminator = credential_parts
    if terminator != "aws4_request" or not stated.amz_date.startswith(day):
        raise SignatureRejected("incomplete")
    signing_identity = keyring.find_identity(access_key, stated.session_token, now)
    if signing_identity is None:
        raise SignatureRejected("unknown")
    _require_signed_headers(request, stated.signed_headers)  # raises for an x-amz- header that is not signed
    payload_hash = get_payload_hash()
    signing_key = _derive_signing_key(signing_identity.secret_key, day, region, service)
    # Clients differ in how they encode the path that they sign.
    for canonical_path in _possible_canonical_paths(request.path):
        canonical_request = _canonical_request(request, canonical_path, stated.signed_headers, payload_hash)
        request_digest = hashlib.sha256(canonical_request.encode("latin-1", "replace")).hexdigest()
        string_to_sign = (
            f"{ALGORITHM}\n{stated.amz_date}\n{day}/{region}/{service}/aws4_request\n{request_digest}"
        )
        # Compared in constant time.
        if _equal_signatures(_hmac_sha256_hex(signing_key, string_to_sign), stated.signature):
            return VerifiedSignature(
                access_key=access_key,
                identity=signing_identity,
                region=region,
                service=service,
                payload_hash=payload_hash,
                signature=stated.signature,
                date=stated.amz_date,
            )
    raise SignatureRejected("mismatch")


def _possible_canonical_paths(path: str) -> Iterable[str]:
    """Return the encodings of a request's path that clients sign. They differ in the characters that they
    encode, and all but S3's encode twice."""
    encoded_path = quote(unquote(path), safe="/-_.~")
    twice_encoded_path = quote(encoded_path, safe="/-_.~")
    return dict.fromkeys((path, encoded_path, twice_encoded_path))


def _canonical_request(
    request: Request, canonical_path: str, signed_headers: list[str], payload_hash: str
) -> str:
    """Return the canonical request of Signature Version 4, whose hash is signed."""
    canonical_headers = "".join(
        f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in signed_headers
    )
    query_parameters = sorted(
        (quote(unquote_plus(name), safe="-_.~"), quote(unquote_plus(value), safe="-_.~"))
        for name, value in request.raw_query
        if name != "X-Amz-Signature"
    )
    canonical_query = "&".join(f"{name}={value}" for name, value in query_parameters)
    return "\n".join(
        (
            request.method,
            canonical_path,
            canonical_query,
            canonical_headers,
            ";".join(signed_headers),
            payload_hash,
        )
    )


def _require_signed_headers(request: Request, signed_names: Collection[str]) -> None:
    """Raise SignatureRejected for x-amz- headers that are not signed: they change what a request does (copy
    source, tags). ``_`` in a name counts as ``-``, as moto's server reads it."""
    unsigned_headers = [
        name
        for name in request.headers
        if name.replace("_", "-").startswith("x-amz-")
        and name not in signed_names
        and name not in _ALWAYS_SIGNED_HEADERS
    ]
    if unsigned_headers:
        raise SignatureRejected("unsigned", unsigned_headers)


def _verify_presigned_v2(request: Request, keyring: Keyring, now: float) -> VerifiedSignature:
    """Verify a presigned S3 URL of Signature Version 2, which states the time when it expires and signs the
    x-amz- headers and the sub-resources (query parameters that select the operation). ``keyring`` finds the
    secret key of an access key; ``now``: seconds since the epoch. Raises SignatureRejected with the kind of
    the problem."""
    query = request.query
    access_key, expires_text = query["AWSAccessKeyId"], query.get("Expires", "")
    if not re.fullmatch("[0-9]{1,12}", expires_text):
        raise SignatureRejected("incomplete")
    if int(expires_text) < now:
        raise SignatureRejected("expired")
    signing_identity = keyring.find_identity(access_key, query.get("x-amz-security-token"), now)
    if signing_identity is None:
        raise SignatureRejected("unknown")
    amz_header_names = {name for name in (*request.headers, *query) if name.startswith("x-amz-")}
    string_to_sign = _string_to_sign_v2(request, expires_text, amz_header_names)
    expected_signature_bytes = hmac.new(
        signing_identity.secret_key.encode(), string_to_sign.encode(), hashlib.sha1
    ).digest()
    # Compared in constant time.
    if not _equal_signatures(base64.b64encode(expected_signature_bytes).decode(), query["Signature"]):
        raise SignatureRejected("mismatch")
    _require_signed_headers(request, amz_header_names)  # raises for x_amz_...: counts as x-amz-
    return VerifiedSignature(
        access_key=access_key,
        identity=signing_identity,
        region="us-east-1",  # Version 2 names no region
        service="s3",
        payload_hash=UNSIGNED_PAYLOAD,  # Version 2 does not sign the body
        signature=query["Signature"],
    )


def _string_to_sign_v2(request: Request, expires_text: str, amz_header_names: Collection[str]) -> str:
    """Return the text that a presigned S3 URL of Signature Version 2 signs. ``expires_text``: seconds since
    the epoch."""

    def header_or_query(name: str) -> str:
        return request.headers.get(name) or request.query.get(name, "")

    canonical_amz_headers = "".join(f"{name}:{header_or_query(name)}\n" for name in sorted(amz_header_names))
    # Query parameters that select or change the operation; other parameters are not signed.
    subresources = sorted(
        (unquote_plus(name), unquote_plus(value))
        for name, value in request.raw_query
        if unquote_plus(name) in _SUBRESOURCES
    )
    canonical_subresources = "&".join(f"{name}={value}" if value else name for name, value in subresources)
    string_to_sign = "\n".join(
        (
            request.method,
            header_or_query("content-md5"),
            header_or_query("content-type"),
            expires_text,
            canonical_amz_headers + request.path,
        )
    )
    return string_to_sign + (f"?{canonical_subresources}" if canonical_subresources else "")


class _AwsChunkedBody(io.RawIOBase):
    """Body with Content-Encoding ``aws-chunked``: chunks with sizes. If ``key`` is given, each chunk has a
    signature that covers the previous one."""

    def __init__(
        self, stream: io.BufferedIOBase, request_signature: VerifiedSignature, key: bytes | None
    ) -> None:
        self._stream = stream
        self._request_signature = request_signature
        self._chunk_signing_key = key
        day, region, service = request_signature.date[:8], request_signature.region, request_signature.service
        self._scope = f"{day}/{region}/{service}/aws4_request"
        self._previous_signature = request_signature.signature
        self._stated_chunk_signature = ""
        self._chunk_remaining_bytes = 0
        self._chunk_sha256 = hashlib.sha256()
        self._is_at_end = False
        self.trailers: dict[str, str] = {}

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read bytes of a request's body with Content-Encoding ``aws-chunked`` into ``buffer``, at most to
        the end of a chunk; return their number, 0 at the end. Raises SignatureRejected for a chunk with a
        wrong signature."""
        if self._is_at_end:
            return 0
        if self._chunk_remaining_bytes == 0:
            self._read_chunk_header()
            if self._chunk_remaining_bytes == 0:  # the last chunk is empty
                self._is_at_end = True
                self._check_chunk_signature()  # nothing if chunks are not signed
                self._read_trailers()
                return 0
        buffer_view = memoryview(buffer)[: self._chunk_remaining_bytes]
        read_count = self._stream.readinto1(buffer_view)
        if read_count == 0:  # the body ends within a chunk
            raise SignatureRejected("mismatch")
        if self._chunk_signing_key is not None:
            self._chunk_sha256.update(buffer_view[:read_count])  # for the chunk's signature
        self._chunk_remaining_bytes -= read_count
        if self._chunk_remaining_bytes == 0:
            self._stream.read(2)  # the line break after the chunk
            self._check_chunk_signature()
        return read_count

    def _read_chunk_header(self) -> None:
        """Read the line before a chunk: its size, and its signature if chunks are signed."""
        size_text, _, chunk_extension = self._stream.readline(512).partition(b";")
        self._chunk_remaining_bytes = parse_chunk_size(size_text)
        self._stated_chunk_signature = (
            chunk_extension.strip().removeprefix(b"chunk-signature=").decode("ascii", "replace")
        )
        self._chunk_sha256 = hashlib.sha256()

    def _check_chunk_signature(self) -> None:
        """Raise SignatureRejected if chunks are signed and the signature of this one is wrong."""
        if self._chunk_signing_key is None:
            return
        text = f"{EMPTY_SHA256}\n{self._chunk_sha256.hexdigest()}"
        self._check_signature("AWS4-HMAC-SHA256-PAYLOAD", text, self._stated_chunk_signature)

    def _read_trailers(self) -> None:
        """Read the headers after the last chunk of an ``aws-chunked`` body into ``trailers``, and check their
        signature if the request's signature says that they have one. Raises SignatureRejected."""
        signed_lines = []
        trailer_signature = ""
        while line := self._stream.readline(4096).strip():
            name, _, value = line.decode("latin-1").partition(":")
            if name.lower() == "x-amz-trailer-signature":
                trailer_signature = value.strip()
            else:
                self.trailers[name.lower()] = value.strip()
                signed_lines.append(f"{name.lower()}:{value.strip()}\n")
        # Such as STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER.
        has_trailer_signature = self._request_signature.payload_hash.endswith("-TRAILER")
        if self._chunk_signing_key is not None and has_trailer_signature:
            trailers_digest = hashlib.sha256("".join(signed_lines).encode("latin-1")).hexdigest()
            self._check_signature("AWS4-HMAC-SHA256-TRAILER", trailers_digest, trailer_signature)

    def _check_signature(self, algorithm: str, text: str, signature: str) -> None:
        assert self._chunk_signing_key is not None
        text = (
            f"{algorithm}\n{self._request_signature.date}\n{self._scope}\n{self._previous_signature}\n{text}"
        )
        self._previous_signature = _hmac_sha256_hex(self._chunk_signing_key, text)
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
def _derive_signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for scope_part in (day, region, service, "aws4_request"):
        key = hmac.new(key, scope_part.encode(), hashlib.sha256).digest()
    return key


def _hmac_sha256_hex(key: bytes, text: str) -> str:
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
