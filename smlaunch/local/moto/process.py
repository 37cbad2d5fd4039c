"""The process that moto runs in, which fallback.py starts: one loopback port, for the endpoint alone.

    python -m smlaunch.local.moto.process < orders

It prints its port and serves until its standard input ends. Requests need the token of the orders: their
signatures were checked at the endpoint. moto's own interface, /moto-api, which may change and read all there
is, is closed, and so is its instance metadata.
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

from smlaunch.local.moto.clients import Clients
from smlaunch.local.moto.fallback import REFUSAL, TOKEN, is_token

log = logging.getLogger(__name__)

StartResponse = Callable[[str, list[tuple[str, str]]], Any]
_STEP_FUNCTIONS = "stepfunctions"


class Refused(Exception):
    def __init__(self, status: str, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class Door:
    """A WSGI application: moto's, for those who have the token and for services that it knows."""

    def __init__(self, token: str, install_step_functions: Callable[[], None]) -> None:
        self._token = token
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._install: Callable[[], None] | None = install_step_functions
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        try:
            return self._answer(environ, start_response)
        except Refused as refused:
            refusal = {"code": refused.code, "message": str(refused)}
            headers = [("Content-Type", "application/json"), (REFUSAL, "1")]
            start_response(refused.status, headers)
            return [json.dumps(refusal).encode()]

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if not is_token(environ.get(f"HTTP_{TOKEN.upper().replace('-', '_')}", ""), self._token):
            raise Refused("403 Forbidden", "AccessDeniedException", "This port is the endpoint's alone")
        if path.startswith(("/moto-api", "/latest/meta-data", "/latest/api")):
            raise Refused("404 Not Found", "UnknownOperationException", f"There is no {path} here")
        service = self._service(environ, path)
        try:
            if service == _STEP_FUNCTIONS:
                self._install_once()
            answer: Iterable[bytes] = self._moto(environ, start_response)
        except NotImplementedError as error:
            text = f"moto, which answers for {service} here, does not have this operation: {error}"
            raise Refused("404 Not Found", "UnknownOperationException", text) from None
        except ModuleNotFoundError as error:
            text = (
                f"moto's {service} needs {error.name}, which is not installed: pip install 'moto[{service}]'"
            )
            raise Refused("404 Not Found", "UnknownOperationException", text) from None
        except Exception as error:
            log.exception("%s %s", environ.get("REQUEST_METHOD"), path)
            text = f"moto, which answers for {service} here, failed: {type(error).__name__}: {error}"
            raise Refused("500 Internal Server Error", "InternalFailure", text) from None
        return answer

    def _service(self, environ: dict[str, Any], path: str) -> str:
        host = self._moto.infer_service_region_host(environ, path)
        backend = self._moto.get_backend_for_host(host) if host else None
        if not backend:
            name = (host or "").partition(".")[0]
            text = f"Neither smlaunch's local endpoint nor moto has the service {name!r}"
            raise Refused("404 Not Found", "UnknownOperationException", text)
        return str(backend)

    def _install_once(self) -> None:
        """The interpreter takes most of a second and 100 MB: loaded for those who use it."""
        with self._lock:
            if self._install is not None:
                self._install()
                self._install = None


def main() -> None:
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # moto prints: into the log
    logging.basicConfig(level=logging.WARNING)
    # What goes wrong in an execution stands in its history, and here with pages of syntax tree.
    logging.getLogger("moto.stepfunctions").setLevel(logging.CRITICAL)
    orders = json.loads(sys.stdin.readline())

    def install() -> None:
        from smlaunch.local.moto import step_functions

        clients = Clients(orders["url"], orders["access_key"], orders["secret_key"])
        step_functions.install(clients, orders["wait_factor"], orders["error_names"])

    door = Door(orders["token"], install)
    server = make_server("127.0.0.1", 0, door, threaded=True, request_handler=_Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with answer:
        answer.write(f"{server.server_port}\n")
    sys.stdin.read()
    os._exit(0)  # executions are threads that would be waited for


class _Handler(MotoRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: the endpoint's call log has who asked for what."""


if __name__ == "__main__":
    main()
