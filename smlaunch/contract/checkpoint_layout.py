"""The layout of a checkpoint directory. No reader mistakes a torn copy of a checkpoint for a complete one.

    smlaunch/                                             all files of smlaunch; the others are the script's
        step-000000000120/
            rank-00000-of-00004-<sha256, 32 digits>.shard written by one rank, named by its content
            ...
            manifest-<sha256, 32 digits>.json             all shards of the step, with sizes and hashes
            COMMIT-<run>-s3-a1                            which manifest is valid; the leader writes it last
        outcome-<run>-s3-a1.json                          how this attempt of this segment ended
        outcome-<run>-s3-a1.algo-2.json                   the same of one host (outcome.py)

The names of COMMIT and outcome contain their writer: run, segment and attempt. Only that attempt writes them
again, and replaces the whole file; all other files never change. So a directory that was copied in any order,
in part, or while it was being written either verifies or is ignored. Of several COMMITs of one step, the one
of the newest segment and attempt with complete files counts.

SageMaker copies such a directory to S3 file by file at unknown moments (developer guide, model-checkpoints).
"""

import hashlib
import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.contract import formats
from smlaunch.contract.json_document import integer_or_none, parse_document, text_or_none, to_json_bytes
from smlaunch.contract.run_names import RESERVED_FOLDER, WRITER_REGEX, CheckpointWriter

_HASH_DIGITS = 32
_STEP_PATH = re.compile(RESERVED_FOLDER + r"/step-(\d{12})(?:/.*)?", re.DOTALL)
_SHA256_HEX = re.compile(r"[0-9a-f]{64}")
_SHARD_NAME = re.compile(r"rank-(\d{5})-of-\d{5}-[0-9a-f]{32}\.shard")
_MANIFEST_NAME = re.compile(r"manifest-[0-9a-f]{32}\.json")
_COMMIT_NAME = re.compile(r"COMMIT-" + WRITER_REGEX)
_UNVERSIONED_COMMIT = re.compile(r"step-\d{12}/COMMIT")
"""Its name in releases before format 1.0."""

ReadFile = Callable[[str], bytes]
"""Returns the content of a file by its path below the checkpoint directory; raises FileNotFoundError or
KeyError when it is missing. Any other error is no sign of a torn copy and ends the search, without trying
older steps.
"""


class Shard(NamedTuple):
    """The file that one rank wrote."""

    rank: int
    name: str
    size: int
    """Of the file, in bytes."""

    sha256: str
    """Of the file, in hex."""


class Manifest(NamedTuple):
    """One committed checkpoint."""

    step: int
    world_size: int
    shards: Tuple[Shard, ...]
    samples: Optional[int] = None
    """Samples that all ranks together have consumed since the start; None where they are not counted."""

    job: Optional[str] = None
    """The training job that wrote it."""

    @property
    def size_bytes(self) -> int:
        return sum(shard.size for shard in self.shards)

    def to_bytes(self) -> bytes:
        shard_rows = [shard._asdict() for shard in self.shards]
        return to_json_bytes(formats.MANIFEST.with_version({**self._asdict(), "shards": shard_rows}))


# ---- names ------------------------------------------------------------------------------------------------


def step_directory(step: int) -> str:
    return "{}/step-{:012d}".format(RESERVED_FOLDER, step)


def parse_step_path(path: str) -> Optional[int]:
    """The step of a step directory or of a path below one; None for any other path."""
    match = _STEP_PATH.fullmatch(path)
    return int(match.group(1)) if match else None


def shard_name(rank: int, world_size: int, sha256: str) -> str:
    return "rank-{:05d}-of-{:05d}-{}.shard".format(rank, world_size, sha256[:_HASH_DIGITS])


def parse_shard_rank(name: str) -> Optional[int]:
    """The rank that wrote a shard; None for a file that is no shard."""
    match = _SHARD_NAME.fullmatch(name)
    return int(match.group(1)) if match else None


def is_manifest(name: str) -> bool:
    return _MANIFEST_NAME.fullmatch(name) is not None


def manifest_name(content: bytes) -> str:
    return "manifest-{}.json".format(hashlib.sha256(content).hexdigest()[:_HASH_DIGITS])


def commit_name(writer: CheckpointWriter) -> str:
    return "COMMIT-{}".format(writer)


def is_commit(name: str) -> bool:
    return _COMMIT_NAME.fullmatch(name) is not None


def parse_commit_path(path: str) -> Optional[Tuple[int, str]]:
    """The step that a COMMIT file marks as complete, and the run that has written it; None for any other
    path, and for a COMMIT of a job that is of no run."""
    folder, _, file_name = path.rpartition("/")
    step, name_match = parse_step_path(folder), _COMMIT_NAME.fullmatch(file_name)
    # In the step's own folder, not in one below it.
    if step is None or folder != step_directory(step) or name_match is None or not name_match.group("run"):
        return None
    return step, name_match.group("run")


def is_smlaunch_path(path: str) -> bool:
    """Whether a path below the checkpoint directory belongs to smlaunch, not to the script."""
    return path.startswith(RESERVED_FOLDER + "/")


def commit_content(manifest: bytes) -> bytes:
    return to_json_bytes(formats.COMMIT.with_version({"manifest": manifest_name(manifest)}))


# ---- committed checkpoints
# ------------------------------------------------------------------------------------


def iter_committed(size_by_path: Mapping[str, int], read_file: ReadFile) -> Iterator[Manifest]:
    """Yield the manifest of each complete checkpoint, newest step first. A COMMIT file, written last, names
    the manifest; the manifest lists the shards, one file per rank. Names, sizes and both files are verified
    here; hashes of shards when they are loaded. ``size_by_path``: bytes of each file below the checkpoint
    directory; ``read_file`` returns the content of one. Raises FormatError for a checkpoint that another
    release wrote."""
    commit_paths_by_step = _commit_paths_by_step(size_by_path)
    for step in sorted(commit_paths_by_step, reverse=True):
        for commit_path in commit_paths_by_step[step]:
            manifest = _read_committed_manifest(commit_path, step, size_by_path, read_file)
            if manifest is not None and not find_shard_problems(manifest, size_by_path):
                yield manifest
                break  # older segments and attempts wrote the same step before


def find_manifest(step: int, size_by_path: Mapping[str, int], read_file: ReadFile) -> Optional[Manifest]:
    """Return the manifest that a COMMIT of a step names: the newest whose shards are complete, otherwise the
    newest that can be read; None without one. Parameters and errors as for ``iter_committed``.
    """
    newest_incomplete: Optional[Manifest] = None
    for commit_path in _commit_paths_by_step(size_by_path).get(step, ()):  # the newest first
        manifest = _read_committed_manifest(commit_path, step, size_by_path, read_file)
        if manifest is None:
            continue
        if not find_shard_problems(manifest, size_by_path):
            return manifest
        newest_incomplete = newest_incomplete or manifest
    return newest_incomplete


def find_shard_problems(manifest: Manifest, size_by_path: Mapping[str, int]) -> List[str]:
    """Return what is wrong with the shards (one file per rank) of a checkpoint, as far as names and sizes
    show. ``manifest``: lists them. ``size_by_path``: bytes of each file below the checkpoint directory."""
    problems: List[str] = []
    for shard in manifest.shards:
        size_bytes = size_by_path.get("{}/{}".format(step_directory(manifest.step), shard.name))
        if size_bytes is None:
            problems.append("{}: missing".format(shard.name))
        elif size_bytes != shard.size:
            problems.append("{}: {:,} bytes of {:,}".format(shard.name, size_bytes, shard.size))
    return problems


def _commit_paths_by_step(file_paths: Iterable[str]) -> Dict[int, List[str]]:
    """Return the paths of the COMMIT files, which mark a checkpoint as complete, by training step; the newest
    segment and attempt first (a segment is a part of a run, an attempt one job of it: both may write the same
    step). Raises FormatError for one of an old release, whose name has no segment."""
    commits_by_step: Dict[int, List[Tuple[int, int, str]]] = {}
    for path in file_paths:
        if _UNVERSIONED_COMMIT.fullmatch(path):
            formats.COMMIT.check_version(None, path)  # raises: its format has no version
        folder, _, file_name = path.rpartition("/")
        step, name_match = parse_step_path(folder), _COMMIT_NAME.fullmatch(file_name)
        # In the step's own folder, not in one below it.
        if name_match is not None and step is not None and folder == step_directory(step):
            segment, attempt = int(name_match.group("segment")), int(name_match.group("attempt"))
            commits_by_step.setdefault(step, []).append((segment, attempt, path))
    return {
        step: [path for _segment, _attempt, path in sorted(commits, reverse=True)]
        for step, commits in commits_by_step.items()
    }


def _read_committed_manifest(
    commit_path: str, step: int, size_by_path: Mapping[str, int], read_file: ReadFile
) -> Optional[Manifest]:
    """Return the manifest (list of a checkpoint's files) that a COMMIT file names; None where either of them
    is missing or was copied incompletely. ``size_by_path``: the files below the checkpoint directory;
    ``read_file`` returns the content of one."""
    step_prefix = step_directory(step) + "/"  # folder of the step, below the checkpoint directory
    try:
        commit_document = parse_document(formats.COMMIT, read_file(commit_path), commit_path)
        manifest_file = None if commit_document is None else commit_document.get("manifest")
        if not isinstance(manifest_file, str) or step_prefix + manifest_file not in size_by_path:
            return None
        manifest_content = read_file(step_prefix + manifest_file)
    except (FileNotFoundError, KeyError):  # deleted since the files were listed
        return None
    # The name of a manifest contains the hash of its content: another name means a damaged copy.
    if manifest_name(manifest_content) != manifest_file:
        return None
    manifest = parse_manifest(manifest_content, step_prefix + manifest_file)
    return manifest if manifest is not None and manifest.step == step else None


def parse_manifest(content: bytes, document_name: str = "manifest") -> Optional[Manifest]:
    """Return the manifest of a checkpoint (its step and the shards of all ranks) from a file's content; None
    for a content that is no manifest. Raises FormatError for a version that this release does not read.
    ``document_name``: for that message."""
    document = parse_document(formats.MANIFEST, content, document_name)
    if document is None:
        return None
    try:
        manifest = Manifest(
            step=int(document["step"]),
            world_size=int(document["world_size"]),
            shards=tuple(_parse_shard(shard_document) for shard_document in document["shards"]),
            samples=integer_or_none(document.get("samples")),
            job=text_or_none(document.get("job")),
        )
    except (KeyError, TypeError, ValueError):
        return None
    has_one_shard_per_rank = (
        len(manifest.shards) == manifest.world_size > 0  # first: a damaged world size may be huge
        and {shard.rank for shard in manifest.shards} == set(range(manifest.world_size))
    )
    return manifest if has_one_shard_per_rank else None


def _parse_shard(document: Mapping[str, Any]) -> Shard:
    """Return a shard (the file of one rank) from a manifest. Raises KeyError, TypeError or ValueError for an
    invalid one: a name must not lead out of the checkpoint's folder."""
    shard = Shard(
        rank=int(document["rank"]),
        name=str(document["name"]),
        size=int(document["size"]),
        sha256=str(document["sha256"]),
    )
    if not (_SHARD_NAME.fullmatch(shard.name) and _SHA256_HEX.fullmatch(shard.sha256)):
        raise ValueError("not a shard: {!r}".format(shard))
    return shard
