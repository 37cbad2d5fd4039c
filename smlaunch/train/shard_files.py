"""The files of this host's shard of a channel, however the data was split."""

import json
import os
from typing import Any, Dict, List, Mapping, Optional, Tuple

from smlaunch.contract.host_order import natural_sort_key
from smlaunch.contract.sagemaker_paths import Paths, ProcessingPaths
from smlaunch.contract.shard_lists import SHARDS_CHANNEL, SHARDS_FILE, ShardListIndex, parse_json_lines

_FULLY_REPLICATED = "FullyReplicated"


def shard_files(channel: str = "train", environ: Optional[Mapping[str, str]] = None) -> List[str]:
    """Return the paths of the files of this host's shard (its part of a channel of input data), in the order
    of their names. All ranks of a host get the same; the shards of all hosts together are the channel, and no
    file is in two.

    The channel needs ``split`` in the job. If the job brought lists (``split_via: lists``), the shard is that
    of this host's position among the hosts that train together, in the natural order of their names, at run
    time; otherwise it is what the platform has put here. May be empty. Raises RuntimeError if the lists are
    for another number of hosts, if one does not match its index, and if every host has all files.
    """
    environ = os.environ if environ is None else environ
    paths = _find_job_paths(environ)  # where the container's files and channels are
    hosts, current_host = _read_training_hosts(paths)
    folder = paths.channel_dir(channel)
    # The lists come in a channel of their own; SHARDS_FILE is their index.
    lists_folder = os.path.join(paths.channel_dir(SHARDS_CHANNEL), channel)
    if os.path.exists(os.path.join(lists_folder, SHARDS_FILE)):
        return [
            os.path.join(folder, name)
            for name in _read_names_in_shard_list(lists_folder, channel, hosts, current_host)
        ]
    if len(hosts) > 1 and _read_s3_distribution_type(paths, channel, environ) == _FULLY_REPLICATED:
        raise RuntimeError(
            "channel {!r} is complete on each of {} hosts, so that all would read the same files: set "
            "split=bytes in the job".format(channel, len(hosts))
        )
    return _files_below(folder)


def _find_job_paths(environ: Mapping[str, str]) -> Paths:
    """Return the paths of a training job, or of a processing job if this is one."""
    processing = ProcessingPaths.from_environment(environ)
    return processing if os.path.exists(processing.resource_config) else Paths.from_environment(environ)


def _read_names_in_shard_list(
    lists_folder: str, channel: str, hosts: Tuple[str, ...], current_host: str
) -> List[str]:
    """Return the names of the files in this host's shard list: a JSON-lines file in ``lists_folder``, beside
    the index of all hosts' lists. Raises RuntimeError if the lists do not fit the hosts, or cannot be
    read."""
    try:
        with open(os.path.join(lists_folder, SHARDS_FILE), encoding="utf-8") as file:
            index = ShardListIndex.from_json(file.read())  # one shard for each host, in the hosts' order
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
    if len(names) != shard.files:  # the number of names when the list was written
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


def _read_training_hosts(paths: Paths) -> Tuple[Tuple[str, ...], str]:
    """Return the hosts that train together, in natural order (algo-2 before algo-10), and this host's name:
    those of its instance group, if the job has several. Outside of a job there is one host."""
    try:
        resource_config = _read_json(paths.resource_config)
    except FileNotFoundError:
        return ("localhost",), "localhost"
    current_host = str(resource_config["current_host"])
    hosts = resource_config["hosts"]
    for instance_group in resource_config.get("instance_groups") or ():
        if current_host in instance_group["hosts"]:
            hosts = instance_group["hosts"]
    return tuple(sorted(set(map(str, hosts)), key=natural_sort_key)), current_host


def _read_s3_distribution_type(paths: Paths, channel: str, environ: Mapping[str, str]) -> Optional[str]:
    """Return the channel's S3DataDistributionType: whether each host has all files, or a part of them; None
    if it is not known."""
    try:
        # smlaunch's runtime in the container sets it, in a processing job too.
        config_text = environ.get("SM_INPUT_DATA_CONFIG")
        input_data_config = json.loads(config_text) if config_text else _read_json(paths.input_data_config)
    except FileNotFoundError:
        return None
    channel_config = input_data_config.get(channel)
    if not isinstance(channel_config, dict):
        return None
    distribution_type = channel_config.get("S3DistributionType")
    return str(distribution_type) if distribution_type else None


def _read_json(path: str) -> Dict[str, Any]:
    with open(path, encoding="utf-8") as file:
        document = json.load(file)
    if not isinstance(document, dict):
        raise RuntimeError("{}: not a JSON object".format(path))
    return document
