"""The layout of a checkpoint directory. No reader mistakes a torn copy of a checkpoint for a complete one.

    smlaunch/                                             all files of smlaunch; the others are the script's
        step-000000000120/
            rank-00000-of-00004-<sha256, 32 digits>.shard written by one rank, named by its content
            ...
            manifest-<sha256, 32 digits>.json             all shards of the step, with sizes and hashes
            COMMIT-<run>-s3-a1                            which manifest is valid; the leader writes it last
        outcome-<run>-s3-a1.json                          how this attempt of this segment ended
        outcome-<run>-s3-a1.algo-2.unfinished             the same of a host that trains independently of the
                                                          leader, as long as it has not finished

The names of COMMIT and outcome contain their writer: run, segment and attempt. Only that attempt writes them
again, and replaces the whole file; all other files never change. So a directory that was copied in any order,
in part, or while it was being written either verifies or is ignored. Of several COMMITs of one step, the one
of the newest segment and attempt with complete files counts.

SageMaker copies such a directory to S3 file by file at unknown moments (developer guide, model-checkpoints).
"""

import hashlib
import json
import re
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.contract import formats
from smlaunch.contract.formats import unknown_members
from smlaunch.contract.names import RESERVED_FOLDER, RUN_ID_REGEX, CheckpointWriter, outcome_path

OUTCOME_PATH_PREFIX = RESERVED_FOLDER + "/outcome-"
"""Prefix of the paths of outcome files."""

FINISHED = "finished"
CONTINUE = "continue"

_HASH_DIGITS = 32
_STEP = re.compile(RESERVED_FOLDER + r"/step-(\d{12})(?:/.*)?", re.DOTALL)
_HASH = re.compile(r"[0-9a-f]{64}")
_SHARD = re.compile(r"rank-(\d{5})-of-\d{5}-[0-9a-f]{32}\.shard")
_MANIFEST = re.compile(r"manifest-[0-9a-f]{32}\.json")
_WRITER = r"(?:(?P<run>" + RUN_ID_REGEX + r")-)?s(?P<segment>[0-9]+)-a(?P<attempt>[0-9]+)"
_COMMIT = re.compile(r"COMMIT-" + _WRITER)
_OUTCOME = re.compile(RESERVED_FOLDER + r"/outcome-" + _WRITER + r"\.json")
_UNFINISHED_HOST = re.compile(RESERVED_FOLDER + r"/outcome-" + _WRITER + r"\.[^/]+\.unfinished")
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
        return _to_json_bytes(formats.MANIFEST.stamp({**self._asdict(), "shards": shard_rows}))


class SegmentOutcome(NamedTuple):
    """How one attempt of a segment ended.

    The ranks write it, and the host completes it.
    """

    result: str
    """FINISHED or CONTINUE."""

    step: Optional[int] = None
    """The newest committed step at the end; None where the script writes checkpoints of its own."""

    run: Optional[str] = None
    job: Optional[str] = None
    """Name of the training job."""

    segment: int = 1
    attempt: int = 1
    ranks_succeeded: bool = False
    """The leader's ranks all exited with 0 after writing it, so their last work, such as saving the model, is
    done too.
    """

    reported_step: Optional[int] = None
    """The highest step in the job's progress lines; None without any."""

    repeats_steps: bool = False
    """The job came to its planned end, and most of its progress lines were about steps that earlier jobs had
    reported.
    """

    extra: Tuple[Tuple[str, Any], ...] = ()
    """Members that a later minor version added; they are written again unchanged."""

    @property
    def path(self) -> str:
        """Below the checkpoint directory."""
        return outcome_path(CheckpointWriter(self.run, self.segment, self.attempt))

    def to_dict(self) -> Dict[str, Any]:
        members = self._asdict()
        del members["extra"]
        return {**dict(self.extra), **formats.OUTCOME.stamp(members)}

    def to_bytes(self) -> bytes:
        return _to_json_bytes(self.to_dict())


# ---- names ------------------------------------------------------------------------------------------------


def step_directory(step: int) -> str:
    return "{}/step-{:012d}".format(RESERVED_FOLDER, step)


def parse_step_path(path: str) -> Optional[int]:
    """The step of a step directory or of a path below one; None for any other path."""
    match = _STEP.fullmatch(path)
    return int(match.group(1)) if match else None


def shard_name(rank: int, world_size: int, sha256: str) -> str:
    return "rank-{:05d}-of-{:05d}-{}.shard".format(rank, world_size, sha256[:_HASH_DIGITS])


def parse_shard_rank(name: str) -> Optional[int]:
    """The rank that wrote a shard; None for a file that is no shard."""
    match = _SHARD.fullmatch(name)
    return int(match.group(1)) if match else None


def is_manifest(name: str) -> bool:
    return _MANIFEST.fullmatch(name) is not None


def manifest_name(content: bytes) -> str:
    return "manifest-{}.json".format(hashlib.sha256(content).hexdigest()[:_HASH_DIGITS])


def commit_name(writer: CheckpointWriter) -> str:
    return "COMMIT-{}".format(writer)


def is_commit(name: str) -> bool:
    return _COMMIT.fullmatch(name) is not None


def is_smlaunch_path(path: str) -> bool:
    """Whether a path below the checkpoint directory belongs to smlaunch, not to the script."""
    return path.startswith(RESERVED_FOLDER + "/")


def commit_content(manifest: bytes) -> bytes:
    return _to_json_bytes(formats.COMMIT.stamp({"manifest": manifest_name(manifest)}))


# ---- committed checkpoints
# ------------------------------------------------------------------------------------


def iter_committed(files: Mapping[str, int], read_file: ReadFile) -> Iterator[Manifest]:
    """Checkpoints that are complete by names and sizes, newest first.

    ``files``: paths below the checkpoint directory with their sizes in bytes. COMMIT and manifest are read
    and verified; shards must exist, and are verified by hash when they are loaded. Raises FormatError for a
    checkpoint that another release wrote.
    """
    commit_paths = _commit_paths_by_step(files)
    for step in sorted(commit_paths, reverse=True):
        for commit_path in commit_paths[step]:
            manifest = _read_committed_manifest(commit_path, step, files, read_file)
            if manifest is not None and not shard_problems(manifest, files):
                yield manifest
                break


def find_manifest(step: int, files: Mapping[str, int], read_file: ReadFile) -> Optional[Manifest]:
    """The manifest of the newest readable COMMIT of a step, a complete one if there is any; its shards may be
    missing. None without one.
    """
    manifests = (
        _read_committed_manifest(path, step, files, read_file)
        for path in _commit_paths_by_step(files).get(step, ())
    )
    readable = [manifest for manifest in manifests if manifest is not None]
    complete = [manifest for manifest in readable if not shard_problems(manifest, files)]
    return next(iter(complete or readable), None)


def shard_problems(manifest: Manifest, files: Mapping[str, int]) -> List[str]:
    """What is wrong with the shards of a checkpoint, as far as names and sizes show."""
    problems = []
    for shard in manifest.shards:
        size = files.get("{}/{}".format(step_directory(manifest.step), shard.name))
        if size is None:
            problems.append("{}: missing".format(shard.name))
        elif size != shard.size:
            problems.append("{}: {:,} bytes of {:,}".format(shard.name, size, shard.size))
    return problems


def _commit_paths_by_step(files: Iterable[str]) -> Dict[int, List[str]]:
    """Paths of COMMITs by step, the newest segment and attempt first."""
    commits: Dict[int, List[Tuple[int, int, str]]] = {}
    for path in files:
        folder, _, name = path.rpartition("/")
        step, match = parse_step_path(folder), _COMMIT.fullmatch(name)
        if _UNVERSIONED_COMMIT.fullmatch(path):
            formats.COMMIT.check_version(None, path)
        if match is not None and step is not None and folder == step_directory(step):
            commit = int(match.group("segment")), int(match.group("attempt")), path
            commits.setdefault(step, []).append(commit)
    return {
        step: [path for _, _, path in sorted(commits_of_step, reverse=True)]
        for step, commits_of_step in commits.items()
    }


def _read_committed_manifest(
    commit_path: str, step: int, files: Mapping[str, int], read_file: ReadFile
) -> Optional[Manifest]:
    """The manifest that a COMMIT names. None where COMMIT or manifest is torn or missing."""
    directory = step_directory(step) + "/"
    try:
        document = _parse_document(formats.COMMIT, read_file(commit_path), commit_path)
        name = None if document is None else document.get("manifest")
        if not isinstance(name, str) or directory + name not in files:
            return None
        content = read_file(directory + name)
    except (FileNotFoundError, KeyError):
        return None
    if manifest_name(content) != name:
        return None
    manifest = parse_manifest(content, directory + name)
    return manifest if manifest is not None and manifest.step == step else None


def parse_manifest(content: bytes, document_name: str = "manifest") -> Optional[Manifest]:
    """None for a text that is no manifest. Raises FormatError for a version that this
    release does not read.
    """
    document = _parse_document(formats.MANIFEST, content, document_name)
    try:
        if document is None:
            return None
        shards = tuple(
            Shard(int(row["rank"]), str(row["name"]), int(row["size"]), str(row["sha256"]))
            for row in document["shards"]
        )
        if not all(_SHARD.fullmatch(shard.name) and _HASH.fullmatch(shard.sha256) for shard in shards):
            return None
        return Manifest(
            int(document["step"]),
            int(document["world_size"]),
            shards,
            _integer_or_none(document.get("samples")),
            _text_or_none(document.get("job")),
        )
    except (KeyError, TypeError, ValueError):
        return None


# ---- outcomes ----------------------------------------------------------------------------------


def find_newest_outcome(
    files: Iterable[str], read_file: ReadFile, run_id: Optional[str]
) -> Optional[SegmentOutcome]:
    """The readable outcome of the run's newest segment and attempt; None without one.

    ``files``: paths below the checkpoint directory. ``run_id``: None for any run. Raises FormatError for a
    version that this release does not read.
    """
    candidates = []
    unfinished: Dict[Tuple[Optional[str], int, int], List[str]] = {}
    for path in files:
        match = _OUTCOME.fullmatch(path) or _UNFINISHED_HOST.fullmatch(path)
        if match is None or run_id not in (None, match.group("run")):
            continue
        segment, attempt = int(match.group("segment")), int(match.group("attempt"))
        if path.endswith(".json"):
            candidates.append((segment, attempt, path))
        else:
            unfinished.setdefault((match.group("run"), segment, attempt), []).append(path)
    for segment, attempt, path in sorted(candidates, reverse=True):
        outcome = _read_outcome(path, read_file)
        if outcome is None:
            continue
        unfinished_paths = unfinished.get((outcome.run, segment, attempt), [])
        if unfinished_paths:
            host_outcomes = [
                _read_outcome(unfinished_path, read_file) for unfinished_path in unfinished_paths
            ]
            steps = [
                host_outcome.reported_step
                for host_outcome in (outcome, *host_outcomes)
                if host_outcome is not None and host_outcome.reported_step is not None
            ]
            outcome = outcome._replace(result=CONTINUE, reported_step=max(steps, default=None))
        return outcome
    return None


def _read_outcome(path: str, read_file: ReadFile) -> Optional[SegmentOutcome]:
    """None where the file is missing or torn."""
    try:
        return parse_outcome(read_file(path), path)
    except (FileNotFoundError, KeyError):
        return None


def parse_outcome(content: bytes, document_name: str = "outcome") -> Optional[SegmentOutcome]:
    """None for a text that is no outcome. Raises FormatError for a version that this release
    does not read.
    """
    document = _parse_document(formats.OUTCOME, content, document_name)
    if document is None or document.get("result") not in (FINISHED, CONTINUE):
        return None
    outcome = SegmentOutcome(
        str(document["result"]),
        _integer_or_none(document.get("step")),
        _text_or_none(document.get("run")),
        _text_or_none(document.get("job")),
        _integer_or_none(document.get("segment")) or 1,
        _integer_or_none(document.get("attempt")) or 1,
        document.get("ranks_succeeded") is True,
        _integer_or_none(document.get("reported_step")),
        document.get("repeats_steps") is True,
    )
    return outcome._replace(extra=tuple(sorted(unknown_members(document, outcome.to_dict()).items())))


def _to_json_bytes(document: Mapping[str, Any]) -> bytes:
    # No newline at the end: if anything is cut off, the rest does not parse.
    return json.dumps(document, indent=1, sort_keys=True).encode("ascii")


def _parse_document(
    document_format: formats.Format, content: bytes, document_name: str
) -> Optional[Dict[str, Any]]:
    """None for a text that is no JSON object: it was cut off."""
    try:
        document = json.loads(content.decode("utf-8"))
    except ValueError:
        return None
    return document_format.upgrade_document(document, document_name) if isinstance(document, dict) else None


def _integer_or_none(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text_or_none(value: Any) -> Optional[str]:
    return value if isinstance(value, str) else None
