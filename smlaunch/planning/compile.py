"""From a segment's shape to the exact request: machines, image, launch specification, limits, tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from smlaunch.catalog.instances import InstanceType, find
from smlaunch.job import Job, format_duration, parse_duration
from smlaunch.planning.bucket_owners import recorded
from smlaunch.planning.choose import choose_instance_type, choose_processes
from smlaunch.planning.cost import Rate, rate_of
from smlaunch.planning.image import choose_image, what_jumpstart_adds
from smlaunch.planning.notes import Notes
from smlaunch.planning.patches import warn_of_patches
from smlaunch.planning.plan import Upload
from smlaunch.planning.rank_variables import with_variables
from smlaunch.planning.segments import Shape
from smlaunch.planning.storage import Layout, plan_launch_channels, plan_volume
from smlaunch.planning.surroundings import Surroundings
from smlaunch.planning.workflow import Variant
from smlaunch.protocol.launch_spec import RUNTIME, CheckpointSpec, LaunchSpec
from smlaunch.protocol.names import TAG_ATTEMPT, TAG_JOB, TAG_RUN, TAG_SEGMENT, TaskName
from smlaunch.protocol.segment import OWNERS, STOP_AFTER, SYNC, UNTIL_STEP, owners_text
from smlaunch.request import CREATE, ENTRYPOINT, InputChannel, TrainingTask
from smlaunch.strategies.base import Setting, Strategy


@dataclass(frozen=True)
class Compiled:
    """A shape with all that was decided for it; ``variant`` holds its first segment's request."""

    shape: Shape
    instance_type: str
    per_host: int | str
    image: str
    spec: LaunchSpec | None
    rate: Rate
    variant: Variant


@dataclass
class Compiler:
    """Compiles the shapes of one run; ``uploads`` grows with what they need, nothing twice."""

    run: str
    digest: str
    strategy: Strategy
    surroundings: Surroundings
    layout: Layout
    kept: CheckpointSpec | None
    channels: Sequence[InputChannel]
    notes: Notes
    uploads: list[Upload] = field(default_factory=list)
    _numbers: dict[LaunchSpec, int] = field(default_factory=dict)

    def compile(self, shape: Shape) -> Compiled:
        job, surroundings, notes = shape.job, self.surroundings, self.notes
        instance = choose_instance_type(job, notes)
        per_host = choose_processes(job, self.strategy, instance, surroundings, notes)
        image = choose_image(job, self.strategy, instance, surroundings, notes)
        _tell_pipes(job, per_host, notes)
        warn_of_patches(image, surroundings, notes)
        hosted_values, hosted_channels = what_jumpstart_adds(image, surroundings)
        setting = self._setting(shape, per_host, instance, image, {**hosted_values, **job.hyperparameters})
        self._check(setting, job.compute.instance_preferences)
        spec = self._spec(setting, job.image is not None)
        own_channels = [] if spec is None else self._launch_channels(spec)
        name = TaskName(self.run, shape.first, attempt=1)
        synced = self.kept is not None and self.kept.carrier == SYNC
        rate = rate_of(job, instance, surroundings)
        task = TrainingTask(
            name=str(name),
            role=surroundings.role or "",
            image=image,
            entrypoint=() if spec is None else ENTRYPOINT,
            arguments=job.args if spec is None else (),
            hyperparameters={**setting.hyperparameters, **self.strategy.hyperparameters(setting)},
            channels=(*self.channels, *hosted_channels, *own_channels),
            output=job.output or self.layout.output,
            instance_type=instance[0],
            hosts=job.compute.hosts,
            instance_preferences=job.compute.instance_preferences,
            keep_alive=_seconds(job.compute.keep_alive),
            max_pending=_seconds(job.limits.max_pending),
            volume_gb=plan_volume(job, instance, surroundings, notes),
            max_runtime=shape.length,
            spot=job.compute.spot,
            max_wait=_max_wait(job, shape.length, self.strategy.longest_wait(setting), notes),
            checkpoints=(self.kept.uri or "", self.kept.path) if self.kept is not None and synced else None,
            environment={**job.environment, **_own_variables(shape), **self._owners(job)},
            network_isolation=job.network_isolation,
            encrypt_traffic=job.encrypt_traffic,
            subnets=job.subnets,
            security_groups=job.security_groups,
            tags={
                **job.tags,
                TAG_RUN: name.run,
                TAG_SEGMENT: str(name.segment),
                TAG_ATTEMPT: str(name.attempt),
                TAG_JOB: self.digest,
            },
        )
        request = CREATE[self.strategy.operation](task)
        variant = Variant(shape.first, request, rate.per_hour, shape.until_step)
        return Compiled(shape, instance[0], per_host, image, spec, rate, variant)

    def _owners(self, job: Job) -> dict[str, str]:
        owners = recorded(job, self.kept, self.surroundings.account)
        return {OWNERS: owners_text(owners)} if owners else {}

    def _setting(
        self,
        shape: Shape,
        per_host: int | str,
        instance: tuple[str, InstanceType | None],
        image: str,
        hyperparameters: Mapping[str, Any],
    ) -> Setting:
        job, facts = shape.job, self.surroundings
        return Setting(
            entry=facts.source.entry,
            args=job.args,
            hosts=job.compute.hosts,
            per_host=per_host,
            environment=frozenset(job.environment),
            requirements=job.requirements,
            max_runtime=shape.length,
            hang=_seconds(job.limits.hang),
            launcher=job.launcher,
            imports=facts.script.imports,
            reads_resource_config=facts.script.reads_resource_config,
            run=self.run,
            checkpoints=self.kept,
            margin=shape.margin,
            deterministic=job.deterministic,
            split=any(channel.split is not None for channel in job.inputs.values()),
            options=job.options,
            files=facts.source.named,
            algorithm=job.algorithm,
            instance_type=instance[0],
            instance=instance[1],
            image=image,
            framework_version=job.framework_version,
            channels=job.inputs,
            hyperparameters=hyperparameters,
            spot=job.compute.spot,
            target=facts.target,
        )

    def _check(self, setting: Setting, preferences: Sequence[str]) -> None:
        """The job may come to run on any of the types that it prefers."""
        others = [replace(setting, instance_type=name, instance=find(name)) for name in preferences[1:]]
        for one in (setting, *others):
            for problem in self.strategy.check_all(one):
                of_type = preferences and problem.path == "compute.instance_type"
                self.notes.refuse(
                    "compute.instance_preferences" if of_type else problem.path, problem.message
                )

    def _spec(self, setting: Setting, own_image: bool) -> LaunchSpec | None:
        """None where the image brings its own program."""
        spec = self.strategy.launch_spec(setting) if setting.entry else None
        if spec is not None and spec.source is not None:
            spec = spec._replace(source_sha256=self.surroundings.source.archive_sha256)
        if spec is not None and setting.hang is None and spec.hang_seconds is not None:
            self.notes.because(
                "limit.hang",
                "The job states no limits.hang; a host whose ranks print nothing and use no CPU for "
                f"{format_duration(int(spec.hang_seconds))} is taken to hang, and fails with the stacks of "
                "its ranks.",
            )
        for sentence in self.strategy.advice_all(setting):
            self.notes.warn(sentence + ".")
        if spec is None:
            return None
        if spec.services and spec.ranks.launcher != RUNTIME:
            told = f"{self.strategy.name} starts more than ranks, which {spec.ranks.launcher} does not"
            self.notes.refuse("launcher", f"{told}; leave it out")
        return with_variables(spec, setting, own_image, self.notes)

    def _launch_channels(self, spec: LaunchSpec) -> list[InputChannel]:
        number = self._numbers.setdefault(spec, len(self._numbers) + 1)
        channels, uploads = plan_launch_channels(number, spec, self.surroundings, self.layout)
        self.uploads += [upload for upload in uploads if upload not in self.uploads]
        return channels


def _tell_pipes(job: Job, per_host: int | str, notes: Notes) -> None:
    """Each pipe is read by one process (developer guide, your-algorithms-training-algo-running-container)."""
    for name, channel in job.inputs.items():
        if channel.mode == "Pipe" and per_host != 1:
            several = f"{per_host} ranks run" if isinstance(per_host, int) else "several ranks may run"
            notes.warn(
                f"inputs.{name}: one process alone can read a pipe, and {several} on each host: let one of "
                "them read it for all, or take mode FastFile."
            )


def _seconds(duration: str | None) -> int | None:
    return None if duration is None else parse_duration(duration)


def _own_variables(shape: Shape) -> dict[str, str]:
    values = {STOP_AFTER: shape.stop_after, UNTIL_STEP: shape.until_step}
    return {name: str(value) for name, value in values.items() if value is not None}


def _max_wait(job: Job, max_runtime: int, longest: int | None, notes: Notes) -> int | None:
    """Seconds; None without spot. ``longest``: what the strategy lets it be."""
    if not job.compute.spot:
        return None
    if job.limits.max_wait is None:
        twice = 2 * max_runtime
        if longest is not None and max_runtime <= longest < twice:
            notes.because(
                "spot.wait",
                f"The job states no limits.max_wait: {format_duration(longest)}, the most where no "
                "checkpoints are kept, for training and waiting for capacity together.",
            )
            return longest
        notes.because(
            "spot.wait",
            f"The job states no limits.max_wait: {format_duration(twice)}, twice the training "
            "time, for training and waiting for capacity together.",
        )
        return twice
    stated = parse_duration(job.limits.max_wait)
    if stated < max_runtime:
        notes.refuse(
            "limits.max_wait",
            f"{job.limits.max_wait} is shorter than the training time of {format_duration(max_runtime)} that "
            "it includes; make it longer",
        )
    return stated
