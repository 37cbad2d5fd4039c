import os
import time

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

MODEL_CHECKPOINT = "model_state_dict.pt"
OPTIM_CHECKPOINT = "optim_state_dict.pt"


def get_latest_checkpoint_folder(path):
    if not os.path.isdir(path):
        return None
    folders = [int(name) for name in os.listdir(path) if name.isdigit()]
    return os.path.join(path, str(max(folders))) if folders else None


class Checkpointer:
    """One full state dict of the model and of the optimizer, written by rank 0."""

    def __init__(self, folder, dcp_api):
        self.folder = os.path.join(folder, "dcp_api" if dcp_api else "dtensor_api")
        self.last = get_latest_checkpoint_folder(self.folder)

    def is_empty(self):
        return self.last is None

    def load_model(self, model):
        full = torch.load(os.path.join(self.last, MODEL_CHECKPOINT), mmap=True, weights_only=True, map_location="cpu")
        set_model_state_dict(model, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))

    def load_optim(self, model, opt):
        full = torch.load(os.path.join(self.last, OPTIM_CHECKPOINT), mmap=True, weights_only=True, map_location="cpu")
        set_optimizer_state_dict(
            model, opt, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))

    def save(self, model, opt):
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        model_state = get_model_state_dict(model, options=options)
        optim_state = get_optimizer_state_dict(model, opt, options=options)
        if dist.get_rank() == 0:
            folder = os.path.join(self.folder, str(int(time.time() * 1000)))
            os.makedirs(folder, exist_ok=True)
            torch.save(model_state, os.path.join(folder, MODEL_CHECKPOINT))
            torch.save(optim_state, os.path.join(folder, OPTIM_CHECKPOINT))
            print(f"Saved checkpoint to {folder}")
