"""The progress line: one line of text that any script can print, without importing anything.

    smlaunch: progress step=120 steps=1000 loss=0.41

``smlaunch:`` at the start of a line, a kind, then ``name=number`` pairs with spaces between them. ``step``
and ``steps`` (done so far, and in total, whole numbers) give the progress bar and the remaining time; every
other number is a current metric. A name is one or more printable characters without spaces and ``=``, such as
``val/loss``; what is no such pair is left out, and the others count. ``metric`` instead of ``progress``
reports a result without moving the bar; a ``step`` in it says when. Lines of other kinds may have texts as
values, percent-encoded where they contain spaces. Unknown kinds are returned unchanged, so that a newer
script works with an older client.

``smlaunch: live TEXT`` is what a line shows that is not complete: the runtime writes it now and then for a
rank that draws the same line again and again with carriage returns, as tqdm does. The line's last state
follows as an ordinary line.

A chain uses ``step`` of ``progress`` lines: it counts from the start of the training, not of a segment.
"""

import re
from typing import Dict, Iterator, List, NamedTuple, Optional, Tuple, Union
from urllib.parse import quote, unquote

LINE_PREFIX = "smlaunch: "
LIVE_PREFIX = LINE_PREFIX + "live "
PROGRESS_KIND = "progress"
METRIC_KIND = "metric"
PROGRESS_LINE_START = LINE_PREFIX + PROGRESS_KIND

DATA_WAIT_METRIC = "data_wait_share"
"""A metric that any script may print: the share of a step spent waiting for data, 0 to 1."""

PROGRESS_UNKNOWN = "progress not known: the script reports no step"
"""After MARK, once at the end of a segment."""

_ESCAPE = r"\x1b\[[0-9;]*[A-Za-z]"
_RANK_MARK = r"\[[^\]\s]{1,40}\](?:<\w+>)?:? ?"
"""``[3] ``; ``[rank3]: ``, as torch, and ``[1,3]<stdout>:``, as mpirun prints."""
_BAR = r"[^\n]*\[\d+:\d\d[^\]\n]*\] *"
"""tqdm's bar, which has no line end while it is drawn: `` 50%|###  | 3/6 [00:01<00:01,  2.9it/s]``."""
_LINE_START = re.compile(rf"(?:[^\n]*\r)?(?:{_ESCAPE}|{_RANK_MARK})*(?:{_BAR})?(?:{_ESCAPE})*$")

_PROGRESS_PREFIX = (PROGRESS_LINE_START + " ").encode()
_MAX_LINE_BYTES = 4096
_MAX_STEP = 1 << 53
"""JSON readers represent integers up to this exactly."""

_LINE = re.compile(r"smlaunch: ([a-z][a-z_-]*) (.*)$", re.DOTALL)
_KINDS_OF_SCRIPTS = (PROGRESS_KIND, METRIC_KIND)

_NUMBER_TYPES: Dict[str, Tuple[type, ...]] = {"step": (int,), "steps": (int,)}
"""Of what a script reports; metrics are numbers of any kind."""

MetricValue = Union[int, float, str]


class ProgressLine(NamedTuple):
    """A parsed line."""

    kind: str
    values: Dict[str, MetricValue]
    unreadable_words: Tuple[str, ...] = ()
    """What does not count of a script's line: each word that is no pair of a name and a number."""

    @property
    def progress(self) -> Tuple[Optional[int], Optional[int]]:
        """``step`` and ``steps`` of a line that moves the bar; None for what it lacks."""
        values = self.values if self.kind == PROGRESS_KIND else {}
        step, total_steps = values.get("step"), values.get("steps")
        return step if isinstance(step, int) else None, total_steps if isinstance(total_steps, int) else None


def format_line(kind: str, **values: MetricValue) -> str:
    """A progress line."""
    pairs = [
        "{}={}".format(key, quote(str(value), safe="/:+,;@!*()[]{}'\"")) for key, value in values.items()
    ]
    return LINE_PREFIX + " ".join([kind, *pairs])


def parse_line(line: str) -> Optional[ProgressLine]:
    """Parse a progress line of a rank, ``smlaunch: KIND KEY=VALUE ...`` such as ``smlaunch: progress step=3
    loss=0.5``; None for any other line. Only a rank's mark, such as ``[3] ``, or a progress bar may be in
    front of it: a line that is quoted in another one, as in a traceback that shows the source, is no report.
    """
    prefix_index = line.find(LINE_PREFIX)
    if prefix_index < 0 or _LINE_START.match(line[:prefix_index]) is None:
        return None
    match = _LINE.match(line[prefix_index:].rstrip("\r\n"))
    if match is None:
        return None
    kind, text = match.groups()
    values: Dict[str, MetricValue] = {}
    unreadable_words: List[str] = []
    is_of_script, has_pair = kind in _KINDS_OF_SCRIPTS, False
    for word in text.split():
        name, separator, value_text = word.partition("=")
        is_pair = bool(name and separator) and name.isprintable()
        has_pair = has_pair or is_pair
        value = _parse_value(value_text)
        if is_pair and (not is_of_script or isinstance(value, _NUMBER_TYPES.get(name, (int, float)))):
            values[name] = value
        else:
            unreadable_words.append(word)
    if not has_pair or (unreadable_words and not is_of_script):  # a sentence of smlaunch's own
        return None
    return ProgressLine(kind, values, tuple(unreadable_words))


def iter_steps(lines: bytes) -> Iterator[Tuple[int, Optional[int]]]:
    """Yield ``step`` and ``steps`` (the total, None where a line has none) of each progress line, in order.
    ``lines``: whole lines of a rank's output. Only lines with the prefix ``smlaunch: progress`` are decoded,
    since a script may print much else; steps too large to be counted exactly are left out."""
    prefix_index = lines.find(_PROGRESS_PREFIX)
    while prefix_index >= 0:
        line_end = lines.find(b"\n", prefix_index)
        if line_end < 0:
            line_end = len(lines)
        line_start = 1 + max(lines.rfind(b"\n", 0, prefix_index), lines.rfind(b"\r", 0, prefix_index))
        line_start = max(line_start, prefix_index - _MAX_LINE_BYTES)
        line = lines[line_start : min(line_end, prefix_index + _MAX_LINE_BYTES)].decode("utf-8", "replace")
        progress_line = parse_line(line)
        step, total_steps = (None, None) if progress_line is None else progress_line.progress
        if step is not None and 0 <= step < _MAX_STEP:
            yield step, total_steps
        prefix_index = lines.find(_PROGRESS_PREFIX, line_end)


def _parse_value(text: str) -> MetricValue:
    """Return a value as an integer, a number, or decoded text. An integer that is too large for a float is
    infinite."""
    try:
        number = int(text)
        float(number)
        return number
    except (ValueError, OverflowError):
        pass
    try:
        return float(text)
    except ValueError:
        return unquote(text)
