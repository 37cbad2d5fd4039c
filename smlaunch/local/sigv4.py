"""Signatures of requests: Signature Version 4 in headers and in query strings, and boto3's older S3 links.

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

from smlaunch.local.credentials import Identity, Keyring
from smlaunch.local.messages import EMPTY_SHA256, Payload, Request, chunk_size

ALGORITHM = "AWS4-HMAC-SHA256"
LEEWAY = 15 * 60
"""Seconds by which clocks may differ."""
UNSIGNED = "UNSIGNED-PAYLOAD"
STREAMING = "STREAMING-"
_LONGEST_LINK = 7 * 86_400
_SUBRESOURCES = frozenset(
    """
    accelerate acl cors defaultObjectAcl location logging partNumber policy requestPayment torrent
    versioning versionId versions website uploads uploadId response-content-type
    response-content-language response-expires response-cache-control response-content-disposition
    response-content-encoding delete lifecycle tagging restore storageClass notification replication
    analytics metrics inventory select select-type object-lock
    """.split()  # noqa: SIM905  a list of thirty quoted words reads worse
)


_BOUND = frozenset(("x-amz-content-sha256", "x-amz-date"))
"""Headers of Signature Version 4 that are lines of what is signed, whether it lists them or not."""


class Refused(Exception):
    """``kind`` names the cause; each protocol has its own code and words for it (see dispatch). ``headers``:
    those that should have been signed."""

    def __init__(self, kind: str, headers: Sequence[str] = ()) -> None:
        super().__init__(kind)
        self.kind = kind
        self.headers = headers


class Signed(NamedTuple):
    """A signature that is good, and for what it was given."""

    access_key: str
    identity: Identity
    region: str
    service: str
    payload_hash: str
    """A SHA-256 in hex, UNSIGNED-PAYLOAD, or one of the STREAMING- words."""
    signature: str
    date: str = ""

    def payload(self, request: Request) -> Payload:
        """The request's body, to be read through what was signed for it."""
        if not self.payload_hash.startswith(STREAMING):
            whole = None if self.payload_hash == UNSIGNED else self.payload_hash
            return Payload(request.stream, whole, length=request.length)
        key = None
        if not self.payload_hash.startswith("STREAMING-UNSIGNED"):
            key = _signing_key(self.identity.secret_key, self.date[:8], self.region, self.service)
        chunks = _SignedChunks(request.stream, self, key)
        return Payload(io.BufferedReader(chunks, 1 << 16), trailers=chunks.trailers, length=request.length)


def scope(request: Request) -> tuple[str, str] | None:
    """(region, service) that the client says it signed for: enough to pick the form of an error."""
    credential = request.query.get("X-Amz-Credential") or _authorization(request).get("Credential", "")
    words = credential.split("/")
    if len(words) >= 5:
        return words[-3], words[-2]
    if "AWSAccessKeyId" in request.query and "Signature" in request.query:
        return "us-east-1", "s3"
    return None


def verify(request: Request, keyring: Keyring, hash_body: Callable[[], str], now: float) -> Signed:
    """``hash_body`` reads the body, for its SHA-256: called where no header states that, and only once all
    else that can be looked at without the body is in order. ``now`` in seconds since the epoch. Raises
    Refused."""
    query = request.query
    if "X-Amz-Signature" in query:
        return _verify_link(request, keyring, now)
    if "AWSAccessKeyId" in query and "Signature" in query:
        return _verify_old_link(request, keyring, now)
    words = _authorization(request)
    if not words:
        raise Refused("old" if request.headers.get("authorization", "").startswith("AWS ") else "missing")
    try:
        names = words["SignedHeaders"].split(";")
        signature, credential = words["Signature"], words["Credential"]
        date = request.headers["x-amz-date"]
    except KeyError:
        raise Refused("incomplete") from None
    if abs(_epoch(date) - now) > LEEWAY:
        raise Refused("skewed")
    in_s3 = credential.endswith("/s3/aws4_request")  # whose bodies need not fit into memory
    stated = request.headers.get("x-amz-content-sha256") or (EMPTY_SHA256 if in_s3 else hash_body)
    token = request.headers.get("x-amz-security-token")
    return _verify_v4(request, keyring, now, credential, names, date, signature, stated, token)


def _verify_link(request: Request, keyring: Keyring, now: float) -> Signed:
    query = request.query
    try:
        date, lifetime = query["X-Amz-Date"], int(query["X-Amz-Expires"])
        names, credential = query["X-Amz-SignedHeaders"].split(";"), query["X-Amz-Credential"]
    except (KeyError, ValueError):
        raise Refused("incomplete") from None
    signed_at = _epoch(date)
    if signed_at - now > LEEWAY or not 0 < lifetime <= _LONGEST_LINK:
        raise Refused("skewed")
    if signed_at + lifetime < now:
        raise Refused("expired")
    token, signature = query.get("X-Amz-Security-Token"), query["X-Amz-Signature"]
    payload_hash = UNSIGNED if credential.endswith("/s3/aws4_request") else EMPTY_SHA256
    if "x-amz-content-sha256" in names:
        payload_hash = request.headers.get("x-amz-content-sha256", payload_hash)
    return _verify_v4(request, keyring, now, credential, names, date, signature, payload_hash, token)


def _verify_v4(
    request: Request,
    keyring: Keyring,
    now: float,
    credential: str,
    names: list[str],
    date: str,
    signature: str,
    stated: str | Callable[[], str],
    token: str | None,
) -> Signed:
    words = credential.split("/")
    if len(words) != 5 or words[4] != "aws4_request" or not date.startswith(words[1]) or "host" not in names:
        raise Refused("incomplete")
    access_key, day, region, service, _ = words
    identity = keyring.find(access_key, token, now)
    if identity is None:
        raise Refused("unknown")
    _require_signed(request, names)
    payload_hash = stated if isinstance(stated, str) else stated()
    headers = "".join(f"{name}:{' '.join(request.headers.get(name, '').split())}\n" for name in names)
    pairs = sorted(
        (quote(unquote_plus(name), safe="-_.~"), quote(unquote_plus(value), safe="-_.~"))
        for name, value in request.raw_query
        if name != "X-Amz-Signature"
    )
    query = "&".join(f"{name}={value}" for name, value in pairs)
    key = _signing_key(identity.secret_key, day, region, service)
    # Clients differ in which harmless characters of a path they encode; all these mean the same path.
    encoded = quote(unquote(request.path), safe="/-_.~")
    for path in dict.fromkeys((request.path, encoded, quote(encoded, safe="/-_.~"))):
        canonical = "\n".join((request.method, path, query, headers, ";".join(names), payload_hash))
        digest = hashlib.sha256(canonical.encode("latin-1", "replace")).hexdigest()
        text = f"{ALGORITHM}\n{date}\n{day}/{region}/{service}/aws4_request\n{digest}"
        if _same(_hex(key, text), signature):
            return Signed(access_key, identity, region, service, payload_hash, signature, date)
    raise Refused("mismatch")


def _require_signed(request: Request, names: Collection[str]) -> None:
    """Amazon's own headers say what is to be done (copy this, tag it so): none may come beside a signature.
    Programs behind this one may read ``_`` in a name as ``-``."""
    beside = [
        name
        for name in request.headers
        if name not in names and name not in _BOUND and name.replace("_", "-").startswith("x-amz-")
    ]
    if beside:
        raise Refused("unsigned", beside)


def _verify_old_link(request: Request, keyring: Keyring, now: float) -> Signed:
    query = request.query
    access_key, expires = query["AWSAccessKeyId"], query.get("Expires", "")
    if not re.fullmatch("[0-9]{1,12}", expires):
        raise Refused("incomplete")
    if int(expires) < now:
        raise Refused("expired")
    identity = keyring.find(access_key, query.get("x-amz-security-token"), now)
    if identity is None:
        raise Refused("unknown")

    def said(name: str) -> str:
        return request.headers.get(name) or query.get(name, "")

    names = {name for name in (*request.headers, *query) if name.startswith("x-amz-")}
    amazon = "".join(f"{name}:{said(name)}\n" for name in sorted(names))
    kept = sorted(
        (unquote_plus(name), unquote_plus(value))
        for name, value in request.raw_query
        if unquote_plus(name) in _SUBRESOURCES
    )
    resource = "&".join(f"{name}={value}" if value else name for name, value in kept)
    text = "\n".join(
        (request.method, said("content-md5"), said("content-type"), expires, amazon + request.path)
    )
    text += f"?{resource}" if resource else ""
    digest = hmac.new(identity.secret_key.encode(), text.encode(), hashlib.sha1).digest()
    if not _same(base64.b64encode(digest).decode(), query["Signature"]):
        raise Refused("mismatch")
    _require_signed(request, names)
    return Signed(access_key, identity, "us-east-1", "s3", UNSIGNED, query["Signature"])


class _SignedChunks(io.RawIOBase):
    """Content-Encoding ``aws-chunked``: chunks with their sizes and, where signed, a chain of signatures."""

    def __init__(self, stream: io.BufferedIOBase, signed: Signed, key: bytes | None) -> None:
        self._stream = stream
        self._signed = signed
        self._key = key
        self._scope = f"{signed.date[:8]}/{signed.region}/{signed.service}/aws4_request"
        self._previous = signed.signature
        self._expected = ""
        self._left = 0
        self._digest = hashlib.sha256()
        self._ended = False
        self.trailers: dict[str, str] = {}

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        if self._ended:
            return 0
        if self._left == 0:
            size, _, extension = self._stream.readline(512).partition(b";")
            self._left = chunk_size(size)
            self._expected = extension.strip().removeprefix(b"chunk-signature=").decode("ascii", "replace")
            self._digest = hashlib.sha256()
            if self._left == 0:
                self._ended = True
                self._check_chunk()
                self._read_trailers()
                return 0
        view = memoryview(buffer)[: self._left]
        size_read = self._stream.readinto1(view)
        if size_read == 0:
            raise Refused("mismatch")
        if self._key is not None:
            self._digest.update(view[:size_read])
        self._left -= size_read
        if self._left == 0:
            self._stream.read(2)
            self._check_chunk()
        return size_read

    def _check_chunk(self) -> None:
        if self._key is None:
            return
        text = f"{EMPTY_SHA256}\n{self._digest.hexdigest()}"
        self._check("AWS4-HMAC-SHA256-PAYLOAD", text, self._expected)

    def _read_trailers(self) -> None:
        lines = []
        signature = ""
        while line := self._stream.readline(4096).strip():
            name, _, value = line.decode("latin-1").partition(":")
            if name.lower() == "x-amz-trailer-signature":
                signature = value.strip()
            else:
                self.trailers[name.lower()] = value.strip()
                lines.append(f"{name.lower()}:{value.strip()}\n")
        if self._key is not None and self._signed.payload_hash.endswith("-TRAILER"):
            digest = hashlib.sha256("".join(lines).encode("latin-1")).hexdigest()
            self._check("AWS4-HMAC-SHA256-TRAILER", digest, signature)

    def _check(self, algorithm: str, text: str, signature: str) -> None:
        assert self._key is not None
        text = f"{algorithm}\n{self._signed.date}\n{self._scope}\n{self._previous}\n{text}"
        self._previous = _hex(self._key, text)
        if not _same(self._previous, signature):
            raise Refused("mismatch")


def _authorization(request: Request) -> dict[str, str]:
    """The words of an Authorization header; empty without one that is of this kind."""
    algorithm, _, rest = request.headers.get("authorization", "").partition(" ")
    if algorithm != ALGORITHM:
        return {}
    pairs = (word.strip().partition("=") for word in rest.split(","))
    return {name: value for name, _, value in pairs}


@lru_cache(maxsize=64)
def _signing_key(secret: str, day: str, region: str, service: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for word in (day, region, service, "aws4_request"):
        key = hmac.new(key, word.encode(), hashlib.sha256).digest()
    return key


def _hex(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def _same(ours: str, theirs: str) -> bool:
    """Takes as long wherever they differ."""
    return hmac.compare_digest(ours.encode(), theirs.encode())


def _epoch(date: str) -> float:
    if not re.fullmatch("[0-9]{8}T[0-9]{6}Z", date):
        raise Refused("incomplete")
    try:
        return calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))
    except ValueError:
        raise Refused("incomplete") from None
