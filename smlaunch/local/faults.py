"""Faults on purpose: a seeded plan of what goes wrong in which job, so that the same run can be had again.

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

VARIABLE = "SMLAUNCH_FAULTS"

Seconds = float | tuple[float, float]


@dataclass(frozen=True)
class SpotInterruption:
    """Takes the hosts of a managed spot job away: SIGTERM, SIGKILL after the notice, Interrupted, and after
    ``away`` seconds the next attempt. A host that was killed has lost what was not in S3 by then. ``after``
    counts from Training. Other jobs are not touched."""

    name: ClassVar = "spot-interruption"
    after: Seconds
    jobs: str = "*"
    attempts: tuple[int, ...] = (1,)
    away: Seconds = 0.0
    probability: float = 1.0


@dataclass(frozen=True)
class HostLost:
    """A host dies as a machine does, without an exit code, and its disk with it: S3 gets nothing more of it.
    It is an InternalServerError. ``after`` as above."""

    name: ClassVar = "host-lost"
    after: Seconds
    hosts: str = "algo-1"
    jobs: str = "*"
    attempts: tuple[int, ...] = (1,)
    probability: float = 1.0


@dataclass(frozen=True)
class NoCapacity:
    """Hosts of these types cannot be had for ``seconds`` of an attempt; None: not at all."""

    name: ClassVar = "no-capacity"
    instance_types: str = "*"
    seconds: Seconds | None = None
    jobs: str = "*"
    attempts: tuple[int, ...] = (1,)
    probability: float = 1.0


@dataclass(frozen=True)
class Throttle:
    """Answers ThrottlingException to the ``first`` calls of an operation, to those whose numbers, from 1, are
    among ``calls``, and to a ``share`` of the others."""

    name: ClassVar = "throttle"
    operations: str = "*"
    share: float = 0.0
    first: int = 0
    calls: tuple[int, ...] = ()


Fault = SpotInterruption | HostLost | NoCapacity | Throttle
_KINDS: Mapping[str, type[Fault]] = {
    kind.name: kind for kind in (SpotInterruption, HostLost, NoCapacity, Throttle)
}


@dataclass(frozen=True)
class Capacity:
    """Instance types that lack, with the seconds until they are there (None: never)."""

    lacking: tuple[tuple[str, float | None], ...] = ()

    def wait(self, instance_type: str) -> float | None:
        """Seconds until hosts of this type can be had; None: never."""
        waits = [seconds for pattern, seconds in self.lacking if fnmatchcase(instance_type, pattern)]
        return (
            None if None in waits else max((seconds for seconds in waits if seconds is not None), default=0)
        )


@dataclass(frozen=True)
class AttemptFaults:
    """What goes wrong in one attempt of one job. ``lost``: pattern of host labels and when."""

    capacity: Capacity = Capacity()
    interrupted_after: float | None = None
    away: float = 0.0
    lost: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class FaultPlan:
    seed: int = 0
    faults: tuple[Fault, ...] = field(default=())

    def to_json(self) -> str:
        """What ``read`` reads."""
        faults = [{"fault": fault.name, **asdict(fault)} for fault in self.faults]
        return json.dumps({"seed": self.seed, "faults": faults})

    def of(self, job: str, attempt: int) -> AttemptFaults:
        """``attempt`` counts from 1."""
        lacking: list[tuple[str, float | None]] = []
        lost: list[tuple[str, float]] = []
        interruptions: list[tuple[float, float]] = []
        for number, fault in enumerate(self.faults):
            if isinstance(fault, Throttle) or attempt not in fault.attempts:
                continue
            chance = random.Random(f"{self.seed}/{number}/{job}/{attempt}")  # noqa: S311 - to be repeated
            if not fnmatchcase(job, fault.jobs) or chance.random() >= fault.probability:
                continue
            if isinstance(fault, SpotInterruption):
                interruptions.append((_drawn(fault.after, chance), _drawn(fault.away, chance)))
            elif isinstance(fault, HostLost):
                lost.append((fault.hosts, _drawn(fault.after, chance)))
            else:
                seconds = None if fault.seconds is None else _drawn(fault.seconds, chance)
                lacking.append((fault.instance_types, seconds))
        after, away = min(interruptions, default=(None, 0.0))
        return AttemptFaults(Capacity(tuple(lacking)), after, away, tuple(lost))

    def throttles(self, operation: str, call: int) -> bool:
        """Whether the ``call``-th call (from 1) of an operation is refused."""
        for number, fault in enumerate(self.faults):
            if isinstance(fault, Throttle) and fnmatchcase(operation, fault.operations):
                chance = random.Random(f"{self.seed}/{number}/{operation}/{call}")  # noqa: S311
                if call <= fault.first or call in fault.calls or chance.random() < fault.share:
                    return True
        return False


def read(text: str, origin: str) -> FaultPlan:
    """Raises EndpointError that names every mistake; ``origin`` is where the text came from."""
    try:
        document = json.loads(text)
    except ValueError as error:
        raise EndpointError(f"{origin} is not JSON: {error}") from None
    problems: list[str] = []
    if not isinstance(document, dict) or not isinstance(document.get("faults"), list):
        problems.append('it must be an object such as {"seed": 1, "faults": []}')
        document = {"faults": []}
    seed = document.get("seed", 0)
    if not isinstance(seed, int):
        problems.append(f"seed: {seed!r} is no whole number")
    faults = [_fault(entry, f"faults[{number}]", problems) for number, entry in enumerate(document["faults"])]
    if problems:
        raise EndpointError(f"{origin} is no fault plan: " + "; ".join(problems))
    return FaultPlan(seed, tuple(fault for fault in faults if fault is not None))


def from_environment(environment: Mapping[str, str]) -> FaultPlan:
    """The plan in the file that SMLAUNCH_FAULTS names; an empty one without it. Raises EndpointError."""
    path = environment.get(VARIABLE)
    if not path:
        return FaultPlan()
    try:
        return read(Path(path).read_text("utf-8"), f"{path} ({VARIABLE})")
    except (OSError, UnicodeDecodeError) as error:
        raise EndpointError(f"{VARIABLE}={path}: {error}") from None


def _fault(entry: Any, place: str, problems: list[str]) -> Fault | None:
    if not isinstance(entry, dict) or entry.get("fault") not in _KINDS:
        problems.append(f"{place}.fault: one of {', '.join(_KINDS)} is needed")
        return None
    kind = _KINDS[entry["fault"]]
    known = {spot.name: spot for spot in fields(kind)}
    before = len(problems)
    given = {name: value for name, value in entry.items() if name != "fault"}
    problems += [f"{place}.{name}: unknown; known are {', '.join(known)}" for name in given.keys() - known]
    missing = [name for name, spot in known.items() if spot.default is MISSING and name not in given]
    problems += [f"{place}.{name}: it is needed" for name in missing]
    for name, value in given.items():
        wanted = _WANTED.get(name)
        if name in known and wanted is not None and not wanted[1](value):
            problems.append(f"{place}.{name}: {value!r} is no {wanted[0]}")
    if len(problems) > before:
        return None
    arguments: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
    }
    return kind(**arguments)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _is_duration(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) == 2 and all(map(_is_number, value)) and value[0] <= value[1]
    return _is_number(value)


def _is_counts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(number, int) and number > 0 for number in value)


_PATTERN = ("pattern", lambda value: isinstance(value, str))
_SHARE = ("share from 0 to 1", lambda value: _is_number(value) and value <= 1)
_WANTED: Mapping[str, Any] = {
    **dict.fromkeys(("jobs", "hosts", "instance_types", "operations"), _PATTERN),
    **dict.fromkeys(("after", "away"), ("number of seconds, or two of them", _is_duration)),
    "seconds": (
        "number of seconds, two of them, or null",
        lambda value: value is None or _is_duration(value),
    ),
    "attempts": ("list of attempts, counted from 1", _is_counts),
    "calls": ("list of calls, counted from 1", _is_counts),
    **dict.fromkeys(("probability", "share"), _SHARE),
    "first": ("whole number", lambda value: isinstance(value, int) and value >= 0),
}


def _drawn(seconds: Seconds, chance: random.Random) -> float:
    return chance.uniform(*seconds) if isinstance(seconds, tuple) else float(seconds)
