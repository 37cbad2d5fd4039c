"""Train a small network on handwritten digits, resumable at any step: cut it anywhere, it ends the same.

    smlaunch run entrypoints/train_resumable.py --strategy ddp --processes-per-host 3 --segment 2m \\
        --input train=demo-data/train --input test=demo-data/test --local
    python entrypoints/train_resumable.py --train demo-data/train --test demo-data/test

It has what makes resuming hard: dropout, batch normalization (buffers), random augmentation in the loader's
workers, a scheduler, and several ranks. Input: ``*.npz`` as prepare_digits.py writes them; without any it
trains on digits-like noise that it makes itself.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

from smlaunch.train import Checkpointer, ResumableOrder


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits, resumable")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2, help="loader workers of each rank")
    parser.add_argument("--every-steps", type=int, help="save by steps, not by the clock")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    return parser.parse_args()


class Digits(Dataset[tuple[Tensor, int]]):
    """Images (1, 8, 8) float32 and their labels. ``augment``: each is moved by up to one pixel, and gets
    some noise, from the global generators: the order's loader sets them for each sample."""

    def __init__(self, folder: Path | None, augment: bool) -> None:
        if folder is None:
            generator = np.random.default_rng(0)
            self.images = generator.random((400, 8, 8), dtype=np.float32)
            self.labels = generator.integers(0, 10, 400)
        else:
            parts = [np.load(path) for path in sorted(folder.glob("*.npz"))]
            if not parts:
                raise FileNotFoundError(f"no .npz files in {folder}: run entrypoints/prepare_digits.py first")
            self.images = np.concatenate([part["images"] for part in parts])
            self.labels = np.concatenate([part["labels"] for part in parts])
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = self.images[index]
        if self.augment:
            rows, columns = np.random.randint(-1, 2, 2)
            image = np.roll(image, (int(rows), int(columns)), (0, 1))
        tensor = torch.from_numpy(np.ascontiguousarray(image))[None]
        if self.augment:
            tensor = tensor + 0.05 * torch.randn(tensor.shape)
        return tensor, int(self.labels[index])


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(16 * 4 * 4, 64),
        nn.ReLU(),
        nn.Dropout(0.2),
        nn.Linear(64, 10),
    )


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@torch.no_grad()
def accuracy(model: nn.Module, digits: Digits) -> float:
    model.eval()
    images, labels = zip(*(digits[index] for index in range(len(digits))), strict=True)
    predictions = model(torch.stack(images)).argmax(1)
    return float((predictions == torch.tensor(labels)).float().mean())


def main() -> None:
    args = arguments()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(args.seed)
    bare = network().to(device)
    for seed in (random.seed, np.random.seed, torch.manual_seed):  # dropout differs from rank to rank
        seed(args.seed + 1 + rank)
    model = DistributedDataParallel(bare) if world_size > 1 else bare
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    digits = Digits(args.train, augment=True)
    order = ResumableOrder(len(digits), batch_size=args.batch_size, seed=args.seed)
    order.set_rank(rank, world_size)
    steps = args.epochs * order.steps_per_epoch
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=steps)
    with Checkpointer(
        model=model, optimizer=optimizer, scheduler=schedule, order=order, every_steps=args.every_steps
    ) as run:
        for images, labels in run.batches(order.loader(digits, num_workers=args.workers), epochs=args.epochs):
            loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            run.step(loss=loss)
    del model  # DDP must be gone before the process group is
    if run.finished and rank == 0:
        args.model_dir.mkdir(parents=True, exist_ok=True)
        torch.save(
            {name: tensor.cpu() for name, tensor in bare.state_dict().items()}, args.model_dir / "model.pt"
        )
        print(f"weights sha256 {weights_hash(bare)}")
        if args.test is not None:
            reached = accuracy(bare.cpu(), Digits(args.test, augment=False))
            print(f"smlaunch: metric held_out_accuracy={reached:.4f}")
            print(f"held-out accuracy {reached:.4f}", flush=True)
    if world_size > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
