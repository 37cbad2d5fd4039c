"""Export the UCI handwritten digits, which ship inside scikit-learn, as the demo's two input channels.

    python entrypoints/prepare_digits.py --out demo-data

writes ``demo-data/train/part-0.npz`` ... and ``demo-data/test/test.npz``: 1,797 real 8x8 grey images
(Alpaydin and Kaynak, 1998), ``images`` float32 (n, 8, 8) in 0..1 and ``labels`` int64 (n,). Every fifth
image is held out. The same files come out every time.
"""

from __future__ import annotations

import argparse
import io
import zipfile
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

TRAIN_PARTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description="export the handwritten digits")
    parser.add_argument("--out", type=Path, default=Path("demo-data"))
    out = parser.parse_args().out

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    labels = digits.target.astype(np.int64)
    held_out = np.arange(len(labels)) % 5 == 4

    train, test = out / "train", out / "test"
    train.mkdir(parents=True, exist_ok=True)
    test.mkdir(parents=True, exist_ok=True)
    rows = np.flatnonzero(~held_out)
    for part, chosen in enumerate(np.array_split(rows, TRAIN_PARTS)):
        write(train / f"part-{part}.npz", images[chosen], labels[chosen])
    write(test / "test.npz", images[held_out], labels[held_out])
    print(f"{len(rows)} images to train on in {train}, {held_out.sum()} held out in {test}")


def write(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    # numpy.savez stamps the current time into the archive; the same input should give the same bytes.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in (("images.npy", images), ("labels.npy", labels)):
            buffer = io.BytesIO()
            np.save(buffer, array)
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), buffer.getvalue())


if __name__ == "__main__":
    main()
