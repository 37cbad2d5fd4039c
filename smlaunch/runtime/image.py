"""What a framework image's own entry point would have done, since ContainerEntrypoint replaces it.

AWS's PyTorch images start with ``start_with_right_hostname.sh``, which does two things (aws/
deep-learning-containers, pytorch/training/docker/build_artifacts, and start_cuda_compat.sh):

    CUDA forward compatibility   puts the image's newer user-mode driver before the machine's older one
    hostname                     compiles and preloads a library that says ``algo-1`` when asked for the name

The first is done here as there. Of the second, here the container's own name is made to resolve, which is
what programs that ask for it need; the name itself stays, since changing it needs a privilege that a
container does not have, and the library needs a compiler.
"""

import os
import re
from typing import Dict, Mapping, Optional, Tuple

from smlaunch.protocol.paths import ROOT_VARIABLE
from smlaunch.runtime import programs
from smlaunch.runtime.problems import Unusable

COMPAT = "/usr/local/cuda/compat"
_DRIVER = "/proc/driver/nvidia/version"
_HOSTS = "/etc/hosts"
_KERNEL_MODULE = re.compile(r"^NVRM.*Kernel Module\s+(?:for \S+\s+)?([0-9][0-9.]*)", re.MULTILINE)


# ---- CUDA ------------------------------------------------------------------------------------------------


def cuda_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """LD_LIBRARY_PATH where forward compatibility is needed, else nothing."""
    library = os.path.join(COMPAT, "libcuda.so.1")
    if not os.path.isfile(library):
        return {}
    # The link's target carries the version of the driver it comes from: libcuda.so.570.211.01
    target = os.path.basename(os.readlink(library)) if os.path.islink(library) else ""
    if not needs_compat(_driver_version(), target.partition(".so.")[2]):
        return {}
    present = environ.get("LD_LIBRARY_PATH", "")
    if COMPAT in present.split(os.pathsep):
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, (COMPAT, present)))}


def needs_compat(driver: str, compat: str) -> bool:
    """Whether the machine's driver is older than the image's; with a newer one the image's would not work.
    False where either is unknown.
    """
    here, there = _version(driver), _version(compat)
    return here is not None and there is not None and here < there


def _version(text: str) -> Optional[Tuple[int, ...]]:
    parts = text.strip().split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else None


def _driver_version() -> str:
    try:
        with open(_DRIVER, encoding="utf-8", errors="replace") as file:
            found = _KERNEL_MODULE.search(file.read())
    except OSError:
        found = None
    if found is not None:
        return found.group(1)
    tool = programs.on_path("nvidia-smi")
    if tool is None:
        return ""
    return programs.output_of(tool, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0")


# ---- hostname --------------------------------------------------------------------------------------------


def make_hostname_resolve(current_host: str, environ: Mapping[str, str]) -> Optional[str]:
    """Adds this container's own name to /etc/hosts when it does not resolve; returns what could not be done.

    Only as a container's first process: anywhere else /etc/hosts belongs to the machine.
    """
    if os.getpid() != 1 or environ.get(ROOT_VARIABLE):
        return None
    name = os.uname().nodename
    if not name or name == current_host or _is_listed(name) or _resolves(name):
        return None
    import socket

    try:
        address = socket.gethostbyname(current_host)
        with open(_HOSTS, "a", encoding="utf-8") as file:
            file.write(hosts_line(address, name))
    except OSError as error:
        return "this container's name {} does not resolve, and {} could not be told: {}".format(
            name, _HOSTS, error.strerror or error
        )
    return None


def hosts_line(address: str, name: str) -> str:
    """On a line of its own, even if the last one has no end."""
    return "\n{}\t{}\n".format(address, name)


def _is_listed(name: str) -> bool:
    try:
        with open(_HOSTS, encoding="utf-8", errors="replace") as file:
            return any(name in line.partition("#")[0].split()[1:] for line in file)
    except OSError:
        return False


def _resolves(name: str) -> bool:
    from smlaunch.runtime import names  # brings socket, which few hosts need

    try:
        names.Resolution(name, patience=0.0).wait()
    except Unusable:
        return False
    return True
