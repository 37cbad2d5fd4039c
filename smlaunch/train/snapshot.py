"""A rank's share of a checkpoint: copied into preallocated memory, then written as the tree of its shard.

Shared state, equal on all ranks, is cut into as many pieces of equal size as there are ranks, and each rank
saves one. Pieces of sharded tensors are saved where they are. Each rank saves its own state completely.

    {"rank", "world_size", "step",
     "all_shards_needed": whether the shared state needs all shards, or only the leader's and one's own,
     "shared": the tree with None for its tensors,          (the leader's shard only)
     "tensors": [(path, dtype, shape), ...],                (the leader's shard only)
     "pieces": [(tensor, first byte, buffer), ...], "boxes": [(tensor, offsets, buffer), ...],
     "own": tree}
"""

import hashlib
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.train import sharded, tensors
from smlaunch.train.tensors import TensorBox, TreePath
from smlaunch.train.tree_format import Buffer

_ALIGNMENT = 64


class Snapshot(NamedTuple):
    """A rank's state at one step."""

    document: Dict[str, Any]
    """For ``tree_format.encode``; valid until the next snapshot."""
    layout_sha256: str
    """Equal on all ranks if their shared tensors have the same names, types and shapes."""
    copied_bytes: int


class _CopyRef(NamedTuple):
    """Stands for a tensor in the document until its copy exists."""

    number: int
    dtype: str
    shape: Tuple[int, ...]


class Snapshotter:
    """Takes one snapshot at a time: all use the same memory."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._memory: Any = None

    def take(self, step: int, shared_states: Any, own_states: Any) -> Snapshot:
        """Copy both trees as they are now. The training may continue when this returns. Raises ValueError
        naming a tensor that cannot be saved."""
        shared_tensors: List[Any] = []
        tensor_rows: List[Tuple[TreePath, str, Tuple[int, ...]]] = []

        def list_tensor(value: Any, path: TreePath) -> Any:
            if not tensors.is_tensor(value):
                return tensors.buffer_of_array(value)
            shared_tensors.append(value)
            tensor_rows.append((path, tensors.dtype_name(value), tuple(value.shape)))
            return None

        tree = tensors.map_leaves(shared_states, list_tensor)
        sources: List[Any] = []
        document: Dict[str, Any] = {"rank": self._rank, "world_size": self._world_size, "step": step}
        document.update(self._plan_pieces(tensor_rows, shared_tensors, sources))

        def copy_leaf(value: Any, path: TreePath) -> Any:
            if not tensors.is_tensor(value):
                return tensors.buffer_of_array(value)
            sources.append(_flat_bytes(value, path))
            return _CopyRef(len(sources) - 1, tensors.dtype_name(value), tuple(value.shape))

        document["own"] = tensors.map_leaves(own_states, copy_leaf)
        copies = self._copy_to_memory(sources)

        def to_buffer(value: Any, path: TreePath) -> Any:
            if type(value) is _CopyRef:
                return Buffer(value.dtype, value.shape, copies[value.number])
            return value

        document = tensors.map_leaves(document, to_buffer)
        if self._rank == 0:
            document["shared"], document["tensors"] = tree, tensor_rows
        layout = hashlib.sha256(repr(tensor_rows).encode("utf-8")).hexdigest()
        return Snapshot(document, layout, sum(source.numel() for source in sources))

    def _plan_pieces(
        self,
        tensor_rows: List[Tuple[TreePath, str, Tuple[int, ...]]],
        shared_tensors: List[Any],
        sources: List[Any],
    ) -> Dict[str, Any]:
        """Choose what this rank saves of the shared tensors: pieces (ranges of bytes) of whole tensors, which
        the ranks share equally, and boxes (rectangular parts) of sharded ones. Append the bytes of each to
        ``sources``. ``tensor_rows``: path, dtype and shape of each tensor."""
        pieces: List[Tuple[int, int, _CopyRef]] = []
        boxes: List[Tuple[int, Tuple[int, ...], _CopyRef]] = []
        whole_indices = []
        for index, tensor in enumerate(shared_tensors):
            local_boxes = _local_boxes(tensor, tensor_rows[index][0])
            if not local_boxes:
                whole_indices.append(index)
            for box in local_boxes:
                if box.is_writer and 0 not in box.shape:
                    sources.append(_flat_bytes(box.local_tensor, tensor_rows[index][0]))
                    boxes.append(
                        (index, box.offsets, _CopyRef(len(sources) - 1, tensor_rows[index][1], box.shape))
                    )
        sizes = [
            shared_tensors[index].numel() * shared_tensors[index].element_size() for index in whole_indices
        ]
        total = sum(sizes)
        # Next to sharded tensors the rest is small; the leader saves it, so that a rank reads only two
        # shards.
        is_spread = len(whole_indices) == len(shared_tensors)
        share_count, share_index = (self._world_size, self._rank) if is_spread else (1, self._rank)
        share_start, share_end = total * share_index // share_count, total * (share_index + 1) // share_count
        offset = 0
        for index, size in zip(whole_indices, sizes):
            start, end = max(share_start, offset) - offset, min(share_end, offset + size) - offset
            if start < end:
                sources.append(_flat_bytes(shared_tensors[index], tensor_rows[index][0])[start:end])
                pieces.append((index, start, _CopyRef(len(sources) - 1, "bytes", (end - start,))))
            offset += size
        return {"pieces": pieces, "boxes": boxes, "all_shards_needed": is_spread}

    def _copy_to_memory(self, sources: List[Any]) -> List[memoryview]:
        """Copy all sources into the preallocated memory, which grows if necessary. Return a view of each
        copy."""
        if not sources:
            return []
        import torch

        spans, end = [], 0
        for source in sources:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + source.numel()
            spans.append((start, end))
        on_device = [source for source in sources if source.is_cuda]
        if self._memory is None or self._memory.numel() < end:
            self._memory = None  # free the old memory before allocating the new
            self._memory = torch.empty(end, dtype=torch.uint8, pin_memory=bool(on_device))
        for source, (start, stop) in zip(sources, spans):
            self._memory[start:stop].copy_(source, non_blocking=source.is_cuda)
        for device in {source.device for source in on_device}:
            torch.cuda.current_stream(device).synchronize()
        memory = tensors.memory_of(self._memory)
        return [memory[start:stop] for start, stop in spans]


def tensor_sums(shared: Any) -> List[Tuple[str, int]]:
    """Return the sum over the bytes of every shared tensor that is whole on this rank, by its path: it
    differs between ranks that do not train the same weights. Computed on the tensors' device."""
    import torch

    sums = [
        (_path_text(path), _flat_bytes(tensor, path).sum(dtype=torch.int64))
        for path, tensor in tensors.tensors_by_path(shared).items()
        if not sharded.local_boxes(tensor)
    ]
    return [(name, int(value)) for name, value in sums]


def assemble_shared(documents: Mapping[int, Mapping[str, Any]], template: Any) -> Any:
    """Return the shared tree from all ranks' documents. ``template``: the same tree in its present state; its
    sharded tensors are filled in place, each rank its own piece. Raises ValueError naming a tensor that is
    incomplete or does not fit."""
    leader = documents[0]
    tensor_rows = leader["tensors"]
    pieces: List[List[Tuple[int, Any]]] = [[] for _ in tensor_rows]
    boxes: List[List[Tuple[Tuple[int, ...], Any]]] = [[] for _ in tensor_rows]
    for document in documents.values():
        for index, first_byte, piece in document["pieces"]:
            pieces[index].append((first_byte, piece))
        for index, offsets, box in document["boxes"]:
            boxes[index].append((offsets, box))
    tensor_by_path: Dict[TreePath, Any] = {}
    for (path, dtype, shape), tensor_pieces, tensor_boxes in zip(tensor_rows, pieces, boxes):
        local_value = tensors.value_at(template, path)
        targets = _local_boxes(local_value, path) if tensors.is_tensor(local_value) else []
        if targets and tuple(local_value.shape) != tuple(shape):
            raise ValueError(
                "{}: the checkpoint has {}, the script needs {}".format(
                    _path_text(path), shape, tuple(local_value.shape)
                )
            )
        if targets:
            for target in targets:
                _fill_box(path, dtype, shape, tensor_pieces, tensor_boxes, target)
            tensor_by_path[path] = local_value
        else:
            full_tensor = tensors.empty_tensor(dtype, shape)
            whole_box = TensorBox((0,) * len(shape), tuple(shape), full_tensor, is_writer=False)
            _fill_box(path, dtype, shape, tensor_pieces, tensor_boxes, whole_box)
            tensor_by_path[path] = full_tensor

    def to_value(value: Any, path: TreePath) -> Any:
        return tensor_by_path[path] if path in tensor_by_path else tensors.from_buffer(value)

    return tensors.map_leaves(leader["shared"], to_value)


def own_state(document: Mapping[str, Any]) -> Any:
    """Return this rank's own state from its document."""
    return tensors.map_leaves(document["own"], lambda value, path: tensors.from_buffer(value))


def _fill_box(
    path: TreePath,
    dtype: str,
    shape: Tuple[int, ...],
    pieces: Iterable[Tuple[int, Any]],
    boxes: Iterable[Tuple[Tuple[int, ...], Any]],
    target: TensorBox,
) -> None:
    """Copy what the checkpoint has of a tensor into ``target``. Raises ValueError if something is missing."""
    full_tensor: Optional[Any] = None
    copied_bytes = 0
    for first_byte, piece in pieces:
        full_tensor = tensors.empty_tensor(dtype, shape) if full_tensor is None else full_tensor
        tensors.copy_bytes(tensors.flat_bytes(full_tensor), first_byte, piece.data)
        copied_bytes += piece.shape[0]
    if full_tensor is not None:
        box_slices = tuple(slice(start, start + size) for start, size in zip(target.offsets, target.shape))
        target.local_tensor.copy_(full_tensor[box_slices])
        missing = full_tensor.numel() * full_tensor.element_size() - copied_bytes
    else:
        missing = target.local_tensor.numel()
        for offsets, box in boxes:
            overlaps = tensors.box_overlap(target, offsets, box.shape)
            if overlaps or not shape:
                target_slices = tuple(
                    slice(target_start, target_start + size) for target_start, _, size in overlaps
                )
                source_slices = tuple(
                    slice(source_start, source_start + size) for _, source_start, size in overlaps
                )
                source = tensors.from_buffer(box)[source_slices]
                target.local_tensor[target_slices].copy_(source)
                missing -= source.numel()
    if missing:
        raise ValueError("{}: the checkpoint does not contain all of it".format(_path_text(path)))


def _flat_bytes(tensor: Any, path: TreePath) -> Any:
    try:
        return tensors.flat_bytes(tensor)
    except ValueError as error:
        raise ValueError("{}: {}".format(_path_text(path), error)) from None


def _local_boxes(tensor: Any, path: TreePath) -> List[TensorBox]:
    try:
        return sharded.local_boxes(tensor)
    except ValueError as error:
        raise ValueError("{}: {}".format(_path_text(path), error)) from None


def _path_text(path: TreePath) -> str:
    return ".".join(str(key) for key in path)
