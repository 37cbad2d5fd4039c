"""``smlaunch doctor``: check what works on this machine."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from smlaunch import __version__
from smlaunch.cli.json_output import print_json
from smlaunch.cli.options import GroupedCommand, grouped_option, json_option
from smlaunch.errors import EXIT_BAD_JOB, EXIT_MACHINE, EXIT_REFUSED, EndpointError, JobError, SmlaunchError

if TYPE_CHECKING:
    from smlaunch.errors import Problem
    from smlaunch.local.executors.executor_base import MachineCheck

_LOW_DISK_BYTES = 2 << 30


class Check(NamedTuple):
    """One check. ``verdict``: ``ok``; ``note`` (works with a limitation); ``missing`` (does not work)."""

    name: str
    verdict: Literal["ok", "note", "missing"]
    text: str


@click.command(cls=GroupedCommand, short_help="Check what works on this machine.")
@grouped_option("Target", "--region", metavar="REGION", help="Also check credentials, role and permissions.")
@grouped_option("Target", "--profile", metavar="NAME", help="AWS profile for this check.")
@grouped_option("Target", "--aws", is_flag=True, help="Also check the default credentials and role.")
@json_option
def doctor(region: str | None, profile: str | None, aws: bool, as_json: bool) -> int:
    """Check what works on this machine, and explain what does not. Starts nothing; calls AWS only with
    --aws, --region or --profile."""
    machine_checks = [*_machine_checks(), *_endpoint_checks()]
    config_checks = list(_config_checks())
    asks_aws = aws or region is not None or profile is not None
    aws_checks = list(_region_checks(region, profile) if asks_aws else _unasked_region_checks())
    checks = [*machine_checks, *config_checks, *aws_checks]
    if as_json:
        print_json({"checks": [check._asdict() for check in checks]})
    else:
        name_width = max(len(check.name) for check in checks)
        for check in checks:
            click.echo(f"{_SYMBOL_BY_VERDICT[check.verdict]} {check.name.ljust(name_width)}  {check.text}")
    # A note is only a restriction; what is missing makes commands fail.
    groups = ((machine_checks, EXIT_MACHINE), (config_checks, EXIT_BAD_JOB), (aws_checks, EXIT_REFUSED))
    for failed_checks, exit_code in groups:
        if any(check.verdict == "missing" for check in failed_checks):
            return exit_code
    return 0


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
    yield Check("accelerators", "ok", _accelerators_text())


def _accelerators_text() -> str:
    """What hosts of --local count for ``processes_per_host: auto``."""
    from smlaunch.runtime import accelerators

    gpus, neuron_cores = accelerators.count_gpus(), accelerators.count_neuron_cores("")
    texts = [f"{gpus} x {' or '.join(accelerators.gpu_names()) or 'NVIDIA GPU'}"] if gpus else []
    texts += [f"{neuron_cores} NeuronCores"] if neuron_cores else []
    return ", ".join(texts) or "no GPU found: no /dev/nvidia0 and so on, and no nvidia-smi that lists one"


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
        checks = list(executor.check_machine())
        for check in checks:
            yield Check(check.name, "ok" if check.works else "note", check.text)
        if executor.takes_isolation:
            yield _isolation_check(checks)
    yield _background_endpoint_check(state_dir)


def _isolation_check(level_checks: Sequence[MachineCheck]) -> Check:
    """Return which isolation level hosts have without a request, and why no stronger one: the first that
    works. ``level_checks``: of all levels, strongest first."""
    strongest_working = next(check for check in level_checks if check.works)
    stronger_levels = level_checks[: level_checks.index(strongest_working)]
    reasons = "; ".join(
        f"{check.name.rpartition(' ')[2]} does not work: {check.text}" for check in stronger_levels
    )
    level = strongest_working.name.rpartition(" ")[2]
    return Check(
        "isolation",
        "note" if level == "plain" else "ok",
        f"hosts of --local have {level}: {reasons or 'the strongest works'} (docs/isolation.md)",
    )


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


def _config_checks() -> Iterator[Check]:
    """Yield a check of each place where a team's configuration file may be, in the order of precedence."""
    from smlaunch.discovery.config_files import config_files, read_team_settings

    problems: tuple[Problem, ...] = ()
    try:
        read_team_settings(os.environ)
    except JobError as error:
        problems = error.problems
    for place in config_files(os.environ):
        name = f"config ({place.title})"
        named_by = f", by {place.variable}" if place.variable else ""
        texts = [str(problem) for problem in problems if problem.path.startswith(str(place.path))]
        if texts:
            yield Check(name, "missing", "; ".join(texts))
        elif place.is_in_s3:
            yield Check(name, "note", f"{place.address}{named_by}: read when a job in a region is planned")
        else:
            state = "is read" if place.exists else "is not there"
            yield Check(name, "ok", f"{place.path} {state}{named_by}")


def _unasked_region_checks() -> Iterator[Check]:
    """Yield what is configured for AWS, without a call: whether it works is not checked."""
    from smlaunch.connection.open_connection import region_of_command

    how_to_check = "not checked; `smlaunch doctor --aws` asks AWS (or --profile NAME, --region REGION)"
    try:
        target = region_of_command(None, None)
    except SmlaunchError as error:
        yield Check("AWS", "note", f"{how_to_check}. Configuration: {error}")
        return
    source = target.credential_source
    source_text = "no credentials" if source.kind == "none" else f"credentials from {source}"
    yield Check("AWS", "note", f"{how_to_check}. Configuration: {source_text}, region {target.region_name}")


def _region_checks(region: str | None, profile: str | None) -> Iterator[Check]:
    """Yield checks of an AWS region: whether the credentials work, and whether there is an execution role,
    which jobs get, and whether both have the permissions. ``missing``: commands for the region fail."""
    from smlaunch.aws.interfaces import CallError
    from smlaunch.aws.service_errors import to_user_error
    from smlaunch.cli.doctor_permissions import check_permissions
    from smlaunch.connection.open_connection import region_of_command
    from smlaunch.discovery.caller_identity import find_execution_role
    from smlaunch.runs.team_defaults import find_default_role

    try:
        target = region_of_command(region, profile)  # clients of the region's services
        account, arn = target.identity.get_caller_identity()
    except SmlaunchError as error:
        yield Check("credentials", "missing", str(error))
        return
    except CallError as error:
        user_error = to_user_error(error, target.location, target.credential_source)
        yield Check("credentials", "missing", str(user_error))
        return
    yield Check("credentials", "ok", f"{arn} (account {account}) in {target.region_name}")
    default_role = None  # that of a job that names none, by the team's configuration files
    try:
        default_role = find_default_role(target)
        stated_role = None if default_role is None else default_role.value
        role, role_problem = find_execution_role(stated_role, target)
    except CallError as error:
        role, role_problem = None, str(to_user_error(error, target.location, target.credential_source))
    except SmlaunchError as error:  # of a configuration file
        role, role_problem = None, str(error)
    origin = "" if default_role is None else f", by {default_role.origin}"
    if role is None or role_problem is not None:
        yield Check("role", "missing", f"{role_problem}{origin}")
    else:
        yield Check("role", "ok", f"{role}{origin}")
    usable_role = role if role_problem is None else None
    for check in check_permissions(target, account, arn, usable_role):
        yield Check(*check)
