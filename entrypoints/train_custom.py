"""Distributed training with nothing but resourceconfig.json, sockets and NumPy.

What a custom container does: it reads who its peers are from the file SageMaker puts into every host, and
forms its own ring of processes, one per host. The first host of the training group gathers the gradients,
adds them up in host order and sends the sum back, so that all hosts take the same step.

    smlaunch run entrypoints/train_custom.py --strategy custom --hosts 3 \\
        --input train=demo-data/train --input test=demo-data/test --local
    python entrypoints/train_custom.py --train demo-data/train --test demo-data/test

Without the file it trains alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import socket
import struct
import time
from pathlib import Path

import numpy as np

RESOURCE_CONFIG = Path(os.environ.get("SMLAUNCH_ML_ROOT", "/opt/ml")) / "input/config/resourceconfig.json"
PORT = 7777


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="softmax regression over resourceconfig.json")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "demo-data/train"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST", "demo-data/test"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    return parser.parse_args()


def read_cluster() -> tuple[list[str], str]:
    """The training group's hosts in natural order (algo-2 before algo-10), and this host's name."""
    if not RESOURCE_CONFIG.exists():
        return ["localhost"], "localhost"
    config = json.loads(RESOURCE_CONFIG.read_text())
    current = config["current_host"]
    hosts = config["hosts"]
    for group in config.get("instance_groups") or []:
        if current in group["hosts"]:
            hosts = group["hosts"]
    return sorted(
        hosts, key=lambda host: [int(t) if t.isdigit() else t for t in re.split(r"(\d+)", host)]
    ), current


class Sum:
    """Adds an array up over all hosts; the leader adds in host order, so timing does not change the sum."""

    def __init__(self, hosts: list[str], current: str) -> None:
        self.rank = hosts.index(current)
        self.peers: list[socket.socket] = []
        if len(hosts) == 1:
            return
        if self.rank == 0:
            server = socket.create_server((current, PORT))
            connection_by_rank: dict[int, socket.socket] = {}
            while len(connection_by_rank) < len(hosts) - 1:
                connection, _ = server.accept()
                connection_by_rank[struct.unpack("!I", receive(connection, 4))[0]] = connection
            self.peers = [connection_by_rank[rank] for rank in sorted(connection_by_rank)]
        else:
            connection = connect(hosts[0], PORT)
            connection.sendall(struct.pack("!I", self.rank))
            self.peers = [connection]

    def __call__(self, array: np.ndarray) -> np.ndarray:
        if not self.peers:
            return array
        if self.rank == 0:
            total = array.copy()
            for peer in self.peers:
                total += np.frombuffer(receive(peer, array.nbytes), array.dtype).reshape(array.shape)
            for peer in self.peers:
                peer.sendall(total.tobytes())
            return total
        self.peers[0].sendall(array.tobytes())
        return np.frombuffer(receive(self.peers[0], array.nbytes), array.dtype).reshape(array.shape)


def connect(host: str, port: int, patience: float = 300) -> socket.socket:
    """Names may not resolve and the leader may not listen yet when a host starts, so this waits for both."""
    end = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection((host, port))
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("a peer left during training")
        data += piece
    return bytes(data)


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    archives = [np.load(path) for path in sorted(Path(folder).glob("*.npz"))]
    if not archives:
        raise FileNotFoundError(f"no .npz files in {folder}: run entrypoints/prepare_digits.py first")
    images = np.concatenate([archive["images"] for archive in archives]).astype(np.float64)
    flat = images.reshape(len(images), -1)
    return np.hstack([flat, np.ones((len(flat), 1))]), np.concatenate(
        [archive["labels"] for archive in archives]
    )


def main() -> None:
    args = arguments()
    hosts, current = read_cluster()
    add_up = Sum(hosts, current)
    features, labels = load(args.train)
    features, labels = features[add_up.rank :: len(hosts)], labels[add_up.rank :: len(hosts)]
    one_hot = np.eye(10)[labels]
    count = add_up(np.array([float(len(labels))]))[0]

    weights = np.zeros((features.shape[1], 10))
    for step in range(1, args.steps + 1):
        scores = features @ weights
        probabilities = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities /= probabilities.sum(axis=1, keepdims=True)
        weights = weights - args.lr * add_up(features.T @ (probabilities - one_hot)) / count
        if add_up.rank == 0 and step % 50 == 0:
            loss = -np.log(probabilities[np.arange(len(labels)), labels]).mean()
            print(f"smlaunch: progress step={step} steps={args.steps} loss={loss:.4f}", flush=True)

    digest = hashlib.sha256(weights.tobytes()).hexdigest()
    # Every host trained on other rows: equal weights show that the ring added up the gradients of all.
    own_digest = np.frombuffer(bytes.fromhex(digest), np.uint8).astype(np.float64)
    if not np.array_equal(add_up(own_digest), own_digest * len(hosts)):
        raise RuntimeError(f"the hosts' weights differ: {digest} on {current}")
    print(f"host {current} of {hosts}: weights sha256 {digest}", flush=True)
    if add_up.rank == 0:
        images, test_labels = load(args.test)
        accuracy = float(((images @ weights).argmax(axis=1) == test_labels).mean())
        args.model_dir.mkdir(parents=True, exist_ok=True)
        np.save(args.model_dir / "weights.npy", weights)
        print(f"smlaunch: metric held_out_accuracy={accuracy:.4f}")
        print(f"held-out accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
