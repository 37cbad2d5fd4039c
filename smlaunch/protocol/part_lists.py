"""Which files each host reads: lists that travel in a channel of their own, and are read at run time.

Below ``/opt/ml/input/data/smlaunch-parts/<channel>/`` lie ``parts.json`` and one list per host. A list is
JSON lines: each is the name of one file as a JSON string, relative to the channel's own folder.
"""

import json
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple

PARTS_CHANNEL = "smlaunch-parts"
"""The input channel that carries the lists of all hosts, a folder for each channel that is split."""

PARTS_INDEX = "parts.json"

VERSION = "1.0"


class Part(NamedTuple):
    """``file``: the list's name beside the index. ``files`` and ``bytes``: what stands in it."""

    file: str
    files: int
    bytes: int


class PartsIndex(NamedTuple):
    """``parts``: one for each host, in the natural order of the hosts' names."""

    channel: str
    parts: Tuple[Part, ...]

    def to_json(self) -> str:
        rows = [part._asdict() for part in self.parts]
        document = {"version": VERSION, "channel": self.channel, "hosts": len(rows), "parts": rows}
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "PartsIndex":
        """Raises ValueError with what is wrong."""
        document = json.loads(text)
        try:
            version = str(document["version"])
            if version.split(".")[0] != VERSION.split(".")[0]:
                raise ValueError("version {!r}, and this smlaunch reads {}".format(version, VERSION))
            rows = [Part(str(row["file"]), int(row["files"]), int(row["bytes"])) for row in document["parts"]]
            return cls(str(document["channel"]), tuple(rows))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("not an index of lists: {!r}".format(error)) from None


def list_name(host: int) -> str:
    """``host``: counted from 0."""
    return "part-{:05d}.jsonl".format(host)


def to_lines(names: Iterable[str]) -> str:
    return "".join(json.dumps(name) + "\n" for name in names)


def from_lines(lines: Iterable[Any]) -> List[str]:
    """Raises ValueError for a line that is no file's name, and for a name that leads elsewhere."""
    names = []
    for number, line in enumerate(lines, start=1):
        name = json.loads(line)
        problem = "it is not a JSON string" if not isinstance(name, str) else fault_of(name)
        if problem is not None:
            raise ValueError("line {}: {}".format(number, problem))
        names.append(name)
    return names


def fault_of(name: str) -> Optional[str]:
    """Why an object of this name, relative to its prefix, cannot be a file below a folder; None if it can."""
    if "\0" in name:
        return "{!r} has a zero byte, which no path can".format(name)
    segments = name.split("/")
    if "" in segments:
        return "{!r} has an empty folder name: '/' at an end, or '//'".format(name)
    if "." in segments or ".." in segments:
        return "{!r} has a folder name '.' or '..', which means another folder".format(name)
    if max(len(segment.encode("utf-8", "surrogatepass")) for segment in segments) > 255:
        return "{!r} has a name of more than 255 bytes, which Linux has no room for".format(name[:60] + "...")
    return None
