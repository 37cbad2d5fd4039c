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

from smlaunch.contract.sagemaker_paths import ROOT_VARIABLE
from smlaunch.runtime import external_tools
from smlaunch.runtime.errors import SetupError

CUDA_COMPAT_DIR = "/usr/local/cuda/compat"
_NVIDIA_VERSION_FILE = "/proc/driver/nvidia/version"
_HOSTS_FILE = "/etc/hosts"
_KERNEL_MODULE_VERSION = re.compile(r"^NVRM.*Kernel Module\s+(?:for \S+\s+)?([0-9][0-9.]*)", re.MULTILINE)


# ---- CUDA ------------------------------------------------------------------------------------------------


def cuda_compat_variables(environ: Mapping[str, str]) -> Dict[str, str]:
    """Return LD_LIBRARY_PATH with the image's newer CUDA driver library before all others, where the host's
    NVIDIA driver is older (CUDA forward compatibility); an empty dictionary where no variable has to change.
    """
    library = os.path.join(CUDA_COMPAT_DIR, "libcuda.so.1")
    if not os.path.isfile(library):
        return {}
    # The link's target carries the version of the driver it comes from: libcuda.so.570.211.01
    library_file = os.path.basename(os.readlink(library)) if os.path.islink(library) else ""
    image_driver_version = library_file.partition(".so.")[2]
    if not needs_forward_compatibility(_read_driver_version(), image_driver_version):
        return {}
    library_path = environ.get("LD_LIBRARY_PATH", "")
    if CUDA_COMPAT_DIR in library_path.split(os.pathsep):  # the image has set it itself
        return {}
    return {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, (CUDA_COMPAT_DIR, library_path)))}


def needs_forward_compatibility(driver_version: str, compat_version: str) -> bool:
    """Return whether the machine's driver is older than the image's; a newer one does not work with the
    image's driver. False where either version is unknown.
    """
    driver, compat = _parse_version(driver_version), _parse_version(compat_version)
    return driver is not None and compat is not None and driver < compat


def _parse_version(text: str) -> Optional[Tuple[int, ...]]:
    parts = text.strip().split(".")
    return tuple(map(int, parts)) if all(part.isdigit() for part in parts) else None


def _read_driver_version() -> str:
    """Return the version of the machine's NVIDIA driver; empty where it is unknown."""
    try:
        with open(_NVIDIA_VERSION_FILE, encoding="utf-8", errors="replace") as file:
            match = _KERNEL_MODULE_VERSION.search(file.read())
    except OSError:
        match = None
    if match is not None:
        return match.group(1)
    # Without the kernel's file, for example in WSL, the tool may know it.
    nvidia_smi = external_tools.find_on_path("nvidia-smi")
    if nvidia_smi is None:
        return ""
    return external_tools.capture_stdout(
        nvidia_smi, "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"
    )


# ---- hostname --------------------------------------------------------------------------------------------


def ensure_hostname_resolves(current_host: str, environ: Mapping[str, str]) -> Optional[str]:
    """Add this container's own name to /etc/hosts when it does not resolve; return why that failed, or None.

    ``current_host``: SageMaker's name of this host, algo-1. Does nothing unless this is a container's first
    process: elsewhere /etc/hosts belongs to the machine.
    """
    runs_without_container = bool(environ.get(ROOT_VARIABLE))  # a local job: another folder for /opt/ml
    if os.getpid() != 1 or runs_without_container:
        return None
    hostname = os.uname().nodename
    if not hostname or hostname == current_host or _is_in_hosts_file(hostname) or _is_resolvable(hostname):
        return None
    import socket

    try:
        address = socket.gethostbyname(current_host)
        with open(_HOSTS_FILE, "a", encoding="utf-8") as file:
            file.write(format_hosts_line(address, hostname))
    except OSError as error:
        return "this container's name {} does not resolve, and {} cannot be changed: {}".format(
            hostname, _HOSTS_FILE, error.strerror or error
        )
    return None


def format_hosts_line(address: str, name: str) -> str:
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
