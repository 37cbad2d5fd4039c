"""How an attempt of a segment ended: the outcome files beside the checkpoints.

    smlaunch/outcome-<run>-s3-a1.json          the attempt's: written by ranks, completed by the leader's host
    smlaunch/outcome-<run>-s3-a1.algo-2.json   one host's, where hosts train apart from each other

Only the attempt in the name writes a file, and replaces it as a whole.

Where ranks are independent (share-nothing), each may come to its end in another segment. A run has finished
when every rank has, in this attempt or in an earlier segment. An earlier attempt of the same segment does not
count: its job failed, and a failed job keeps no model.
"""

import re
from typing import Any, Dict, Iterable, List, Mapping, NamedTuple, Optional, Tuple

from smlaunch.contract import formats
from smlaunch.contract.checkpoint import ReadFile
from smlaunch.contract.formats import unknown_members
from smlaunch.contract.json_document import integer_or_none, parse_document, text_or_none, to_json_bytes
from smlaunch.contract.names import (
    RESERVED_FOLDER,
    WRITER_REGEX,
    CheckpointWriter,
    host_outcome_path,
    outcome_path,
)

OUTCOME_PATH_PREFIX = RESERVED_FOLDER + "/outcome-"
"""Prefix of the paths of outcome files."""

FINISHED = "finished"
CONTINUE = "continue"

_OUTCOME = re.compile(RESERVED_FOLDER + r"/outcome-" + WRITER_REGEX + r"(?:\.(?P<host>[^/]+))?\.json")


class SegmentOutcome(NamedTuple):
    """How one attempt of a segment ended."""

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

    independent_ranks: int = 0
    """Number of ranks of the job, over all hosts, that train apart from each other; 0 where they train
    together, or there is one. ``result`` is then FINISHED only if the leader knew of the end of all.
    """

    extra: Tuple[Tuple[str, Any], ...] = ()
    """Members that a later minor version added; they are written again unchanged."""

    finished_in: Tuple[str, ...] = ()
    """Of a finished run of independent ranks: the jobs in which they came to their ends. Not stored."""

    @property
    def writer(self) -> CheckpointWriter:
        return CheckpointWriter(self.run, self.segment, self.attempt)

    @property
    def path(self) -> str:
        """Below the checkpoint directory."""
        return outcome_path(self.writer)

    def to_dict(self) -> Dict[str, Any]:
        members = self._asdict()
        del members["extra"], members["finished_in"]
        return {**dict(self.extra), **formats.OUTCOME.stamp(members)}

    def to_bytes(self) -> bytes:
        return to_json_bytes(self.to_dict())


class RanksOfHost(NamedTuple):
    """How the ranks of one host ended in an attempt, where hosts train apart from each other."""

    host: str
    result: str
    """FINISHED or CONTINUE."""

    run: Optional[str] = None
    job: Optional[str] = None
    segment: int = 1
    attempt: int = 1
    reported_step: Optional[int] = None
    """The highest step in the host's progress lines; None without any."""

    independent_ranks: int = 0
    """As in SegmentOutcome."""

    finished_ranks: Tuple[Tuple[int, str], ...] = ()
    """Of independent ranks: those that have trained to their end, by their number on the host from 0, and the
    job in which they did.
    """

    @property
    def path(self) -> str:
        """Below the checkpoint directory."""
        return host_outcome_path(CheckpointWriter(self.run, self.segment, self.attempt), self.host)

    def to_bytes(self) -> bytes:
        members = {
            **self._asdict(),
            "finished_ranks": {str(rank): job for rank, job in self.finished_ranks},
        }
        return to_json_bytes(formats.HOST_OUTCOME.stamp(members))


def find_newest_outcome(
    files: Iterable[str], read_file: ReadFile, run_id: Optional[str]
) -> Optional[SegmentOutcome]:
    """The readable outcome of the run's newest segment and attempt, with that of its hosts; None without one.

    ``files``: paths below the checkpoint directory. ``run_id``: None for any run. Raises FormatError for a
    version that this release does not read.
    """
    files = list(files)
    paths = sorted(
        (int(match.group("segment")), int(match.group("attempt")), match.string)
        for match in map(_OUTCOME.fullmatch, files)
        if match is not None and match.group("host") is None and run_id in (None, match.group("run"))
    )
    for _, _, path in reversed(paths):
        content = _read(path, read_file)
        outcome = None if content is None else parse_outcome(content, path)
        if outcome is not None:
            return _with_hosts(outcome, files, read_file)
    return None


def find_ranks_of_hosts(
    files: Iterable[str], read_file: ReadFile, writer: CheckpointWriter, *, includes_own_attempt: bool = False
) -> List[RanksOfHost]:
    """Return the newest outcome of each host from the segments before that of ``writer``;
    ``includes_own_attempt``: and from this attempt. ``files``: paths below the checkpoint directory. Raises
    FormatError."""
    newest_path_by_host: Dict[str, Tuple[int, int, str]] = {}
    for match in map(_OUTCOME.fullmatch, files):
        if match is None or match.group("host") is None or match.group("run") != writer.run:
            continue
        segment_and_attempt = int(match.group("segment")), int(match.group("attempt"))
        is_own = segment_and_attempt == (writer.segment, writer.attempt)
        if segment_and_attempt[0] < writer.segment or (includes_own_attempt and is_own):
            host = match.group("host")
            newest_path_by_host[host] = max(
                (*segment_and_attempt, match.string), newest_path_by_host.get(host, (0, 0, ""))
            )
    ranks_of_hosts = []
    for _, _, path in newest_path_by_host.values():
        content = _read(path, read_file)
        ranks = None if content is None else parse_ranks_of_host(content, path)
        if ranks is not None and ranks.path == path:
            ranks_of_hosts.append(ranks)
    return sorted(ranks_of_hosts)


def _with_hosts(outcome: SegmentOutcome, files: List[str], read_file: ReadFile) -> SegmentOutcome:
    """Return the outcome of a segment's attempt, completed by the outcomes that its other hosts have
    written."""
    hosts = find_ranks_of_hosts(files, read_file, outcome.writer, includes_own_attempt=True)
    is_of_attempt = [(host.segment, host.attempt) == (outcome.segment, outcome.attempt) for host in hosts]
    hosts_of_attempt = [host for host, is_own in zip(hosts, is_of_attempt) if is_own]
    steps = [
        step
        for step in (outcome.reported_step, *(host.reported_step for host in hosts_of_attempt))
        if step is not None
    ]
    outcome = outcome._replace(reported_step=max(steps, default=None))
    if not outcome.independent_ranks:
        has_more = any(host.result == CONTINUE for host in hosts_of_attempt)
        return outcome._replace(result=CONTINUE) if has_more else outcome
    finished_jobs = [
        job
        for host in hosts
        if host.independent_ranks == outcome.independent_ranks
        for _, job in host.finished_ranks
    ]
    if len(finished_jobs) < outcome.independent_ranks:
        return outcome._replace(result=CONTINUE)
    return outcome._replace(result=FINISHED, finished_in=tuple(sorted(set(finished_jobs))))


def _read(path: str, read_file: ReadFile) -> Optional[bytes]:
    try:
        return read_file(path)
    except (FileNotFoundError, KeyError):
        return None


def parse_outcome(content: bytes, document_name: str = "outcome") -> Optional[SegmentOutcome]:
    """None for a text that is no outcome. Raises FormatError for a version that this release
    does not read.
    """
    document = parse_document(formats.OUTCOME, content, document_name)
    if document is None or document.get("result") not in (FINISHED, CONTINUE):
        return None
    outcome = SegmentOutcome(
        str(document["result"]),
        integer_or_none(document.get("step")),
        text_or_none(document.get("run")),
        text_or_none(document.get("job")),
        integer_or_none(document.get("segment")) or 1,
        integer_or_none(document.get("attempt")) or 1,
        document.get("ranks_succeeded") is True,
        integer_or_none(document.get("reported_step")),
        document.get("repeats_steps") is True,
        max(0, integer_or_none(document.get("independent_ranks")) or 0),
    )
    return outcome._replace(extra=tuple(sorted(unknown_members(document, outcome.to_dict()).items())))


def parse_ranks_of_host(content: bytes, document_name: str = "outcome") -> Optional[RanksOfHost]:
    """None for a text that is none. Raises FormatError."""
    document = parse_document(formats.HOST_OUTCOME, content, document_name)
    if document is None or document.get("result") not in (FINISHED, CONTINUE):
        return None
    return RanksOfHost(
        str(document.get("host")),
        str(document["result"]),
        text_or_none(document.get("run")),
        text_or_none(document.get("job")),
        integer_or_none(document.get("segment")) or 1,
        integer_or_none(document.get("attempt")) or 1,
        integer_or_none(document.get("reported_step")),
        max(0, integer_or_none(document.get("independent_ranks")) or 0),
        _parse_finished_ranks(document.get("finished_ranks")),
    )


def _parse_finished_ranks(value: Any) -> Tuple[Tuple[int, str], ...]:
    if not isinstance(value, Mapping):
        return ()
    ranks = {
        int(rank): job
        for rank, job in value.items()
        if rank.isascii() and rank.isdigit() and isinstance(job, str)
    }
    return tuple(sorted(ranks.items()))
