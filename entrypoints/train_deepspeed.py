"""Train the network of train_ddp.py with DeepSpeed's ZeRO: gradients and optimizer states in shards.

    smlaunch run entrypoints/train_deepspeed.py --hosts 2 --processes-per-host 2 \\
        --option config=deepspeed_zero2.json \\
        --input train=demo-data/train --input test=demo-data/test --local

DeepSpeed finds its ranks by the variables that smlaunch sets; there is no deepspeed launcher and no ssh. The
stage of ZeRO and the batch size stand in the configuration file. The steps are those of train_ddp.py, so that
the weights are too, but for the order in which gradients are added up.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import deepspeed
import torch
from torch import nn
from train_ddp import check_same_weights, evaluate, load, network, weights_hash


def main() -> None:
    parser = argparse.ArgumentParser(description="digits with DeepSpeed")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "demo-data/train"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST", "demo-data/test"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    deepspeed.add_config_arguments(parser)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    bare = network()
    deepspeed.init_distributed("nccl" if torch.cuda.is_available() else "gloo")
    engine, *_ = deepspeed.initialize(
        model=bare,
        optimizer=torch.optim.SGD(bare.parameters(), lr=args.lr, momentum=0.9),
        config=args.deepspeed_config,
    )
    fit(engine, args)
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if engine.global_steps == 0:
        raise RuntimeError("DeepSpeed's engine took no step")
    if world_size > 1:
        check_same_weights(bare, world_size)
    stage = engine.zero_optimization_stage()
    print(f"rank {rank} of {world_size}, stage {stage}: weights sha256 {weights_hash(bare)}", flush=True)
    if rank == 0:
        accuracy = evaluate(bare, args.test, engine.device)
        args.model_dir.mkdir(parents=True, exist_ok=True)
        torch.save(bare.state_dict(), args.model_dir / "model.pt")
        (args.model_dir / "metrics.json").write_text(json.dumps({"held_out_accuracy": accuracy}) + "\n")
        print(f"smlaunch: metric held_out_accuracy={accuracy:.4f}")
        print(f"held-out accuracy {accuracy:.4f}", flush=True)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def fit(engine: deepspeed.DeepSpeedEngine, args: argparse.Namespace) -> None:
    """One step for every batch; DeepSpeed averages the gradients where the last of them is due."""
    rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    images, labels = load(args.train, engine.device)
    per_rank = engine.train_micro_batch_size_per_gpu()
    steps = len(labels) // (per_rank * world_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        engine.optimizer.optimizer, T_max=args.epochs * steps
    )
    for epoch in range(args.epochs):
        order = torch.randperm(
            len(labels), generator=torch.Generator().manual_seed(args.seed * 100_003 + epoch)
        )
        mine = order[rank::world_size].to(engine.device)
        for step in range(steps):
            batch = mine[step * per_rank : (step + 1) * per_rank]
            loss = nn.functional.cross_entropy(engine(images[batch]), labels[batch])
            engine.backward(loss)
            engine.step()
            schedule.step()
        if rank == 0:
            done = (epoch + 1) * steps
            counts = f"step={done} steps={args.epochs * steps} epoch={epoch + 1}"
            print(f"smlaunch: progress {counts} loss={loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
