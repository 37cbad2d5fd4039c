"""``smlaunch doctor``: what works here, and why not what does not."""

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
from smlaunch.cli.options import GroupedCommand, json_option, option
from smlaunch.errors import EXIT_REFUSED, EndpointError, SmlaunchError

if TYPE_CHECKING:
    from smlaunch.local.executors.containers_words import Engine

_LITTLE_DISK = 2 << 30


class Check(NamedTuple):
    """``verdict``: ``ok``; ``note`` (works, but know this); ``missing`` (does not work)."""

    name: str
    verdict: Literal["ok", "note", "missing"]
    text: str


@click.command(cls=GroupedCommand, short_help="Say what works here, and why not what does not.")
@option("Where", "--region", metavar="REGION", help="Check credentials and role for this region too.")
@option("Where", "--profile", metavar="NAME", help="AWS profile for that.")
@json_option
def doctor(region: str | None, profile: str | None, as_json: bool) -> int:
    """Say what works here, and why not what does not. Starts nothing; asks AWS only with --region."""
    checks = [*_this_machine(), *_local()]
    if region or profile:
        checks.extend(_region(region, profile))
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


def _this_machine() -> Iterator[Check]:
    yield Check("smlaunch", "ok", f"{__version__} at {Path(__file__).parent.parent}")
    yield Check("python", "ok", f"{platform.python_version()} at {sys.executable}")
    yield Check("boto3", "ok", f"{version('boto3')}, botocore {version('botocore')}")
    # Found, not imported: torch takes a second to load, and doctor is asked when things are broken.
    if find_spec("torch") is None:
        yield Check(
            "torch", "note", "not installed in this Python; scripts that import it cannot run --local"
        )
    else:
        yield Check("torch", "ok", _version_of("torch"))


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "installed without metadata"


def _local() -> Iterator[Check]:
    from smlaunch.local import trust
    from smlaunch.local.executors.containers_engine import engines
    from smlaunch.local.executors.levels import levels
    from smlaunch.local.state_dir import default_root
    from smlaunch.place import standing_endpoint

    root = default_root()
    folder = next(path for path in (root, *root.parents) if path.exists())
    free = shutil.disk_usage(folder).free
    verdict: Literal["ok", "note"] = "ok" if free > _LITTLE_DISK else "note"
    yield Check("disk", verdict, f"{free / (1 << 30):.1f} GB free for {root}")
    for level in levels():
        yield Check(f"isolation {level.name}", "ok" if level.works else "note", level.why_not or "works")
    for found in engines():
        text = found.why_not if found.engine is None else f"{found.engine.version}{_remedy(found.engine)}"
        yield Check(f"containers by {found.name}", "note" if found.engine is None else "ok", text)
    try:
        trust.walk(root.absolute(), os.geteuid())
        info = standing_endpoint(root)
    except (trust.Untrusted, EndpointError, OSError) as error:
        yield Check("state directory", "missing", str(error))
        return
    yield Check(
        "endpoint", "ok", f"standing at {info.url}" if info else "none standing (run --local brings its own)"
    )


def _remedy(engine: Engine) -> str:
    """What is said to the engine here because its own settings do not work."""
    words = [*engine.flags, *engine.create_flags]
    return f", with {' '.join(words)} (its own settings do not work here)" if words else ""


def _region(region: str | None, profile: str | None) -> Iterator[Check]:
    from smlaunch.ports import CallError
    from smlaunch.runs.retry import refusal
    from smlaunch.runs.target import Target
    from smlaunch.survey import find_role

    try:
        target = Target.region(region, profile)
        account, arn = target.identity.caller()
    except SmlaunchError as error:
        yield Check("credentials", "missing", str(error))
        return
    except CallError as error:
        yield Check("credentials", "missing", str(refusal(error, region or "AWS")))
        return
    yield Check("credentials", "ok", f"{arn} (account {account}) in {target.region_name}")
    role, problem = find_role(None, target)
    yield Check("role", "ok", role) if role else Check("role", "missing", str(problem))
