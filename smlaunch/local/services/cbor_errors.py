"""rpc-v2-cbor: how its requests are known and what its errors look like (Smithy's specification)."""

from __future__ import annotations

from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Request, Response
from smlaunch.local.services import cbor

HEADERS = {"Content-Type": "application/cbor", "smithy-protocol": "rpc-v2-cbor"}


def is_cbor(request: Request) -> bool:
    return request.headers.get("smithy-protocol") == "rpc-v2-cbor"


class CborErrors:
    protocol = "json"
    """Its errors have the JSON protocol's codes."""

    def error(self, error: ApiError, request_id: str) -> Response:
        fault = "Sender" if error.status < 500 else "Receiver"
        # Clients of a service that once spoke the query protocol go by this older code.
        headers = {**HEADERS, "x-amzn-query-error": f"{error.code};{fault}"}
        return Response(error.status, headers, cbor.encode({"__type": error.code, "message": error.message}))
