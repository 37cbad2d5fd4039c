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

_TORCH_PREFIX, _ARRAY_PREFIX, _SCALAR_PREFIX = "torch.", "numpy.", "numpy-scalar."
"""A Buffer's dtype begins with one of them: what to make of it."""


class TensorBox(NamedTuple):
    """This rank's piece of a tensor that is distributed over several ranks: a rectangular block of its
    elements. ``offsets`` and ``shape``: of the block in the whole tensor, one number for each dimension."""

    offsets: Tuple[int, ...]
    shape: Tuple[int, ...]
    local_tensor: Any
    is_saved_here: bool
    """Of the ranks that have the same box, this one saves it."""


def map_leaves(tree: Any, convert: Callable[[Any, TreePath], Any], path: TreePath = ()) -> Any:
    """Return a copy of a tree of dicts, lists and tuples, with every other value replaced by what ``convert``
    returns for it and its path. ``path``: of ``tree`` itself, keys and indices from the root."""
    node_type = type(tree)  # exactly: a subclass is a leaf, which the encoder rejects
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

    kind = getattr(torch, dtype[len(_TORCH_PREFIX) :], None) if dtype.startswith(_TORCH_PREFIX) else None
    if not isinstance(kind, torch.dtype):
        raise ValueError("PyTorch {} has no {}".format(torch.__version__, dtype))
    return torch.empty(tuple(shape), dtype=kind)


def memoryview_of(tensor: Any) -> memoryview:
    """Return the memory of a flat uint8 tensor on the CPU, without NumPy, which not every image has."""
    size = tensor.numel()
    if not size:
        return memoryview(bytearray())
    memory: Any = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    memory.owner = tensor  # keeps the tensor alive as long as the view
    return memoryview(memory).cast("B")


def copy_bytes(flat_tensor: Any, start: int, data: Any) -> None:
    """Copy bytes into a flat uint8 tensor on the CPU."""
    memoryview_of(flat_tensor)[start : start + len(data)] = data


def array_to_buffer(value: Any) -> Any:
    """Return a NumPy array or scalar as a Buffer, a leaf of raw bytes with dtype and shape; any other value
    unchanged."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)):
        return value
    if value.dtype.hasobject:
        return value  # not storable as bytes: the encoder reports its path
    # The dtype in the Buffer gets a prefix that says what to make of the bytes: an array or a scalar.
    prefix = _ARRAY_PREFIX if isinstance(value, numpy.ndarray) else _SCALAR_PREFIX
    return Buffer(prefix + value.dtype.str, tuple(value.shape), value.tobytes())


def buffer_to_value(value: Any) -> Any:
    """Return the tensor, array or scalar that a Buffer (raw bytes with dtype and shape) was made from; any
    other value unchanged. Raises ValueError for a dtype that this PyTorch does not have."""
    if type(value) is not Buffer:
        return value
    if value.dtype.startswith(_TORCH_PREFIX):  # the prefix says what the Buffer was made from
        tensor = empty_tensor(value.dtype, value.shape)
        copy_bytes(flat_bytes(tensor), 0, value.data)  # into the tensor, from its first byte on
        return tensor
    import numpy

    prefix = _SCALAR_PREFIX if value.dtype.startswith(_SCALAR_PREFIX) else _ARRAY_PREFIX
    array = numpy.frombuffer(bytes(value.data), dtype=value.dtype[len(prefix) :]).reshape(value.shape)
    # [()] makes a scalar of an array without dimensions; a copy is writable, the bytes are not.
    return array[()] if prefix == _SCALAR_PREFIX else array.copy()


def to_buffers(tree: Any) -> Any:
    """Return a copy of a small tree for ``tree_format.encode``, with all tensors and arrays as Buffers."""

    def to_buffer(value: Any, path: TreePath) -> Any:
        if is_tensor(value):
            content = bytes(memoryview_of(flat_bytes(value).cpu()))
            return Buffer(dtype_name(value), tuple(value.shape), content)
        return array_to_buffer(value)

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
