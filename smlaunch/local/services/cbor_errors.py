"""rpc-v2-cbor (Smithy's specification): detection of its requests, and its error responses."""

from __future__ import annotations

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Request, Response
from smlaunch.local.services import cbor

CBOR_HEADERS = {"Content-Type": "application/cbor", "smithy-protocol": "rpc-v2-cbor"}


def is_cbor_request(request: Request) -> bool:
    return request.headers.get("smithy-protocol") == "rpc-v2-cbor"


class CborErrors:
    error_format = "json"
    """Error codes are those of the JSON protocol."""

    def error_response(self, error: ApiError, request_id: str) -> Response:
        fault = "Sender" if error.status < 500 else "Receiver"
        # Clients of a service that had the query protocol before read the code from this header.
        headers = {**CBOR_HEADERS, "x-amzn-query-error": f"{error.code};{fault}"}
        return Response(error.status, headers, cbor.encode({"__type": error.code, "message": error.message}))
