"""Fault injection: a seeded plan of the faults that each job meets, so that a run can be repeated.

A plan is given in ``Settings.faults``, or as a JSON file named by the variable SMLAUNCH_FAULTS::

    {"seed": 7, "faults": [
      {"fault": "spot-interruption", "jobs": "train-*", "after": [5, 20], "attempts": [1, 2], "away": 3},
      {"fault": "host-lost", "hosts": "algo-2", "after": 4},
      {"fault": "no-capacity", "instance_types": "ml.p5.*", "seconds": 30},
      {"fault": "throttle", "operations": "DescribeTrainingJob", "share": 0.2, "first": 3}]}

``jobs``, ``hosts``, ``instance_types`` and ``operations`` are patterns as a shell's; all durations are
seconds, a number or a range to draw from. Pure: seed, job and attempt decide everything.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

from smlaunch.errors import EndpointError
from smlaunch.local.json_types import JsonMapping, JsonObject

FAULTS_VARIABLE = "SMLAUNCH_FAULTS"

SecondsOrRange = float | tuple[float, float]


@dataclass(frozen=True)
class SpotInterruption:
    """Interrupts a managed spot job: SIGTERM, SIGKILL after the notice, status Interrupted, and after
    ``away`` seconds the next attempt. A killed host loses everything that is not in S3. ``after`` counts from
    status Training. Jobs that are not spot jobs are not interrupted."""

    name: ClassVar = "spot-interruption"
    after: SecondsOrRange
    jobs: str = "*"
    attempts: tuple[int, ...] = (1,)
    away: SecondsOrRange = 0.0
    probability: float = 1.0


@dataclass(frozen=True)
class HostLost:
    """A host and its disk are lost, without an exit code: nothing more of it reaches S3. The job fails with
    InternalServerError. ``after`` as above."""

    name: ClassVar = "host-lost"
    after: SecondsOrRange
    hosts: str = "algo-1"
    jobs: str = "*"
    attempts: tuple[int, ...] = (1,)
    probability: float = 1.0


@dataclass(frozen=True)
class NoCapacity:
    """There is no capacity for these instance types in the first ``seconds`` of an attempt; None: never."""

    name: ClassVar = "no-capacity"
    instance_types: str = "*"
    seconds: SecondsOrRange | None = None
    jobs: str = "*"
    attempts: tuple[int, ...] = (1,)
    probability: float = 1.0


@dataclass(frozen=True)
class Throttle:
    """Rejects calls with ThrottlingException: the ``first`` calls of an operation, those whose numbers
    (from 1) are in ``calls``, and a random ``share`` of the others."""

    name: ClassVar = "throttle"
    operations: str = "*"
    share: float = 0.0
    first: int = 0
    """Number of calls that are throttled, counted from the first."""
    calls: tuple[int, ...] = ()


Fault = SpotInterruption | HostLost | NoCapacity | Throttle
_FAULT_CLASS_BY_KIND: Mapping[str, type[Fault]] = {
    fault_class.name: fault_class for fault_class in (SpotInterruption, HostLost, NoCapacity, Throttle)
}


@dataclass(frozen=True)
class CapacityFaults:
    """Patterns of unavailable instance types, with the seconds until they are available (None: never)."""

    unavailable_types: tuple[tuple[str, float | None], ...] = ()

    def wait_seconds(self, instance_type: str) -> float | None:
        """Return the seconds until hosts of this type are available; None: never."""
        longest_wait_seconds = 0.0
        for type_pattern, seconds in self.unavailable_types:
            if fnmatchcase(instance_type, type_pattern):
                if seconds is None:
                    return None
                longest_wait_seconds = max(longest_wait_seconds, seconds)
        return longest_wait_seconds


@dataclass(frozen=True)
class AttemptFaults:
    """Faults of one attempt of one job. ``interruption_seconds``: until its spot interruption, None without;
    ``lost_hosts``: patterns of host names, and seconds until the loss."""

    capacity: CapacityFaults = CapacityFaults()
    interruption_seconds: float | None = None
    retry_delay_seconds: float = 0.0
    lost_hosts: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class FaultPlan:
    """Faults, and the seed of their random choices."""

    seed: int = 0
    faults: tuple[Fault, ...] = field(default=())

    def to_json(self) -> str:
        """Return the plan as JSON, for ``parse_fault_plan``."""
        faults = [{"fault": fault.name, **asdict(fault)} for fault in self.faults]
        return json.dumps({"seed": self.seed, "faults": faults})

    def draw_faults_of_attempt(self, job_name: str, attempt_number: int) -> AttemptFaults:
        """Draw the simulated faults that a job meets in one attempt (its first start is attempt 1, each
        restart the next). The plan's seed, the job and the attempt decide the result."""
        unavailable_types: list[tuple[str, float | None]] = []  # pattern of instance types, for how long
        lost_hosts: list[tuple[str, float]] = []  # pattern of host names, seconds until the loss
        interruptions: list[tuple[float, float]] = []  # seconds until it, seconds until the next attempt
        for fault, random_generator in self._faults_that_happen(job_name, attempt_number):
            match fault:
                case SpotInterruption():
                    seconds_until_interruption = _draw_seconds(fault.after, random_generator)
                    retry_delay_seconds = _draw_seconds(fault.away, random_generator)
                    interruptions.append((seconds_until_interruption, retry_delay_seconds))
                case HostLost():
                    lost_hosts.append((fault.hosts, _draw_seconds(fault.after, random_generator)))
                case NoCapacity() if fault.seconds is None:  # unavailable in the whole attempt
                    unavailable_types.append((fault.instance_types, None))
                case NoCapacity():
                    unavailable_seconds = _draw_seconds(fault.seconds, random_generator)
                    unavailable_types.append((fault.instance_types, unavailable_seconds))
        # Only the first of several interruptions happens: it ends the attempt.
        interruption_seconds, retry_delay_seconds = min(interruptions, default=(None, 0.0))
        return AttemptFaults(
            capacity=CapacityFaults(tuple(unavailable_types)),
            interruption_seconds=interruption_seconds,
            retry_delay_seconds=retry_delay_seconds,
            lost_hosts=tuple(lost_hosts),
        )

    def _faults_that_happen(
        self, job_name: str, attempt_number: int
    ) -> Iterator[tuple[SpotInterruption | HostLost | NoCapacity, random.Random]]:
        """Yield the plan's faults that happen in one attempt (first start or restart) of a job, by the job's
        name and by chance, each with the random generator that draws its times. In a fault, ``jobs`` is a
        pattern of job names and ``attempts`` the numbers of attempts (from 1)."""
        for fault_index, fault in enumerate(self.faults):
            # Throttling is of API calls, not of jobs.
            if isinstance(fault, Throttle) or attempt_number not in fault.attempts:
                continue
            seed = f"{self.seed}/{fault_index}/{job_name}/{attempt_number}"
            random_generator = random.Random(seed)  # noqa: S311 - the same faults in each run of the plan
            if fnmatchcase(job_name, fault.jobs) and random_generator.random() < fault.probability:
                yield fault, random_generator

    def should_throttle(self, operation: str, call_number: int) -> bool:
        """Return whether a fault plan throttles the ``call_number``-th call (from 1) of an API operation: one
        of the ``first`` calls, one listed in ``calls``, or one of a random ``share``. In a fault,
        ``operations`` is a pattern of operation names."""
        for fault_index, fault in enumerate(self.faults):
            if not isinstance(fault, Throttle) or not fnmatchcase(operation, fault.operations):
                continue
            # Seeded for each call, so that a repeated run throttles the same calls.
            seed = f"{self.seed}/{fault_index}/{operation}/{call_number}"
            random_number = random.Random(seed).random()  # noqa: S311 - reproducible
            if call_number <= fault.first or call_number in fault.calls or random_number < fault.share:
                return True
        return False


def parse_fault_plan(plan_text: str, source_name: str) -> FaultPlan:
    """Parse a fault plan: the simulated faults that jobs and API calls meet, and the seed of their random
    choices, as JSON. ``source_name``: what the error message calls the text. Raises EndpointError with all
    mistakes."""
    try:
        plan_document = json.loads(plan_text)
    except ValueError as error:
        raise EndpointError(f"{source_name} is not JSON: {error}") from None
    problems: list[str] = []
    if not isinstance(plan_document, dict) or not isinstance(plan_document.get("faults"), list):
        problems.append('it must be an object such as {"seed": 1, "faults": []}')
        plan_document = {"faults": []}
    seed = plan_document.get("seed", 0)
    if not isinstance(seed, int):
        problems.append(f"seed: {seed!r} is not an integer")
    faults: list[Fault] = []
    for index, fault_entry in enumerate(plan_document["faults"]):
        fault_problems = _fault_problems(fault_entry, location=f"faults[{index}]")
        problems += fault_problems
        if not fault_problems:
            faults.append(_create_fault(fault_entry))
    if problems:
        raise EndpointError(f"{source_name} is not a valid fault plan: " + "; ".join(problems))
    return FaultPlan(seed, tuple(faults))


def read_fault_plan(environment: Mapping[str, str]) -> FaultPlan:
    """Read the plan from the file that SMLAUNCH_FAULTS names; without it, return an empty plan. Raises
    EndpointError."""
    path = environment.get(FAULTS_VARIABLE)
    if not path:
        return FaultPlan()
    try:
        return parse_fault_plan(Path(path).read_text("utf-8"), f"{path} ({FAULTS_VARIABLE})")
    except (OSError, UnicodeDecodeError) as error:
        raise EndpointError(f"{FAULTS_VARIABLE}={path}: {error}") from None


def _fault_problems(fault_entry: Any, location: str) -> list[str]:
    """Return a message for each mistake in one fault of a fault plan's JSON, such as ``{"fault": "host-lost",
    "after": 4}``. ``location``: where it is in the plan, such as ``faults[0]``."""
    if not isinstance(fault_entry, dict) or fault_entry.get("fault") not in _FAULT_CLASS_BY_KIND:
        return [f"{location}.fault: it must be one of {', '.join(_FAULT_CLASS_BY_KIND)}"]
    # A dataclass, such as HostLost for host-lost; its fields are those that the JSON may have.
    fault_class = _FAULT_CLASS_BY_KIND[fault_entry["fault"]]
    known_fields = {class_field.name: class_field for class_field in fields(fault_class)}
    given_fields = {field_name: value for field_name, value in fault_entry.items() if field_name != "fault"}
    problems = [
        f"{location}.{field_name}: unknown; known are {', '.join(known_fields)}"
        for field_name in given_fields.keys() - known_fields
    ]
    problems += [
        f"{location}.{field_name}: it is required"
        for field_name, class_field in known_fields.items()
        # MISSING: the field has no default.
        if class_field.default is MISSING and field_name not in given_fields
    ]
    for field_name, value in given_fields.items():
        if field_name in known_fields and field_name in _VALUE_CHECK_BY_FIELD:
            # Such as "share from 0 to 1", and the function that checks it.
            expected_value_text, is_valid_value = _VALUE_CHECK_BY_FIELD[field_name]
            if not is_valid_value(value):
                problems.append(f"{location}.{field_name}: {value!r} is not a {expected_value_text}")
    return problems


def _create_fault(fault_entry: JsonMapping) -> Fault:
    """Create the fault that a checked JSON object describes: ``fault`` is its kind, the rest its fields."""
    field_values: JsonObject = {
        field_name: tuple(value) if isinstance(value, list) else value
        for field_name, value in fault_entry.items()
        if field_name != "fault"
    }
    return _FAULT_CLASS_BY_KIND[fault_entry["fault"]](**field_values)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _is_duration(value: Any) -> bool:
    """Return whether ``value`` is a number of seconds, or a list of the least and the greatest one."""
    if isinstance(value, list):
        return len(value) == 2 and all(map(_is_number, value)) and value[0] <= value[1]
    return _is_number(value)


def _is_list_of_positive_integers(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(number, int) and number > 0 for number in value)


_PATTERN = ("pattern", lambda value: isinstance(value, str))
_SHARE_CHECK = ("share from 0 to 1", lambda value: _is_number(value) and value <= 1)
_VALUE_CHECK_BY_FIELD: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    **dict.fromkeys(("jobs", "hosts", "instance_types", "operations"), _PATTERN),
    **dict.fromkeys(("after", "away"), ("number of seconds, or two of them", _is_duration)),
    "seconds": (
        "number of seconds, two of them, or null",
        lambda value: value is None or _is_duration(value),
    ),
    "attempts": ("list of attempts, counted from 1", _is_list_of_positive_integers),
    "calls": ("list of calls, counted from 1", _is_list_of_positive_integers),
    **dict.fromkeys(("probability", "share"), _SHARE_CHECK),
    "first": ("whole number", lambda value: isinstance(value, int) and value >= 0),
}


def _draw_seconds(seconds: SecondsOrRange, generator: random.Random) -> float:
    return generator.uniform(*seconds) if isinstance(seconds, tuple) else float(seconds)
