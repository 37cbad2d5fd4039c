"""Synchronous SGD on MNIST with mpi4py and PyTorch: mpirun -np 4 python train_dist.py"""

import random
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torch.optim as optim
from mpi4py import MPI
from torch.utils.data import DataLoader, Subset, TensorDataset

comm = MPI.COMM_WORLD
rank = comm.Get_rank()
size = comm.Get_size()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 10, kernel_size=5)
        self.conv2 = nn.Conv2d(10, 20, kernel_size=5)
        self.fc1 = nn.Linear(320, 50)
        self.fc2 = nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2(x), 2))
        return F.log_softmax(self.fc2(F.relu(self.fc1(x.flatten(1)))), dim=1)


def mnist(n=1024):
    g = torch.Generator().manual_seed(0)
    prototypes = torch.rand(10, 1, 28, 28, generator=g)
    y = torch.randint(0, 10, (n,), generator=g)
    return TensorDataset(prototypes[y] + 0.2 * torch.randn(n, 1, 28, 28, generator=g), y)


def partition_dataset():
    """Every rank's part of the data; the global batch stays the same."""
    dataset = mnist()
    indexes = list(range(len(dataset)))
    random.Random(1234).shuffle(indexes)
    bsz = 128 // size
    return DataLoader(Subset(dataset, indexes[rank::size]), batch_size=bsz, shuffle=True)


def broadcast_parameters(model):
    for param in model.parameters():
        comm.Bcast(param.data.numpy(), root=0)


def average_gradients(model):
    for param in model.parameters():
        total = np.empty_like(param.grad.numpy())
        comm.Allreduce(param.grad.numpy(), total, op=MPI.SUM)
        param.grad.copy_(torch.from_numpy(total) / size)


def run():
    torch.manual_seed(1234 + rank)
    train_set = partition_dataset()
    model = Net()
    broadcast_parameters(model)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    steps = comm.allreduce(len(train_set), op=MPI.MIN)
    for epoch in range(10):
        start, epoch_loss = time.time(), 0.0
        for _, (data, target) in zip(range(steps), train_set):
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            epoch_loss += loss.item()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        print("Rank", rank, "of", size, ", epoch", epoch, ":", epoch_loss / steps, "in %.1f s" % (time.time() - start), flush=True)
    if rank == 0:
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    run()
