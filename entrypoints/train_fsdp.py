"""Train the network of train_ddp.py with FSDP: every rank keeps a shard of weights, gradients and optimizer.

    smlaunch run entrypoints/train_fsdp.py --strategy ddp --hosts 2 --processes-per-host 2 \\
        --input train=demo-data/train --input test=demo-data/test --local
    torchrun --nproc-per-node 4 entrypoints/train_fsdp.py --train demo-data/train --test demo-data/test

The steps are those of train_ddp.py, so that the weights are too, but for the order in which gradients are
added up. In the end every rank gathers the whole state and tells its hash; rank 0 saves it.
"""

from __future__ import annotations

import argparse
import json
import os

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group, which it would hold for ever (docs/runtime.md)
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from train_ddp import arguments, evaluate, fit, network, weights_hash


def main() -> None:
    args = arguments()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")

    torch.manual_seed(args.seed)
    model = network().to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    total_weights = sum(weight.numel() for weight in model.parameters())
    local_weights = sum(weight.to_local().numel() for weight in model.parameters())
    if world_size > 1 and local_weights == total_weights:
        raise RuntimeError("the model was not sharded: this rank has all of its weights")
    fit(model, args, device, rank, world_size)

    state: dict[str, Tensor] = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    gathered = network().to(device)
    gathered.load_state_dict(state)
    print(
        f"rank {rank} kept {local_weights} of {total_weights} weights; weights sha256 "
        f"{weights_hash(gathered)}",
        flush=True,
    )
    if rank == 0:
        finish(gathered, args, device)
    dist.barrier()
    dist.destroy_process_group()


def finish(model: nn.Module, args: argparse.Namespace, device: torch.device) -> None:
    accuracy = evaluate(model, args.test, device)
    args.model_dir.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), args.model_dir / "model.pt")
    (args.model_dir / "metrics.json").write_text(json.dumps({"held_out_accuracy": accuracy}) + "\n")
    print(f"smlaunch: metric held_out_accuracy={accuracy:.4f}")
    print(f"held-out accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
