"""The process of moto, started by forwarder.py: an HTTP server on a loopback port for the endpoint only.

    python -m smlaunch.local.moto.server_process < configuration.json

It prints its port and serves until its standard input ends. Requests need the token of the configuration; the
endpoint has verified their signatures. moto's own interface /moto-api, which can read and change all data, is
blocked, and so is its instance metadata.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

from smlaunch.local.moto.forwarder import ERROR_HEADER, TOKEN_HEADER, is_valid_token
from smlaunch.local.moto.role_clients import RoleClients

log = logging.getLogger(__name__)

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
_STEP_FUNCTIONS = "stepfunctions"


class MotoRequestError(Exception):
    """An error for the client. ``status``: HTTP status line; ``code``: the API's error code."""

    def __init__(self, status: str, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class TokenCheckedApp:
    """WSGI application that passes requests with the token on to moto's application of their service.

    ``install_step_functions`` is called once, before the first request for Step Functions.
    """

    def __init__(self, token: str, install_step_functions: Callable[[], None]) -> None:
        self._token = token
        self._moto_app = DomainDispatcherApplication(create_backend_app)
        self._install_step_functions: Callable[[], None] | None = install_step_functions
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        try:
            return self._call_moto(environ, start_response)
        except MotoRequestError as error:
            document = {"code": error.code, "message": str(error)}
            headers = [("Content-Type", "application/json"), (ERROR_HEADER, "1")]
            start_response(error.status, headers)
            return [json.dumps(document).encode()]

    def _call_moto(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        """Return moto's response to a request of the local endpoint, given as to any WSGI application. Raises
        MotoRequestError for requests without the token, which only the endpoint knows, for moto's own
        interfaces, which could change all its data, and for what moto cannot do."""
        path = environ.get("PATH_INFO", "")
        # The name of the token's header in WSGI's environment.
        token_variable = f"HTTP_{TOKEN_HEADER.upper().replace('-', '_')}"
        if not is_valid_token(environ.get(token_variable, ""), self._token):
            raise MotoRequestError(
                "403 Forbidden", "AccessDeniedException", "This port is for the endpoint only"
            )
        if path.startswith(("/moto-api", "/latest/meta-data", "/latest/api")):
            raise MotoRequestError("404 Not Found", "UnknownOperationException", f"There is no {path} here")
        service = self._infer_service(environ, path)
        try:
            if service == _STEP_FUNCTIONS:  # its interpreter is patched before its first use
                self._install_step_functions_once()
            response: Iterable[bytes] = self._moto_app(environ, start_response)
        except NotImplementedError as error:
            message = f"moto, which handles {service} here, does not have this operation: {error}"
            raise MotoRequestError("404 Not Found", "UnknownOperationException", message) from None
        except ModuleNotFoundError as error:
            message = (
                f"moto's {service} needs {error.name}, which is not installed: pip install 'moto[{service}]'"
            )
            raise MotoRequestError("404 Not Found", "UnknownOperationException", message) from None
        except Exception as error:
            log.exception("%s %s", environ.get("REQUEST_METHOD"), path)
            message = f"moto, which handles {service} here, failed: {type(error).__name__}: {error}"
            raise MotoRequestError("500 Internal Server Error", "InternalFailure", message) from None
        return response

    def _infer_service(self, environ: dict[str, Any], path: str) -> str:
        """Return moto's name of the requested service. Raises MotoRequestError for an unknown one."""
        host = self._moto_app.infer_service_region_host(environ, path)
        backend = self._moto_app.get_backend_for_host(host) if host else None
        if not backend:
            name = (host or "").partition(".")[0]
            message = f"Neither smlaunch's local endpoint nor moto has the service {name!r}"
            raise MotoRequestError("404 Not Found", "UnknownOperationException", message)
        return str(backend)

    def _install_step_functions_once(self) -> None:
        """Install Step Functions on first use: its interpreter takes most of a second and 100 MB to load."""
        with self._lock:
            if self._install_step_functions is not None:
                self._install_step_functions()
                self._install_step_functions = None


def main() -> None:
    port_stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what moto prints goes to the log
    logging.basicConfig(level=logging.WARNING)
    # Errors of an execution are in its history; here they would come with pages of syntax tree.
    logging.getLogger("moto.stepfunctions").setLevel(logging.CRITICAL)
    configuration = json.loads(sys.stdin.readline())

    def install() -> None:
        from smlaunch.local.moto import step_functions

        clients = RoleClients(configuration["url"], configuration["access_key"], configuration["secret_key"])
        step_functions.install(clients, configuration["wait_factor"], configuration["error_names"])

    app = TokenCheckedApp(configuration["token"], install)
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with port_stream:
        port_stream.write(f"{server.server_port}\n")
    sys.stdin.read()
    os._exit(0)  # a normal exit would wait for the threads of executions


class _Handler(MotoRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Log nothing: the local endpoint has a call log."""


if __name__ == "__main__":
    main()
