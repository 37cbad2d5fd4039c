import torch.nn as nn

from .metadata import FEATURES


def create_model(hidden_units):
    layers, size = [], len(FEATURES)
    for units in hidden_units:
        layers += [nn.Linear(size, units), nn.ReLU()]
        size = units
    return nn.Sequential(*layers, nn.Linear(size, 1))
