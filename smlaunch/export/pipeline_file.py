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
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, TypeVar

from smlaunch.contract.names import MAX_RUN_ID_LENGTH, is_run_id
from smlaunch.errors import JobError, Problem
from smlaunch.job.fields import parse_duration
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

_REQUIREMENT = re.compile(r"\s*(?P<what>[^\s<=>][^<=>]*?)\s*(?P<operator>>=|<=|==|>|<)\s*(?P<bound>\S+)\s*")
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

    def step_problem(self, where: str, message: str) -> Problem:
        """A problem at a path below that of the step."""
        return Problem(f"{self.path}.{where}" if self.path else where, message)

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
        self._check_keys("", document, _TOP_KEYS)
        name = document.get("pipeline")
        if name is not None and not (isinstance(name, str) and PIPELINE_NAME.fullmatch(name)):
            self._add_problem("pipeline", f"{name!r} is not a valid name: letters, digits and dashes")
            name = None
        value = document.get("steps")
        if not isinstance(value, list) or not value:
            self._add_problem("steps", "a list with at least one step is needed")
            value = []
        steps = [
            step for index, item in enumerate(value) if (step := self._parse_step(item, f"steps[{index}]"))
        ]
        self._problems += _link_problems(self._links)
        return PipelineFile(name, tuple(steps), tuple(self._problems))

    def _add_problem(self, path: str, message: str) -> None:
        self._problems.append(Problem(path, message))

    def _check_keys(self, path: str, value: Mapping[str, Any], known: Sequence[str]) -> None:
        """Add a problem for each key of a mapping that is not a known one. ``path``: of the mapping in the
        file."""
        for key in value:
            if key not in known:
                input_path = f"{path}.{key}" if path else str(key)
                self._add_problem(input_path, f"{key!r} is unknown{did_you_mean(str(key), known)}")

    def _parse_step(self, value: Any, path: str) -> PipelineStep | None:
        """Return one step of the file; None if its job is invalid. Adds a problem for each mistake. ``path``:
        of the step in the file."""
        if not isinstance(value, Mapping):
            self._add_problem(path, f"a mapping with name and job is needed, not {value!r}")
            return None
        self._check_keys(path, value, _STEP_KEYS)
        name = value.get("name")
        if not (isinstance(name, str) and is_step_name(name)):
            text = f"lower-case letters, digits and single dashes are needed, at most {MAX_STEP_NAME_LENGTH}"
            self._add_problem(f"{path}.name", f"{name!r} is not a valid step name; {text}")
        inputs, channels = self._parse_inputs(value.get("inputs"), f"{path}.inputs")
        after = self._parse_texts(value.get("after"), f"{path}.after")
        requires = self._parse_requirements(value.get("require"), f"{path}.require")
        cache = self._parse_cache(value.get("cache"), f"{path}.cache")
        links = StepLinks(name=str(name), inputs=inputs, after=after, path=path)
        self._links.append(links)
        job = self._parse_job(value.get("job"), path, channels)
        return (
            None
            if job is None
            else PipelineStep(**vars(links), job=job, requirements=requires, cache_seconds=cache)
        )

    def _parse_job(self, value: Any, path: str, channels: Mapping[str, Any]) -> Job | None:
        """Return the job of a step; None if it is invalid. Adds a problem for each mistake. ``channels``:
        inputs of the job that are outputs of other steps."""
        mapping = self._job_mapping(value, f"{path}.job")
        if mapping is None:
            return None
        if mapping.pop("name", None) is not None:
            self._add_problem(f"{path}.job.name", NAME_NOT_ALLOWED)
        job_inputs = mapping.get("inputs") or {}
        if isinstance(job_inputs, Mapping):
            for channel in sorted(channels.keys() & job_inputs.keys()):
                text = "the job itself has this channel too; leave one of them out"
                self._add_problem(f"{path}.inputs.{channel}", text)
            mapping["inputs"] = {**job_inputs, **channels}
        if self._role is not None:
            mapping["role"] = self._role
        try:
            return Job.from_mapping(mapping)
        except JobError as error:
            self._problems += [_prefix_job_path(problem, path) for problem in error.problems]
            return None

    def _job_mapping(self, value: Any, path: str) -> dict[str, Any] | None:
        """Mapping of a job, with relative paths resolved."""
        if isinstance(value, Mapping):
            return resolve_relative_paths(dict(value), self._folder)
        if not isinstance(value, str):
            self._add_problem(path, "a job file, or a job as a mapping, is needed")
            return None
        try:
            return read_job_file(self._folder / value)
        except JobError as error:
            for problem in error.problems:
                self._add_problem(path, str(problem))
            return None

    def _parse_inputs(self, value: Any, path: str) -> tuple[dict[str, StepOutput], dict[str, Any]]:
        """Parse the inputs of a step: outputs of other steps, and the channels of the job."""
        sources: dict[str, StepOutput] = {}
        channels: dict[str, Any] = {}
        if value is None:
            return sources, channels
        if not isinstance(value, Mapping):
            self._add_problem(path, "a mapping from channels to steps is needed, such as {train: prepare}")
            return sources, channels
        for name, item in value.items():
            input_path = f"{path}.{name}"
            channel_options = dict(item) if isinstance(item, Mapping) else {"from": item}
            self._check_keys(input_path, channel_options, _INPUT_KEYS)
            reference = channel_options.pop("from", None)
            if not isinstance(reference, str) or not reference.partition("/")[0]:
                self._add_problem(
                    input_path,
                    f"a step, or a folder of its output (step/folder), is needed, not {reference!r}",
                )
                continue
            if "://" in reference or ".." in reference.split("/"):
                self._add_problem(
                    input_path,
                    f"{reference!r} is not a step or step/folder; an address belongs to the job's inputs",
                )
                continue
            if channel_options.get("split") == "bytes":
                self._add_problem(
                    f"{input_path}.split", "the files are not known before that step has run; use split: key"
                )
                continue
            step, _, folder = reference.partition("/")
            source = StepOutput(step, folder.strip("/") + "/" if folder.strip("/") else "")
            sources[str(name)] = source
            options = {key: value for key, value in channel_options.items() if key in _INPUT_KEYS}
            channels[str(name)] = {"uri": source.placeholder_uri, **options}
        return sources, channels

    def _parse_texts(self, value: Any, path: str) -> tuple[str, ...]:
        """Return a text or a list of texts as a tuple; empty after adding a problem."""
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self._add_problem(path, "a list of texts is needed")
            return ()
        return tuple(value)

    def _parse_requirements(self, value: Any, path: str) -> tuple[Requirement, ...]:
        """Return the conditions of a step, such as ``accuracy >= 0.9``. Adds a problem for a wrong one."""
        found = []
        for index, text in enumerate(self._parse_texts(value, path)):
            match = _REQUIREMENT.fullmatch(text)
            bound = None if match is None else _parse_finite(match["bound"])
            if match is None or bound is None:
                message = (
                    f"{text!r} is not a condition; write NAME, one of {' '.join(OPERATORS)}, and a number"
                )
                self._add_problem(f"{path}[{index}]", message)
            else:
                found.append(Requirement(match["what"], match["operator"], bound, index))
        return tuple(found)

    def _parse_cache(self, value: Any, path: str) -> int | None:
        """Return for how many seconds the results of a step may be reused; None for never, or after adding a
        problem."""
        if value is None:
            return None
        try:
            seconds = parse_duration(value) if isinstance(value, str) else 0
        except ValueError as error:
            self._add_problem(path, str(error))
            return None
        if seconds == 0 or seconds % 60:
            self._add_problem(path, f"{value!r} is not a time in whole minutes, such as 90m, 12h or 30d")
            return None
        return seconds


NAME_NOT_ALLOWED = "every execution of a pipeline is a new run with its own name; leave it out"


def _prefix_job_path(problem: Problem, path: str) -> Problem:
    return replace(problem, path=".".join(word for word in (path, "job", problem.path) if word))


def _link_problems(steps: Sequence[StepLinks]) -> Iterator[Problem]:
    """Yield problems of the links between steps: duplicate names, unknown steps, cycles."""
    names = [step.name for step in steps]
    path_by_name: dict[str, str] = {}
    for step in steps:
        if step.name in path_by_name:
            yield step.step_problem("name", f"{step.name!r} is also the name of {path_by_name[step.name]}")
        path_by_name.setdefault(step.name, step.path)
        references = [
            *((f"inputs.{channel}", source.step) for channel, source in step.inputs.items()),
            *((f"after[{index}]", name) for index, name in enumerate(step.after)),
        ]
        for path, name in references:
            if name not in names:
                yield step.step_problem(path, f"there is no step {name!r}{did_you_mean(name, names)}")
    try:
        sort_steps(steps)
    except CycleError as error:
        cycle = error.args[1][::-1]
        yield Problem("steps", f"{' needs '.join(cycle)}: no step can need itself")


def _parse_finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
