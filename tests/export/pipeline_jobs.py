"""A pipeline of three jobs whose data can be traced: each one's output depends on its whole input."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from smlaunch.job.yaml_file import dump_job_yaml

RAW = "".join(f"{number}\n" for number in range(1, 10))

PREPARE = """
import json, os, pathlib
raw = sorted(pathlib.Path(os.environ["SM_CHANNEL_RAW"]).iterdir())
rows = [int(line) * int(os.environ["FACTOR"]) for file in raw for line in file.read_text().split()]
folder = pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "rows")
folder.mkdir()
(folder / "rows.json").write_text(json.dumps(rows))
"""

TRAIN = """
import hashlib, json, os, pathlib
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED
from smlaunch.contract.segment import Segment
from smlaunch.train.tree_format import encode_tree
from smlaunch.train.checkpoint_store import CheckpointStore

segment = Segment.from_environment(os.environ)
rows = json.loads(pathlib.Path(os.environ["SM_CHANNEL_TRAIN"], "rows.json").read_text())
names = {"job": segment.job, "writer": segment.writer}
store = CheckpointStore(segment.checkpoint_dir, 0, 1, keep_last=segment.keep_steps, **names)
manifest = store.newest_intact_manifest()
state = {"step": 0, "weights": ""} if manifest is None else store.open_shard(manifest).read_tree()
for row in rows[3 * state["step"]:][:3]:  # a third for each segment
    state["weights"] = hashlib.sha256((state["weights"] + str(row)).encode()).hexdigest()
state["step"] += 1
store.commit(state["step"], [store.write_shard(state["step"], encode_tree(state).chunks())])
done = 3 * state["step"]
result = FINISHED if done == len(rows) else CONTINUE
store.write_outcome(result, state["step"])
if result == FINISHED:
    print("smlaunch: metric loss=0.5 share_seen=%.2f" % (done / len(rows)), flush=True)
pathlib.Path(os.environ["SM_MODEL_DIR"], "weights").write_text(state["weights"])
"""

EVALUATE = """
import hashlib, json, os, pathlib, tarfile
(archive,) = pathlib.Path(os.environ["SM_CHANNEL_MODEL"]).iterdir()
with tarfile.open(archive) as members:
    weights = members.extractfile("weights").read().decode()
rows = json.loads(pathlib.Path(os.environ["SM_CHANNEL_DATA"], "rows", "rows.json").read_text())
expected = ""
for row in rows:
    expected = hashlib.sha256((expected + str(row)).encode()).hexdigest()
metrics = {"same": float(weights == expected)}
report = {"metrics": metrics, "weights": weights, "run": os.environ["SMLAUNCH_RUN"]}
pathlib.Path(os.environ["SM_OUTPUT_DATA_DIR"], "report.json").write_text(json.dumps(report))
"""


def weights_of(factor: int) -> str:
    weights = ""
    for row in RAW.split():
        weights = hashlib.sha256((weights + str(int(row) * factor)).encode()).hexdigest()
    return weights


def steps(raw: str, factor: int = 2, least: float = 0.99) -> list[dict[str, Any]]:
    """Return the steps. ``factor``: a variable of the first job; ``least``: the second one's requirement."""
    machine = {"compute": {"instance_type": "ml.m5.large"}}
    work = {**machine, "strategy": "processing"}
    return [
        {
            "name": "prepare",
            "job": {
                **work,
                "entry": "prepare/prepare.py",
                "inputs": {"raw": raw},
                "environment": {"FACTOR": str(factor)},
            },
            "cache": "30d",
        },
        {
            "name": "train",
            "job": {
                **machine,
                "entry": "train/train.py",
                "strategy": "custom",
                "limits": {"max_runtime": "4m", "segment": "60s"},
            },
            "inputs": {"train": "prepare/rows"},
            "require": [f"share_seen >= {least}"],
        },
        {
            "name": "evaluate",
            "job": {**work, "entry": "evaluate/evaluate.py"},
            "inputs": {"model": "train", "data": "prepare"},
            "require": ["report.json:metrics.same == 1"],
        },
    ]


def write(folder: Path, steps: list[dict[str, Any]], name: str = "churn") -> Path:
    """Write the pipeline's file and its scripts; return the path of the file."""
    for script, text in {"prepare": PREPARE, "train": TRAIN, "evaluate": EVALUATE}.items():
        (folder / script).mkdir(parents=True, exist_ok=True)
        (folder / script / f"{script}.py").write_text(text)
    path = folder / "pipeline.yaml"
    path.write_text(dump_job_yaml({"pipeline": name, "steps": steps}))
    return path


def index_steps(answer: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the steps of an answer of ListPipelineExecutionSteps by their names."""
    return {step["StepName"]: step for step in answer["PipelineExecutionSteps"]}


def report(text: bytes) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(text)
    return read
