"""Effect of several ranks on batch size and learning rate. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from smlaunch.job.model import Job
from smlaunch.planner.diagnostics import Diagnostics

GOYAL = "Goyal et al. 2017, https://arxiv.org/abs/1706.02677"
MALLADI = "Malladi et al. 2022, https://arxiv.org/abs/2205.10287"

MAX_LINEAR_BATCH = 8192
"""Largest batch, in samples, for which the linear rule lost no accuracy (Goyal et al. 2017, ResNet-50)."""

_LINEAR_OPTIMIZERS = ("sgd", "momentum", "nesterov", "lars")
_SQUARE_ROOT_OPTIMIZERS = ("adam", "adamw", "adamax", "nadam", "rmsprop", "adagrad", "lamb")

_RATE_HYPERPARAMETERS = ("lr", "learning_rate", "learning-rate")


@dataclass(frozen=True)
class ScaledRate:
    """A learning rate for several ranks."""

    rule: Literal["linear", "square root"]
    factor: float
    """Factor of the learning rate."""

    rate: float | None
    """The scaled rate; None if the job states none."""

    explanation: str


def scale_learning_rate(optimizer: str | None, rate: float | None, rank_count: int) -> ScaledRate:
    """Scale the learning rate for ``rank_count`` times the batch, by the optimizer's rule. An unknown
    optimizer is treated as SGD, and the explanation says so."""
    optimizer_name = (optimizer or "").lower()
    if optimizer_name in _SQUARE_ROOT_OPTIMIZERS:
        factor = math.sqrt(rank_count)
        because = f"by the square root ({MALLADI}; valid while gradients are mostly noise)"
        return ScaledRate("square root", factor, None if rate is None else rate * factor, because)
    because = f"linearly, with a warm-up over the first five epochs ({GOYAL})"
    if optimizer_name not in _LINEAR_OPTIMIZERS:
        optimizer_text = optimizer or "the optimizer, which is not named,"
        because += f"; {optimizer_text} is treated as SGD"
    return ScaledRate("linear", float(rank_count), None if rate is None else rate * rank_count, because)


def advise_scaling(job: Job, ranks: int | None, diagnostics: Diagnostics) -> None:
    """Add a reason with the scaled rate if several ranks share gradients and the job states batch, rate or
    optimizer. ``ranks``: None if only the hosts know."""
    workload = job.workload
    rate_hyperparameter = next((name for name in _RATE_HYPERPARAMETERS if name in job.hyperparameters), None)
    is_stated = (workload.batch_size, workload.learning_rate, workload.optimizer) != (None, None, None)
    if ranks is None or ranks < 2 or not (is_stated or rate_hyperparameter):
        return
    scaled = scale_learning_rate(workload.optimizer, workload.learning_rate, ranks)
    diagnostics.add_reason(
        "scaling.learning-rate", _scaling_sentence(job, ranks, scaled, rate_hyperparameter)
    )
    if (
        workload.batch_size is not None
        and scaled.rule == "linear"
        and workload.batch_size * ranks > MAX_LINEAR_BATCH
    ):
        diagnostics.add_warning(
            f"Batches of {workload.batch_size * ranks:,} samples are larger than the {MAX_LINEAR_BATCH:,} "
            f"up to which the linear rule was seen to lose no accuracy ({GOYAL}): watch how it converges, "
            "or make workload.batch_size smaller."
        )


def _scaling_sentence(job: Job, rank_count: int, scaled: ScaledRate, rate_hyperparameter: str | None) -> str:
    """How ranks change batch size and learning rate."""
    workload = job.workload
    batch_text = f"{rank_count} ranks make a batch {rank_count} times as large"
    if workload.batch_size is not None:
        batch_text = (
            f"{rank_count} ranks with {workload.batch_size:,} samples each make batches of "
            f"{workload.batch_size * rank_count:,}"
        )
    if scaled.rate is not None and workload.learning_rate is not None:
        rate_text = f"the learning rate of {workload.learning_rate:g} becomes {scaled.rate:.3g}"
    else:
        rate_text = f"a learning rate tuned for one rank is multiplied with {scaled.factor:.3g}"
    sent_text = (
        f"; hyperparameters.{rate_hyperparameter} is sent unchanged: "
        f"{job.hyperparameters[rate_hyperparameter]}"
        if rate_hyperparameter
        else ""
    )
    unset_text = "" if rate_hyperparameter else "; the plan does not set it, the script does"
    return f"{batch_text}: {rate_text}, {scaled.explanation}{sent_text or unset_text}."
