"""Apply a model to every record of many files, on hosts that need nothing of each other.

    smlaunch run entrypoints/infer_batch.py --hosts 2 --input records=demo-data/train,split=bytes \\
        --input model=model --local

``model`` holds weights.npy, as train_custom.py saves it; without it, a poor model is made of the mean image
of each digit, so that there is something to see. Each host takes its own part of ``records``
(``smlaunch.train.part_files``), each process of a host its own share of that. For every file of images
(``*.npz`` as prepare_digits.py writes them) there is one of answers, ``<name>.jsonl``.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import numpy as np

from smlaunch.train import part_files


def main() -> None:
    parser = argparse.ArgumentParser(description="which digit is it?")
    parser.add_argument("--model", type=Path, default=os.environ.get("SM_CHANNEL_MODEL"))
    parser.add_argument("--out", type=Path, default=os.environ.get("SM_OUTPUT_DATA_DIR", "answers"))
    args = parser.parse_args()

    # Set where a host has several processes.
    process, processes = (int(os.environ.get(f"SMLAUNCH_PROCESS{s}", d)) for s, d in (("", 0), ("ES", 1)))
    mine = [Path(path) for path in part_files("records") if path.endswith(".npz")][process::processes]
    weights = means(mine) if args.model is None else np.load(args.model / "weights.npy")
    args.out.mkdir(parents=True, exist_ok=True)
    records = right = 0
    for number, path in enumerate(mine, start=1):
        found = np.load(path)
        answers = answer(weights, found["images"])
        with (args.out / f"{path.stem}.jsonl").open("w") as out:
            for index, digit in enumerate(answers):
                out.write(json.dumps({"record": f"{path.stem}/{index}", "digit": int(digit)}) + "\n")
        records += len(answers)
        right += int((answers == found["labels"]).sum())
        print(f"smlaunch: progress step={number} steps={len(mine)}", flush=True)
    host = os.environ.get("SM_CURRENT_HOST", "localhost")
    print(f"host {host} process {process}: {records} records of {len(mine)} files, {right} right", flush=True)


def answer(weights: np.ndarray, images: np.ndarray) -> np.ndarray:
    """``weights`` (65, 10) with the bias last, ``images`` (n, 8, 8): digits (n,)."""
    flat = images.reshape(len(images), -1)
    return (flat @ weights[:-1] + weights[-1]).argmax(axis=1)


def means(paths: list[Path]) -> np.ndarray:
    """The nearest of ten mean images, as ``answer`` takes it."""
    found = [np.load(path) for path in paths]
    images = np.concatenate([one["images"] for one in found] or [np.zeros((0, 8, 8))])
    labels = np.concatenate([one["labels"] for one in found] or [np.zeros(0)])
    flat = images.reshape(len(images), -1)
    rows = [flat[labels == digit].mean(axis=0) for digit in range(10)] if paths else [np.zeros(64)] * 10
    return np.vstack([np.array(rows).T, [-(row @ row) / 2 for row in rows]])


if __name__ == "__main__":
    main()
