"""Where Horovod's ranks meet when they talk by gloo: what horovodrun starts, on the leader of the job.

    python -c "from smlaunch.runtime.horovod_rendezvous import main; main()" PORT RANKS HOSTS

A store of values by scope and key over HTTP (Horovod 0.28, horovod/runner/http/http_server.py and
common/gloo/http_store.cc): PUT and GET /scope/key, 404 for what is not there yet, and DELETE /scope/rank by
every rank that has met, upon which the last one's clears the scope for the next meeting. Stays until it is
stopped.
"""

import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Dict, List, Optional, Tuple
from typing import Counter as Count


class RendezvousStore:
    """Values by scope and key. ``ranks`` and ``hosts``: how many of them meet."""

    def __init__(self, ranks: int, hosts: int) -> None:
        self._rank_count_by_scope_kind = {"global": ranks, "local": ranks // hosts, "cross": hosts}
        self._value_by_scope_and_key: Dict[Tuple[str, str], bytes] = {}
        self._departed_count_by_scope: Count[str] = Counter()
        self._lock = threading.Lock()

    def put(self, scope: str, key: str, value: bytes) -> None:
        with self._lock:
            self._value_by_scope_and_key[scope, key] = value

    def get(self, scope: str, key: str) -> Optional[bytes]:
        with self._lock:
            return self._value_by_scope_and_key.get((scope, key))

    def handle_delete(self, scope: str, key: str) -> None:
        """Handle Horovod's DELETE of a key in a scope, a namespace of keys. In a scope in which ranks meet it
        means that the rank ``key`` leaves, and the last rank to leave clears the scope; in other scopes it
        removes the key.
        """
        rank_count = self._count_ranks_that_meet_in(scope)
        with self._lock:
            if rank_count is None:
                self._value_by_scope_and_key.pop((scope, key), None)
                return
            self._departed_count_by_scope[scope] += 1
            if self._departed_count_by_scope[scope] == rank_count:
                del self._departed_count_by_scope[scope]
                self._value_by_scope_and_key = {
                    (other_scope, other_key): value
                    for (other_scope, other_key), value in self._value_by_scope_and_key.items()
                    if other_scope != scope
                }

    def _count_ranks_that_meet_in(self, scope: str) -> Optional[int]:
        """Return how many ranks meet in the scope ``global``, ``local_HOST`` or ``cross_LOCALRANK``; None for
        other scopes.
        """
        scope_kind, _, suffix = scope.partition("_")
        needs_suffix = scope_kind != "global"  # ``local`` alone, for example, is some other scope
        return self._rank_count_by_scope_kind.get(scope_kind) if bool(suffix) == needs_suffix else None


class RendezvousHandler(BaseHTTPRequestHandler):
    """HTTP requests of Horovod's ranks."""

    store: RendezvousStore

    def do_GET(self) -> None:
        scope_and_key = self._scope_and_key()
        value = self.store.get(*scope_and_key) if scope_and_key else None
        self._respond(404 if value is None else 200, value or b"")

    def do_PUT(self) -> None:
        scope_and_key = self._scope_and_key()
        value = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if scope_and_key:
            self.store.put(scope_and_key[0], scope_and_key[1], value)
        self._respond(200 if scope_and_key else 400)

    def do_DELETE(self) -> None:
        scope_and_key = self._scope_and_key()
        if scope_and_key:
            self.store.handle_delete(*scope_and_key)
        self._respond(200 if scope_and_key else 400)

    def log_message(self, format: str, *args: Any) -> None:
        """Do not log every request."""

    def _scope_and_key(self) -> Optional[Tuple[str, str]]:
        parts = self.path.split("/")
        return (parts[1], parts[2]) if len(parts) == 3 else None

    def _respond(self, status: int, value: bytes = b"") -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(value)))
        self.end_headers()
        self.wfile.write(value)


def serve(port: int, ranks: int, hosts: int) -> ThreadingHTTPServer:
    """Return a server that listens; call ``serve_forever``."""
    handler = type("Bound", (RendezvousHandler,), {"store": RendezvousStore(ranks, hosts)})
    return ThreadingHTTPServer(("", port), handler)


def main(arguments: Optional[List[str]] = None) -> None:
    """``arguments``: of this process by default. Does not return."""
    port, ranks, hosts = map(int, sys.argv[1:] if arguments is None else arguments)
    with serve(port, ranks, hosts) as server:
        server.serve_forever()
