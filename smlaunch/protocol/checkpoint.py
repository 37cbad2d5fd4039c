"""How a checkpoint lies in its directory, so that no torn copy of it is ever taken for a whole one.

    step-000000000120/
        rank-00000-of-00004-<sha256, 32 digits>.part      what one rank wrote, named by its content
        ...
        manifest-<sha256, 32 digits>.json                 all parts of the step, with sizes and hashes
        COMMIT                                            which manifest counts; written last, by the leader
    outcome.json                                          how the last segment ended

Nothing is changed once it is written, but for COMMIT and outcome.json, which are replaced whole. A directory
that was copied in any order, in part, or while it was being written therefore either verifies or is not
taken. Steps that were saved again after a restart have parts of other names beside the older ones.

SageMaker copies such a directory to S3 file by file at unknown moments (developer guide, model-checkpoints).
"""

import hashlib
import json
import re
from typing import Any, Callable, Dict, Iterator, Mapping, NamedTuple, Optional, Tuple

VERSION = "1.0"
COMMIT = "COMMIT"
OUTCOME = "outcome.json"

FINISHED = "finished"
CONTINUE = "continue"

_DIGITS = 32
_STEP = re.compile(r"step-(\d{12})")
_HASH = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"rank-(\d{5})-of-\d{5}-[0-9a-f]{32}\.part")
_MANIFEST = re.compile(r"manifest-[0-9a-f]{32}\.json")

Read = Callable[[str], bytes]
"""The content of a file by its path below the checkpoint directory; FileNotFoundError or KeyError when it is
gone. Any other error is no sign of a torn copy and ends the search: an older step is not taken for it."""


class Part(NamedTuple):
    """``size`` in bytes, ``sha256`` in hex, both of the whole file."""

    rank: int
    name: str
    size: int
    sha256: str


class Manifest(NamedTuple):
    """One committed checkpoint. ``samples``: how many were consumed by all ranks together since the start;
    None where nobody counts. ``job`` made it."""

    step: int
    world_size: int
    parts: Tuple[Part, ...]
    samples: Optional[int] = None
    job: Optional[str] = None

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def to_bytes(self) -> bytes:
        document = {"version": VERSION, **self._asdict(), "parts": [part._asdict() for part in self.parts]}
        return _dump(document)


class Outcome(NamedTuple):
    """``result``: FINISHED or CONTINUE. ``step``: the newest committed one when the segment ended; None where
    the script keeps its own checkpoints. ``run`` and ``job`` say whose word this is. ``closed``: the leader's
    ranks have all left with 0 after it, so that whatever they do at their very end, such as saving the model,
    is done as well; the host writes that, not the ranks.

    ``reported``: the highest step in the job's progress lines, None without any. ``repeats``: the job came to
    its planned end, and more of its progress lines told of steps that jobs before had reported than of
    further ones. The host writes both, of every job whose end it lives to see.
    """

    result: str
    step: Optional[int] = None
    run: Optional[str] = None
    job: Optional[str] = None
    closed: bool = False
    reported: Optional[int] = None
    repeats: bool = False

    def to_bytes(self) -> bytes:
        return _dump({"version": VERSION, **self._asdict()})


def step_directory(step: int) -> str:
    return "step-{:012d}".format(step)


def parse_step(directory: str) -> Optional[int]:
    match = _STEP.fullmatch(directory)
    return int(match.group(1)) if match else None


def part_name(rank: int, world_size: int, sha256: str) -> str:
    return "rank-{:05d}-of-{:05d}-{}.part".format(rank, world_size, sha256[:_DIGITS])


def rank_of(name: str) -> Optional[int]:
    """Whose part a file is; None for what is no part."""
    match = _PART.fullmatch(name)
    return int(match.group(1)) if match else None


def is_manifest(name: str) -> bool:
    return _MANIFEST.fullmatch(name) is not None


def manifest_name(content: bytes) -> str:
    return "manifest-{}.json".format(hashlib.sha256(content).hexdigest()[:_DIGITS])


def commit_content(manifest: bytes) -> bytes:
    return _dump({"version": VERSION, "manifest": manifest_name(manifest)})


def committed(files: Mapping[str, int], read: Read) -> Iterator[Manifest]:
    """Steps that are whole as far as names and sizes tell, newest first.

    ``files``: paths below the checkpoint directory with their sizes in bytes. COMMIT and manifest are read
    and verified; parts are only looked for, and are verified by hash when they are loaded.
    """
    steps = {parse_step(path.split("/")[0]) for path in files if path.endswith("/" + COMMIT)}
    for step in sorted((step for step in steps if step is not None), reverse=True):
        manifest = manifest_of(step, files, read)
        if manifest is not None and all(
            files.get(step_directory(step) + "/" + part.name) == part.size for part in manifest.parts
        ):
            yield manifest


def manifest_of(step: int, files: Mapping[str, int], read: Read) -> Optional[Manifest]:
    """What COMMIT says a step is made of, whether its parts are there or not; None when it says nothing."""
    directory = step_directory(step) + "/"
    try:
        document = _load(read(directory + COMMIT))
        name = document.get("manifest") if document is not None else None
        if not isinstance(name, str) or directory + name not in files:
            return None
        content = read(directory + name)
    except (FileNotFoundError, KeyError):
        return None
    if manifest_name(content) != name:
        return None
    manifest = parse_manifest(content)
    return manifest if manifest is not None and manifest.step == step else None


def parse_outcome(content: bytes) -> Optional[Outcome]:
    """None for what is no outcome, or one of an unknown major version."""
    document = _load(content)
    if document is None or document.get("result") not in (FINISHED, CONTINUE):
        return None
    return Outcome(
        str(document["result"]),
        _step(document.get("step")),
        _text(document.get("run")),
        _text(document.get("job")),
        document.get("closed") is True,
        _step(document.get("reported")),
        document.get("repeats") is True,
    )


def parse_manifest(content: bytes) -> Optional[Manifest]:
    """None for what is no manifest, or one of an unknown major version."""
    document = _load(content)
    try:
        if document is None:
            return None
        parts = tuple(
            Part(int(row["rank"]), str(row["name"]), int(row["size"]), str(row["sha256"]))
            for row in document["parts"]
        )
        if not all(_PART.fullmatch(part.name) and _HASH.fullmatch(part.sha256) for part in parts):
            return None
        samples = document.get("samples")
        return Manifest(
            int(document["step"]),
            int(document["world_size"]),
            parts,
            samples if isinstance(samples, int) else None,
            _text(document.get("job")),
        )
    except (KeyError, TypeError, ValueError):
        return None


def _dump(document: Mapping[str, Any]) -> bytes:
    # No newline at the end: however little is cut off, what is left does not parse.
    return json.dumps(document, indent=1, sort_keys=True).encode("ascii")


def _load(content: bytes) -> Optional[Dict[str, Any]]:
    try:
        document = json.loads(content.decode("utf-8"))
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    return document if str(document.get("version", "")).split(".")[0] == VERSION.split(".")[0] else None


def _step(value: Any) -> Optional[int]:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _text(value: Any) -> Optional[str]:
    return value if isinstance(value, str) else None
