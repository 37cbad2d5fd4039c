"""The endpoint's side of moto: a service that forwards verified requests to moto's process.

The first request for a service that the endpoint does not have starts the process. It exits with the
endpoint, also when that is killed: it runs as long as its standard input, a pipe, is open.
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

from smlaunch.local import liveness_fds
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.front import sigv4
from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.credentials import Credentials
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.front.request_context import ACCOUNT
from smlaunch.local.services.json_service import JsonErrors

PACKAGES = ("moto", "flask", "flask_cors", "antlr4", "jsonpath_ng")
"""Packages of the extra, by their import names."""
TOKEN_HEADER = "x-smlaunch-token"  # noqa: S105  a header's name
ERROR_HEADER = "x-smlaunch-error"
"""In a response of the process: the body is {"code", "message"} of an error, which the endpoint encodes for
the client's protocol."""

_MAX_BODY_BYTES = 64 << 20
_REQUEST_HEADERS_NOT_FORWARDED = frozenset(
    ("host", "connection", "content-length", "transfer-encoding", "expect", "user-agent")
)
_RESPONSE_HEADERS_NOT_FORWARDED = frozenset(
    ("connection", "transfer-encoding", "content-length", "date", "server", "vary")
)
_RESPONSE_TIMEOUT_SECONDS = 600.0
"""Longer than any of moto's calls; GetActivityTask is a long poll of a minute."""


class MotoForwarder(JsonErrors):
    """A service that forwards requests to moto's process, and starts that process when it is needed.

    ``get_endpoint_url``: returns the endpoint's URL, which is known once it serves. ``log_path``: file for
    moto's output.
    """

    def __init__(
        self,
        get_endpoint_url: Callable[[], str],
        credentials: Credentials,
        settings: Settings,
        log_path: Path,
    ) -> None:
        self._get_endpoint_url = get_endpoint_url
        self._credentials = credentials
        self._settings = settings
        self._log_path = log_path
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stdin_fd: int | None = None
        self._port = 0
        self._is_closed = False

    def serve(self, request: Request, payload: Payload) -> Response:
        """Forward a request to moto's process and return its response. Moto simulates the services that the
        local endpoint does not have; its process accepts requests with this endpoint's token only. Raises
        ApiError if moto is not installed, does not respond, does not have the operation, or answers with an
        error (ERROR_HEADER)."""
        # By the request's signature, which was verified before.
        _, service = sigv4.claimed_region_and_service(request) or ("", "")
        body = payload.read_all(_MAX_BODY_BYTES)
        connection = self._connect_to_process(service)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name not in _REQUEST_HEADERS_NOT_FORWARDED
        }
        headers.update({TOKEN_HEADER: self._token, "x-moto-account-id": ACCOUNT, "user-agent": "smlaunch"})
        try:
            connection.request(request.method, request.target, body, headers)
            response = connection.getresponse()
            response_body = response.read()
        except OSError as error:
            message = f"moto's process does not respond ({error}); its log is {self._log_path}"
            raise ApiError("ServiceUnavailable", message, 503) from None
        finally:
            connection.close()
        if response.headers.get(ERROR_HEADER):
            error_document = json.loads(response_body)
            raise ApiError(error_document["code"], error_document["message"], response.status)
        # The web server's own page: no operation of moto has matched the request.
        if response.status == 404 and response.headers.get_content_type() == "text/html":
            message = f"moto, which handles {service} here, does not have {request.method} {request.path}"
            raise ApiError("UnknownOperationException", message, 404)
        # moto's server adds Access-Control headers, which would let any web page call the endpoint.
        response_headers = {
            name: value
            for name, value in response.headers.items()
            if name.lower() not in _RESPONSE_HEADERS_NOT_FORWARDED
            and not name.lower().startswith("access-control-")
        }
        return Response(response.status, response_headers, response_body)

    def close(self) -> None:
        """Kill the process and all executions in it. The local endpoint stops their jobs."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._kill_process(self._process)

    def _connect_to_process(self, service: str) -> http.client.HTTPConnection:
        port = 0
        for _ in range(2):  # a second time if the process has just died
            port = self._ensure_process(service, port)
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_RESPONSE_TIMEOUT_SECONDS)
            with contextlib.suppress(ConnectionError):
                connection.connect()
                return connection
        message = f"moto's process cannot be reached; its log is {self._log_path}"
        raise ApiError("ServiceUnavailable", message, 503)

    def _ensure_process(self, service: str, unreachable_port: int) -> int:
        """Return the port of moto's process, after starting it if it is not running. A process at
        ``unreachable_port`` (0: none) is replaced. ``service`` is the one that the client has asked for.
        Raises ApiError if moto is not installed or the local endpoint is closing."""
        with self._lock:
            if self._is_closed:
                raise ApiError("ServiceUnavailable", "The endpoint is closing", 503)
            is_running = self._process is not None and self._process.poll() is None
            if is_running and self._port != unreachable_port:
                return self._port
            if self._process is not None:
                self._kill_process(self._process)
            # PACKAGES: moto and what its server needs, by their import names.
            missing_packages = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
            if missing_packages:
                raise ApiError(
                    "UnknownOperationException",
                    f"smlaunch's local endpoint passes the service {service!r} on to moto, and "
                    f"{missing_packages[0]} is not installed where the endpoint runs ({sys.executable}): "
                    "pip install '.[moto]' in a checkout of smlaunch, then start the endpoint again",
                    404,
                )
            self._port = self._spawn_process()
            return self._port

    def _spawn_process(self) -> int:
        """Start the process and return its port. Raises ApiError."""
        configuration = {
            "url": self._get_endpoint_url(),
            "access_key": self._credentials.access_key,
            "secret_key": self._credentials.secret_key,
            "token": self._token,
            "wait_factor": self._settings.step_functions_wait_factor,
            "error_names": dict(self._settings.step_functions_error_names),
        }
        read_end, write_end = os.pipe()
        log_fd = os.open(self._log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "smlaunch.local.moto.server_process"],
                stdin=read_end,
                stdout=subprocess.PIPE,
                stderr=log_fd,
                env=_process_environment(os.environ),
                cwd="/",
                start_new_session=True,
            )
        except OSError:
            os.close(write_end)
            raise
        finally:
            os.close(read_end)
            os.close(log_fd)
        self._stdin_fd = liveness_fds.close_after_fork(write_end)
        os.write(write_end, json.dumps(configuration).encode() + b"\n")
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            port_text = stream.read()
        if not port_text.strip().isdigit():
            self._kill_process(self._process)
            message = f"moto's process did not start; its log is {self._log_path}"
            raise ApiError("ServiceUnavailable", message, 503)
        return int(port_text)

    def _kill_process(self, process: subprocess.Popen[bytes]) -> None:
        if self._stdin_fd is not None:
            liveness_fds.close(self._stdin_fd)
            self._stdin_fd = None
        process.kill()  # there is nothing to save
        process.wait()
        self._process = None


def is_valid_token(candidate: str, token: str) -> bool:
    return hmac.compare_digest(candidate.encode(), token.encode())


def _process_environment(endpoint_environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the user's AWS account, and without a proxy for this machine."""
    variables = {
        name: value for name, value in endpoint_environment.items() if not name.startswith(("AWS_", "MOTO_"))
    }
    local_hosts = "127.0.0.1,localhost"
    return {
        **variables,
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "MOTO_ACCOUNT_ID": ACCOUNT,
        "NO_PROXY": local_hosts,
        "no_proxy": local_hosts,
    }
