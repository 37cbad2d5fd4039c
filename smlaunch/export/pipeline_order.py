"""Which step of a pipeline stands where, and what no pipeline can do with these jobs.

A pipeline has no loops, and a branch of a condition never comes back to the others. So what follows on a
chain stands in every branch in which it has finished, and what follows on a requirement in the branch in
which that holds. Both are gates; a step behind several has to have them one behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError
from itertools import pairwise
from math import prod

from smlaunch.errors import Problem
from smlaunch.export.pipeline_file import in_order
from smlaunch.export.pipeline_jobs import MOST_SEGMENTS, Planned

MOST_STEPS = 1000
"""A bound of ours, for a pipeline that a person can look at. How many steps the service takes is not
confirmed; MOST_CHARACTERS is."""

MOST_CHARACTERS = 1_048_576
"""Of PipelineDefinition. Source: CreatePipeline, API reference."""

LONGEST_NAME = 64
"""Of a step. Source: PipelineExecutionStep, API reference."""


@dataclass(frozen=True)
class Order:
    """``gates``: of each step those that it is behind, the outermost first."""

    gates: Mapping[str, tuple[str, ...]]

    def scope(self, name: str) -> str | None:
        """The gate it stands right behind; None for a step that stands behind none."""
        return self.gates[name][-1] if self.gates[name] else None


def order_of(jobs: Sequence[Planned]) -> Order:
    """Of steps among which there is no circle."""
    opening = {job.name for job in jobs if is_gate(job)}
    above: dict[str, frozenset[str]] = {}
    for step in in_order([job.step for job in jobs]):
        needs = step.needs & above.keys()
        above[step.name] = needs.union(*(above[name] for name in needs))
    depth = {name: len(above[name] & opening) for name in above}
    return Order({name: tuple(sorted(above[name] & opening, key=lambda one: depth[one])) for name in above})


def is_gate(job: Planned) -> bool:
    return job.chain or bool(job.step.requires)


def problems(jobs: Sequence[Planned]) -> Iterator[Problem]:
    """Of steps that can be read."""
    by_name = {job.name: job for job in jobs}
    for job in jobs:
        for problem in _of_plan(job):
            yield job.step.problem_of_job(problem)
        yield from _of_inputs(job, by_name)
        yield from _of_requirements(job)
        yield from _of_cache(job, by_name)
    try:
        order = order_of(jobs)
    except CycleError:
        return  # the file's reader tells it
    for job in jobs:
        yield from _of_gates(job, order)
    if all(len(job.lengths) <= MOST_SEGMENTS for job in jobs):
        yield from _of_size(jobs, order, by_name)


def _of_plan(job: Planned) -> Iterator[Problem]:
    plan = job.plan
    policy = plan.workflow.policy
    if policy.max_cost is not None:
        yield Problem(
            "limits.max_cost",
            "a pipeline does not count what its jobs cost; leave it out and cap limits.max_runtime, or use "
            "`smlaunch run` or `smlaunch export step-functions`",
        )
    if policy.on_demand_fallback:
        yield Problem(
            "compute.on_demand_fallback",
            "a step of a pipeline is retried as it is, never on other capacity; leave it out, or use "
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
    if plan.parts:
        yield Problem("inputs", "a run in parts (carry: jobs) is not exported to a pipeline; export one part")
    if len(job.lengths) > MOST_SEGMENTS:
        yield Problem(
            "limits.segment",
            f"the chain would be unrolled into more than {MOST_SEGMENTS} segments; make them longer",
        )


def _of_inputs(job: Planned, by_name: Mapping[str, Planned]) -> Iterator[Problem]:
    for channel, source in job.step.inputs.items():
        other = by_name.get(source.step)
        if other is None or other.flow.processing:
            continue
        where = f"inputs.{channel}"
        if source.folder:
            yield job.step.problem(where, f"what {other.name!r} trained is one archive, without folders")
        if job.plan.job.inputs[channel].mode == "FastFile":
            yield job.step.problem(where, f"what {other.name!r} trained is one archive; take mode File")


def _of_requirements(job: Planned) -> Iterator[Problem]:
    for index, requirement in enumerate(job.step.requires):
        file, colon, path = requirement.what.partition(":")
        where = f"require[{index}]"
        if job.flow.processing and not (colon and file.strip("/") == file and file and path):
            text = (
                "a processing job has no metrics; ask for one of its files: evaluation.json:accuracy >= 0.9"
            )
            yield job.step.problem(where, text)
        if not job.flow.processing and job.plan.job.algorithm is None and not _is_metric(requirement.what):
            text = "is no metric that a script can print (smlaunch: metric NAME=VALUE)"
            yield job.step.problem(where, f"{requirement.what!r} {text}")


def _is_metric(name: str) -> bool:
    from smlaunch.protocol.progress import parse_line

    return parse_line(f"smlaunch: metric {name}=1") is not None and "=" not in name and " " not in name


def _of_cache(job: Planned, by_name: Mapping[str, Planned]) -> Iterator[Problem]:
    if job.step.cache is None:
        return
    if job.chain:
        yield job.step.problem("cache", f"a chain's checkpoints {_OWN}; only a job without any can be cached")
    elif job.flow.checkpoints is not None:
        yield job.step.problem("cache", f"its checkpoints {_OWN}; leave the job's checkpoints out, or this")
    for channel, source in job.step.inputs.items():
        other = by_name.get(source.step)
        if other is not None and other.step.cache is None:
            text = (
                f"its input {channel!r} is another one in every execution, as step {other.name!r} is not "
                "cached; cache that too, or neither"
            )
            yield job.step.problem("cache", text)


_OWN = "are the execution's own, and the next execution would take them for its own"


def _of_gates(job: Planned, order: Order) -> Iterator[Problem]:
    gates = order.gates[job.name]
    for one, other in pairwise(gates):
        if one not in order.gates[other]:
            text = (
                f"it follows on {one!r} and {other!r}, each of which is a chain or has requirements, and "
                "branches of a pipeline never come together again; let one follow on the other (after)"
            )
            yield job.step.problem("name", text)
            return


def _of_size(jobs: Sequence[Planned], order: Order, by_name: Mapping[str, Planned]) -> Iterator[Problem]:
    counts = {
        job.name: _own_steps(job)
        * prod(len(by_name[gate].lengths) for gate in order.gates[job.name] if by_name[gate].chain)
        for job in jobs
    }
    total = sum(counts.values())
    if total > MOST_STEPS:
        largest = max(counts, key=lambda name: counts[name])
        text = (
            f"there would be {total:,} steps, and {MOST_STEPS:,} is the most; {counts[largest]:,} of them "
            f"for {largest!r}: what follows on a chain stands behind each of its segments; make them longer"
        )
        yield Problem("steps", text)


def _own_steps(job: Planned) -> int:
    checks = 2 * len(job.step.requires)
    return len(job.lengths) * (2 + checks) + 1 if job.chain else 1 + checks
