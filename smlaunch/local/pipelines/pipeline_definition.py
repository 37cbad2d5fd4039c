"""Parse a pipeline's definition, version 2020-12-01, into steps. Pure.

All errors are reported at once, each with its path in the definition. Steps in the branches of a condition
are in the same mapping as the others, and name the condition and the branch.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

from smlaunch.api.validation.request_check import check_request
from smlaunch.local.json_types import JsonMapping
from smlaunch.local.pipelines import expressions, pipeline_conditions, pipeline_parameters, step_retries
from smlaunch.local.pipelines.expressions import DocumentPath, format_document_path, without_nulls
from smlaunch.local.pipelines.pipeline_parameters import Parameter
from smlaunch.local.pipelines.pipeline_steps import (
    JOB_KIND_BY_STEP_TYPE,
    Branch,
    Definition,
    InvalidDefinition,
    PropertyFile,
    Step,
)
from smlaunch.local.pipelines.step_retries import RetryPolicy

VERSION = "2020-12-01"


_STEP_TYPES = (*JOB_KIND_BY_STEP_TYPE, "Condition", "Fail")
_FIELDS_OF_ALL_STEPS = frozenset({"Name", "Type", "Arguments", "DependsOn", "DisplayName", "Description"})
_JOB_STEP_FIELDS = _FIELDS_OF_ALL_STEPS | {"RetryPolicies", "CacheConfig"}
_FIELDS_BY_STEP_TYPE: Mapping[str, frozenset[str]] = {
    "Training": _JOB_STEP_FIELDS,
    "Processing": _JOB_STEP_FIELDS | {"PropertyFiles"},
}
_EXECUTION_CONFIGS: Mapping[str, frozenset[str]] = {
    "PipelineExperimentConfig": frozenset({"ExperimentName", "TrialName"}),
    "MlflowConfig": frozenset({"MlflowResourceArn", "MlflowExperimentName"}),
}
"""Configurations of a whole execution, as the SDK writes them. They have no effect here (support.py)."""
_TOP_LEVEL_FIELDS = frozenset({"Version", "Metadata", "Parameters", "Steps"}) | _EXECUTION_CONFIGS.keys()
_PROPERTY_FILE_FIELDS = ("PropertyFileName", "OutputName", "FilePath")
_STEP_NAME = re.compile(r"[A-Za-z0-9\-_]{1,64}")
_ISO_DURATION = re.compile(
    r"P?(?:(\d+)Y)?(?:(\d+)M)?(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)S)?)?", re.IGNORECASE
)
_DURATION_UNIT_SECONDS = (365 * 86_400, 30 * 86_400, 7 * 86_400, 86_400, 3_600, 60, 1)
"""Of the groups of ``_ISO_DURATION``."""
_NO_NESTED_CONDITIONS_TEXT = (
    "Pipelines does not support nested condition steps (developer guide, condition step); move it out of "
    "the branch, and let it refer to a step of the branch"
)
_MAX_STEPS = 50_000
"""The service's own limit is a quota of the account; this one bounds the endpoint's memory."""


def parse_definition(text: str) -> Definition:
    """Parse the JSON text of a pipeline's definition. Raises InvalidDefinition."""
    try:
        document = json.loads(text)
        if not isinstance(document, dict):
            raise InvalidDefinition(["the definition is not a JSON object"])
        return _DefinitionParser(document).parse()
    except ValueError as error:
        raise InvalidDefinition([f"the definition is not JSON: {error}"]) from None
    except RecursionError:
        raise InvalidDefinition(["the definition is nested too deeply to be read"]) from None


def parse_duration(text: str) -> float | None:
    """Return the seconds of an ISO 8601 duration, with or without its P; None if ``text`` is not one.
    A month has 30 days, a year 365."""
    match = _ISO_DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        return None
    counts = [int(count or 0) for count in match.groups()]  # of years, months, ..., seconds
    return float(sum(map(operator.mul, counts, _DURATION_UNIT_SECONDS)))


class _DefinitionParser:
    """Collects steps and problems while it walks through one definition."""

    def __init__(self, document: JsonMapping) -> None:
        self._document = without_nulls(document)
        self._problems: list[str] = []
        self._parameter_by_name: dict[str, Parameter] = {}
        self._step_by_name: dict[str, Step] = {}
        self._step_path_by_name: dict[str, DocumentPath] = {}

    def parse(self) -> Definition:
        """Parse a pipeline's definition and return it. Raises InvalidDefinition with all its problems, each a
        path in the definition and a sentence."""
        document = self._document
        if document.get("Version", VERSION) != VERSION:
            message = f"{document.get('Version')!r} is not supported here; {VERSION} is"
            self._add_problem(("Version",), message)
        for name in sorted(document.keys() - _TOP_LEVEL_FIELDS):
            self._add_problem((name,), "is not a known member")
        self._parameter_by_name, parameter_problems = pipeline_parameters.parse_parameters(
            document.get("Parameters", [])
        )
        self._add_problems(parameter_problems)
        steps = document.get("Steps")
        if not isinstance(steps, list) or not steps:
            self._add_problem(("Steps",), "must be a list of at least one step")
        else:
            self._parse_steps(steps, ("Steps",), branch=None)
        experiment_config = self._parse_config("PipelineExperimentConfig")
        self._parse_config("MlflowConfig")  # checked only: it has no effect here
        # After all steps are known: a step may refer to a later one.
        for name, step in self._step_by_name.items():
            self._check_step_references(step, self._step_path_by_name[name])
        topological_order = self._sort_steps()  # a cycle is a problem
        if self._problems:
            raise InvalidDefinition(self._problems)
        return Definition(
            parameters=self._parameter_by_name,
            steps=self._step_by_name,
            topological_order=topological_order,
            experiment_config=experiment_config,
        )

    def _check_step_references(self, step: Step, path: DocumentPath) -> None:
        """Record the problems of the Arguments and of the dependencies of the step at ``path``."""
        self._check_references(step.arguments, (*path, "Arguments"), step)
        self._check_job_arguments(step, (*path, "Arguments"))
        for dependency in sorted(step.dependencies - self._step_by_name.keys()):
            self._add_problem((*path, "DependsOn"), f"there is no step {dependency!r}")

    def _parse_config(self, name: str) -> JsonMapping:
        execution_config = self._document.get(name, {})
        if not isinstance(execution_config, dict):
            self._add_problem((name,), "must be an object")
            return {}
        execution_config = without_nulls(execution_config)
        for field_name in sorted(execution_config.keys() - _EXECUTION_CONFIGS[name]):
            self._add_problem((name, field_name), "is not a known member")
        self._check_references(execution_config, (name,), None)
        return execution_config

    def _add_problem(self, path: DocumentPath, message: str) -> None:
        line = f"{format_document_path(path)}: {message}"
        if line not in self._problems:
            self._problems.append(line)

    def _add_problems(self, problems: Iterable[tuple[DocumentPath, str]]) -> None:
        for path, message in problems:
            self._add_problem(path, message)

    # ---- steps, one after the other

    def _parse_steps(self, step_documents: list[Any], path: DocumentPath, branch: Branch | None) -> None:
        """Parse the list of steps at ``path`` of the definition. ``branch``: the branch of a condition
        step that contains them; None outside a branch."""
        for index, step_document in enumerate(step_documents):
            step_path = (*path, index)
            if len(self._step_by_name) >= _MAX_STEPS:
                self._add_problem(path, f"there are more than {_MAX_STEPS} steps")
                return
            if not isinstance(step_document, dict):
                self._add_problem(step_path, "must be an object")
                continue
            self._parse_step(step_document, step_path, branch)

    def _parse_step(self, step_document: JsonMapping, path: DocumentPath, branch: Branch | None) -> None:
        """Parse one step at ``path`` of the definition, add it to the steps, and record its problems.
        ``branch``: the branch of a condition step that contains it; None outside a branch. A null value
        counts as absent."""
        step_document = without_nulls(step_document)
        # A step without a valid name gets a placeholder, so that its other problems are found too.
        step_name = self._name_or_placeholder(step_document.get("Name"), path)
        step_type = step_document.get("Type")
        if step_type not in _STEP_TYPES:  # Training, Processing, Condition and Fail
            supported_types = ", ".join(_STEP_TYPES)
            message = f"steps of type {step_type!r} cannot run on this endpoint; {supported_types} can"
            self._add_problem((*path, "Type"), message)
            return
        self._check_step_fields(step_document, step_type, path)
        arguments = step_document.get("Arguments")
        if not isinstance(arguments, dict):
            self._add_problem((*path, "Arguments"), "must be an object")
            arguments = {}
        if step_type == "Condition" and branch is not None:
            message = (
                f"a condition in a branch of {branch.condition_step_name!r}: {_NO_NESTED_CONDITIONS_TEXT}"
            )
            self._add_problem(path, message)
        step_arguments = arguments
        if step_type == "Condition":  # its branches become steps of their own
            step_arguments = {name: value for name, value in arguments.items() if name == "Conditions"}
        dependencies = self._parse_dependencies(step_document, path) | _find_referenced_steps(step_arguments)
        if branch is not None:
            dependencies.add(branch.condition_step_name)
        self._step_path_by_name[step_name] = path
        self._step_by_name[step_name] = Step(
            name=step_name,
            type=step_type,
            arguments=step_arguments,
            dependencies=frozenset(dependencies),
            branch=branch,
            retry_policies=self._parse_retry_policies(step_document, path),
            max_cache_age_seconds=self._parse_cache_config(step_document, path),
            property_files=self._parse_property_files(step_document, path),
            display_name=step_document.get("DisplayName"),
            description=step_document.get("Description"),
        )
        if step_type == "Condition":
            self._parse_condition_branches(step_name, arguments, (*path, "Arguments"))
        elif step_type == "Fail" and set(arguments) != {"ErrorMessage"}:
            self._add_problem((*path, "Arguments"), "a Fail step has ErrorMessage, and nothing else")

    def _check_step_fields(self, step_document: JsonMapping, step_type: str, path: DocumentPath) -> None:
        """Record the fields of a step that steps of its type do not have, and texts that are no strings."""
        supported_fields = _FIELDS_BY_STEP_TYPE.get(step_type, _FIELDS_OF_ALL_STEPS)
        for name in sorted(step_document.keys() - supported_fields):
            self._add_problem((*path, name), f"is not supported here for a step of type {step_type}")
        for name in ("DisplayName", "Description"):
            if not isinstance(step_document.get(name, ""), str):
                self._add_problem((*path, name), "must be a string")

    def _name_or_placeholder(self, name: Any, path: DocumentPath) -> str:
        """Return the name of the step at ``path``. For an invalid or duplicate one, record the problem and
        return a placeholder, so that the rest of the step can be checked."""
        if not isinstance(name, str) or not _STEP_NAME.fullmatch(name):
            message = f"{name!r} is not a name of up to 64 letters, digits, - and _"
        elif name in self._step_by_name:
            message = f"{name!r} is also the name of {format_document_path(self._step_path_by_name[name])}"
        else:
            return name
        self._add_problem((*path, "Name"), message)
        return f"?{format_document_path(path)}"

    def _parse_condition_branches(self, step_name: str, arguments: JsonMapping, path: DocumentPath) -> None:
        """Check the conditions of a condition step, and parse the steps of both branches. ``arguments`` are
        the step's Arguments at ``path`` of the definition."""
        arguments = without_nulls(arguments)
        for name in sorted(arguments.keys() - {"Conditions", "IfSteps", "ElseSteps"}):
            self._add_problem((*path, name), "is not a known member")
        condition_problems = pipeline_conditions.find_condition_list_problems(
            arguments.get("Conditions"), (*path, "Conditions")
        )
        self._add_problems(condition_problems)
        for list_name, runs_if in (("IfSteps", True), ("ElseSteps", False)):
            steps = arguments.get(list_name, [])
            if isinstance(steps, list):
                self._parse_steps(steps, (*path, list_name), Branch(step_name, runs_if))
            else:
                self._add_problem((*path, list_name), "must be a list")

    def _parse_dependencies(self, step_document: JsonMapping, path: DocumentPath) -> set[str]:
        """Return the names of the steps in the field DependsOn of the step at ``path``, and record problems.
        An entry is a name, or an object such as ``{"Step": "Train", "Trigger": "Completed"}``."""
        entries = step_document.get("DependsOn", [])
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
        self, step_document: JsonMapping, path: DocumentPath
    ) -> tuple[RetryPolicy, ...]:
        """Return the valid retry policies of the step at ``path``, and record the problems of the others."""
        policy_documents = step_document.get("RetryPolicies", [])
        if not isinstance(policy_documents, list):
            self._add_problem((*path, "RetryPolicies"), "must be a list")
            return ()
        policies: list[RetryPolicy] = []
        for index, policy_document in enumerate(policy_documents):
            problems = list(
                step_retries.find_retry_policy_problems(policy_document, (*path, "RetryPolicies", index))
            )
            self._add_problems(problems)
            if not problems:
                policies.append(step_retries.parse_retry_policy(policy_document))
        return tuple(policies)

    def _parse_cache_config(self, step_document: JsonMapping, path: DocumentPath) -> float | None:
        """Return the greatest age in seconds of a cached result that the step at ``path`` may reuse, infinity
        without a limit; None if it uses no cache. Problems of its CacheConfig are recorded."""
        cache_config = step_document.get("CacheConfig")
        if cache_config is None:
            return None
        config_path = (*path, "CacheConfig")
        if isinstance(cache_config, dict):
            cache_config = without_nulls(cache_config)
        if not isinstance(cache_config, dict) or not isinstance(cache_config.get("Enabled"), bool):
            self._add_problem(config_path, "Enabled, true or false, is required")
            return None
        for name in sorted(cache_config.keys() - {"Enabled", "ExpireAfter"}):
            self._add_problem((*config_path, name), "is not a known member")
        max_age_text = cache_config.get("ExpireAfter")
        if max_age_text is None:
            return math.inf if cache_config["Enabled"] else None
        max_age_seconds = parse_duration(max_age_text) if isinstance(max_age_text, str) else None
        if max_age_seconds is None:
            message = f"{max_age_text!r} is not an ISO 8601 duration, such as P30D or PT12H"
            self._add_problem((*config_path, "ExpireAfter"), message)
        return max_age_seconds if cache_config["Enabled"] else None

    def _parse_property_files(
        self, step_document: JsonMapping, path: DocumentPath
    ) -> dict[str, PropertyFile]:
        """Return the property files of the step at ``path``, by their names, and record problems. An entry is
        an object such as ``{"PropertyFileName": "Report", "OutputName": "metrics", "FilePath":
        "a.json"}``."""
        entries = step_document.get("PropertyFiles", [])
        if not isinstance(entries, list):
            self._add_problem((*path, "PropertyFiles"), "must be a list")
            return {}
        property_files: dict[str, PropertyFile] = {}
        for index, entry in enumerate(entries):
            if not isinstance(entry, dict) or not all(
                isinstance(entry.get(name), str) for name in _PROPERTY_FILE_FIELDS
            ):
                message = f"{', '.join(_PROPERTY_FILE_FIELDS)} are required, all strings"
                self._add_problem((*path, "PropertyFiles", index), message)
                continue
            property_files[entry["PropertyFileName"]] = PropertyFile(entry["OutputName"], entry["FilePath"])
        return property_files

    # ---- checks that need all steps

    def _check_references(self, document: Any, path: DocumentPath, step: Step | None) -> None:
        """Record the problems of all expressions, such as ``{"Get": "Parameters.Epochs"}``, in a document at
        ``path`` of the definition. ``step``: the step whose Arguments the document is; None for another
        document."""
        for expression_path, expression in expressions.find_expressions(document, path):
            problem = expressions.find_expression_problem(expression)
            if problem is not None:
                self._add_problem(expression_path, problem)
                continue
            reference = expression.get("Get")
            property_file = expression.get("Std:JsonGet", {}).get("PropertyFile")
            if isinstance(reference, str):
                self._check_reference(reference, expression_path, step)
            elif property_file is not None:
                # Its form is valid: find_expression_problem has found no problem.
                step_and_file_name = expressions.parse_property_file(property_file)
                writing_step_name, file_name = step_and_file_name or ("", "")
                writing_step = self._step_by_name.get(writing_step_name)
                if writing_step is not None and file_name not in writing_step.property_files:
                    message = f"step {writing_step_name!r} has no property file {file_name!r}"
                    self._add_problem(expression_path, message)

    def _check_reference(self, reference: str, path: DocumentPath, step: Step | None) -> None:
        """Record a problem if the reference at ``path`` of the definition, such as
        Steps.Train.ModelArtifacts or Parameters.Epochs, cannot be resolved. ``step``: the step that
        contains it; None outside the steps."""
        namespace, _, referenced_path = reference.partition(".")
        if namespace == "Parameters" and referenced_path not in self._parameter_by_name:
            self._add_problem(path, f"there is no parameter {referenced_path!r}")
        elif namespace == "Execution" and referenced_path.endswith("JobName"):
            # Execution.TrainingJobName, for example, is the name of the job that the step itself creates.
            kind = None if step is None else JOB_KIND_BY_STEP_TYPE.get(step.type)
            if kind is None or kind.name_field != referenced_path:
                message = f"{reference!r} is available only to a step that creates such a job"
                self._add_problem(path, message)
        elif namespace == "Steps":
            referenced_name = expressions.referenced_step_name(reference)
            referenced_step = self._step_by_name.get(referenced_name or "")
            if step is None:
                self._add_problem(path, "a reference to a step is not possible here")
            elif referenced_step is None:
                self._add_problem(path, f"{reference!r}: there is no step {referenced_name!r}")
            elif referenced_step.type == "Fail":
                self._add_problem(path, f"{reference!r}: a Fail step has no values")

    def _check_job_arguments(self, step: Step, path: DocumentPath) -> None:
        """Record the problems of a job step's Arguments by the rules of the API operation that takes them,
        such as CreateTrainingJob. Expressions are not checked: their values are not known yet."""
        kind = JOB_KIND_BY_STEP_TYPE.get(step.type)
        if kind is None:
            return
        if kind.name_field in step.arguments:
            self._add_problem((*path, kind.name_field), "the service makes the job's name; leave it out")
            return
        expression_paths = [
            expression_path for expression_path, _ in expressions.find_expressions(step.arguments)
        ]
        # The rules require a job name, which a step does not have.
        request = {**step.arguments, kind.name_field: "pipelines-0-0"}
        for violation in check_request(kind.create_operation, request):
            # A rule of the service, unlike those of the API model, may be about several fields.
            if violation.rule == "service" and expression_paths:
                continue  # it may be about a value that is not known yet
            is_in_expression = any(
                violation.path[: len(expression_path)] == expression_path
                for expression_path in expression_paths
            )
            if not is_in_expression:
                self._add_problem((*path, *violation.path), violation.to_problem().message)

    def _sort_steps(self) -> tuple[str, ...]:
        """Return the names of all steps, each after its dependencies, the steps that it needs. Record a cycle
        as a problem."""
        dependencies_by_unsorted_step = {  # unknown steps are a problem already
            name: step.dependencies & self._step_by_name.keys() for name, step in self._step_by_name.items()
        }
        sorted_names: dict[str, None] = {}  # a set in the order of insertion
        while dependencies_by_unsorted_step:
            ready_names = [
                name
                for name, dependencies in dependencies_by_unsorted_step.items()
                if dependencies <= sorted_names.keys()
            ]
            if not ready_names:
                cycle = " needs ".join(_find_cycle(dependencies_by_unsorted_step))
                self._add_problem(("Steps",), f"{cycle}: no step can need itself")
                break
            for name in ready_names:
                sorted_names[name] = None
                del dependencies_by_unsorted_step[name]
        return tuple(sorted_names)


def _find_referenced_steps(arguments: Any) -> set[str]:
    """Return the names of the steps that references in a document name."""
    step_names: set[str] = set()
    for _, expression in expressions.find_expressions(arguments):
        reference = expression.get("Get")
        step_name = expressions.referenced_step_name(reference) if isinstance(reference, str) else None
        if step_name:
            step_names.add(step_name)
    return step_names


def _find_cycle(dependencies_by_step: Mapping[str, frozenset[str]]) -> list[str]:
    """Return one cycle, from a step to itself, among steps that all depend on another of them."""
    cycle_path: list[str] = [next(iter(dependencies_by_step))]
    while True:
        next_name = min(dependencies_by_step[cycle_path[-1]] & dependencies_by_step.keys())
        if next_name in cycle_path:
            return [*cycle_path[cycle_path.index(next_name) :], next_name]
        cycle_path.append(next_name)
