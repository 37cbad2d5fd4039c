"""Train a small network with Lightning, resumable at any step.

    smlaunch run entrypoints/train_lightning.py --strategy ddp --processes-per-host 2 --segment 5m --local

It has what makes resuming hard: dropout, batch normalization, augmentation in the loader, accumulated
gradients, validation, and a scheduler and a callback that act on what validation finds. The data is made
here: nothing is downloaded.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.callbacks import EarlyStopping
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from smlaunch.train import ResumableOrder
from smlaunch.train.lightning import Resume


class Shapes(Dataset[tuple[Tensor, Tensor]]):
    """Noise (1, 8, 8) with a bright row or column; which one is the label, 0 to 15. Some more noise comes
    from the global generator: the order's loader sets that for each sample."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.images = torch.randn((count, 1, 8, 8), generator=generator)
        self.labels = torch.randint(0, 16, (count,), generator=generator)
        for image, label in zip(self.images, self.labels.tolist(), strict=True):
            (image[0, label] if label < 8 else image[0, :, label - 8]).add_(3.0)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.images[index] + 0.1 * torch.randn((1, 8, 8)), self.labels[index]


class Network(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Linear(8 * 64, 16),
        )

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        loss: Tensor = nn.functional.cross_entropy(self.layers(images), labels)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, labels = batch
        loss = nn.functional.cross_entropy(self.layers(images), labels)
        self.log("val_loss", loss, sync_dist=True)

    def on_validation_end(self) -> None:
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            reached = float(self.trainer.callback_metrics["val_loss"])
            print(f"smlaunch: metric epoch={self.current_epoch} val_loss={reached:.9f}", flush=True)

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}


def weights_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="shapes, by Lightning")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--batch-size", type=int, default=64, help="over all ranks together")
    parser.add_argument("--accumulate", type=int, default=2, help="batches to a step of the optimizer")
    parser.add_argument("--workers", type=int, default=0, help="loader workers of each rank")
    parser.add_argument("--every-steps", type=int, help="save by steps, not by the clock")
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    args = parser.parse_args()
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    per_host = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    pl.seed_everything(0)
    network = Network()
    torch.manual_seed(1 + rank)  # dropout differs from rank to rank
    data, held_out = Shapes(args.samples, seed=0), Shapes(args.samples // 4, seed=1)
    order = ResumableOrder(len(data), batch_size=args.batch_size, seed=0, rank=rank, world_size=world_size)
    resume = Resume(order, every_steps=args.every_steps)
    patience = EarlyStopping("val_loss", patience=5)
    trainer = pl.Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=per_host,
        num_nodes=world_size // per_host,
        strategy="ddp" if world_size > 1 else "auto",
        max_epochs=args.epochs,
        accumulate_grad_batches=args.accumulate,
        callbacks=[resume, patience],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        logger=False,
    )
    trainer.fit(network, order.loader(data, num_workers=args.workers), DataLoader(held_out, 32))
    if resume.finished and rank == 0:
        args.model_dir.mkdir(parents=True, exist_ok=True)
        torch.save(network.state_dict(), args.model_dir / "model.pt")
        print(f"best val_loss {float(patience.best_score):.9f}")
        print(f"weights sha256 {weights_hash(network)}", flush=True)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
