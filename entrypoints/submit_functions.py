"""Train in functions of this file, on the hosts of a job: python entrypoints/submit_functions.py --local

No script is launched: this process submits the functions, and gets what they return. ``--local`` runs them on
this machine; without it they run in the configured region.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import smlaunch


def make_points(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in a plane, and whether each lies within a circle."""
    points = torch.rand(count, 2, generator=torch.Generator().manual_seed(seed)) * 2 - 1
    return points, (points.square().sum(dim=1) < 0.5).float()


def train(rate: float, steps: int) -> dict[str, object]:
    """Every rank calls this. What rank 0 returns is the result."""
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    points, labels = make_points(256, seed=dist.get_rank())  # each rank has its own share
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(points).squeeze(1), labels)
        loss.backward()
        optimizer.step()
    ranks = dist.get_world_size()
    dist.destroy_process_group()
    if not torch.isfinite(loss):
        raise ValueError(f"the loss is {loss.item()} with rate {rate}")
    weights = {name: weight.numpy() for name, weight in layers.state_dict().items()}
    return {"rate": rate, "ranks": ranks, "loss": loss.item(), "weights": weights}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--local", action="store_true", help="on this machine")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--processes-per-host", type=int, default=2)
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.1])
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()

    compute = smlaunch.Compute(hosts=args.hosts, processes_per_host=args.processes_per_host)
    target = smlaunch.local_target() if args.local else smlaunch.Target.region()
    futures = [
        smlaunch.submit(train, rate, args.steps, job=smlaunch.Job(compute=compute), target=target)
        for rate in args.rates
    ]
    results = [future.result() for future in futures]
    best = min(results, key=lambda result: result["loss"])
    points, labels = make_points(1000, seed=12345)
    layers = torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    layers.load_state_dict({name: torch.from_numpy(array) for name, array in best["weights"].items()})
    accuracy = ((layers(points).squeeze(1) > 0) == (labels > 0.5)).float().mean().item()
    print(f"rate {best['rate']} on {best['ranks']} ranks: loss {best['loss']:.3f}, accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
