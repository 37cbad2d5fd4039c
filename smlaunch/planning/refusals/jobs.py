"""What a kind of job does not have: a processing job, an algorithm, an image's own program."""

from __future__ import annotations

from smlaunch.catalog import algorithms
from smlaunch.errors import Problem
from smlaunch.job import format_duration, parse_duration
from smlaunch.planning.case import Case
from smlaunch.planning.refusals.capacity import WITHOUT_CHECKPOINTS
from smlaunch.planning.refusals.rule import Found, rule

LONGEST_TRAINING = 28 * 86_400
LONGEST_PROCESSING = 777_600
"""Seconds, as the API's model and its prose have them."""

_NO_SUCH = "a processing job knows no such thing; leave it out, or take another strategy"


@rule(
    "processing.training-only",
    "what only a training job knows, for a processing job",
    "2.5",
    "Inputs ≤10, outputs ≤10, instances 1-100, volume 1-16384, runtime ≤777600 s",
    *(
        "strategy",
        "entry",
        "algorithm",
        "hyperparameters",
        "compute.spot",
        "compute.keep_alive",
        "checkpoints",
    ),
    *("segments", "limits.segment", "limits.max_pending"),
)
def training_only(case: Case) -> Found:
    if not case.is_processing:
        return
    job = case.job
    if job.hyperparameters:
        yield Problem("hyperparameters", "a processing job has none; give the script args instead")
    asked = {
        "compute.spot": job.compute.spot,
        "compute.keep_alive": job.compute.keep_alive is not None,
        "checkpoints": job.checkpoints is not None,
        "segments": bool(job.segments),
        "limits.segment": job.limits.segment is not None,
        "limits.max_pending": job.limits.max_pending is not None,
    }
    for field, given in asked.items():
        if given:
            yield Problem(field, _NO_SUCH)


@rule(
    "processing.inputs",
    "inputs that a processing job does not copy, or content types",
    "2.5",
    "LocalPaths must start with /opt/ml/processing/.",
    *("strategy", "entry", "algorithm"),
)
def processing_inputs(case: Case) -> Found:
    for name, channel in case.job.inputs.items() if case.is_processing else ():
        if channel.mode != "File":
            told = f"a processing job copies its inputs: File, not {channel.mode}"
            yield Problem(f"inputs.{name}.mode", told)
        if channel.content_type is not None:
            yield Problem(f"inputs.{name}.content_type", _NO_SUCH)


@rule(
    "processing.longest",
    "a processing job of more than nine days",
    "2.5",
    "runtime ≤777600 s (9 d; 2023 docs: 5 d)",
    *("strategy", "entry", "algorithm", "limits.max_runtime"),
)
def processing_too_long(case: Case) -> Found:
    stated = case.job.limits.max_runtime
    if case.is_processing and stated is not None and parse_duration(stated) > LONGEST_PROCESSING:
        longest = format_duration(LONGEST_PROCESSING)
        told = f"{stated} is longer than the {longest} that a processing job may run; shorten it, or split it"
        yield Problem("limits.max_runtime", told)


@rule(
    "chain.program",
    "more than 28 days, or segments, where no script of the job's own can be gone on with",
    "2.1",
    "MaxRuntimeInSeconds ≥1 (≤2419200 by doc, default 86400; spans all retries)",
    *("strategy", "entry", "algorithm", "image", "limits.max_runtime", "limits.segment", "segments"),
)
def chain_without_a_script(case: Case) -> Found:
    """A chain goes on where a script of the user's, under our runtime, has ended itself."""
    job = case.job
    if case.has_runtime or case.is_processing:
        return
    who = f"the algorithm {job.algorithm}" if job.algorithm is not None else "an image's own program"
    for field, given in (("limits.segment", job.limits.segment), ("segments", job.segments or None)):
        if given is not None:
            yield Problem(field, f"{who} does not end itself to be gone on with by a next job; leave it out")
    stated = job.limits.max_runtime
    if stated is None:
        return
    longest = min(case.surroundings.longest_run or LONGEST_TRAINING, LONGEST_TRAINING)
    if parse_duration(stated) > longest:
        yield Problem(
            "limits.max_runtime",
            f"{stated} is longer than the {format_duration(longest)} that a training job may run, and {who} "
            "cannot be gone on with by a next one; shorten it",
        )


@rule(
    "spot.algorithm",
    "more than an hour with the wait for spot, for an algorithm that keeps no checkpoints",
    "2.6",
    "Built-ins/marketplace algorithms that don't checkpoint: MaxWait ≤ 3600 s.",
    *("algorithm", "compute.spot", "limits.max_wait"),
)
def spot_for_an_algorithm(case: Case) -> Found:
    job, stated = case.job, case.job.limits.max_wait
    algorithm = None if job.algorithm is None else algorithms.find(job.algorithm)
    if algorithm is None or not job.compute.spot or algorithm.checkpoints:
        return
    if stated is not None and parse_duration(stated) > WITHOUT_CHECKPOINTS:
        yield Problem(
            "limits.max_wait",
            f"{job.algorithm} keeps no checkpoints, and may then take {format_duration(WITHOUT_CHECKPOINTS)} "
            f"with its wait for spot capacity, not {stated}; shorten it",
        )


RULES = (
    training_only,
    processing_inputs,
    processing_too_long,
    chain_without_a_script,
    spot_for_an_algorithm,
)
