"""What several ranks do to the batch, and what follows for the learning rate. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from smlaunch.job import Job
from smlaunch.planning.notes import Notes

GOYAL = "Goyal et al. 2017, https://arxiv.org/abs/1706.02677"
MALLADI = "Malladi et al. 2022, https://arxiv.org/abs/2205.10287"

LARGEST_LINEAR = 8192
"""Samples in a batch up to which the linear rule lost no accuracy (Goyal et al. 2017, ResNet-50)."""

_LINEAR = ("sgd", "momentum", "nesterov", "lars")
_SQUARE_ROOT = ("adam", "adamw", "adamax", "nadam", "rmsprop", "adagrad", "lamb")

_NAMES = ("lr", "learning_rate", "learning-rate")


@dataclass(frozen=True)
class Scaled:
    """``factor``: what the learning rate is multiplied with; ``rate``: the number, None where none was
    stated."""

    rule: Literal["linear", "square root"]
    factor: float
    rate: float | None
    because: str


def scaled_rate(optimizer: str | None, rate: float | None, ranks: int) -> Scaled:
    """The rule for this optimizer at ``ranks`` times the batch. One that is not known is taken for SGD, and
    said to be."""
    name = (optimizer or "").lower()
    if name in _SQUARE_ROOT:
        factor = math.sqrt(ranks)
        because = f"by the square root ({MALLADI}; it holds while gradients are mostly noise)"
        return Scaled("square root", factor, None if rate is None else rate * factor, because)
    because = f"linearly, with a warm-up over the first five epochs ({GOYAL})"
    if name not in _LINEAR:
        taken = optimizer or "the optimizer, which is not named,"
        because += f"; {taken} is taken for SGD"
    return Scaled("linear", float(ranks), None if rate is None else rate * ranks, because)


def tell_scaling(job: Job, ranks: int | None, notes: Notes) -> None:
    """A reason with the number, where several ranks share the gradients and the job says anything of batch,
    rate or optimizer. ``ranks``: None where only the hosts know."""
    work = job.workload
    own = next((name for name in _NAMES if name in job.hyperparameters), None)
    stated = (work.batch_size, work.learning_rate, work.optimizer) != (None, None, None)
    if ranks is None or ranks < 2 or not (stated or own):
        return
    scaled = scaled_rate(work.optimizer, work.learning_rate, ranks)
    notes.because("scaling.learning-rate", _sentence(job, ranks, scaled, own))
    if work.batch_size is not None and scaled.rule == "linear" and work.batch_size * ranks > LARGEST_LINEAR:
        notes.warn(
            f"Batches of {work.batch_size * ranks:,} samples are larger than the {LARGEST_LINEAR:,} up to "
            f"which the linear rule was seen to lose no accuracy ({GOYAL}): watch how it converges, or make "
            "workload.batch_size smaller."
        )


def _sentence(job: Job, ranks: int, scaled: Scaled, own: str | None) -> str:
    work = job.workload
    batch = f"{ranks} ranks make a batch {ranks} times as large"
    if work.batch_size is not None:
        batch = (
            f"{ranks} ranks with {work.batch_size:,} samples each make batches of {work.batch_size * ranks:,}"
        )
    if scaled.rate is not None and work.learning_rate is not None:
        rate = f"the learning rate of {work.learning_rate:g} becomes {scaled.rate:.3g}"
    else:
        rate = f"a learning rate tuned for one rank is multiplied with {scaled.factor:.3g}"
    sent = f"; hyperparameters.{own} is sent as the job has it, {job.hyperparameters[own]}" if own else ""
    unset = "" if own else "; the plan does not set it, the script does"
    return f"{batch}: {rate}, {scaled.because}{sent or unset}."
