"""Trees of state and the tensors in them: found by their paths, viewed as bytes, cut out and filled in.

PyTorch and NumPy are not imported for a script that does not use them.
"""

import ctypes
import sys
from collections import OrderedDict
from typing import Any, Callable, Dict, List, NamedTuple, Sequence, Tuple

from smlaunch.train.tree_format import Buffer

TreePath = Tuple[Any, ...]
"""Keys and indices from the tree's root."""

_TORCH, _ARRAY, _SCALAR = "torch.", "numpy.", "numpy-scalar."


class TensorBox(NamedTuple):
    """This rank's piece of a tensor that is distributed over several ranks. ``offsets`` and ``shape``: in
    elements of the whole."""

    offsets: Tuple[int, ...]
    shape: Tuple[int, ...]
    local_tensor: Any
    is_writer: bool
    """Of several ranks with the same piece, this one saves it."""


def map_leaves(tree: Any, convert: Callable[[Any, TreePath], Any], path: TreePath = ()) -> Any:
    """Return the tree with ``convert`` applied to every value that is not a plain dict, list or tuple."""
    node_type = type(tree)
    if node_type is dict:
        return {key: map_leaves(value, convert, path + (key,)) for key, value in tree.items()}
    if node_type is OrderedDict:
        return OrderedDict((key, map_leaves(value, convert, path + (key,))) for key, value in tree.items())
    if node_type is list:
        return [map_leaves(value, convert, path + (index,)) for index, value in enumerate(tree)]
    if node_type is tuple:
        return tuple(map_leaves(value, convert, path + (index,)) for index, value in enumerate(tree))
    return convert(tree, path)


def is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def flat_bytes(tensor: Any) -> Any:
    """Return the tensor's bytes in row-major order as a flat uint8 tensor, a view if possible. Raises
    ValueError for a layout without such bytes."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise ValueError("a {} tensor cannot be saved; register its components".format(tensor.layout))
    contiguous = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return contiguous.view(torch.uint8) if contiguous.numel() else torch.empty(0, dtype=torch.uint8)


def dtype_name(tensor: Any) -> str:
    return str(tensor.dtype)


def empty_tensor(dtype: str, shape: Sequence[int]) -> Any:
    """Return a tensor in CPU memory. Raises ValueError for a dtype that this PyTorch does not have."""
    import torch

    kind = getattr(torch, dtype[len(_TORCH) :], None) if dtype.startswith(_TORCH) else None
    if not isinstance(kind, torch.dtype):
        raise ValueError("PyTorch {} has no {}".format(torch.__version__, dtype))
    return torch.empty(tuple(shape), dtype=kind)


def memory_of(tensor: Any) -> memoryview:
    """Return the memory of a flat uint8 tensor on the CPU, without NumPy, which not every image has."""
    size = tensor.numel()
    if not size:
        return memoryview(bytearray())
    memory: Any = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    memory.owner = tensor  # keeps the tensor alive as long as the view
    return memoryview(memory).cast("B")


def copy_bytes(flat_tensor: Any, start: int, data: Any) -> None:
    """Copy bytes into a flat uint8 tensor on the CPU."""
    memory_of(flat_tensor)[start : start + len(data)] = data


def buffer_of_array(value: Any) -> Any:
    """Return a NumPy array or scalar as a Buffer; any other value unchanged."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return value
    if value.dtype.hasobject:
        return value  # the encoder reports its path
    prefix = _ARRAY if isinstance(value, numpy.ndarray) else _SCALAR
    return Buffer(prefix + value.dtype.str, tuple(value.shape), value.tobytes())


def from_buffer(value: Any) -> Any:
    """Return the tensor, array or scalar that a Buffer was made from; any other value unchanged."""
    if type(value) is not Buffer:
        return value
    if value.dtype.startswith(_TORCH):
        tensor = empty_tensor(value.dtype, value.shape)
        copy_bytes(flat_bytes(tensor), 0, value.data)
        return tensor
    import numpy

    prefix = _SCALAR if value.dtype.startswith(_SCALAR) else _ARRAY
    array = numpy.frombuffer(bytes(value.data), dtype=value.dtype[len(prefix) :]).reshape(value.shape)
    return array[()] if prefix == _SCALAR else array.copy()


def to_buffers(tree: Any) -> Any:
    """Return a copy of a small tree for ``tree_format.encode``, with all tensors and arrays as Buffers."""

    def to_buffer(value: Any, path: TreePath) -> Any:
        if is_tensor(value):
            content = bytes(memory_of(flat_bytes(value).cpu()))
            return Buffer(dtype_name(value), tuple(value.shape), content)
        return buffer_of_array(value)

    return map_leaves(tree, to_buffer)


def value_at(tree: Any, path: TreePath) -> Any:
    """Return the value at a path, or None."""
    for key in path:
        try:
            tree = tree[key]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def box_overlap(box: TensorBox, offsets: Sequence[int], shape: Sequence[int]) -> "List[Tuple[int, int, int]]":
    """Return where two boxes overlap: (start in the box, start in the other, length) per dimension; empty if
    they do not."""
    overlaps: List[Tuple[int, int, int]] = []
    for box_start, size, other_start, other_size in zip(box.offsets, box.shape, offsets, shape):
        start, end = max(box_start, other_start), min(box_start + size, other_start + other_size)
        if start >= end:
            return []
        overlaps.append((start - box_start, start - other_start, end - start))
    return overlaps


def tensors_by_path(tree: Any) -> Dict[TreePath, Any]:
    """Return every tensor by its path."""
    result: Dict[TreePath, Any] = {}

    def collect(value: Any, path: TreePath) -> Any:
        if is_tensor(value):
            result[path] = value
        return value

    map_leaves(tree, collect)
    return result
