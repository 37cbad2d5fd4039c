"""Jobs as a SageMaker pipeline: each a step, and a chain unrolled, every segment followed by the question
whether it was the last.

    Segment-1 ─► Finished-1 ─yes─► what follows on the training
                     └─no─► Segment-2 ─► Finished-2 ─yes─► what follows
                                              └─no─► ... ─► Limit (Fail)

A pipeline has no loops and sees of a job its metrics, so the runtime prints whether the training has come
to its end (protocol.segment, TELL_FINISHED). Conditions stand side by side (pipeline_order). Each
execution's jobs are runs of their own, named by the execution's id and the step; the service names the
jobs, and run, segment and attempt are their tags. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smlaunch.errors import EXIT_LIMIT, JobError, Problem
from smlaunch.export.flow import ERRORS, flow_of
from smlaunch.export.pipeline_file import Step, in_order
from smlaunch.export.pipeline_jobs import (
    Planned,
    ended,
    fails,
    finished,
    fixed_run,
    holds,
    job_step,
    run_words,
)
from smlaunch.export.pipeline_order import (
    LONGEST_NAME,
    MOST_CHARACTERS,
    At,
    is_gate,
    order_of,
    problems,
    problems_of_plan,
)
from smlaunch.planning.plan import Plan

VERSION = "2020-12-01"
FILE = "pipeline.json"


def export_pipeline(plan: Plan, *, pace: float = 1.0) -> dict[str, str]:
    """A pipeline of one job: the files of its export, by their names. ``pace``: how long waits take, compared
    with a region.

    Raises JobError for what a pipeline cannot do as the plan has it, every problem by its field.
    """
    return export_steps([(Step(job=plan.job), plan)], plan.job.program, pace=pace)


def export_steps(
    steps: Sequence[tuple[Step, Plan]], title: str, *, others: Sequence[Problem] = (), pace: float = 1.0
) -> dict[str, str]:
    """A pipeline of several. ``others``: what else is wrong with them; ``steps`` may then be those that are
    well. Raises JobError as ``export_pipeline``, by the places in the pipeline's file.
    """
    found = list(others)
    jobs: list[Planned] = []
    for step, plan in steps:
        try:
            jobs.append(Planned(step, plan, flow_of(plan, pace=pace)))
        except JobError as error:
            found += [step.problem_of_job(problem) for problem in error.problems]
            found += problems_of_plan(step, plan)
    found += problems(jobs)
    if found:
        raise JobError(list(dict.fromkeys(found)))
    return {FILE: _text(definition_of(jobs, title))}


def definition_of(jobs: Sequence[Planned], title: str) -> dict[str, Any]:
    """Of jobs without ``problems``."""
    return {
        "Version": VERSION,
        "Metadata": {"Comment": f"{title}, exported by smlaunch"},
        "Parameters": [],
        "Steps": _Writer(jobs).steps(),
    }


def _text(definition: Mapping[str, Any]) -> str:
    """Readable where there is room."""
    text = json.dumps(definition, indent=2, ensure_ascii=True) + "\n"
    if len(text) > MOST_CHARACTERS:
        text = json.dumps(definition, separators=(",", ":"), ensure_ascii=True) + "\n"
    if len(text) > MOST_CHARACTERS:
        why = f"the definition has {len(text):,} characters, and the service takes {MOST_CHARACTERS:,}"
        raise JobError([Problem("steps", f"{why}; make segments longer, or more pipelines of it")])
    return text


class _Writer:
    """Writes all steps on all ways that lead to them. Conditions stand side by side, and what follows on one
    in its branch; what is asked about a job that did not run is never answered."""

    def __init__(self, jobs: Sequence[Planned]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._order = order_of(jobs)
        self._runs: dict[str, str] = {}
        for step in in_order([job.step for job in jobs]):
            if step.cache is not None:
                self._runs[step.name] = fixed_run(self._jobs[step.name], self._runs)

    def steps(self) -> list[dict[str, Any]]:
        written: list[dict[str, Any]] = []
        for job in self._jobs.values():
            for at in self._order.ways(job.name):
                if not self._order.nearest[job.name]:
                    written.append(self._job(job, 1, at))
                written += self._chain(job, at) if job.chain else self._checks(job, at)
        several = dict.fromkeys(near for near in self._order.nearest.values() if len(near) > 1)
        for near in several:
            first = next(job for job in self._jobs.values() if self._order.nearest[job.name] == near)
            written += [self._joined(first, near, at) for at in self._order.ways(first.name)]
        return written

    def _chain(self, job: Planned, at: At) -> Iterator[dict[str, Any]]:
        """What is asked after each of its segments."""
        count = len(job.lengths)
        for number in range(1, count + 1):
            way = {**at, job.name: number}
            then = self._after((job.name,), way) if not job.step.requires else []
            if number < count:
                following = self._job(job, number + 1, at)
            else:
                following = _fail(self._called(job, job.part("Limit"), at), _limit(job))
            name = self._called(job, job.part("Finished", number), at)
            asked = finished(self._name(job, way))
            yield _condition(name, [asked], then, [following])
            yield from self._checks(job, way)

    def _checks(self, job: Planned, at: At) -> Iterator[dict[str, Any]]:
        """Its requirements, and what follows on a job that meets them. ``at``: with its own segment."""
        step, suffix = self._name(job, at), self._own_suffix(job, at)
        ended_well = [finished(step)] if job.chain else []
        for number, requirement in enumerate(job.step.requires, 1):
            message = f"step {job.name}: {requirement} is required, and does not hold"
            failed = _fail(_fitting(job, job.part("Fail", number) + suffix), message)
            name = _fitting(job, job.part("Unmet", number) + suffix)
            yield _condition(name, [*ended_well, fails(job, requirement, step)], [failed], [])
        followers = self._after((job.name,), at)
        if job.step.requires and followers:
            yield _condition(_fitting(job, job.part("Met") + suffix), self._open(job, at), followers, [])

    def _joined(self, first: Planned, near: tuple[str, ...], at: At) -> dict[str, Any]:
        """What stands behind several gates, none of which stands behind another of them."""
        conditions = [one for gate in near for one in self._open(self._jobs[gate], at)]
        name = self._called(first, first.part("Ready"), at)
        return _condition(name, conditions, self._after(near, at), [])

    def _open(self, gate: Planned, at: At) -> list[dict[str, Any]]:
        """All that has to hold for what stands behind it."""
        step = self._name(gate, at)
        first = [finished(step)] if gate.chain else []
        return first + [holds(gate, requirement, step) for requirement in gate.step.requires]

    def _after(self, near: tuple[str, ...], at: At) -> list[dict[str, Any]]:
        """What begins in a branch."""
        here = [job for job in self._jobs.values() if self._order.nearest[job.name] == near]
        return [self._job(job, 1, at) for job in here]

    def _job(self, job: Planned, segment: int, at: At) -> dict[str, Any]:
        needs = [self._jobs[name] for name in sorted(job.step.needs)]
        known = {other.name: ended(other, self._name(other, at)) for other in needs}
        referred = {source.step for source in job.step.inputs.values()}
        # What stands behind a gate waits for it anyway.
        before = [
            known[name].step
            for name in dict.fromkeys(job.step.after)
            if name not in referred and not is_gate(self._jobs[name])
        ]
        name = self._called(job, job.called(segment), at)
        return job_step(job, segment, name, run_words(job, self._runs), known, before)

    def _name(self, job: Planned, at: At) -> str:
        """Of the step that has its result on a way."""
        return self._called(job, job.called(at[job.name] if job.chain else 1), at)

    def _called(self, job: Planned, words: str, at: At) -> str:
        return _fitting(job, words + self._order.suffix(job.name, at))

    def _own_suffix(self, job: Planned, at: At) -> str:
        """As what follows on it has."""
        suffix = self._order.suffix(job.name, at)
        return f"{suffix or '-At'}-{at[job.name]}" if job.chain else suffix


def _fitting(job: Planned, name: str) -> str:
    if len(name) > LONGEST_NAME:
        text = f"{name!r} would be the name of a step, and {LONGEST_NAME} letters are the most; shorten it"
        raise JobError([job.step.problem("name", text)])
    return name


def _condition(
    name: str, conditions: list[dict[str, Any]], then: list[dict[str, Any]], otherwise: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "Name": name,
        "Type": "Condition",
        "Arguments": {"Conditions": conditions, "IfSteps": then, "ElseSteps": otherwise},
    }


def _fail(name: str, message: str) -> dict[str, Any]:
    return {"Name": name, "Type": "Fail", "Arguments": {"ErrorMessage": message}}


def _limit(job: Planned) -> str:
    of = f"step {job.name}: " if job.name else ""
    return (
        f"{ERRORS[EXIT_LIMIT]}: {of}all segments that limits.max_runtime has room for have run, and the "
        "training is not finished"
    )
