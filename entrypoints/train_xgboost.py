"""Train XGBoost on handwritten digits, every worker on its own rows, and compare with one that has them all.

The same file runs

    smlaunch run entrypoints/train_xgboost.py --strategy xgboost --hosts 2 \\
        --input train=demo-data/train --input test=demo-data/test --local
    python entrypoints/train_xgboost.py --train demo-data/train --test demo-data/test

Worker n of N takes every N-th row from n on. Each pixel has 17 values, fewer than ``hist`` makes bins, so the
bins are the same however the rows are shared out, and the trees differ by the rounding of sums alone.
Input: ``*.npz`` files as prepare_digits.py writes them, ``images`` float32 (n, 8, 8), ``labels`` int64 (n,).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import xgboost
from xgboost import collective

TOLERANCE = 1e-4
"""Of a class's probability."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="digits with XGBoost")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--max-depth", type=int, default=4)
    parser.add_argument("--threads", type=int, default=0, help="of each worker; 0: one for each core")
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


def join(environ: Mapping[str, str]) -> None:
    """The other workers, where the launcher has told of any.

    Not by collective.CommunicatorContext: its end comes before an exception is printed, so that the others
    miss this worker before anybody knows why.
    """
    if "DMLC_TRACKER_URI" in environ:
        collective.init(
            dmlc_tracker_uri=environ["DMLC_TRACKER_URI"],
            dmlc_tracker_port=int(environ["DMLC_TRACKER_PORT"]),
            dmlc_task_id=environ["DMLC_TASK_ID"],
        )


def train(args: argparse.Namespace, pixels: np.ndarray, labels: np.ndarray) -> xgboost.Booster:
    parameters = {
        "objective": "multi:softprob",
        "num_class": 10,
        "tree_method": "hist",
        "max_depth": args.max_depth,
        "nthread": args.threads,
    }
    return xgboost.train(parameters, xgboost.DMatrix(pixels, labels), args.rounds)


def main() -> None:
    args = arguments()
    pixels, labels = load(args.train)
    join(os.environ)
    rank, workers = collective.get_rank(), collective.get_world_size()
    if workers != len(json.loads(os.environ.get("SM_HOSTS", '["here"]'))):
        raise RuntimeError(f"XGBoost joined {workers} of the workers {os.environ['SM_HOSTS']}")
    mine = slice(rank, None, workers)
    model = train(args, pixels[mine], labels[mine])
    rows = collective.allreduce(np.array([len(labels[mine])]), collective.Op.SUM)
    print(f"worker {rank} of {workers} trained on {len(labels[mine])} of {rows[0]} rows", flush=True)
    collective.finalize()
    if rank != 0:
        return
    test_pixels, test_labels = load(args.test)
    found = model.predict(xgboost.DMatrix(test_pixels))
    accuracy = float((found.argmax(axis=1) == test_labels).mean())
    alone = train(args, pixels, labels).predict(xgboost.DMatrix(test_pixels))
    difference = float(np.abs(found - alone).max())
    if rows[0] != len(labels) or difference > TOLERANCE:
        raise RuntimeError(
            f"not what one worker learns from all rows: off by {difference:.2e}, {rows[0]} rows"
        )
    args.model_dir.mkdir(parents=True, exist_ok=True)
    model.save_model(args.model_dir / "model.ubj")
    (args.model_dir / "metrics.json").write_text(json.dumps({"held_out_accuracy": accuracy}) + "\n")
    print(f"smlaunch: metric held_out_accuracy={accuracy:.4f}")
    print(f"probabilities off by {difference:.2e} at most from those of one worker with all rows")
    print(f"held-out accuracy {accuracy:.4f}", flush=True)


if __name__ == "__main__":
    main()
