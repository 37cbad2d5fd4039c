"""Compile a segment into its exact request: machines, image, launch specification, limits, tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from smlaunch.api.request import ENTRYPOINT, REQUEST_BUILDERS, InputChannel, JobParameters
from smlaunch.catalog.instances import InstanceChoice, find_instance_type
from smlaunch.contract import formats
from smlaunch.contract.launch_spec import RUNTIME, CheckpointSpec, LaunchSpec
from smlaunch.contract.names import TAG_ATTEMPT, TAG_FORMAT, TAG_JOB, TAG_RUN, TAG_SEGMENT, JobName
from smlaunch.contract.segment import (
    BUCKET_OWNERS_VARIABLE,
    STOP_AFTER_VARIABLE,
    SYNC,
    UNTIL_STEP_VARIABLE,
    format_bucket_owners,
)
from smlaunch.job.model import Job, format_duration, parse_duration
from smlaunch.planner.bucket_owners import recorded_owners
from smlaunch.planner.cost import ComputeRate, compute_rate
from smlaunch.planner.diagnostics import Diagnostics
from smlaunch.planner.facts import Facts
from smlaunch.planner.image_choice import choose_image, jumpstart_inputs
from smlaunch.planner.input_channels import RunLayout, plan_launch_channels, plan_volume
from smlaunch.planner.launch_choices import choose_instance_type, choose_processes
from smlaunch.planner.patch_warnings import warn_of_patch_end
from smlaunch.planner.plan import Upload
from smlaunch.planner.rank_variables import add_rank_variables
from smlaunch.planner.segments import SegmentShape
from smlaunch.planner.workflow import Variant
from smlaunch.strategies.base import LaunchContext, Strategy


@dataclass(frozen=True)
class CompiledSegment:
    """A segment shape with all decisions; ``variant`` holds its first segment's request."""

    shape: SegmentShape
    instance_type: str
    processes_per_host: int | str
    image: str
    spec: LaunchSpec | None
    rate: ComputeRate
    variant: Variant


@dataclass
class RequestCompiler:
    """Compiles the segment shapes of one run."""

    run_id: str
    job_hash: str
    strategy: Strategy
    facts: Facts
    layout: RunLayout
    checkpoint_spec: CheckpointSpec | None
    channels: Sequence[InputChannel]
    diagnostics: Diagnostics
    uploads: list[Upload] = field(default_factory=list)
    """Uploads that the compiled segments need, without duplicates."""

    _numbers: dict[LaunchSpec, int] = field(default_factory=dict)

    def compile(self, shape: SegmentShape) -> CompiledSegment:
        """Decide everything about a segment and build the request of its first attempt."""
        job, facts, diagnostics = shape.job, self.facts, self.diagnostics
        instance_choice = choose_instance_type(job, diagnostics)
        processes_per_host = choose_processes(job, self.strategy, instance_choice, facts, diagnostics)
        image = choose_image(job, self.strategy, instance_choice, facts, diagnostics)
        _warn_of_shared_pipes(job, processes_per_host, diagnostics)
        warn_of_patch_end(image, facts, diagnostics)
        jumpstart_values, jumpstart_channels = jumpstart_inputs(image, facts)
        context = self._launch_context(
            shape, processes_per_host, instance_choice, image, {**jumpstart_values, **job.hyperparameters}
        )
        self._check_strategy(context, job.compute.instance_preferences)
        spec = self._launch_spec(context, job.image is not None)
        launch_channels = [] if spec is None else self._launch_channels(spec)
        task_name = JobName(self.run_id, shape.first_segment, attempt=1)
        is_synced = self.checkpoint_spec is not None and self.checkpoint_spec.upload == SYNC
        rate = compute_rate(job, instance_choice, facts)
        parameters = JobParameters(
            name=str(task_name),
            role=facts.role or "",
            image=image,
            entrypoint=() if spec is None else ENTRYPOINT,
            arguments=job.args if spec is None else (),
            hyperparameters={**context.hyperparameters, **self.strategy.hyperparameters(context)},
            channels=(*self.channels, *jumpstart_channels, *launch_channels),
            output=job.output or self.layout.output_prefix,
            instance_type=instance_choice.name,
            hosts=job.compute.hosts,
            instance_preferences=job.compute.instance_preferences,
            keep_alive_seconds=_seconds(job.compute.keep_alive),
            max_pending_seconds=_seconds(job.limits.max_pending),
            volume_gb=plan_volume(job, instance_choice, facts, diagnostics),
            max_runtime_seconds=shape.max_seconds,
            spot=job.compute.spot,
            max_wait_seconds=_max_wait(
                job, shape.max_seconds, self.strategy.max_wait_seconds(context), diagnostics
            ),
            checkpoints=(self.checkpoint_spec.uri or "", self.checkpoint_spec.path)
            if self.checkpoint_spec is not None and is_synced
            else None,
            environment={**job.environment, **_segment_variables(shape), **self._owner_variables(job)},
            network_isolation=job.network_isolation,
            encrypt_traffic=job.encrypt_traffic,
            subnets=job.subnets,
            security_groups=job.security_groups,
            tags={
                **job.tags,
                TAG_FORMAT: formats.RUN.version,
                TAG_RUN: task_name.run,
                TAG_SEGMENT: str(task_name.segment),
                TAG_ATTEMPT: str(task_name.attempt),
                TAG_JOB: self.job_hash,
            },
        )
        request = REQUEST_BUILDERS[self.strategy.operation](parameters)
        variant = Variant(shape.first_segment, request, rate.per_hour, shape.until_step)
        return CompiledSegment(shape, instance_choice.name, processes_per_host, image, spec, rate, variant)

    def _owner_variables(self, job: Job) -> dict[str, str]:
        owners = recorded_owners(job, self.checkpoint_spec, self.facts.account)
        return {BUCKET_OWNERS_VARIABLE: format_bucket_owners(owners)} if owners else {}

    def _launch_context(
        self,
        shape: SegmentShape,
        processes_per_host: int | str,
        instance_choice: InstanceChoice,
        image: str,
        hyperparameters: Mapping[str, Any],
    ) -> LaunchContext:
        job, facts = shape.job, self.facts
        return LaunchContext(
            entry=facts.source.entry,
            args=job.args,
            hosts=job.compute.hosts,
            processes_per_host=processes_per_host,
            environment_names=frozenset(job.environment),
            requirements=job.requirements,
            max_runtime_seconds=shape.max_seconds,
            hang_seconds=_seconds(job.limits.hang),
            launcher=job.launcher,
            imports=facts.script.imports,
            reads_resource_config=facts.script.reads_resource_config,
            run_id=self.run_id,
            checkpoints=self.checkpoint_spec,
            margin_seconds=shape.margin,
            deterministic=job.deterministic,
            has_split_input=any(channel.split is not None for channel in job.inputs.values()),
            options=job.options,
            json_files=facts.source.json_files,
            algorithm=job.algorithm,
            instance_type=instance_choice.name,
            instance=instance_choice.catalog_type,
            image=image,
            framework_version=job.framework_version,
            channels=job.inputs,
            hyperparameters=hyperparameters,
            spot=job.compute.spot,
            target=facts.target,
        )

    def _check_strategy(self, context: LaunchContext, preferences: Sequence[str]) -> None:
        """Check the strategy for every type that the job prefers: it may run on any."""
        alternatives = [
            replace(context, instance_type=name, instance=find_instance_type(name))
            for name in preferences[1:]
        ]
        for alternative in (context, *alternatives):
            for problem in self.strategy.check_all(alternative):
                is_type_problem = preferences and problem.path == "compute.instance_type"
                self.diagnostics.add_problem(
                    "compute.instance_preferences" if is_type_problem else problem.path, problem.message
                )

    def _launch_spec(self, context: LaunchContext, has_own_image: bool) -> LaunchSpec | None:
        """The launch specification; None if the image contains its own program."""
        spec = self.strategy.launch_spec(context) if context.entry else None
        if spec is not None and spec.source is not None:
            spec = spec._replace(source_sha256=self.facts.source.archive_sha256)
        if spec is not None and context.hang_seconds is None and spec.hang_seconds is not None:
            self.diagnostics.add_reason(
                "limit.hang",
                "The job states no limits.hang; a host whose ranks print nothing and use no CPU for "
                f"{format_duration(int(spec.hang_seconds))} counts as hung, and fails with the stacks of "
                "its ranks.",
            )
        for sentence in self.strategy.advice_all(context):
            self.diagnostics.add_warning(sentence + ".")
        if spec is None:
            return None
        if spec.services and spec.ranks.launcher != RUNTIME:
            message = f"{self.strategy.name} starts more than ranks, which {spec.ranks.launcher} does not"
            self.diagnostics.add_problem("launcher", f"{message}; leave it out")
        return add_rank_variables(spec, context, has_own_image, self.diagnostics)

    def _launch_channels(self, spec: LaunchSpec) -> list[InputChannel]:
        number = self._numbers.setdefault(spec, len(self._numbers) + 1)
        channels, uploads = plan_launch_channels(number, spec, self.facts, self.layout)
        self.uploads += [upload for upload in uploads if upload not in self.uploads]
        return channels


def _warn_of_shared_pipes(job: Job, processes_per_host: int | str, diagnostics: Diagnostics) -> None:
    """Warn of pipes with several ranks: one process reads each pipe (developer guide,
    your-algorithms-training-algo-running-container)."""
    for name, channel in job.inputs.items():
        if channel.mode == "Pipe" and processes_per_host != 1:
            ranks_text = (
                f"{processes_per_host} ranks run"
                if isinstance(processes_per_host, int)
                else "several ranks may run"
            )
            diagnostics.add_warning(
                f"inputs.{name}: only one process can read a pipe, and {ranks_text} on each host: let one "
                "of them read it for all, or use mode FastFile."
            )


def _seconds(duration: str | None) -> int | None:
    return None if duration is None else parse_duration(duration)


def _segment_variables(shape: SegmentShape) -> dict[str, str]:
    values = {STOP_AFTER_VARIABLE: shape.stop_after, UNTIL_STEP_VARIABLE: shape.until_step}
    return {name: str(value) for name, value in values.items() if value is not None}


def _max_wait(job: Job, max_runtime: int, max_allowed: int | None, diagnostics: Diagnostics) -> int | None:
    """MaxWaitTime in seconds; None without spot. ``max_allowed``: the strategy's limit."""
    if not job.compute.spot:
        return None
    if job.limits.max_wait is None:
        double_runtime = 2 * max_runtime
        if max_allowed is not None and max_runtime <= max_allowed < double_runtime:
            diagnostics.add_reason(
                "spot.wait",
                f"The job states no limits.max_wait: {format_duration(max_allowed)}, the limit without "
                "checkpoints, for training and waiting for capacity together.",
            )
            return max_allowed
        diagnostics.add_reason(
            "spot.wait",
            f"The job states no limits.max_wait: {format_duration(double_runtime)}, twice the training "
            "time, for training and waiting for capacity together.",
        )
        return double_runtime
    max_wait = parse_duration(job.limits.max_wait)
    if max_wait < max_runtime:
        diagnostics.add_problem(
            "limits.max_wait",
            f"{job.limits.max_wait} is shorter than the training time of {format_duration(max_runtime)} that "
            "it includes; make it longer",
        )
    return max_wait
