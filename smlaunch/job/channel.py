"""Channel: one input of a job."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar, Literal

from smlaunch.api.file_system_folder import FileSystemFolder
from smlaunch.job.field_types import AccountId, DataUri, NonEmptyText, StrictBool, at_most, integer_from
from smlaunch.job.file_system import find_file_system_folder
from smlaunch.job.sections import Section, section

InputMode = Literal["File", "FastFile", "Pipe"]

SplitName = Literal["key", "bytes"]

SplitViaName = Literal["shards", "lists", "jobs"]


@section
class Channel(Section):
    """One input: data that every host finds at ``/opt/ml/input/data/<name>``."""

    SHORTHAND_FIELD: ClassVar[str] = "uri"

    uri: DataUri
    """An S3 prefix; a folder of a file system that hosts mount, ``fsx://FILE-SYSTEM-ID/MOUNT-NAME/folder``
    (FSx for Lustre) or ``efs://FILE-SYSTEM-ID/folder``; or a local file or directory, which is uploaded to
    the run's bucket first."""
    mode: InputMode = "File"
    """How the data reaches the hosts: File (copied before the start), FastFile (read on demand) or Pipe."""
    split: SplitName | None = None
    """How data is divided among hosts: by key (the service deals out the objects by number) or by bytes
    (about the same number of bytes for every host). None gives every host all data."""
    split_via: SplitViaName | None = None
    """How a split by bytes reaches the hosts. ``shards``: the prefix is packed in shards of one size
    (``smlaunch data pack``), which the service deals out. ``lists``: every host sees all data and reads its
    own list (``smlaunch.train.shard_files``). ``jobs``: one job for each shard. None lets the plan choose."""
    access: Literal["ro", "rw"] = "ro"
    """Whether hosts may only read the folder of a file system, ``ro``, or write to it too, ``rw``."""
    instance_groups: tuple[NonEmptyText, ...] = ()
    """Names of the groups of ``compute.instance_groups`` whose hosts get the data. Empty gives it to all."""
    manifest: StrictBool = False
    """Whether uri is a manifest: an object that lists the objects of the data."""
    attributes: Annotated[tuple[NonEmptyText, ...], at_most(16)] | None = None
    """The attributes that are read of each line of an augmented manifest, which uri is then. Only with mode
    Pipe."""
    shuffle_seed: Annotated[int, integer_from(0, 2**63 - 1)] | None = None
    """Seed of the order in which the service hands out the objects, or the lines of an augmented manifest; in
    mode Pipe another order in every epoch. None keeps their order."""
    record_wrapper: Literal["RecordIO"] | None = None
    """The format that the service puts around each object. Only with mode Pipe."""
    compression: Literal["gzip"] | None = None
    """How the objects are compressed; the service decompresses them. Only with mode Pipe."""
    content_type: NonEmptyText | None = None
    """Passed to built-in algorithms, such as text/csv."""
    bucket_owner: AccountId | None = None
    """The account (twelve digits) that must own the bucket. None accepts any owner, as for public data."""

    def __init__(
        self,
        uri: str | os.PathLike[str],
        *,
        mode: InputMode = "File",
        split: SplitName | None = None,
        split_via: SplitViaName | None = None,
        access: Literal["ro", "rw"] = "ro",
        instance_groups: tuple[str, ...] = (),
        manifest: bool = False,
        attributes: tuple[str, ...] | None = None,
        shuffle_seed: int | None = None,
        record_wrapper: Literal["RecordIO"] | None = None,
        compression: Literal["gzip"] | None = None,
        content_type: str | None = None,
        bucket_owner: str | None = None,
    ) -> None:
        super().__init__(
            uri=uri,
            mode=mode,
            split=split,
            split_via=split_via,
            access=access,
            instance_groups=instance_groups,
            manifest=manifest,
            attributes=attributes,
            shuffle_seed=shuffle_seed,
            record_wrapper=record_wrapper,
            compression=compression,
            content_type=content_type,
            bucket_owner=bucket_owner,
        )

    @property
    def is_in_s3(self) -> bool:
        return self.uri.startswith("s3://")

    @property
    def file_system(self) -> FileSystemFolder | None:
        """The folder that hosts mount; None for data in S3 or on this machine."""
        return find_file_system_folder(self.uri)

    @property
    def is_local(self) -> bool:
        return not self.is_in_s3 and self.file_system is None

    @property
    def is_listed(self) -> bool:
        """Whether uri is an object that names the data, and not the data's prefix."""
        return self.manifest or self.attributes is not None
