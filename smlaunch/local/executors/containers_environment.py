"""Which of a container's variables the engine's command line gives by name alone.

Other users of the machine can read a command line (`ps`), and a job's variables hold tokens under names that
nobody can list. By name, a value stands in the environment of the engine's client, which only its own user
and root can read. That must not be done with a variable that the client itself goes by: it would run
elsewhere, or not at all. So those stay on the command line, and everything else is given by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_READ_GROUPS = (
    # Where programs, files and terminals are; who the user is.
    "PATH HOME USER LOGNAME SHELL PWD TMPDIR TMP TEMP TZ TZDIR TERM LANG LANGUAGE COLUMNS LINES",
    # The runtime of Go, in which all these clients are written, and its way through proxies.
    "GODEBUG GOGC GOMAXPROCS GOMEMLIMIT GOTRACEBACK GOCOVERDIR GOPROTODEBUG",
    "HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY FTP_PROXY REQUEST_METHOD DISABLE_HTTP2 DEBUG_HTTP2_GOROUTINES",
    # The C library's: resolver, character sets, tuning.
    "GLIBC_TUNABLES RES_OPTIONS HOSTALIASES LOCALDOMAIN LOCPATH NLSPATH GCONV_PATH OPENSSL_CONF GNUPGHOME",
    # systemd's.
    "NOTIFY_SOCKET INVOCATION_ID JOURNAL_STREAM DISABLE_HC_SYSTEMD",
    # A shell script in the client's place, as the package podman-docker has it; ssh on the way to a daemon.
    "ENV IFS SHELLOPTS POSIXLY_CORRECT SSH_AUTH_SOCK SSH_ASKPASS SSH_ASKPASS_REQUIRE DISPLAY WAYLAND_DISPLAY",
    # Of the clients' own libraries.
    "DEBUG LOGLEVEL NO_COLOR CLICOLOR CLICOLOR_FORCE KUBECONFIG HOST_ROOT",
)
_READ = frozenset(name for group in _READ_GROUPS for name in group.split())
_READ_BEGINNINGS = (
    *(
        "DOCKER_",
        "BUILDKIT_",
        "MOBY_",
        "PODMAN",
        "CONTAINER",
        "BUILDAH_",
        "STORAGE_",
        "REGISTRY_",
        "REGISTRIES_",
    ),
    *("NETAVARK_", "SSL_CERT_", "XDG_", "DBUS_", "LISTEN_", "WATCHDOG_", "SUDO_", "GRPC_GO_", "LD_", "LC_"),
    *("MALLOC_", "BASH", "_"),  # podman tells itself things in _CONTAINERS_...
)
"""From the sources of podman and of Docker's command line, with the libraries they are built of: what they
look up, but for what only other commands do; and from the documentation of the loader, the C library and the
shells. Not OTEL_*, by which Docker's client reports on itself: nothing of a container depends on that, and
the headers among it are credentials."""

_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def by_name(environment: Mapping[str, str], client: Mapping[str, str]) -> dict[str, str]:
    """Those of ``environment`` that `create` is to be told by name, for the environment that it runs in.

    ``client``: what the engine's client has in its environment anyhow. A value that it has already (a proxy
    with a password) changes nothing for any reader.
    """
    return {
        name: value
        for name, value in environment.items()
        # podman takes a name with a * at its end for many names.
        if _IDENTIFIER.fullmatch(name) and (not _is_read(name) or client.get(name) == value)
    }


def _is_read(name: str) -> bool:
    """Proxies are looked up in small letters too."""
    upper = name.upper()
    return upper in _READ or upper.startswith(_READ_BEGINNINGS)
