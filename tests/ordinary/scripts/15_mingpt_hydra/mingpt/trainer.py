import os
from dataclasses import dataclass
from typing import Optional

import fsspec
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


@dataclass
class TrainerConfig:
    max_epochs: Optional[int] = None
    batch_size: Optional[int] = None
    data_loader_workers: Optional[int] = None
    grad_norm_clip: Optional[float] = None
    snapshot_path: Optional[str] = None
    save_every: Optional[int] = None
    use_amp: bool = False


class Trainer:
    def __init__(self, config, model, optimizer, train_dataset, test_dataset=None):
        self.config = config
        # set torchrun variables
        self.local_rank = int(os.environ["LOCAL_RANK"])
        self.global_rank = int(os.environ["RANK"])
        self.device = torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")
        self.train_loader = self._prepare_dataloader(train_dataset)
        self.test_loader = self._prepare_dataloader(test_dataset) if test_dataset else None
        self.epochs_run = 0
        self.model = model.to(self.device)
        self.optimizer = optimizer
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.use_amp)
        if config.snapshot_path is None:
            config.snapshot_path = "snapshot.pt"
        self._load_snapshot()
        self.model = DDP(self.model, device_ids=[self.local_rank] if self.device.type == "cuda" else None)

    def _prepare_dataloader(self, dataset):
        return DataLoader(dataset, batch_size=self.config.batch_size, pin_memory=True, shuffle=False,
                          num_workers=self.config.data_loader_workers, sampler=DistributedSampler(dataset))

    def _load_snapshot(self):
        try:
            with fsspec.open(self.config.snapshot_path) as f:
                snapshot = torch.load(f, map_location="cpu")
        except FileNotFoundError:
            print("Snapshot not found. Training model from scratch")
            return
        self.model.load_state_dict(snapshot["model_state"])
        self.optimizer.load_state_dict(snapshot["optimizer_state"])
        self.epochs_run = snapshot["finished_epoch"]
        print(f"Resuming training from snapshot at Epoch {self.epochs_run}")

    def _save_snapshot(self, epoch):
        snapshot = {
            "model_state": self.model.module.state_dict(),
            "optimizer_state": self.optimizer.state_dict(),
            "finished_epoch": epoch,
        }
        with fsspec.open(self.config.snapshot_path, "wb") as f:
            torch.save(snapshot, f)
        print(f"Snapshot saved at epoch {epoch}")

    def _run_batch(self, source, targets, train):
        amp = torch.amp.autocast(self.device.type, dtype=torch.float16, enabled=self.config.use_amp)
        with torch.set_grad_enabled(train), amp:
            _, loss = self.model(source, targets)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            self.scaler.unscale_(self.optimizer)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.grad_norm_clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.item()

    def _run_epoch(self, epoch, dataloader, train=True):
        dataloader.sampler.set_epoch(epoch)
        for i, (source, targets) in enumerate(dataloader):
            loss = self._run_batch(source.to(self.device), targets.to(self.device), train)
            if i % 20 == 0:
                step_type = "Train" if train else "Eval"
                print(f"[RANK{self.global_rank}] Epoch {epoch} | Iter {i} | {step_type} Loss {loss:.5f}")

    def train(self):
        for epoch in range(self.epochs_run + 1, self.config.max_epochs + 1):
            self._run_epoch(epoch, self.train_loader, train=True)
            if self.local_rank == 0 and epoch % self.config.save_every == 0:
                self._save_snapshot(epoch)
            if self.test_loader:
                self._run_epoch(epoch, self.test_loader, train=False)
