"""Deterministic kernels: set them, then check the settings.

Sources: PyTorch's notes on reproducibility; NVIDIA/nccl issues 157 (the algorithm, and with it the order of a
sum, depends on the message's size) and 2360 (NVLS depends on the history of allocations).
"""

import os
import sys
from typing import List, Mapping, MutableMapping

_DETERMINISTIC_CUBLAS_WORKSPACES = (":4096:8", ":16:8")
"""The two sizes with which cuBLAS guarantees the same result in every run."""


def enable_determinism(environ: MutableMapping[str, str] = os.environ) -> List[str]:
    """Switch PyTorch to deterministic algorithms. Return the limitations, what cannot be guaranteed, one
    sentence each. Raises RuntimeError if a setting has no effect, or had to be made earlier with another
    value."""
    torch = sys.modules.get("torch")
    if torch is None:
        return ["the script does not use PyTorch: nothing was set"]
    problems: List[str] = []
    is_workspace_set_too_late = "CUBLAS_WORKSPACE_CONFIG" not in environ and torch.cuda.is_initialized()
    # cuBLAS is deterministic only with one of these workspaces; a value that is set already is kept.
    cublas_workspace = environ.setdefault("CUBLAS_WORKSPACE_CONFIG", _DETERMINISTIC_CUBLAS_WORKSPACES[0])
    if cublas_workspace not in _DETERMINISTIC_CUBLAS_WORKSPACES:
        problems.append(
            "CUBLAS_WORKSPACE_CONFIG is {}; set it to {} or {}".format(
                cublas_workspace, *_DETERMINISTIC_CUBLAS_WORKSPACES
            )
        )
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    if (
        not torch.are_deterministic_algorithms_enabled()
        or torch.is_deterministic_algorithms_warn_only_enabled()
    ):
        problems.append("torch.use_deterministic_algorithms(True) had no effect, or only warns")
    if torch.backends.cudnn.benchmark or not torch.backends.cudnn.deterministic:
        problems.append("torch.backends.cudnn does not keep deterministic=True and benchmark=False")
    if problems:
        raise RuntimeError("deterministic: " + "; ".join(problems))
    if not torch.cuda.is_available():
        return []
    return _list_gpu_limitations(environ, is_workspace_set_too_late)


def _list_gpu_limitations(environ: Mapping[str, str], is_workspace_set_too_late: bool) -> List[str]:
    """Return what cannot be guaranteed on GPUs. ``is_workspace_set_too_late``: cuBLAS was in use before its
    workspace was set."""
    limitations = [
        "kernels of other libraries (Triton, flash-attention, custom CUDA) are not checked",
        "every segment needs the same GPU model, driver and PyTorch, which is not checked",
    ]
    if is_workspace_set_too_late:
        limitations.append(
            "CUDA was in use before CUBLAS_WORKSPACE_CONFIG was set, which cuBLAS reads at its start"
        )
    if "NCCL_ALGO" not in environ:
        limitations.append("NCCL chooses its algorithm by itself; NCCL_ALGO=Ring fixes the order of its sums")
    if environ.get("NCCL_NVLS_ENABLE") != "0":
        limitations.append("NCCL_NVLS_ENABLE=0 is not set: NVLS sums depend on the history of allocations")
    return limitations
