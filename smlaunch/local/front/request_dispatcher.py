"""Verify a request's signature and pass the request to the service that it was signed for.

    request ─► sigv4.verify ─────────► services[scope].serve ─► response
                    │                            │
                    └── SignatureRejected        └── ApiError ─► error response of the protocol

A service is an object with the two methods of ``Service``: ``JsonService`` (SageMaker, Logs),
``QueryService`` (STS, IAM), ``CloudWatchService``, ``S3Service``. ``fallback`` handles all other services.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from smlaunch.errors import disk_full_message, is_disk_full
from smlaunch.local.front import sigv4
from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.call_log import CallLog, error_code
from smlaunch.local.front.credentials import Keyring
from smlaunch.local.front.http_messages import BufferedPayload, Payload, Request, Response
from smlaunch.local.front.request_context import ACCOUNT, RequestContext, context_var
from smlaunch.local.front.unverified_body import MAX_BODY_BYTES, UnverifiedBody
from smlaunch.local.services.cbor_errors import CborErrors, is_cbor_request
from smlaunch.local.services.json_service import JsonErrors
from smlaunch.local.services.query_service import QueryErrors
from smlaunch.local.services.s3.responses import S3Errors
from smlaunch.local.state_errors import DISK_FULL_CODE, STATE_DAMAGED_CODE, StateDamaged

log = logging.getLogger(__name__)


class Service(Protocol):
    def serve(self, request: Request, payload: Payload) -> Response:
        """Handle a request whose signature is verified. Raises ApiError, and SignatureRejected for a body
        that does not match its signature."""

    def error_response(self, error: ApiError, request_id: str) -> Response:
        """Encode an error as the service's protocol does."""


class ErrorFormatter(Protocol):
    """Encodes errors of one protocol. ``error_format``: the column of ``_AUTH_ERROR_BY_PROBLEM``,
    json, query or s3."""

    error_format: str

    def error_response(self, error: ApiError, request_id: str) -> Response: ...


class RequestDispatcher:
    """Callable that turns every request into a response.

    ``services``: by the service name that clients sign for; ``fallback`` handles all other names.
    ``call_log``: records every answered call. ``state_dir``: named in the message for a full disk.
    """

    def __init__(
        self,
        keyring: Keyring,
        services: Mapping[str, Service],
        fallback: Service | None = None,
        clock: Callable[[], float] = time.time,
        call_log: CallLog | None = None,
        state_dir: Path = Path(),
    ) -> None:
        self._keyring = keyring
        self._services = dict(services)
        self._fallback = fallback
        self._clock = clock
        self._call_log = call_log
        self._state_dir = state_dir

    def __call__(self, request: Request) -> Response:
        """Return the endpoint's response to an HTTP request: that of the AWS service that it was signed for,
        or an error in that service's protocol. Raises ConnectionError and TimeoutError when the client has
        disconnected."""
        request_id = str(uuid.uuid4())
        # As the request's headers claim; the signature is verified later.
        region_and_service = sigv4.claimed_region_and_service(request)
        claimed_service = region_and_service[1] if region_and_service else ""
        error_formatter = _choose_error_formatter(request, claimed_service)
        try:
            response = self._verify_and_serve(request, request_id)
        except sigv4.SignatureRejected as rejection:
            response = error_formatter.error_response(_auth_error(rejection, error_formatter), request_id)
        except ApiError as error:
            response = error_formatter.error_response(error, request_id)
        except StateDamaged as error:
            # A file in the endpoint's state directory is lost or damaged; the message says what to do.
            damage_error = ApiError(STATE_DAMAGED_CODE, str(error), 500)
            response = error_formatter.error_response(damage_error, request_id)
        except (ConnectionError, TimeoutError):
            raise  # the client has disconnected
        except Exception as error:
            if is_disk_full(error):
                message = disk_full_message(self._state_dir, error)
                # 507 Insufficient Storage: AWS clients do not retry it, unlike other errors of the server.
                return error_formatter.error_response(ApiError(DISK_FULL_CODE, message, 507), request_id)
            log.exception("request %s: %s %s", request_id, request.method, request.path)
            message = f"The local endpoint failed; its log has the cause under request {request_id}"
            response = error_formatter.error_response(ApiError("InternalFailure", message, 500), request_id)
        response.headers.setdefault("x-amzn-RequestId", request_id)
        return response

    def _verify_and_serve(self, request: Request, request_id: str) -> Response:
        """Verify a request's signature, and let the service that it was signed for respond; the call log gets
        a line of it. Raises SignatureRejected and ApiError."""
        # A body with a stated hash is checked while it streams. Without one, the whole body has to be read
        # before the signature can be checked.
        with UnverifiedBody(request) as unverified_body:
            signature = sigv4.verify_signature(
                request, self._keyring, unverified_body.read_and_hash, self._clock()
            )
        request.on_verified()  # ends the time limit for the signature
        if unverified_body.content is not None:  # it was read for its hash
            payload: Payload = BufferedPayload(unverified_body.content)
        else:
            payload = signature.verified_payload(request)
        context = RequestContext(
            signature.region, ACCOUNT, signature.identity.arn, signature.access_key, request_id
        )
        if self._call_log is None:
            return self._serve_in_context(request, payload, signature.service, context)
        return self._serve_and_log(self._call_log, request, payload, signature.service, context)

    def _serve_and_log(
        self,
        call_log: CallLog,
        request: Request,
        payload: Payload,
        service_name: str,
        context: RequestContext,
    ) -> Response:
        """Let a service respond to a verified request, and append the call with its result to the call
        log."""
        logged_body = b""
        if service_name != "s3":  # an object can be too large to be held in memory
            logged_body = payload.read_all(MAX_BODY_BYTES)
            payload = BufferedPayload(logged_body)
        http_status, logged_error_code = 500, "InternalFailure"  # for any exception but ApiError
        try:
            response = self._serve_in_context(request, payload, service_name, context)
            http_status, logged_error_code = response.status, error_code(response)
            return response
        except ApiError as error:
            http_status, logged_error_code = error.status, error.code
            raise
        finally:
            call_log.append_call(request, service_name, logged_body, context, http_status, logged_error_code)

    def _serve_in_context(
        self, request: Request, payload: Payload, service_name: str, context: RequestContext
    ) -> Response:
        """Let a service respond to a verified request; it finds the caller in ``context_var``."""
        context_token = context_var.set(context)
        try:
            return self._service_named(service_name).serve(request, payload)
        finally:
            context_var.reset(context_token)

    def _service_named(self, name: str) -> Service:
        service = self._services.get(name, self._fallback)
        if service is None:
            service_names = ", ".join(sorted(self._services))
            message = f"smlaunch's local endpoint has no service {name!r}; it has: {service_names}"
            raise ApiError("UnknownOperationException", message, 404)
        return service


def _choose_error_formatter(request: Request, service_name: str) -> ErrorFormatter:
    """Choose the protocol of an error response by a request's headers, which are not verified yet.
    ``service_name``: the one that the client claims to have signed for; empty without a signature."""
    if "x-amz-target" in request.headers:  # AWS's JSON protocol names the operation in it
        return JsonErrors()
    if is_cbor_request(request):
        return CborErrors()
    if service_name == "s3":
        return S3Errors()
    is_form = "application/x-www-form-urlencoded" in request.headers.get("content-type", "")
    # AWS's Query protocol names the operation in the parameter Action of a form or of the URL.
    if is_form or "Action" in request.query:
        return QueryErrors()
    # An unsigned S3 request has none of these signs, so an unsigned request without them is taken for S3.
    return S3Errors() if service_name == "" else JsonErrors()


_UNSUPPORTED_ALGORITHM = (
    "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
)
_SIGNATURE_MISMATCH = "The request signature we calculated does not match the signature you provided."
_UNSIGNED_HEADERS = "There were headers present in the request which were not signed"
_AUTH_ERROR_BY_PROBLEM: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "missing": {
        "json": ("MissingAuthenticationTokenException", "Missing Authentication Token"),
        "query": ("MissingAuthenticationToken", "Request is missing Authentication Token"),
        "s3": ("AccessDenied", "Access Denied"),
    },
    "old": dict.fromkeys(("json", "query", "s3"), ("InvalidRequest", _UNSUPPORTED_ALGORITHM)),
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
        "json": ("InvalidSignatureException", _SIGNATURE_MISMATCH),
        "query": ("SignatureDoesNotMatch", _SIGNATURE_MISMATCH),
        "s3": ("SignatureDoesNotMatch", _SIGNATURE_MISMATCH),
    },
    "unsigned": {
        "json": ("InvalidSignatureException", _UNSIGNED_HEADERS),
        "query": ("SignatureDoesNotMatch", _UNSIGNED_HEADERS),
        "s3": ("AccessDenied", _UNSIGNED_HEADERS),
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


def _auth_error(rejection: sigv4.SignatureRejected, error_formatter: ErrorFormatter) -> ApiError:
    """Return AWS's error code and message for a rejected signature, in the client's protocol."""
    code, message = _AUTH_ERROR_BY_PROBLEM[rejection.kind][error_formatter.error_format]
    unsigned_names = ", ".join(rejection.unsigned_headers)
    if not unsigned_names:
        return ApiError(code, message, 403)
    if error_formatter.error_format == "s3":
        return ApiError(code, message, 403, HeadersNotSigned=unsigned_names)
    return ApiError(code, f"{message}: {unsigned_names}", 403)
