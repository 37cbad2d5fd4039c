"""Lists of the files that each host reads. They are in a channel of their own, and are read at run time.

Below ``/opt/ml/input/data/smlaunch-shards/<channel>/`` are ``shards.json`` and one list per host. A list is
JSON lines: each is the name of one file as a JSON string, relative to the channel's own folder.
"""

import json
from typing import Any, Iterable, List, NamedTuple, Optional, Tuple

from smlaunch.contract import formats

SHARDS_CHANNEL = "smlaunch-shards"
"""The input channel that carries the lists of all hosts, a folder for each channel that is split."""

SHARDS_FILE = "shards.json"


class ShardList(NamedTuple):
    """The list of one host's files."""

    file: str
    """Name of the list beside the index."""

    files: int
    """Number of files in it."""

    bytes: int
    """Their total size."""


class ShardListIndex(NamedTuple):
    """All lists of one channel."""

    channel: str
    shards: Tuple[ShardList, ...]
    """One for each host, in the natural order of the hosts' names."""

    def to_json(self) -> str:
        rows = [shard._asdict() for shard in self.shards]
        document = formats.SHARDS.stamp({"channel": self.channel, "shards": rows})
        return json.dumps(document, indent=1, sort_keys=True) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "ShardListIndex":
        """Raises ValueError with what is wrong."""
        document = formats.SHARDS.upgrade_document(json.loads(text), SHARDS_FILE)
        try:
            rows = [
                ShardList(str(row["file"]), int(row["files"]), int(row["bytes"]))
                for row in document["shards"]
            ]
            return cls(str(document["channel"]), tuple(rows))
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError("not an index of lists: {!r}".format(error)) from None


def shard_list_name(host_index: int) -> str:
    """``host_index``: from 0."""
    return "shard-{:05d}.jsonl".format(host_index)


def to_json_lines(names: Iterable[str]) -> str:
    return "".join(json.dumps(name) + "\n" for name in names)


def parse_json_lines(lines: Iterable[Any]) -> List[str]:
    """Return the file names in a list of one JSON string per line. Raises ValueError for a line that is no
    file name, and for a name that leads outside the folder."""
    names = []
    for number, line in enumerate(lines, start=1):
        name = json.loads(line)
        problem = "it is not a JSON string" if not isinstance(name, str) else file_name_problem(name)
        if problem is not None:
            raise ValueError("line {}: {}".format(number, problem))
        names.append(name)
    return names


def file_name_problem(name: str) -> Optional[str]:
    """Why an object of this name, relative to its prefix, cannot be a file below a folder; None if it can."""
    if "\0" in name:
        return "{!r} has a zero byte, which no path can".format(name)
    folders = name.split("/")
    if "" in folders:
        return "{!r} has an empty folder name: '/' at an end, or '//'".format(name)
    if "." in folders or ".." in folders:
        return "{!r} has a folder name '.' or '..', which means another folder".format(name)
    if max(len(segment.encode("utf-8", "surrogatepass")) for segment in folders) > 255:
        return "{!r} has a name of more than 255 bytes, which Linux has no room for".format(name[:60] + "...")
    return None
