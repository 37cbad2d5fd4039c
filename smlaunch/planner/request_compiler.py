"""Compile a segment into its exact request: machines, image, launch specification, limits, tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

from smlaunch.api.request_builder import InputChannel, JobParameters, OtherOutput, build_job_request
from smlaunch.api.request_merge import merge_members
from smlaunch.catalog.efa import efa_settings
from smlaunch.catalog.instances import InstanceChoice, find_instance_type
from smlaunch.chain.workflow import SegmentVariant
from smlaunch.contract import formats
from smlaunch.contract.launch_spec import RUNTIME, CheckpointSpec, LaunchSpec
from smlaunch.contract.run_names import TAG_ATTEMPT, TAG_FORMAT, TAG_JOB, TAG_RUN, TAG_SEGMENT, JobName
from smlaunch.contract.segment import (
    BUCKET_OWNERS_VARIABLE,
    STOP_AFTER_VARIABLE,
    SYNC,
    UNTIL_STEP_VARIABLE,
    format_bucket_owners,
)
from smlaunch.facts.discovered_facts import DiscoveredFacts
from smlaunch.job.bucket_owners import bucket_owners_for_request
from smlaunch.job.model import Compute, Job, format_duration, parse_duration
from smlaunch.planner.image_choice import choose_image, jumpstart_inputs, warn_of_patch_end
from smlaunch.planner.input_channels import (
    RunS3Layout,
    choose_volume_gb,
    for_all_groups,
    plan_launch_channels,
    volume_key,
    warn_of_shared_pipes,
)
from smlaunch.planner.launch_choices import choose_instance_type, choose_processes_per_host
from smlaunch.planner.plan import Upload
from smlaunch.planner.plan_context import (
    Diagnostics,
    PlanContext,
    has_split_input,
    may_have_accelerators,
    stated_output,
)
from smlaunch.planner.request_problems import at_segment, request_channels, segment_fields_of
from smlaunch.planner.run_cost import PriceRate, compute_price_rate
from smlaunch.planner.script_launch import (
    AddedArguments,
    added_arguments,
    all_imports_are_known,
    reads_hosts,
    reads_own_host_name,
)
from smlaunch.planner.segments import SegmentTemplate
from smlaunch.secrets.masking import mask_named_value
from smlaunch.strategies.base import LaunchContext, find_imported_library

MPLBACKEND = "MPLBACKEND"


class CompiledSegment(NamedTuple):
    """A kind of segment with all decisions; ``variant`` holds the request of the first of them."""

    template: SegmentTemplate
    instance_type: str
    processes_per_host: int | str
    image: str
    launch_spec: LaunchSpec | None
    price_rate: PriceRate
    volume_gb: int
    """Volumes of all hosts; none for types that SageMaker gives their NVMe disks instead."""

    variant: SegmentVariant


@dataclass
class RequestCompiler:
    """Compiles the segments of one run."""

    run_id: str
    job_hash: str
    context: PlanContext
    """The job as it is stated."""

    facts: DiscoveredFacts
    """As one host sees them: with its share of the data."""

    layout: RunS3Layout
    checkpoint_spec: CheckpointSpec | None
    channels: Sequence[InputChannel]
    diagnostics: Diagnostics
    uploads: list[Upload] = field(default_factory=list)
    """Uploads that the compiled segments need, without duplicates."""

    def compile_segment(self, template: SegmentTemplate) -> CompiledSegment:
        """Decide everything about a kind of segment, and build the request of the first attempt: instance
        type, ranks per host, image, launch specification (job.json) and price. Problems that exist in this
        segment only are reported at what it changes. ``template``: the job with the segment's changes, its
        time limit and its planned end."""
        problems_before = len(self.diagnostics.problems)
        compiled = self.compile_alone(template)
        problems = self.diagnostics.problems[problems_before:]
        if problems and template.job != self.context.job:
            unchanged = replace(self, diagnostics=Diagnostics(), uploads=[])
            unchanged.compile_alone(template._replace(job=self.context.job))
            problems_of_job = unchanged.diagnostics.problems
            field_by_path = segment_fields_of(self.context.job, template.first_segment)
            self.diagnostics.problems[problems_before:] = [
                problem if problem in problems_of_job else at_segment(problem, field_by_path)
                for problem in problems
            ]
        return compiled

    def compile_alone(self, template: SegmentTemplate) -> CompiledSegment:
        """``compile_segment`` with problems at the fields of the whole job."""
        job, facts, diagnostics = template.job, self.facts, self.diagnostics
        instance_choice = choose_instance_type(job, diagnostics)
        processes_per_host = choose_processes_per_host(
            job, self.context.strategy, instance_choice, facts, diagnostics
        )
        image = choose_image(job, self.context.strategy, instance_choice, facts, diagnostics)
        warn_of_shared_pipes(job, processes_per_host, diagnostics)
        warn_of_patch_end(image, facts, diagnostics)
        jumpstart_hyperparameters, jumpstart_channels = jumpstart_inputs(image, facts)
        context = self._launch_context(
            template,
            processes_per_host,
            instance_choice,
            image,
            {**jumpstart_hyperparameters, **job.hyperparameters},
        )
        self._check_strategy(context, job.compute)
        launch_spec = self._compile_launch_spec(context, job.image is not None)
        launch_channels = [] if launch_spec is None else self._launch_channels(launch_spec)
        price_rate = compute_price_rate(job, instance_choice, facts, self.context.prices)
        parameters = self._job_parameters(
            template, context, launch_spec, [*self.channels, *jumpstart_channels, *launch_channels]
        )
        request = merge_members(build_job_request(self.context.strategy.job_kind, parameters), job.request)
        variant = SegmentVariant(
            first_segment=template.first_segment,
            request=request,
            price_per_hour=price_rate.dollars_per_hour,
            until_step=template.until_step,
        )
        has_nvme_disk = bool(instance_choice.catalog_entry and instance_choice.catalog_entry.nvme_gb)
        return CompiledSegment(
            template,
            instance_choice.name,
            processes_per_host,
            image,
            launch_spec,
            price_rate,
            0 if has_nvme_disk else parameters.volume_gb * job.compute.hosts,
            variant,
        )

    def _job_parameters(
        self,
        template: SegmentTemplate,
        context: LaunchContext,
        launch_spec: LaunchSpec | None,
        channels: Sequence[InputChannel],
    ) -> JobParameters:
        """Return the parameters from which the request of a segment's first attempt is built; a segment is
        one of the run's sequential jobs. ``template``: the job with the segment's changes, and its time
        limit. ``context``: what was chosen for it (instance type, image). ``launch_spec``: what the runtime
        starts on each host; None if the image contains its own program. ``channels``: all inputs, smlaunch's
        own included."""
        job, diagnostics = template.job, self.diagnostics
        job_name = JobName(self.run_id, template.first_segment, attempt=1)
        instance_choice = InstanceChoice(context.instance_type, context.instance_spec)
        # S3 prefix and directory that the service keeps in sync; None if ranks upload checkpoints themselves.
        synced_checkpoints = None
        if self.checkpoint_spec is not None and self.checkpoint_spec.upload == SYNC:
            synced_checkpoints = (self.checkpoint_spec.uri or "", self.checkpoint_spec.path)
        return JobParameters(
            name=str(job_name),
            role=self.facts.role or "",
            image=context.image,
            # The runtime is the entry point, and gets the arguments from job.json.
            has_runtime=launch_spec is not None,
            entrypoint=job.container.entrypoint,
            arguments=job.image_arguments if launch_spec is None else (),
            registry_credentials=job.image_registry_credentials,
            metrics=tuple((metric.name, metric.regex) for metric in job.metrics),
            # The job's, and those by which the strategy configures AWS's image.
            hyperparameters={**context.hyperparameters, **self.context.strategy.hyperparameters(context)},
            channels=tuple(for_all_groups(job, channels)),
            output_uri=stated_output(job).uri or self.layout.output_prefix,
            output_kms_key=stated_output(job).kms_key,
            output_compression=(stated_output(job).compression or "").upper() or None,
            other_outputs=tuple(
                OtherOutput(name, output.path, output.uri, output.upload)
                for name, output in job.outputs.items()
            ),
            instance_type=context.instance_type,
            host_count=job.compute.host_count,
            instance_preferences=job.compute.instance_preferences,
            instance_groups=job.compute.group_rows,
            keep_alive_seconds=_seconds_or_none(job.compute.keep_alive),
            max_pending_seconds=_seconds_or_none(job.limits.max_pending),
            volume_gb=choose_volume_gb(job, instance_choice, self.facts, diagnostics),
            volume_kms_key=volume_key(job, instance_choice, self.facts, diagnostics),
            training_plan=job.compute.training_plan,
            retries=job.retries,
            has_remote_debug=job.remote_debug,
            max_runtime_seconds=template.max_seconds,
            is_spot=job.compute.spot,
            max_wait_seconds=_choose_max_wait_seconds(
                job, template.max_seconds, self.context.strategy.max_wait_seconds(context), diagnostics
            ),
            checkpoints=synced_checkpoints,
            # The job's own, the segment's planned end, and the owners of the buckets.
            environment={
                **job.environment,
                **self.facts.source.variables,
                **_segment_variables(template),
                **self._owner_variables(job),
            },
            network_isolation=job.network_isolation,
            encrypt_traffic=job.encrypt_traffic,
            subnets=job.subnets,
            security_groups=job.security_groups,
            # By these smlaunch recognizes the jobs of a run.
            tags={
                **job.tags,
                TAG_FORMAT: formats.RUN.version,
                TAG_RUN: job_name.run,
                TAG_SEGMENT: str(job_name.segment),
                TAG_ATTEMPT: str(job_name.attempt),
                TAG_JOB: self.job_hash,
            },
        )

    def _owner_variables(self, job: Job) -> dict[str, str]:
        owners = bucket_owners_for_request(
            self.context.stated_bucket_owners,
            stated_output(job).uri,
            self.checkpoint_spec,
            self.facts.account,
        )
        return {BUCKET_OWNERS_VARIABLE: format_bucket_owners(owners)} if owners else {}

    def _launch_context(
        self,
        template: SegmentTemplate,
        processes_per_host: int | str,
        instance_choice: InstanceChoice,
        image: str,
        hyperparameters: Mapping[str, Any],
    ) -> LaunchContext:
        job, facts = template.job, self.facts
        added = self._added_arguments(job, processes_per_host)
        return LaunchContext(
            entry_point=facts.source.entry,
            entry=job.entry,
            args=job.args,
            leading_args=added.leading,
            trailing_args=added.trailing,
            flags=added.flags,
            host_count=job.compute.hosts_of_largest_group,
            processes_per_host=processes_per_host,
            has_accelerators=may_have_accelerators(job, facts),
            environment_names=frozenset(job.environment),
            requirements=self.context.requirements.installed_file,
            max_runtime_seconds=template.max_seconds,
            hang_seconds=_seconds_or_none(job.limits.hang),
            launcher=job.launcher,
            imports=facts.script.imports | facts.script.program.imports,
            imports_are_known=all_imports_are_known(job, facts.script),
            reads_resource_config=reads_hosts(facts.script),
            reads_own_host_name=reads_own_host_name(facts.script.program),
            run_id=self.run_id,
            checkpoints=self.checkpoint_spec,
            margin_seconds=template.margin_seconds,
            deterministic=job.deterministic,
            has_split_input=has_split_input(job),
            options=job.options,
            json_files=facts.source.json_files,
            algorithm=job.algorithm,
            instance_type=instance_choice.name,
            instance_spec=instance_choice.catalog_entry,
            image=image,
            framework_version=job.framework_version,
            channels=job.inputs,
            request_channels=request_channels(job, self.context.job_kind),
            hyperparameters=hyperparameters,
            is_spot=job.compute.spot,
            target=facts.target,
        )

    def _added_arguments(self, job: Job, processes_per_host: int | str) -> AddedArguments:
        """Return the arguments that the script's own launcher would pass, and report them."""
        added = added_arguments(
            job,
            self.facts.script.program,
            job.compute.hosts_of_largest_group,
            processes_per_host,
            self.context.strategy.launcher or job.launcher,
            may_have_accelerators(job, self.facts),
        )
        if not self.context.strategy.rendezvous:
            return AddedArguments(flags=added.flags)
        if added.leading or added.trailing:
            self.diagnostics.add_reason(
                "script.added-arguments",
                f"The script gets, as its own launcher would pass: {added.text()}.",
            )
        return added

    def _check_strategy(self, context: LaunchContext, compute: Compute) -> None:
        """Add the strategy's problems with each instance type that the job may run on. A strategy is how the
        program is started, such as ``ddp``.

        ``context``: all decisions, for one of the types of ``compute``."""
        contexts_of_other_types = [
            context._replace(instance_type=name, instance_spec=find_instance_type(name))
            for name in compute.instance_types
            if name != context.instance_type
        ]
        for context_of_type in (context, *contexts_of_other_types):
            for problem in self.context.strategy.find_all_problems(context_of_type):
                # A problem is reported at the job's field; the type's is another one if there are several.
                is_about_type = problem.path == "compute.instance_type"
                self.diagnostics.add_problem(
                    compute.field_of_types if is_about_type else problem.path,
                    problem.message,
                    problem.change,
                )

    def _compile_launch_spec(self, context: LaunchContext, names_image: bool) -> LaunchSpec | None:
        """Return the launch specification (job.json), which says what the runtime starts on each host, and
        add the strategy's advice; None if the image contains its own program. ``context``: all decisions
        about the segment. ``names_image``: the job names the image, which may not be AWS's."""
        launch_spec = self.context.strategy.launch_spec(context) if context.entry_point else None
        is_hang_limit_stated = context.hang_seconds is not None
        if launch_spec is not None and launch_spec.hang_seconds is not None and not is_hang_limit_stated:
            self.diagnostics.add_reason(
                "limit.hang",
                "The job states no limits.hang; a host whose ranks print nothing and use no CPU for "
                f"{format_duration(int(launch_spec.hang_seconds))} counts as hung, and fails with the stacks "
                "of its ranks.",
            )
        for rule, sentence in self.context.strategy.find_reasons(context):
            self.diagnostics.add_reason(rule, sentence)
        # Advice of the strategy about this job.
        for sentence in self.context.strategy.find_all_warnings(context):
            self.diagnostics.add_warning(sentence + ".")
        if launch_spec is None:
            return None
        launch_spec = launch_spec._replace(
            job_hash=self.job_hash, secrets=tuple(sorted(self.context.job.secrets.items()))
        )
        if launch_spec.source is not None:
            # Hosts check the source that they unpack.
            launch_spec = launch_spec._replace(source_sha256=self.facts.source.archive_sha256)
        # Services are programs beside the ranks; only smlaunch's own launcher starts them.
        launcher = launch_spec.ranks.launcher
        if launch_spec.services and launcher != RUNTIME:
            message = f"{self.context.strategy.name} starts more than ranks, which {launcher} does not"
            self.diagnostics.add_problem("launcher", f"{message}; leave it out")
        # Variables for all ranks: EFA's, and one for matplotlib without a display.
        return _add_rank_variables(launch_spec, context, names_image, self.diagnostics)

    def _launch_channels(self, spec: LaunchSpec) -> list[InputChannel]:
        """Return the channels of runtime and source, and collect their uploads. Equal launch specifications
        are one job.json."""
        channels, uploads = plan_launch_channels(spec, self.facts, self.layout)
        self.uploads += [upload for upload in uploads if upload not in self.uploads]
        return channels


def _add_rank_variables(
    spec: LaunchSpec, context: LaunchContext, has_own_image: bool, diagnostics: Diagnostics
) -> LaunchSpec:
    """Return the launch specification with the variables that all ranks get for EFA and matplotlib, and add
    the reasons for them. A variable that the job or the strategy sets stays. ``has_own_image``: the job names
    its image."""
    variables = {
        **_display_variables(context, diagnostics),
        **_efa_variables(context, has_own_image, diagnostics),
    }
    existing_names = context.environment_names | {name for name, _ in spec.ranks.env}
    added_variables = [(name, value) for name, value in variables.items() if name not in existing_names]
    if not added_variables:
        return spec
    return spec._replace(ranks=spec.ranks._replace(env=(*spec.ranks.env, *added_variables)))


def _display_variables(context: LaunchContext, diagnostics: Diagnostics) -> dict[str, str]:
    """Return the variable by which matplotlib draws to files, if the program imports it: hosts have no
    display, without which some of its backends fail."""
    imports_matplotlib = find_imported_library(context.imports, ("matplotlib",)) is not None
    if not imports_matplotlib or MPLBACKEND in context.environment_names:
        return {}
    diagnostics.add_reason(
        "display.matplotlib",
        f"{context.entry_point} imports matplotlib, and hosts have no display: ranks get {MPLBACKEND}=Agg, "
        "which draws to files (savefig).",
    )
    return {MPLBACKEND: "Agg"}


def _efa_variables(context: LaunchContext, has_own_image: bool, diagnostics: Diagnostics) -> dict[str, str]:
    """Variables for EFA adapters."""
    if context.target != "aws":
        return {}
    settings = efa_settings(context.instance_type, context.image, context.host_count, has_own_image)
    if settings is None:
        return {}
    diagnostics.add_reason(settings.rule, settings.explanation)
    return dict(settings.variables)


def _seconds_or_none(duration: str | None) -> int | None:
    return None if duration is None else parse_duration(duration)


def _segment_variables(template: SegmentTemplate) -> dict[str, str]:
    values = {STOP_AFTER_VARIABLE: template.stop_after_seconds, UNTIL_STEP_VARIABLE: template.until_step}
    return {name: str(value) for name, value in values.items() if value is not None}


def _choose_max_wait_seconds(
    job: Job, max_runtime_seconds: int, strategy_limit_seconds: int | None, diagnostics: Diagnostics
) -> int | None:
    """Return the MaxWaitTimeInSeconds of a spot job, in which it must wait for capacity and train; None
    without spot. By default twice the training time. ``strategy_limit_seconds``: longest such time that the
    strategy allows, as for an algorithm without checkpoints; None without a limit."""
    if not job.compute.spot:
        return None
    if job.limits.max_wait is not None:
        stated_seconds = parse_duration(job.limits.max_wait)
        if stated_seconds < max_runtime_seconds:
            diagnostics.add_problem(
                "limits.max_wait",
                f"{job.limits.max_wait} is shorter than the training time of "
                f"{format_duration(max_runtime_seconds)} that it includes; make it longer",
            )
        return stated_seconds
    default_seconds = 2 * max_runtime_seconds
    if strategy_limit_seconds is not None and max_runtime_seconds <= strategy_limit_seconds < default_seconds:
        diagnostics.add_reason(
            "spot.wait",
            f"The job states no limits.max_wait: {format_duration(strategy_limit_seconds)}, the limit "
            "without checkpoints, for training and waiting for capacity together.",
        )
        return strategy_limit_seconds
    diagnostics.add_reason(
        "spot.wait",
        f"The job states no limits.max_wait: {format_duration(default_seconds)}, twice the training time, "
        "for training and waiting for capacity together.",
    )
    return default_seconds


def warn_of_differing_segments(
    compiled_segments: Sequence[CompiledSegment], diagnostics: Diagnostics
) -> None:
    """Warn of each kind of segment that computes something else than the one before."""
    for previous, following in pairwise(compiled_segments):
        _warn_of_difference(previous, following, diagnostics)


def _warn_of_difference(
    previous: CompiledSegment, following: CompiledSegment, diagnostics: Diagnostics
) -> None:
    """Add a warning if two successive kinds of segments differ in hosts, ranks, instance type or
    hyperparameters: the run is then not equivalent to one long job."""
    previous_job, following_job = previous.template.job, following.template.job
    compared_values: list[tuple[str, Any, Any]] = [
        ("hosts", previous_job.compute.hosts, following_job.compute.hosts),
        ("ranks per host", previous.processes_per_host, following.processes_per_host),
        ("instance type", previous.instance_type, following.instance_type),
    ]
    hyperparameter_names = {**previous_job.hyperparameters, **following_job.hyperparameters}
    compared_values += [
        (name, previous_job.hyperparameters.get(name), following_job.hyperparameters.get(name))
        for name in hyperparameter_names
    ]
    differences = [
        f"{name} {mask_named_value(name, old_value)} -> {mask_named_value(name, new_value)}"
        for name, old_value, new_value in compared_values
        if old_value != new_value
    ]
    if not differences:
        return
    # The kinds change at a training step, if the job states one, or else at a segment's number.
    until_step = previous.template.until_step
    subject = (
        f"Segment {following.template.first_segment}"
        if until_step is None
        else f"What follows on step {until_step}"
    )
    diagnostics.add_warning(
        f"{subject} differs ({', '.join(differences)}): from there on the run is not bit-identical with an "
        "unchanged one."
    )
