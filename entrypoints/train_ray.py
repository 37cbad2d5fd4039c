"""Train a classifier of handwritten digits on all hosts of a Ray cluster, and check it against one process.

The same file runs

    smlaunch run entrypoints/train_ray.py --strategy ray --hosts 2 \\
        --input train=demo-data/train --input test=demo-data/test --local
    python entrypoints/train_ray.py --train demo-data/train --test demo-data/test

The script is the driver. One actor on each node keeps its share of the rows; in every step each computes the
gradient of its own, the driver adds them up. In double precision that is what one process would compute, as
the driver does in the end. Input: ``*.npz`` files as prepare_digits.py writes them.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

TOLERANCE = 1e-10
"""Of a weight, in double precision: sums over rows are added in another order."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with Ray")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--train", help="a folder on every host; SM_CHANNEL_TRAIN of each by default")
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST", "demo-data/test"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    return parser.parse_args()


def load(folder: str | Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Pixels with a constant (n, 65), and labels one-hot (n, 10), in double precision."""
    folder = Path(folder or os.environ.get("SM_CHANNEL_TRAIN", "demo-data/train"))
    parts = [np.load(path) for path in sorted(folder.glob("*.npz"))]
    if not parts:
        raise FileNotFoundError(f"no .npz files in {folder}: run entrypoints/prepare_digits.py first")
    images = np.concatenate([part["images"] for part in parts]).astype(np.float64)
    pixels = np.hstack([images.reshape(len(images), -1), np.ones((len(images), 1))])
    return pixels, np.eye(10)[np.concatenate([part["labels"] for part in parts])]


def gradient(pixels: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Of the summed cross-entropy of a softmax."""
    scores = np.exp(pixels @ weights - (pixels @ weights).max(axis=1, keepdims=True))
    return pixels.T @ (scores / scores.sum(axis=1, keepdims=True) - labels)


@ray.remote(num_cpus=1)
class Worker:
    """Every N-th row from the index-th on."""

    def __init__(self, folder: str | None, index: int, workers: int) -> None:
        pixels, labels = load(folder)
        self._pixels, self._labels = pixels[index::workers], labels[index::workers]

    def rows(self) -> int:
        return len(self._labels)

    def node(self) -> str:
        return ray.get_runtime_context().get_node_id()

    def gradient(self, weights: np.ndarray) -> np.ndarray:
        return gradient(self._pixels, self._labels, weights)


@ray.remote(num_cpus=1)
def where() -> str:
    return ray.get_runtime_context().get_node_id()


def main() -> None:
    args = arguments()
    ray.init()  # RAY_ADDRESS says where the cluster is; without it Ray starts one here
    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    placement_by_node = {node: NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes}
    visited = ray.get(
        [where.options(scheduling_strategy=placement).remote() for placement in placement_by_node.values()]
    )
    workers = [
        Worker.options(scheduling_strategy=placement).remote(args.train, index, len(nodes))
        for index, placement in enumerate(placement_by_node.values())
    ]
    worker_nodes = ray.get([worker.node.remote() for worker in workers])
    rows = dict(zip(worker_nodes, ray.get([worker.rows.remote() for worker in workers]), strict=True))
    total = sum(rows.values())
    weights = np.zeros((65, 10))
    for step in range(args.steps):
        shared = ray.put(weights)
        gradients = ray.get([worker.gradient.remote(shared) for worker in workers])
        weights = weights - args.lr / total * np.sum(gradients, axis=0)
        if (step + 1) % 50 == 0:
            print(f"smlaunch: progress step={step + 1} steps={args.steps}", flush=True)
    reference = train_alone(args)
    difference = float(np.abs(weights - reference).max())
    if visited != list(nodes) or rows.keys() != nodes.keys():
        raise RuntimeError(f"of the nodes {list(nodes)} tasks ran on {visited}, actors on {worker_nodes}")
    if difference > TOLERANCE:
        raise RuntimeError(f"not what one process learns: off by {difference:.2e}")
    pixels, labels = load(args.test)
    accuracy = float(((pixels @ weights).argmax(axis=1) == labels.argmax(axis=1)).mean())
    args.model_dir.mkdir(parents=True, exist_ok=True)
    np.savez(args.model_dir / "model.npz", weights=weights)
    (args.model_dir / "metrics.json").write_text(json.dumps({"held_out_accuracy": accuracy}) + "\n")
    for node, count in rows.items():
        print(f"node {nodes[node]} trained on {count} of {total} rows")
    print(f"smlaunch: metric held_out_accuracy={accuracy:.4f}")
    print(f"weights off by {difference:.2e} at most from those of one process")
    print(f"held-out accuracy {accuracy:.4f}", flush=True)


def train_alone(args: argparse.Namespace) -> np.ndarray:
    pixels, labels = load(args.train)
    weights = np.zeros((65, 10))
    for _ in range(args.steps):
        weights = weights - args.lr / len(labels) * gradient(pixels, labels, weights)
    return weights


if __name__ == "__main__":
    main()
