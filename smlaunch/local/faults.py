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
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

from smlaunch.errors import EndpointError

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
        waits = [
            seconds for pattern, seconds in self.unavailable_types if fnmatchcase(instance_type, pattern)
        ]
        if None in waits:
            return None
        return max((seconds for seconds in waits if seconds is not None), default=0)


@dataclass(frozen=True)
class AttemptFaults:
    """Faults of one attempt of one job. ``lost_hosts``: patterns of host names, and seconds until the
    loss."""

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

    def faults_of_attempt(self, job: str, attempt: int) -> AttemptFaults:
        """Draw the faults of an attempt. ``attempt`` counts from 1."""
        unavailable_types: list[tuple[str, float | None]] = []
        lost_hosts: list[tuple[str, float]] = []
        interruptions: list[tuple[float, float]] = []
        for index, fault in enumerate(self.faults):
            if isinstance(fault, Throttle) or attempt not in fault.attempts:
                continue
            generator = random.Random(f"{self.seed}/{index}/{job}/{attempt}")  # noqa: S311 - reproducible
            if not fnmatchcase(job, fault.jobs) or generator.random() >= fault.probability:
                continue
            if isinstance(fault, SpotInterruption):
                interruptions.append(
                    (_draw_seconds(fault.after, generator), _draw_seconds(fault.away, generator))
                )
            elif isinstance(fault, HostLost):
                lost_hosts.append((fault.hosts, _draw_seconds(fault.after, generator)))
            else:
                seconds = None if fault.seconds is None else _draw_seconds(fault.seconds, generator)
                unavailable_types.append((fault.instance_types, seconds))
        interruption_seconds, retry_delay_seconds = min(interruptions, default=(None, 0.0))
        return AttemptFaults(
            CapacityFaults(tuple(unavailable_types)),
            interruption_seconds,
            retry_delay_seconds,
            tuple(lost_hosts),
        )

    def should_throttle(self, operation: str, call: int) -> bool:
        """Return whether the ``call``-th call (from 1) of an operation is throttled."""
        for index, fault in enumerate(self.faults):
            if isinstance(fault, Throttle) and fnmatchcase(operation, fault.operations):
                generator = random.Random(f"{self.seed}/{index}/{operation}/{call}")  # noqa: S311
                if call <= fault.first or call in fault.calls or generator.random() < fault.share:
                    return True
        return False


def parse_fault_plan(text: str, source: str) -> FaultPlan:
    """Parse a fault plan. Raises EndpointError with all mistakes. ``source``: file name for the message."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise EndpointError(f"{source} is not JSON: {error}") from None
    problems: list[str] = []
    if not isinstance(document, dict) or not isinstance(document.get("faults"), list):
        problems.append('it must be an object such as {"seed": 1, "faults": []}')
        document = {"faults": []}
    seed = document.get("seed", 0)
    if not isinstance(seed, int):
        problems.append(f"seed: {seed!r} is not an integer")
    faults = [
        _parse_fault(entry, f"faults[{index}]", problems) for index, entry in enumerate(document["faults"])
    ]
    if problems:
        raise EndpointError(f"{source} is not a valid fault plan: " + "; ".join(problems))
    return FaultPlan(seed, tuple(fault for fault in faults if fault is not None))


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


def _parse_fault(entry: Any, location: str, problems: list[str]) -> Fault | None:
    """Parse one fault. Adds mistakes, with ``location``, to ``problems``, and then returns None."""
    if not isinstance(entry, dict) or entry.get("fault") not in _FAULT_CLASS_BY_KIND:
        problems.append(f"{location}.fault: it must be one of {', '.join(_FAULT_CLASS_BY_KIND)}")
        return None
    fault_class = _FAULT_CLASS_BY_KIND[entry["fault"]]
    field_by_name = {fault_field.name: fault_field for fault_field in fields(fault_class)}
    problem_count = len(problems)
    values = {name: value for name, value in entry.items() if name != "fault"}
    problems += [
        f"{location}.{name}: unknown; known are {', '.join(field_by_name)}"
        for name in values.keys() - field_by_name
    ]
    missing = [
        name
        for name, fault_field in field_by_name.items()
        if fault_field.default is MISSING and name not in values
    ]
    problems += [f"{location}.{name}: it is required" for name in missing]
    for name, value in values.items():
        expected_value, is_valid = _CHECK_BY_FIELD.get(name, ("", None))
        if name in field_by_name and is_valid is not None and not is_valid(value):
            problems.append(f"{location}.{name}: {value!r} is not a {expected_value}")
    if len(problems) > problem_count:
        return None
    arguments: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
    }
    return fault_class(**arguments)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _is_duration(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and all(map(_is_number, value)) and value[0] <= value[1]
    return _is_number(value)


def _is_positive_ints(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(number, int) and number > 0 for number in value)


_PATTERN = ("pattern", lambda value: isinstance(value, str))
_SHARE_CHECK = ("share from 0 to 1", lambda value: _is_number(value) and value <= 1)
_CHECK_BY_FIELD: Mapping[str, Any] = {
    **dict.fromkeys(("jobs", "hosts", "instance_types", "operations"), _PATTERN),
    **dict.fromkeys(("after", "away"), ("number of seconds, or two of them", _is_duration)),
    "seconds": (
        "number of seconds, two of them, or null",
        lambda value: value is None or _is_duration(value),
    ),
    "attempts": ("list of attempts, counted from 1", _is_positive_ints),
    "calls": ("list of calls, counted from 1", _is_positive_ints),
    **dict.fromkeys(("probability", "share"), _SHARE_CHECK),
    "first": ("whole number", lambda value: isinstance(value, int) and value >= 0),
}


def _draw_seconds(seconds: SecondsOrRange, generator: random.Random) -> float:
    return generator.uniform(*seconds) if isinstance(seconds, tuple) else float(seconds)
