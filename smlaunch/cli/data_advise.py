"""``smlaunch data advise``: how a job had best read its data, and why."""

from __future__ import annotations

import json
from typing import Any

import click

from smlaunch.cli.options import GroupedCommand, json_option, option, place_options
from smlaunch.errors import JobError, Problem

_JOB = "The job"


@click.command(cls=GroupedCommand, short_help="Say how a job had best read its data, and why.")
@click.argument("source", metavar="KEYS.parquet|S3URI|DIR")
@option(_JOB, "--instance-type", metavar="TYPE", help="Such as ml.g5.12xlarge: its memory, disk and network.")
@option(
    _JOB,
    "--hosts",
    metavar="N",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="How many machines.",
)
@option(_JOB, "--split", is_flag=True, help="Each host reads its part only; default: all of it.")
@option(_JOB, "--epochs", metavar="E", type=click.IntRange(1), help="How often everything is read.")
@option(_JOB, "--random-access", is_flag=True, help="Samples are read in random order inside of files.")
@option(_JOB, "--processing", is_flag=True, help="It is a processing job, which has no FastFile.")
@option(_JOB, "--slurm", is_flag=True, help="The job runs on a Slurm cluster's own storage.")
@place_options
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
    """Say how a job had best read its data: from memory, by mode File, FastFile or Pipe, packed into shards
    first, from FSx for Lustre or S3 Express, or prepared by EMR or Glue; with reasons, and with times as
    ranges whose sources are told."""
    from smlaunch.catalog import instances
    from smlaunch.cli.data_inventory import opened
    from smlaunch.planning.advice import Needs, Place
    from smlaunch.planning.advice import advise as decide
    from smlaunch.planning.advice_text import as_text
    from smlaunch.planning.io_times import Machine

    instance = None if instance_type is None else instances.find(instance_type)
    if instance_type is not None and instance is None:
        from smlaunch.suggest import did_you_mean

        near = did_you_mean(instance_type, instances.known_types())
        raise JobError([Problem("--instance-type", f"{instance_type!r} is not in the catalog{near}")])
    if slurm and processing:
        raise JobError([Problem("--processing", "is a job of SageMaker; leave out --slurm, or this")])
    with opened(source, options) as inventory:
        from smlaunch.data.sizes import census

        data = census(inventory)
        if inventory.bucket:
            where = f"s3://{inventory.bucket}/{inventory.prefix}"
        else:
            where = inventory.prefix or source
    if not data.files:
        raise JobError([Problem("source", f"{source} has no files; there is nothing to advise on")])
    place: Place = "slurm" if slurm else "processing" if processing else "training"
    needs = Needs(epochs, random_access, split, place)
    advice = decide(data, needs, Machine(instance, hosts))
    if as_json:
        click.echo(json.dumps({"source": where, **advice.to_dict()}, indent=2))
    else:
        click.echo(as_text(advice, where))
    return 0
