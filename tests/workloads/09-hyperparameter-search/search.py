import os

import numpy
import optuna
import torch
from torch import nn

data = numpy.load(os.path.join(os.environ["SM_CHANNEL_TRAIN"], "defects.npz"))
x, y = torch.tensor(data["x"]).cuda(), torch.tensor(data["y"]).cuda()


def objective(trial):
    width = trial.suggest_int("width", 64, 2048, log=True)
    rate = trial.suggest_float("rate", 1e-5, 1e-1, log=True)
    dropout = trial.suggest_float("dropout", 0.0, 0.5)
    model = nn.Sequential(
        nn.Linear(x.shape[1], width), nn.ReLU(), nn.Dropout(dropout), nn.Linear(width, 2)
    ).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    for _ in range(200):
        for part in torch.randperm(len(x) * 4 // 5).split(512):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    model.eval()
    rest = slice(len(x) * 4 // 5, None)
    return (model(x[rest]).argmax(1) == y[rest]).float().mean().item()


study = optuna.create_study(direction="maximize")
study.optimize(objective, n_trials=200)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "best.txt"), "w") as file:
    file.write(f"{study.best_params} {study.best_value}\n")
