"""``smlaunch smoke``: a short job that shows what smlaunch relies on, and a report of what it has shown."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.json_output import json_text, print_json
from smlaunch.cli.options import GroupedCommand, grouped_option, json_option, launch_options
from smlaunch.errors import write_error

if TYPE_CHECKING:
    from smlaunch.connection.open_connection import Connection
    from smlaunch.smoke.run_smoke import SmokeResult

_LOCAL_NOTE = "It ran on the local endpoint of this machine: this confirms smlaunch, and nothing about AWS."


@click.command(cls=GroupedCommand, short_help="Run a job of five minutes that checks the service.")
@launch_options
@grouped_option(
    "Job", "--instance-type", default="ml.m5.xlarge", show_default=True, metavar="TYPE", help="One such host."
)
@grouped_option("Job", "--faults", metavar="FILE", help="With --local: a JSON file of faults to inject.")
@grouped_option(
    "Report",
    "--report-dir",
    type=click.Path(exists=True, file_okay=False, writable=True),
    default=".",
    show_default=True,
    metavar="DIR",
    help="Folder of the two reports.",
)
@json_option
def smoke(instance_type: str, faults: str | None, report_dir: str, as_json: bool, **options: Any) -> int:
    """Run a job of one host and at most five minutes, and check on the service what smlaunch relies on: that
    the script starts with its arguments, its channel has the data, its log arrives while it runs, checkpoints
    reach S3, a stop is a SIGTERM with time to save, and the model of a stopped job is kept. AWS bills the
    host for some minutes; the first line says what that costs at most, where the price is known.

    Writes what it has confirmed to smlaunch-smoke-TARGET-TIME.json and .txt. Exit code 0: all of it.
    """
    from smlaunch.cli.console import print_message
    from smlaunch.cli.opening import print_opening
    from smlaunch.connection.open_connection import open_connection
    from smlaunch.smoke.run_smoke import run_smoke

    began = datetime.now(timezone.utc)
    with open_connection(options, faults_file=faults) as connection:
        result = run_smoke(
            connection.target,
            instance_type,
            options["role"],
            lambda plan: print_opening(plan, connection.description, quiet=False, verbose=False),
            print_message,
        )
        document = _document(result, connection, began)
    text = _text(document)
    _write_reports(Path(report_dir), document, text, began)
    if as_json:
        print_json(document)
    else:
        click.echo(text, nl=False)
    return result.exit_code


def _document(result: SmokeResult, connection: Connection, began: datetime) -> dict[str, Any]:
    from importlib.metadata import version

    from smlaunch import __version__

    is_region = connection.target.kind == "aws"
    return {
        "format": "smlaunch-smoke/1",
        "date": began.isoformat(timespec="seconds"),
        "target": connection.target.region_name if is_region else "local",
        "is_aws": is_region,
        "smlaunch": __version__,
        "boto3": version("boto3"),
        "run": result.run,
        "instance_type": result.instance_type,
        "image": result.image,
        "files": result.prefix,
        "end": result.end,
        "checks": [check._asdict() for check in result.checks],
        "exit_code": result.exit_code,
    }


def _text(document: dict[str, Any]) -> str:
    head = f"smlaunch {document['smlaunch']}, {document['date']}, {document['target']}, run {document['run']}"
    width = max(len(check["name"]) for check in document["checks"])
    lines = [
        f"{check['verdict']:11} {check['name']:{width}}  {check['text']}" for check in document["checks"]
    ]
    note = [] if document["is_aws"] else [_LOCAL_NOTE]
    return (
        "\n".join(
            [head, *lines, f"At the end {document['end']}.", f"The run's files: {document['files']}", *note]
        )
        + "\n"
    )


def _write_reports(folder: Path, document: dict[str, Any], text: str, began: datetime) -> None:
    stem = f"smlaunch-smoke-{document['target']}-{began:%Y%m%dT%H%M%SZ}"
    for path, content in (
        (folder / f"{stem}.json", json_text(document) + "\n"),
        (folder / f"{stem}.txt", text),
    ):
        try:
            path.write_text(content, encoding="utf-8")
        except OSError as error:
            raise write_error("--report-dir", path, error) from error
        click.echo(f"written: {path}", err=True)
