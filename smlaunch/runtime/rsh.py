"""What mpirun calls in the place of ssh: runs a command line on another host of this job, by its agent.

    python -c ... PORT KEY-FILE PATIENCE [options of ssh] HOST COMMAND...

The exit code is that of the command, 128 + n for signal n, and 255, as ssh's, when the host cannot be
reached, does not take us for one of its own, or is lost. Nothing is read from standard input.
"""

import os
import sys
from typing import List, NamedTuple, Optional, Sequence

from smlaunch.runtime import secret
from smlaunch.runtime.problems import Unusable
from smlaunch.runtime.wire import ENDED, ERR, OUT, WireError, call_agent

_LOST = 255
_WITH_VALUE = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
"""ssh(1): options that are followed by a word of their own."""


class Call(NamedTuple):
    host: str
    line: str


def parse(words: Sequence[str]) -> Optional[Call]:
    """The command's words are joined by spaces for a shell on the other side, as ssh does; so those who call
    it expect it, and quote. None when there is no host or no command.
    """
    rest: List[str] = list(words)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--":
            break
        if len(option) == 2 and option[1] in _WITH_VALUE and rest:
            rest.pop(0)
    if len(rest) < 2:
        return None
    return Call(rest[0].rpartition("@")[2], " ".join(rest[1:]))


def run(call: Call, port: int, key: bytes, patience: float) -> int:
    """Raises WireError."""
    wire = call_agent(call.host, port, key, {"do": "run", "line": call.line}, patience)
    while True:
        frame = wire.receive()
        if frame is None:
            raise WireError("{}: the connection was closed before the command had ended".format(call.host))
        if frame.kind == ENDED:
            return int(frame.payload)
        if frame.kind in (OUT, ERR):
            _write(1 if frame.kind == OUT else 2, frame.payload)


def main(arguments: Sequence[str]) -> int:
    port, key_file, patience = arguments[:3]
    call = parse(arguments[3:])
    if call is None:
        _write(2, b"smlaunch: a host and a command are needed\n")
        return _LOST
    try:
        return run(call, int(port), secret.read(key_file), float(patience))
    except (WireError, Unusable) as error:
        _write(2, "smlaunch: {}: {}\n".format(call.host, error).encode("utf-8", "replace"))
        return _LOST


def _write(descriptor: int, data: bytes) -> None:
    """Nobody may read any more: the exit status is still wanted."""
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except OSError:
            return


def start() -> None:
    sys.exit(main(sys.argv[1:]))
