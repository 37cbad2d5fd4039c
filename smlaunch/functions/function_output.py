"""Reads what a function's run has left: the result of rank 0, or the exception of the rank that failed first.

What is trusted: the log, which the hosts write and the bucket's users do not, states format, size and SHA-256
of each file. A file of another hash is never read further, whatever it is. The files lie in the run's own
output prefix, in a bucket whose owner every request states.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from smlaunch.aws.interfaces import CallError
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.errors import FunctionError, ServiceError
from smlaunch.functions.host_program import (
    ERROR_KIND,
    FORMATS,
    MAX_ERROR_BYTES,
    MAX_RESULT_BYTES,
    OUTPUT_FOLDER,
    PICKLE,
    RESULT_KIND,
    error_file,
    result_file,
)
from smlaunch.functions.result_decoding import ResultError, decode_exception, decode_result
from smlaunch.runs.call_errors import translate_call_errors
from smlaunch.runs.job_poller import Event, LogLine, host_number
from smlaunch.runs.launch_target import Target
from smlaunch.runs.log_tail import split_rank_prefix
from smlaunch.runs.run import Run
from smlaunch.runs.run_outcome import RunOutcome

_RESULT_LINE = re.compile(
    rf"smlaunch: {RESULT_KIND} format=({'|'.join(FORMATS)}) bytes=([0-9]{{1,15}}) sha256=([0-9a-f]{{64}})\s*$"
)
_ERROR_LINE = re.compile(
    rf"smlaunch: {ERROR_KIND} rank=([0-9]{{1,9}}) bytes=([0-9]{{1,15}}) sha256=([0-9a-f]{{64}})\s*$"
)

_REFUSED_START = re.compile(r"smlaunch: error: (.+ is not what the job was requested with)\s*$")
"""Of the program that a container starts with (VERIFIED_START)."""
_WRITERS_ADVICE = "see who may write into the bucket"

_LOG_RETRY_SECONDS = (5.0, 10.0, 20.0)
"""Waits for lines that CloudWatch Logs does not show yet, in a region."""


class RemoteTraceback(Exception):
    """The cause of an exception that a function raised on a host: its traceback there, as text."""

    def __init__(self, traceback: str) -> None:
        super().__init__(traceback)
        self.traceback = traceback

    def __str__(self) -> str:
        return f"\n{self.traceback}"


class AnnouncedFile(NamedTuple):
    """A file as the log states it."""

    name: str
    size: int
    sha256: str
    format: str = ""
    """Of a result."""


class _AnnouncedError(NamedTuple):
    host: str
    at_ms: int
    rank: int
    file: AnnouncedFile


@dataclass
class FunctionLog:
    """The lines by which the ranks of the newest job announce their files."""

    job: str = ""
    first_host: str = ""
    refusal: str = ""
    """Why a host has refused to start: somebody has replaced what it was to start. Empty otherwise."""
    _results: dict[str, AnnouncedFile] = field(default_factory=dict)
    """By host: of its last line."""
    _errors: list[_AnnouncedError] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Take a log line into account. Other events are ignored."""
        if not isinstance(event, LogLine):
            return
        if event.job != self.job:
            self.job, self.first_host, self.refusal = event.job, event.host, ""
            self._results.clear()
            self._errors.clear()
        self.first_host = min(self.first_host, event.host, key=host_number)
        rank, line = split_rank_prefix(event.text)
        refusal_match = _REFUSED_START.match(line) if rank is None else None
        if refusal_match is not None:
            self.refusal = f"{refusal_match[1]} (on {event.host} of {event.job})"
        result_match, error_match = _RESULT_LINE.search(line), _ERROR_LINE.search(line)
        if rank in (None, 0) and result_match is not None:
            result_format, size, sha256 = result_match.groups()
            self._results[event.host] = AnnouncedFile(
                result_file(result_format), int(size), sha256, result_format
            )
        if error_match is not None:
            failed_rank = int(error_match[1])
            if rank in (None, failed_rank):  # no rank speaks for another
                file = AnnouncedFile(error_file(failed_rank), int(error_match[2]), error_match[3])
                self._errors.append(_AnnouncedError(event.host, event.at, failed_rank, file))

    @property
    def result(self) -> AnnouncedFile | None:
        """The file that rank 0, on the first host, announced last."""
        return self._results.get(self.first_host)

    def find_error(self, host: str | None, rank: int | None) -> AnnouncedFile | None:
        """Return the file of the rank that failed first; without one, that of the earliest exception. A rank
        announces its own last: a line before that is of the function."""
        errors = sorted(self._errors, key=lambda error: error.at_ms)
        errors_of_rank = [error for error in errors if error.host == host and rank in (None, error.rank)]
        first_errors = errors_of_rank or errors
        if not first_errors:
            return None
        host, rank = first_errors[0].host, first_errors[0].rank
        return [error for error in errors if (error.host, error.rank) == (host, rank)][-1].file


class FunctionOutput:
    """The output of one run. ``output_uri``: the S3 prefix below which its jobs write."""

    def __init__(self, run: Run, target: Target, output_uri: str, function_name: str) -> None:
        self._run = run
        self._target = target
        self._output_uri = output_uri
        self._function_name = function_name

    def wait(self) -> Any:
        """Follow the run to its end, and return the function's result. Raises its exception, or
        FunctionError for an exception or a result that cannot be rebuilt here; for a run that ended
        otherwise, what Run.result raises; ServiceError for a result that is missing or is not the one that
        rank 0 announced."""
        log = FunctionLog()
        outcome = self._run.wait(log.add)
        if outcome.exit_code == 0:
            return self._read_result(log, outcome)
        raise self._find_exception(log, outcome)

    def _read_result(self, log: FunctionLog, outcome: RunOutcome) -> Any:
        """Return what the function has returned on rank 0. Raises ServiceError where the log announces no
        result, or the file is not the announced one."""
        job = outcome.last_job.name
        announced_file = log.result or self._read_log_again().result
        if announced_file is None:
            raise ServiceError(
                f"run {self._run.name} has completed, and the log of {job} states no hash of a result of "
                f"{self._function_name}, without which none is read: either the function ended its process "
                "itself (os._exit), or the log cannot be read (logs:GetLogEvents, logs:DescribeLogStreams); "
                "then submit the same call under the same name"
            )
        content = self._fetch(job, announced_file, MAX_RESULT_BYTES)
        try:
            return decode_result(announced_file.format, content)
        except ResultError as error:
            if announced_file.format != PICKLE:
                raise ServiceError(
                    f"run {self._run.name}: the result of {self._function_name}: {error}"
                ) from error
            raise FunctionError(
                f"run {self._run.name} has completed, and the result of {self._function_name} does not come "
                f"out of its pickle: {error}; the pickle is {OUTPUT_FOLDER}/{announced_file.name} in "
                f"{self._archive_uri(job)}"
            ) from error

    def _read_log_again(self) -> FunctionLog:
        """Read the whole log, and again for some seconds: its last lines may arrive after the job's end."""
        log = FunctionLog()
        waits = _LOG_RETRY_SECONDS if self._target.polling.settle_seconds else ()
        for seconds in (0.0, *waits):
            time.sleep(seconds)
            log = FunctionLog()
            for line in self._run.logs():
                log.add(line)
            if log.result is not None:
                break
        return log

    def _find_exception(self, log: FunctionLog, outcome: RunOutcome) -> BaseException:
        """Return the exception to raise for a run that did not complete."""
        run_error = outcome.error
        if run_error is None:  # an orchestrator's run, or a service that answers strangely
            return ServiceError(f"run {self._run.name} ended as {outcome.status}")
        failure = outcome.last_job.failure
        if outcome.last_job.status != "Failed" or failure is None:
            return run_error
        announced_file = log.find_error(failure.host, failure.rank)
        if announced_file is None:  # killed, out of memory, or a fault of the service
            return ServiceError(f"{log.refusal}; {_WRITERS_ADVICE}") if log.refusal else run_error
        try:
            remote = decode_exception(self._fetch(outcome.last_job.name, announced_file, MAX_ERROR_BYTES))
        except (ResultError, ServiceError) as error:
            return FunctionError(
                f"{run_error} (the exception itself is not available: {error})", traceback=failure.traceback
            )
        if remote.exception is not None:
            remote.exception.__cause__ = RemoteTraceback(remote.traceback)
            return remote.exception
        substitute = FunctionError(
            f"{self._function_name} raised {remote.type_name}: {remote.message} ({remote.problem})",
            type_name=remote.type_name,
            traceback=remote.traceback,
        )
        substitute.__cause__ = RemoteTraceback(remote.traceback)
        return substitute

    def _archive_uri(self, job: str) -> str:
        return f"{self._output_uri.rstrip('/')}/{job}/output/output.tar.gz"

    def _fetch(self, job: str, announced_file: AnnouncedFile, max_bytes: int) -> bytes:
        """Return the content of a file of the job's output. Raises ServiceError for one that is missing, too
        large or not the announced one."""
        bucket_and_key = split_s3_uri(self._archive_uri(job))
        if bucket_and_key is None:
            raise ServiceError(f"{self._output_uri} is no address in S3")
        bucket, key = bucket_and_key
        address = f"s3://{bucket}/{key}"
        if announced_file.size > max_bytes:
            raise ServiceError(
                f"{announced_file.name} of {job} takes {announced_file.size:,} bytes; at most "
                f"{max_bytes:,} are read"
            )
        with translate_call_errors(self._target):
            try:
                content = read_member(self._target.storage.read_chunks(bucket, key), announced_file)
            except CallError as error:
                if error.code not in ("NoSuchKey", "NoSuchBucket"):
                    raise
                raise ServiceError(f"{address} is missing, where {announced_file.name} was written") from None
            except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError) as error:
                raise ServiceError(f"{address} cannot be read: {error}") from None
        if hashlib.sha256(content).hexdigest() != announced_file.sha256:
            raise ServiceError(
                f"{announced_file.name} in {address} is not the file that the host has written: its SHA-256 "
                f"differs from that in the log of {job}. It was not read; {_WRITERS_ADVICE}"
            )
        return content


def read_member(chunks: Iterator[bytes], announced_file: AnnouncedFile) -> bytes:
    """Return the content of the announced file in a stream of a tar.gz archive. Raises ValueError if the
    archive lacks it or has another size of it, and what tarfile and zlib raise."""
    path = f"{OUTPUT_FOLDER}/{announced_file.name}"
    reader = io.BufferedReader(_ChunkReader(chunks), 1 << 20)
    with tarfile.open(fileobj=reader, mode="r|gz") as archive:
        for member in archive:
            if member.name != path and not member.name.endswith("/" + path):
                continue
            file = archive.extractfile(member) if member.isreg() else None
            if file is None or member.size != announced_file.size:
                raise ValueError(
                    f"{path} has {member.size:,} bytes, and the log states {announced_file.size:,}"
                )
            return file.read()
    raise ValueError(f"it has no {path}")


class _ChunkReader(io.RawIOBase):
    """A file that is read from chunks of bytes."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            try:
                self._rest = memoryview(next(self._chunks))
            except StopIteration:
                return 0
        length = min(len(buffer), len(self._rest))
        buffer[:length] = self._rest[:length]
        self._rest = self._rest[length:]
        return length
