"""Where Horovod's ranks meet when they talk by gloo: what horovodrun starts, on the leader of the job.

    python -c "from smlaunch.train.horovod_rendezvous import main; main()" PORT RANKS HOSTS

A store of values by scope and key over HTTP (Horovod 0.28, horovod/runner/http/http_server.py and
common/gloo/http_store.cc): PUT and GET /scope/key, 404 for what is not there yet, and DELETE /scope/rank by
every rank that has met, upon which the last one's clears the scope for the next meeting. Stays until it is
told to end.
"""

import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, List, Optional, Tuple
from typing import Counter as Count


class Store:
    """``ranks`` and ``hosts``: how many of them meet."""

    def __init__(self, ranks: int, hosts: int) -> None:
        self._sizes = {"global": ranks, "local": ranks // hosts, "cross": hosts}
        self._values: Dict[Tuple[str, str], bytes] = {}
        self._left: Count[str] = Counter()
        self._lock = threading.Lock()

    def put(self, scope: str, key: str, value: bytes) -> None:
        with self._lock:
            self._values[scope, key] = value

    def get(self, scope: str, key: str) -> Optional[bytes]:
        with self._lock:
            return self._values.get((scope, key))

    def delete(self, scope: str, key: str) -> None:
        """``global``, ``local_HOST`` and ``cross_LOCALRANK`` are left by one rank after the other; of other
        scopes the key itself is meant.
        """
        kind, _, rest = scope.partition("_")
        size = self._sizes.get(kind) if bool(rest) == (kind != "global") else None
        with self._lock:
            if size is None:
                self._values.pop((scope, key), None)
                return
            self._left[scope] += 1
            if self._left[scope] == size:
                del self._left[scope]
                self._values = {name: value for name, value in self._values.items() if name[0] != scope}


class Handler(BaseHTTPRequestHandler):
    store: Store

    def do_GET(self) -> None:
        name = self._name()
        value = self.store.get(*name) if name else None
        self._answer(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        name = self._name()
        value = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if name:
            self.store.put(name[0], name[1], value)
        self._answer(200 if name else 400)

    def do_DELETE(self) -> None:
        name = self._name()
        if name:
            self.store.delete(*name)
        self._answer(200 if name else 400)

    def log_message(self, format: str, *args: Any) -> None:
        """Not a line for every request."""

    def _name(self) -> Optional[Tuple[str, str]]:
        parts = self.path.split("/")
        return (parts[1], parts[2]) if len(parts) == 3 else None

    def _answer(self, status: int, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)


def serve(port: int, ranks: int, hosts: int) -> ThreadingHTTPServer:
    """Listens already; ``serve_forever`` answers."""
    handler = type("Bound", (Handler,), {"store": Store(ranks, hosts)})
    return ThreadingHTTPServer(("", port), handler)


def main(words: Optional[List[str]] = None) -> None:
    """``words``: those of this process by default. Does not return."""
    port, ranks, hosts = map(int, sys.argv[1:] if words is None else words)
    with serve(port, ranks, hosts) as server:
        server.serve_forever()
