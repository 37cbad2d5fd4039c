"""What the plan says of how each channel is read, where there is something to say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smlaunch.job import Channel, Job
from smlaunch.planning.notes import Notes
from smlaunch.planning.surroundings import InputFacts, Surroundings

if TYPE_CHECKING:
    from smlaunch.planning.advice import Place

_WORTH_A_WORD = 10**9
"""Bytes: below it every way is as good, unless there are very many files."""

_MANY = 1_000


def tell_reading(
    job: Job, surroundings: Surroundings, instance_type: str, notes: Notes, processing: bool = False
) -> None:
    """Reasons and warnings on the channels' modes; nothing for hosts on this machine, which have no network
    between them and the data."""
    if surroundings.target == "local":
        return
    for name, channel in job.inputs.items():
        facts = surroundings.inputs.get(name)
        if facts is None or facts.problem is not None or not facts.objects or facts.bytes is None:
            continue
        if facts.bytes >= _WORTH_A_WORD or facts.objects >= _MANY:
            place: Place = "processing" if processing else "training"
            _tell(name, channel, facts, job, instance_type, place, notes)


def _tell(
    name: str, channel: Channel, facts: InputFacts, job: Job, instance_type: str, place: Place, notes: Notes
) -> None:
    # Late: most plans have nothing to say here, and every command that plans would pay for it.
    from smlaunch.catalog import instances
    from smlaunch.catalog.storage import figure
    from smlaunch.planning.advice import Needs, advise
    from smlaunch.planning.advice_text import in_a_line
    from smlaunch.planning.census import DataFacts
    from smlaunch.planning.io_times import Machine, Share
    from smlaunch.planning.slow_disk import slow_disk

    objects, size = facts.objects or 0, facts.bytes or 0
    machine = Machine(instances.find(instance_type), job.compute.hosts)
    parted = job.compute.hosts if channel.split is not None else 1
    slow = slow_disk(Share(size / parted, objects / parted), machine) if channel.mode == "File" else None
    if slow is not None:
        notes.warn(f"inputs.{name}: {slow}")
    data = DataFacts(objects, size, at_least=facts.capped)
    if facts.capped and size <= figure("local_bytes").low:
        if data.are_small:
            notes.warn(
                f"inputs.{name}: more than {objects:,} small objects, each a request; to see whether they go "
                f"into shards first: smlaunch data advise {channel.uri}"
            )
        return
    advice = advise(data, Needs(split=channel.split is not None, place=place), machine)
    if advice.pack:
        notes.warn(f"inputs.{name}: {advice.ways[0].because}. See smlaunch data pack.")
    elif size < _WORTH_A_WORD:
        return
    rule, said = f"inputs.{name}.storage", in_a_line(advice)
    if advice.mode == channel.mode:
        notes.because(rule, f"Mode {channel.mode} as advised: {said}")
    else:
        notes.because(rule, f"Mode {channel.mode} as the job says; advised for most scripts: {said}")
