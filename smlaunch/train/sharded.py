"""State that lies over several ranks (FSDP): which piece of each tensor is here, through PyTorch's own
state-dict functions, so that names and shapes are the whole model's and another number of ranks can load it.
"""

import sys
from typing import Any, Dict, List

from smlaunch.train.tensors import Box


def is_sharded(model: Any) -> bool:
    """Does FSDP (``fully_shard``, or the older wrapper) hold the parameters in pieces?"""
    kind = _dtensor()
    if kind is not None and any(isinstance(parameter, kind) for parameter in model.parameters()):
        return True
    return any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())


def boxes(tensor: Any) -> List[Box]:
    """The pieces of a distributed tensor that are here; none for an ordinary one. ValueError for a placement
    whose pieces are no boxes."""
    kind = _dtensor()
    if kind is not None and isinstance(tensor, kind):
        return [_box_of(tensor)]
    if type(tensor).__name__ == "ShardedTensor":
        return [
            Box(
                tuple(shard.metadata.shard_offsets),
                tuple(shard.metadata.shard_sizes),
                shard.tensor,
                writes=True,
            )
            for shard in tensor.local_shards()
        ]
    return []


def model_state(model: Any) -> Dict[str, Any]:
    from torch.distributed.checkpoint import state_dict

    state: Dict[str, Any] = state_dict.get_model_state_dict(model)
    return state


def optimizer_state(model: Any, optimizer: Any) -> Dict[str, Any]:
    """By parameter names. Collective; makes the optimizer's state when there is none yet."""
    from torch.distributed.checkpoint import state_dict

    state: Dict[str, Any] = state_dict.get_optimizer_state_dict(model, optimizer)
    return state


def restore_model(model: Any, state: Dict[str, Any]) -> None:
    from torch.distributed.checkpoint import state_dict

    state_dict.set_model_state_dict(model, state)


def restore_optimizer(model: Any, optimizer: Any, state: Dict[str, Any]) -> None:
    from torch.distributed.checkpoint import state_dict

    state_dict.set_optimizer_state_dict(model, optimizer, state)


def _box_of(tensor: Any) -> Box:
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    coordinate = tensor.device_mesh.get_coordinate()
    for placement in tensor.placements:
        # A subclass deals elements out in another way (_StridedShard); a sum that is still open is no state.
        if type(placement) not in (Shard, Replicate):
            raise ValueError(
                "its placement {} cannot be kept in pieces; only Shard and Replicate can".format(placement)
            )
    shape, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    writes = all(
        place == 0
        for place, placement in zip(coordinate, tensor.placements)
        if isinstance(placement, Replicate)
    )
    return Box(tuple(offsets), tuple(shape), tensor.to_local(), writes)


def _dtensor() -> Any:
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", None)
