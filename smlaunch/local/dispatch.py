"""From a request to the service that answers it: who signed it, and for which service and region.

    request ─► sigv4.verify ─► services[scope] .serve ─► response
                    │                │
                    └── Refused      └── ApiError ─► that protocol's own form of an error

A service is anything with the two methods of ``Service``: ``JsonService`` (SageMaker, Logs), ``QueryService``
(STS, IAM), ``CloudWatchService`` and ``S3Service`` are here; another program can be put behind the same door
as ``fallback``.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from smlaunch.errors import disk_full, is_disk_full
from smlaunch.local import sigv4
from smlaunch.local.call_log import CallLog, error_code
from smlaunch.local.caller import ACCOUNT, Caller, caller
from smlaunch.local.credentials import Keyring
from smlaunch.local.damage import DAMAGED, DISK_IS_FULL, StateDamaged
from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Held, Payload, Request, Response
from smlaunch.local.services.cbor_errors import CborErrors, is_cbor
from smlaunch.local.services.json_service import JsonErrors
from smlaunch.local.services.query_service import QueryErrors
from smlaunch.local.services.s3.answers import S3Errors
from smlaunch.local.unverified import BODY_LIMIT, UnverifiedBody

log = logging.getLogger(__name__)


class Service(Protocol):
    def serve(self, request: Request, payload: Payload) -> Response:
        """Answers a request whose signature is good. Raises ApiError, or Refused for a tampered body."""

    def error(self, error: ApiError, request_id: str) -> Response:
        """The protocol's form of an error."""


class ErrorForm(Protocol):
    protocol: str

    def error(self, error: ApiError, request_id: str) -> Response: ...


class Dispatch:
    """``services`` by the name that clients sign for; ``fallback`` answers for all others. ``calls`` records
    what was answered. ``home``: where it is all kept. Call it with a request; it always gives a response."""

    def __init__(
        self,
        keyring: Keyring,
        services: Mapping[str, Service],
        fallback: Service | None = None,
        clock: Callable[[], float] = time.time,
        calls: CallLog | None = None,
        home: Path = Path(),
    ) -> None:
        self._keyring = keyring
        self._services = dict(services)
        self._fallback = fallback
        self._clock = clock
        self._calls = calls
        self._home = home

    def __call__(self, request: Request) -> Response:
        request_id = str(uuid.uuid4())
        scope = sigv4.scope(request)
        form = _error_form(request, scope[1] if scope else "")
        try:
            response = self._serve(request, request_id)
        except sigv4.Refused as refusal:
            response = form.error(_refusal(refusal, form), request_id)
        except ApiError as error:
            response = form.error(error, request_id)
        except StateDamaged as error:
            response = form.error(ApiError(DAMAGED, str(error), 500), request_id)
        except (ConnectionError, TimeoutError):
            raise  # the client is gone: nobody to tell
        except Exception as error:
            if is_disk_full(error):
                text = disk_full(self._home, error)
                return form.error(ApiError(DISK_IS_FULL, text, 507), request_id)
            log.exception("request %s: %s %s", request_id, request.method, request.path)
            text = f"The local endpoint failed; its log has the cause under request {request_id}"
            response = form.error(ApiError("InternalFailure", text, 500), request_id)
        response.headers.setdefault("x-amzn-RequestId", request_id)
        return response

    def _serve(self, request: Request, request_id: str) -> Response:
        # A body that states its hash is checked while it streams. Others sign no header with it: to know what
        # was signed, the body has to be read first.
        with UnverifiedBody(request) as body:
            signed = sigv4.verify(request, self._keyring, body.hash, self._clock())
        request.accept()
        payload = Held(body.content) if body.content is not None else signed.payload(request)
        recorded = b""
        if self._calls is not None and signed.service != "s3":
            recorded = payload.read(BODY_LIMIT)
            payload = Held(recorded)
        who = Caller(signed.region, ACCOUNT, signed.identity.arn, signed.access_key, request_id)
        token = caller.set(who)
        status, code = 500, "InternalFailure"
        try:
            response = self._service(signed.service).serve(request, payload)
            status, code = response.status, error_code(response)
            return response
        except ApiError as error:
            status, code = error.status, error.code
            raise
        finally:
            caller.reset(token)
            if self._calls is not None:
                self._calls.add(request, signed.service, recorded, who, status, code)

    def _service(self, name: str) -> Service:
        service = self._services.get(name, self._fallback)
        if service is None:
            known = ", ".join(sorted(self._services))
            text = f"smlaunch's local endpoint has no service {name!r}; it has: {known}"
            raise ApiError("UnknownOperationException", text, 404)
        return service


def _error_form(request: Request, service: str) -> ErrorForm:
    """Which protocol's errors the client can read, from what it sent, before anything of it is believed."""
    if "x-amz-target" in request.headers:
        return JsonErrors()
    if is_cbor(request):
        return CborErrors()
    if service == "s3":
        return S3Errors()
    if (
        "application/x-www-form-urlencoded" in request.headers.get("content-type", "")
        or "Action" in request.query
    ):
        return QueryErrors()
    return S3Errors() if service == "" else JsonErrors()


_NOT_SUPPORTED = (
    "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
)
_DIFFERS = "The request signature we calculated does not match the signature you provided."
_NOT_SIGNED = "There were headers present in the request which were not signed"
_REFUSALS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "missing": {
        "json": ("MissingAuthenticationTokenException", "Missing Authentication Token"),
        "query": ("MissingAuthenticationToken", "Request is missing Authentication Token"),
        "s3": ("AccessDenied", "Access Denied"),
    },
    "old": dict.fromkeys(("json", "query", "s3"), ("InvalidRequest", _NOT_SUPPORTED)),
    "incomplete": {
        "json": ("IncompleteSignatureException", "The request signature is incomplete or malformed."),
        "query": ("IncompleteSignature", "The request signature is incomplete or malformed."),
        "s3": ("AuthorizationHeaderMalformed", "The authorization header is malformed."),
    },
    "unknown": {
        "json": ("UnrecognizedClientException", "The security token included in the request is invalid."),
        "query": ("InvalidClientTokenId", "The security token included in the request is invalid."),
        "s3": ("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
    },
    "mismatch": {
        "json": ("InvalidSignatureException", _DIFFERS),
        "query": ("SignatureDoesNotMatch", _DIFFERS),
        "s3": ("SignatureDoesNotMatch", _DIFFERS),
    },
    "unsigned": {
        "json": ("InvalidSignatureException", _NOT_SIGNED),
        "query": ("SignatureDoesNotMatch", _NOT_SIGNED),
        "s3": ("AccessDenied", _NOT_SIGNED),
    },
    "skewed": {
        "json": ("InvalidSignatureException", "Signature expired or not yet current: the clocks differ."),
        "query": ("RequestExpired", "Request has expired."),
        "s3": (
            "RequestTimeTooSkewed",
            "The difference between the request time and the current time is too large.",
        ),
    },
    "expired": {
        "json": ("ExpiredTokenException", "The link has expired."),
        "query": ("RequestExpired", "Request has expired."),
        "s3": ("AccessDenied", "Request has expired"),
    },
}


def _refusal(refusal: sigv4.Refused, form: ErrorForm) -> ApiError:
    code, message = _REFUSALS[refusal.kind][form.protocol]
    names = ", ".join(refusal.headers)
    if not names:
        return ApiError(code, message, 403)
    if form.protocol == "s3":
        return ApiError(code, message, 403, HeadersNotSigned=names)
    return ApiError(code, f"{message}: {names}", 403)
