"""Facts of a job's inputs: number, size and names of the files, in S3 or on this machine."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from itertools import islice
from pathlib import Path

from smlaunch.aws.interfaces import CallError, ObjectStorage
from smlaunch.contract.s3_uri import split_s3_uri
from smlaunch.discovery.discovery_target import DiscoveryTarget
from smlaunch.discovery.gitignore import SMLAUNCHIGNORE
from smlaunch.discovery.local_files import INCLUDE_HINT, excluded_secrets_warning, list_local_files
from smlaunch.discovery.protected_folders import protected_folder_reason
from smlaunch.discovery.script_analysis import missing_path_text, unreadable_path_reason
from smlaunch.facts.discovered_facts import InputFacts, StoredFile
from smlaunch.facts.shard_index import SHARD_FOLDER, SHARD_INDEX_NAME, shard_names
from smlaunch.job.model import Channel
from smlaunch.text.home_folder import expand_home

MAX_LISTED_OBJECTS = 10_000
"""Objects counted of an input whose size decides nothing: ten pages, about a second in a region. Larger
inputs have "at least" so many."""

MAX_COUNTED_OBJECTS = 100_000
"""Objects counted where hosts, disks or times depend on the size: about ten seconds."""

MAX_SPLIT_OBJECTS = 1_000_000
"""Objects of a channel that is split by bytes. All their names and sizes are needed, a thousand for each
request. Larger inputs need packing first."""


def gather_input_facts(
    channel: Channel, target: DiscoveryTarget, include_secrets: bool, *, needs_size: bool
) -> InputFacts:
    """``needs_size``: the plan depends on it, so that more objects are counted."""
    needs_file_names = channel.split == "bytes"
    if channel.is_local:
        return _gather_local_input_facts(channel.uri, needs_file_names, include_secrets)
    if channel.file_system is not None:
        return InputFacts(channel.uri, kind="file system")  # only its own network can read it
    unsupported_bucket = _unsupported_bucket(channel.uri) if target.kind == "local" else None
    if unsupported_bucket is not None:
        problem = f"{channel.uri}: the local endpoint has no {unsupported_bucket}; name a bucket"
        return InputFacts(channel.uri, kind="s3", problem=problem)
    # Names are needed to split the files among hosts or runs, for which all of them have to be known.
    max_objects = MAX_COUNTED_OBJECTS if needs_size and not channel.is_listed else MAX_LISTED_OBJECTS
    input_facts = _gather_s3_input_facts(
        channel.uri,
        target.input_storage,
        needs_file_names,
        MAX_SPLIT_OBJECTS if needs_file_names else max_objects,
    )
    if channel.is_listed and input_facts.problem is None:
        # The manifest's own size says nothing about the data.
        return InputFacts(channel.uri, kind="s3")
    return input_facts


def _unsupported_bucket(uri: str) -> str | None:
    """Return what kind of bucket an address names that only a region has; None for an ordinary one."""
    bucket, _ = split_s3_uri(uri) or ("", "")
    if bucket.startswith("arn:"):
        return "access points"
    return "directory buckets (S3 Express One Zone)" if bucket.endswith("--x-s3") else None


def _gather_s3_input_facts(
    uri: str, storage: ObjectStorage, needs_file_names: bool, max_objects: int
) -> InputFacts:
    """List the objects under an input channel's S3 prefix, up to ``max_objects``, and return their number and
    size, or the problem. ``needs_file_names`` adds name and size of each object.

    A shard is one of the large files into which `smlaunch data pack` puts many small ones.
    """
    bucket, prefix = split_s3_uri(uri) or ("", "")
    try:
        # One more than the limit shows that there is more.
        stored_objects = list(islice(storage.list_objects(bucket, prefix), max_objects + 1))
    except CallError as error:
        if error.code == "NoSuchBucket":
            problem = f"{uri}: there is no bucket {bucket!r}"
            return InputFacts(uri, kind="s3", exists=False, problem=problem)
        # The role of the job may be able to read what the caller cannot list.
        return InputFacts(uri, kind="s3", exists=True, problem=f"{uri}: it cannot be listed: {error.message}")
    if not stored_objects:
        hint = "" if prefix.endswith("/") or not prefix else "; a folder's prefix ends with a slash"
        return InputFacts(
            uri, kind="s3", exists=False, objects=0, bytes=0, problem=f"there is no object under {uri}{hint}"
        )
    counted = stored_objects[:max_objects]
    input_facts = InputFacts(
        uri,
        kind="s3",
        objects=len(counted),
        bytes=sum(stored.size for stored in counted),
        is_truncated=len(stored_objects) > max_objects,
    )
    if not needs_file_names or input_facts.is_truncated:  # without all names, none is of use
        return input_facts
    files = tuple(StoredFile(stored.key[len(prefix) :], stored.size) for stored in stored_objects)
    names_of_shards = _read_shard_names_in_s3(bucket, prefix, files, storage)
    return dataclasses.replace(input_facts, files=files, shard_names=names_of_shards)


def _read_shard_names_in_s3(
    bucket: str, prefix: str, files: tuple[StoredFile, ...], storage: ObjectStorage
) -> tuple[str, ...] | None:
    """Return the names of the shards, relative to ``prefix``, if an input is data that `smlaunch data pack`
    has packed into large files, the shards; None for other data, and where their index cannot be read.

    The index is a file in the packed folder, and names the shards in a folder below it. ``prefix`` may be
    either folder. ``files`` are the objects under it.
    """
    packed_prefix = prefix.removesuffix(SHARD_FOLDER)
    is_shard_folder = packed_prefix != prefix
    if not is_shard_folder and not any(file.name == SHARD_INDEX_NAME for file in files):
        return None
    try:
        index_bytes = storage.get_bytes(bucket, packed_prefix + SHARD_INDEX_NAME)
    except CallError:
        return None  # the index may not be readable: the files are split as they are
    if index_bytes is None:
        return None
    names_in_packed_folder = shard_names(index_bytes)  # parses the index
    if names_in_packed_folder is None:  # some other file of that name
        return None
    folder_length = len(SHARD_FOLDER) if is_shard_folder else 0
    return tuple(name[folder_length:] for name in names_in_packed_folder)


def _gather_local_input_facts(uri: str, needs_file_names: bool, include_secrets: bool) -> InputFacts:
    """Read an input channel's local file or folder, and return its number of files, its bytes and a digest of
    all contents, or the problem.

    ``needs_file_names``: the data will be split by bytes, for which it may be packed. ``include_secrets``: do
    not exclude files that look like secrets.
    """
    path = expand_home(uri)
    if (unreadable_reason := unreadable_path_reason(path)) is not None:
        return InputFacts(uri, kind="local", problem=unreadable_reason)
    if not path.exists():
        return InputFacts(uri, kind="local", exists=False, problem=missing_path_text(path, uri))
    digest, total_bytes = hashlib.sha256(), 0
    files: list[StoredFile] = []
    excluded_secrets: list[str] = []  # names, which list_local_files adds; with None it excludes nothing
    try:
        if protected_reason := protected_folder_reason(path):  # a home folder, for example
            return InputFacts(
                uri, kind="local", problem=f"{uri} {protected_reason}; name the folder of the data itself"
            )
        for file in list_local_files(path, None if include_secrets else excluded_secrets):
            # The digest becomes a part of the data's S3 address: equal data is uploaded once.
            size, file_sha256 = _hash_file(file.path)
            digest.update(os.fsencode(file.relative_path) + b"\0" + file_sha256)
            total_bytes += size
            files.append(StoredFile(file.relative_path, size, file_sha256))
    except OSError as error:
        return InputFacts(
            uri, kind="local", is_directory=path.is_dir(), problem=f"it cannot be read: {error}"
        )
    hint = f", or {SMLAUNCHIGNORE} excludes all of it" if (path / SMLAUNCHIGNORE).is_file() else ""
    return InputFacts(
        uri,
        kind="local",
        objects=len(files),
        bytes=total_bytes,
        sha256=digest.hexdigest(),
        is_directory=path.is_dir(),
        problem=None
        if files
        else f"{path.absolute()} is empty{hint}; put files into it, or name another folder",
        files=tuple(files),
        shard_names=_read_local_shard_names(path) if needs_file_names else None,
        warnings=(excluded_secrets_warning(excluded_secrets),) if excluded_secrets else (),
        excluded_files={
            name.rstrip("/"): f"may hold secrets; {INCLUDE_HINT.format(name=name)}"
            for name in excluded_secrets
        },
    )


def _read_local_shard_names(path: Path) -> tuple[str, ...] | None:
    """Return the names of the shards if the folder is data that `smlaunch data pack` has packed into large
    files, the shards; None for other data."""
    index_path = path / SHARD_INDEX_NAME
    return shard_names(index_path.read_bytes()) if index_path.is_file() else None


def _hash_file(path: Path) -> tuple[int, bytes]:
    """Return the number of bytes that were hashed and their SHA-256: the size that a listing has may be
    another one, of a file that is being written."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
            size += len(block)
    return size, digest.digest()
