"""How an attempt of a segment ended: the outcome files beside the checkpoints.

    smlaunch/outcome-<run>-s3-a1.json          the attempt's: written by ranks, completed by the leader's host
    smlaunch/outcome-<run>-s3-a1.algo-2.json   one host's, where hosts train apart from each other

Only the attempt in the name writes a file, and replaces it as a whole.

Where ranks are independent (share-nothing), each may come to its end in another segment. A run has finished
when every rank has, in this attempt or in an earlier segment. An earlier attempt of the same segment does not
count: its job failed, and a failed job keeps no model.
"""

import re
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from smlaunch.contract import formats
from smlaunch.contract.checkpoint_layout import ReadFile
from smlaunch.contract.formats import unknown_members
from smlaunch.contract.json_document import integer_or_none, parse_document, text_or_none, to_json_bytes
from smlaunch.contract.run_names import (
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

_OUTCOME_PATH = re.compile(RESERVED_FOLDER + r"/outcome-" + WRITER_REGEX + r"(?:\.(?P<host>[^/]+))?\.json")


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

    job_hash: Optional[str] = None
    """Of the job that was launched; None in files of releases before format 1.1."""

    extra: Tuple[Tuple[str, Any], ...] = ()
    """Members that a later minor version added; they are written again unchanged."""

    finished_in: Tuple[str, ...] = ()
    """Of a finished run: the jobs in which its ranks came to their ends, several where they are independent.
    Later jobs have only found that nothing is left. Not stored.
    """

    @property
    def writer(self) -> CheckpointWriter:
        return CheckpointWriter(self.run, self.segment, self.attempt)

    @property
    def path(self) -> str:
        """Below the checkpoint directory."""
        return outcome_path(self.writer)

    @property
    def has_finished(self) -> bool:
        """Whether the training has come to its end, and the ranks have done their last work after it."""
        return self.result == FINISHED and self.ranks_succeeded

    def is_of_job(self, job_hash: Optional[str]) -> bool:
        """Whether it is of the job with this hash. True where one of the hashes is not known: then the run's
        name is all that says so."""
        return self.job_hash is None or job_hash is None or self.job_hash == job_hash

    def to_dict(self) -> Dict[str, Any]:
        members = self._asdict()
        del members["extra"], members["finished_in"]
        return {**dict(self.extra), **formats.OUTCOME.with_version(members)}

    def to_bytes(self) -> bytes:
        return to_json_bytes(self.to_dict())


class HostSegmentOutcome(NamedTuple):
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
        return to_json_bytes(formats.HOST_OUTCOME.with_version(members))


def find_newest_outcome(
    file_paths: Iterable[str], read_file: ReadFile, run_id: Optional[str], job_hash: Optional[str] = None
) -> Optional[SegmentOutcome]:
    """Return how the newest job of a run ended: the outcome file of the highest segment (part of the run) and
    attempt (one job of it) that can be read, completed by those of its hosts; None without one.

    ``file_paths``: files below the checkpoint directory; ``read_file`` returns the content of one.
    ``run_id``: None for any run. ``job_hash``: of the run's job; those of another job under the run's name do
    not count. Raises FormatError for a version that this release does not read.
    """
    file_paths = list(file_paths)
    outcome_files = [
        outcome_file
        for outcome_file in _parse_outcome_paths(file_paths)
        if outcome_file.host is None and run_id in (None, outcome_file.run)
    ]
    newest_outcome: Optional[SegmentOutcome] = None
    for outcome_file in sorted(outcome_files, key=_outcome_age_key, reverse=True):
        content = _read_if_exists(outcome_file.path, read_file)
        outcome = None if content is None else parse_outcome(content, outcome_file.path)
        if outcome is None or not outcome.is_of_job(job_hash):
            continue
        if newest_outcome is None:
            newest_outcome = _merge_host_outcomes(outcome, file_paths, read_file)
            if not newest_outcome.has_finished or newest_outcome.independent_ranks:
                break
        elif not outcome.has_finished or outcome.run != newest_outcome.run:
            break
        newest_outcome = newest_outcome._replace(finished_in=(outcome.job,) if outcome.job else ())
    return newest_outcome


def runs_with_outcomes(file_paths: Iterable[str]) -> Set[str]:
    """Return the names of the runs that have outcome files among ``file_paths``."""
    return {outcome_file.run for outcome_file in _parse_outcome_paths(file_paths) if outcome_file.run}


def outcome_paths_of_run(file_paths: Iterable[str], run_id: str) -> List[str]:
    """Return the outcome files of a run among ``file_paths``, those of its hosts included."""
    return [
        outcome_file.path for outcome_file in _parse_outcome_paths(file_paths) if outcome_file.run == run_id
    ]


class _OutcomeFile(NamedTuple):
    """What the path of an outcome file says."""

    path: str
    run: str
    segment: int
    attempt: int
    host: Optional[str]
    """None for the outcome of the attempt; otherwise that of this host alone."""


def _parse_outcome_paths(file_paths: Iterable[str]) -> Iterator[_OutcomeFile]:
    """Yield the outcome files among ``file_paths``."""
    for path in file_paths:
        match = _OUTCOME_PATH.fullmatch(path)
        if match is not None:
            segment, attempt = int(match.group("segment")), int(match.group("attempt"))
            yield _OutcomeFile(path, match.group("run"), segment, attempt, match.group("host"))


def _outcome_age_key(outcome_file: _OutcomeFile) -> Tuple[int, int, str]:
    """Sort key: the newest file comes last."""
    return outcome_file.segment, outcome_file.attempt, outcome_file.path


def find_newest_host_outcomes(
    file_paths: Iterable[str],
    read_file: ReadFile,
    writer: CheckpointWriter,
    *,
    includes_own_attempt: bool = False,
) -> List[HostSegmentOutcome]:
    """Return the newest outcome of each host (a file in which it says whether its training has finished),
    where hosts train independently, as the job ``writer`` (run, segment, attempt) may count them: from
    earlier segments only, since other attempts of its own segment have failed. ``includes_own_attempt``: also
    from ``writer`` itself. ``file_paths``: files below the checkpoint directory. Raises FormatError."""
    newest_by_host: Dict[str, _OutcomeFile] = {}
    for outcome_file in sorted(_parse_outcome_paths(file_paths), key=_outcome_age_key):
        if outcome_file.host is None or outcome_file.run != writer.run:
            continue
        is_own_attempt = (outcome_file.segment, outcome_file.attempt) == (writer.segment, writer.attempt)
        if outcome_file.segment < writer.segment or (includes_own_attempt and is_own_attempt):
            newest_by_host[outcome_file.host] = outcome_file
    host_outcomes: List[HostSegmentOutcome] = []
    for outcome_file in newest_by_host.values():
        content = _read_if_exists(outcome_file.path, read_file)
        host_outcome = None if content is None else parse_host_outcome(content, outcome_file.path)
        # A file that was renamed or copied says nothing about the host in its name.
        if host_outcome is not None and host_outcome.path == outcome_file.path:
            host_outcomes.append(host_outcome)
    return sorted(host_outcomes)


def _merge_host_outcomes(
    outcome: SegmentOutcome, file_paths: List[str], read_file: ReadFile
) -> SegmentOutcome:
    """Return the outcome that the leader (first host) wrote for an attempt, merged with those of its hosts:
    the highest reported step; FINISHED only if every host, or every independent rank, has finished; otherwise
    CONTINUE, as training goes on in another job. ``independent_ranks``: how many ranks train on their own; 0
    where they train together."""
    host_outcomes = find_newest_host_outcomes(
        file_paths, read_file, outcome.writer, includes_own_attempt=True
    )
    outcomes_of_attempt = [
        host_outcome
        for host_outcome in host_outcomes
        if (host_outcome.segment, host_outcome.attempt) == (outcome.segment, outcome.attempt)
    ]
    reported_steps = [
        step
        for step in (outcome.reported_step, *(host.reported_step for host in outcomes_of_attempt))
        if step is not None
    ]
    outcome = outcome._replace(reported_step=max(reported_steps, default=None))
    if not outcome.independent_ranks:
        has_unfinished_host = any(host.result == CONTINUE for host in outcomes_of_attempt)
        return outcome._replace(result=CONTINUE) if has_unfinished_host else outcome
    # They may have finished in earlier segments, unless there was another number of ranks then.
    finished_jobs = [
        job
        for host_outcome in host_outcomes
        if host_outcome.independent_ranks == outcome.independent_ranks
        for _rank, job in host_outcome.finished_ranks
    ]
    if len(finished_jobs) < outcome.independent_ranks:
        return outcome._replace(result=CONTINUE)
    return outcome._replace(result=FINISHED, finished_in=tuple(sorted(set(finished_jobs))))


def _read_if_exists(path: str, read_file: ReadFile) -> Optional[bytes]:
    try:
        return read_file(path)
    except (FileNotFoundError, KeyError):
        return None


def parse_outcome(content: bytes, document_name: str = "outcome") -> Optional[SegmentOutcome]:
    """Return the outcome of an attempt from the content of its file; None for a content that is no outcome.
    Raises FormatError for a version that this release does not read. ``document_name``: for that message.
    """
    document = parse_document(formats.OUTCOME, content, document_name)
    if document is None or document.get("result") not in (FINISHED, CONTINUE):
        return None
    outcome = SegmentOutcome(
        result=str(document["result"]),
        step=integer_or_none(document.get("step")),
        run=text_or_none(document.get("run")),
        job=text_or_none(document.get("job")),
        segment=integer_or_none(document.get("segment")) or 1,
        attempt=integer_or_none(document.get("attempt")) or 1,
        ranks_succeeded=document.get("ranks_succeeded") is True,
        reported_step=integer_or_none(document.get("reported_step")),
        repeats_steps=document.get("repeats_steps") is True,
        independent_ranks=max(0, integer_or_none(document.get("independent_ranks")) or 0),
        job_hash=text_or_none(document.get("job_hash")),
    )
    return outcome._replace(extra=tuple(sorted(unknown_members(document, outcome.to_dict()).items())))


def parse_host_outcome(content: bytes, document_name: str = "outcome") -> Optional[HostSegmentOutcome]:
    """Return the outcome of one host from the content of its file; None for a content that is none. Raises
    FormatError as ``parse_outcome`` does.
    """
    document = parse_document(formats.HOST_OUTCOME, content, document_name)
    if document is None or document.get("result") not in (FINISHED, CONTINUE):
        return None
    return HostSegmentOutcome(
        host=str(document.get("host")),
        result=str(document["result"]),
        run=text_or_none(document.get("run")),
        job=text_or_none(document.get("job")),
        segment=integer_or_none(document.get("segment")) or 1,
        attempt=integer_or_none(document.get("attempt")) or 1,
        reported_step=integer_or_none(document.get("reported_step")),
        independent_ranks=max(0, integer_or_none(document.get("independent_ranks")) or 0),
        finished_ranks=_parse_finished_ranks(document.get("finished_ranks")),
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
