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

MAX_REASON_LENGTH = 1024
MAX_FAILURE_LENGTH = 960
"""Of our own text: the prefix and the exit code that the service adds must fit too."""

_REASON_CLASS = re.compile(r"^(?:AlgorithmError|InternalServerError): ")
"""Only these reasons can be about one host."""

_FIRST_LINE = re.compile(
    r"(?:rank (?P<rank>\d+) on |service (?P<service>\S+) on )?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*) "
    r"(?:exited with code (?P<code>\d+)|was killed by (?P<signal>SIG[A-Z0-9]+)|failed)"
    r"(?:: (?P<cause>[^\n]*))?"
)


class Failure(NamedTuple):
    """A parsed failure text."""

    cause: str
    host: Optional[str] = None
    rank: Optional[int] = None
    exit_code: Optional[int] = None
    """128 + n for a process killed by signal n, as in a shell."""

    traceback: str = ""
    service: Optional[str] = None


def format_failure(
    host: str,
    rank: Optional[int],
    exit_code: Optional[int],
    cause: str = "",
    traceback: str = "",
    signal: Optional[str] = None,
    service: Optional[str] = None,
) -> str:
    """Return the text of a failure file: one line about the process that failed first, then its traceback.
    ``signal``: name of the signal that killed the process, such as ``SIGKILL``. ``service``: name of the
    service that failed instead of a rank."""
    source = "rank {} on {}".format(rank, host) if rank is not None else host
    if service:
        source = "service {} on {}".format("-".join(service.split()), host)
    if signal:
        ending = "was killed by {}".format(signal)
    elif exit_code is not None:
        ending = "exited with code {}".format(exit_code)
    else:
        ending = "failed"
    first_line = "{} {}".format(source, ending)
    if cause:
        first_line += ": " + cause.strip().replace("\n", " ")
    first_line = first_line[:MAX_FAILURE_LENGTH]
    remaining_length = MAX_FAILURE_LENGTH - len(first_line) - 1
    traceback_end = traceback.strip()
    if not traceback_end or remaining_length < 40:
        return first_line
    if len(traceback_end) > remaining_length:
        traceback_end = "..." + traceback_end[-(remaining_length - 3) :]
    return first_line + "\n" + traceback_end


def parse_failure(text: str) -> Failure:
    """Parse a FailureReason or a failure file; any other text becomes the cause unchanged."""
    text_body = _REASON_CLASS.sub("", text.strip())
    exit_code_match = re.search(r", exit code: (\d+)\s*$", text_body)
    exit_code = int(exit_code_match.group(1)) if exit_code_match else None
    if exit_code_match:
        text_body = text_body[: exit_code_match.start()]
    match = _FIRST_LINE.match(text_body)
    if match is None:
        return Failure(cause=text_body, exit_code=exit_code)
    first_line, _, traceback = text_body.partition("\n")
    if match.group("code"):
        exit_code = int(match.group("code"))
    rank = match.group("rank")
    return Failure(
        cause=match.group("cause") or first_line,
        host=match.group("host"),
        rank=int(rank) if rank is not None else None,
        exit_code=exit_code,
        traceback=traceback,
        service=match.group("service"),
    )
