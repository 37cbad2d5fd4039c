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
from typing import Any, Dict, List, Mapping, NamedTuple, Sequence, Tuple

from smlaunch.train import fsdp_state, tensor_trees
from smlaunch.train.tensor_trees import TensorBox, TreePath
from smlaunch.train.tree_format import Buffer

_ALIGNMENT_BYTES = 64

TensorSpec = Tuple[TreePath, str, Tuple[int, ...]]
"""Path in the tree, dtype and shape of a tensor."""


class Snapshot(NamedTuple):
    """A rank's state at one step."""

    document: Dict[str, Any]
    """For ``tree_format.encode``; valid until the next snapshot."""
    layout_sha256: str
    """Equal on all ranks if their shared tensors have the same names, types and shapes."""
    copied_bytes: int


class _CopyReference(NamedTuple):
    """Stands for a tensor in the document until its copy exists."""

    copy_index: int
    dtype: str
    shape: Tuple[int, ...]


class _WholeTensor(NamedTuple):
    """A shared tensor that is not sharded over the ranks."""

    tensor_index: int
    """Among all shared tensors."""

    tensor: Any
    path: TreePath

    @property
    def size_bytes(self) -> int:
        return int(self.tensor.numel() * self.tensor.element_size())


class Snapshotter:
    """Takes one snapshot at a time: all use the same memory."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._host_memory: Any = None

    def take_snapshot(self, step: int, shared_states: Any, own_states: Any) -> Snapshot:
        """Copy this rank's share of a checkpoint as the state is now; the training may continue when this
        returns. ``shared_states``: trees that are equal on all ranks and saved once, ``own_states``: this
        rank's; both by component. Raises ValueError naming a tensor that cannot be saved."""
        # First list what to copy, with references to copies in the document; then copy all of it at once.
        shared_tensors: List[Any] = []
        tensor_specs: List[TensorSpec] = []

        def list_shared_tensor(value: Any, path: TreePath) -> Any:
            """Add the tensor to the lists, and leave None in its place."""
            if not tensor_trees.is_tensor(value):
                return tensor_trees.array_to_buffer(value)
            shared_tensors.append(value)
            tensor_specs.append((path, tensor_trees.dtype_name(value), tuple(value.shape)))
            return None

        # map_leaves() replaces every value that is no dict, list or tuple by what the function returns.
        shared_tree = tensor_trees.map_leaves(shared_states, list_shared_tensor)
        sources: List[Any] = []  # flat bytes of tensors, by the index in _CopyReference
        document: Dict[str, Any] = {"rank": self._rank, "world_size": self._world_size, "step": step}
        # Appends this rank's part of the shared tensors to the sources.
        document.update(self._plan_own_pieces(tensor_specs, shared_tensors, sources))

        def plan_copy(value: Any, path: TreePath) -> Any:
            """Add the tensor's bytes to the sources, and leave a reference to their copy in its place."""
            if not tensor_trees.is_tensor(value):
                return tensor_trees.array_to_buffer(value)
            sources.append(_flat_bytes_of(value, path))
            return _CopyReference(len(sources) - 1, tensor_trees.dtype_name(value), tuple(value.shape))

        document["own"] = tensor_trees.map_leaves(own_states, plan_copy)
        copies = self._copy_to_host_memory(sources)

        def resolve_reference(value: Any, path: TreePath) -> Any:
            """Put a view of the copy, a Buffer, in the place of the reference to it."""
            if type(value) is _CopyReference:
                return Buffer(value.dtype, value.shape, copies[value.copy_index])
            return value

        document = tensor_trees.map_leaves(document, resolve_reference)
        if self._rank == 0:  # the same on all ranks
            document["shared"], document["tensors"] = shared_tree, tensor_specs
        # Compared between the ranks: paths, dtypes and shapes must be equal.
        layout_sha256 = hashlib.sha256(repr(tensor_specs).encode("utf-8")).hexdigest()
        copied_bytes = sum(source.numel() for source in sources)
        return Snapshot(document=document, layout_sha256=layout_sha256, copied_bytes=copied_bytes)

    def _plan_own_pieces(
        self, tensor_specs: List[TensorSpec], shared_tensors: List[Any], sources: List[Any]
    ) -> Dict[str, Any]:
        """Choose what this rank saves of the shared tensors: pieces (ranges of bytes) of whole tensors, which
        the ranks share equally, and boxes (rectangular parts) of sharded ones, where they are.

        Append the bytes of each to ``sources``, flat uint8 tensors to be copied; a _CopyReference says which
        one. ``tensor_specs``: path, dtype and shape of each shared tensor. Return members of the shard's
        document, its content."""
        boxes: List[Tuple[int, Tuple[int, ...], _CopyReference]] = []
        whole_tensors: List[_WholeTensor] = []
        for tensor_index, tensor in enumerate(shared_tensors):
            path, dtype, _shape = tensor_specs[tensor_index]
            local_boxes = _list_local_boxes_of(tensor, path)
            if not local_boxes:
                whole_tensors.append(_WholeTensor(tensor_index, tensor, path))
            for box in local_boxes:
                is_empty = 0 in box.shape
                if box.is_saved_here and not is_empty:  # of several ranks with the same box, one writes it
                    sources.append(_flat_bytes_of(box.local_tensor, path))
                    boxes.append(
                        (tensor_index, box.offsets, _CopyReference(len(sources) - 1, dtype, box.shape))
                    )
        # Next to sharded tensors the rest is small; the leader (rank 0) saves it, so that a rank reads only
        # two shards.
        are_all_whole = len(whole_tensors) == len(shared_tensors)
        share_count = self._world_size if are_all_whole else 1
        pieces = self._plan_pieces(whole_tensors, share_count, sources)  # appends to the sources
        return {"pieces": pieces, "boxes": boxes, "all_shards_needed": are_all_whole}

    def _plan_pieces(
        self, whole_tensors: List[_WholeTensor], share_count: int, sources: List[Any]
    ) -> List[Tuple[int, int, _CopyReference]]:
        """Divide the bytes of all whole tensors, one after the other, into ``share_count`` equal shares, of
        which this rank saves the one with its number, if there is one; append its bytes to ``sources``.
        Return the share as pieces: index of the tensor, the first byte in it, and a reference to the copy."""
        total_bytes = sum(whole_tensor.size_bytes for whole_tensor in whole_tensors)
        share_start = total_bytes * self._rank // share_count
        share_end = total_bytes * (self._rank + 1) // share_count
        pieces: List[Tuple[int, int, _CopyReference]] = []
        tensor_start = 0  # position in the bytes of all whole tensors
        for whole_tensor in whole_tensors:
            tensor_end = tensor_start + whole_tensor.size_bytes
            first_byte = max(share_start, tensor_start) - tensor_start
            end_byte = min(share_end, tensor_end) - tensor_start
            if first_byte < end_byte:  # the share and the tensor overlap
                tensor_bytes = _flat_bytes_of(whole_tensor.tensor, whole_tensor.path)
                sources.append(tensor_bytes[first_byte:end_byte])
                piece = _CopyReference(len(sources) - 1, "bytes", (end_byte - first_byte,))
                pieces.append((whole_tensor.tensor_index, first_byte, piece))
            tensor_start = tensor_end
        return pieces

    def _copy_to_host_memory(self, sources: List[Any]) -> List[memoryview]:
        """Copy flat uint8 tensors, on the CPU or GPUs, into this object's preallocated memory, which grows if
        necessary. Return a view of each copy, valid until the next call."""
        if not sources:
            return []
        import torch

        byte_ranges: List[Tuple[int, int]] = []
        needed_bytes = 0
        for source in sources:
            start = -(-needed_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES  # rounded up
            needed_bytes = start + source.numel()
            byte_ranges.append((start, needed_bytes))
        gpu_sources = [source for source in sources if source.is_cuda]
        if self._host_memory is None or self._host_memory.numel() < needed_bytes:
            self._host_memory = None  # free the old memory before allocating the new
            self._host_memory = torch.empty(needed_bytes, dtype=torch.uint8, pin_memory=bool(gpu_sources))
        for source, (start, end) in zip(sources, byte_ranges):
            self._host_memory[start:end].copy_(source, non_blocking=source.is_cuda)
        for device in {source.device for source in gpu_sources}:
            torch.cuda.current_stream(device).synchronize()  # until the copies are complete
        view = tensor_trees.memoryview_of(self._host_memory)
        return [view[start:end] for start, end in byte_ranges]


def sum_shared_tensors(shared: Any) -> List[Tuple[str, int]]:
    """Return the sum over the bytes of every shared tensor that is whole on this rank, by its path: it
    differs between ranks that do not train the same weights. Computed on the tensors' device."""
    import torch

    sums = [
        (_dotted_path(path), _flat_bytes_of(tensor, path).sum(dtype=torch.int64))
        for path, tensor in tensor_trees.tensors_by_path(shared).items()
        if not fsdp_state.list_local_boxes(tensor)
    ]
    return [(name, int(value)) for name, value in sums]


def assemble_shared_states(documents: Mapping[int, Mapping[str, Any]], current_states: Any) -> Any:
    """Return the tree of shared state from the shards that ranks have saved: ``documents``, by rank.

    Each has pieces (ranges of a tensor's bytes) and boxes (rectangular parts of a tensor).
    ``current_states``: the same tree as the script has it now. Its sharded tensors are filled in place, each
    rank its own boxes; other tensors are created. Raises ValueError naming a tensor that is incomplete or
    does not fit."""
    # A document is the content of one rank's shard; only rank 0 saves the tree, and of each tensor a spec:
    # its path in the tree, dtype and shape.
    leader_document = documents[0]
    tensor_specs: List[TensorSpec] = leader_document["tensors"]
    pieces_by_tensor: List[List[Tuple[int, Any]]] = [[] for _ in tensor_specs]
    boxes_by_tensor: List[List[Tuple[Tuple[int, ...], Any]]] = [[] for _ in tensor_specs]
    for document in documents.values():
        for tensor_index, first_byte, piece in document["pieces"]:
            pieces_by_tensor[tensor_index].append((first_byte, piece))
        for tensor_index, offsets, box in document["boxes"]:
            boxes_by_tensor[tensor_index].append((offsets, box))
    tensor_by_path: Dict[TreePath, Any] = {}
    for tensor_spec, pieces, boxes in zip(tensor_specs, pieces_by_tensor, boxes_by_tensor):
        path = tensor_spec[0]
        current_value = tensor_trees.value_at(current_states, path)
        tensor_by_path[path] = _assemble_tensor(tensor_spec, current_value, pieces, boxes)

    def to_value(value: Any, path: TreePath) -> Any:
        """The saved tree has None for its tensors, and Buffers for arrays."""
        return tensor_by_path[path] if path in tensor_by_path else tensor_trees.buffer_to_value(value)

    # to_value() is called for every value that is no dict, list or tuple.
    return tensor_trees.map_leaves(leader_document["shared"], to_value)


def _assemble_tensor(
    tensor_spec: TensorSpec,
    current_value: Any,
    pieces: Sequence[Tuple[int, Any]],
    boxes: Sequence[Tuple[Tuple[int, ...], Any]],
) -> Any:
    """Return a tensor with its saved content: ``current_value``, filled, if it is sharded over the ranks;
    else a new one. ``pieces`` and ``boxes``: what the checkpoint has of it."""
    path, dtype, shape = tensor_spec
    # The parts of a sharded tensor that this rank holds.
    target_boxes = _list_local_boxes_of(current_value, path) if tensor_trees.is_tensor(current_value) else []
    if not target_boxes:  # not sharded
        full_tensor = tensor_trees.empty_tensor(dtype, shape)
        # is_saved_here matters only when saving.
        whole_box = TensorBox((0,) * len(shape), tuple(shape), full_tensor, is_saved_here=False)
        _copy_saved_tensor_to(whole_box, tensor_spec, pieces, boxes)
        return full_tensor
    if tuple(current_value.shape) != tuple(shape):
        raise ValueError(
            "{}: the checkpoint has {}, the script needs {}".format(
                _dotted_path(path), shape, tuple(current_value.shape)
            )
        )
    for target_box in target_boxes:
        _copy_saved_tensor_to(target_box, tensor_spec, pieces, boxes)
    return current_value


def decode_own_states(document: Mapping[str, Any]) -> Any:
    """Return this rank's own state from its document."""
    return tensor_trees.map_leaves(document["own"], lambda value, path: tensor_trees.buffer_to_value(value))


def _copy_saved_tensor_to(
    target_box: TensorBox,
    tensor_spec: TensorSpec,
    pieces: Sequence[Tuple[int, Any]],
    boxes: Sequence[Tuple[Tuple[int, ...], Any]],
) -> None:
    """Copy what the checkpoint has of a tensor into this rank's part of it, ``target_box``.

    ``pieces``: ranges of the whole tensor's bytes, each with its first byte; ``boxes``: rectangular parts,
    each with its offsets in elements. A tensor was saved as either. Raises ValueError if something is
    missing."""
    if pieces:
        is_complete = _copy_pieces(target_box, tensor_spec, pieces)
    else:
        copied_elements = sum(_copy_overlap(target_box, offsets, box) for offsets, box in boxes)
        is_complete = copied_elements == target_box.local_tensor.numel()
    if not is_complete:
        raise ValueError("{}: the checkpoint does not contain all of it".format(_dotted_path(tensor_spec[0])))


def _copy_pieces(target_box: TensorBox, tensor_spec: TensorSpec, pieces: Sequence[Tuple[int, Any]]) -> bool:
    """Put a whole tensor together from its pieces, and copy this rank's part of it to ``target_box``. Return
    whether the pieces are all of its bytes."""
    _path, dtype, shape = tensor_spec
    full_tensor = tensor_trees.empty_tensor(dtype, shape)
    copied_bytes = 0
    for first_byte, piece in pieces:
        tensor_trees.copy_bytes(tensor_trees.flat_bytes(full_tensor), first_byte, piece.data)
        copied_bytes += piece.shape[0]
    slices = tuple(slice(start, start + size) for start, size in zip(target_box.offsets, target_box.shape))
    target_box.local_tensor.copy_(full_tensor[slices])
    total_bytes: int = full_tensor.numel() * full_tensor.element_size()
    return copied_bytes == total_bytes


def _copy_overlap(target_box: TensorBox, offsets: Tuple[int, ...], saved_box: Buffer) -> int:
    """Copy the part of a saved box, which begins at ``offsets``, that is in the target. Return its number of
    elements."""
    overlaps = tensor_trees.box_overlap(target_box, offsets, saved_box.shape)
    is_scalar = not target_box.shape
    if not overlaps and not is_scalar:
        return 0
    target_slices = tuple(slice(target_start, target_start + size) for target_start, _, size in overlaps)
    source_slices = tuple(slice(source_start, source_start + size) for _, source_start, size in overlaps)
    source = tensor_trees.buffer_to_value(saved_box)[source_slices]
    target_box.local_tensor[target_slices].copy_(source)
    element_count: int = source.numel()
    return element_count


def _flat_bytes_of(tensor: Any, path: TreePath) -> Any:
    try:
        return tensor_trees.flat_bytes(tensor)
    except ValueError as error:
        raise ValueError("{}: {}".format(_dotted_path(path), error)) from None


def _list_local_boxes_of(tensor: Any, path: TreePath) -> List[TensorBox]:
    try:
        return fsdp_state.list_local_boxes(tensor)
    except ValueError as error:
        raise ValueError("{}: {}".format(_dotted_path(path), error)) from None


def _dotted_path(path: TreePath) -> str:
    return ".".join(str(key) for key in path)
