"""Work that needs no process group: a forest on one host, files cleaned and answered on two."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.command import ENTRYPOINTS, smlaunch

np = pytest.importorskip("numpy", reason="`make test` installs it")
pytest.importorskip("sklearn", reason="`make test` installs it")


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    subprocess.run([sys.executable, ENTRYPOINTS / "prepare_digits.py", "--out", folder], check=True)
    return folder


def test_sklearn_is_seen_in_the_script_and_reads_digits(home: Path, digits: Path) -> None:
    inputs = ("--input", f"train={digits / 'train'}", "--input", f"test={digits / 'test'}")
    result = smlaunch(
        "run", ENTRYPOINTS / "train_sklearn.py", *inputs, "--local", "--name", "forest", "--json"
    )
    assert result.code == 0, result.text
    assert result.json()["metrics"]["held_out_accuracy"] >= 0.96
    with tarfile.open(home / "s3" / result.json()["model_artifacts"].removeprefix("s3://")) as archive:
        assert "model.joblib" in {Path(name).name for name in archive.getnames()}
    plan = smlaunch("plan", ENTRYPOINTS / "train_sklearn.py", *inputs, "--local", "--json").json()
    assert plan["strategy"] == "sklearn"
    assert "strategy.sklearn" in [reason["rule"] for reason in plan["reasons"]]


def softmax(folder: Path, digits: Path) -> Path:
    """Writes a small model: weights.npy."""
    arguments = [
        "--train",
        digits / "train",
        "--test",
        digits / "test",
        "--model-dir",
        folder,
        "--steps",
        "100",
    ]
    subprocess.run([sys.executable, ENTRYPOINTS / "train_custom.py", *arguments], check=True)
    return folder


@pytest.mark.parametrize("split", ["key", "bytes"])
def test_every_record_is_answered_once(home: Path, tmp_path: Path, digits: Path, split: str) -> None:
    model = softmax(tmp_path / "model", digits)
    result = smlaunch(
        *("run", ENTRYPOINTS / "infer_batch.py", "--local", "--name", f"infer-{split}"),
        *("--strategy", "share-nothing", "--hosts", "2", "--processes-per-host", "2"),
        *("--input", f"records={digits / 'train'},split={split}", "--input", f"model={model}"),
    )
    assert result.code == 0, result.text
    for process_name in ("algo-1 process 0", "algo-1 process 1", "algo-2 process 0", "algo-2 process 1"):
        assert f"host {process_name}: " in result.text, result.text
    predictions: Counter[str] = Counter()
    digit_of: dict[str, int] = {}
    for archive in home.glob(f"s3/*/smlaunch/infer-{split}*/output/*/output/output.tar.gz"):
        with tarfile.open(archive) as tar:
            for member in tar:
                file = tar.extractfile(member)
                for line in file or ():
                    row = json.loads(line)
                    predictions[row["record"]] += 1
                    digit_of[row["record"]] = row["digit"]
    labels = {
        f"{path.stem}/{index}": int(label)
        for path in (digits / "train").glob("*.npz")
        for index, label in enumerate(np.load(path)["labels"])
    }
    assert predictions == dict.fromkeys(labels, 1)
    right = sum(digit_of[record] == label for record, label in labels.items())
    assert right / len(labels) >= 0.9


def test_a_part_that_fails_ends_no_other_and_the_run_says_so(home: Path, tmp_path: Path) -> None:
    """The job has ``on_host_failure: finish``."""
    data = tmp_path / "data"
    data.mkdir()
    for name in "abc":
        (data / name).write_text(name * 100)
    script = tmp_path / "source" / "work.py"
    script.parent.mkdir()
    script.write_text(
        "import os, sys\n"
        "from smlaunch.train import shard_files\n"
        "for path in shard_files('train'):\n"
        "    if path.endswith('b'):\n"
        "        sys.exit('b cannot be read')\n"
        "    target = os.path.join(os.environ['SM_OUTPUT_DATA_DIR'], os.path.basename(path))\n"
        "    open(target, 'w').write(open(path).read().upper())\n"
    )
    options = ("--strategy", "share-nothing", "--hosts", "3", "--input", f"train={data},split=bytes")
    policy = ("--option", "on_host_failure=finish", "--attempts", "1")
    result = smlaunch("run", script, *options, *policy, "--local", "--name", "parts")
    assert result.code == 1, result.text
    assert "2 of 3 shards have completed" in result.err
    files = {}
    for archive in home.glob("s3/*/smlaunch/parts*/output/*/output/output.tar.gz"):
        with tarfile.open(archive) as tar:
            for member in tar:
                file = tar.extractfile(member)
                if file is not None:
                    files[Path(member.name).name] = file.read()
    assert files == {"a": b"A" * 100, "c": b"C" * 100}
    details = smlaunch("show", "parts", "--local", "--json").json()
    assert (details["status"], details["exit_code"]) == ("Failed", 1)
    failed = [job["failure"]["cause"] for job in details["jobs"] if job["failure"]]
    assert failed == ["b cannot be read"], details["jobs"]


def test_files_are_cleaned_by_a_processing_job(home: Path, tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    subprocess.run([sys.executable, ENTRYPOINTS / "prepare_spark.py", "--make", tables], check=True)
    result = smlaunch(
        *("run", ENTRYPOINTS / "process_files.py", "--strategy", "processing", "--hosts", "2", "--local"),
        *("--input", f"sales={tables / 'sales'},split=key", "--name", "clean", "--", "--least", "100"),
    )
    assert result.code == 0, result.text
    (output,) = home.glob("s3/*/smlaunch/clean/output/clean-s1-a1/output")
    summaries = [json.loads(path.read_text()) for path in sorted(output.glob("summary-algo-*.json"))]
    assert [len(summary) for summary in summaries] == [4, 4]
    row_counts = {name: counts["kept"] for summary in summaries for name, counts in summary.items()}
    for path in (tables / "sales").glob("*.csv"):
        with path.open(newline="") as file:
            expected_rows = [row for row in csv.DictReader(file) if int(row["cents"]) >= 100]
        with (output / path.name).open(newline="") as file:
            assert list(csv.DictReader(file)) == expected_rows
        assert row_counts.pop(path.name) == len(expected_rows)
    assert not row_counts
