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
        document = formats.SHARDS.with_version({"channel": self.channel, "shards": rows})
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
    """Return the file names of a shard list (the files that one host reads), which has one JSON string per
    line. Raises ValueError for a line that is no file name, and for a name that leads outside the folder
    (``find_file_name_problem``: why not, or None)."""
    file_names: List[str] = []
    for line_number, line in enumerate(lines, start=1):
        file_name = json.loads(line)
        if not isinstance(file_name, str):
            raise ValueError("line {}: it is not a JSON string".format(line_number))
        problem = find_file_name_problem(file_name)
        if problem is not None:
            raise ValueError("line {}: {}".format(line_number, problem))
        file_names.append(file_name)
    return file_names


def find_file_name_problem(relative_path: str) -> Optional[str]:
    """Return why an object of this name, relative to its S3 prefix, cannot be a file below a folder; None if
    it can."""
    if "\0" in relative_path:
        return "{!r} has a zero byte, which no path can".format(relative_path)
    path_components = relative_path.split("/")
    if "" in path_components:
        return "{!r} has an empty folder name: '/' at an end, or '//'".format(relative_path)
    if "." in path_components or ".." in path_components:
        return "{!r} has a folder name '.' or '..', which means another folder".format(relative_path)
    if max(len(component.encode("utf-8", "surrogatepass")) for component in path_components) > 255:
        return "{!r} has a name of more than 255 bytes, which Linux has no room for".format(
            relative_path[:60] + "..."
        )
    return None
