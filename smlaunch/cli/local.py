"""``smlaunch local start | stop | status | env``: the endpoint that stays."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.main import LazyGroup
from smlaunch.cli.options import GroupedCommand, executor_option, json_option, option
from smlaunch.errors import EXIT_MACHINE, EndpointError

if TYPE_CHECKING:
    from smlaunch.local.endpoint_info import EndpointInfo

_HERE = "smlaunch.cli.local"

local = LazyGroup(
    {
        "start": (_HERE, "start", "Start the endpoint and leave it standing."),
        "stop": (_HERE, "stop", "Stop it, and every job that runs on it."),
        "status": (_HERE, "status", "Say whether it runs, and where."),
        "env": (_HERE, "env", "Print the variables that point any AWS client at it."),
    },
    name="local",
    help="""The SageMaker endpoint on this machine.

    `smlaunch run --local` brings one up for itself. One that stands serves other clients as well (boto3, the
    AWS CLI, notebooks), keeps runs going without a terminal, and starts them faster.""",
)


@click.command(cls=GroupedCommand, short_help="Start the endpoint and leave it standing.")
@option("How", "--port", type=click.IntRange(0, 65535), default=0, help="TCP port; default: a free one.")
@option(
    "How",
    "--isolation",
    type=click.Choice(("full", "user", "plain")),
    help="How hosts are kept apart; default: the best there is.",
)
@executor_option("How", "What hosts are: processes on this machine, or containers of the jobs' images.")
@json_option
def start(port: int, isolation: str | None, executor: str | None, as_json: bool) -> int:
    """Start the endpoint and leave it standing. It listens on this machine only."""
    from smlaunch.local import standing
    from smlaunch.local.state_dir import default_root
    from smlaunch.place import same_hosts, standing_endpoint

    root = default_root()
    already = standing_endpoint(root)
    if already is not None:
        same_hosts({"isolation": isolation, "executor": executor}, already)
    info = already or standing.start(root, isolation=isolation, executor=executor or "processes", port=port)
    if as_json:
        click.echo(json.dumps(_public(info), indent=2))
        return 0
    click.echo(f"{'already standing' if already else 'standing'} at {info.url} ({_hosts(info)})")
    click.echo("point any AWS client at it:  eval $(smlaunch local env)", err=True)
    return 0


@click.command(cls=GroupedCommand, short_help="Stop it, and every job that runs on it.")
@json_option
def stop(as_json: bool) -> int:
    """Stop the standing endpoint, and every job that runs on it. What it stored stays."""
    from smlaunch.local import standing
    from smlaunch.local.state_dir import default_root
    from smlaunch.place import standing_endpoint

    root = default_root()
    info = standing_endpoint(root)
    if info is not None:
        standing.stop(root)
    if as_json:
        click.echo(json.dumps({"stopped": info is not None}))
    else:
        click.echo("stopped" if info is not None else "no endpoint is standing")
    return 0


@click.command(cls=GroupedCommand, short_help="Say whether it runs, and where.")
@json_option
def status(as_json: bool) -> int:
    """Say whether an endpoint stands, and where. The exit code is 8 when none does."""
    from smlaunch.local.state_dir import default_root
    from smlaunch.place import standing_endpoint

    root = default_root()
    info = standing_endpoint(root)
    if as_json:
        click.echo(json.dumps(_public(info) if info else {"standing": False, "state": str(root)}, indent=2))
    elif info is None:
        click.echo("no endpoint is standing; `smlaunch local start` starts one")
    else:
        click.echo(f"standing at {info.url}, {_hosts(info)}, process {info.pid}, state in {root}")
    return 0 if info is not None else EXIT_MACHINE


@click.command(cls=GroupedCommand, short_help="Print the variables that point any AWS client at it.")
@json_option
def env(as_json: bool) -> int:
    """Print the variables that point any AWS client at the standing endpoint: eval $(smlaunch local env)

    They hold the endpoint's own credentials, which open nothing else.
    """
    from smlaunch.local.state_dir import default_root
    from smlaunch.place import standing_endpoint

    info = standing_endpoint(default_root())
    if info is None:
        raise EndpointError("no endpoint is standing; `smlaunch local start` starts one")
    variables = {**info.environment(), "SMLAUNCH_ROLE": info.role_arn}
    if as_json:
        click.echo(json.dumps(variables, indent=2))
        return 0
    for name, value in variables.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    click.echo("unset AWS_PROFILE AWS_DEFAULT_PROFILE")  # these would win over the keys above
    return 0


def _hosts(info: EndpointInfo) -> str:
    if info.executor == "processes":
        return f"isolation {info.isolation}"
    return f"{info.executor} by {info.isolation}"


def _public(info: EndpointInfo) -> dict[str, Any]:
    """What may be printed and logged: everything but the secret key."""
    return {
        "standing": True,
        "url": info.url,
        "region": info.region,
        "account": info.account,
        "role": info.role_arn,
        "bucket": info.bucket,
        "isolation": info.isolation,
        "executor": info.executor,
        "pid": info.pid,
    }
