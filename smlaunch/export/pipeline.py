"""Jobs as a SageMaker pipeline: each job is a step, and a chain is unrolled: a condition after every segment
tests whether the training is finished.

    Segment-1 ─► Finished-1 ─yes─► the next steps
                     └─no─► Segment-2 ─► Finished-2 ─yes─► the next steps
                                              └─no─► ... ─► Limit (Fail)

A pipeline has no loops and can read only the metrics of a job, so the runtime prints whether the training is
finished (contract.segment, REPORT_FINISHED_VARIABLE). Conditions are not nested (pipeline_step_order). The
jobs of an execution are new runs, named by the id of the execution and the step; the service names the jobs,
and run, segment and attempt are tags. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from smlaunch.errors import EXIT_LIMIT, JobError, Problem
from smlaunch.export.pipeline_file import PipelineStep, sort_steps
from smlaunch.export.pipeline_step_order import (
    MAX_DEFINITION_CHARACTERS,
    MAX_NAME_LENGTH,
    FinishedSegments,
    build_step_order,
    find_job_problems,
    find_pipeline_problems,
    is_gate_step,
)
from smlaunch.export.pipeline_steps import (
    PlannedStep,
    StepResult,
    build_job_step,
    cached_run_id,
    requirement_failed_condition,
    requirement_met_condition,
    run_id_pieces_of,
    step_result,
    training_finished_condition,
)
from smlaunch.export.run_template import ORCHESTRATOR_ERRORS, build_run_template
from smlaunch.planner.plan import RunPlan

VERSION = "2020-12-01"
DEFINITION_FILE = "pipeline.json"


def export_pipeline(plan: RunPlan, *, time_scale: float = 1.0) -> dict[str, str]:
    """Return the files of a pipeline of one job, by name. ``time_scale``: duration of waits, relative to a
    region.

    Raises JobError with everything in the plan that a pipeline cannot do, each problem by its field.
    """
    return export_steps([(PipelineStep(job=plan.job), plan)], plan.job.program, time_scale=time_scale)


def export_steps(
    steps: Sequence[tuple[PipelineStep, RunPlan]],
    title: str,
    *,
    other_problems: Sequence[Problem] = (),
    time_scale: float = 1.0,
) -> dict[str, str]:
    """Return the files of a pipeline of several jobs, by file name. ``steps``: each step of the pipeline file
    with the plan of its job. ``other_problems``: of steps that could not be planned, and so are not in
    ``steps``. ``time_scale``: duration of waits, relative to a region.

    Raises JobError with all problems, each by its path in the pipeline file.
    """
    all_problems = list(other_problems)
    planned_steps: list[PlannedStep] = []
    for step, plan in steps:
        try:
            # The request of each job, with variables for what only an execution knows.
            template = build_run_template(plan, time_scale=time_scale)
            planned_steps.append(PlannedStep(step, plan, template))
        except JobError as error:
            all_problems += [step.job_problem(problem) for problem in error.problems]
            # find_pipeline_problems looks for these too, but only in steps that have a template.
            all_problems += find_job_problems(step, plan)
    all_problems += find_pipeline_problems(planned_steps)
    if all_problems:
        raise JobError(list(dict.fromkeys(all_problems)))  # each problem once
    return {DEFINITION_FILE: _to_json(build_definition(planned_steps, title))}


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
        self._planned_step_by_name = {job.name: job for job in jobs}
        self._step_order = build_step_order(jobs)
        self._run_id_by_cached_step: dict[str, str] = {}
        for step in sort_steps([job.step for job in jobs]):
            if step.cache_seconds is not None:
                self._run_id_by_cached_step[step.name] = cached_run_id(
                    self._planned_step_by_name[step.name], self._run_id_by_cached_step
                )

    def steps(self) -> list[dict[str, Any]]:
        """Return the definitions of all steps of the pipeline, in order. A step is a gate when later steps
        run only if a condition on it holds: a chain that may finish in any segment, or a step with
        requirements. What follows a chain is written once for each segment in which it may finish."""
        written_steps: list[dict[str, Any]] = []
        for planned_step in self._planned_step_by_name.values():
            # Each is a mapping: chain -> segment in which it has finished.
            for finished_segments in self._step_order.finished_segments_before(planned_step.name):
                written_steps += self._steps_of_job(planned_step, finished_segments)
        return [*written_steps, *self._shared_condition_steps()]

    def _steps_of_job(
        self, planned_step: PlannedStep, finished_segments: FinishedSegments
    ) -> Iterator[dict[str, Any]]:
        """Yield a job's first step and the conditions on its result. A job behind a gate is not yielded: it
        is inside the branch of the gate's Condition step."""
        if not self._step_order.nearest_gates_by_step[planned_step.name]:
            yield self._job_step(planned_step, 1, finished_segments)
        if planned_step.is_chain:
            yield from self._chain_condition_steps(planned_step, finished_segments)
        else:
            yield from self._requirement_condition_steps(planned_step, finished_segments)

    def _shared_condition_steps(self) -> Iterator[dict[str, Any]]:
        """Yield the Condition steps for jobs that depend on several gates at once. A gate is a step with a
        condition, which must hold for later steps to run. Jobs after the same gates share a Condition step,
        one for each combination of segments in which the chains before them may finish (a chain is a job that
        goes on in several segments)."""
        first_step_by_gates: dict[tuple[str, ...], PlannedStep] = {}
        gates_by_step = self._step_order.nearest_gates_by_step
        for planned_step in self._planned_step_by_name.values():
            first_step_by_gates.setdefault(gates_by_step[planned_step.name], planned_step)
        for gate_names in dict.fromkeys(gates_by_step.values()):
            if len(gate_names) > 1:
                first_step = first_step_by_gates[gate_names]
                # Each is a mapping: chain -> segment in which it has finished.
                for finished_segments in self._step_order.finished_segments_before(first_step.name):
                    yield self._shared_condition_step(first_step, gate_names, finished_segments)

    def _chain_condition_steps(
        self, planned_step: PlannedStep, finished_segments: FinishedSegments
    ) -> Iterator[dict[str, Any]]:
        """Yield a Condition step for each segment of a chain (a training that goes on in one job after the
        other): if training has finished, the steps after the chain follow; otherwise its next segment, or a
        Fail step after the last one. ``finished_segments``: by the name of each earlier chain, the number of
        the segment in which it has finished. A step is written once for each combination of these numbers,
        and its name ends in them."""
        last_segment_number = len(planned_step.segments)
        for segment_number in range(1, last_segment_number + 1):
            finished_in_this_segment = {**finished_segments, planned_step.name: segment_number}
            if segment_number < last_segment_number:
                step_when_unfinished = self._job_step(planned_step, segment_number + 1, finished_segments)
            else:
                step_when_unfinished = self._fail_step_without_segments_left(planned_step, finished_segments)
            steps_when_finished: list[dict[str, Any]] = []
            # With requirements, the steps after the chain are in the branch of their condition instead.
            if not planned_step.step.requirements:
                steps_when_finished = self._job_steps_after_gates(
                    (planned_step.name,), finished_in_this_segment
                )
            condition_name = self._full_step_name(
                planned_step, planned_step.generated_name("Finished", segment_number), finished_segments
            )
            last_step_name = self._result_step_name(planned_step, finished_in_this_segment)
            condition = training_finished_condition(last_step_name)
            yield _condition_step(condition_name, [condition], steps_when_finished, [step_when_unfinished])
            yield from self._requirement_condition_steps(planned_step, finished_in_this_segment)

    def _fail_step_without_segments_left(
        self, planned_step: PlannedStep, finished_segments: FinishedSegments
    ) -> dict[str, Any]:
        """Return the Fail step after the last segment of a chain that has not finished."""
        step_name = self._full_step_name(
            planned_step, planned_step.generated_name("Limit"), finished_segments
        )
        return _fail_step(step_name, _limit_message(planned_step))

    def _requirement_condition_steps(
        self, planned_step: PlannedStep, finished_segments: FinishedSegments
    ) -> Iterator[dict[str, Any]]:
        """Yield the Condition steps for a step's requirements, such as ``accuracy >= 0.9``: one that fails
        the execution for each unmet requirement, and one that runs the following steps when all are met.
        ``finished_segments``: segment in which each chain so far has finished; the names of steps end in
        them. The result step is the job step whose metrics or files the conditions read."""
        result_step_name = self._result_step_name(planned_step, finished_segments)
        for number, requirement in enumerate(planned_step.step.requirements, 1):
            conditions = [requirement_failed_condition(planned_step, requirement, result_step_name)]
            if planned_step.is_chain:
                # The result of a segment counts only if training has finished in it.
                conditions.insert(0, training_finished_condition(result_step_name))
            message = f"step {planned_step.name}: {requirement} is required, and does not hold"
            fail_name = self._name_of_requirement_step(planned_step, "Fail", number, finished_segments)
            unmet_name = self._name_of_requirement_step(planned_step, "Unmet", number, finished_segments)
            yield _condition_step(unmet_name, conditions, [_fail_step(fail_name, message)], [])
        following_steps = self._job_steps_after_gates((planned_step.name,), finished_segments)
        if planned_step.step.requirements and following_steps:
            conditions = self._gate_conditions(planned_step, finished_segments)
            met_name = self._name_of_requirement_step(planned_step, "Met", None, finished_segments)
            yield _condition_step(met_name, conditions, following_steps, [])

    def _name_of_requirement_step(
        self,
        planned_step: PlannedStep,
        kind: str,
        number: int | None,
        finished_segments: FinishedSegments,
    ) -> str:
        """Return the name of a generated step that follows a job: ``<job>-<kind>-<number>``, with a suffix
        for the segments in which the chains so far have finished. Raises JobError for a name that is too
        long."""
        suffix = self._suffix_after(planned_step, finished_segments)
        return _check_name_length(planned_step, planned_step.generated_name(kind, number) + suffix)

    def _shared_condition_step(
        self, first_job: PlannedStep, gates: tuple[str, ...], finished_segments: FinishedSegments
    ) -> dict[str, Any]:
        """Condition for the steps that are behind several gates at once."""
        conditions = [
            gate_condition
            for gate_job in gates
            for gate_condition in self._gate_conditions(
                self._planned_step_by_name[gate_job], finished_segments
            )
        ]
        name = self._full_step_name(first_job, first_job.generated_name("Ready"), finished_segments)
        return _condition_step(name, conditions, self._job_steps_after_gates(gates, finished_segments), [])

    def _gate_conditions(
        self, gate_job: PlannedStep, finished_segments: FinishedSegments
    ) -> list[dict[str, Any]]:
        """Conditions that must hold for the steps behind a gate."""
        step = self._result_step_name(gate_job, finished_segments)
        first_job = [training_finished_condition(step)] if gate_job.is_chain else []
        return first_job + [
            requirement_met_condition(gate_job, requirement, step)
            for requirement in gate_job.step.requirements
        ]

    def _job_steps_after_gates(
        self, gates: tuple[str, ...], finished_segments: FinishedSegments
    ) -> list[dict[str, Any]]:
        """Return the job step, of a chain that of the first segment, of each job whose nearest gates are
        exactly these."""
        return [
            self._job_step(planned_step, 1, finished_segments)
            for planned_step in self._planned_step_by_name.values()
            if self._step_order.nearest_gates_by_step[planned_step.name] == gates
        ]

    def _job_step(
        self, planned_step: PlannedStep, segment_number: int, finished_segments: FinishedSegments
    ) -> dict[str, Any]:
        """Return the Training or Processing step of one segment of a job, with references to the results of
        the steps that it needs."""
        result_by_step: dict[str, StepResult] = {}
        for needed_name in sorted(planned_step.step.required_steps):
            needed_step = self._planned_step_by_name[needed_name]
            result_step_name = self._result_step_name(needed_step, finished_segments)
            result_by_step[needed_name] = step_result(needed_step, result_step_name)
        # The references to its inputs make it wait for their steps, and the branch of a gate for the gate.
        input_step_names = {step_output.step for step_output in planned_step.step.inputs.values()}
        awaited_step_names = [
            result_by_step[name].step
            for name in dict.fromkeys(planned_step.step.after)
            if name not in input_step_names and not is_gate_step(self._planned_step_by_name[name])
        ]
        return build_job_step(
            planned_step,
            segment_number,
            self._full_step_name(planned_step, planned_step.segment_name(segment_number), finished_segments),
            run_id_pieces_of(planned_step, self._run_id_by_cached_step),
            result_by_step,
            awaited_step_names,
        )

    def _result_step_name(self, job: PlannedStep, finished_segments: FinishedSegments) -> str:
        """Return the name of the step that has the result of a job: of a chain, that of the segment in which
        it has finished."""
        return self._full_step_name(
            job, job.segment_name(finished_segments[job.name] if job.is_chain else 1), finished_segments
        )

    def _full_step_name(self, job: PlannedStep, base_name: str, finished_segments: FinishedSegments) -> str:
        return _check_name_length(job, base_name + self._step_order.suffix(job.name, finished_segments))

    def _suffix_after(self, job: PlannedStep, finished_segments: FinishedSegments) -> str:
        """Suffix of the steps that follow the job."""
        suffix = self._step_order.suffix(job.name, finished_segments)
        return f"{suffix or '-At'}-{finished_segments[job.name]}" if job.is_chain else suffix


def _check_name_length(job: PlannedStep, name: str) -> str:
    if len(name) > MAX_NAME_LENGTH:
        text = (
            f"{name!r} would be a step name, which has at most {MAX_NAME_LENGTH} characters; shorten the name"
        )
        raise JobError([job.step.problem_at("name", text)])
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
