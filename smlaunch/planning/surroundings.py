"""What a plan may know of the world: filled in by ``survey``, which only reads; looked at by pure code.

A fact that could not be had carries the reason as ``problem`` (a sentence for the user, with the next step);
the plan collects these with its own findings, so that everything wrong is said at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Literal, NamedTuple


class StoredFile(NamedTuple):
    """``name``: relative to its channel's prefix or folder."""

    name: str
    bytes: int


@dataclass(frozen=True)
class InputFacts:
    """One input channel's data.

    ``uri`` is the job's own word for it. ``objects`` and ``bytes`` count files or S3 objects; None where
    nobody counted, and ``capped`` says that there are at least that many. ``sha256`` (local data only) is
    over the sorted relative paths and contents. ``directory``: a local directory rather than one file.
    ``files``: all of them in the order of their names, only looked at for a split by bytes, and None where
    they are too many. ``shards``: names of those that ``smlaunch data pack`` made, where it did. ``pending``:
    an earlier step of a pipeline will have left it when the job begins, so that nobody has looked. ``notes``:
    what the user should know of it, such as files that are not sent; ``left_out``: why, a clause, by the name
    of each of them.
    """

    uri: str
    kind: Literal["s3", "local"]
    exists: bool = True
    objects: int | None = None
    bytes: int | None = None
    capped: bool = False
    sha256: str | None = None
    directory: bool = True
    problem: str | None = None
    files: tuple[StoredFile, ...] | None = None
    shards: tuple[str, ...] | None = None
    pending: bool = False
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SourceFacts:
    """The directory that travels with the job, as an archive whose content decides its name.

    ``root``: the directory. ``entry``: the script's path inside it, with forward slashes. ``files`` and
    ``bytes``: how many files, and their size unpacked. ``has_requirements``: the job's ``requirements`` is
    one of those files. ``named``: JSON files among them that the job's options, args or hyperparameters name,
    by that name, and what is in them. ``notes``: what the user should know of it, such as files that are not
    sent; ``left_out``: why, a clause, by its name.
    """

    root: str
    entry: str
    archive_sha256: str
    files: int
    bytes: int
    has_requirements: bool = False
    problem: str | None = None
    named: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


NO_SOURCE = SourceFacts("", "", "", 0, 0)
"""Of a job whose image brings its own program."""


class Sign(NamedTuple):
    """Where something stands first: the line, and the source's file (empty: the script itself)."""

    line: int
    file: str = ""


@dataclass(frozen=True)
class ScriptFacts:
    """What reading the script (not running it) shows.

    ``imports``: dotted names it imports or reaches through an import: ``from torch import distributed`` and a
    use of ``torch.distributed.init_process_group`` after ``import torch`` both give ``torch.distributed``.
    ``reached``: the same of the source's modules that it imports, one through the other; only looked at for a
    run of several segments.
    ``reads_resource_config``: the text ``resourceconfig.json`` stands in one of its strings;
    ``names_checkpoints``: the checkpoint directory or the variable with its path does.
    ``signs``: what tells how many accelerators it can use (``script_signs.CALLS``), by name; None where
    nobody looked. ``absent``: packages that it cannot do without and that the Python of a host does not have,
    where that is this one. ``problem``: it is missing or cannot be parsed.
    """

    exists: bool = True
    imports: frozenset[str] = frozenset()
    reached: frozenset[str] = frozenset()
    reads_resource_config: bool = False
    names_checkpoints: bool = False
    signs: Mapping[str, Sign] | None = None
    absent: tuple[str, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class CheckpointFacts:
    """What lies in the checkpoint prefix already, in bytes: all of it, and its newest step (None where there
    is none of ours)."""

    bytes: int = 0
    step_bytes: int | None = None


@dataclass(frozen=True)
class EndpointFacts:
    """What the service at the other end can do; for a region nothing needs saying.

    ``accelerators_per_host``: accelerators a host really has here, None when nobody counted.
    ``runs_images``: hosts are containers of the job's image; otherwise they are processes of that machine.
    ``same_python``: they run on the very Python that makes the plan.
    ``notes``: sentences for the plan's warnings.
    ``honesty``: what becomes of members of the request that have no effect here: a sentence, by the member's
    dotted path without list indices (``ResourceConfig.VolumeSizeInGB``), or by path and value
    (``InputDataConfig.InputMode=Pipe``). ``refused``: the same for what the endpoint refuses.
    """

    accelerators_per_host: int | None = None
    isolation: str | None = None
    runs_images: bool = False
    same_python: bool = False
    notes: tuple[str, ...] = ()
    honesty: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ResolvedImage:
    """What the official ``sagemaker`` package said of an image that the catalog does not know: its ``uri``,
    or the ``problem`` with it, a clause. ``source``: the package with its version. ``script`` and ``model``:
    S3 addresses of what JumpStart's images train with."""

    uri: str | None = None
    problem: str | None = None
    source: str = "the sagemaker package"
    script: str | None = None
    model: str | None = None


@dataclass(frozen=True)
class Surroundings:
    """``bucket`` is where smlaunch stages files and, by default, writes outputs: a bare name.

    ``role``: ARN of the execution role; ``role_problem`` says why there is none. ``inputs`` has one entry per
    channel of the job, by channel name. ``script`` and ``source`` are about the job's ``entry``.
    ``longest_run``: seconds that the account's quota lets one job run; None where nobody asked, or where
    ``longest_run_problem`` says why there was no answer. ``quotas``: those of the account that were asked
    for, by their names, None for one that the service does not list; ``quotas_problem``: why none could be
    read. ``today``: the day of the plan. ``checkpoints``: None where nobody looked.
    ``resolved_image``: None where there was no need to ask.
    """

    region: str
    account: str
    bucket: str
    role: str | None
    source: SourceFacts
    script: ScriptFacts
    target: Literal["aws", "local"] = "aws"
    partition: str = "aws"
    inputs: Mapping[str, InputFacts] = field(default_factory=dict)
    endpoint: EndpointFacts = EndpointFacts()
    role_problem: str | None = None
    longest_run: int | None = None
    longest_run_problem: str | None = None
    quotas: Mapping[str, float | None] = field(default_factory=dict)
    quotas_problem: str | None = None
    today: date | None = None
    checkpoints: CheckpointFacts | None = None
    resolved_image: ResolvedImage | None = None
