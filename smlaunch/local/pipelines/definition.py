"""Parse a pipeline's definition, version 2020-12-01, into steps. Pure.

All errors are reported at once, each with its path in the definition. Steps in the branches of a condition
are in the same mapping as the others, and name the condition and the branch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from smlaunch.api.validation import check_request
from smlaunch.local.pipelines import conditions, expressions, parameters, retries
from smlaunch.local.pipelines.expressions import DocumentPath, format_path, without_nulls
from smlaunch.local.pipelines.parameters import Parameter
from smlaunch.local.pipelines.retries import RetryPolicy

VERSION = "2020-12-01"
JOB_TYPES: Mapping[str, tuple[str, str]] = {
    "Training": ("CreateTrainingJob", "TrainingJobName"),
    "Processing": ("CreateProcessingJob", "ProcessingJobName"),
}
"""By type of step: the operation that takes its Arguments, and the member that the service fills."""

_STEP_TYPES = (*JOB_TYPES, "Condition", "Fail")
_STEP_MEMBERS = frozenset({"Name", "Type", "Arguments", "DependsOn", "DisplayName", "Description"})
_JOB_STEP_MEMBERS = _STEP_MEMBERS | {"RetryPolicies", "CacheConfig"}
_MEMBERS_BY_TYPE: Mapping[str, frozenset[str]] = {
    "Training": _JOB_STEP_MEMBERS,
    "Processing": _JOB_STEP_MEMBERS | {"PropertyFiles"},
}
_CONFIGS: Mapping[str, frozenset[str]] = {
    "PipelineExperimentConfig": frozenset({"ExperimentName", "TrialName"}),
    "MlflowConfig": frozenset({"MlflowResourceArn", "MlflowExperimentName"}),
}
"""Configurations of a whole execution, as the SDK writes them. They have no effect here (support.py)."""
_TOP_LEVEL_MEMBERS = frozenset({"Version", "Metadata", "Parameters", "Steps"}) | _CONFIGS.keys()
_PROPERTY_FILE_MEMBERS = ("PropertyFileName", "OutputName", "FilePath")
_STEP_NAME = re.compile(r"[A-Za-z0-9\-_]{1,64}")
_DURATION = re.compile(
    r"P?(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", re.IGNORECASE
)
_UNIT_SECONDS = (365 * 86_400, 30 * 86_400, 7 * 86_400, 86_400, 3_600, 60, 1)
"""Of the groups of ``_DURATION``."""
_NESTED_CONDITION = (
    "Pipelines does not support nested condition steps (developer guide, condition step); move it out of "
    "the branch, and let it refer to a step of the branch"
)
_MAX_STEPS = 50_000
"""The service's own limit is a quota of the account; this one bounds the endpoint's memory."""


class BadDefinition(Exception):
    """The definition is invalid, or this endpoint does not support it."""

    def __init__(self, problems: Sequence[str]) -> None:
        """``problems``: one sentence for each error, which begins with a path in the definition."""
        super().__init__("; ".join(problems))
        self.problems = tuple(problems)


@dataclass(frozen=True)
class Step:
    """A step of a definition."""

    name: str
    type: str
    """Training, Processing, Condition or Fail."""
    arguments: Mapping[str, Any]
    """With unresolved expressions. A condition has its Conditions alone, not its branches."""
    dependencies: frozenset[str] = frozenset()
    """Names of the steps in DependsOn and in references, and of the condition whose branch the step is in."""
    branch: tuple[str, bool] | None = None
    """Name of the condition whose branch the step is in, and the outcome for which it runs."""
    retry_policies: tuple[RetryPolicy, ...] = ()
    max_cache_age_seconds: float | None = None
    """Greatest age of a cached result that may be reused, infinity without a limit; None without a cache."""
    property_files: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """OutputName and FilePath of each property file, by its name."""
    display_name: str | None = None
    description: str | None = None


@dataclass(frozen=True)
class Definition:
    """A definition without errors."""

    parameters: Mapping[str, Parameter]
    steps: Mapping[str, Step]
    """In the order of the document; the steps of branches follow their condition."""
    order: tuple[str, ...]
    """Names of all steps, each after its dependencies."""
    experiment: Mapping[str, Any] = field(default_factory=dict)
    """PipelineExperimentConfig with unresolved expressions; empty without one."""


def parse_definition(text: str) -> Definition:
    """Parse the JSON text of a definition. Raises BadDefinition."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise BadDefinition(["the definition is not a JSON object"])
        return _Parser(document).parse()
    except ValueError as error:
        raise BadDefinition([f"the definition is not JSON: {error}"]) from None
    except RecursionError:
        raise BadDefinition(["the definition is nested too deeply to be read"]) from None


def parse_duration(text: str) -> float | None:
    """Return the seconds of an ISO 8601 duration, with or without its P; None if ``text`` is not one.
    A month has 30 days, a year 365."""
    match = _DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    return float(
        sum(int(count) * unit for count, unit in zip(match.groups(), _UNIT_SECONDS, strict=True) if count)
    )


class _Parser:
    """Collects steps and problems while it walks through one definition."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = without_nulls(document)
        self._problems: list[str] = []
        self._parameter_by_name: dict[str, Parameter] = {}
        self._step_by_name: dict[str, Step] = {}
        self._step_path_by_name: dict[str, DocumentPath] = {}

    def parse(self) -> Definition:
        """Parse the definition and return it. Raises BadDefinition with all problems."""
        document = self._document
        if document.get("Version", VERSION) != VERSION:
            message = f"{document.get('Version')!r} is not supported here; {VERSION} is"
            self._add_problem(("Version",), message)
        for name in sorted(document.keys() - _TOP_LEVEL_MEMBERS):
            self._add_problem((name,), "is not a known member")
        self._parameter_by_name, problems = parameters.parse_parameters(document.get("Parameters", []))
        self._add_problems(problems)
        steps = document.get("Steps")
        if not isinstance(steps, list) or not steps:
            self._add_problem(("Steps",), "must be a list of at least one step")
        else:
            self._parse_steps(steps, ("Steps",), None)
        experiment, _ = (self._parse_config(name) for name in _CONFIGS)
        for name, step in self._step_by_name.items():
            path = self._step_path_by_name[name]
            self._check_references(step.arguments, (*path, "Arguments"), step)
            self._check_job_arguments(step, (*path, "Arguments"))
            for other in sorted(step.dependencies - self._step_by_name.keys()):
                self._add_problem((*path, "DependsOn"), f"there is no step {other!r}")
        order = self._sort_steps()
        if self._problems:
            raise BadDefinition(self._problems)
        return Definition(self._parameter_by_name, self._step_by_name, order, experiment)

    def _parse_config(self, name: str) -> Mapping[str, Any]:
        config = self._document.get(name, {})
        if not isinstance(config, dict):
            self._add_problem((name,), "must be an object")
            return {}
        config = without_nulls(config)
        for member in sorted(config.keys() - _CONFIGS[name]):
            self._add_problem((name, member), "is not a known member")
        self._check_references(config, (name,), None)
        return config

    def _add_problem(self, path: DocumentPath, message: str) -> None:
        line = f"{format_path(path)}: {message}"
        if line not in self._problems:
            self._problems.append(line)

    def _add_problems(self, problems: Iterable[tuple[DocumentPath, str]]) -> None:
        for path, message in problems:
            self._add_problem(path, message)

    # ---- steps, one after the other

    def _parse_steps(self, steps: list[Any], path: DocumentPath, branch: tuple[str, bool] | None) -> None:
        """Parse the list of steps at ``path``; ``branch`` is that of ``_parse_step``."""
        for index, document in enumerate(steps):
            step_path = (*path, index)
            if len(self._step_by_name) >= _MAX_STEPS:
                self._add_problem(path, f"there are more than {_MAX_STEPS} steps")
                return
            if not isinstance(document, dict):
                self._add_problem(step_path, "must be an object")
                continue
            self._parse_step(document, step_path, branch)

    def _parse_step(
        self, document: Mapping[str, Any], path: DocumentPath, branch: tuple[str, bool] | None
    ) -> None:
        """Parse one step at ``path`` of the definition, add it to the steps, and record its problems.
        ``branch``: the condition step whose branch contains it, and which branch; None outside a branch."""
        document = without_nulls(document)
        name = self._parse_name(document.get("Name"), path)
        step_type = document.get("Type")
        if step_type not in _STEP_TYPES:
            supported_types = ", ".join(_STEP_TYPES)
            message = f"steps of type {step_type!r} cannot run on this endpoint; {supported_types} can"
            self._add_problem((*path, "Type"), message)
            return
        for member in sorted(document.keys() - _MEMBERS_BY_TYPE.get(step_type, _STEP_MEMBERS)):
            self._add_problem((*path, member), f"is not supported here for a step of type {step_type}")
        for member in ("DisplayName", "Description"):
            if not isinstance(document.get(member, ""), str):
                self._add_problem((*path, member), "must be a string")
        arguments = document.get("Arguments")
        if not isinstance(arguments, dict):
            self._add_problem((*path, "Arguments"), "must be an object")
            arguments = {}
        if step_type == "Condition" and branch is not None:
            self._add_problem(path, f"a condition in a branch of {branch[0]!r}: {_NESTED_CONDITION}")
        dependencies = self._parse_dependencies(document, path) | ({branch[0]} if branch else set())
        self._step_path_by_name[name] = path
        own_arguments = {
            member: value
            for member, value in arguments.items()
            if step_type != "Condition" or member == "Conditions"
        }
        self._step_by_name[name] = Step(
            name,
            step_type,
            own_arguments,
            frozenset(dependencies | _find_referenced_steps(own_arguments)),
            branch,
            self._parse_retry_policies(document, path),
            self._parse_cache_config(document, path),
            self._parse_property_files(document, path),
            document.get("DisplayName"),
            document.get("Description"),
        )
        if step_type == "Condition":
            self._parse_branches(name, arguments, (*path, "Arguments"))
        elif step_type == "Fail" and set(arguments) != {"ErrorMessage"}:
            self._add_problem((*path, "Arguments"), "a Fail step has ErrorMessage, and nothing else")

    def _parse_name(self, name: Any, path: DocumentPath) -> str:
        """Return the name of a step, or a placeholder for an invalid or duplicate one."""
        if not isinstance(name, str) or not _STEP_NAME.fullmatch(name):
            message = f"{name!r} is not a name of up to 64 letters, digits, - and _"
        elif name in self._step_by_name:
            message = f"{name!r} is also the name of {format_path(self._step_path_by_name[name])}"
        else:
            return name
        self._add_problem((*path, "Name"), message)
        return f"?{format_path(path)}"

    def _parse_branches(self, name: str, arguments: Mapping[str, Any], path: DocumentPath) -> None:
        """Parse the conditions and both branches of the condition step ``name``."""
        arguments = without_nulls(arguments)
        for member in sorted(arguments.keys() - {"Conditions", "IfSteps", "ElseSteps"}):
            self._add_problem((*path, member), "is not a known member")
        condition_problems = conditions.find_list_problems(arguments.get("Conditions"), (*path, "Conditions"))
        self._add_problems(condition_problems)
        for member, outcome in (("IfSteps", True), ("ElseSteps", False)):
            steps = arguments.get(member, [])
            if isinstance(steps, list):
                self._parse_steps(steps, (*path, member), (name, outcome))
            else:
                self._add_problem((*path, member), "must be a list")

    def _parse_dependencies(self, document: Mapping[str, Any], path: DocumentPath) -> set[str]:
        """Return the names in DependsOn."""
        entries = document.get("DependsOn", [])
        if not isinstance(entries, list):
            self._add_problem((*path, "DependsOn"), "must be a list of names")
            return set()
        names: set[str] = set()
        for index, entry in enumerate(entries):
            entry_path = (*path, "DependsOn", index)
            if isinstance(entry, dict) and entry.get("Trigger", "Completed") != "Completed":
                message = (
                    f"{entry['Trigger']!r} is not supported here: a step runs when those that it depends on "
                    "have succeeded"
                )
                self._add_problem((*entry_path, "Trigger"), message)
                continue
            name = entry.get("Step") if isinstance(entry, dict) else entry
            if isinstance(name, str):
                names.add(name)
            else:
                self._add_problem(entry_path, "must be the name of a step")
        return names

    def _parse_retry_policies(
        self, document: Mapping[str, Any], path: DocumentPath
    ) -> tuple[RetryPolicy, ...]:
        policy_documents = document.get("RetryPolicies", [])
        if not isinstance(policy_documents, list):
            self._add_problem((*path, "RetryPolicies"), "must be a list")
            return ()
        policies = []
        for index, policy_document in enumerate(policy_documents):
            problems = list(retries.find_problems(policy_document, (*path, "RetryPolicies", index)))
            self._add_problems(problems)
            if not problems:
                policies.append(retries.parse_policy(policy_document))
        return tuple(policies)

    def _parse_cache_config(self, document: Mapping[str, Any], path: DocumentPath) -> float | None:
        """Return the greatest age of a cached result in seconds; None without a cache."""
        config = document.get("CacheConfig")
        if config is None:
            return None
        path = (*path, "CacheConfig")
        config = without_nulls(config) if isinstance(config, dict) else config
        if not isinstance(config, dict) or not isinstance(config.get("Enabled"), bool):
            self._add_problem(path, "Enabled, true or false, is required")
            return None
        for member in sorted(config.keys() - {"Enabled", "ExpireAfter"}):
            self._add_problem((*path, member), "is not a known member")
        max_age = config.get("ExpireAfter")
        if max_age is None:
            seconds: float | None = float("inf")
        else:
            seconds = parse_duration(max_age) if isinstance(max_age, str) else None
        if seconds is None:
            message = f"{max_age!r} is not an ISO 8601 duration, such as P30D or PT12H"
            self._add_problem((*path, "ExpireAfter"), message)
        return seconds if config["Enabled"] else None

    def _parse_property_files(
        self, document: Mapping[str, Any], path: DocumentPath
    ) -> dict[str, tuple[str, str]]:
        """Return OutputName and FilePath of each property file, by its name."""
        property_files = {}
        entries = document.get("PropertyFiles", [])
        if not isinstance(entries, list):
            self._add_problem((*path, "PropertyFiles"), "must be a list")
            return {}
        for index, entry in enumerate(entries):
            members = [entry.get(name) for name in _PROPERTY_FILE_MEMBERS] if isinstance(entry, dict) else []
            if not members or not all(isinstance(member, str) for member in members):
                message = f"{', '.join(_PROPERTY_FILE_MEMBERS)} are required, all strings"
                self._add_problem((*path, "PropertyFiles", index), message)
                continue
            name, output_name, file_path = map(str, members)
            property_files[name] = (output_name, file_path)
        return property_files

    # ---- checks that need all steps

    def _check_references(self, document: Any, path: DocumentPath, step: Step | None) -> None:
        """Check all expressions of a document. ``step``: the one whose arguments it is, if it is a step's."""
        for expression_path, expression in expressions.find_expressions(document, path):
            problem = expressions.find_problem(expression)
            if problem is not None:
                self._add_problem(expression_path, problem)
                continue
            reference = expression.get("Get")
            json_get = expression.get("Std:JsonGet", {})
            if isinstance(reference, str):
                self._check_reference(reference, expression_path, step)
            elif "PropertyFile" in json_get:
                source, name = expressions.parse_property_file(json_get["PropertyFile"]) or ("", "")
                if source in self._step_by_name and name not in self._step_by_name[source].property_files:
                    message = f"step {source!r} has no property file {name!r}"
                    self._add_problem(expression_path, message)

    def _check_reference(self, reference: str, path: DocumentPath, step: Step | None) -> None:
        """Add a problem if a reference of ``step``, or of no step, to a parameter, a variable of the
        execution or a step cannot be resolved."""
        namespace, _, rest = reference.partition(".")
        if namespace == "Parameters" and rest not in self._parameter_by_name:
            self._add_problem(path, f"there is no parameter {rest!r}")
        elif namespace == "Execution" and rest.endswith("JobName"):
            if step is None or step.type not in JOB_TYPES or JOB_TYPES[step.type][1] != rest:
                message = f"{reference!r} is available only to a step that creates such a job"
                self._add_problem(path, message)
        elif namespace == "Steps":
            name = expressions.referenced_step(reference)
            other = self._step_by_name.get(name or "")
            if step is None:
                self._add_problem(path, "a reference to a step is not possible here")
            elif other is None:
                self._add_problem(path, f"{reference!r}: there is no step {name!r}")
            elif other.type == "Fail":
                self._add_problem(path, f"{reference!r}: a Fail step has no values")

    def _check_job_arguments(self, step: Step, path: DocumentPath) -> None:
        """Check the arguments of a job step, except expressions, by the rules of its operation."""
        if step.type not in JOB_TYPES:
            return
        operation, name_member = JOB_TYPES[step.type]
        if name_member in step.arguments:
            self._add_problem((*path, name_member), "the service makes the job's name; leave it out")
            return
        expression_paths = [found for found, _ in expressions.find_expressions(step.arguments)]
        for violation in check_request(operation, {**step.arguments, name_member: "pipelines-0-0"}):
            if violation.rule == "service" and expression_paths:
                continue  # it may be about a value that is not known yet
            if not any(violation.path[: len(found)] == found for found in expression_paths):
                self._add_problem((*path, *violation.path), violation.problem().message)

    def _sort_steps(self) -> tuple[str, ...]:
        """Return the names of the steps, each after its dependencies. A cycle is a problem."""
        remaining = {
            name: step.dependencies & self._step_by_name.keys() for name, step in self._step_by_name.items()
        }
        order: list[str] = []
        sorted_names: set[str] = set()
        while remaining:
            free_names = [name for name, dependencies in remaining.items() if dependencies <= sorted_names]
            if not free_names:
                cycle = " needs ".join(_find_cycle(remaining))
                self._add_problem(("Steps",), f"{cycle}: no step can need itself")
                break
            order += free_names
            sorted_names.update(free_names)
            for name in free_names:
                del remaining[name]
        return tuple(order)


def _find_referenced_steps(arguments: Any) -> set[str]:
    """Return the names of the steps in a document's references."""
    references = (expression.get("Get") for _, expression in expressions.find_expressions(arguments))
    return {
        name
        for reference in references
        if isinstance(reference, str) and (name := expressions.referenced_step(reference))
    }


def _find_cycle(dependencies: Mapping[str, frozenset[str]]) -> list[str]:
    """Return one cycle, from a step to itself, among steps that all depend on another of them."""
    path: list[str] = [next(iter(dependencies))]
    while True:
        following = min(dependencies[path[-1]] & dependencies.keys())
        if following in path:
            return [*path[path.index(following) :], following]
        path.append(following)
