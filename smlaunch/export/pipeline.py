"""Jobs as a SageMaker pipeline: each a step, and a chain unrolled, every segment followed by the question
whether it was the last.

    Segment-1 ─► Finished-1 ─yes─► what follows on the training
                     └─no─► Segment-2 ─► Finished-2 ─yes─► what follows
                                              └─no─► ... ─► Limit (Fail)

A pipeline has no loops and sees of a job its metrics, so the runtime prints whether the training has come to
its end (protocol.segment, TELL_FINISHED). Each execution's jobs are runs of their own, named by the
execution's id and the step; the service names the jobs, and run, segment and attempt are their tags. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from smlaunch.errors import EXIT_LIMIT, JobError, Problem
from smlaunch.export.flow import ERRORS, flow_of
from smlaunch.export.pipeline_file import Step, in_order
from smlaunch.export.pipeline_jobs import (
    Ended,
    Planned,
    ended,
    finished_condition,
    fixed_run,
    job_step,
    requirement_condition,
    run_words,
)
from smlaunch.export.pipeline_order import LONGEST_NAME, MOST_CHARACTERS, is_gate, order_of, problems
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
        "Steps": _Writer(jobs).steps(None, {}, ""),
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
    """Writes steps, those of branches within their conditions."""

    def __init__(self, jobs: Sequence[Planned]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._order = order_of(jobs)
        self._runs: dict[str, str] = {}
        for step in in_order([job.step for job in jobs]):
            if step.cache is not None:
                self._runs[step.name] = fixed_run(self._jobs[step.name], self._runs)

    def steps(self, gate: str | None, known: Mapping[str, Ended], suffix: str) -> list[dict[str, Any]]:
        """All that stand right behind ``gate``. ``known``: what has ended there, by the steps' own names.
        ``suffix``: makes the names of one branch unlike those of the others."""
        here = [job for job in self._jobs.values() if self._order.scope(job.name) == gate]
        plain = {job.name: ended(job, job.called(1) + suffix) for job in here if not job.chain}
        known = {**known, **plain}
        return [step for job in here for step in self._job(job, known, suffix)]

    def _job(self, job: Planned, known: Mapping[str, Ended], suffix: str) -> list[dict[str, Any]]:
        if not job.chain:
            return [self._segment(job, 1, known, suffix), *self._behind(job, known, suffix)]
        # From the last segment to the first: each is part of what follows on the one before it.
        steps = [_fail(job.part("Limit") + suffix, _limit(job))]
        for number in range(len(job.lengths), 0, -1):
            segment = self._segment(job, number, known, suffix)
            branch = {**known, job.name: ended(job, segment["Name"])}
            behind = self._behind(job, branch, f"{suffix or '-At'}-{number}")
            name = job.part("Finished", number) + suffix
            steps = [segment, _condition(name, finished_condition(segment["Name"]), behind, steps)]
        return steps

    def _segment(self, job: Planned, number: int, known: Mapping[str, Ended], suffix: str) -> dict[str, Any]:
        referred = {source.step for source in job.step.inputs.values()}
        # What stands behind a gate waits for it anyway.
        before = [
            known[name].step
            for name in dict.fromkeys(job.step.after)
            if name not in referred and not is_gate(self._jobs[name])
        ]
        run = run_words(job, self._runs)
        return job_step(job, number, _fitting(job, job.called(number) + suffix), run, known, before)

    def _behind(self, job: Planned, known: Mapping[str, Ended], suffix: str) -> list[dict[str, Any]]:
        """What follows on a job that has ended well, behind its requirements."""
        steps = self.steps(job.name, known, suffix) if is_gate(job) else []
        for number, requirement in reversed(list(enumerate(job.step.requires, 1))):
            condition = requirement_condition(job, requirement, known[job.name].step)
            message = f"step {job.name}: {requirement} is required, and does not hold"
            unmet = _fail(_fitting(job, job.part("Unmet", number) + suffix), message)
            name = _fitting(job, job.part("Required", number) + suffix)
            steps = [_condition(name, condition, steps, [unmet])]
        return steps


def _fitting(job: Planned, name: str) -> str:
    if len(name) > LONGEST_NAME:
        text = f"{name!r} would be the name of a step, and {LONGEST_NAME} letters are the most; shorten it"
        raise JobError([job.step.problem("name", text)])
    return name


def _condition(
    name: str, condition: Mapping[str, Any], then: list[dict[str, Any]], otherwise: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "Name": name,
        "Type": "Condition",
        "Arguments": {"Conditions": [condition], "IfSteps": then, "ElseSteps": otherwise},
    }


def _fail(name: str, message: str) -> dict[str, Any]:
    return {"Name": name, "Type": "Fail", "Arguments": {"ErrorMessage": message}}


def _limit(job: Planned) -> str:
    of = f"step {job.name}: " if job.name else ""
    return (
        f"{ERRORS[EXIT_LIMIT]}: {of}all segments that limits.max_runtime has room for have run, and the "
        "training is not finished"
    )
