"""A pipeline's file: several jobs, and what each of them has to do with the others.

    pipeline: churn
    steps:
      - name: prepare
        job: prepare.yaml          # a job file, or the job itself
        cache: 30d
      - name: train
        job: train.yaml
        inputs: {train: prepare}   # what that step left
        require: ["held_out_accuracy >= 0.97"]

What an input is taken from is not there when the jobs are planned. Its channel has an address that stands for
it meanwhile (``Source.uri``), and the export writes a reference in its place.
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

from smlaunch.errors import JobError, Problem
from smlaunch.job import Job
from smlaunch.job_fields import parse_duration
from smlaunch.job_file import read_mapping, relocated
from smlaunch.protocol.names import RUN_LIMIT, is_run_id
from smlaunch.suggest import did_you_mean

EXECUTION_ID = 12
"""Letters of an execution's id, as the service makes them (in the developer guide's examples; no length is
documented). A step's run is called ``<execution>-<step>``."""

NAME_LIMIT = RUN_LIMIT - EXECUTION_ID - len("-")

OPERATORS: Mapping[str, str] = {
    ">=": "GreaterThanOrEqualTo",
    "<=": "LessThanOrEqualTo",
    "==": "Equals",
    ">": "GreaterThan",
    "<": "LessThan",
}
"""As they are written, and as a pipeline's conditions are called."""

PIPELINE_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,255}")
"""Source: CreatePipeline, API reference."""

_REQUIREMENT = re.compile(r"\s*(?P<what>[^\s<=>][^<=>]*?)\s*(?P<operator>>=|<=|==|>|<)\s*(?P<bound>\S+)\s*")
_TOP = ("pipeline", "steps")
_KEYS = ("name", "job", "inputs", "after", "require", "cache")
_INPUT_KEYS = ("from", "mode", "split", "content_type")


@dataclass(frozen=True)
class Source:
    """What another step left: a processing job's output, or a training job's model. ``folder``: one below it,
    ending in a slash; empty for all of it."""

    step: str
    folder: str = ""

    @property
    def uri(self) -> str:
        """Stands for it in the plan of the job that reads it."""
        return f"s3://pipeline-step/{self.step}/{self.folder}"


@dataclass(frozen=True)
class Requirement:
    """``what``: a training job's metric; of a processing job ``<file of its output>:<path in its JSON>``."""

    what: str
    operator: str
    bound: float
    index: int = field(default=0, compare=False)
    """Its place in the file's list."""

    def __str__(self) -> str:
        return f"{self.what} {self.operator} {self.bound:g}"


@dataclass(frozen=True, kw_only=True)
class Links:
    """What a step has to do with others. ``name``: empty for a job that is exported alone. ``inputs``: by the
    job's channel. ``path``: the step's place in the file."""

    name: str = ""
    inputs: Mapping[str, Source] = field(default_factory=dict)
    after: tuple[str, ...] = ()
    path: str = ""

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.after) | {source.step for source in self.inputs.values()}

    def problem(self, where: str, message: str) -> Problem:
        """``where``: a place below the step's own."""
        return Problem(f"{self.path}.{where}" if self.path else where, message)

    def problem_of_job(self, problem: Problem) -> Problem:
        """The job's own, by its place in the pipeline's file."""
        return _in_job(problem, self.path) if self.path else problem


@dataclass(frozen=True, kw_only=True)
class Step(Links):
    """``cache``: seconds for which its result may be taken again, None without."""

    job: Job
    requires: tuple[Requirement, ...] = ()
    cache: int | None = None


SomeLinks = TypeVar("SomeLinks", bound=Links)


@dataclass(frozen=True)
class PipelineFile:
    """``problems``: all that is wrong with it; ``steps`` are those that can be read nevertheless."""

    name: str | None
    steps: tuple[Step, ...]
    problems: tuple[Problem, ...] = ()


def is_pipeline(path: str | os.PathLike[str]) -> bool:
    """Whether this is a pipeline's file, and not a job's. What cannot be read is none."""
    try:
        return str(path).endswith((".yaml", ".yml")) and not read_mapping(path).keys().isdisjoint(_TOP)
    except JobError:
        return False


def read_pipeline(path: str | os.PathLike[str], role: str | None = None) -> PipelineFile:
    """``role``: laid over every job. Raises JobError for what is no YAML mapping; everything else that is
    wrong stands in the result."""
    document = read_mapping(path)
    reader = _Reader(Path(path).parent, role)
    return reader.read(document)


def is_step_name(name: str) -> bool:
    return is_run_id(name) and len(name) <= NAME_LIMIT


def in_order(steps: Sequence[SomeLinks]) -> list[SomeLinks]:
    """Each after all that it needs. Raises CycleError."""
    by_name = {step.name: step for step in steps}
    graph = {step.name: sorted(step.needs & by_name.keys()) for step in steps}
    return [by_name[name] for name in TopologicalSorter(graph).static_order()]


class _Reader:
    """Collects steps and problems."""

    def __init__(self, folder: Path, role: str | None) -> None:
        self._folder = folder
        self._role = role
        self._problems: list[Problem] = []
        self._links: list[Links] = []
        """Of all steps, also those whose job cannot be read."""

    def read(self, document: Mapping[str, Any]) -> PipelineFile:
        self._unknown("", document, _TOP)
        name = document.get("pipeline")
        if name is not None and not (isinstance(name, str) and PIPELINE_NAME.fullmatch(name)):
            self._tell("pipeline", f"{name!r} is no name of letters, digits and dashes")
            name = None
        given = document.get("steps")
        if not isinstance(given, list) or not given:
            self._tell("steps", "a list with at least one step is needed")
            given = []
        steps = [step for index, one in enumerate(given) if (step := self._step(one, f"steps[{index}]"))]
        self._problems += _between(self._links)
        return PipelineFile(name, tuple(steps), tuple(self._problems))

    def _tell(self, path: str, message: str) -> None:
        self._problems.append(Problem(path, message))

    def _unknown(self, path: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
        for key in given:
            if key not in known:
                where = f"{path}.{key}" if path else str(key)
                self._tell(where, f"{key!r} is unknown{did_you_mean(str(key), known)}")

    def _step(self, given: Any, path: str) -> Step | None:
        if not isinstance(given, Mapping):
            self._tell(path, f"a mapping with name and job is needed, not {given!r}")
            return None
        self._unknown(path, given, _KEYS)
        name = given.get("name")
        if not (isinstance(name, str) and is_step_name(name)):
            text = f"lower-case letters, digits and single dashes are needed, at most {NAME_LIMIT}"
            self._tell(f"{path}.name", f"{name!r} is no step's name; {text}")
        inputs, channels = self._inputs(given.get("inputs"), f"{path}.inputs")
        after = self._texts(given.get("after"), f"{path}.after")
        requires = self._requires(given.get("require"), f"{path}.require")
        cache = self._cache(given.get("cache"), f"{path}.cache")
        links = Links(name=str(name), inputs=inputs, after=after, path=path)
        self._links.append(links)
        job = self._job(given.get("job"), path, channels)
        return None if job is None else Step(**vars(links), job=job, requires=requires, cache=cache)

    def _job(self, given: Any, path: str, channels: Mapping[str, Any]) -> Job | None:
        mapping = self._mapping(given, f"{path}.job")
        if mapping is None:
            return None
        if mapping.pop("name", None) is not None:
            self._tell(f"{path}.job.name", OWN_NAMES)
        own = mapping.get("inputs") or {}
        if isinstance(own, Mapping):
            for channel in sorted(channels.keys() & own.keys()):
                text = "the job itself has this channel too; leave one of them out"
                self._tell(f"{path}.inputs.{channel}", text)
            mapping["inputs"] = {**own, **channels}
        if self._role is not None:
            mapping["role"] = self._role
        try:
            return Job.from_mapping(mapping)
        except JobError as error:
            self._problems += [_in_job(problem, path) for problem in error.problems]
            return None

    def _mapping(self, given: Any, path: str) -> dict[str, Any] | None:
        """The job's, its relative paths as they hold from here."""
        if isinstance(given, Mapping):
            return relocated(dict(given), self._folder)
        if not isinstance(given, str):
            self._tell(path, "a job file, or a job as a mapping, is needed")
            return None
        try:
            return read_mapping(self._folder / given)
        except JobError as error:
            for problem in error.problems:
                self._tell(path, str(problem))
            return None

    def _inputs(self, given: Any, path: str) -> tuple[dict[str, Source], dict[str, Any]]:
        """What each is taken from, and the channels as the job is to have them."""
        sources: dict[str, Source] = {}
        channels: dict[str, Any] = {}
        if given is None:
            return sources, channels
        if not isinstance(given, Mapping):
            self._tell(path, "a mapping from channels to steps is needed, such as {train: prepare}")
            return sources, channels
        for name, value in given.items():
            where = f"{path}.{name}"
            rest = dict(value) if isinstance(value, Mapping) else {"from": value}
            self._unknown(where, rest, _INPUT_KEYS)
            word = rest.pop("from", None)
            if not isinstance(word, str) or not word.partition("/")[0]:
                self._tell(
                    where, f"a step, or a folder of what it left (step/folder), is needed, not {word!r}"
                )
                continue
            if "://" in word or ".." in word.split("/"):
                self._tell(
                    where, f"{word!r} is no step or folder of it; an address stands in the job's own inputs"
                )
                continue
            if rest.get("split") == "bytes":
                self._tell(
                    f"{where}.split", "nobody knows its files before that step has run; split: key does"
                )
                continue
            step, _, folder = word.partition("/")
            source = Source(step, folder.strip("/") + "/" if folder.strip("/") else "")
            sources[str(name)] = source
            options = {key: value for key, value in rest.items() if key in _INPUT_KEYS}
            channels[str(name)] = {"uri": source.uri, **options}
        return sources, channels

    def _texts(self, given: Any, path: str) -> tuple[str, ...]:
        if given is None:
            return ()
        if isinstance(given, str):
            return (given,)
        if not isinstance(given, list) or not all(isinstance(one, str) for one in given):
            self._tell(path, "a list of texts is needed")
            return ()
        return tuple(given)

    def _requires(self, given: Any, path: str) -> tuple[Requirement, ...]:
        found = []
        for index, text in enumerate(self._texts(given, path)):
            match = _REQUIREMENT.fullmatch(text)
            bound = None if match is None else _number(match["bound"])
            if match is None or bound is None:
                words = f"{text!r} is no condition; write NAME, one of {' '.join(OPERATORS)}, and a number"
                self._tell(f"{path}[{index}]", words)
            else:
                found.append(Requirement(match["what"], match["operator"], bound, index))
        return tuple(found)

    def _cache(self, given: Any, path: str) -> int | None:
        if given is None:
            return None
        try:
            seconds = parse_duration(given) if isinstance(given, str) else 0
        except ValueError as error:
            self._tell(path, str(error))
            return None
        if seconds == 0 or seconds % 60:
            self._tell(path, f"{given!r} is no time in whole minutes, such as 90m, 12h or 30d")
            return None
        return seconds


OWN_NAMES = "the executions of a pipeline name their runs themselves, so that each trains anew; leave it out"


def _in_job(problem: Problem, path: str) -> Problem:
    return replace(problem, path=".".join(word for word in (path, "job", problem.path) if word))


def _between(steps: Sequence[Links]) -> Iterator[Problem]:
    names = [step.name for step in steps]
    seen: dict[str, str] = {}
    for step in steps:
        if step.name in seen:
            yield step.problem("name", f"{step.name!r} is also the name of {seen[step.name]}")
        seen.setdefault(step.name, step.path)
        places = [
            *((f"inputs.{channel}", source.step) for channel, source in step.inputs.items()),
            *((f"after[{index}]", name) for index, name in enumerate(step.after)),
        ]
        for where, name in places:
            if name not in names:
                yield step.problem(where, f"there is no step {name!r}{did_you_mean(name, names)}")
    try:
        in_order(steps)
    except CycleError as error:
        circle = error.args[1][::-1]
        yield Problem("steps", f"{' needs '.join(circle)}: no step can need itself")


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
