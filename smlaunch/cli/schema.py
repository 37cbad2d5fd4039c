"""``smlaunch schema``."""

from __future__ import annotations

import json

import click


@click.command(short_help="Print the job file's JSON Schema.")
def schema() -> int:
    """Print the job file's JSON Schema (draft 2020-12), for editors and programs.

    \b
    smlaunch schema > job.schema.json
    # first line of a job file, for editors with the YAML language server:
    # yaml-language-server: $schema=job.schema.json
    """
    from smlaunch.job.json_schema import job_schema

    click.echo(json.dumps(job_schema(), indent=2))
    return 0
