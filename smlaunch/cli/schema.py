"""``smlaunch schema``."""

from __future__ import annotations

import click

from smlaunch.cli.json_output import print_json


@click.command(short_help="Print the job file's JSON Schema.")
def schema() -> int:
    """Print the job file's JSON Schema (draft 2020-12), for editors and programs.

    \b
    smlaunch schema > job.schema.json
    # first line of a job file, for editors with the YAML language server:
    # yaml-language-server: $schema=job.schema.json
    """
    from smlaunch.job.json_schema import job_schema

    print_json(job_schema())
    return 0
