"""The proof: cut anywhere, by agreement, by SIGTERM or by SIGKILL, a training ends with the very weights and
optimizer state, and has used the very samples, of one that was never cut."""

from __future__ import annotations

import json
import random
import re
import signal
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.train.ranks import ENTRYPOINTS, Ranks, run

pytest.importorskip("torch")

pytestmark = pytest.mark.torch

SCRIPT = ENTRYPOINTS / "train_resumable.py"
EPOCHS, STEPS_PER_EPOCH = 3, 7
STEPS = EPOCHS * STEPS_PER_EPOCH
EVERY_STEPS = 3


class Lineage:
    """One training over any number of jobs."""

    def __init__(self, folder: Path, ranks: int, workers: int) -> None:
        self.folder = folder
        self.ranks = ranks
        self.arguments = [f"--epochs={EPOCHS}", f"--workers={workers}", f"--every-steps={EVERY_STEPS}"]
        self.jobs = 0

    def environment(self, **variables: str) -> dict[str, str]:
        self.jobs += 1
        return {
            "SMLAUNCH_CHECKPOINTS": str(self.folder / "checkpoints"),
            "SMLAUNCH_TRACE": str(self.folder / "trace"),
            "SMLAUNCH_RUN": "lineage",
            "SMLAUNCH_JOB": f"job-{self.jobs}",
            "SM_MODEL_DIR": str(self.folder / "model"),
            **variables,
        }

    def job(self, **variables: str) -> str:
        environment = self.environment(**variables)
        return run(SCRIPT, self.arguments, self.ranks, self.folder / f"job-{self.jobs}", environment)

    def start(self, **variables: str) -> Ranks:
        environment = self.environment(**variables)
        return Ranks(SCRIPT, self.arguments, self.ranks, self.folder / f"job-{self.jobs}", environment)

    @property
    def outcome(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            (self.folder / "checkpoints/smlaunch/outcome-lineage-s1-a1.json").read_text()
        )
        return document

    def trace(self) -> tuple[dict[tuple[int, int], list[int]], dict[tuple[int, int], dict[str, str]]]:
        """Returns samples and digests of the state by (rank, step). A step done twice gave the same."""
        samples: dict[tuple[int, int], list[int]] = {}
        digests: dict[tuple[int, int], dict[str, str]] = {}
        for rank in range(self.ranks):
            for job in range(1, self.jobs + 1):
                path = self.folder / f"trace/job-{job}-rank{rank}.jsonl"
                for line in path.read_text().splitlines() if path.exists() else ():
                    row = json.loads(line)
                    key = rank, row["step"]
                    if "samples" in row:
                        assert samples.setdefault(key, row["samples"]) == row["samples"]
                    elif "digests" in row:
                        assert digests.setdefault(key, row["digests"]) == row["digests"], key
        return samples, digests


def check_same_training(uncut: Lineage, cut: Lineage, output: str) -> None:
    """Compares weights, optimizer, scheduler, buffers, generators and order at every step that both have
    saved."""
    samples, digests = uncut.trace()
    cut_samples, cut_digests = cut.trace()
    assert cut_samples == samples
    common = digests.keys() & cut_digests.keys()
    assert {(rank, STEPS) for rank in range(uncut.ranks)} <= common
    for key in sorted(common):
        assert cut_digests[key] == digests[key], key
    for epoch in range(EPOCHS):
        used_samples = [
            sample
            for (_, step), of_step in cut_samples.items()
            if (step - 1) // STEPS_PER_EPOCH == epoch
            for sample in of_step
        ]
        assert sorted(used_samples) == list(range(400))
    assert cut.outcome["result"] == "finished"
    assert weights(output) == weights((uncut.folder / "job-1/out-0").read_text())


def weights(text: str) -> str:
    match = re.search(r"weights sha256 ([0-9a-f]{64})", text)
    assert match, text
    return match.group(1)


def cut_by_agreement(tmp_path: Path, ranks: int, workers: int, seed: int) -> None:
    uncut = Lineage(tmp_path / "whole", ranks, workers)
    uncut.job()
    cut = Lineage(tmp_path / "cut", ranks, workers)
    for step in sorted(random.Random(seed).sample(range(1, STEPS), 3)):
        output = cut.job(SMLAUNCH_UNTIL_STEP=str(step))
        assert "weights" not in output
        assert (cut.outcome["result"], cut.outcome["step"]) == ("continue", step)
    check_same_training(uncut, cut, cut.job())


def test_three_ranks_with_loader_workers(tmp_path: Path) -> None:
    cut_by_agreement(tmp_path, ranks=3, workers=2, seed=5)


@pytest.mark.real
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_cut_anywhere(tmp_path: Path, ranks: int, workers: int) -> None:
    cut_by_agreement(tmp_path, ranks, workers, seed=10 * ranks + workers)


def wait_for_step(ranks: Ranks, step: int, seconds: float = 60) -> None:
    """Waits until rank 0 has reported the step."""
    finished = threading.Event()
    path = ranks.folder / "out-0"

    def watch() -> None:
        while not finished.wait(0.002):
            if f" step={step} " in (path.read_text() if path.exists() else ""):
                finished.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert finished.wait(seconds), ranks.output()
    watcher.join()


def cut_by_signal(tmp_path: Path, ranks: int, workers: int, number: int, seed: int, cuts: int) -> int:
    """Returns the number of jobs that trained it."""
    rng = random.Random(seed)
    uncut = Lineage(tmp_path / "whole", ranks, workers)
    uncut.job()
    cut = Lineage(tmp_path / "cut", ranks, workers)
    after_step = 0
    for _ in range(cuts):
        after_step += rng.randint(1, STEPS // (cuts + 1))
        running = cut.start()
        wait_for_step(running, after_step)
        running.signal(rng.randrange(ranks), number)
        if number == signal.SIGKILL:  # as the host does when one of its ranks has ended
            for rank in range(ranks):
                running.signal(rank, number)
            running.wait()
        else:
            assert running.wait() == [0] * ranks, running.output()
            after_step = cut.outcome["step"]
            if cut.outcome["result"] == "finished":
                break
    if not (cut.folder / "model/model.pt").exists():
        cut.job()
    outputs = [(cut.folder / f"job-{job}/out-0").read_text() for job in range(1, cut.jobs + 1)]
    check_same_training(uncut, cut, outputs[-1])
    for previous, following in pairwise(outputs):
        reached_step = int(re.findall(r"progress step=(\d+)", previous)[-1])
        began = re.search(r"continues after step (\d+)", following)
        lost_steps = reached_step - (int(began.group(1)) if began else 0)
        # A step takes less time here than a disk takes to write: the newest save may still be under way.
        assert lost_steps <= (2 * EVERY_STEPS if number == signal.SIGKILL else 0)
    return cut.jobs


@pytest.mark.real
def test_sigterm_to_one_rank_ends_all_after_the_same_step(tmp_path: Path) -> None:
    assert cut_by_signal(tmp_path, 3, 2, signal.SIGTERM, seed=3, cuts=2) >= 2


@pytest.mark.real
def test_sigkill_costs_no_more_than_one_interval_and_a_save(tmp_path: Path) -> None:
    assert cut_by_signal(tmp_path, 3, 0, signal.SIGKILL, seed=4, cuts=3) == 4


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(18))
def test_sigkill_anywhere(tmp_path: Path, seed: int) -> None:
    cut_by_signal(tmp_path, 2 + seed % 3, 2 * (seed % 2), signal.SIGKILL, seed, cuts=3)


@pytest.mark.chaos
@pytest.mark.parametrize("seed", range(9))
def test_sigterm_anywhere(tmp_path: Path, seed: int) -> None:
    cut_by_signal(tmp_path, 2 + seed % 3, 2 * (seed % 2), signal.SIGTERM, seed, cuts=3)
