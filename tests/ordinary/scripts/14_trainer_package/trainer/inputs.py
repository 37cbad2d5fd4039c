import csv

import torch
from torch.utils.data import DataLoader, TensorDataset

from . import metadata


def load_data(path):
    with open(path, newline="") as f:
        rows = list(csv.DictReader(f))
    x = torch.tensor([[float(row[name]) for name in metadata.FEATURES] for row in rows])
    y = torch.tensor([1.0 if row[metadata.TARGET] == ">50K" else 0.0 for row in rows])
    return x, y


def get_loaders(train_file, eval_file, batch_size):
    x, y = load_data(train_file)
    mean, std = x.mean(0), x.std(0) + 1e-6
    x_eval, y_eval = load_data(eval_file)
    train = DataLoader(TensorDataset((x - mean) / std, y), batch_size=batch_size, shuffle=True)
    evaluation = DataLoader(TensorDataset((x_eval - mean) / std, y_eval), batch_size=batch_size)
    return train, evaluation
