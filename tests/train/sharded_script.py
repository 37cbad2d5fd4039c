"""Trains a small network with FSDP (fully_shard) on the CPU; prints the sha256 of the whole weights."""

from __future__ import annotations

import hashlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from smlaunch.train import Checkpointer, ResumableOrder


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(10, 33), nn.GELU(), nn.Dropout(0.1), nn.Linear(33, 7))
    torch.manual_seed(2 + rank)
    fully_shard(model, mesh=init_device_mesh("cpu", (world_size,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    inputs = torch.randn(60, 10, generator=torch.Generator().manual_seed(0))
    order = ResumableOrder(len(inputs), batch_size=12, seed=4)
    with Checkpointer(
        model=model, optimizer=optimizer, scheduler=schedule, order=order, every_steps=4
    ) as run:
        for batch in run.batches(order.loader(inputs), steps=int(sys.argv[1])):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            run.step(loss=loss)
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    moments = [value["exp_avg"].full_tensor() for value in optimizer.state.values()]
    digest = hashlib.sha256()
    for tensor in [*state.values(), *moments]:
        digest.update(tensor.numpy().tobytes())
    if rank == 0:
        print("finished" if run.finished else "continued", "weights sha256", digest.hexdigest())
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("RANK", "0")
    main()
