"""What the hosts of a job run, as text for people: the command of each rank, services, settings. Secrets are
masked."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator
from typing import Any

from smlaunch.contract.launch_spec import ALL, LEADER, RUNTIME, Arg, Concat, Ref, ServiceSpec
from smlaunch.planner.plan import PlannedJob
from smlaunch.secrets.masking import MASK, mask_arguments, mask_named_value


def command_text(planned_job: PlannedJob) -> str:
    """Return the command of each rank (process) as a row of the summary, secrets masked: what the launch
    specification (job.json) says, or that the image contains its own program."""
    request, launch_spec = planned_job.request, planned_job.launch_spec
    if launch_spec is None:
        container = request.get("AlgorithmSpecification") or request["AppSpecification"]
        container_arguments = _masked_arguments(container.get("ContainerArguments", ()))
        return " ".join(["the image's own program", *container_arguments])
    ranks = launch_spec.ranks
    arguments = ranks.argv
    if "HyperParameters" not in request:
        # Ref("hyperparameters") stands for the hyperparameters as arguments, which are none here.
        arguments = tuple(argument for argument in arguments if argument != Ref("hyperparameters"))
    # A launcher such as torchrun starts the ranks, unless smlaunch's runtime does.
    launcher_text = "" if ranks.launcher == RUNTIME else f"{ranks.launcher}: "
    # LEADER: the first host alone runs the command, which uses the others, as Spark's does.
    host_text = " (on the leader alone)" if ranks.runs_on == LEADER else ""
    return launcher_text + " ".join(_masked_arguments(arguments)) + host_text


def service_text(service: ServiceSpec) -> str:
    """``every host: ray start --block``."""
    hosts_text = {LEADER: "the leader", ALL: "every host"}.get(service.runs_on, "the other hosts")
    return f"{hosts_text}: {' '.join(_masked_arguments(service.argv))}"


def _masked_arguments(launch_arguments: Iterable[Arg]) -> Iterator[str]:
    """Yield the arguments of a command as text, secrets masked. An argument is a string, or a reference to a
    value that only a host knows, such as its address."""
    arguments = list(launch_arguments)
    # None stands for a reference, which has no secret and must keep its place: an option may come before it.
    maskable_arguments = (argument if isinstance(argument, str) else None for argument in arguments)
    for argument, masked_argument in zip(arguments, mask_arguments(maskable_arguments), strict=True):
        yield _argument_text(argument if masked_argument is None else masked_argument)


def _argument_text(argument: Arg) -> str:
    """Return an argument of a command as text: a string, a reference (Ref) to a value that only a host knows,
    or several parts that make one argument (Concat). A reference is written ``<...>``, such as ``<port+4>``,
    the fifth of the job's ports, with the text around it."""
    if isinstance(argument, Concat):
        return "".join(map(_argument_text, argument.parts))
    if isinstance(argument, str):
        # A control character must not reach the terminal; JSON escapes it.
        return shlex.quote(argument) if argument.isprintable() else json.dumps(argument)
    if argument.name == "source":
        # A file of the user's source: shown as the user knows it, relative to the source.
        return shlex.quote(argument.suffix.lstrip("/"))
    if argument.name == "hyperparameters":
        return "[hyperparameters as --key value]"
    if argument.name == "python":  # the interpreter of the hosts
        return argument.name
    offset_text = f"+{argument.offset}" if argument.offset else ""
    return f"{argument.prefix}<{argument.name}{offset_text}>{argument.suffix}"


def key_value_text(key: str, value: Any) -> str:
    """``lr=0.1``, ``note="two words"``, ``api_key=****``: always on one line."""
    value = mask_named_value(key, value)
    if value == MASK:
        return f"{key}={MASK}"
    if isinstance(value, float):  # as a job file has it
        return f"{key}={value!r}"
    if isinstance(value, str) and shlex.quote(value) == value:  # needs no quotes
        return f"{key}={value}"
    return f"{key}={json.dumps(value, ensure_ascii=not str(value).isprintable())}"
