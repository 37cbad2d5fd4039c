"""Resuming sharded state, and on another number of ranks: allowed, reported, and every sample used once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.train.ranks import ENTRYPOINTS, Ranks, run

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

SHARDED = Path(__file__).with_name("sharded_script.py")


def job(folder: Path, script: Path, arguments: list[str], ranks: int, last_step: int | None = None) -> str:
    number = len(list(folder.glob("job-*"))) + 1
    environment = {
        "SMLAUNCH_CHECKPOINTS": str(folder / "checkpoints"),
        "SMLAUNCH_TRACE": str(folder / f"trace-{number}"),
        "SMLAUNCH_JOB": f"job-{number}",
        "SM_MODEL_DIR": str(folder / "model"),
        "SMLAUNCH_UNTIL_STEP": "" if last_step is None else str(last_step),
    }
    return run(script, arguments, ranks, folder / f"job-{number}", environment)


def weights(text: str) -> str:
    match = re.search(r"weights sha256 (\w+)", text)
    assert match, text
    return match.group(1)


def test_fully_sharded_state_comes_back_bit_by_bit(tmp_path: Path) -> None:
    uncut = job(tmp_path / "whole", SHARDED, ["14"], 3)
    job(tmp_path / "cut", SHARDED, ["14"], 3, last_step=3)
    job(tmp_path / "cut", SHARDED, ["14"], 3, last_step=9)
    assert weights(job(tmp_path / "cut", SHARDED, ["14"], 3)) == weights(uncut)


@pytest.mark.real
def test_sharded_state_is_dealt_out_anew_to_other_ranks(tmp_path: Path) -> None:
    """Weights and optimizer state are the same to the last bit after the change, before a further step."""
    output_before = job(tmp_path, SHARDED, ["14"], 3, last_step=5)
    for ranks in (2, 4, 1):
        output_after = job(tmp_path, SHARDED, ["5"], ranks)
        assert weights(output_after) == weights(output_before)
        assert f"not bit-identical: 3 ranks before, {ranks} now" in output_after or ranks != 2
    assert "finished" in job(tmp_path, SHARDED, ["14"], 2)


def test_an_epoch_goes_on_with_other_ranks(tmp_path: Path) -> None:
    """DDP on 3, 2 and 4 ranks: the steps are the unsplit run's, sample for sample."""
    arguments = ["--epochs=2", "--workers=0"]
    job(tmp_path / "whole", ENTRYPOINTS / "train_resumable.py", arguments, 1)
    folder = tmp_path / "cut"
    job(folder, ENTRYPOINTS / "train_resumable.py", arguments, 3, last_step=3)
    output = job(folder, ENTRYPOINTS / "train_resumable.py", arguments, 2, last_step=9)
    assert "not bit-identical: 3 ranks before, 2 now" in output
    output = job(folder, ENTRYPOINTS / "train_resumable.py", arguments, 4)
    assert "not bit-identical: 2 ranks before, 4 now" in output
    assert weights(output)
    assert steps_of(folder) == steps_of(tmp_path / "whole")


ONE_RANK_SCRIPT = """
import sys, torch, torch.distributed as dist
from smlaunch.train import Checkpointer

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank() if "diverging" in sys.argv else 0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with Checkpointer(model=model, optimizer=optimizer, every_steps=2) as run:
    for _ in run.batches(range(9), steps=9):
        run.step()
dist.destroy_process_group()
"""


def test_weights_that_differ_between_ranks_are_not_kept_as_one(tmp_path: Path) -> None:
    """Each rank trains alone and only some know it: a checkpoint would mix their weights."""
    script = tmp_path / "alone.py"
    script.write_text(ONE_RANK_SCRIPT)
    job(tmp_path / "same", script, [], 2)
    ranks = Ranks(
        script, ["diverging"], 2, tmp_path / "job", {"SMLAUNCH_CHECKPOINTS": str(tmp_path / "checkpoints")}
    )
    assert ranks.wait() == [1, 1]
    for rank in range(2):
        assert "model.weight differs between ranks 0 and 1, but is saved only once" in ranks.output(rank)
    assert not list((tmp_path / "checkpoints").glob("*/COMMIT"))


def steps_of(folder: Path) -> dict[int, list[int]]:
    """Returns the samples of every step, over all ranks."""
    steps: dict[int, list[int]] = {}
    for path in folder.glob("trace-*/*.jsonl"):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "samples" in row:
                steps.setdefault(row["step"], []).extend(row["samples"])
    return {step: sorted(samples) for step, samples in steps.items()}
