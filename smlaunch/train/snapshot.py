"""What one rank keeps of a moment: a copy in memory that was set aside before, then the tree of its part.

Shared state, equal on all ranks, is cut into as many pieces of equal bytes as there are ranks, and each keeps
one. Pieces of sharded tensors are kept where they are. Its own state every rank keeps whole.

    {"rank", "world_size", "step",
     "spread": whether all parts are needed to get the shared state back, or the leader's and one's own,
     "shared": the tree with None for its tensors,          (the leader's part only)
     "tensors": [(path, dtype, shape), ...],                (the leader's part only)
     "pieces": [(tensor, first byte, buffer), ...], "boxes": [(tensor, offsets, buffer), ...],
     "own": tree}
"""

import hashlib
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.train import sharded, tensors
from smlaunch.train.parts import Buffer
from smlaunch.train.tensors import Box, Path

_ALIGNMENT = 64


class Shot(NamedTuple):
    """``document``: for ``parts.encode``, valid until the next shot. ``layout``: the same on all ranks if
    what they share has the same names, types and shapes. ``size``: copied bytes."""

    document: Dict[str, Any]
    layout: str
    size: int


class _Copied(NamedTuple):
    number: int
    dtype: str
    shape: Tuple[int, ...]


class Camera:
    """Takes shots, one at a time: all use the same memory."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank = rank
        self._world_size = world_size
        self._memory: Any = None

    def take(self, step: int, shared: Any, own: Any) -> Shot:
        """Both trees as they are now. The training may go on when this returns. ValueError naming a tensor
        that cannot be kept."""
        listed: List[Any] = []
        rows: List[Tuple[Path, str, Tuple[int, ...]]] = []

        def outline(value: Any, path: Path) -> Any:
            if not tensors.is_tensor(value):
                return tensors.array_buffer(value)
            listed.append(value)
            rows.append((path, tensors.dtype_name(value), tuple(value.shape)))
            return None

        tree = tensors.rewrite(shared, outline)
        sources: List[Any] = []
        document: Dict[str, Any] = {"rank": self._rank, "world_size": self._world_size, "step": step}
        document.update(self._cut(rows, listed, sources))

        def keep(value: Any, path: Path) -> Any:
            if not tensors.is_tensor(value):
                return tensors.array_buffer(value)
            sources.append(_flat(value, path))
            return _Copied(len(sources) - 1, tensors.dtype_name(value), tuple(value.shape))

        document["own"] = tensors.rewrite(own, keep)
        copies = self._copy(sources)

        def developed(value: Any, path: Path) -> Any:
            if type(value) is _Copied:
                return Buffer(value.dtype, value.shape, copies[value.number])
            return value

        document = tensors.rewrite(document, developed)
        if self._rank == 0:
            document["shared"], document["tensors"] = tree, rows
        layout = hashlib.sha256(repr(rows).encode("utf-8")).hexdigest()
        return Shot(document, layout, sum(source.numel() for source in sources))

    def _cut(
        self, rows: List[Tuple[Path, str, Tuple[int, ...]]], listed: List[Any], sources: List[Any]
    ) -> Dict[str, Any]:
        pieces: List[Tuple[int, int, _Copied]] = []
        boxes: List[Tuple[int, Tuple[int, ...], _Copied]] = []
        plain = []
        for index, tensor in enumerate(listed):
            found = _boxes(tensor, rows[index][0])
            if not found:
                plain.append(index)
            for box in found:
                if box.writes and 0 not in box.shape:
                    sources.append(_flat(box.local, rows[index][0]))
                    boxes.append((index, box.offsets, _Copied(len(sources) - 1, rows[index][1], box.shape)))
        sizes = [listed[index].numel() * listed[index].element_size() for index in plain]
        total = sum(sizes)
        # Beside sharded tensors little is left; the leader keeps that, so that a rank needs two parts only.
        spread = len(plain) == len(listed)
        among, place = (self._world_size, self._rank) if spread else (1, self._rank)
        low, high = total * place // among, total * (place + 1) // among
        before = 0
        for index, size in zip(plain, sizes):
            start, end = max(low, before) - before, min(high, before + size) - before
            if start < end:
                sources.append(_flat(listed[index], rows[index][0])[start:end])
                pieces.append((index, start, _Copied(len(sources) - 1, "bytes", (end - start,))))
            before += size
        return {"pieces": pieces, "boxes": boxes, "spread": spread}

    def _copy(self, sources: List[Any]) -> List[memoryview]:
        if not sources:
            return []
        import torch

        ends, end = [], 0
        for source in sources:
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + source.numel()
            ends.append((start, end))
        on_device = [source for source in sources if source.is_cuda]
        if self._memory is None or self._memory.numel() < end:
            self._memory = None  # the old one is given back before the new one is asked for
            self._memory = torch.empty(end, dtype=torch.uint8, pin_memory=bool(on_device))
        for source, (start, stop) in zip(sources, ends):
            self._memory[start:stop].copy_(source, non_blocking=source.is_cuda)
        for device in {source.device for source in on_device}:
            torch.cuda.current_stream(device).synchronize()
        memory = tensors.address(self._memory)
        return [memory[start:stop] for start, stop in ends]


def fingerprint(shared: Any) -> List[Tuple[str, int]]:
    """The sum over the bytes of every shared tensor that is whole here, by its path: ranks that do not train
    the same weights differ in it. Computed where the tensors are."""
    import torch

    sums = [
        (_name(path), _flat(tensor, path).sum(dtype=torch.int64))
        for path, tensor in tensors.paths_of(shared).items()
        if not sharded.boxes(tensor)
    ]
    return [(name, int(value)) for name, value in sums]


def assemble(documents: Mapping[int, Mapping[str, Any]], template: Any) -> Any:
    """The shared tree from all ranks' documents. ``template``: the same tree as it is here now; where it has
    a sharded tensor, this rank's piece of that is filled in place. ValueError naming a tensor of which
    something is missing, or that does not fit."""
    leader = documents[0]
    rows = leader["tensors"]
    pieces: List[List[Tuple[int, Any]]] = [[] for _ in rows]
    boxes: List[List[Tuple[Tuple[int, ...], Any]]] = [[] for _ in rows]
    for document in documents.values():
        for index, first, piece in document["pieces"]:
            pieces[index].append((first, piece))
        for index, offsets, box in document["boxes"]:
            boxes[index].append((offsets, box))
    filled: Dict[Path, Any] = {}
    for (path, dtype, shape), its_pieces, its_boxes in zip(rows, pieces, boxes):
        present = tensors.at(template, path)
        targets = _boxes(present, path) if tensors.is_tensor(present) else []
        if targets and tuple(present.shape) != tuple(shape):
            raise ValueError("{}: {} was kept, {} is needed".format(_name(path), shape, tuple(present.shape)))
        if targets:
            for target in targets:
                _fill_box(path, dtype, shape, its_pieces, its_boxes, target)
            filled[path] = present
        else:
            whole = tensors.empty(dtype, shape)
            everything = Box((0,) * len(shape), tuple(shape), whole, writes=False)
            _fill_box(path, dtype, shape, its_pieces, its_boxes, everything)
            filled[path] = whole

    def leaf(value: Any, path: Path) -> Any:
        return filled[path] if path in filled else tensors.from_buffer(value)

    return tensors.rewrite(leader["shared"], leaf)


def own(document: Mapping[str, Any]) -> Any:
    return tensors.rewrite(document["own"], lambda value, path: tensors.from_buffer(value))


def _fill_box(
    path: Path,
    dtype: str,
    shape: Tuple[int, ...],
    pieces: Iterable[Tuple[int, Any]],
    boxes: Iterable[Tuple[Tuple[int, ...], Any]],
    target: Box,
) -> None:
    whole: Optional[Any] = None
    done = 0
    for first, piece in pieces:
        whole = tensors.empty(dtype, shape) if whole is None else whole
        tensors.fill(tensors.flat(whole), first, piece.data)
        done += piece.shape[0]
    if whole is not None:
        cut = tuple(slice(start, start + size) for start, size in zip(target.offsets, target.shape))
        target.local.copy_(whole[cut])
        missing = whole.numel() * whole.element_size() - done
    else:
        missing = target.local.numel()
        for offsets, box in boxes:
            meeting = tensors.overlap(target, offsets, box.shape)
            if meeting or not shape:
                here = tuple(slice(own, own + size) for own, _, size in meeting)
                there = tuple(slice(other, other + size) for _, other, size in meeting)
                source = tensors.from_buffer(box)[there]
                target.local[here].copy_(source)
                missing -= source.numel()
    if missing:
        raise ValueError("{}: the checkpoint does not hold all of it".format(_name(path)))


def _flat(tensor: Any, path: Path) -> Any:
    try:
        return tensors.flat(tensor)
    except ValueError as error:
        raise ValueError("{}: {}".format(_name(path), error)) from None


def _boxes(tensor: Any, path: Path) -> List[Box]:
    try:
        return sharded.boxes(tensor)
    except ValueError as error:
        raise ValueError("{}: {}".format(_name(path), error)) from None


def _name(path: Path) -> str:
    return ".".join(str(key) for key in path)
