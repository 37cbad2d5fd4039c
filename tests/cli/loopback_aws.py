"""A server on loopback that answers as STS, IAM and single sign-on do, and refuses all else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

ACCOUNT = "123456789012"
ROLES = {"train": f"arn:aws:iam::{ACCOUNT}:role/team/train"}
GOOD_KEY, EXPIRED_KEY, SIGN_ON_KEY, ROLE_KEY = "AKIAGOOD", "ASIAEXPIRED", "ASIASIGNON", "ASIAROLE"

_ARN_BY_KEY = {
    GOOD_KEY: f"arn:aws:iam::{ACCOUNT}:user/ada",
    SIGN_ON_KEY: f"arn:aws:sts::{ACCOUNT}:assumed-role/AWSReservedSSO_dev_0123/ada",
    ROLE_KEY: f"arn:aws:sts::{ACCOUNT}:assumed-role/train/ada",
}


class _Handler(BaseHTTPRequestHandler):
    operations: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        parameters = {name: values[0] for name, values in parse_qs(body).items()}
        key = self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        operation = parameters.get("Action") or self.headers.get("X-Amz-Target", "?")
        self.operations.append(operation)
        if key == EXPIRED_KEY:
            self._refuse("ExpiredToken", "The security token included in the request is expired")
        elif key not in _ARN_BY_KEY:
            self._refuse("InvalidClientTokenId", "The security token included in the request is invalid.")
        elif operation == "GetCallerIdentity":
            self._answer_query(
                operation, f"<Arn>{_ARN_BY_KEY[key]}</Arn><UserId>U</UserId><Account>{ACCOUNT}</Account>"
            )
        elif operation == "GetRole" and parameters["RoleName"] in ROLES:
            role = (
                f"<Role><Path>/team/</Path><RoleName>train</RoleName><RoleId>R</RoleId><Arn>{ROLES['train']}"
            )
            self._answer_query(operation, f"{role}</Arn><CreateDate>2026-01-01T00:00:00Z</CreateDate></Role>")
        elif operation == "GetRole":
            self._refuse("NoSuchEntity", "The role cannot be found.", status=404)
        elif operation == "AssumeRole" and parameters["RoleArn"].endswith(":role/train"):
            keys = f"<AccessKeyId>{ROLE_KEY}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
            session = "<SessionToken>t</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>"
            self._answer_query(operation, f"<Credentials>{keys}{session}</Credentials>")
        else:
            self._refuse("AccessDenied", f"User: ada is not authorized to perform: sts:{operation}")

    def do_GET(self) -> None:
        """GetRoleCredentials of single sign-on."""
        self.operations.append(urlsplit(self.path).path)
        token = self.headers.get("x-amz-sso_bearer_token")
        if not self.path.startswith("/federation/credentials"):
            self._send(400, "text/plain", b"unexpected")
        elif token == "good":
            expiration = int((time.time() + 3600) * 1000)
            keys = {"accessKeyId": SIGN_ON_KEY, "secretAccessKey": "s", "sessionToken": "t"}
            content = json.dumps({"roleCredentials": {**keys, "expiration": expiration}}).encode()
            self._send(200, "application/json", content)
        else:
            kind = "ForbiddenException" if token == "unassigned" else "UnauthorizedException"
            status = 403 if kind == "ForbiddenException" else 401
            content = json.dumps({"message": "No access" if status == 403 else "Session token not found"})
            self._send(status, "application/json", content.encode(), {"x-amzn-ErrorType": kind})

    def _answer_query(self, operation: str, result: str) -> None:
        text = f"<{operation}Response><{operation}Result>{result}</{operation}Result></{operation}Response>"
        self._send(200, "text/xml", text.encode())

    def _refuse(self, code: str, message: str, status: int = 403) -> None:
        error = f"<Type>Sender</Type><Code>{code}</Code><Message>{message}</Message>"
        self._send(status, "text/xml", f"<ErrorResponse><Error>{error}</Error></ErrorResponse>".encode())

    def _send(self, status: int, kind: str, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve() -> Iterator[tuple[str, list[str]]]:
    """Yield the server's address, and the operations that it was asked for, which grow."""
    _Handler.operations.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", _Handler.operations
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
