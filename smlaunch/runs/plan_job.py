"""plan(): what a run of a job would be. Changes nothing anywhere."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from smlaunch.api.job_kinds import PROCESSING, TRAINING
from smlaunch.discovery.gather_facts import gather_facts
from smlaunch.discovery.named_scripts import names_script
from smlaunch.discovery.program_files import find_program_file, source_folder
from smlaunch.errors import JobError, Problem, SmlaunchError, wrong_type_error
from smlaunch.facts.discovered_facts import NO_SOURCE, DiscoveredFacts, SourceFacts
from smlaunch.facts.team_settings import NO_TEAM, TeamFacts
from smlaunch.job.bucket_owners import bucket_owners_in_job, owner_by_bucket
from smlaunch.job.model import Channel, Job
from smlaunch.job.partial import parse_without_invalid_fields
from smlaunch.planner.launch_choices import choose_strategy
from smlaunch.planner.plan_context import Diagnostics, JobContext, fact_needs, stated_job_kind
from smlaunch.planner.planner import check_partial_job, make_plan
from smlaunch.render.plan import Plan
from smlaunch.runs.account_problem import (
    AccountProblem,
    find_account_problem,
    require_account,
    require_plan_without_account,
)
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.launch_target import Target, require_target
from smlaunch.runs.runtime_archive import runtime_sha256
from smlaunch.runs.source_archive import SourceArchive, pack_source
from smlaunch.runs.team_defaults import name_defaults, read_settings, with_defaults
from smlaunch.secrets.masking import fields_with_secrets
from smlaunch.text.home_folder import expand_home

DEFAULT_REQUIREMENTS = "requirements.txt"
_MAX_STEM_LENGTH = 24
_UNAMBIGUOUS_CHARACTERS = "abcdefghijkmnpqrstuvwxyz23456789"  # without what is easily misread


class PreparedRun(NamedTuple):
    """A plan together with its source archive and target, so that launching does not read the source
    again."""

    plan: Plan
    source: SourceArchive | None
    """None for a job that has no entry script."""
    target: Target
    has_generated_name: bool = False
    """The run's name was generated for this plan, so that no existing job can have it."""

    def require_account(self) -> None:
        """Raise AccountError if the plan was made without an account."""
        require_account(self.plan)


@dataclass(frozen=True)
class AddedProgram:
    """A program that is in no folder, such as a function's call. The job's entry is one of its files."""

    name: str
    """What the run's generated name begins with."""
    files: Mapping[str, bytes] = field(repr=False)
    """Content by path, to be added to the source."""
    analyzed_file: Path
    """What the plan reads instead of the entry."""
    sha256: str
    """Of what the program does, whatever else lies in the source."""
    script: str | None = None
    """Path in the source of a file that is part of the program already, as far as it matters: it counts as a
    file beside the program only if a module names it."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the program's own."""
    warnings: tuple[str, ...] = ()
    """Sentences for the plan."""


def plan(job: Job, target: Target | None = None, name: str | None = None) -> Plan:
    """Plan a run of this job. Changes nothing anywhere.

    ``name`` is the run's id; the default is the job's own name, else a generated one.

    Without any AWS credentials the plan says what the account was not asked; it cannot be launched.

    Raises JobError with every problem found, and AccountError or ServiceError when the account or its data
    cannot be read.
    """
    return prepare(job, target, name).plan


def prepare(
    job: Job,
    target: Target | None = None,
    name: str | None = None,
    pending_channels: Collection[str] = (),
    program: AddedProgram | None = None,
) -> PreparedRun:
    """Plan a run as ``plan`` does, and keep the source archive for ``launch``.

    ``pending_channels`` names input channels whose data does not exist yet. ``program``: the job's program,
    if it is in no folder.
    """
    if not isinstance(job, Job):
        raise wrong_type_error(job, "a Job", "Job(entry='train.py')")
    require_target(target)
    if name is not None and not isinstance(name, str):
        raise wrong_type_error(name, "a run's name", "name='digits'")
    job.check_program()
    program_name = job.program if program is None else program.name
    target = target or Target.region()
    target.bucket_owners.add(owner_by_bucket(bucket_owners_in_job(job)))
    source_facts, source_archive = pack_job_source(job, program)
    account_problem = find_account_problem(target)
    given_name = name or job.name
    analyzed_file = None if program is None else program.analyzed_file
    job, discovered_facts = _gather_with_defaults(
        job, target, source_facts, account_problem, pending_channels, analyzed_file
    )
    try:
        if job.entry is not None:
            discovered_facts = replace(discovered_facts, runtime_sha256=runtime_sha256())
        job_plan = Plan.of(make_plan(job, discovered_facts, given_name or generate_run_id(program_name)))
    except JobError as error:
        raise name_defaults(job.as_written(error), discovered_facts.team) from error.__cause__
    # After the mistakes of the job, which need no account. Without any credentials the plan itself is of use.
    if account_problem is not None:
        require_plan_without_account(job, account_problem)
    return PreparedRun(job_plan, source_archive, target, has_generated_name=given_name is None)


def prepare_export(
    job: Job,
    target: Target,
    name: str | None = None,
    *,
    step: str | None = None,
    pending_channels: Collection[str] = (),
) -> PreparedRun:
    """Plan a run for an orchestrator, which names its runs itself.

    Without a name, the files that all executions share are staged under a name made of the job's hash, so
    that the same job gives the same export. ``step`` is the job's name among several; the default is the name
    of its program. Raises JobError also for a secret in the environment, which the export would hold.
    """
    _refuse_secrets_in_environment(job, NO_TEAM)
    given_name = name or job.name
    stem = step or run_name_stem(job.program)
    prepared = prepare(job, target, given_name or stem, pending_channels)
    _refuse_secrets_in_environment(prepared.plan.job, prepared.plan.facts.team)
    if given_name is not None:
        return prepared
    plan = prepared.plan
    staging_name = f"{stem}-{plan.job_hash[:8]}"
    return prepared._replace(plan=Plan.of(make_plan(plan.job, plan.facts, staging_name)))


def _refuse_secrets_in_environment(job: Job, team: TeamFacts) -> None:
    fields = [name for name in fields_with_secrets(job.to_mapping()) if name.startswith("environment.")]
    if fields:
        message = (
            "it looks like a secret, and the exported file would hold it as plain text; store it in AWS "
            "Secrets Manager or Parameter Store, and name its place under secrets"
        )
        raise name_defaults(JobError([Problem(field, message) for field in fields]), team)


def add_remaining_problems(error: JobError, target: Target) -> JobError:
    """Return the error of an invalid job file, whose other fields are checked too, with the problems that
    these have added, so that the user sees all mistakes at once.

    Returns the error unchanged when it is not about a job file, when too little of the file is valid, or when
    the facts for the other checks (about the account and the data, for example) cannot be gathered.
    """
    if error.job_mapping is None:
        return error
    partial_job = parse_without_invalid_fields(error.job_mapping, error.problems)
    if partial_job is None:
        return error
    try:
        target.bucket_owners.add(owner_by_bucket(bucket_owners_in_job(partial_job.job)))
        source_facts, _ = pack_job_source(partial_job.job)
        # A CallError, of the service, becomes one of the types that are caught below.
        with translate_call_errors(target):
            account_problem = find_account_problem(target)
        job, discovered_facts = _gather_with_defaults(partial_job.job, target, source_facts, account_problem)
    except SmlaunchError:
        return error
    partial_problems = check_partial_job(job, discovered_facts, partial_job.removed_fields)
    return name_defaults(
        job.as_written(JobError([*error.problems, *partial_problems])), discovered_facts.team
    )


def _gather_with_defaults(
    job: Job,
    target: Target,
    source: SourceFacts,
    account_problem: AccountProblem | None,
    pending_channels: Collection[str] = (),
    analyzed_file: Path | None = None,
) -> tuple[Job, DiscoveredFacts]:
    """Return the job with the team's defaults, and the facts for its plan. The parameters are those of
    ``gather_facts``. Raises JobError for a wrong configuration file, and the target's errors."""
    settings = read_settings(target, has_account=account_problem is None)
    kind = stated_job_kind(job.strategy)
    while True:
        planned_job, team = with_defaults(job, settings, target, is_processing=kind is PROCESSING)
        with translate_call_errors(target):
            facts = gather_facts(
                planned_job,
                target,
                source,
                fact_needs(planned_job),
                pending_channels,
                analyzed_file,
                account_problem=None if account_problem is None else str(account_problem),
                team=team,
            )
        # The script shows the kind, where the job does not state its strategy. Each has its own defaults.
        if job.strategy is not None or kind is not TRAINING or not settings.files:
            return planned_job, facts
        kind = choose_strategy(JobContext(planned_job, facts), Diagnostics()).job_kind
        if kind is TRAINING:
            return planned_job, facts


def generate_run_id(program: str) -> str:
    """Return a run id such as ``train-ddp-1121-1604-k7xq`` for ``train_ddp.py``.

    The id is readable, sorts by time within a year, and ends in random characters.
    """
    tail = "".join(secrets.choice(_UNAMBIGUOUS_CHARACTERS) for _ in range(4))
    return f"{run_name_stem(program)}-{time.strftime('%m%d-%H%M')}-{tail}"


def run_name_stem(program: str) -> str:
    """Return the beginning of a run's name: ``train-ddp`` for ``train_ddp.py``."""
    stem = re.sub(r"[^a-z0-9]+", "-", Path(program).stem.lower()).strip("-")
    return stem[:_MAX_STEM_LENGTH].rstrip("-") or "run"


def pack_job_source(
    job: Job, program: AddedProgram | None = None, folder: Path = Path()
) -> tuple[SourceFacts, SourceArchive | None]:
    """Pack the source folder, which holds the job's program, and return facts about it, for the plan, and the
    archive. ``folder``: where relative paths of the job begin.

    The archive is None for a job without an entry and for a source that cannot be packed; the facts then name
    the problem.
    """
    if job.entry is None:
        return NO_SOURCE, None
    source_root = folder / source_folder(job)
    program_file = find_program_file(job.entry, source_root)
    if program_file is not None:
        program_file = folder / program_file
    # relpath, not resolve(): a script that is a link belongs to the folder that the user names.
    entry_in_source = (
        Path(os.path.relpath(program_file, source_root)).as_posix() if program_file else job.entry.command[0]
    )

    def facts_without_archive(problem: str | None) -> tuple[SourceFacts, None]:
        facts = SourceFacts(
            root=str(source_root),
            entry=entry_in_source,
            archive_sha256="",
            file_count=0,
            bytes=0,
            problem=problem,
        )
        return facts, None

    if entry_in_source.startswith("../"):
        return facts_without_archive(f"{program_file} is outside of the source folder {source_root}")
    # os.path.isfile, because Path.is_file raises for a folder that may not be opened.
    has_program_file = program_file is not None and os.path.isfile(program_file)  # noqa: PTH113
    if program_file is not None and not has_program_file and not job.source:
        return facts_without_archive(None)  # the script is missing, which is reported elsewhere
    input_paths = _find_inputs_in_source(job.inputs, folder, source_root, entry_in_source)
    try:
        added_files = {} if program is None else program.files
        command = (entry_in_source, *job.entry.command, *job.args)
        archive = pack_source(source_root, job.include_secrets, input_paths.values(), added_files, command)
    except JobError as error:
        return facts_without_archive("; ".join(problem.message for problem in error.problems))
    if has_program_file and entry_in_source not in archive.files:
        # An ignore file, for example, leaves the script out.
        return facts_without_archive(archive.explain_missing_file(entry_in_source))
    source_facts = SourceFacts(
        root=str(source_root),
        entry=entry_in_source,
        archive_sha256=archive.sha256,
        file_count=len(archive.files),
        bytes=archive.size_bytes,
        has_requirements=job.requirements in archive.files,
        input_paths=input_paths,
        default_requirements=_find_default_requirements(entry_in_source, archive),
        warnings=(*archive.warnings, *(() if program is None else program.warnings)),
        variables={} if program is None else program.variables,
        identity_sha256=None if program is None else _identify_program(program, archive),
        excluded_files=archive.excluded_files,
        ignored_files=archive.ignored_files,
        files=frozenset(archive.files),
        digest_by_file=archive.digest_by_file,
    )
    return source_facts, archive


def _identify_program(program: AddedProgram, archive: SourceArchive) -> str:
    """Return the hash of the program and of the modules beside it."""
    digest = hashlib.sha256(program.sha256.encode())
    for path, file_digest in files_beside_program(program, archive).items():
        digest.update(f"\0{path}\0{file_digest}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def files_beside_program(program: AddedProgram, archive: SourceArchive) -> dict[str, str]:
    """Return the hashes of the modules beside the program, and of the requirements, by path. Other files of
    the folder, such as a log that the caller writes, make no other run of it."""
    digest_by_file = {
        path: digest
        for path, digest in archive.digest_by_file.items()
        if (path.endswith(".py") or path == DEFAULT_REQUIREMENTS) and path not in program.files
    }
    script = program.script
    if script in digest_by_file:
        modules = (archive.root / path for path in digest_by_file if path.endswith(".py"))
        if not any(names_script(path.read_bytes(), script) for path in modules):
            del digest_by_file[script]
    return digest_by_file


def _find_inputs_in_source(
    inputs: Mapping[str, Channel], folder: Path, source_root: Path, entry_in_source: str
) -> dict[str, str]:
    """Return the path, relative to the source folder, of each local input that lies in it, by channel name.
    An input that is the whole source, or holds the program, is part of the source nevertheless."""
    path_by_channel: dict[str, str] = {}
    for name, channel in inputs.items():
        if not channel.is_local:
            continue
        path = PurePosixPath(os.path.relpath(folder / expand_home(channel.uri), source_root))
        holds_program = PurePosixPath(entry_in_source).is_relative_to(path)
        if path.parts[:1] != ("..",) and not holds_program:
            path_by_channel[name] = str(path)
    return path_by_channel


def _find_default_requirements(entry_in_source: str, archive: SourceArchive) -> str | None:
    """Return the path of the requirements.txt beside the program's file, or at the top of the source."""
    beside_program = (PurePosixPath(entry_in_source).parent / DEFAULT_REQUIREMENTS).as_posix()
    return next((name for name in (beside_program, DEFAULT_REQUIREMENTS) if name in archive.files), None)
