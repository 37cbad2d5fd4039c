"""Apply a model to every record of many files, on hosts that need nothing of each other.

    smlaunch run entrypoints/infer_batch.py --hosts 2 --input records=demo-data/train,split=bytes \\
        --input model=model --local

``model`` holds weights.npy, as train_custom.py saves it; without it, a poor model is made of the mean image
of each digit, so that there is something to see. Each host takes its own part of ``records``
(``smlaunch.train.shard_files``), each process of a host its own share of that. For every file of images
(``*.npz`` as prepare_digits.py writes them) there is one of answers, ``<name>.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np

from smlaunch.train import shard_files


def main() -> None:
    parser = argparse.ArgumentParser(description="which digit is it?")
    parser.add_argument("--model", type=Path, default=os.environ.get("SM_CHANNEL_MODEL"))
    parser.add_argument("--out", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR", "answers"))
    args = parser.parse_args()

    # Set where a host has several processes.
    process, processes = (
        int(os.environ.get(f"SMLAUNCH_PROCESS{suffix}", default)) for suffix, default in (("", 0), ("ES", 1))
    )
    own_paths = [Path(path) for path in shard_files("records") if path.endswith(".npz")][process::processes]
    weights = nearest_mean_weights(own_paths) if args.model is None else np.load(args.model / "weights.npy")
    args.out.mkdir(parents=True, exist_ok=True)
    records = correct = 0
    for number, path in enumerate(own_paths, start=1):
        data = np.load(path)
        digits = predict(weights, data["images"])
        with (args.out / f"{path.stem}.jsonl").open("w") as out:
            for index, digit in enumerate(digits):
                out.write(json.dumps({"record": f"{path.stem}/{index}", "digit": int(digit)}) + "\n")
        records += len(digits)
        correct += int((digits == data["labels"]).sum())
        print(f"smlaunch: progress step={number} steps={len(own_paths)}", flush=True)
    host = os.environ.get("SM_CURRENT_HOST", "localhost")
    print(
        f"host {host} process {process}: {records} records of {len(own_paths)} files, {correct} right",
        flush=True,
    )


def predict(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    """``weights`` (65, 10) with the bias last, ``images`` (n, 8, 8): digits (n,)."""
    flat = images.reshape(len(images), -1)
    return (flat @ weights[:-1] + weights[-1]).argmax(axis=1)


def nearest_mean_weights(paths: list[Path]) -> np.ndarray:
    """The nearest of ten mean images, as ``predict`` takes it."""
    files = [np.load(path) for path in paths]
    images = np.concatenate([file["images"] for file in files] or [np.zeros((0, 8, 8))])
    labels = np.concatenate([file["labels"] for file in files] or [np.zeros(0)])
    flat = images.reshape(len(images), -1)
    rows = [flat[labels == digit].mean(axis=0) for digit in range(10)] if paths else [np.zeros(64)] * 10
    return np.vstack([np.array(rows).T, [-(row @ row) / 2 for row in rows]])


if __name__ == "__main__":
    main()
