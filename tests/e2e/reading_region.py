"""A region behind a socket that answers reading requests only, and records every request."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

_IDENTITY = """<GetCallerIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<GetCallerIdentityResult><Arn>arn:aws:iam::123456789012:user/ada</Arn><UserId>A</UserId>
<Account>123456789012</Account></GetCallerIdentityResult></GetCallerIdentityResponse>"""

_NO_BUCKET = "<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message></Error>"

READING = frozenset({"GetCallerIdentity", "ListObjectsV2", "ListServiceQuotas"})


class Region:
    """``operations``: the operations requested so far; one that is not in READING gets an error."""

    def __init__(self, objects: Mapping[str, int | None], quotas: Mapping[str, float]) -> None:
        self.objects = objects
        self.quotas = quotas
        self.operations: list[str] = []

    def answer(self, method: str, path: str, target: str, body: str) -> tuple[str, int, str]:
        """Returns the operation, and status and text of its response."""
        parts = urlsplit(path)
        query = parse_qs(parts.query, keep_blank_values=True)
        if target.endswith(".ListServiceQuotas"):
            rows = [{"QuotaName": name, "Value": value} for name, value in self.quotas.items()]
            return "ListServiceQuotas", 200, json.dumps({"Quotas": rows})
        if "Action=GetCallerIdentity" in body:
            return "GetCallerIdentity", 200, _IDENTITY
        if method == "GET" and "list-type" in query:
            return "ListObjectsV2", *self._listing(f"s3://{parts.path.strip('/')}/{query['prefix'][0]}")
        return f"{method} {path} {target}".strip(), 403, "<Error><Code>AccessDenied</Code></Error>"

    def _listing(self, listed_prefix: str) -> tuple[int, str]:
        count = self.objects.get(listed_prefix, 100)
        if count is None:
            return 404, _NO_BUCKET
        prefix = listed_prefix.split("/", 3)[3]
        rows = "".join(
            f"<Contents><Key>{prefix}{index:04d}</Key><Size>1000</Size></Contents>" for index in range(count)
        )
        return 200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"


@contextmanager
def serve_region(region: Region) -> Iterator[str]:
    """Yields the region's address."""

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length).decode("utf-8", "replace")
            target = self.headers.get("X-Amz-Target", "")
            operation, status, text = region.answer(self.command, self.path, target, body)
            region.operations.append(operation)
            self.send_response(status)
            content = text.encode()
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _any  # noqa: N815

        def log_message(self, *_: Any) -> None:
            return None

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
