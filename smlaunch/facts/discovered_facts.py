"""Facts that a plan is made from: gathered by discovery, which changes nothing, and read by pure code.

A fact that could not be read has the reason in ``problem``, a sentence with the next step; the plan
reports all problems together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import PurePosixPath
from typing import Literal, NamedTuple

from smlaunch.catalog.prices import RegionPrices
from smlaunch.catalog.region_catalog import RegionCatalog
from smlaunch.facts.launcher_lines import LauncherLine
from smlaunch.facts.script_program import NO_PROGRAM, MissingPackage, ProgramFacts, UnknownCommand
from smlaunch.facts.source_place import OutsideFile
from smlaunch.facts.team_settings import NO_TEAM, TeamFacts

Sha256 = bytes
"""A SHA-256, of 32 bytes."""


class StoredFile(NamedTuple):
    """A file of an input channel."""

    name: str
    """Relative to the channel's prefix or folder; of an input that is a single local file, the file's
    name."""

    bytes: int
    sha256: Sha256 | None = None
    """Of a local file's content; None for an object in S3."""


@dataclass(frozen=True)
class InputFacts:
    """Data of one input channel."""

    uri: str
    """The address as the job states it."""

    kind: Literal["s3", "local", "file system"]
    exists: bool = True
    objects: int | None = None
    """Number of files or S3 objects; None if not counted."""

    bytes: int | None = None
    """Their total size; None if not counted."""

    is_truncated: bool = False
    """Counting stopped early: there are at least this many."""

    sha256: str | None = None
    """Local data only: hash over the sorted relative paths and contents."""

    is_directory: bool = True
    """A local directory, not a single file."""

    problem: str | None = None
    """Why the data cannot be used."""

    files: tuple[StoredFile, ...] | None = None
    """All files sorted by name: of local data, and of S3 data with ``split: bytes`` unless there are too
    many."""

    shard_names: tuple[str, ...] | None = None
    """Shards made by ``smlaunch data pack``, if any."""

    is_pending: bool = False
    """An earlier step of a pipeline will write the data before the job begins."""

    warnings: tuple[str, ...] = ()
    """Sentences for the user, such as about files that are not uploaded."""

    excluded_files: Mapping[str, str] = field(default_factory=dict)
    """Reason, by file name, why a file is not uploaded."""


def ignored_reason(path: str) -> str:
    """Return why a file or folder that an ignore file names is not uploaded, a clause, with what sends it."""
    return f"is left out of the source by an ignore file; add a line '!{path}' to .smlaunchignore"


@dataclass(frozen=True)
class SourceFacts:
    """The source directory, which is uploaded as a content-addressed archive."""

    root: str
    """The directory."""

    entry: str
    """The path of the program's file inside it, with forward slashes: the script, the module's file, or the
    script that a command names. A command that names none is called by its program."""

    archive_sha256: str
    file_count: int
    bytes: int
    """Total size, uncompressed."""

    has_requirements: bool = False
    """Whether the job's ``requirements`` file is in the source."""

    default_requirements: str | None = None
    """The requirements.txt beside the program, or at the top of the source; None without one."""

    requirements_mistake: str | None = None
    """What pip cannot read in the file that it will install, a sentence."""

    input_paths: Mapping[str, str] = field(default_factory=dict)
    """The path inside it of each input that lies in the directory, by channel name. The archive has none of
    them."""

    variables: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that a program of smlaunch's own needs; none for a user's script."""

    identity_sha256: str | None = None
    """What identifies the source of such a program in the job's hash instead of ``archive_sha256``."""

    problem: str | None = None
    json_files: Mapping[str, str] = field(default_factory=dict)
    """Content, by name, of the JSON files that the job's options, args or hyperparameters name."""

    warnings: tuple[str, ...] = ()
    """Sentences for the user, such as about files that are not uploaded."""

    excluded_files: Mapping[str, str] = field(default_factory=dict)
    """Reason, by file name, why a file is not uploaded; without those that ignore files name."""

    ignored_files: tuple[str, ...] = field(default=(), repr=False)
    """Files and folders that ignore files name, up to a number."""

    files: frozenset[str] | None = field(default=None, repr=False)
    """What is uploaded; None if not known."""

    digest_by_file: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Hash of each uploaded file, so that a changed one can be named."""

    def why_not_sent(self, path: str) -> str | None:
        """Return why a path of the source is not uploaded, a clause; None if that is not known."""
        for path_or_folder in (path, *map(str, PurePosixPath(path).parents)):
            if path_or_folder in self.excluded_files:
                return self.excluded_files[path_or_folder]
            channels = [name for name, input_path in self.input_paths.items() if input_path == path_or_folder]
            if channels:
                return (
                    f"is part of the input {channels[0]!r}, which the hosts have in "
                    f"/opt/ml/input/data/{channels[0]}"
                )
            if path_or_folder in self.ignored_files:
                return ignored_reason(path_or_folder)
        return None


NO_SOURCE = SourceFacts("", "", "", 0, 0)
"""For a job whose image contains the program."""


class FeatureLocation(NamedTuple):
    """Where a feature of the script occurs first."""

    line: int
    file: str = ""
    """File of the source; empty for the script itself."""


class ScriptFacts(NamedTuple):
    """What static analysis of the script shows."""

    exists: bool = True
    imports: frozenset[str] = frozenset()
    """Dotted names of libraries that the script imports or reaches through an import: ``from torch import
    distributed``, and a use of ``torch.distributed.init_process_group`` after ``import torch``, both give
    ``torch.distributed``."""

    optional_imports: frozenset[str] = frozenset()
    """Those of ``imports`` that the script may do without: in ``if``, ``try``, or a function that may not be
    called."""

    module_imports: frozenset[str] = frozenset()
    """The same as ``imports`` for the source's modules that the script imports, directly or indirectly; only
    read for a run of several segments."""

    syntax_mistake: str | None = None
    """Why this machine's Python rejects the script: file, line and cause."""

    reads_resource_config: bool = False
    """A path in the script ends with ``resourceconfig.json``."""

    names_checkpoint_dir: bool = False
    """A string of the script contains the checkpoint directory, or the variable with its path."""

    names_progress_line: bool = False
    """A string of the script contains the beginning of the line that reports a training step."""

    features: Mapping[str, FeatureLocation] | None = None
    """Features that show how many accelerators the script can use (``script_signs.CALLS``), by name; None
    if not analyzed."""

    missing_packages: tuple[MissingPackage, ...] = ()
    """Packages that the script requires and the hosts' Python lacks, if that is this Python."""

    launcher_lines: tuple[LauncherLine, ...] = ()
    """Of a shell script: the launchers of others that it starts."""

    unknown_command: UnknownCommand | None = None
    outside_file: OutsideFile | None = None
    """The first file outside the source that the script names by its own path, and that exists here."""

    program: ProgramFacts = NO_PROGRAM
    """What the script and its modules show about arguments, ranks, channels and saved files."""

    problem: str | None = None
    """The script is missing or cannot be parsed."""


class CheckpointedRun(NamedTuple):
    """A run that has written to a checkpoint prefix."""

    run: str
    """Its id; of a sharded run that of the whole."""

    step: int | None
    """Newest committed step; None where the script writes its own checkpoints."""

    has_finished: bool
    """Its newest outcome says that it has trained to its end."""

    is_sharded: bool = False


class CheckpointFacts(NamedTuple):
    """What the checkpoint prefix contains before the run."""

    total_bytes: int = 0
    """Size of all objects."""

    step_bytes: int | None = None
    """Size of the newest step; None without one in smlaunch's format."""

    runs: tuple[CheckpointedRun, ...] = ()
    """Those with outcomes or committed steps there, by their names."""


@dataclass(frozen=True)
class EndpointFacts:
    """Capabilities of the endpoint; the defaults describe a region."""

    accelerators_per_host: int | None = None
    """Accelerators that a host really has; None if not counted."""

    hosts: str | None = None
    """What its hosts are, such as ``isolation full`` or ``containers by podman``."""
    max_hosts: int | None = None
    """Hosts that one job can have; None if there is no limit."""
    cpus: int | None = None
    """CPU cores that all hosts share, as processes of one machine; None if not known."""
    runs_images: bool = False
    """Hosts are containers of the job's image; otherwise processes of this machine."""

    same_python: bool = False
    """Hosts run on the Python that makes the plan."""

    warnings: tuple[str, ...] = ()
    """Sentences for the plan's warnings."""

    recorded_members: Mapping[str, str] = field(default_factory=dict)
    """Members of the request without effect at this endpoint: a sentence by the member's dotted path
    without list indices (``ResourceConfig.VolumeSizeInGB``), or by path and value
    (``InputDataConfig.InputMode=Pipe``)."""

    rejected_members: Mapping[str, str] = field(default_factory=dict)
    """The same for members that the endpoint rejects."""


class ResolvedImage(NamedTuple):
    """What the official ``sagemaker`` package says about an image that the catalog does not know."""

    uri: str | None = None
    problem: str | None = None
    """A clause, if there is no ``uri``."""

    source: str = "the sagemaker package"
    """The package with its version."""

    script: str | None = None
    """S3 address of the training script, for a JumpStart image."""

    model: str | None = None
    """S3 address of the pretrained model, for a JumpStart image."""


UNKNOWN_ACCOUNT = "000000000000"
"""Stands for the account in a plan that is made without one. No account has this number."""

UNKNOWN_ROLE = "EXECUTION-ROLE"
"""Stands for the name of the role in such a plan."""


@dataclass(frozen=True)
class DiscoveredFacts:
    """Everything that a plan may know about the world."""

    region: str
    account: str
    bucket: str
    """Name of the bucket for staged files and, by default, for output."""

    role: str | None
    """ARN of the execution role."""

    source: SourceFacts
    script: ScriptFacts
    target: Literal["aws", "local"] = "aws"
    partition: str = "aws"
    inputs: Mapping[str, InputFacts] = field(default_factory=dict)
    """By channel name, one entry per channel of the job."""

    endpoint: EndpointFacts = EndpointFacts()
    role_problem: str | None = None
    """Why there is no role."""

    account_problem: str | None = None
    """Why the account could not be asked, as a clause with the next step. Then ``account`` is the role's, or
    UNKNOWN_ACCOUNT; a role that the job does not state is UNKNOWN_ROLE; of inputs in S3 nothing is known."""

    max_runtime_quota: int | None = None
    """Seconds that the account lets one job run; None if not requested or not readable."""

    max_runtime_quota_problem: str | None = None
    """Why the quota could not be read."""

    quotas: Mapping[str, float | None] = field(default_factory=dict)
    """Value by name of the quotas that were requested; None for one that the service does not list."""

    quotas_problem: str | None = None
    """Why no quota could be read."""

    region_catalog: RegionCatalog | None = None
    """What ``smlaunch catalog update`` has read about the region; None if nothing."""

    today: date | None = None
    """Date of the plan."""

    checkpoints: CheckpointFacts | None = None
    """None if not requested."""

    resolved_image: ResolvedImage | None = None
    """None if the catalog knows the image."""

    bucket_prefix: str = ""
    """Folder in ``bucket`` that has smlaunch's own folder; empty for the top."""

    team: TeamFacts = NO_TEAM
    """What the team's configuration files have given the job."""

    folder: str = ""
    """The working directory, in which relative paths of the job begin."""

    runtime_sha256: str = ""
    """Hash of smlaunch's own program on the hosts, in hex."""

    def prices(self, *, trains_model: bool) -> RegionPrices:
        """What is known about prices of training jobs in the region, or of processing jobs."""
        return RegionPrices(self.region, self.region_catalog, trains_model)
