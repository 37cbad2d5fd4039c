"""Finds the calls by which a script certainly uses a GPU, with PyTorch. Nothing is executed."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from smlaunch.discovery.source_modules import SourceModule, keyword_value, literal_of
from smlaunch.facts.script_program import GpuCall

_FUNCTIONS_OF_A_GPU = frozenset(
    f"torch.cuda.{name}"
    for name in (
        "current_device",
        "get_device_capability",
        "get_device_name",
        "get_device_properties",
        "mem_get_info",
        "set_device",
        "synchronize",
    )
)
"""Those of torch.cuda that fail without a GPU; others, such as manual_seed, do nothing then."""

_DEVICE_KEYWORDS = ("device", "map_location")


def find_gpu_calls(modules: Sequence[SourceModule]) -> tuple[GpuCall, ...]:
    """Return the calls of a program that fail on a host without a GPU, in the order of modules and lines;
    none if the program may end well or take another way before the first."""
    nodes = (node for module in modules for node in module.nodes)
    defines_cuda = any(isinstance(node, ast.FunctionDef) and node.name == "cuda" for node in nodes)
    found: list[GpuCall] = []
    is_certain = False
    for module in modules:
        if not any(name.partition(".")[0] == "torch" for name in module.imported_names.values()):
            continue
        for call in module.calls:
            # In a loop too, unlike for runs_certainly: of the lines to change none may be missing.
            if call not in module.reach.certain or module.conditions_of(call):
                continue
            for function in _iter_gpu_functions(module, call):
                if function != ".cuda" or not defines_cuda:
                    found.append(GpuCall(module.place_of(call), function))
                    is_certain = is_certain or module.runs_certainly(call)
    return tuple(found) if is_certain else ()


def _iter_gpu_functions(module: SourceModule, call: ast.Call) -> Iterator[str]:
    """Yield the function by which a call needs a GPU: ``torch.cuda.set_device``, or ``.cuda`` of a tensor."""
    function = module.qualified_name_of(call.func)
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    devices = [keyword_value(call, name) for name in _DEVICE_KEYWORDS]
    if function in _FUNCTIONS_OF_A_GPU:
        yield function
    elif method == "cuda" and not function.startswith("torch."):
        yield ".cuda"
    elif method == "to" and any(_is_gpu(module, device) for device in (*call.args, *devices)):
        yield ".to"
    elif function.startswith("torch.") and any(_is_gpu(module, device) for device in devices):
        yield function


def _is_gpu(module: SourceModule, device: ast.expr | None) -> bool:
    """Return whether an expression is certainly a device of CUDA: a text, or torch.device of one, also by a
    name that is assigned once."""
    if isinstance(device, ast.Name):
        value = module.values_assigned_once.get(device.id)
        if value is None or module.is_parameter(device) or not module.runs_certainly(value):
            return False
        return not isinstance(value, ast.Name) and _is_gpu(module, value)
    if isinstance(device, ast.Call) and module.qualified_name_of(device.func) == "torch.device":
        return bool(device.args) and _is_gpu(module, device.args[0])
    if isinstance(device, ast.JoinedStr) and device.values:  # f"cuda:{local_rank}"
        device = device.values[0] if isinstance(device.values[0], ast.Constant) else None
    return str(literal_of(device, "")).partition(":")[0] == "cuda"
