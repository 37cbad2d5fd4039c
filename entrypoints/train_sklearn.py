"""Train scikit-learn's random forest on handwritten digits, on all cores of one host.

    smlaunch run entrypoints/train_sklearn.py --local \\
        --input train=demo-data/train --input test=demo-data/test
    python entrypoints/train_sklearn.py --train demo-data/train --test demo-data/test

joblib grows the trees in parallel; the forest is the same whatever the number of cores.
Input: ``*.npz`` files as prepare_digits.py writes them.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import joblib
import numpy as np
from sklearn.ensemble import RandomForestClassifier


def main() -> None:
    parser = argparse.ArgumentParser(description="digits with a random forest")
    parser.add_argument("--trees", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=-1, help="cores; -1 for all of the host")
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "demo-data/train"))
    parser.add_argument("--test", type=Path, default=os.environ.get("SM_CHANNEL_TEST", "demo-data/test"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    args = parser.parse_args()

    forest = RandomForestClassifier(args.trees, n_jobs=args.jobs, random_state=0)
    forest.fit(*load(args.train))
    if len(forest.estimators_) != args.trees:
        raise RuntimeError(f"scikit-learn grew {len(forest.estimators_)} of {args.trees} trees")
    accuracy = float(forest.score(*load(args.test)))
    args.model_dir.mkdir(parents=True, exist_ok=True)
    joblib.dump(forest, args.model_dir / "model.joblib")
    (args.model_dir / "metrics.json").write_text(json.dumps({"held_out_accuracy": accuracy}) + "\n")
    print(f"{args.trees} trees on {joblib.cpu_count() if args.jobs == -1 else args.jobs} cores")
    print(f"smlaunch: metric held_out_accuracy={accuracy:.4f}", flush=True)


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    parts = [np.load(path) for path in sorted(Path(folder).glob("*.npz"))]
    if not parts:
        raise FileNotFoundError(f"no .npz files in {folder}: run entrypoints/prepare_digits.py first")
    images = np.concatenate([part["images"] for part in parts])
    return images.reshape(len(images), -1), np.concatenate([part["labels"] for part in parts])


if __name__ == "__main__":
    main()
