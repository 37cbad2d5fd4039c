"""``smlaunch schema``."""

from __future__ import annotations

import json

import click


@click.command(short_help="Print the job file's JSON Schema.")
def schema() -> int:
    """Print the job file's JSON Schema (draft 2020-12), for editors and programs.

    \b
    smlaunch schema > job.schema.json
    # and in a job file's first line, for editors that speak YAML's language server:
    # yaml-language-server: $schema=job.schema.json
    """
    from smlaunch.job_schema import job_schema

    click.echo(json.dumps(job_schema(), indent=2))
    return 0
