"""``smlaunch local start | stop | status | env``: the background endpoint."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.executor_option import executor_option
from smlaunch.cli.json_output import print_json
from smlaunch.cli.main import LazyGroup
from smlaunch.cli.options import GroupedCommand, grouped_option, json_option
from smlaunch.errors import EXIT_MACHINE, EndpointError

if TYPE_CHECKING:
    from smlaunch.local.endpoint_info import EndpointInfo

_MODULE = "smlaunch.cli.local"

local = LazyGroup(
    {
        "start": (_MODULE, "start", "Start the background endpoint."),
        "stop": (_MODULE, "stop", "Stop the background endpoint and all of its jobs."),
        "status": (_MODULE, "status", "Show whether the background endpoint runs."),
        "env": (_MODULE, "env", "Print the environment variables for AWS clients."),
    },
    name="local",
    help="""Manage the SageMaker endpoint on this machine.

    `smlaunch run --local` starts an endpoint that ends with the command. A background endpoint serves other
    clients too (boto3, the AWS CLI, notebooks), continues runs without a terminal, and starts them
    faster.""",
)


@click.command(cls=GroupedCommand, short_help="Start the background endpoint.")
@grouped_option(
    "Endpoint", "--port", type=click.IntRange(0, 65535), default=0, help="TCP port; default: a free one."
)
@grouped_option(
    "Endpoint",
    "--isolation",
    type=click.Choice(("full", "user", "plain")),
    help="Isolation level of the hosts; default: the strongest that works.",
)
@executor_option("Endpoint", "Hosts are")
@json_option
def start(port: int, isolation: str | None, executor: str | None, as_json: bool) -> int:
    """Start the background endpoint. It listens on the loopback interface only."""
    from smlaunch.connection.open_connection import check_host_options, find_background_endpoint
    from smlaunch.local import background_endpoint
    from smlaunch.local.executors import DEFAULT_EXECUTOR
    from smlaunch.local.state_dir import default_root

    # The endpoint emulates SageMaker on this machine; its data is in SMLAUNCH_HOME, or in the default folder.
    state_dir = default_root()
    running_endpoint = find_background_endpoint(state_dir)
    if running_endpoint is not None:
        # Raises JobError where it runs with other options.
        check_host_options({"isolation": isolation, "executor": executor}, running_endpoint)
    endpoint_info = running_endpoint or background_endpoint.start_endpoint(
        state_dir, isolation=isolation, executor=executor or DEFAULT_EXECUTOR, port=port
    )
    if as_json:
        print_json(_printable_endpoint_fields(endpoint_info))
        return 0
    state_text = "already running" if running_endpoint else "running"
    click.echo(f"{state_text} at {endpoint_info.url} ({_describe_isolation(endpoint_info)})")
    click.echo("to use it from any AWS client:  eval $(smlaunch local env)", err=True)
    return 0


@click.command(cls=GroupedCommand, short_help="Stop the background endpoint and all of its jobs.")
@json_option
def stop(as_json: bool) -> int:
    """Stop the background endpoint and all of its jobs. Stored data is not deleted."""
    from smlaunch.connection.open_connection import find_background_endpoint
    from smlaunch.local import background_endpoint
    from smlaunch.local.state_dir import default_root

    state_dir = default_root()  # folder of the endpoint's data
    endpoint_info = find_background_endpoint(state_dir)  # None if none runs
    if endpoint_info is not None:
        background_endpoint.stop_endpoint(state_dir)
    if as_json:
        print_json({"stopped": endpoint_info is not None})
    else:
        click.echo("stopped" if endpoint_info is not None else "no background endpoint is running")
    return 0


@click.command(cls=GroupedCommand, short_help="Show whether the background endpoint runs.")
@json_option
def status(as_json: bool) -> int:
    """Show whether a background endpoint runs, and where. The exit code is 8 when none runs."""
    from smlaunch.connection.open_connection import find_background_endpoint
    from smlaunch.local.state_dir import default_root

    state_dir = default_root()  # folder of the endpoint's data
    endpoint_info = find_background_endpoint(state_dir)  # None if none runs
    if as_json:
        print_json(
            _printable_endpoint_fields(endpoint_info)
            if endpoint_info
            else {"running": False, "state": str(state_dir)}
        )
    elif endpoint_info is None:
        click.echo("no background endpoint is running; `smlaunch local start` starts one")
    else:
        click.echo(
            f"running at {endpoint_info.url}, {_describe_isolation(endpoint_info)}, "
            f"process {endpoint_info.pid}, state in {state_dir}"
        )
    return 0 if endpoint_info is not None else EXIT_MACHINE


@click.command(cls=GroupedCommand, short_help="Print the environment variables for AWS clients.")
@json_option
def env(as_json: bool) -> int:
    """Print the environment variables that let any AWS client use the background endpoint:
    eval $(smlaunch local env)

    They contain credentials of this endpoint, which are valid nowhere else.
    """
    from smlaunch.connection.open_connection import find_background_endpoint
    from smlaunch.local.state_dir import default_root

    # The default root is the folder of the endpoint's data.
    endpoint_info = find_background_endpoint(default_root())
    if endpoint_info is None:
        raise EndpointError("no background endpoint is running; `smlaunch local start` starts one")
    environment = {**endpoint_info.environment(), "SMLAUNCH_ROLE": endpoint_info.role_arn}
    if as_json:
        print_json(environment)
        return 0
    for name, value in environment.items():
        click.echo(f"export {name}={shlex.quote(value)}")
    click.echo("unset AWS_PROFILE AWS_DEFAULT_PROFILE")  # a profile would override the keys above
    return 0


def _describe_isolation(info: EndpointInfo) -> str:
    from smlaunch.local.executors import load_executor

    return load_executor(info.executor).describe_isolation(info.isolation)


def _printable_endpoint_fields(info: EndpointInfo) -> dict[str, Any]:
    """Fields of the endpoint that may be printed: all but the secret key."""
    return {
        "running": True,
        "url": info.url,
        "region": info.region,
        "account": info.account,
        "role": info.role_arn,
        "bucket": info.bucket,
        "isolation": info.isolation,
        "executor": info.executor,
        "pid": info.pid,
    }
