"""The progress line: one line of text that any script can print, without importing anything.

    smlaunch: progress step=120 steps=1000 loss=0.41

``smlaunch:``, a kind, then ``key=value`` pairs with spaces between them. Numbers are parsed as numbers; other
values are percent-encoded where they contain spaces. ``step`` and ``steps`` (done so far, and in total) give
the progress bar and the remaining time; every other number is a current metric. ``metric`` instead of
``progress`` reports a result without moving the bar. Unknown kinds are returned unchanged, so that a newer
script works with an older client.

A chain uses ``step`` of ``progress`` lines: it counts from the start of the training, not of a segment.
"""

import re
from typing import Dict, Iterator, NamedTuple, Optional, Tuple, Union
from urllib.parse import quote, unquote

LINE_PREFIX = "smlaunch: "
PROGRESS_KIND = "progress"
METRIC_KIND = "metric"

DATA_WAIT_METRIC = "data_wait_share"
"""A metric that any script may print: the share of a step spent waiting for data, 0 to 1."""

PROGRESS_UNKNOWN = "progress not known: the script reports no step"
"""After MARK, once at the end of a segment."""

_PROGRESS_PREFIX = (LINE_PREFIX + PROGRESS_KIND + " ").encode()
_MAX_LINE_BYTES = 4096
_MAX_STEP = 1 << 53
"""JSON readers represent integers up to this exactly."""

_LINE = re.compile(r"smlaunch: ([a-z][a-z_-]*)((?: [A-Za-z_][A-Za-z0-9_.-]*=\S*)+)\s*$")

MetricValue = Union[int, float, str]


class ProgressLine(NamedTuple):
    """A parsed line."""

    kind: str
    values: Dict[str, MetricValue]


def format_line(kind: str, **values: MetricValue) -> str:
    """A progress line."""
    pairs = [
        "{}={}".format(key, quote(str(value), safe="/:+,;@!*()[]{}'\"")) for key, value in values.items()
    ]
    return LINE_PREFIX + " ".join([kind, *pairs])


def parse_line(line: str) -> Optional[ProgressLine]:
    """Parse a line of a rank's output; None for a line that is not a progress line. A prefix such as ``[3] ``
    before the mark is allowed."""
    start = line.find(LINE_PREFIX)
    if start < 0:
        return None
    match = _LINE.match(line[start:].rstrip("\r\n"))
    if match is None:
        return None
    values: Dict[str, MetricValue] = {}
    for pair in match.group(2).split():
        key, _, value_text = pair.partition("=")
        values[key] = _parse_value(value_text)
    return ProgressLine(match.group(1), values)


def iter_steps(lines: bytes) -> Iterator[Tuple[int, Optional[int]]]:
    """``step`` of each progress line in order, with ``steps`` (None where the line has none). ``lines``:
    whole lines of a rank's output.
    """
    start = lines.find(_PROGRESS_PREFIX)
    while start >= 0:
        end = lines.find(b"\n", start)
        end = len(lines) if end < 0 else end
        progress_line = parse_line(
            lines[start : min(end, start + _MAX_LINE_BYTES)].decode("utf-8", "replace")
        )
        metrics = {} if progress_line is None or progress_line.kind != PROGRESS_KIND else progress_line.values
        step, total_steps = metrics.get("step"), metrics.get("steps")
        if isinstance(step, int) and 0 <= step < _MAX_STEP:
            yield step, total_steps if isinstance(total_steps, int) else None
        start = lines.find(_PROGRESS_PREFIX, end)


def _parse_value(text: str) -> MetricValue:
    """An integer, a number, or decoded text."""
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return unquote(text)
