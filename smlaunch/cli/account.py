"""``smlaunch account``: what an account needs for smlaunch; printed, or made."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from smlaunch.cli.json_output import print_json
from smlaunch.cli.options import GroupedCommand, grouped_option, json_option
from smlaunch.errors import AccountError, JobError, Problem

if TYPE_CHECKING:
    from smlaunch.account.account_setup import AccountSetup
    from smlaunch.runs.launch_target import Target

_ACTIONS, _NAMES, _ALLOWED, _QUOTA = "Actions", "Names", "What jobs use", "Quota"
_FORMATS = ("cli", "cloudformation", "terraform")


@click.command(cls=GroupedCommand, short_help="Print what an account needs, or make it.")
@grouped_option("Target", "--region", metavar="REGION", help="AWS region; default: as for plan.")
@grouped_option("Target", "--profile", metavar="NAME", help="AWS profile.")
@grouped_option(
    "Target", "--account", metavar="ID", help="Account; default: that of the credentials. Needs none then."
)
@grouped_option(
    _ACTIONS, "--as", "form", type=click.Choice(_FORMATS), help="Form of what is printed; default: cli."
)
@grouped_option(_ACTIONS, "--apply", "applies", is_flag=True, help="Make what is missing, after a question.")
@grouped_option(_ACTIONS, "--yes", is_flag=True, help="With --apply: do not ask.")
@grouped_option(_NAMES, "--role-name", default="smlaunch-training", show_default=True, help="Execution role.")
@grouped_option(
    _NAMES,
    "--policy-name",
    default="smlaunch-user",
    show_default=True,
    help="Policy of those who call smlaunch.",
)
@grouped_option(_NAMES, "--user", metavar="NAME", help="IAM user who gets that policy.")
@grouped_option(
    _ALLOWED,
    "--data-bucket",
    "data_buckets",
    multiple=True,
    metavar="NAME",
    help="Bucket to read; repeatable.",
)
@grouped_option(
    _ALLOWED, "--kms-key", "kms_keys", multiple=True, metavar="ARN", help="KMS key of jobs; repeatable."
)
@grouped_option(
    _ALLOWED,
    "--secret",
    "secrets",
    multiple=True,
    metavar="ARN",
    help="Secret or parameter that jobs fetch; repeatable.",
)
@grouped_option(_ALLOWED, "--vpc", "in_vpc", is_flag=True, help="Jobs have subnets and security groups.")
@grouped_option(_QUOTA, "--instance-type", metavar="TYPE", help="Ask for a quota for this type.")
@grouped_option(_QUOTA, "--hosts", type=click.IntRange(1), metavar="N", help="Number of hosts; default: 1.")
@grouped_option(_QUOTA, "--spot", is_flag=True, help="The quota for spot capacity.")
@json_option
def account(
    region: str | None,
    profile: str | None,
    account: str | None,
    form: str | None,
    applies: bool,
    yes: bool,
    as_json: bool,
    **parts: Any,
) -> int:
    """Print what an account needs for smlaunch: an execution role and a policy for callers, each with the
    least permissions, the default bucket, and with --instance-type the request for a quota. Changes nothing
    without --apply.

    \b
    smlaunch account --region eu-west-1 --as terraform > smlaunch.tf
    smlaunch account --region eu-west-1 --user ada --instance-type ml.g5.xlarge --apply
    """
    from smlaunch.account.account_setup import AccountSetup
    from smlaunch.connection.open_connection import region_of_command

    _check_options(form, applies, yes, as_json)
    target = region_of_command(region, profile)
    setup = AccountSetup(account or "0" * 12, target.region_name, **parts)
    setup.check()  # before anything is asked of AWS
    if account is None or applies:
        setup = replace(setup, account=_own_account(target, account))
    if applies:
        return _apply(target, setup, yes, as_json)
    text = _render(form or "cli")(setup)
    if as_json:
        print_json({**_describe(setup), "form": form or "cli", "text": text})
    else:
        click.echo(text, nl=False)
    return 0


def _check_options(form: str | None, applies: bool, yes: bool, as_json: bool) -> None:
    problems = []
    if applies and form is not None:
        problems.append(Problem("--as", "--apply calls AWS itself and prints no commands; leave one out"))
    if yes and not applies:
        problems.append(Problem("--yes", "nothing is asked without --apply"))
    if applies and not yes and (as_json or not sys.stdin.isatty()):
        problems.append(Problem("--apply", "there is no terminal to ask on; give --yes too"))
    if problems:
        raise JobError(problems)


def _own_account(target: Target, stated: str | None) -> str:
    """Return the account of the credentials. Raises AccountError if the command states another one."""
    from smlaunch.aws.interfaces import NO_CREDENTIALS, CallError
    from smlaunch.aws.service_errors import to_user_error

    try:
        own, _ = target.identity.get_caller_identity()
    except CallError as error:
        if error.code == NO_CREDENTIALS:
            raise AccountError(
                "no AWS credentials were found; give --profile, or set AWS_PROFILE; to print what an account "
                "needs, none are needed with --account ID"
            ) from error
        raise to_user_error(error, target.location, target.credential_source) from error
    if stated not in (None, own):
        raise AccountError(f"the credentials are of the account {own}, not of {stated}; give --profile")
    return own


def _render(form: str) -> Callable[[AccountSetup], str]:
    if form == "cloudformation":
        from smlaunch.account.cloudformation import cloudformation_template

        return cloudformation_template
    if form == "terraform":
        from smlaunch.account.terraform import terraform_configuration

        return terraform_configuration
    from smlaunch.account.cli_commands import cli_commands

    return cli_commands


def _apply(target: Target, setup: AccountSetup, yes: bool, as_json: bool) -> int:
    """Make what is missing, and print each part: to stderr with ``--json``."""
    from smlaunch.aws.interfaces import CallError
    from smlaunch.aws.service_errors import to_user_error
    from smlaunch.connection.account_changes import compare_account

    done = []
    try:
        parts = list(compare_account(target, setup))
        missing = [part for part in parts if part.make is not None]
        for part in parts:
            click.echo(f"{'exists ' if part.make is None else 'missing'} {part.text}", err=as_json)
        if missing and not yes:
            click.confirm(f"Make {len(missing)} in account {setup.account}?", abort=True, err=True)
        for part in missing:
            if part.make is not None:
                part.make()
                done.append(part.text)
                click.echo(f"made    {part.text}", err=as_json)
    except CallError as error:
        raise to_user_error(error, target.location, target.credential_source) from error
    if as_json:
        existing = [part.text for part in parts if part.make is None]
        print_json({**_describe(setup), "made": done, "existed": existing})
    return 0


def _describe(setup: AccountSetup) -> dict[str, Any]:
    from smlaunch.account.policies import caller_policy, execution_policy, trust_policy

    quota = None if setup.quota is None else {"name": setup.quota.name, "hosts": setup.quota.hosts}
    return {
        "account": setup.account,
        "region": setup.region,
        "role": setup.role_arn,
        "bucket": setup.bucket,
        "policies": {
            "trust": trust_policy(),
            "execution": execution_policy(setup),
            "caller": caller_policy(setup),
        },
        "quota": quota,
    }
