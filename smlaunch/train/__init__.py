"""What a training script may import: checkpoints, resumable data, and a stop that all ranks agree on."""

from smlaunch.train.checkpointer import Checkpointer
from smlaunch.train.data_wait_monitor import measure_data_wait
from smlaunch.train.equal_steps import batches_for_steps, equal_steps
from smlaunch.train.rank_group import preload_distributed_nn
from smlaunch.train.resumable_order import ResumableOrder
from smlaunch.train.rng import sample_seed
from smlaunch.train.shard_files import shard_files

__all__ = [
    "Checkpointer",
    "ResumableOrder",
    "batches_for_steps",
    "equal_steps",
    "measure_data_wait",
    "sample_seed",
    "shard_files",
]

preload_distributed_nn()
