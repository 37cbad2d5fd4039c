"""The endpoint's side of moto: a service that forwards requests whose signature is good to moto's process.

The process is started by the first request that nobody else answers, and ends with the endpoint, also when
that is killed: it lives as long as the pipe of its orders is open.
"""

from __future__ import annotations

import contextlib
import hmac
import http.client
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from smlaunch.local import lifelines, sigv4
from smlaunch.local.caller import ACCOUNT
from smlaunch.local.credentials import Credentials
from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Payload, Request, Response
from smlaunch.local.services.json_service import JsonErrors
from smlaunch.local.settings import Settings

PACKAGES = ("moto", "flask", "flask_cors", "antlr4", "jsonpath_ng")
"""What the extra brings, by the names that are imported."""
TOKEN = "x-smlaunch-door"  # noqa: S105  a header's name
REFUSAL = "x-smlaunch-refusal"
"""On an answer of the process: the body is {"code", "message"} of an error, for the endpoint to put into the
protocol's form."""

_BODY_LIMIT = 64 << 20
_NOT_FORWARDED = frozenset(
    ("host", "connection", "content-length", "transfer-encoding", "expect", "user-agent")
)
_NOT_ANSWERED = frozenset(("connection", "transfer-encoding", "content-length", "date", "server", "vary"))
_ANSWER_SECONDS = 600.0
"""Longer than any call of moto's takes; GetActivityTask is a long poll of a minute."""


class MotoFallback(JsonErrors):
    """``url``: where the endpoint itself is reached, known once it serves. ``log``: its prints."""

    def __init__(
        self, url: Callable[[], str], credentials: Credentials, settings: Settings, log: Path
    ) -> None:
        self._url = url
        self._credentials = credentials
        self._settings = settings
        self._log = log
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._orders: int | None = None
        self._port = 0
        self._closed = False

    def serve(self, request: Request, payload: Payload) -> Response:
        """Raises ApiError where moto, or that operation of it, is missing."""
        service = (sigv4.scope(request) or ("", ""))[1]
        body = payload.read(_BODY_LIMIT)
        connection = self._connect(service)
        headers = {name: value for name, value in request.headers.items() if name not in _NOT_FORWARDED}
        headers.update({TOKEN: self._token, "x-moto-account-id": ACCOUNT, "user-agent": "smlaunch"})
        try:
            connection.request(request.method, request.target, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        except OSError as error:
            text = f"moto's process does not answer ({error}); its log is {self._log}"
            raise ApiError("ServiceUnavailable", text, 503) from None
        finally:
            connection.close()
        if answer.headers.get(REFUSAL):
            refusal = json.loads(content)
            raise ApiError(refusal["code"], refusal["message"], answer.status)
        if answer.status == 404 and answer.headers.get_content_type() == "text/html":
            text = f"moto, which answers for {service} here, does not have {request.method} {request.path}"
            raise ApiError("UnknownOperationException", text, 404)
        kept = {
            name: value
            for name, value in answer.headers.items()
            if name.lower() not in _NOT_ANSWERED and not name.lower().startswith("access-control-")
        }
        return Response(answer.status, kept, content)

    def close(self) -> None:
        """Ends the process and all executions in it. Their jobs are the endpoint's to stop."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._end(self._process)

    def _connect(self, service: str) -> http.client.HTTPConnection:
        port = 0
        for _ in range(2):  # again with a new process, when this one has just died
            port = self._start(service, port)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_ANSWER_SECONDS)
            with contextlib.suppress(ConnectionError):
                connection.connect()
                return connection
        text = f"moto's process cannot be reached; its log is {self._log}"
        raise ApiError("ServiceUnavailable", text, 503)

    def _start(self, service: str, unreachable: int) -> int:
        """The port of the process, which runs when this returns, and is not at the port ``unreachable``."""
        with self._lock:
            if self._closed:
                raise ApiError("ServiceUnavailable", "The endpoint is closing", 503)
            if self._process is not None and self._process.poll() is None and self._port != unreachable:
                return self._port
            if self._process is not None:
                self._end(self._process)
            missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
            if missing:
                raise ApiError(
                    "UnknownOperationException",
                    f"smlaunch's local endpoint leaves the service {service!r} to moto, and {missing[0]} is "
                    f"not installed where the endpoint runs ({sys.executable}): "
                    "pip install 'smlaunch[moto]', then start the endpoint again",
                    404,
                )
            self._port = self._begin()
            return self._port

    def _begin(self) -> int:
        orders = {
            "url": self._url(),
            "access_key": self._credentials.access_key,
            "secret_key": self._credentials.secret_key,
            "token": self._token,
            "wait_factor": self._settings.step_functions_wait_factor,
            "error_names": dict(self._settings.step_functions_error_names),
        }
        read_end, write_end = os.pipe()
        descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "smlaunch.local.moto.process"],
                stdin=read_end,
                stdout=subprocess.PIPE,
                stderr=descriptor,
                env=_environment(os.environ),
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
            os.close(descriptor)
        self._orders = lifelines.hold(write_end)
        os.write(write_end, json.dumps(orders).encode() + b"\n")
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            told = stream.read()
        if not told.strip().isdigit():
            self._end(self._process)
            text = f"moto's process did not start; its log is {self._log}"
            raise ApiError("ServiceUnavailable", text, 503)
        return int(told)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if self._orders is not None:
            lifelines.close(self._orders)
            self._orders = None
        process.kill()  # it has nothing to save
        process.wait()
        self._process = None


def is_token(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """The person's real account is none of moto's business, and this machine needs no proxy."""
    kept = {name: value for name, value in own.items() if not name.startswith(("AWS_", "MOTO_"))}
    here = "127.0.0.1,localhost"
    return {
        **kept,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "MOTO_ACCOUNT_ID": ACCOUNT,
        "NO_PROXY": here,
        "no_proxy": here,
    }
