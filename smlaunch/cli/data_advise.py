"""``smlaunch data advise``: recommend how a job should read its data."""

from __future__ import annotations

from typing import Any

import click

from smlaunch.cli.json_output import print_json
from smlaunch.cli.options import GroupedCommand, connection_options, grouped_option, json_option
from smlaunch.errors import JobError, Problem

_JOB = "Job"


@click.command(cls=GroupedCommand, short_help="Recommend how a job should read its data.")
@click.argument("source", metavar="KEYS.parquet|S3URI|DIR")
@grouped_option(
    _JOB, "--instance-type", metavar="TYPE", help="Instance type: its memory, disk and network are used."
)
@grouped_option(
    _JOB,
    "--hosts",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of hosts.",
)
@grouped_option(_JOB, "--split", is_flag=True, help="Each host reads only its own shard; default: all data.")
@grouped_option(
    _JOB, "--epochs", metavar="E", type=click.IntRange(1), help="How many times all data is read."
)
@grouped_option(
    _JOB, "--random-access", is_flag=True, help="Samples inside of files are read in random order."
)
@grouped_option(
    _JOB, "--processing", is_flag=True, help="The job is a processing job, which has no FastFile mode."
)
@grouped_option(_JOB, "--slurm", is_flag=True, help="The job reads the storage of a Slurm cluster.")
@connection_options
@json_option
def advise(
    source: str,
    instance_type: str | None,
    hosts: int,
    split: bool,
    epochs: int | None,
    random_access: bool,
    processing: bool,
    slurm: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Recommend how a job should read its data: from memory, with input mode File, FastFile or Pipe, packed
    into shards first, from FSx for Lustre or S3 Express, or prepared by EMR or Glue. Gives reasons, and
    estimated times as ranges with their sources."""
    from smlaunch.catalog import instances
    from smlaunch.cli.data_inventory import open_inventory
    from smlaunch.storage.read_time_estimates import HostProfile
    from smlaunch.storage.storage_advice import advise_storage
    from smlaunch.storage.storage_advice_text import as_text
    from smlaunch.storage.storage_options import AccessPattern, Platform

    instance = None if instance_type is None else instances.find_instance_type(instance_type)
    if instance_type is not None and instance is None:
        from smlaunch.text.did_you_mean import did_you_mean

        suggestion = did_you_mean(instance_type, instances.known_types())
        raise JobError([Problem("--instance-type", f"{instance_type!r} is not in the catalog{suggestion}")])
    if slurm and processing:
        raise JobError(
            [Problem("--processing", "a processing job runs on SageMaker; leave out --slurm or --processing")]
        )
    # The inventory lists the keys of the source with their sizes.
    with open_inventory(source, options) as inventory:
        from smlaunch.data.size_stats import summarize_inventory

        dataset_stats = summarize_inventory(inventory)
        if inventory.bucket:  # empty for a folder
            location = f"s3://{inventory.bucket}/{inventory.prefix}"
        else:
            location = inventory.prefix or source
    if not dataset_stats.files:
        raise JobError([Problem("source", f"{source} has no files")])
    platform: Platform = "training"
    if slurm:
        platform = "slurm"
    elif processing:
        platform = "processing"
    access_pattern = AccessPattern(
        epochs=epochs, random_access=random_access, is_data_split=split, platform=platform
    )
    storage_advice = advise_storage(dataset_stats, access_pattern, HostProfile(instance, hosts=hosts))
    if as_json:
        print_json({"source": location, **storage_advice.to_dict()})
    else:
        click.echo(as_text(storage_advice, location))
    return 0
