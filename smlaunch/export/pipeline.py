"""Jobs as a SageMaker pipeline: each job is a step, and a chain is unrolled: a condition after every segment
tests whether the training is finished.

    Segment-1 ─► Finished-1 ─yes─► the next steps
                     └─no─► Segment-2 ─► Finished-2 ─yes─► the next steps
                                              └─no─► ... ─► Limit (Fail)

A pipeline has no loops and can read only the metrics of a job, so the runtime prints whether the training is
finished (contract.segment, REPORT_FINISHED_VARIABLE). Conditions are not nested (pipeline_gates). The jobs of
an execution are new runs, named by the id of the execution and the step; the service names the jobs, and run,
segment and attempt are tags. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smlaunch.errors import EXIT_LIMIT, JobError, Problem
from smlaunch.export.pipeline_file import PipelineStep, sort_steps
from smlaunch.export.pipeline_gates import (
    MAX_DEFINITION_CHARACTERS,
    MAX_NAME_LENGTH,
    FinishedSegments,
    build_step_order,
    find_plan_problems,
    find_problems,
    is_gate,
)
from smlaunch.export.pipeline_steps import (
    PlannedStep,
    build_job_step,
    cached_run_name,
    is_training_finished,
    requirement_failed,
    requirement_met,
    run_name_pieces,
    step_result,
)
from smlaunch.export.run_template import ORCHESTRATOR_ERRORS, build_run_template
from smlaunch.planner.plan import Plan

VERSION = "2020-12-01"
DEFINITION_FILE = "pipeline.json"


def export_pipeline(plan: Plan, *, time_scale: float = 1.0) -> dict[str, str]:
    """Return the files of a pipeline of one job, by name. ``time_scale``: duration of waits, relative to a
    region.

    Raises JobError with everything in the plan that a pipeline cannot do, each problem by its field.
    """
    return export_steps([(PipelineStep(job=plan.job), plan)], plan.job.program, time_scale=time_scale)


def export_steps(
    steps: Sequence[tuple[PipelineStep, Plan]],
    title: str,
    *,
    other_problems: Sequence[Problem] = (),
    time_scale: float = 1.0,
) -> dict[str, str]:
    """Return the files of a pipeline of several jobs, by name.

    ``other_problems``: problems of steps that are not in ``steps``. Raises JobError with all problems, each
    by its path in the pipeline file.
    """
    all_problems = list(other_problems)
    jobs: list[PlannedStep] = []
    for step, plan in steps:
        try:
            jobs.append(PlannedStep(step, plan, build_run_template(plan, time_scale=time_scale)))
        except JobError as error:
            all_problems += [step.job_problem(problem) for problem in error.problems]
            all_problems += find_plan_problems(step, plan)
    all_problems += find_problems(jobs)
    if all_problems:
        raise JobError(list(dict.fromkeys(all_problems)))
    return {DEFINITION_FILE: _to_json(build_definition(jobs, title))}


def build_definition(jobs: Sequence[PlannedStep], title: str) -> dict[str, Any]:
    """Build the definition of a pipeline whose jobs have no problems."""
    return {
        "Version": VERSION,
        "Metadata": {"Comment": f"{title}, exported by smlaunch"},
        "Parameters": [],
        "Steps": _DefinitionWriter(jobs).steps(),
    }


def _to_json(definition: Mapping[str, Any]) -> str:
    """Format a definition as indented JSON, or as compact JSON where that is too long."""
    text = json.dumps(definition, indent=2, ensure_ascii=True) + "\n"
    if len(text) > MAX_DEFINITION_CHARACTERS:
        text = json.dumps(definition, separators=(",", ":"), ensure_ascii=True) + "\n"
    if len(text) > MAX_DEFINITION_CHARACTERS:
        limit = f"{MAX_DEFINITION_CHARACTERS:,}"
        why = f"the definition has {len(text):,} characters, and the service takes {limit}"
        raise JobError([Problem("steps", f"{why}; make segments longer, or more pipelines of it")])
    return text


class _DefinitionWriter:
    """Writes every step once for each path that leads to it.

    Conditions are not nested; the steps behind a condition are in its branch. A condition on a job that did
    not run is never evaluated.
    """

    def __init__(self, jobs: Sequence[PlannedStep]) -> None:
        self._jobs = {job.name: job for job in jobs}
        self._order = build_step_order(jobs)
        self._runs: dict[str, str] = {}
        for step in sort_steps([job.step for job in jobs]):
            if step.cache_seconds is not None:
                self._runs[step.name] = cached_run_name(self._jobs[step.name], self._runs)

    def steps(self) -> list[dict[str, Any]]:
        """Return the pipeline's steps, in the order in which they are written."""
        written: list[dict[str, Any]] = []
        for job in self._jobs.values():
            for finished_segments in self._order.paths_to(job.name):
                if not self._order.nearest_gates_by_step[job.name]:
                    written.append(self._job(job, 1, finished_segments))
                written += (
                    self._chain(job, finished_segments)
                    if job.is_chain
                    else self._checks(job, finished_segments)
                )
        shared_gates = dict.fromkeys(
            gates for gates in self._order.nearest_gates_by_step.values() if len(gates) > 1
        )
        for gates in shared_gates:
            first_job = next(
                job for job in self._jobs.values() if self._order.nearest_gates_by_step[job.name] == gates
            )
            written += [
                self._joined(first_job, gates, finished_segments)
                for finished_segments in self._order.paths_to(first_job.name)
            ]
        return written

    def _chain(self, job: PlannedStep, finished_segments: FinishedSegments) -> Iterator[dict[str, Any]]:
        """Conditions after each segment of a chain."""
        count = len(job.segments)
        for number in range(1, count + 1):
            segment_path = {**finished_segments, job.name: number}
            then_steps = self._after((job.name,), segment_path) if not job.step.requirements else []
            if number < count:
                next_step = self._job(job, number + 1, finished_segments)
            else:
                next_step = _fail_step(
                    self._called(job, job.generated_name("Limit"), finished_segments), _limit_message(job)
                )
            name = self._called(job, job.generated_name("Finished", number), finished_segments)
            condition = is_training_finished(self._name(job, segment_path))
            yield _condition_step(name, [condition], then_steps, [next_step])
            yield from self._checks(job, segment_path)

    def _checks(self, job: PlannedStep, finished_segments: FinishedSegments) -> Iterator[dict[str, Any]]:
        """Conditions for the requirements of a job, and the steps behind them."""
        step, suffix = self._name(job, finished_segments), self._own_suffix(job, finished_segments)
        ended_well = [is_training_finished(step)] if job.is_chain else []
        for number, requirement in enumerate(job.step.requirements, 1):
            message = f"step {job.name}: {requirement} is required, and does not hold"
            failed = _fail_step(_check_name_length(job, job.generated_name("Fail", number) + suffix), message)
            name = _check_name_length(job, job.generated_name("Unmet", number) + suffix)
            yield _condition_step(
                name, [*ended_well, requirement_failed(job, requirement, step)], [failed], []
            )
        followers = self._after((job.name,), finished_segments)
        if job.step.requirements and followers:
            yield _condition_step(
                _check_name_length(job, job.generated_name("Met") + suffix),
                self._open(job, finished_segments),
                followers,
                [],
            )

    def _joined(
        self, first_job: PlannedStep, gates: tuple[str, ...], finished_segments: FinishedSegments
    ) -> dict[str, Any]:
        """Condition for the steps that are behind several gates at once."""
        conditions = [
            gate_condition
            for gate_job in gates
            for gate_condition in self._open(self._jobs[gate_job], finished_segments)
        ]
        name = self._called(first_job, first_job.generated_name("Ready"), finished_segments)
        return _condition_step(name, conditions, self._after(gates, finished_segments), [])

    def _open(self, gate_job: PlannedStep, finished_segments: FinishedSegments) -> list[dict[str, Any]]:
        """Conditions that must hold for the steps behind a gate."""
        step = self._name(gate_job, finished_segments)
        first_job = [is_training_finished(step)] if gate_job.is_chain else []
        return first_job + [
            requirement_met(gate_job, requirement, step) for requirement in gate_job.step.requirements
        ]

    def _after(self, gates: tuple[str, ...], finished_segments: FinishedSegments) -> list[dict[str, Any]]:
        """First steps of the jobs behind exactly these gates."""
        jobs_behind = [
            job for job in self._jobs.values() if self._order.nearest_gates_by_step[job.name] == gates
        ]
        return [self._job(job, 1, finished_segments) for job in jobs_behind]

    def _job(self, job: PlannedStep, segment: int, finished_segments: FinishedSegments) -> dict[str, Any]:
        needed_jobs = [self._jobs[name] for name in sorted(job.step.required_steps)]
        results = {
            needed_job.name: step_result(needed_job, self._name(needed_job, finished_segments))
            for needed_job in needed_jobs
        }
        input_steps = {source.step for source in job.step.inputs.values()}
        # Steps behind a gate wait for it anyway.
        depends_on = [
            results[name].step
            for name in dict.fromkeys(job.step.after)
            if name not in input_steps and not is_gate(self._jobs[name])
        ]
        name = self._called(job, job.segment_name(segment), finished_segments)
        return build_job_step(job, segment, name, run_name_pieces(job, self._runs), results, depends_on)

    def _name(self, job: PlannedStep, finished_segments: FinishedSegments) -> str:
        """Name of the step that has the result of a job on a path."""
        return self._called(
            job, job.segment_name(finished_segments[job.name] if job.is_chain else 1), finished_segments
        )

    def _called(self, job: PlannedStep, base_name: str, finished_segments: FinishedSegments) -> str:
        return _check_name_length(job, base_name + self._order.suffix(job.name, finished_segments))

    def _own_suffix(self, job: PlannedStep, finished_segments: FinishedSegments) -> str:
        """Suffix of the steps that follow the job."""
        suffix = self._order.suffix(job.name, finished_segments)
        return f"{suffix or '-At'}-{finished_segments[job.name]}" if job.is_chain else suffix


def _check_name_length(job: PlannedStep, name: str) -> str:
    if len(name) > MAX_NAME_LENGTH:
        text = (
            f"{name!r} would be a step name, which has at most {MAX_NAME_LENGTH} characters; shorten the name"
        )
        raise JobError([job.step.step_problem("name", text)])
    return name


def _condition_step(
    name: str, conditions: list[dict[str, Any]], then: list[dict[str, Any]], otherwise: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "Name": name,
        "Type": "Condition",
        "Arguments": {"Conditions": conditions, "IfSteps": then, "ElseSteps": otherwise},
    }


def _fail_step(name: str, message: str) -> dict[str, Any]:
    return {"Name": name, "Type": "Fail", "Arguments": {"ErrorMessage": message}}


def _limit_message(job: PlannedStep) -> str:
    of = f"step {job.name}: " if job.name else ""
    return (
        f"{ORCHESTRATOR_ERRORS[EXIT_LIMIT]}: {of}all segments that limits.max_runtime has room "
        "for have run, and the training is not finished"
    )
