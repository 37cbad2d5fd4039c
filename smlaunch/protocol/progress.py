"""The progress line: one line of text that any script can print, without importing anything.

    smlaunch: progress step=120 steps=1000 loss=0.41

``smlaunch:``, a kind, then ``key=value`` words parted by spaces. Numbers are read as numbers; other values
are percent-encoded where they hold spaces. ``step`` and ``steps`` (done so far, and in all) give the
progress bar and the time left; every other number is a metric of the moment. ``metric`` instead of
``progress`` tells a result without moving the bar. Kinds this reader does not know are kept as they are, so
that a newer script works with an older client.

A chain goes by ``step`` of ``progress`` lines: it counts over the whole training, not from a segment's start.
"""

import re
from typing import Dict, Iterator, NamedTuple, Optional, Union
from urllib.parse import quote, unquote

MARK = "smlaunch: "
PROGRESS = "progress"
METRIC = "metric"

DATA_WAIT = "data_wait_share"
"""The metric that any script may print: which share of a step it waits for data, between 0 and 1."""

NOT_KNOWN = "progress not known: the script reports no step"
"""After MARK, once at the end of a segment."""

_STEP_MARK = (MARK + PROGRESS + " ").encode()
_LONGEST_LINE = 4096
_MOST_STEPS = 1 << 53
"""What JSON's readers hold without loss."""

_LINE = re.compile(r"smlaunch: ([a-z][a-z_-]*)((?: [A-Za-z_][A-Za-z0-9_.-]*=\S*)+)\s*$")

Value = Union[int, float, str]


class Progress(NamedTuple):
    kind: str
    values: Dict[str, Value]


def format_line(kind: str, **values: Value) -> str:
    words = [
        "{}={}".format(key, quote(str(value), safe="/:+,;@!*()[]{}'\"")) for key, value in values.items()
    ]
    return MARK + " ".join([kind, *words])


def parse_line(line: str) -> Optional[Progress]:
    """None for a line that is not a progress line. A prefix such as ``[3] `` before the mark is allowed."""
    start = line.find(MARK)
    if start < 0:
        return None
    match = _LINE.match(line[start:].rstrip("\r\n"))
    if match is None:
        return None
    values: Dict[str, Value] = {}
    for word in match.group(2).split():
        key, _, text = word.partition("=")
        values[key] = _value(text)
    return Progress(match.group(1), values)


def steps_in(lines: bytes) -> Iterator[int]:
    """The steps that progress lines report, in their order. ``lines``: whole ones, of a rank's output."""
    start = lines.find(_STEP_MARK)
    while start >= 0:
        end = lines.find(b"\n", start)
        end = len(lines) if end < 0 else end
        found = parse_line(lines[start : min(end, start + _LONGEST_LINE)].decode("utf-8", "replace"))
        step = None if found is None or found.kind != PROGRESS else found.values.get("step")
        if isinstance(step, int) and 0 <= step < _MOST_STEPS:
            yield step
        start = lines.find(_STEP_MARK, end)


def _value(text: str) -> Value:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return unquote(text)
