"""What verify-resume says about two runs, from traces written by hand."""

from __future__ import annotations

import json
from pathlib import Path

from smlaunch.runs.verify import traces
from smlaunch.runs.verify.compare import Account, compare
from smlaunch.runs.verify.hints import Hints, look
from smlaunch.runs.verify.traces import RankTrace, StepSeen

STEPS = 6
KEPT = {"model": "m", "optimizer": "o", "order": "p", "rng.torch": "r"}


def account(cut_after: int | None = None, *, digests: dict[str, str] | None = None) -> Account:
    rows = []
    for step in range(1, STEPS + 1):
        job = 0 if cut_after is None or step <= cut_after else 1
        rows.append(StepSeen(job, step, (2 * step, 2 * step + 1), 1 / step))
    trace = RankTrace(rows, {STEPS: digests or KEPT})
    return Account(("a",) if cut_after is None else ("a", "b"), {0: trace}, {"model.pt": "x"})


def changed(step: int, **values: object) -> Account:
    """Cut after step 3, with one step that went another way."""
    cut = account(3)
    rows = cut.ranks[0].steps
    rows[step - 1] = rows[step - 1]._replace(**values)
    return cut


def test_the_same() -> None:
    assert compare(account(), account(3), Hints()).identical


def test_a_step_done_twice_counts_too() -> None:
    cut = account(3)
    cut.ranks[0].steps.insert(3, StepSeen(1, 3, (6, 7), 0.25))
    verdict = compare(account(), cut, Hints())
    assert "step 3 on rank 0, the first one after cut 1 had loss 0.25" in verdict.differences[0]


def test_samples() -> None:
    verdict = compare(account(), changed(4, samples=(0, 1)), Hints(loaders=("t.py:3 DataLoader",)))
    assert verdict.differences[0].endswith("used samples [0, 1] in place of [8, 9]")
    assert "t.py:3 DataLoader" in verdict.causes[0]


def test_the_first_step_after_a_cut() -> None:
    verdict = compare(account(), changed(4, loss=9.0), Hints(random=("t.py:7 random.random",)))
    assert "random numbers of augmentation or dropout" in verdict.causes[0]
    assert "t.py:7 random.random" in verdict.causes[0]


def test_a_later_step() -> None:
    hints = Hints(schedulers=("t.py:5 StepLR",), uses_torch=True)
    verdict = compare(account(), changed(5, loss=9.0), hints)
    assert verdict.causes == (
        "the state of the scheduler is not kept: t.py:5 StepLR begins anew after a restart. Hand it to the "
        "Checkpointer as scheduler=",
    )
    (unknown,) = compare(account(), changed(5, loss=9.0), Hints()).causes
    assert "Kept are model, optimizer, order, rng.torch" in unknown


def test_only_the_state_in_the_end() -> None:
    verdict = compare(account(), account(3, digests={**KEPT, "ema": "e"}), Hints())
    assert verdict.differences == ("in the end differ: ema",)
    assert "check its load_state_dict()" in verdict.causes[0]


def test_a_loop_that_counts_by_itself() -> None:
    longer = account(3)
    longer.ranks[0].steps.append(StepSeen(1, STEPS + 1, (0, 1), 0.1))
    assert (
        "step 7 was done, and is not in the unsplit run" in compare(account(), longer, Hints()).differences[0]
    )
    shorter = account(3)
    del shorter.ranks[0].steps[-1]
    assert "step 6 was done by nobody" in compare(account(), shorter, Hints()).differences[0]


def test_files_say_less_than_state() -> None:
    cut = account(3)
    other = Account(cut.jobs, cut.ranks, {"model.pt": "y"})
    verdict = compare(account(), other, Hints())
    assert verdict.identical
    assert "model.pt" in verdict.notes[0]


def test_nothing_to_compare_is_no_proof() -> None:
    assert not compare(Account(("a",), {}), Account(("a", "b"), {}), Hints()).identical


def test_traces_are_read_in_the_order_of_jobs(tmp_path: Path) -> None:
    rows = {
        "s1": [{"step": 1, "samples": [4], "loss": 0.5}, {"step": 1, "digests": {"model": "x"}}],
        "s2": [{"step": 2, "samples": [5]}, {"step": 2, "digests": {"model": "y"}}],
    }
    for job, lines in rows.items():
        (tmp_path / f"{job}-rank0.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (tmp_path / "s1-rank0.jsonl").open("a") as file:
        file.write('{"step": 9, "sam')  # the process was killed
    (trace,) = traces.read(tmp_path, ["s1", "s2"]).values()
    assert trace.steps == [StepSeen(0, 1, (4,), 0.5), StepSeen(1, 2, (5,), None)]
    assert trace.final == {"model": "y"}
    assert traces.newest_step(tmp_path, "s2") == 2
    assert traces.newest_step(tmp_path, "s3") == 0


def test_hints_name_lines() -> None:
    text = """
import torch
def augment(image):
    return image + torch.randn(3)
def right(image, own):
    return image + torch.randn(3, generator=own)
schedule = torch.optim.lr_scheduler.StepLR(None, 3)
"""
    hints = look(text, "t.py")
    assert hints.random == ("t.py:4 torch.randn",)
    assert hints.schedulers == ("t.py:7 torch.optim.lr_scheduler.StepLR",)
    assert hints.uses_torch
    assert look("def (", "t.py") == Hints()
