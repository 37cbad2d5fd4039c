"""Train a classifier of handwritten digits with TensorFlow's ParameterServerStrategy.

    smlaunch run entrypoints/train_tensorflow_ps.py --strategy tensorflow --hosts 2 \\
        --option topology=parameter-server \\
        --input train=demo-data/train --input test=demo-data/test --local

The same file runs as the chief, on the leader, and as a worker and a parameter server on every host: which of
them it is, TF_CONFIG says. Servers keep the weights; the chief hands out steps, which workers take whenever
they are free, so that the result differs a little from run to run. At the end the chief checks that all steps
were taken, and that the classifier is good enough. Input: as prepare_digits.py writes it.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np
import tensorflow as tf


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with ParameterServerStrategy")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch-size", type=int, default=64, help="of one worker's step")
    parser.add_argument("--lr", type=float, default=0.3)
    parser.add_argument(
        "--least", type=float, default=0.9, help="of the held-out images that are to be right"
    )
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "demo-data/train"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST", "demo-data/test"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    return parser.parse_args()


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 64) and labels (n,)."""
    parts = [np.load(path) for path in sorted(Path(folder).glob("*.npz"))]
    if not parts:
        raise FileNotFoundError(f"no .npz files in {folder}: run entrypoints/prepare_digits.py first")
    images = np.concatenate([part["images"] for part in parts])
    return images.reshape(len(images), -1), np.concatenate([part["labels"] for part in parts])


def serve(cluster: tf.distribute.cluster_resolver.ClusterResolver) -> None:
    """A worker or a parameter server, until it is ended with the job."""
    server = tf.distribute.Server(
        cluster.cluster_spec(), cluster.task_type, cluster.task_id, protocol="grpc", start=True
    )
    server.join()


def main() -> None:
    args = arguments()
    cluster = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if cluster.task_type != "chief":
        serve(cluster)
        return
    strategy = tf.distribute.ParameterServerStrategy(cluster)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    workers = cluster.cluster_spec().num_tasks("worker")
    pixels, labels = load(args.train)
    with strategy.scope():
        weights = tf.Variable(tf.zeros((64, 10)))
        bias = tf.Variable(tf.zeros(10))
        steps = tf.Variable(tf.zeros((), tf.int64), trainable=False)

    def batches() -> tf.data.Dataset:
        rows = tf.data.Dataset.from_tensor_slices((pixels, labels))
        return rows.shuffle(len(labels)).repeat().batch(args.batch_size)

    @tf.function
    def step(iterator: tf.data.Iterator) -> tf.Tensor:
        images, targets = next(iterator)
        with tf.GradientTape() as tape:
            scores = images @ weights + bias
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(targets, scores))
        for variable, gradient in zip((weights, bias), tape.gradient(loss, (weights, bias)), strict=True):
            variable.assign_sub(args.lr * gradient)
        steps.assign_add(1)
        return loss

    iterator = iter(coordinator.create_per_worker_dataset(batches))
    for first_step in range(0, args.steps, 100):
        for _ in range(100):
            coordinator.schedule(step, args=(iterator,))
        coordinator.join()
        print(f"smlaunch: progress step={first_step + 100} steps={args.steps}", flush=True)

    steps_taken = int(steps.numpy())
    test_pixels, test_labels = load(args.test)
    predictions = (test_pixels @ weights.numpy() + bias.numpy()).argmax(axis=1)
    accuracy = float((predictions == test_labels).mean())
    if steps_taken != args.steps or accuracy < args.least:
        raise RuntimeError(
            f"{steps_taken} of {args.steps} steps were taken; held-out accuracy {accuracy:.4f}"
        )
    args.model_dir.mkdir(parents=True, exist_ok=True)
    np.savez(args.model_dir / "model.npz", weights=weights.numpy(), bias=bias.numpy())
    (args.model_dir / "metrics.json").write_text(json.dumps({"held_out_accuracy": accuracy}) + "\n")
    print(f"{steps_taken} steps by {workers} workers, weights on {weights.device}")
    print(f"smlaunch: metric held_out_accuracy={accuracy:.4f}")
    print(f"held-out accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
