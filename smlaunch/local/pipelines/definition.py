"""A pipeline's definition, version 2020-12-01, read into steps. Pure.

Everything that is wrong is found at once, each with its place in the definition. Steps of a condition's two
branches stand among the others and know whose they are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smlaunch.api.validation import check_request
from smlaunch.local.pipelines import conditions, expressions, parameters, retries
from smlaunch.local.pipelines.expressions import Steps, dotted, present
from smlaunch.local.pipelines.parameters import Parameter
from smlaunch.local.pipelines.retries import RetryPolicy

VERSION = "2020-12-01"
JOB_TYPES: Mapping[str, tuple[str, str]] = {
    "Training": ("CreateTrainingJob", "TrainingJobName"),
    "Processing": ("CreateProcessingJob", "ProcessingJobName"),
}
"""By type of step: the operation that its Arguments are given to, and the member that the service fills."""

TYPES = (*JOB_TYPES, "Condition", "Fail")
_MEMBERS = frozenset({"Name", "Type", "Arguments", "DependsOn", "DisplayName", "Description"})
_JOB_MEMBERS = _MEMBERS | {"RetryPolicies", "CacheConfig"}
_MEMBERS_OF: Mapping[str, frozenset[str]] = {
    "Training": _JOB_MEMBERS,
    "Processing": _JOB_MEMBERS | {"PropertyFiles"},
}
_CONFIGS: Mapping[str, frozenset[str]] = {
    "PipelineExperimentConfig": frozenset({"ExperimentName", "TrialName"}),
    "MlflowConfig": frozenset({"MlflowResourceArn", "MlflowExperimentName"}),
}
"""What can be said of a whole execution, as the SDK writes it; it has no effect here (honesty.py)."""
_TOP = frozenset({"Version", "Metadata", "Parameters", "Steps"}) | _CONFIGS.keys()
_FILE = ("PropertyFileName", "OutputName", "FilePath")
_NAME = re.compile(r"[A-Za-z0-9\-_]{1,64}")
_DURATION = re.compile(
    r"P?(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", re.IGNORECASE
)
_SECONDS = (365 * 86_400, 30 * 86_400, 7 * 86_400, 86_400, 3_600, 60, 1)
_NOT_NESTED = (
    "Pipelines does not support nested condition steps (developer guide, condition step); let it stand "
    "beside that one, and refer to a step of the branch"
)
_MOST_STEPS = 50_000
"""A bound of ours: the service's own quotas are an account's."""


class BadDefinition(Exception):
    """``problems``: sentences, each beginning with a place in the definition."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Step:
    """``needs``: the steps that DependsOn or a reference names, and the condition whose branch it is in.
    ``branch``: that condition and the outcome it is for. ``cached``: how old a result may be, in seconds;
    None without a cache. ``files``: OutputName and FilePath of each property file."""

    name: str
    type: str
    arguments: Mapping[str, Any]
    needs: frozenset[str] = frozenset()
    branch: tuple[str, bool] | None = None
    retries: tuple[RetryPolicy, ...] = ()
    cached: float | None = None
    files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    display_name: str | None = None
    description: str | None = None


@dataclass(frozen=True)
class Definition:
    """``steps`` as they are written, those of branches after their condition; ``order``: each after all that
    it needs."""

    parameters: Mapping[str, Parameter]
    steps: Mapping[str, Step]
    order: tuple[str, ...]
    experiment: Mapping[str, Any] = field(default_factory=dict)


def read(text: str) -> Definition:
    """Raises BadDefinition."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise BadDefinition(["the definition is not a JSON object"])
        return _Reader(document).read()
    except ValueError as error:
        raise BadDefinition([f"the definition is not JSON: {error}"]) from None
    except RecursionError:
        raise BadDefinition(["the definition is nested too deeply to be read"]) from None


def seconds_of(duration: str) -> float | None:
    """An ISO 8601 duration, with or without its P, months of 30 days; None for what is none."""
    match = _DURATION.fullmatch(duration)
    if match is None or not any(match.groups()):
        return None
    return float(sum(int(n) * unit for n, unit in zip(match.groups(), _SECONDS, strict=True) if n))


class _Reader:
    """Collects steps and problems while it walks through one definition."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = present(document)
        self._problems: list[str] = []
        self._steps: dict[str, Step] = {}
        self._places: dict[str, Steps] = {}

    def read(self) -> Definition:
        document = self._document
        if document.get("Version", VERSION) != VERSION:
            self._tell(("Version",), f"{document.get('Version')!r} is not had here; {VERSION} is")
        for name in sorted(document.keys() - _TOP):
            self._tell((name,), "is unknown")
        given, found = parameters.read(document.get("Parameters", []))
        self._all(found)
        steps = document.get("Steps")
        if not isinstance(steps, list) or not steps:
            self._tell(("Steps",), "a list with at least one step is needed")
        else:
            self._list(steps, ("Steps",), None)
        experiment, _ = (self._config(name, given) for name in _CONFIGS)
        for name, step in self._steps.items():
            self._references(step.arguments, (*self._places[name], "Arguments"), step, given)
            self._job_arguments(step, (*self._places[name], "Arguments"))
            for other in sorted(step.needs - self._steps.keys()):
                self._tell((*self._places[name], "DependsOn"), f"there is no step {other!r}")
        order = self._order()
        if self._problems:
            raise BadDefinition(self._problems)
        return Definition(given, self._steps, order, experiment)

    def _config(self, name: str, given: Mapping[str, Parameter]) -> Mapping[str, Any]:
        config = self._document.get(name, {})
        if not isinstance(config, dict):
            self._tell((name,), "an object is needed")
            return {}
        config = present(config)
        for member in sorted(config.keys() - _CONFIGS[name]):
            self._tell((name, member), "is unknown")
        self._references(config, (name,), None, given)
        return config

    def _tell(self, path: Steps, what: str) -> None:
        line = f"{dotted(path)}: {what}"
        if line not in self._problems:
            self._problems.append(line)

    def _all(self, found: Iterator[tuple[Steps, str]] | list[tuple[Steps, str]]) -> None:
        for path, what in found:
            self._tell(path, what)

    # ---- steps, one after the other

    def _list(self, steps: list[Any], path: Steps, branch: tuple[str, bool] | None) -> None:
        for index, document in enumerate(steps):
            place = (*path, index)
            if len(self._steps) >= _MOST_STEPS:
                self._tell(path, f"there are more than {_MOST_STEPS} steps")
                return
            if not isinstance(document, dict):
                self._tell(place, "an object is needed")
                continue
            self._step(document, place, branch)

    def _step(self, document: Mapping[str, Any], place: Steps, branch: tuple[str, bool] | None) -> None:
        document = present(document)
        name, kind = document.get("Name"), document.get("Type")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            self._tell((*place, "Name"), f"{name!r} is no name of up to 64 letters, digits, - and _")
            name = f"?{dotted(place)}"
        elif name in self._steps:
            self._tell((*place, "Name"), f"{name!r} is also the name of {dotted(self._places[name])}")
            name = f"?{dotted(place)}"
        if kind not in TYPES:
            self._tell(
                (*place, "Type"),
                f"steps of type {kind!r} cannot run on this endpoint; {', '.join(TYPES)} can",
            )
            return
        for member in sorted(document.keys() - _MEMBERS_OF.get(kind, _MEMBERS)):
            self._tell((*place, member), f"is not had here for a step of type {kind}")
        for member in ("DisplayName", "Description"):
            if not isinstance(document.get(member, ""), str):
                self._tell((*place, member), "a string is needed")
        arguments = document.get("Arguments")
        if not isinstance(arguments, dict):
            self._tell((*place, "Arguments"), "an object is needed")
            arguments = {}
        if kind == "Condition" and branch is not None:
            self._tell(place, f"a condition in a branch of {branch[0]!r}: {_NOT_NESTED}")
        needs = self._depends_on(document, place) | ({branch[0]} if branch else set())
        self._places[name] = place
        own = {
            member: value
            for member, value in arguments.items()
            if kind != "Condition" or member == "Conditions"
        }
        self._steps[name] = Step(
            name,
            kind,
            own,
            frozenset(needs | _referred(own)),
            branch,
            self._retries(document, place),
            self._cache(document, place),
            self._files(document, place),
            document.get("DisplayName"),
            document.get("Description"),
        )
        if kind == "Condition":
            self._branches(name, arguments, (*place, "Arguments"))
        elif kind == "Fail" and set(arguments) != {"ErrorMessage"}:
            self._tell((*place, "Arguments"), "a Fail step has ErrorMessage, and nothing else")

    def _branches(self, name: str, arguments: Mapping[str, Any], place: Steps) -> None:
        arguments = present(arguments)
        for member in sorted(arguments.keys() - {"Conditions", "IfSteps", "ElseSteps"}):
            self._tell((*place, member), "is unknown")
        self._all(conditions.several(arguments.get("Conditions"), (*place, "Conditions")))
        for member, outcome in (("IfSteps", True), ("ElseSteps", False)):
            steps = arguments.get(member, [])
            if isinstance(steps, list):
                self._list(steps, (*place, member), (name, outcome))
            else:
                self._tell((*place, member), "a list is needed")

    def _depends_on(self, document: Mapping[str, Any], place: Steps) -> set[str]:
        entries = document.get("DependsOn", [])
        if not isinstance(entries, list):
            self._tell((*place, "DependsOn"), "a list of names is needed")
            return set()
        names: set[str] = set()
        for index, entry in enumerate(entries):
            at = (*place, "DependsOn", index)
            if isinstance(entry, dict) and entry.get("Trigger", "Completed") != "Completed":
                what = f"{entry['Trigger']!r} is not had here: a step runs when those it needs have succeeded"
                self._tell((*at, "Trigger"), what)
                continue
            name = entry.get("Step") if isinstance(entry, dict) else entry
            if isinstance(name, str):
                names.add(name)
            else:
                self._tell(at, "the name of a step is needed")
        return names

    def _retries(self, document: Mapping[str, Any], place: Steps) -> tuple[RetryPolicy, ...]:
        policies = document.get("RetryPolicies", [])
        if not isinstance(policies, list):
            self._tell((*place, "RetryPolicies"), "a list is needed")
            return ()
        found = []
        for index, policy in enumerate(policies):
            wrong = list(retries.problems(policy, (*place, "RetryPolicies", index)))
            self._all(wrong)
            if not wrong:
                found.append(retries.read(policy))
        return tuple(found)

    def _cache(self, document: Mapping[str, Any], place: Steps) -> float | None:
        config = document.get("CacheConfig")
        if config is None:
            return None
        place = (*place, "CacheConfig")
        config = present(config) if isinstance(config, dict) else config
        if not isinstance(config, dict) or not isinstance(config.get("Enabled"), bool):
            self._tell(place, "Enabled, true or false, is needed")
            return None
        for member in sorted(config.keys() - {"Enabled", "ExpireAfter"}):
            self._tell((*place, member), "is unknown")
        age = config.get("ExpireAfter")
        seconds = float("inf") if age is None else seconds_of(age) if isinstance(age, str) else None
        if seconds is None:
            self._tell((*place, "ExpireAfter"), f"{age!r} is no ISO 8601 duration, such as P30D or PT12H")
        return seconds if config["Enabled"] else None

    def _files(self, document: Mapping[str, Any], place: Steps) -> dict[str, tuple[str, str]]:
        found = {}
        entries = document.get("PropertyFiles", [])
        if not isinstance(entries, list):
            self._tell((*place, "PropertyFiles"), "a list is needed")
            return {}
        for index, entry in enumerate(entries):
            members = [entry.get(name) for name in _FILE] if isinstance(entry, dict) else []
            if not members or not all(isinstance(member, str) for member in members):
                self._tell((*place, "PropertyFiles", index), f"{', '.join(_FILE)} are needed, all strings")
                continue
            name, output, path = map(str, members)
            found[name] = (output, path)
        return found

    # ---- what steps say of each other

    def _references(
        self, document: Any, place: Steps, step: Step | None, given: Mapping[str, Parameter]
    ) -> None:
        for path, expression in expressions.expressions(document, place):
            wrong = expressions.problem(expression)
            if wrong is not None:
                self._tell(path, wrong)
                continue
            body = expression.get("Get")
            if isinstance(body, str):
                self._reference(body, path, step, given)
            elif "Std:JsonGet" in expression and "PropertyFile" in expression["Std:JsonGet"]:
                source, name = expressions.property_file(expression["Std:JsonGet"]["PropertyFile"]) or (
                    "",
                    "",
                )
                if source in self._steps and name not in self._steps[source].files:
                    self._tell(path, f"step {source!r} has no property file {name!r}")

    def _reference(
        self, reference: str, path: Steps, step: Step | None, given: Mapping[str, Parameter]
    ) -> None:
        head, _, rest = reference.partition(".")
        if head == "Parameters" and rest not in given:
            self._tell(path, f"there is no parameter {rest!r}")
        elif head == "Execution" and rest.endswith("JobName"):
            if step is None or step.type not in JOB_TYPES or JOB_TYPES[step.type][1] != rest:
                self._tell(path, f"{reference!r} is known only to a step that creates such a job")
        elif head == "Steps":
            name = expressions.step_of(reference)
            other = self._steps.get(name or "")
            if step is None:
                self._tell(path, "steps cannot be referred to here")
            elif other is None:
                self._tell(path, f"{reference!r}: there is no step {name!r}")
            elif other.type == "Fail":
                self._tell(path, f"{reference!r}: a Fail step has no values")

    def _job_arguments(self, step: Step, place: Steps) -> None:
        """What the operation's own rules say of all that is no reference."""
        if step.type not in JOB_TYPES:
            return
        operation, name = JOB_TYPES[step.type]
        if name in step.arguments:
            self._tell((*place, name), "the service makes the job's name; leave it out")
            return
        places = [path for path, _ in expressions.expressions(step.arguments)]
        for violation in check_request(operation, {**step.arguments, name: "pipelines-0-0"}):
            if violation.rule == "service" and places:
                continue  # it may be about something that is not known yet
            if not any(violation.path[: len(path)] == path for path in places):
                self._tell((*place, *violation.path), violation.problem().message)

    def _order(self) -> tuple[str, ...]:
        """Each step after those it needs; circles are told."""
        remaining = {name: step.needs & self._steps.keys() for name, step in self._steps.items()}
        order: list[str] = []
        done: set[str] = set()
        while remaining:
            free = [name for name, needs in remaining.items() if needs <= done]
            if not free:
                circle = _circle(remaining)
                self._tell(("Steps",), f"{' needs '.join(circle)}: no step can need itself")
                break
            order += free
            done.update(free)
            for name in free:
                del remaining[name]
        return tuple(order)


def _referred(arguments: Any) -> set[str]:
    """The steps that a document's references name."""
    texts = (expression.get("Get") for _, expression in expressions.expressions(arguments))
    return {name for text in texts if isinstance(text, str) and (name := expressions.step_of(text))}


def _circle(remaining: Mapping[str, frozenset[str]]) -> list[str]:
    """One circle among steps each of which needs another of them."""
    visited: list[str] = [next(iter(remaining))]
    while True:
        following = min(remaining[visited[-1]] & remaining.keys())
        if following in visited:
            return [*visited[visited.index(following) :], following]
        visited.append(following)
