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
from smlaunch.planner.plan import RunPlan

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

    def finished_segments_before(self, name: str) -> Iterator[FinishedSegments]:
        """All combinations of finished segments that lead to a step."""
        segment_count_by_chain = self.segment_counts_by_step[name]
        for segments in product(*(range(1, count + 1) for count in segment_count_by_chain.values())):
            yield dict(zip(segment_count_by_chain, segments, strict=True))

    def suffix(self, name: str, finished_segments: FinishedSegments) -> str:
        """Suffix of a step's name on one path. ``finished_segments`` may have more chains."""
        segments = [str(finished_segments[chain]) for chain in self.segment_counts_by_step[name]]
        return "-".join(["", "At", *segments]) if segments else ""


def build_step_order(jobs: Sequence[PlannedStep]) -> StepOrder:
    """Find the gates before each step: the steps with a condition on which it depends, directly or through
    other steps. Raises CycleError."""
    job_by_name = {job.name: job for job in jobs}
    gates_by_step: dict[str, frozenset[str]] = {}
    for step in sort_steps([job.step for job in jobs]):  # each after the steps that it needs
        gates: set[str] = set()
        for needed_name in step.required_steps & gates_by_step.keys():
            gates |= gates_by_step[needed_name]
            if is_gate_step(job_by_name[needed_name]):
                gates.add(needed_name)
        gates_by_step[step.name] = frozenset(gates)

    def is_nearest_gate(gate: str, gates: frozenset[str]) -> bool:
        return not any(gate in gates_by_step[other_gate] for other_gate in gates)

    nearest_gates_by_step = {
        name: tuple(sorted(gate for gate in gates if is_nearest_gate(gate, gates)))
        for name, gates in gates_by_step.items()
    }
    segment_count_by_chain = {
        name: len(job_by_name[name].segments) for name in gates_by_step if job_by_name[name].is_chain
    }
    segment_counts_by_step = {
        name: {chain: count for chain, count in segment_count_by_chain.items() if chain in gates}
        for name, gates in gates_by_step.items()
    }
    return StepOrder(gates_by_step, nearest_gates_by_step, segment_counts_by_step)


def is_gate_step(job: PlannedStep) -> bool:
    return job.is_chain or bool(job.step.requirements)


def find_pipeline_problems(planned_steps: Sequence[PlannedStep]) -> Iterator[Problem]:
    """Yield the problems of planned pipeline steps: limits of a pipeline that their jobs exceed, inputs,
    requirements (conditions on a result), caching, and the number of steps of the whole definition. A chain
    is a job that goes on in several segments; each of them becomes a step."""
    planned_step_by_name = {planned_step.name: planned_step for planned_step in planned_steps}
    for planned_step in planned_steps:
        yield from find_job_problems(planned_step.step, planned_step.plan)
        if len(planned_step.segments) > MAX_SEGMENTS:
            problem_text = (
                f"the chain would be unrolled into more than {MAX_SEGMENTS} segments; make them longer"
            )
            yield planned_step.step.job_problem(Problem("limits.segment", problem_text))
        yield from _input_problems(planned_step, planned_step_by_name)
        yield from _requirement_problems(planned_step)
        yield from _cache_problems(planned_step, planned_step_by_name)
    # ``segments`` stops after the limit, so that steps can be counted only below it.
    if all(len(planned_step.segments) <= MAX_SEGMENTS for planned_step in planned_steps):
        with suppress(CycleError):  # reported by the parser of the file
            yield from _size_problems(planned_steps, build_step_order(planned_steps))


def find_job_problems(step: StepLinks, plan: RunPlan) -> Iterator[Problem]:
    """Problems of a single job, also where no template of it can be built."""
    for problem in _unsupported_limit_problems(plan):
        yield step.job_problem(problem)


def _unsupported_limit_problems(plan: RunPlan) -> Iterator[Problem]:
    """Yield a problem for each limit of the job that a SageMaker pipeline cannot enforce. A variant is the
    request of consecutive segments of a chain (jobs in a row); shard plans are those of a run with one job
    per shard of the data; the policy has the limits of the run as a whole (``total_seconds``: of its training
    time)."""
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
    if plan.workflow.is_multi_segment and policy.total_seconds is None:
        yield Problem(
            "limits.max_runtime",
            "a pipeline has no loops, so that a chain is unrolled, and one without an end cannot be; give it",
        )
    if plan.shard_plans:
        yield Problem(
            "inputs", "a sharded run (split_via: jobs) is not exported to a pipeline; export one shard"
        )


def _input_problems(
    planned_step: PlannedStep, planned_step_by_name: Mapping[str, PlannedStep]
) -> Iterator[Problem]:
    """Yield a problem for each input of a step that asks a training step for what it does not have: folders,
    or single objects to read one by one (mode FastFile). The output of a training job is one model archive. A
    channel is an input of a job, by its name; a template is a job's request with variables."""
    step = planned_step.step
    for channel, step_output in step.inputs.items():
        producing_step = planned_step_by_name.get(step_output.step)
        # An unknown step is reported by the parser of the file; a job that trains nothing writes objects.
        if producing_step is None or not producing_step.template.kind.trains_model:
            continue
        archive_text = f"what {producing_step.name!r} trained is one archive"
        if step_output.folder:
            yield step.problem_at(f"inputs.{channel}", f"{archive_text}, without folders")
        if planned_step.plan.job.inputs[channel].mode == "FastFile":
            yield step.problem_at(f"inputs.{channel}", f"{archive_text}; take mode File")


def _requirement_problems(planned_step: PlannedStep) -> Iterator[Problem]:
    """Yield a problem for each requirement (condition such as ``accuracy >= 0.9``) on a value that the step's
    job does not produce: of a training job a metric, of a processing job ``<JSON file>:<path in it>``."""
    step, job_kind = planned_step.step, planned_step.template.kind
    is_built_in_algorithm = planned_step.plan.job.algorithm is not None  # its metrics have any name
    for requirement in step.requirements:
        value_name, problem_text = requirement.value_name, ""
        if not job_kind.metric_definitions:
            if not _has_form_of_file_value(value_name):
                problem_text = (
                    f"a {job_kind.noun} has no metrics; ask for one of its files: "
                    "evaluation.json:accuracy >= 0.9"
                )
        elif not is_built_in_algorithm and not _can_script_report_metric(value_name):
            problem_text = (
                f"{value_name!r} is no metric that a script can print (smlaunch: metric NAME=VALUE)"
            )
        if problem_text:
            yield step.problem_at(f"require[{requirement.index}]", problem_text)


def _has_form_of_file_value(value_name: str) -> bool:
    """Return whether a name has the form ``<file>:<path in its JSON>``."""
    file_name, separator, json_path = value_name.partition(":")
    return bool(separator and file_name and json_path) and file_name.strip("/") == file_name


def _can_script_report_metric(name: str) -> bool:
    """Return whether the line ``smlaunch: metric NAME=VALUE`` with this name reports this very metric."""
    from smlaunch.contract.progress_line import parse_line

    parsed_line = parse_line(f"smlaunch: metric {name}=1")
    return parsed_line is not None and parsed_line.values == {name: 1} and not parsed_line.unreadable_words


def _cache_problems(
    planned_step: PlannedStep, planned_step_by_name: Mapping[str, PlannedStep]
) -> Iterator[Problem]:
    """Yield a problem for each reason why a step's results cannot be cached and reused by another execution
    (with the same request): checkpoints, or an input that differs. A chain is a job that goes on in several
    segments, from checkpoint to checkpoint."""
    step = planned_step.step
    if step.cache_seconds is None:  # no caching is asked for
        return
    if planned_step.is_chain:
        yield step.problem_at(
            "cache", f"a chain's checkpoints {_CHECKPOINTS_NOT_CACHED}; only a job without any can be cached"
        )
    elif planned_step.template.checkpoints_prefix is not None:
        yield step.problem_at(
            "cache", f"its checkpoints {_CHECKPOINTS_NOT_CACHED}; leave the job's checkpoints out, or this"
        )
    for channel, step_output in step.inputs.items():
        producing_step = planned_step_by_name.get(step_output.step)
        if producing_step is not None and producing_step.step.cache_seconds is None:
            problem_text = (
                f"its input {channel!r} differs in every execution, as step {producing_step.name!r} is not "
                "cached; cache both steps or neither"
            )
            yield step.problem_at("cache", problem_text)


_CHECKPOINTS_NOT_CACHED = "are the execution's own, and the next execution would take them for its own"


def _size_problems(jobs: Sequence[PlannedStep], order: StepOrder) -> Iterator[Problem]:
    step_count_by_job = {
        job.name: _steps_per_path(job) * prod(order.segment_counts_by_step[job.name].values()) for job in jobs
    }
    total_step_count = sum(step_count_by_job.values())
    if total_step_count > MAX_STEPS:
        largest_job = max(step_count_by_job, key=lambda name: step_count_by_job[name])
        problem_text = (
            f"there would be {total_step_count:,} steps, and {MAX_STEPS:,} is the most; "
            f"{step_count_by_job[largest_job]:,} of them for {largest_job!r}: what follows on a chain stands "
            "behind each of its segments; make them longer"
        )
        yield Problem("steps", problem_text)


def _steps_per_path(job: PlannedStep) -> int:
    """Steps of a job on one path, with its conditions."""
    checks = 2 * len(job.step.requirements) + 1
    return 1 + (len(job.segments) * (2 + checks) + 1 if job.is_chain else 1 + checks)
