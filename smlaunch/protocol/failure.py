"""The failure file: who failed first, and why, in the 1,024 characters that become FailureReason.

    rank 3 on algo-2 exited with code 1: ValueError: boom
    Traceback (most recent call last):
      ...

The first line is for people and for the client, which reads host, rank and code back from it. What follows
is the end of that rank's traceback, as much as fits. SageMaker keeps the first 1,024 characters of the file
(AWS developer guide, your-algorithms-training-algo-output) and puts ``AlgorithmError: `` in front.
"""

import re
from typing import NamedTuple, Optional

LIMIT = 1024
ROOM = 960
"""What we write: the service's own prefix and the exit code it appends must fit in LIMIT too."""

_CLASS = re.compile(r"^(?:AlgorithmError|InternalServerError): ")
"""Reasons of these classes may be about one host."""

_FIRST = re.compile(
    r"(?:rank (?P<rank>\d+) on |service (?P<service>\S+) on )?(?P<host>[A-Za-z0-9][A-Za-z0-9.-]*) "
    r"(?:exited with code (?P<code>\d+)|was killed by (?P<signal>SIG[A-Z0-9]+)|failed)"
    r"(?:: (?P<cause>[^\n]*))?"
)


class Failure(NamedTuple):
    """``exit_code`` follows the shell's habit: 128 + n for a process killed by signal n."""

    cause: str
    host: Optional[str] = None
    rank: Optional[int] = None
    exit_code: Optional[int] = None
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
    """``signal``: the signal's name when the process was killed by one, such as ``SIGKILL``. ``service``: the
    name of one that failed instead of a rank.
    """
    who = "rank {} on {}".format(rank, host) if rank is not None else host
    if service:
        who = "service {} on {}".format("-".join(service.split()), host)
    if signal:
        what = "was killed by {}".format(signal)
    elif exit_code is not None:
        what = "exited with code {}".format(exit_code)
    else:
        what = "failed"
    first = "{} {}".format(who, what)
    if cause:
        first += ": " + cause.strip().replace("\n", " ")
    first = first[:ROOM]
    room = ROOM - len(first) - 1
    tail = traceback.strip()
    if not tail or room < 40:
        return first
    if len(tail) > room:
        tail = "..." + tail[-(room - 3) :]
    return first + "\n" + tail


def parse_failure(text: str) -> Failure:
    """Reads a FailureReason or a failure file; text that is not ours becomes the cause as it is."""
    body = _CLASS.sub("", text.strip())
    stated = re.search(r", exit code: (\d+)\s*$", body)
    code = int(stated.group(1)) if stated else None
    if stated:
        body = body[: stated.start()]
    match = _FIRST.match(body)
    if match is None:
        return Failure(cause=body, exit_code=code)
    first, _, traceback = body.partition("\n")
    if match.group("code"):
        code = int(match.group("code"))
    rank = match.group("rank")
    return Failure(
        cause=match.group("cause") or first,
        host=match.group("host"),
        rank=int(rank) if rank is not None else None,
        exit_code=code,
        traceback=traceback,
        service=match.group("service"),
    )
