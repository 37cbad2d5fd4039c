"""Gates of a pipeline: which steps are behind which conditions; and checks of its jobs.

A pipeline has no loops, no nested conditions, and no step that waits for a condition (developer guide,
condition step). So the steps after a chain are written once for every segment in which it may finish, and the
steps after a requirement are in the branch in which it holds. Chains and requirements are gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError
from itertools import product
from math import prod

from smlaunch.errors import Problem
from smlaunch.export.pipeline_file import StepLinks, sort_steps
from smlaunch.export.pipeline_steps import MAX_SEGMENTS, PlannedStep
from smlaunch.planner.plan import Plan

MAX_STEPS = 1000
"""A limit of smlaunch, so that a pipeline stays readable. The limit of the service is not documented;
MAX_DEFINITION_CHARACTERS is."""

MAX_DEFINITION_CHARACTERS = 1_048_576
"""Length of PipelineDefinition. Source: CreatePipeline, API reference."""

MAX_NAME_LENGTH = 64
"""Length of a step name. Source: PipelineExecutionStep, API reference."""


FinishedSegments = Mapping[str, int]
"""Segment in which each chain before a step has finished, by chain."""


@dataclass(frozen=True)
class StepOrder:
    """Gates by step name: ``gates_by_step`` before a step; ``nearest_gates_by_step``: those without another
    gate in between; ``segment_counts_by_step``: the chains among them, with their number of segments."""

    gates_by_step: Mapping[str, frozenset[str]]
    nearest_gates_by_step: Mapping[str, tuple[str, ...]]
    segment_counts_by_step: Mapping[str, Mapping[str, int]]

    def paths_to(self, name: str) -> Iterator[FinishedSegments]:
        """All combinations of finished segments that lead to a step."""
        segment_count_by_chain = self.segment_counts_by_step[name]
        for segments in product(*(range(1, count + 1) for count in segment_count_by_chain.values())):
            yield dict(zip(segment_count_by_chain, segments, strict=True))

    def suffix(self, name: str, finished_segments: FinishedSegments) -> str:
        """Suffix of a step's name on one path. ``finished_segments`` may have more chains."""
        segments = [str(finished_segments[chain]) for chain in self.segment_counts_by_step[name]]
        return "-".join(["", "At", *segments]) if segments else ""


def build_step_order(jobs: Sequence[PlannedStep]) -> StepOrder:
    """Compute the gates of all steps. Raises CycleError."""
    step_by_name = {job.name: job for job in jobs}
    gates_by_step: dict[str, frozenset[str]] = {}
    for step in sort_steps([job.step for job in jobs]):
        needed_jobs = [step_by_name[name] for name in sorted(step.required_steps & gates_by_step.keys())]
        own_gates = {job.name for job in needed_jobs if is_gate(job)}
        gates_by_step[step.name] = frozenset(
            own_gates.union(*(gates_by_step[job.name] for job in needed_jobs))
        )
    nearest_gates_by_step = {
        name: tuple(
            sorted(
                gate
                for gate in gate_names
                if not any(gate in gates_by_step[other_gate] for other_gate in gate_names)
            )
        )
        for name, gate_names in gates_by_step.items()
    }
    segment_counts_by_step = {
        name: {
            gate: len(step_by_name[gate].segments)
            for gate in gates_by_step
            if gate in gate_names and step_by_name[gate].is_chain
        }
        for name, gate_names in gates_by_step.items()
    }
    return StepOrder(gates_by_step, nearest_gates_by_step, segment_counts_by_step)


def is_gate(job: PlannedStep) -> bool:
    return job.is_chain or bool(job.step.requirements)


def find_problems(jobs: Sequence[PlannedStep]) -> Iterator[Problem]:
    """Problems of steps that could be parsed and planned."""
    step_by_name = {job.name: job for job in jobs}
    for job in jobs:
        yield from find_plan_problems(job.step, job.plan)
        if len(job.segments) > MAX_SEGMENTS:
            text = f"the chain would be unrolled into more than {MAX_SEGMENTS} segments; make them longer"
            yield job.step.job_problem(Problem("limits.segment", text))
        yield from _input_problems(job, step_by_name)
        yield from _requirement_problems(job)
        yield from _cache_problems(job, step_by_name)
    if all(len(job.segments) <= MAX_SEGMENTS for job in jobs):
        with suppress(CycleError):  # reported by the parser of the file
            yield from _size_problems(jobs, build_step_order(jobs))


def find_plan_problems(step: StepLinks, plan: Plan) -> Iterator[Problem]:
    """Problems of a single job, also where no template of it can be built."""
    for problem in _plan_problems(plan):
        yield step.job_problem(problem)


def _plan_problems(plan: Plan) -> Iterator[Problem]:
    """Yield a problem for each limit of the job that a pipeline cannot keep."""
    policy = plan.workflow.policy
    if policy.max_cost is not None:
        yield Problem(
            "limits.max_cost",
            "a pipeline does not count the cost of its jobs; leave it out and set limits.max_runtime, or use "
            "`smlaunch run` or `smlaunch export step-functions`",
        )
    if policy.on_demand_fallback:
        yield Problem(
            "compute.on_demand_fallback",
            "a pipeline retries a step with the same request, never on other capacity; leave it out, or use "
            "`smlaunch export step-functions`",
        )
    if (plan.job.limits.attempts or 1) > 1:
        yield Problem(
            "limits.attempts",
            "a pipeline retries a step after a service fault or for want of capacity, never after a script's "
            "own failure; leave it out (a chain's jobs are then tried again after those), or use "
            "`smlaunch export step-functions`",
        )
    if any(variant.until_step is not None for variant in plan.workflow.variants):
        yield Problem(
            "segments",
            "until_step: a pipeline does not know which step a segment has reached; give the segments a "
            "length instead",
        )
    if policy.chain and policy.total_seconds is None:
        yield Problem(
            "limits.max_runtime",
            "a pipeline has no loops, so that a chain is unrolled, and one without an end cannot be; give it",
        )
    if plan.shard_plans:
        yield Problem(
            "inputs", "a sharded run (split_via: jobs) is not exported to a pipeline; export one shard"
        )


def _input_problems(job: PlannedStep, step_by_name: Mapping[str, PlannedStep]) -> Iterator[Problem]:
    """Yield a problem for each input that cannot be the model archive of the step before. ``step_by_name``:
    steps of the pipeline by name."""
    for channel, source in job.step.inputs.items():
        source_job = step_by_name.get(source.step)
        if source_job is None or source_job.template.is_processing:
            continue
        path = f"inputs.{channel}"
        if source.folder:
            yield job.step.step_problem(
                path, f"what {source_job.name!r} trained is one archive, without folders"
            )
        if job.plan.job.inputs[channel].mode == "FastFile":
            yield job.step.step_problem(
                path, f"what {source_job.name!r} trained is one archive; take mode File"
            )


def _requirement_problems(job: PlannedStep) -> Iterator[Problem]:
    """Yield a problem for each condition on a value that the step does not have."""
    for requirement in job.step.requirements:
        file, separator, json_path = requirement.value_name.partition(":")
        path_in_step = f"require[{requirement.index}]"
        if job.template.is_processing and not (separator and file.strip("/") == file and file and json_path):
            text = (
                "a processing job has no metrics; ask for one of its files: evaluation.json:accuracy >= 0.9"
            )
            yield job.step.step_problem(path_in_step, text)
        if (
            not job.template.is_processing
            and job.plan.job.algorithm is None
            and not _is_metric(requirement.value_name)
        ):
            text = "is no metric that a script can print (smlaunch: metric NAME=VALUE)"
            yield job.step.step_problem(path_in_step, f"{requirement.value_name!r} {text}")


def _is_metric(name: str) -> bool:
    from smlaunch.contract.progress import parse_line

    return parse_line(f"smlaunch: metric {name}=1") is not None and "=" not in name and " " not in name


def _cache_problems(job: PlannedStep, step_by_name: Mapping[str, PlannedStep]) -> Iterator[Problem]:
    """Yield a problem for each reason why the step's results cannot be reused. ``step_by_name``: steps of the
    pipeline by name."""
    if job.step.cache_seconds is None:
        return
    if job.is_chain:
        yield job.step.step_problem(
            "cache", f"a chain's checkpoints {_CHECKPOINTS_NOT_CACHED}; only a job without any can be cached"
        )
    elif job.template.checkpoints is not None:
        yield job.step.step_problem(
            "cache", f"its checkpoints {_CHECKPOINTS_NOT_CACHED}; leave the job's checkpoints out, or this"
        )
    for channel, source in job.step.inputs.items():
        source_job = step_by_name.get(source.step)
        if source_job is not None and source_job.step.cache_seconds is None:
            text = (
                f"its input {channel!r} differs in every execution, as step {source_job.name!r} is not "
                "cached; cache both steps or neither"
            )
            yield job.step.step_problem("cache", text)


_CHECKPOINTS_NOT_CACHED = "are the execution's own, and the next execution would take them for its own"


def _size_problems(jobs: Sequence[PlannedStep], order: StepOrder) -> Iterator[Problem]:
    counts = {
        job.name: _steps_per_path(job) * prod(order.segment_counts_by_step[job.name].values()) for job in jobs
    }
    total = sum(counts.values())
    if total > MAX_STEPS:
        largest = max(counts, key=lambda name: counts[name])
        text = (
            f"there would be {total:,} steps, and {MAX_STEPS:,} is the most; {counts[largest]:,} of them "
            f"for {largest!r}: what follows on a chain stands behind each of its segments; make them longer"
        )
        yield Problem("steps", text)


def _steps_per_path(job: PlannedStep) -> int:
    """Steps of a job on one path, with its conditions."""
    checks = 2 * len(job.step.requirements) + 1
    return 1 + (len(job.segments) * (2 + checks) + 1 if job.is_chain else 1 + checks)
