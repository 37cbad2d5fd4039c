"""Train a small network with Hugging Face's accelerate, resumable at any step.

    smlaunch run entrypoints/train_accelerate.py --processes-per-host 2 --segment 5m --local

The recipe: model, optimizer and scheduler are prepared by accelerate and handed to the Checkpointer; the data
is not prepared, since the order deals the samples out to the ranks itself. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.utils.data import Dataset

from smlaunch.train import Checkpointer, ResumableOrder


class Waves(Dataset[tuple[Tensor, Tensor]]):
    """A sine (32,) with noise of its own each time, and its frequency (1,)."""

    def __init__(self, count: int) -> None:
        self.frequencies = 1 + 4 * torch.rand(count, generator=torch.Generator().manual_seed(0))
        self.places = torch.linspace(0, 6.28, 32)

    def __len__(self) -> int:
        return len(self.frequencies)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        wave = torch.sin(self.frequencies[index] * self.places)
        return wave + 0.05 * torch.randn(32), self.frequencies[index : index + 1]


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="waves, by accelerate")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks together")
    parser.add_argument("--workers", type=int, default=0, help="loader workers of each rank")
    parser.add_argument("--every-steps", type=int, help="save by steps, not by the clock")
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    args = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)
    )
    torch.manual_seed(1 + accelerator.process_index)  # dropout differs from rank to rank
    waves = Waves(args.samples)
    order = ResumableOrder(len(waves), batch_size=args.batch_size, seed=0)
    order.set_rank(accelerator.process_index, accelerator.num_processes)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    # Prepared, it takes a step for every rank with every step of the training.
    total_steps = args.epochs * order.steps_per_epoch * accelerator.num_processes
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total_steps)
    model, optimizer, schedule = accelerator.prepare(network, optimizer, schedule)
    loader = order.loader(waves, num_workers=args.workers)
    with Checkpointer(
        model=model, optimizer=optimizer, scheduler=schedule, order=order, every_steps=args.every_steps
    ) as run:
        for inputs, targets in run.batches(loader, epochs=args.epochs):
            predictions = model(inputs.to(accelerator.device))
            loss = nn.functional.mse_loss(predictions, targets.to(accelerator.device))
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            run.step(loss=loss)
    if run.finished and accelerator.is_main_process:
        args.model_dir.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), args.model_dir / "model.pt")
        print(f"weights sha256 {weights_hash(network)}", flush=True)
    del model
    accelerator.end_training()


if __name__ == "__main__":
    main()
