"""Trees of state and the tensors in them: found by their paths, looked at as bytes, cut out and filled in.

Nothing here imports PyTorch or NumPy for a script that does not use them.
"""

import ctypes
import sys
from collections import OrderedDict
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from smlaunch.train.parts import Buffer

Path = Tuple[Any, ...]
"""Keys and places from the tree's root."""

_TORCH, _ARRAY, _SCALAR = "torch.", "numpy.", "numpy-scalar."


class Box(NamedTuple):
    """This rank's piece of a tensor that lies over several ranks. ``offsets`` and ``shape`` in elements of
    the whole; ``writes``: of several ranks with the same piece, this is the one that keeps it."""

    offsets: Tuple[int, ...]
    shape: Tuple[int, ...]
    local: Any
    writes: bool


def rewrite(tree: Any, leaf: Callable[[Any, Path], Any], path: Path = ()) -> Any:
    """The tree, and in it what ``leaf`` makes of every value that is no plain dict, list or tuple."""
    kind = type(tree)
    if kind is dict:
        return {key: rewrite(value, leaf, path + (key,)) for key, value in tree.items()}
    if kind is OrderedDict:
        return OrderedDict((key, rewrite(value, leaf, path + (key,))) for key, value in tree.items())
    if kind is list:
        return [rewrite(value, leaf, path + (place,)) for place, value in enumerate(tree)]
    if kind is tuple:
        return tuple(rewrite(value, leaf, path + (place,)) for place, value in enumerate(tree))
    return leaf(tree, path)


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def flat(tensor: Any) -> Any:
    """The tensor's bytes in row-major order, as a flat uint8 tensor; a view where it can be one. ValueError
    for a layout without such bytes."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError("a {} tensor cannot be kept; hand in its parts".format(tensor.layout))
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return plain.view(torch.uint8) if plain.numel() else torch.empty(0, dtype=torch.uint8)


def dtype_name(tensor: Any) -> str:
    return str(tensor.dtype)


def empty(dtype: str, shape: Sequence[int]) -> Any:
    """A tensor in the CPU's memory. ValueError for a dtype that this PyTorch does not have."""
    import torch

    kind = getattr(torch, dtype[len(_TORCH) :], None) if dtype.startswith(_TORCH) else None
    if not isinstance(kind, torch.dtype):
        raise ValueError("PyTorch {} has no {}".format(torch.__version__, dtype))
    return torch.empty(tuple(shape), dtype=kind)


def address(tensor: Any) -> memoryview:
    """The memory of a flat uint8 tensor on the CPU. (Without NumPy, which not every image has.)"""
    size = tensor.numel()
    if not size:
        return memoryview(bytearray())
    memory: Any = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    memory.owner = tensor  # lives as long as somebody looks at it
    return memoryview(memory).cast("B")


def fill(flat_tensor: Any, start: int, data: Any) -> None:
    """Bytes into a flat uint8 tensor on the CPU."""
    address(flat_tensor)[start : start + len(data)] = data


def array_buffer(value: Any) -> Any:
    """A NumPy array or scalar as a Buffer; anything else as it is."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return value
    if value.dtype.hasobject:
        return value  # refused by its path when it is written
    word = _ARRAY if isinstance(value, numpy.ndarray) else _SCALAR
    return Buffer(word + value.dtype.str, tuple(value.shape), value.tobytes())


def from_buffer(value: Any) -> Any:
    """The tensor, array or scalar that a Buffer was made of; anything else as it is."""
    if type(value) is not Buffer:
        return value
    if value.dtype.startswith(_TORCH):
        tensor = empty(value.dtype, value.shape)
        fill(flat(tensor), 0, value.data)
        return tensor
    import numpy

    word = _SCALAR if value.dtype.startswith(_SCALAR) else _ARRAY
    array = numpy.frombuffer(bytes(value.data), dtype=value.dtype[len(word) :]).reshape(value.shape)
    return array[()] if word == _SCALAR else array.copy()


def to_buffers(tree: Any) -> Any:
    """A copy of the tree for ``parts.encode``, everything in it at once: for what is small."""

    def leaf(value: Any, path: Path) -> Any:
        if is_tensor(value):
            content = bytes(address(flat(value).cpu()))
            return Buffer(dtype_name(value), tuple(value.shape), content)
        return array_buffer(value)

    return rewrite(tree, leaf)


def at(tree: Any, path: Path) -> Any:
    """What lies at a path, or None."""
    for key in path:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def overlap(one: Box, offsets: Sequence[int], shape: Sequence[int]) -> "List[Tuple[int, int, int]]":
    """Where a box and another one meet: (start in the one, start in the other, length) per dimension; nothing
    where they do not."""
    found: List[Tuple[int, int, int]] = []
    for own, size, other, other_size in zip(one.offsets, one.shape, offsets, shape):
        start, end = max(own, other), min(own + size, other + other_size)
        if start >= end:
            return []
        found.append((start - own, start - other, end - start))
    return found


def paths_of(tree: Any) -> Dict[Path, Any]:
    """Every tensor by its path."""
    found: Dict[Path, Any] = {}

    def leaf(value: Any, path: Path) -> Any:
        if is_tensor(value):
            found[path] = value
        return value

    rewrite(tree, leaf)
    return found
