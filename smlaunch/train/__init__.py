"""What a training script may import: checkpoints, resumable data, the stop that all ranks agree on."""

from smlaunch.train.checkpointer import Checkpointer
from smlaunch.train.equal_steps import equal_steps, exactly
from smlaunch.train.group import let_world_end
from smlaunch.train.io_watch import watched
from smlaunch.train.order import ResumableOrder
from smlaunch.train.part_files import part_files
from smlaunch.train.rng import sample_seed

__all__ = ["Checkpointer", "ResumableOrder", "equal_steps", "exactly", "part_files", "sample_seed", "watched"]

let_world_end()
