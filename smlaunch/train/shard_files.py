"""The files of this host's shard of a channel, however the data was split."""

import json
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from smlaunch.contract.host_order import natural_sort_key
from smlaunch.contract.paths import Paths, ProcessingPaths
from smlaunch.contract.shard_lists import SHARDS_CHANNEL, SHARDS_FILE, ShardListIndex, parse_json_lines

_FULLY_REPLICATED = "FullyReplicated"


def shard_files(channel: str = "train", environ: Optional[Mapping[str, str]] = None) -> List[str]:
    """Return the paths of the files of this host's shard of a channel, in the order of their names. All ranks
    of a host get the same; the shards of all hosts together are the channel, and no file is in two.

    The channel needs ``split`` in the job. If the job brought lists (``split_via: lists``), the shard is that
    of this host's position among the hosts that train together, in the natural order of their names, at run
    time; otherwise it is what the platform has put here. May be empty. Raises RuntimeError if the lists are
    for another number of hosts, if one does not match its index, and if every host has all files.
    """
    environ = os.environ if environ is None else environ
    paths = _paths(environ)
    hosts, current_host = _training_hosts(paths)
    folder = paths.channel_dir(channel)
    lists_folder = os.path.join(paths.channel_dir(SHARDS_CHANNEL), channel)
    if os.path.exists(os.path.join(lists_folder, SHARDS_FILE)):
        return [
            os.path.join(folder, name) for name in _files_in_list(lists_folder, channel, hosts, current_host)
        ]
    if len(hosts) > 1 and _distribution(paths, channel, environ) == _FULLY_REPLICATED:
        raise RuntimeError(
            "channel {!r} is complete on each of {} hosts, so that all would read the same files: set "
            "split=bytes in the job".format(channel, len(hosts))
        )
    return _files_below(folder)


def _paths(environ: Mapping[str, str]) -> Paths:
    """Return the paths of a training job, or of a processing job if this is one."""
    processing = ProcessingPaths.from_environment(environ)
    return processing if os.path.exists(processing.resource_config) else Paths.from_environment(environ)


def _files_in_list(lists_folder: str, channel: str, hosts: Tuple[str, ...], current_host: str) -> List[str]:
    """Return this host's names from the lists. Raises RuntimeError if the lists do not fit the hosts."""
    try:
        with open(os.path.join(lists_folder, SHARDS_FILE), encoding="utf-8") as file:
            index = ShardListIndex.from_json(file.read())
        if len(index.shards) != len(hosts):
            raise RuntimeError(
                "channel {!r} was split for {} hosts, but {} train here ({}): some files would be read by "
                "no host, or twice; launch a new job for this number".format(
                    channel, len(index.shards), len(hosts), ", ".join(hosts)
                )
            )
        shard = index.shards[hosts.index(current_host)]
        with open(os.path.join(lists_folder, shard.file), encoding="utf-8") as file:
            names = parse_json_lines(file)
    except (OSError, ValueError) as error:
        raise RuntimeError("channel {!r}: the lists cannot be read: {}".format(channel, error)) from None
    if len(names) != shard.files:
        raise RuntimeError(
            "channel {!r}: {} has {} files, its index says {}".format(
                channel, shard.file, len(names), shard.files
            )
        )
    return names


def _files_below(folder: str) -> List[str]:
    """Return all files below the folder. A host without a shard may have no folder at all."""
    names: List[str] = []
    for subfolder, _, files in os.walk(folder, onerror=_raise_unless_missing):
        relative_folder = os.path.relpath(subfolder, folder)
        names += [name if relative_folder == "." else os.path.join(relative_folder, name) for name in files]
    # By bytes, as S3 orders keys; the order must not depend on the file system.
    names.sort(key=os.fsencode)
    return [os.path.join(folder, name) for name in names]


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _training_hosts(paths: Paths) -> Tuple[Tuple[str, ...], str]:
    """Return the hosts that train together, in natural order, and this host's name. One host outside of a
    job."""
    try:
        document = _read_json(paths.resource_config)
    except FileNotFoundError:
        return ("localhost",), "localhost"
    current_host = str(document["current_host"])
    hosts = document["hosts"]
    for group in document.get("instance_groups") or ():
        if current_host in group["hosts"]:
            hosts = group["hosts"]
    return tuple(sorted(set(map(str, hosts)), key=natural_sort_key)), current_host


def _distribution(paths: Paths, channel: str, environ: Mapping[str, str]) -> Optional[str]:
    """Return the channel's S3DataDistributionType; None if it is not known."""
    try:
        text = environ.get("SM_INPUT_DATA_CONFIG")  # set by the runtime, in a processing job too
        channel_config = (json.loads(text) if text else _read_json(paths.input_data_config)).get(channel)
    except FileNotFoundError:
        return None
    value = channel_config.get("S3DistributionType") if isinstance(channel_config, dict) else None
    return str(value) if value else None


def _read_json(path: str) -> Dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if not isinstance(document, dict):
        raise RuntimeError("{}: not a JSON object".format(path))
    return document
