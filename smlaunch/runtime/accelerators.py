"""How many accelerators this host has, without importing a framework or starting a driver where there is
none.
"""

import json
import os
from typing import List, Mapping

from smlaunch.runtime import programs

_TRN2_LOGICAL_CORES = 64
"""The training toolkit's own number for trn2.48xlarge (environment.num_neurons): its neuron-ls counts
otherwise.
"""


def gpus() -> int:
    """NVIDIA GPUs, as ``nvidia-smi --list-gpus`` counts them; device files say so at once where there are
    any.
    """
    devices = _devices("nvidia")
    if devices:
        return len(devices)
    tool = programs.on_path("nvidia-smi")  # without device files: WSL, for one
    if tool is None:
        return 0
    return sum(line.startswith("GPU ") for line in programs.output_of(tool, "--list-gpus").splitlines())


def neuron_cores(instance_type: str) -> int:
    if not _devices("neuron"):
        return 0
    if "trn2.48xlarge" in instance_type:
        return _TRN2_LOGICAL_CORES
    tool = programs.on_path("neuron-ls")
    if tool is None:
        return 0
    try:
        devices = json.loads(programs.output_of(tool, "-j") or "[]")
        return sum(int(device.get("nc_count", 0)) for device in devices)
    except (ValueError, TypeError, AttributeError):
        return 0


def usable(gpu_count: int, neuron_count: int, environ: Mapping[str, str]) -> int:
    """What ``auto`` ranks per host means: the accelerators a process may use, else 1.

    CUDA_VISIBLE_DEVICES narrows GPUs as CUDA itself reads it: devices behind an invalid index do not exist.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if gpu_count and visible is not None:
        names = [name.strip() for name in visible.split(",")]
        cut = next((i for i, name in enumerate(names) if not name or name.startswith("-")), len(names))
        gpu_count = min(gpu_count, cut)
    return gpu_count or neuron_count or 1


def _devices(stem: str) -> List[str]:
    """/dev/nvidia0, /dev/nvidia1 ..., not /dev/nvidiactl."""
    try:
        names = os.listdir("/dev")
    except OSError:
        return []
    return [name for name in names if name.startswith(stem) and name[len(stem) :].isdigit()]
