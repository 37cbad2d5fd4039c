"""Train a small convolutional network on handwritten digits with TensorFlow's MultiWorkerMirroredStrategy.

The same file runs

    smlaunch run entrypoints/train_tensorflow.py --strategy tensorflow --hosts 2 \\
        --input train=demo-data/train --input test=demo-data/test --local
    python entrypoints/train_tensorflow.py --train demo-data/train --test demo-data/test

TF_CONFIG says who the workers are. Every step takes the same rows, whatever their number, so that the result
does not depend on it (up to the order sums are added in). At the end all workers compare their weights.
Input: ``*.npz`` files as prepare_digits.py writes them, ``images`` float32 (n, 8, 8), ``labels`` int64 (n,).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with MultiWorkerMirroredStrategy")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch-size", type=int, default=64, help="over all workers together")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "demo-data/train"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST", "demo-data/test"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    return parser.parse_args()


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images (n, 8, 8, 1) and labels (n,); files in name order, so that every worker sees the same order."""
    parts = [np.load(path) for path in sorted(Path(folder).glob("*.npz"))]
    if not parts:
        raise FileNotFoundError(f"no .npz files in {folder}: run entrypoints/prepare_digits.py first")
    images = np.concatenate([part["images"] for part in parts])
    return images[..., None], np.concatenate([part["labels"] for part in parts])


class Network(tf.Module):
    def __init__(self, seed: int) -> None:
        super().__init__()
        shapes = [(3, 3, 1, 16), (16,), (3, 3, 16, 32), (32,), (512, 64), (64,), (64, 10), (10,)]
        rng = np.random.default_rng(seed)
        self.weights = [
            tf.Variable((rng.standard_normal(shape) * scale(shape)).astype(np.float32)) for shape in shapes
        ]
        self.momenta = [tf.Variable(tf.zeros(shape), trainable=False) for shape in shapes]

    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        conv1, conv1_bias, conv2, conv2_bias, dense1, dense1_bias, dense2, dense2_bias = self.weights
        out = tf.nn.relu(tf.nn.conv2d(images, conv1, 1, "SAME") + conv1_bias)
        out = tf.nn.relu(tf.nn.conv2d(out, conv2, 1, "SAME") + conv2_bias)
        out = tf.reshape(tf.nn.max_pool2d(out, 2, 2, "VALID"), (-1, 512))
        return tf.nn.relu(out @ dense1 + dense1_bias) @ dense2 + dense2_bias


def scale(shape: tuple[int, ...]) -> float:
    """Of He's initialization; biases begin at 0."""
    return 0.0 if len(shape) == 1 else float(np.sqrt(2 / np.prod(shape[:-1])))


def weights_hash(network: Network) -> str:
    digest = hashlib.sha256()
    for variable in network.weights:
        digest.update(variable.numpy().tobytes())
    return digest.hexdigest()


def main() -> None:
    args = arguments()
    # Before anything else of TensorFlow's: it opens this worker's port and waits for the others.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = json.loads(os.environ.get("TF_CONFIG") or "{}").get("task", {"index": 0})
    workers = strategy.num_replicas_in_sync
    expected_workers = len(
        json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {}).get("worker", ["here"])
    )
    if workers < expected_workers:
        raise RuntimeError(f"TensorFlow joined {workers} of {expected_workers} workers")
    images, labels = load(args.train)
    with strategy.scope():
        network = Network(args.seed)

    @tf.function
    def train_step(images: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        def replica(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            own_rows = tf.range(context.replica_id_in_sync_group, len(images), workers)
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    tf.gather(labels, own_rows), network(tf.gather(images, own_rows))
                )
                loss = tf.reduce_sum(losses) / len(images)
            gradients = context.all_reduce("sum", tape.gradient(loss, network.weights))
            for weight, momentum, gradient in zip(network.weights, network.momenta, gradients, strict=True):
                momentum.assign(0.9 * momentum + gradient)
                weight.assign_sub(rate * momentum)
            return context.all_reduce("sum", loss)

        return strategy.experimental_local_results(strategy.run(replica, args=(images, labels)))[0]

    steps = len(labels) // args.batch_size
    for epoch in range(args.epochs):
        order = np.random.default_rng((args.seed, epoch)).permutation(len(labels))
        for step in range(steps):
            rows = order[step * args.batch_size : (step + 1) * args.batch_size]
            progress = (epoch * steps + step) / (args.epochs * steps)
            rate = tf.constant(args.lr * 0.5 * (1 + np.cos(np.pi * progress)), tf.float32)
            loss = train_step(tf.constant(images[rows]), tf.constant(labels[rows]), rate)
        if task["index"] == 0:
            counts = f"step={(epoch + 1) * steps} steps={args.epochs * steps} epoch={epoch + 1}"
            print(f"smlaunch: progress {counts} loss={float(loss):.4f}", flush=True)

    digest = weights_hash(network)
    check_all_have(digest, strategy)
    print(f"worker {task['index']} of {workers}: weights sha256 {digest}", flush=True)
    if task["index"] == 0:
        test_images, test_labels = load(args.test)
        accuracy = float((network(test_images).numpy().argmax(axis=1) == test_labels).mean())
        args.model_dir.mkdir(parents=True, exist_ok=True)
        np.savez(args.model_dir / "model.npz", *[variable.numpy() for variable in network.weights])
        (args.model_dir / "metrics.json").write_text(json.dumps({"held_out_accuracy": accuracy}) + "\n")
        print(f"smlaunch: metric held_out_accuracy={accuracy:.4f}")
        print(f"held-out accuracy {accuracy:.4f}", flush=True)


def check_all_have(digest: str, strategy: tf.distribute.Strategy) -> None:
    """Raises RuntimeError where another worker has other weights."""
    mine = tf.constant([int(digest[:15], 16)], tf.int64)
    everyones = strategy.gather(strategy.run(lambda: tf.identity(mine)), axis=0)
    if len(set(everyones.numpy())) != 1:
        raise RuntimeError(f"the workers' weights differ: {everyones.numpy().tolist()}")


if __name__ == "__main__":
    main()
