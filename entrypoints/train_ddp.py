"""Train a small convolutional network on handwritten digits with DistributedDataParallel.

The same file runs

    smlaunch run entrypoints/train_ddp.py --strategy ddp --hosts 2 --processes-per-host 2 \\
        --input train=demo-data/train --input test=demo-data/test --local
    torchrun --nproc-per-node 4 entrypoints/train_ddp.py --train demo-data/train --test demo-data/test
    python entrypoints/train_ddp.py --train demo-data/train --test demo-data/test

and, for the same seed, number of ranks and threads per rank (OMP_NUM_THREADS), ends with the same weights
however the ranks lie on hosts of one kind of processor.
Input: ``*.npz`` files as prepare_digits.py writes them, ``images`` float32 (n, 8, 8), ``labels`` int64 (n,).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a process group, which it would hold for ever (docs/runtime.md)
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with DDP")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "demo-data/train"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST", "demo-data/test"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    return parser.parse_args()


def load(folder: Path, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (n, 1, 8, 8) and labels (n,); files in name order, so that every rank sees the same order."""
    parts = [np.load(path) for path in sorted(Path(folder).glob("*.npz"))]
    if not parts:
        raise FileNotFoundError(f"no .npz files in {folder}: run entrypoints/prepare_digits.py first")
    images = np.concatenate([part["images"] for part in parts])
    labels = np.concatenate([part["labels"] for part in parts])
    return torch.from_numpy(images).unsqueeze(1).to(device), torch.from_numpy(labels).to(device)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(args: argparse.Namespace, device: torch.device, rank: int, world_size: int) -> nn.Module:
    """The trained network, without its wrapper, which holds the process group."""
    torch.manual_seed(args.seed)
    bare = network().to(device)
    fit(DistributedDataParallel(bare) if world_size > 1 else bare, args, device, rank, world_size)
    return bare


def fit(model: nn.Module, args: argparse.Namespace, device: torch.device, rank: int, world_size: int) -> None:
    """The whole training, whatever wraps the network (train_fsdp.py takes the same steps)."""
    images, labels = load(args.train, device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    per_rank = args.batch_size // world_size
    # All ranks take the same number of steps: with unequal counts, some would wait for ever in an all-reduce.
    steps = len(labels) // (per_rank * world_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs * steps)
    for epoch in range(args.epochs):
        order = torch.randperm(
            len(labels), generator=torch.Generator().manual_seed(args.seed * 100_003 + epoch)
        )
        mine = order[rank::world_size].to(device)
        for step in range(steps):
            batch = mine[step * per_rank : (step + 1) * per_rank]
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        if rank == 0:
            done = (epoch + 1) * steps
            counts = f"step={done} steps={args.epochs * steps} epoch={epoch + 1}"
            print(f"smlaunch: progress {counts} loss={loss.item():.4f}", flush=True)


def main(backend: str | None = None) -> None:
    """``backend``: of the process group, by default the one for what the ranks have."""
    args = arguments()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group(backend or ("nccl" if device.type == "cuda" else "gloo"))
        if backend is not None and dist.get_backend() != backend:
            raise RuntimeError(f"the process group is {dist.get_backend()}'s, not {backend}'s")
    model = train(args, device, rank, world_size)
    if world_size > 1:
        check_same_weights(model, world_size)
    if rank == 0:
        accuracy = evaluate(model, args.test, device)
        args.model_dir.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), args.model_dir / "model.pt")
        (args.model_dir / "metrics.json").write_text(json.dumps({"held_out_accuracy": accuracy}) + "\n")
        print(f"smlaunch: metric held_out_accuracy={accuracy:.4f}")
        print(f"weights sha256 {weights_hash(model)}")
        print(f"held-out accuracy {accuracy:.4f}", flush=True)
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


def check_same_weights(model: nn.Module, world_size: int) -> None:
    """Raises RuntimeError unless all ranks, each of which saw other samples, have the same weights."""
    hashes = [""] * world_size
    dist.all_gather_object(hashes, weights_hash(model))
    if len(set(hashes)) != 1:
        raise RuntimeError(f"the ranks' weights differ, so that no gradients were exchanged: {hashes}")


@torch.no_grad()
def evaluate(model: nn.Module, folder: Path, device: torch.device) -> float:
    images, labels = load(folder, device)
    model.eval()
    return float((model(images).argmax(dim=1) == labels).float().mean())


if __name__ == "__main__":
    main()
