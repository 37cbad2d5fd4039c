"""State that is distributed over several ranks (FSDP): which piece of each tensor is on this rank, through
PyTorch's own state-dict functions, so that names and shapes are the whole model's and another number of ranks
can load it."""

import sys
from typing import Any, Dict, List

from smlaunch.train.tensor_trees import TensorBox


def is_sharded(model: Any) -> bool:
    """Return whether FSDP (``fully_shard``, or the older wrapper) holds the parameters in pieces."""
    dtensor_class = _dtensor_class()
    if dtensor_class is not None and any(
        isinstance(parameter, dtensor_class) for parameter in model.parameters()
    ):
        return True
    return any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())


def list_local_boxes(tensor: Any) -> List[TensorBox]:
    """Return the boxes of a distributed tensor on this rank, each a rectangular block of its elements; none
    for an ordinary tensor. Raises ValueError for a tensor that is distributed in another way."""
    dtensor_class = _dtensor_class()
    if dtensor_class is not None and isinstance(tensor, dtensor_class):  # of fully_shard
        return [_dtensor_box(tensor)]
    if type(tensor).__name__ == "ShardedTensor":  # of the older FullyShardedDataParallel
        return [
            TensorBox(
                offsets=tuple(shard.metadata.shard_offsets),
                shape=tuple(shard.metadata.shard_sizes),
                local_tensor=shard.tensor,
                is_saved_here=True,  # no other rank has it
            )
            for shard in tensor.local_shards()
        ]
    return []


def model_state(model: Any) -> Dict[str, Any]:
    from torch.distributed.checkpoint import state_dict

    state: Dict[str, Any] = state_dict.get_model_state_dict(model)
    return state


def optimizer_state(model: Any, optimizer: Any) -> Dict[str, Any]:
    """Return the state by parameter names. Collective; creates the optimizer's state if it has none yet."""
    from torch.distributed.checkpoint import state_dict

    state: Dict[str, Any] = state_dict.get_optimizer_state_dict(model, optimizer)
    return state


def load_model_state(model: Any, state: Dict[str, Any]) -> None:
    from torch.distributed.checkpoint import state_dict

    state_dict.set_model_state_dict(model, state)


def load_optimizer_state(model: Any, optimizer: Any, state: Dict[str, Any]) -> None:
    from torch.distributed.checkpoint import state_dict

    state_dict.set_optimizer_state_dict(model, optimizer, state)


def _dtensor_box(tensor: Any) -> TensorBox:
    """Return this rank's piece of a DTensor. Raises ValueError for a placement that is neither Shard nor
    Replicate."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    coordinate = tensor.device_mesh.get_coordinate()
    for placement in tensor.placements:
        # A subclass distributes elements differently (_StridedShard); a partial sum is not a state.
        if type(placement) not in (Shard, Replicate):
            raise ValueError(
                "its placement {} cannot be saved in pieces; only Shard and Replicate can".format(placement)
            )
    shape, offsets = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    # This rank's coordinate in each dimension of the mesh along which ranks have the same box.
    replica_indices = [
        index for index, placement in zip(coordinate, tensor.placements) if isinstance(placement, Replicate)
    ]
    return TensorBox(
        offsets=tuple(offsets),
        shape=tuple(shape),
        local_tensor=tensor.to_local(),
        is_saved_here=not any(replica_indices),  # by the first replica
    )


def _dtensor_class() -> Any:
    module = sys.modules.get("torch.distributed.tensor")
    return getattr(module, "DTensor", None)
