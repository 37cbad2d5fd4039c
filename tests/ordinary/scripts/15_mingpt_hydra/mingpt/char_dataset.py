from dataclasses import dataclass
from typing import Optional

import fsspec
import torch
from torch.utils.data import Dataset


@dataclass
class DataConfig:
    path: Optional[str] = None
    block_size: Optional[int] = None
    train_split: Optional[float] = None
    truncate: float = 1.0


class CharDataset(Dataset):
    """Pieces of a text, character by character; the target is the piece one character on."""

    def __init__(self, data_cfg):
        data = fsspec.open(data_cfg.path).open().read().decode("utf-8")
        data = data[: int(len(data) * data_cfg.truncate)]
        chars = sorted(set(data))
        print("Data has %d characters, %d unique." % (len(data), len(chars)))
        self.stoi = {ch: i for i, ch in enumerate(chars)}
        self.itos = {i: ch for i, ch in enumerate(chars)}
        self.block_size = data_cfg.block_size
        self.vocab_size = len(chars)
        self.data = torch.tensor([self.stoi[ch] for ch in data], dtype=torch.long)

    def __len__(self):
        return len(self.data) - self.block_size

    def __getitem__(self, idx):
        chunk = self.data[idx : idx + self.block_size + 1]
        return chunk[:-1], chunk[1:]
