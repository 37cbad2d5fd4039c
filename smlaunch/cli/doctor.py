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
from typing import Literal, NamedTuple

import click

from smlaunch import __version__
from smlaunch.cli.options import GroupedCommand, grouped_option, json_option
from smlaunch.errors import EXIT_REFUSED, EndpointError, SmlaunchError

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
        name_width = max(len(check.name) for check in checks)
        for check in checks:
            click.echo(f"{_SYMBOL_BY_VERDICT[check.verdict]} {check.name.ljust(name_width)}  {check.text}")
    # A note is only a restriction; what is missing makes commands fail.
    return EXIT_REFUSED if any(check.verdict == "missing" for check in checks) else 0


_SYMBOL_BY_VERDICT = {
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
    """Yield checks of this machine as a host of the local endpoint (which emulates SageMaker here): disk,
    what each executor needs, and whether a background endpoint runs."""
    from smlaunch.local.executors import EXECUTORS, load_executor
    from smlaunch.local.state_dir import default_root

    state_dir = default_root()  # has the endpoint's data; may not exist yet
    nearest_existing_dir = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    free_bytes = shutil.disk_usage(nearest_existing_dir).free
    disk_verdict: Literal["ok", "note"] = "ok" if free_bytes > _LOW_DISK_BYTES else "note"
    yield Check("disk", disk_verdict, f"{free_bytes / (1 << 30):.1f} GB free for {state_dir}")
    for executor_name in EXECUTORS.names():
        try:
            executor = load_executor(executor_name)
        except EndpointError as error:
            yield Check(f"executor {executor_name}", "missing", str(error))
            continue
        for check in executor.check_machine():
            yield Check(check.name, "ok" if check.works else "note", check.text)
    yield _background_endpoint_check(state_dir)


def _background_endpoint_check(state_dir: Path) -> Check:
    """Return whether a background endpoint runs on this machine. ``state_dir``: folder of its data, which no
    other user may be able to change."""
    from smlaunch.connection.open_connection import find_background_endpoint
    from smlaunch.local import path_ownership

    try:
        path_ownership.resolve_trusted_path(state_dir.absolute(), os.geteuid())
        endpoint_info = find_background_endpoint(state_dir)
    except (path_ownership.UntrustedPath, EndpointError, OSError) as error:
        return Check("state directory", "missing", str(error))
    if endpoint_info is None:
        return Check("endpoint", "ok", "no background endpoint (run --local starts its own)")
    return Check("endpoint", "ok", f"running at {endpoint_info.url}")


def _region_checks(region: str | None, profile: str | None) -> Iterator[Check]:
    """Yield checks of an AWS region: whether the credentials work, and whether there is an execution role,
    which jobs get. ``missing``: commands for the region fail."""
    from smlaunch.aws.interfaces import CallError
    from smlaunch.aws.service_errors import to_user_error
    from smlaunch.discovery.caller_identity import find_execution_role
    from smlaunch.runs.launch_target import Target

    try:
        target = Target.region(region, profile)  # clients of the region's services
        account, arn = target.identity.get_caller_identity()
    except SmlaunchError as error:
        yield Check("credentials", "missing", str(error))
        return
    except CallError as error:
        yield Check("credentials", "missing", str(to_user_error(error, region or "AWS")))
        return
    yield Check("credentials", "ok", f"{arn} (account {account}) in {target.region_name}")
    role, role_problem = find_execution_role(None, target)  # None: no role is given
    yield Check("role", "ok", role) if role else Check("role", "missing", str(role_problem))
