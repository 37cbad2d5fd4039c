"""What a framework image's own entry point would have done, since ContainerEntrypoint replaces it.

AWS's PyTorch images start with ``start_with_right_hostname.sh``, which does two things (aws/
deep-learning-containers, pytorch/training/docker/build_artifacts, and start_cuda_compat.sh):

    CUDA forward compatibility   puts the image's newer user-mode driver before the machine's older one
    hostname                     compiles and preloads a library that says ``algo-1`` when asked for the name

The first is done here in the same way. Instead of the second, the container's own name is made to resolve,
which is what programs need; the name itself stays, since changing it needs a privilege that containers do
not have, and the library needs a compiler.
"""

import os
import re
from typing import Dict, Mapping, Optional, Tuple

from smlaunch.contract.paths import ROOT_VARIABLE
from smlaunch.runtime import external_tools
from smlaunch.runtime.errors import SetupError

COMPAT_DIR = "/usr/local/cuda/compat"
_DRIVER_FILE = "/proc/driver/nvidia/version"
_HOSTS_FILE = "/etc/hosts"
_KERNEL_MODULE = re.compile(r"^NVRM.*Kernel Module\s+(?:for \S+\s+)?([0-9][0-9.]*)", re.MULTILINE)


# ---- CUDA ------------------------------------------------------------------------------------------------


def cuda_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """LD_LIBRARY_PATH where forward compatibility is needed, otherwise nothing."""
    library = os.path.join(COMPAT_DIR, "libcuda.so.1")
    if not os.path.isfile(library):
        return {}
    # The link's target carries the version of the driver it comes from: libcuda.so.570.211.01
    library_file = os.path.basename(os.readlink(library)) if os.path.islink(library) else ""
    if not needs_forward_compatibility(_driver_version(), library_file.partition(".so.")[2]):
        return {}
    library_path = environ.get("LD_LIBRARY_PATH", "")
    if COMPAT_DIR in library_path.split(os.pathsep):
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, (COMPAT_DIR, library_path)))}


def needs_forward_compatibility(driver_version: str, compat_version: str) -> bool:
    """Return whether the machine's driver is older than the image's; a newer one does not work with the
    image's driver. False where either version is unknown.
    """
    driver, compat = _parse_version(driver_version), _parse_version(compat_version)
    return driver is not None and compat is not None and driver < compat


def _parse_version(text: str) -> Optional[Tuple[int, ...]]:
    parts = text.strip().split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else None


def _driver_version() -> str:
    """Version of the machine's NVIDIA driver; empty where it is unknown."""
    try:
        with open(_DRIVER_FILE, encoding="utf-8", errors="replace") as file:
            match = _KERNEL_MODULE.search(file.read())
    except OSError:
        match = None
    if match is not None:
        return match.group(1)
    nvidia_smi = external_tools.find_on_path("nvidia-smi")
    if nvidia_smi is None:
        return ""
    return external_tools.tool_output(
        nvidia_smi, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"
    )


# ---- hostname --------------------------------------------------------------------------------------------


def make_hostname_resolve(current_host: str, environ: Mapping[str, str]) -> Optional[str]:
    """Add this container's own name to /etc/hosts when it does not resolve; return the problem, if any.

    Only as a container's first process: elsewhere /etc/hosts belongs to the machine.
    """
    if os.getpid() != 1 or environ.get(ROOT_VARIABLE):
        return None
    hostname = os.uname().nodename
    if not hostname or hostname == current_host or _is_in_hosts_file(hostname) or _is_resolvable(hostname):
        return None
    import socket

    try:
        address = socket.gethostbyname(current_host)
        with open(_HOSTS_FILE, "a", encoding="utf-8") as file:
            file.write(hosts_line(address, hostname))
    except OSError as error:
        return "this container's name {} does not resolve, and {} cannot be changed: {}".format(
            hostname, _HOSTS_FILE, error.strerror or error
        )
    return None


def hosts_line(address: str, name: str) -> str:
    """On a line of its own, even if the last line is incomplete."""
    return "\n{}\t{}\n".format(address, name)


def _is_in_hosts_file(name: str) -> bool:
    try:
        with open(_HOSTS_FILE, encoding="utf-8", errors="replace") as file:
            return any(name in line.partition("#")[0].split()[1:] for line in file)
    except OSError:
        return False


def _is_resolvable(name: str) -> bool:
    from smlaunch.runtime import name_lookup  # brings socket, which few hosts need

    try:
        name_lookup.NameLookup(name, timeout_seconds=0.0).wait()
    except SetupError:
        return False
    return True
