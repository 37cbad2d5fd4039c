"""The failure file: which process failed first, and why, in the 1,024 characters that become FailureReason.

    rank 3 on algo-2 exited with code 1: ValueError: boom
    Traceback (most recent call last):
      ...

The first line is for people and for the client, which parses host, rank and code. The end of that rank's
traceback follows, as much as fits. SageMaker keeps the first 1,024 characters of the file (AWS developer
guide, your-algorithms-training-algo-output) and puts ``AlgorithmError: `` in front.
"""

import re
from typing import NamedTuple, Optional

_MIN_TRACEBACK_LENGTH = 40
"""Characters; less of a traceback says nothing."""

MAX_REASON_LENGTH = 1024
MAX_FAILURE_LENGTH = 960
"""Of our own text: the prefix and the exit code that the service adds must fit too."""

_ERROR_CLASS_PREFIX = re.compile(r"^(?:AlgorithmError|InternalServerError): ")
"""Only these reasons can be about one host."""

_FIRST_FAILURE_LINE = re.compile(
    r"(?:rank (?P<rank>\d+) on |service (?P<service>\S+) on )?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*) "
    r"(?:exited with code (?P<code>\d+)|was killed by (?P<signal>SIG[A-Z0-9]+)|failed)"
    r"(?:: (?P<cause>[^\n]*))?"
)

_UNWRITTEN_FAILURE = "error: the failure file cannot be written"
"""Begins the log line that has the failure in the place of the file."""


class Failure(NamedTuple):
    """A parsed failure text."""

    cause: str
    host: Optional[str] = None
    rank: Optional[int] = None
    exit_code: Optional[int] = None
    """128 + n for a process killed by signal n, as in a shell."""

    traceback: str = ""
    service: Optional[str] = None
    signal: Optional[str] = None
    """Name of the signal that killed the process, such as SIGKILL."""

    @property
    def is_silent(self) -> bool:
        """Whether the container left no message: ``AlgorithmError: , exit code: 7``."""
        return self.host is None and not self.cause


def format_failure(
    host: str,
    rank: Optional[int],
    exit_code: Optional[int],
    cause: str = "",
    traceback: str = "",
    signal_name: Optional[str] = None,
    service_name: Optional[str] = None,
) -> str:
    """Return the text of a failure file: one line about the process that failed first, then the end of its
    traceback, as much as fits (``MAX_FAILURE_LENGTH`` characters in all). ``rank``: None for a failure of the
    host itself. ``signal_name``: of the signal that killed the process, such as ``SIGKILL``.
    ``service_name``: of the service (a program beside the ranks) that failed instead of a rank."""
    if service_name:
        # Without spaces: ``parse_failure`` reads one word.
        source_text = "service {} on {}".format("-".join(service_name.split()), host)
    elif rank is not None:
        source_text = "rank {} on {}".format(rank, host)
    else:
        source_text = host
    if signal_name:
        ending_text = "was killed by {}".format(signal_name)
    elif exit_code is not None:
        ending_text = "exited with code {}".format(exit_code)
    else:
        ending_text = "failed"
    first_line = "{} {}".format(source_text, ending_text)
    if cause:
        first_line += ": " + cause.strip().replace("\n", " ")
    first_line = first_line[:MAX_FAILURE_LENGTH]
    traceback_end = _shorten_traceback(traceback.strip(), MAX_FAILURE_LENGTH - len(first_line) - len("\n"))
    return "{}\n{}".format(first_line, traceback_end) if traceback_end else first_line


def _shorten_traceback(traceback: str, max_length: int) -> str:
    """Return the end of a traceback, in at most ``max_length`` characters; empty if too few are left."""
    if max_length < _MIN_TRACEBACK_LENGTH:
        return ""
    if len(traceback) <= max_length:
        return traceback
    return "..." + traceback[-(max_length - len("...")) :]


def parse_failure(text: str) -> Failure:
    """Parse SageMaker's FailureReason or the text of a failure file (``format_failure``: one line such as
    ``rank 3 on algo-2 exited with code 1: cause``, then a traceback); any other text becomes the cause
    unchanged."""
    failure_text = _ERROR_CLASS_PREFIX.sub("", text.strip())
    # The service appends the exit code of the container.
    container_code_match = re.search(r", exit code: (\d+)\s*$", failure_text)
    container_exit_code = None
    if container_code_match:
        container_exit_code = int(container_code_match.group(1))
        failure_text = failure_text[: container_code_match.start()]
    first_line_match = _FIRST_FAILURE_LINE.match(failure_text)
    if first_line_match is None:
        return Failure(cause=failure_text, exit_code=container_exit_code)
    traceback = failure_text.partition("\n")[2]
    rank, process_exit_code = first_line_match.group("rank"), first_line_match.group("code")
    return Failure(
        cause=first_line_match.group("cause") or "",
        host=first_line_match.group("host"),
        rank=int(rank) if rank is not None else None,
        # That of the process that failed first says more.
        exit_code=int(process_exit_code) if process_exit_code else container_exit_code,
        traceback=traceback,
        service=first_line_match.group("service"),
        signal=first_line_match.group("signal"),
    )


def format_unwritten_failure(problem: str, text: str) -> str:
    """Return the line, without smlaunch's prefix, that replaces a failure file which cannot be written.
    ``problem``: why, such as ``No space left on device``. ``text``: of the failure file: its first line
    counts."""
    return "{} ({}): {}".format(_UNWRITTEN_FAILURE, problem, text.partition("\n")[0])


def parse_unwritten_failure(line: str) -> Optional[Failure]:
    """Return the failure in such a line, without smlaunch's prefix; None for any other line."""
    text = line.partition("): ")[2]
    if not line.startswith(_UNWRITTEN_FAILURE) or not text:
        return None
    return parse_failure(text)
