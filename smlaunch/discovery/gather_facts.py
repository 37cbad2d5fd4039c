"""Gathers the facts for a plan, once: the caller and its role, the inputs' data, the script's needs.

Only reads. Nothing here writes, creates or decides. A missing item is recorded with the reason and the next
step, so that the plan can report all problems at once. Raises ``CallError`` only where the caller cannot be
identified.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Collection
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from smlaunch.aws.interfaces import CallError
from smlaunch.discovery.caller_identity import Caller, UnknownCaller, find_execution_role_of_caller
from smlaunch.discovery.checkpoint_facts import gather_checkpoint_facts
from smlaunch.discovery.discovery_target import DiscoveryTarget
from smlaunch.discovery.input_facts import gather_input_facts
from smlaunch.discovery.outside_files import find_outside_file
from smlaunch.discovery.program_files import (
    find_program_file,
    find_unknown_command,
    missing_module_reason,
)
from smlaunch.discovery.python_packages import find_missing_packages
from smlaunch.discovery.region_catalog import read_region_catalog
from smlaunch.discovery.requirements_file import find_requirements_mistake
from smlaunch.discovery.script_analysis import (
    modules_mention_checkpoints,
    modules_mention_progress,
    read_script_facts,
    transitive_features,
)
from smlaunch.discovery.script_program import read_program
from smlaunch.discovery.sdk_images import resolve_image
from smlaunch.discovery.shell_script import read_shell_script
from smlaunch.discovery.source_modules import read_source_program
from smlaunch.facts.discovered_facts import (
    DiscoveredFacts,
    EndpointFacts,
    InputFacts,
    ScriptFacts,
    SourceFacts,
)
from smlaunch.facts.fact_needs import FactNeeds
from smlaunch.facts.requirements_choice import choose_requirements
from smlaunch.facts.script_capability import needs_module_scan
from smlaunch.facts.team_settings import NO_TEAM, TeamFacts
from smlaunch.job.model import Job


def gather_facts(
    job: Job,
    target: DiscoveryTarget,
    source: SourceFacts,
    needs: FactNeeds,
    pending_channels: Collection[str] = (),
    analyzed_file: Path | None = None,
    account_problem: str | None = None,
    team: TeamFacts = NO_TEAM,
) -> DiscoveredFacts:
    """Gather everything that the planner has to know about a job and its surroundings, once and without a
    change: the caller and its role, the source, the script's needs, the inputs' data, quotas and checkpoints.

    ``source`` are the facts of the packed source folder. ``needs``: what this plan needs beside what every
    plan does. ``pending_channels`` names input channels whose data does not exist yet, such as the output of
    an earlier step of a pipeline. ``analyzed_file`` is read instead of the program's own file, where that
    only calls it. ``account_problem``: why the caller cannot be identified; then no service is asked
    anything. ``team``: the defaults that the job has. Raises CallError only where the caller cannot be
    identified; any other missing item is recorded with the reason.
    """
    caller = Caller(target) if account_problem is None else UnknownCaller(job.role, target)
    # Either the role's ARN, or the problem: why there is none.
    role, role_problem = (
        (caller.role, None)
        if isinstance(caller, UnknownCaller)
        else find_execution_role_of_caller(job.role, target, caller)
    )
    source_root = Path(source.root)
    requirements_file = choose_requirements(job, source).installed_file
    script = gather_script_facts(job, source, requirements_file, target.facts, needs, analyzed_file)
    if job.entry is not None:
        # Configuration files that the job's arguments name: checks need their content.
        source = dataclasses.replace(source, json_files=_read_named_json_files(job, source_root))
        if requirements_file is not None:
            mistake = find_requirements_mistake(source_root, requirements_file, source.files)
            source = dataclasses.replace(source, requirements_mistake=mistake)
    checkpoints = None
    if needs.checkpoints and account_problem is None:
        checkpoints = gather_checkpoint_facts(job, target.storage)
    account = caller.account  # before the inputs, as an unknown caller is to be reported at once
    inputs: dict[str, InputFacts] = {}
    for name, channel in job.inputs.items():
        if name in pending_channels:
            inputs[name] = InputFacts(channel.uri, kind="s3", is_pending=True)
        elif account_problem is not None and channel.is_in_s3:
            inputs[name] = InputFacts(channel.uri, kind="s3")  # not known without an account
        else:
            inputs[name] = gather_input_facts(
                channel, target, job.include_secrets, needs_size=name in needs.sized_inputs
            )
    return DiscoveredFacts(
        region=target.region_name,
        account=account,
        partition=caller.partition,
        bucket=target.bucket or team.staging_value("bucket") or f"sagemaker-{target.region_name}-{account}",
        bucket_prefix="" if target.bucket else team.staging_value("bucket_prefix") or "",
        team=team,
        role=role,
        role_problem=role_problem,
        account_problem=account_problem,
        source=source,
        script=script,
        folder=str(Path.cwd()),
        target=target.kind,
        inputs=inputs,
        endpoint=target.facts or EndpointFacts(),  # of the local endpoint; empty in a region
        # The account's quotas, or why they are not known.
        **({} if account_problem is not None else _gather_quota_fields(needs, target)),
        region_catalog=read_region_catalog(target.region_name),
        today=datetime.now(timezone.utc).date(),
        checkpoints=checkpoints,
        # By the official sagemaker package, where smlaunch's own catalog of images is not sufficient.
        resolved_image=resolve_image(job, target.region_name, target.kind == "aws", script.imports),
    )


def gather_script_facts(
    job: Job,
    source: SourceFacts,
    requirements_file: str | None,
    endpoint_facts: EndpointFacts | None,
    needs: FactNeeds,
    analyzed_file: Path | None = None,
) -> ScriptFacts:
    """Return what the job's program shows without running it. ``analyzed_file`` is read instead of the
    program's own file. ``requirements_file``: what pip installs on the hosts. ``endpoint_facts``: of the
    local endpoint that the job runs on; None in a region."""
    if job.entry is None:
        return ScriptFacts()
    program_file = analyzed_file or find_program_file(job.entry, Path(source.root))
    script = ScriptFacts()
    if program_file is not None:
        script = _read_program_file(job, program_file, source, requirements_file, endpoint_facts, needs)
    if analyzed_file is not None:  # the file of a function is imported, and does not run as a script
        script = script._replace(program=dataclasses.replace(script.program, relative_import=None))
    if job.entry.command and "PATH" not in job.environment:
        # Programs of packages lie beside the hosts' Python, which is this one unless the job installs some.
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        runs_here = endpoint_facts is not None and endpoint_facts.same_python
        known_path = path if runs_here and requirements_file is None else None
        unknown_command = find_unknown_command(job.entry.command, source.files or (), known_path)
        script = script._replace(unknown_command=unknown_command)
    return script


def _read_program_file(
    job: Job,
    program_file: Path,
    source: SourceFacts,
    requirements_file: str | None,
    endpoint_facts: EndpointFacts | None,
    needs: FactNeeds,
) -> ScriptFacts:
    """Return what the program's file shows without running it. Its features are signs, such as
    ``process-group``, of how it distributes its work.

    The modules of the source that the script imports are read only where the planner needs that, because it
    takes time. ``requirements_file``: what pip installs on the hosts. ``endpoint_facts``: of the local
    endpoint that the job runs on; None in a region.
    """
    source_root = Path(source.root)
    command = () if job.entry is None else job.entry.command
    starts_itself = bool(command) and source_root / command[0] == program_file
    script = read_script_facts(
        program_file, bool(command) and not starts_itself, source_root, starts_itself=starts_itself
    )
    if not script.exists and job.entry is not None and job.entry.module is not None:
        problem = missing_module_reason(job.entry.module, source_root)
        return script._replace(problem=problem)
    if program_file.suffix == ".sh" and script.problem is None:
        return script._replace(program=read_shell_script(program_file, source_root))
    program = read_source_program(program_file, source_root)
    # The script itself may not show how it distributes its work: then its modules may.
    if script.features is not None and needs_module_scan(script):
        script = script._replace(features=transitive_features(program))
    script = script._replace(
        program=read_program(program),
        outside_file=find_outside_file(program),
    )
    # An endpoint may run jobs by this Python, which then needs the script's packages.
    runs_here = endpoint_facts is not None and endpoint_facts.same_python
    if runs_here and requirements_file is None and "PYTHONPATH" not in job.environment:
        missing_packages = find_missing_packages(program, source.files)
        script = script._replace(missing_packages=missing_packages)
    if needs.module_sources:
        script = script._replace(
            module_imports=program.library_imports.names,
            names_checkpoint_dir=script.names_checkpoint_dir or modules_mention_checkpoints(program),
            names_progress_line=script.names_progress_line or modules_mention_progress(program),
        )
    return script


_MAX_JSON_FILE_BYTES = 1 << 20


def _read_named_json_files(job: Job, root: Path) -> dict[str, str]:
    """Return the text of each small JSON file of the source folder (``root``) that the job's options,
    arguments or hyperparameters name, by its path relative to it. A check of the job may need the content,
    such as that of DeepSpeed's configuration."""
    arguments = (*job.options.values(), *job.args, *job.hyperparameters.values())
    text_by_path: dict[str, str] = {}
    for argument in arguments:
        # The path itself, or the last part of --config=path.
        relative_path = argument.rpartition("=")[2] if isinstance(argument, str) else ""
        if not relative_path.endswith(".json") or relative_path in text_by_path:
            continue
        path = root / relative_path
        with contextlib.suppress(OSError, ValueError):  # missing, unreadable, or not text
            is_inside_root = path.resolve().is_relative_to(root.resolve())
            if is_inside_root and path.is_file() and path.stat().st_size <= _MAX_JSON_FILE_BYTES:
                text_by_path[relative_path] = path.read_text("utf-8")
    return text_by_path


# ---- what a run of several jobs needs --------------------------------------------------------------------


def _gather_quota_fields(needs: FactNeeds, target: DiscoveryTarget) -> dict[str, Any]:
    """Return the fields of ``DiscoveredFacts`` about the account's quotas that the plan needs, read from
    Service Quotas in one pass: the quotas, or why they cannot be read. Empty on a local endpoint and for a
    job without any.

    There are two kinds: how many instances may run at once, and, for a long job, how long a job may run.
    """
    instance_quotas, runtime_quota = needs.instance_quotas, needs.runtime_quota  # names, in Service Quotas
    if target.kind != "aws" or not (runtime_quota or instance_quotas):
        return {}
    requested_quotas = (*instance_quotas, runtime_quota) if runtime_quota else instance_quotas
    try:
        value_by_quota = target.quotas.quota_values(requested_quotas)
    except CallError as error:
        problem = f"{error.operation}: {error.code}"
        return {
            "quotas_problem": problem if instance_quotas else None,
            "max_runtime_quota_problem": problem if runtime_quota else None,
        }
    quota_fields: dict[str, Any] = {"quotas": {name: value_by_quota.get(name) for name in instance_quotas}}
    if runtime_quota in value_by_quota:
        quota_fields["max_runtime_quota"] = int(value_by_quota[runtime_quota])
    elif runtime_quota:
        quota_fields["max_runtime_quota_problem"] = "Service Quotas does not list it"
    return quota_fields
