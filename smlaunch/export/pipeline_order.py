"""Which step of a pipeline stands behind which conditions, and what no pipeline can do with these jobs.

A pipeline has no loops, no condition within another one's branches, and no step that waits for a condition
(developer guide, condition step). So what follows on a chain is written down once for every segment that it
may finish in, and what follows on a requirement stands in the branch in which that holds. Both are gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError
from itertools import product
from math import prod

from smlaunch.errors import Problem
from smlaunch.export.pipeline_file import Links, in_order
from smlaunch.export.pipeline_jobs import MOST_SEGMENTS, Planned
from smlaunch.planning.plan import Plan

MOST_STEPS = 1000
"""A bound of ours, for a pipeline that a person can look at. How many steps the service takes is not
confirmed; MOST_CHARACTERS is."""

MOST_CHARACTERS = 1_048_576
"""Of PipelineDefinition. Source: CreatePipeline, API reference."""

LONGEST_NAME = 64
"""Of a step. Source: PipelineExecutionStep, API reference."""


At = Mapping[str, int]
"""The segment that each chain in front of a step has finished in."""


@dataclass(frozen=True)
class Order:
    """By step, as names: ``gates`` that it stands behind; ``nearest``: those of them that no other one stands
    behind; ``chains``: with their numbers of segments, those among the gates."""

    gates: Mapping[str, frozenset[str]]
    nearest: Mapping[str, tuple[str, ...]]
    chains: Mapping[str, Mapping[str, int]]

    def ways(self, name: str) -> Iterator[At]:
        """All ways that lead to a step."""
        chains = self.chains[name]
        for segments in product(*(range(1, count + 1) for count in chains.values())):
            yield dict(zip(chains, segments, strict=True))

    def suffix(self, name: str, at: At) -> str:
        """Makes a step's name unlike those of the same step on other ways. ``at`` may know more chains."""
        segments = [str(at[chain]) for chain in self.chains[name]]
        return "-".join(["", "At", *segments]) if segments else ""


def order_of(jobs: Sequence[Planned]) -> Order:
    """Raises CycleError."""
    by_name = {job.name: job for job in jobs}
    gates: dict[str, frozenset[str]] = {}
    for step in in_order([job.step for job in jobs]):
        needs = [by_name[name] for name in sorted(step.needs & gates.keys())]
        own = {job.name for job in needs if is_gate(job)}
        gates[step.name] = frozenset(own.union(*(gates[job.name] for job in needs)))
    nearest = {
        name: tuple(sorted(one for one in behind if not any(one in gates[other] for other in behind)))
        for name, behind in gates.items()
    }
    chains = {
        name: {one: len(by_name[one].lengths) for one in gates if one in behind and by_name[one].chain}
        for name, behind in gates.items()
    }
    return Order(gates, nearest, chains)


def is_gate(job: Planned) -> bool:
    return job.chain or bool(job.step.requires)


def problems(jobs: Sequence[Planned]) -> Iterator[Problem]:
    """Of steps that can be read."""
    by_name = {job.name: job for job in jobs}
    for job in jobs:
        yield from problems_of_plan(job.step, job.plan)
        if len(job.lengths) > MOST_SEGMENTS:
            text = f"the chain would be unrolled into more than {MOST_SEGMENTS} segments; make them longer"
            yield job.step.problem_of_job(Problem("limits.segment", text))
        yield from _of_inputs(job, by_name)
        yield from _of_requirements(job)
        yield from _of_cache(job, by_name)
    if all(len(job.lengths) <= MOST_SEGMENTS for job in jobs):
        with suppress(CycleError):  # the file's reader tells it
            yield from _of_size(jobs, order_of(jobs))


def problems_of_plan(step: Links, plan: Plan) -> Iterator[Problem]:
    """What is wrong with a job alone, whether or not there is a flow of it."""
    for problem in _of_plan(plan):
        yield step.problem_of_job(problem)


def _of_plan(plan: Plan) -> Iterator[Problem]:
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
    for requirement in job.step.requires:
        file, colon, path = requirement.what.partition(":")
        where = f"require[{requirement.index}]"
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


def _of_size(jobs: Sequence[Planned], order: Order) -> Iterator[Problem]:
    counts = {job.name: _own_steps(job) * prod(order.chains[job.name].values()) for job in jobs}
    total = sum(counts.values())
    if total > MOST_STEPS:
        largest = max(counts, key=lambda name: counts[name])
        text = (
            f"there would be {total:,} steps, and {MOST_STEPS:,} is the most; {counts[largest]:,} of them "
            f"for {largest!r}: what follows on a chain stands behind each of its segments; make them longer"
        )
        yield Problem("steps", text)


def _own_steps(job: Planned) -> int:
    """With the conditions around it, and one that several gates have in common."""
    checks = 2 * len(job.step.requires) + 1
    return 1 + (len(job.lengths) * (2 + checks) + 1 if job.chain else 1 + checks)
