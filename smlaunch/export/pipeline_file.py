"""Pipeline files: several jobs and the links between them.

    pipeline: churn
    steps:
      - name: prepare
        job: prepare.yaml          # a job file, or the job itself
        cache: 30d
      - name: train
        job: train.yaml
        inputs: {train: prepare}   # the output of that step
        require: ["held_out_accuracy >= 0.97"]

The output of a step does not exist when the jobs are planned. Its channel has a placeholder address
(``StepOutput.placeholder_uri``), which the export replaces by a reference.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeVar

from smlaunch.contract.run_names import MAX_RUN_ID_LENGTH, is_run_id
from smlaunch.errors import JobError, Problem
from smlaunch.job.field_types import parse_duration
from smlaunch.job.model import Job
from smlaunch.job.yaml_file import read_job_file, resolve_relative_paths
from smlaunch.text.did_you_mean import did_you_mean

EXECUTION_ID_LENGTH = 12
"""Length of an execution id in the examples of the developer guide; no length is documented. The run id of a
step is ``<execution>-<step>``."""

MAX_STEP_NAME_LENGTH = MAX_RUN_ID_LENGTH - EXECUTION_ID_LENGTH - len("-")

OPERATORS: Mapping[str, str] = {
    ">=": "GreaterThanOrEqualTo",
    "<=": "LessThanOrEqualTo",
    "==": "Equals",
    ">": "GreaterThan",
    "<": "LessThan",
}
"""Type of a pipeline condition, by operator."""

PIPELINE_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,255}")
"""Source: CreatePipeline, API reference."""

_REQUIREMENT = re.compile(
    r"\s*(?P<value_name>[^\s<=>][^<=>]*?)\s*(?P<operator>>=|<=|==|>|<)\s*(?P<threshold>\S+)\s*"
)
_TOP_KEYS = ("pipeline", "steps")
_STEP_KEYS = ("name", "job", "inputs", "after", "require", "cache")
_INPUT_KEYS = ("from", "mode", "split", "content_type")


@dataclass(frozen=True)
class StepOutput:
    """Output of another step: of a processing job, or the model of a training job.

    ``folder``: a folder of the output, ending in a slash; empty for all of it.
    """

    step: str
    folder: str = ""

    @property
    def placeholder_uri(self) -> str:
        """Placeholder address in the plan of the job that reads the output."""
        return f"s3://pipeline-step/{self.step}/{self.folder}"


@dataclass(frozen=True)
class _StepInput:
    """An input of a step: the output of another step, and the job's channel for it as a job file has it."""

    output: StepOutput
    channel_mapping: Mapping[str, Any]


@dataclass(frozen=True)
class Requirement:
    """A condition on the result of a job.

    ``value_name``: a metric of a training job; for a processing job ``<output file>:<path in its JSON>``.
    """

    value_name: str
    operator: str
    threshold: float
    index: int = field(default=0, compare=False)
    """Index in the list of the file."""

    def __str__(self) -> str:
        return f"{self.value_name} {self.operator} {self.threshold:g}"


@dataclass(frozen=True, kw_only=True)
class StepLinks:
    """Links of a step to other steps.

    ``name``: empty for a job that is exported alone. ``inputs``: outputs of other steps, by channel.
    ``path``: path of the step in the file.
    """

    name: str = ""
    inputs: Mapping[str, StepOutput] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    path: str = ""

    @property
    def required_steps(self) -> frozenset[str]:
        return frozenset(self.after) | {source.step for source in self.inputs.values()}

    def problem_at(self, path_in_step: str, message: str) -> Problem:
        """Return a problem of a field of this step, such as ``inputs.train``, by its path in the file."""
        return Problem(f"{self.path}.{path_in_step}" if self.path else path_in_step, message)

    def job_problem(self, problem: Problem) -> Problem:
        """A problem of the job, with its path in the pipeline file."""
        return _prefix_job_path(problem, self.path) if self.path else problem


@dataclass(frozen=True, kw_only=True)
class PipelineStep(StepLinks):
    """A step with its job. ``cache_seconds``: how long its result may be reused; None: never."""

    job: Job
    requirements: tuple[Requirement, ...] = ()
    cache_seconds: int | None = None


SomeLinks = TypeVar("SomeLinks", bound=StepLinks)


@dataclass(frozen=True)
class PipelineFile:
    """A parsed pipeline file. ``problems``: all problems; ``steps``: the steps that could be parsed."""

    name: str | None
    steps: tuple[PipelineStep, ...]
    problems: tuple[Problem, ...] = ()


def is_pipeline_file(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a pipeline file, and not a job file. False for an unreadable file."""
    try:
        return str(path).endswith((".yaml", ".yml")) and not read_job_file(path).keys().isdisjoint(_TOP_KEYS)
    except JobError:
        return False


def read_pipeline_file(path: str | os.PathLike[str], role: str | None = None) -> PipelineFile:
    """Read a pipeline file. ``role``: overrides that of every job.

    Raises JobError for a file that is not a YAML mapping; other problems are in the result.
    """
    document = read_job_file(path)
    reader = _Reader(Path(path).parent, role)
    return reader.read(document)


def is_step_name(name: str) -> bool:
    return is_run_id(name) and len(name) <= MAX_STEP_NAME_LENGTH


def sort_steps(steps: Sequence[SomeLinks]) -> list[SomeLinks]:
    """Sort steps so that each comes after the steps it needs. Raises CycleError."""
    by_name = {step.name: step for step in steps}
    graph = {step.name: sorted(step.required_steps & by_name.keys()) for step in steps}
    return [by_name[name] for name in TopologicalSorter(graph).static_order()]


class _Reader:
    """Parses the steps of a file, and collects their problems."""

    def __init__(self, folder: Path, role: str | None) -> None:
        self._folder = folder
        self._role = role
        self._problems: list[Problem] = []
        self._links: list[StepLinks] = []
        """Links of all steps, also of those whose job cannot be parsed."""

    def read(self, document: Mapping[str, Any]) -> PipelineFile:
        """Return the pipeline that a YAML document describes: its valid steps, and all problems."""
        self._check_keys("", document, _TOP_KEYS)
        name = document.get("pipeline")
        if name is not None and not (isinstance(name, str) and PIPELINE_NAME.fullmatch(name)):
            self._add_problem("pipeline", f"{name!r} is not a valid name: letters, digits and dashes")
            name = None
        step_documents = document.get("steps")
        if not isinstance(step_documents, list) or not step_documents:
            self._add_problem("steps", "a list with at least one step is needed")
            step_documents = []
        parsed_steps = [
            self._parse_step(step_document, f"steps[{index}]")
            for index, step_document in enumerate(step_documents)
        ]
        valid_steps = tuple(step for step in parsed_steps if step is not None)
        self._problems += _link_problems(self._links)
        return PipelineFile(name, valid_steps, tuple(self._problems))

    def _add_problem(self, path: str, message: str) -> None:
        self._problems.append(Problem(path, message))

    def _check_keys(self, path: str, mapping: Mapping[str, Any], known_keys: Sequence[str]) -> None:
        """Add a problem for each unknown key of a mapping. ``path``: of the mapping in the pipeline file,
        such as ``steps[0]``; empty for the whole file."""
        for key in mapping:
            if key not in known_keys:
                key_path = f"{path}.{key}" if path else str(key)
                self._add_problem(key_path, f"{key!r} is unknown{did_you_mean(str(key), known_keys)}")

    def _parse_step(self, document: Any, path: str) -> PipelineStep | None:
        """Return one step of the pipeline file; None if its job is invalid. Adds a problem for each mistake.
        ``path``: of the step in the file, such as ``steps[0]``."""
        if not isinstance(document, Mapping):
            self._add_problem(path, f"a mapping with name and job is needed, not {document!r}")
            return None
        self._check_keys(path, document, _STEP_KEYS)
        step_name = document.get("name")
        if not (isinstance(step_name, str) and is_step_name(step_name)):
            rule_text = (
                f"lower-case letters, digits and single dashes are needed, at most {MAX_STEP_NAME_LENGTH}"
            )
            self._add_problem(f"{path}.name", f"{step_name!r} is not a valid step name; {rule_text}")
        step_inputs = self._parse_inputs(document.get("inputs"), f"{path}.inputs")
        links = StepLinks(
            name=str(step_name),
            inputs={channel: step_input.output for channel, step_input in step_inputs.items()},
            after=self._parse_text_or_list(document.get("after"), f"{path}.after"),
            path=path,
        )
        self._links.append(links)  # also of a step whose job is invalid: other steps may refer to it
        # "require": conditions on the job's result; "cache": for how long the result may be reused.
        requirements = self._parse_requirements(document.get("require"), f"{path}.require")
        cache_seconds = self._parse_cache(document.get("cache"), f"{path}.cache")
        channels = {channel: step_input.channel_mapping for channel, step_input in step_inputs.items()}
        job = self._parse_job(document.get("job"), path, channels)
        if job is None:
            return None
        return PipelineStep(**vars(links), job=job, requirements=requirements, cache_seconds=cache_seconds)

    def _parse_job(self, job_or_path: Any, step_path: str, linked_channels: Mapping[str, Any]) -> Job | None:
        """Return the job of a step; None if it is invalid. Adds a problem for each mistake. ``job_or_path``:
        a job as a mapping, or the path of a job file. ``linked_channels``: inputs of the job that are outputs
        of other steps, as the job file would write them, by channel."""
        job_mapping = self._job_mapping(job_or_path, f"{step_path}.job")
        if job_mapping is None:
            return None
        # A name would be the run id, which differs in every execution of a pipeline.
        if job_mapping.pop("name", None) is not None:
            self._add_problem(f"{step_path}.job.name", NAME_NOT_ALLOWED)
        job_inputs = job_mapping.get("inputs") or {}
        if isinstance(job_inputs, Mapping):  # otherwise Job.from_mapping reports it
            for channel in sorted(linked_channels.keys() & job_inputs.keys()):
                problem_text = "the job itself has this channel too; leave one of them out"
                self._add_problem(f"{step_path}.inputs.{channel}", problem_text)
            job_mapping["inputs"] = {**job_inputs, **linked_channels}
        if self._role is not None:  # given on the command line, for all jobs
            job_mapping["role"] = self._role
        try:
            return Job.from_mapping(job_mapping)
        except JobError as error:
            # Their paths are those in the job; the user's file has the job below the step.
            self._problems += [_prefix_job_path(problem, step_path) for problem in error.problems]
            return None

    def _job_mapping(self, job_or_path: Any, path: str) -> dict[str, Any] | None:
        """Return a step's job as a mapping, in which relative paths start at the folder of the pipeline file
        or of the job file; None after adding a problem. ``path``: of the value in the pipeline file."""
        if isinstance(job_or_path, Mapping):
            return resolve_relative_paths(dict(job_or_path), self._folder)
        if not isinstance(job_or_path, str):
            self._add_problem(path, "a job file, or a job as a mapping, is needed")
            return None
        try:
            return read_job_file(self._folder / job_or_path)
        except JobError as error:
            for problem in error.problems:
                self._add_problem(path, str(problem))
            return None

    def _parse_inputs(self, document: Any, path: str) -> dict[str, _StepInput]:
        """Return the outputs of other steps that a step reads, by channel name. Adds a problem for each
        mistake, and leaves that channel out."""
        if document is None:
            return {}
        if not isinstance(document, Mapping):
            self._add_problem(path, "a mapping from channels to steps is needed, such as {train: prepare}")
            return {}
        parsed_inputs = {
            str(channel_name): self._parse_input(channel_document, f"{path}.{channel_name}")
            for channel_name, channel_document in document.items()
        }
        return {
            channel: step_input for channel, step_input in parsed_inputs.items() if step_input is not None
        }

    def _parse_input(self, document: Any, path: str) -> _StepInput | None:
        """Return the output of another step that a channel reads; None after adding a problem. ``document``:
        ``step`` or ``step/folder``, or a mapping with that as ``from`` and options of the channel."""
        channel_options = dict(document) if isinstance(document, Mapping) else {"from": document}
        self._check_keys(path, channel_options, _INPUT_KEYS)
        reference = channel_options.pop("from", None)
        if not isinstance(reference, str) or not reference.partition("/")[0]:
            self._add_problem(
                path, f"a step, or a folder of its output (step/folder), is needed, not {reference!r}"
            )
            return None
        if "://" in reference or ".." in reference.split("/"):
            self._add_problem(
                path, f"{reference!r} is not a step or step/folder; an address belongs to the job's inputs"
            )
            return None
        if channel_options.get("split") == "bytes":
            self._add_problem(
                f"{path}.split", "the files are not known before that step has run; use split: key"
            )
            return None
        step_name, _, folder = reference.partition("/")
        folder = folder.strip("/")
        output = StepOutput(step_name, f"{folder}/" if folder else "")
        known_options = {key: value for key, value in channel_options.items() if key in _INPUT_KEYS}
        # The address stands for the output while the job is planned; the export replaces it by a reference.
        return _StepInput(output, {"uri": output.placeholder_uri, **known_options})

    def _parse_text_or_list(self, document: Any, path: str) -> tuple[str, ...]:
        """Return a text, or a list of texts, of the pipeline file as a tuple; empty for None, and after
        adding a problem. ``path``: of the value in the file."""
        if document is None:
            return ()
        if isinstance(document, str):
            return (document,)
        if not isinstance(document, list) or not all(isinstance(item, str) for item in document):
            self._add_problem(path, "a list of texts is needed")
            return ()
        return tuple(document)

    def _parse_requirements(self, document: Any, path: str) -> tuple[Requirement, ...]:
        """Return the conditions on a step's result, such as ``accuracy >= 0.9``. Adds a problem for an
        invalid one. ``path``: of the list in the file, such as ``steps[0].require``."""
        requirements: list[Requirement] = []
        for index, condition_text in enumerate(self._parse_text_or_list(document, path)):
            match = _REQUIREMENT.fullmatch(condition_text)  # "value_name operator threshold"
            threshold = None if match is None else _parse_finite_number(match["threshold"])
            if match is None or threshold is None:
                rule_text = f"write NAME, one of {' '.join(OPERATORS)}, and a number"
                message = f"{condition_text!r} is not a condition; {rule_text}"
                self._add_problem(f"{path}[{index}]", message)
            else:
                requirements.append(
                    Requirement(
                        value_name=match["value_name"],
                        operator=match["operator"],
                        threshold=threshold,
                        index=index,
                    )
                )
        return tuple(requirements)

    def _parse_cache(self, duration: Any, path: str) -> int | None:
        """Return for how many seconds the results of a step may be reused; None for never, or after adding a
        problem. ``duration``: such as ``30d``; None if the step has none."""
        if duration is None:
            return None
        try:
            seconds = parse_duration(duration) if isinstance(duration, str) else 0  # 0: reported below
        except ValueError as error:
            self._add_problem(path, str(error))
            return None
        # The service counts in minutes.
        if seconds == 0 or seconds % 60:
            self._add_problem(path, f"{duration!r} is not a time in whole minutes, such as 90m, 12h or 30d")
            return None
        return seconds


NAME_NOT_ALLOWED = "every execution of a pipeline is a new run with its own name; leave it out"


def _prefix_job_path(problem: Problem, path: str) -> Problem:
    return problem._replace(path=".".join(word for word in (path, "job", problem.path) if word))


def _link_problems(steps: Sequence[StepLinks]) -> Iterator[Problem]:
    """Yield problems of the links between the steps of a pipeline file: duplicate names, unknown steps,
    cycles. A step reads outputs of other steps (``inputs``, by channel) or only waits for them (``after``).
    ``path``: of a step in the file, such as ``steps[0]``."""
    names = [step.name for step in steps]
    path_by_name: dict[str, str] = {}
    for step in steps:
        if step.name in path_by_name:
            yield step.problem_at("name", f"{step.name!r} is also the name of {path_by_name[step.name]}")
        path_by_name.setdefault(step.name, step.path)
        for path_in_step, referenced_name in _references_by_path(step):
            if referenced_name not in names:
                yield step.problem_at(
                    path_in_step,
                    f"there is no step {referenced_name!r}{did_you_mean(referenced_name, names)}",
                )
    try:
        sort_steps(steps)
    except CycleError as error:
        # The second argument of the error is the list of nodes, each needed by the next one.
        cycle = error.args[1][::-1]
        yield Problem("steps", f"{' needs '.join(cycle)}: no step can need itself")


def _references_by_path(step: StepLinks) -> Iterator[tuple[str, str]]:
    """Yield the path in the step and the name of every step that it refers to."""
    for channel, step_output in step.inputs.items():
        yield f"inputs.{channel}", step_output.step
    for index, awaited_name in enumerate(step.after):
        yield f"after[{index}]", awaited_name


def _parse_finite_number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
