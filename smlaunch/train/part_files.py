"""This host's part of the data, however it was carried here."""

import json
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from smlaunch.protocol.hosts import natural_key
from smlaunch.protocol.part_lists import PARTS_CHANNEL, PARTS_INDEX, PartsIndex, from_lines
from smlaunch.protocol.paths import Paths, ProcessingPaths

_WHOLE = "FullyReplicated"


def part_files(channel: str = "train", environ: Optional[Mapping[str, str]] = None) -> List[str]:
    """Paths of the files of this host's part of a channel, in the order of their names. All ranks of a host
    get the same; the parts of all hosts together are the channel, and none is in two.

    The channel needs ``split`` in the job. Where a list came along (``carry: lists``), the part is that of
    this host's position among the hosts that train together, in the natural order of their names, at run
    time; otherwise it is what the platform has put here. May be empty. Raises RuntimeError when the lists are
    for another number of hosts, when one is not what its index says, and when every host has all of it.
    """
    environ = os.environ if environ is None else environ
    paths = _paths(environ)
    hosts, current = _hosts(paths)
    folder = paths.channel(channel)
    lists = os.path.join(paths.channel(PARTS_CHANNEL), channel)
    if os.path.exists(os.path.join(lists, PARTS_INDEX)):
        return [os.path.join(folder, name) for name in _listed(lists, channel, hosts, current)]
    if len(hosts) > 1 and _distribution(paths, channel, environ) == _WHOLE:
        raise RuntimeError(
            "channel {!r} is whole on each of {} hosts, so that all would read the same: give it split=bytes "
            "in the job".format(channel, len(hosts))
        )
    return _found(folder)


def _paths(environ: Mapping[str, str]) -> Paths:
    """Those of a training job, or of a processing job where this is one."""
    processing = ProcessingPaths.from_environment(environ)
    return processing if os.path.exists(processing.resource_config) else Paths.from_environment(environ)


def _listed(lists: str, channel: str, hosts: Tuple[str, ...], current: str) -> List[str]:
    try:
        with open(os.path.join(lists, PARTS_INDEX), encoding="utf-8") as file:
            index = PartsIndex.from_json(file.read())
        if len(index.parts) != len(hosts):
            raise RuntimeError(
                "channel {!r} was split for {} hosts, and {} train here ({}): some files would be read by "
                "nobody, or twice; launch the job anew for this number".format(
                    channel, len(index.parts), len(hosts), ", ".join(hosts)
                )
            )
        part = index.parts[hosts.index(current)]
        with open(os.path.join(lists, part.file), encoding="utf-8") as file:
            names = from_lines(file)
    except (OSError, ValueError) as error:
        raise RuntimeError("channel {!r}: the lists cannot be read: {}".format(channel, error)) from None
    if len(names) != part.files:
        raise RuntimeError(
            "channel {!r}: {} has {} files, and its index says {}".format(
                channel, part.file, len(names), part.files
            )
        )
    return names


def _found(folder: str) -> List[str]:
    """All files below the folder. A host without a share may have no folder at all."""
    names: List[str] = []
    for current, _, files in os.walk(folder, onerror=_raise_unless_missing):
        inside = os.path.relpath(current, folder)
        names += [name if inside == "." else os.path.join(inside, name) for name in files]
    # By bytes, as S3 orders keys; a rank's order must not depend on what the disk says first.
    names.sort(key=os.fsencode)
    return [os.path.join(folder, name) for name in names]


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _hosts(paths: Paths) -> Tuple[Tuple[str, ...], str]:
    """The hosts that train together, in natural order, and this one's name. One host outside of a job."""
    try:
        document = _document(paths.resource_config)
    except FileNotFoundError:
        return ("localhost",), "localhost"
    current = str(document["current_host"])
    hosts = document["hosts"]
    for group in document.get("instance_groups") or ():
        if current in group["hosts"]:
            hosts = group["hosts"]
    return tuple(sorted(set(map(str, hosts)), key=natural_key)), current


def _distribution(paths: Paths, channel: str, environ: Mapping[str, str]) -> Optional[str]:
    try:
        text = environ.get("SM_INPUT_DATA_CONFIG")  # the runtime's word, in a processing job too
        found = (json.loads(text) if text else _document(paths.input_data_config)).get(channel)
    except FileNotFoundError:
        return None
    value = found.get("S3DistributionType") if isinstance(found, dict) else None
    return str(value) if value else None


def _document(path: str) -> Dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if not isinstance(document, dict):
        raise RuntimeError("{}: not a JSON object".format(path))
    return document
