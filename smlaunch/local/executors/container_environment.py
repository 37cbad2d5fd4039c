"""Chooses the variables that the engine's command line passes by name, without their values.

Other users of the machine can read a command line (`ps`), and a job's variables contain tokens under unknown
names. If a variable is passed by name, its value is only in the environment of the engine's client, which
only its user and root can read. That must not be done with a variable that the client itself reads, since
the client would then behave differently. So those variables stay on the command line with their values, and
all others are passed by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_CLIENT_VARIABLE_GROUPS = (
    # Paths, terminals and the user.
    "PATH HOME USER LOGNAME SHELL PWD TMPDIR TMP TEMP TZ TZDIR TERM LANG LANGUAGE COLUMNS LINES",
    # The runtime of Go, in which all these clients are written, and its proxies.
    "GODEBUG GOGC GOMAXPROCS GOMEMLIMIT GOTRACEBACK GOCOVERDIR GOPROTODEBUG",
    "HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY FTP_PROXY REQUEST_METHOD DISABLE_HTTP2 DEBUG_HTTP2_GOROUTINES",
    # The C library: resolver, character sets, tuning.
    "GLIBC_TUNABLES RES_OPTIONS HOSTALIASES LOCALDOMAIN LOCPATH NLSPATH GCONV_PATH OPENSSL_CONF GNUPGHOME",
    # systemd.
    "NOTIFY_SOCKET INVOCATION_ID JOURNAL_STREAM DISABLE_HC_SYSTEMD",
    # A shell script instead of the client, as in the package podman-docker; ssh to a daemon.
    "ENV IFS SHELLOPTS POSIXLY_CORRECT SSH_AUTH_SOCK SSH_ASKPASS SSH_ASKPASS_REQUIRE DISPLAY WAYLAND_DISPLAY",
    # The clients' own libraries.
    "DEBUG LOGLEVEL NO_COLOR CLICOLOR CLICOLOR_FORCE KUBECONFIG HOST_ROOT",
)
_CLIENT_VARIABLES = frozenset(name for group in _CLIENT_VARIABLE_GROUPS for name in group.split())
_CLIENT_VARIABLE_PREFIXES = (
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
    *("MALLOC_", "BASH", "_"),  # podman uses _CONTAINERS_... for itself
)
"""From the sources of podman and of Docker's command line with their libraries (without variables that only
other commands read), and from the documentation of the loader, the C library and the shells. Not OTEL_*,
which configures telemetry of Docker's client: no container depends on it, and its headers contain
credentials."""

_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def variables_to_pass_by_name(
    environment: Mapping[str, str], client_environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of ``environment`` that `create` passes by name; the caller adds them to the
    environment of the engine's client.

    ``client_environment`` is the client's environment without them. A value that it has already (a proxy
    with a password) may be passed by name in any case.
    """
    return {
        name: value
        for name, value in environment.items()
        # podman reads a name that ends with * as a pattern.
        if _IDENTIFIER.fullmatch(name)
        and (not _is_client_variable(name) or client_environment.get(name) == value)
    }


def _is_client_variable(name: str) -> bool:
    """Return whether the engine's client may read the variable. It looks for proxies in lower case too."""
    upper_name = name.upper()
    return upper_name in _CLIENT_VARIABLES or upper_name.startswith(_CLIENT_VARIABLE_PREFIXES)
