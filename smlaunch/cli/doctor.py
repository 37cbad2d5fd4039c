"""``smlaunch doctor``: check what works on this machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from smlaunch import __version__
from smlaunch.cli.options import GroupedCommand, grouped_option, json_option
from smlaunch.errors import EXIT_REFUSED, EndpointError, SmlaunchError

if TYPE_CHECKING:
    from smlaunch.local.executors.container_cli import Engine

_LOW_DISK_BYTES = 2 << 30


class Check(NamedTuple):
    """One check. ``verdict``: ``ok``; ``note`` (works with a limitation); ``missing`` (does not work)."""

    name: str
    verdict: Literal["ok", "note", "missing"]
    text: str


@click.command(cls=GroupedCommand, short_help="Check what works on this machine.")
@grouped_option(
    "Target", "--region", metavar="REGION", help="Also check credentials and role for this region."
)
@grouped_option("Target", "--profile", metavar="NAME", help="AWS profile for this check.")
@json_option
def doctor(region: str | None, profile: str | None, as_json: bool) -> int:
    """Check what works on this machine, and explain what does not. Starts nothing; calls AWS only with
    --region or --profile."""
    checks = [*_machine_checks(), *_endpoint_checks()]
    if region or profile:
        checks.extend(_region_checks(region, profile))
    if as_json:
        click.echo(json.dumps({"checks": [check._asdict() for check in checks]}, indent=2))
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            click.echo(f"{_MARKS[check.verdict]} {check.name.ljust(width)}  {check.text}")
    return EXIT_REFUSED if any(check.verdict == "missing" for check in checks) else 0


_MARKS = {
    "ok": click.style("ok     ", fg="green"),
    "note": click.style("note   ", fg="yellow"),
    "missing": click.style("missing", fg="red"),
}


def _machine_checks() -> Iterator[Check]:
    yield Check("smlaunch", "ok", f"{__version__} at {Path(__file__).parent.parent}")
    yield Check("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Check("boto3", "ok", f"{version('boto3')}, botocore {version('botocore')}")
    # Not imported: torch takes a second to load, and the installation may be broken.
    if find_spec("torch") is None:
        yield Check(
            "torch", "note", "not installed in this Python; scripts that import it cannot run --local"
        )
    else:
        yield Check("torch", "ok", _installed_version("torch"))


def _installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "installed without metadata"


def _endpoint_checks() -> Iterator[Check]:
    """Yield the checks of this machine as a local endpoint: disk, isolation levels, container engines, and a
    running endpoint."""
    from smlaunch.connection.connect import background_endpoint
    from smlaunch.local import path_ownership
    from smlaunch.local.executors.containers_engine import probe_engines
    from smlaunch.local.executors.levels import probe_levels
    from smlaunch.local.state_dir import default_root

    root = default_root()
    existing_dir = next(path for path in (root, *root.parents) if path.exists())
    free_bytes = shutil.disk_usage(existing_dir).free
    verdict: Literal["ok", "note"] = "ok" if free_bytes > _LOW_DISK_BYTES else "note"
    yield Check("disk", verdict, f"{free_bytes / (1 << 30):.1f} GB free for {root}")
    for level in probe_levels():
        yield Check(f"isolation {level.name}", "ok" if level.works else "note", level.why_not or "works")
    for engine_status in probe_engines():
        text = (
            engine_status.why_not
            if engine_status.engine is None
            else f"{engine_status.engine.version}{_workaround_flags(engine_status.engine)}"
        )
        yield Check(
            f"containers by {engine_status.name}", "note" if engine_status.engine is None else "ok", text
        )
    try:
        path_ownership.resolve_trusted(root.absolute(), os.geteuid())
        info = background_endpoint(root)
    except (path_ownership.UntrustedPath, EndpointError, OSError) as error:
        yield Check("state directory", "missing", str(error))
        return
    yield Check(
        "endpoint",
        "ok",
        f"running at {info.url}" if info else "no background endpoint (run --local starts its own)",
    )


def _workaround_flags(engine: Engine) -> str:
    """Flags that smlaunch passes to the container engine because its default settings do not work here."""
    flags = [*engine.flags, *engine.create_flags]
    return f", with {' '.join(flags)} (its default settings do not work here)" if flags else ""


def _region_checks(region: str | None, profile: str | None) -> Iterator[Check]:
    """Yield the checks of a region: whether the credentials work, and whether there is an execution role."""
    from smlaunch.aws.interfaces import CallError
    from smlaunch.aws.retry import user_error
    from smlaunch.discovery.gather import find_role
    from smlaunch.runs.target import Target

    try:
        target = Target.region(region, profile)
        account, arn = target.identity.caller()
    except SmlaunchError as error:
        yield Check("credentials", "missing", str(error))
        return
    except CallError as error:
        yield Check("credentials", "missing", str(user_error(error, region or "AWS")))
        return
    yield Check("credentials", "ok", f"{arn} (account {account}) in {target.region_name}")
    role, problem = find_role(None, target)
    yield Check("role", "ok", role) if role else Check("role", "missing", str(problem))
