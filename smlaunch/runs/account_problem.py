"""Whether the caller's account is known: a plan can do without, a launch cannot."""

from __future__ import annotations

from typing import NamedTuple

from smlaunch.aws.interfaces import NO_CREDENTIALS, CallError
from smlaunch.aws.service_errors import to_user_error
from smlaunch.errors import AccountError, SmlaunchError
from smlaunch.job.model import Job
from smlaunch.planner.plan import RunPlan
from smlaunch.runs.launch_target import Target


def require_account(plan: RunPlan) -> None:
    """Raise AccountError if the plan was made without an account, so that it cannot be launched."""
    if plan.facts.account_problem is not None:
        raise AccountError(plan.facts.account_problem)


class AccountProblem(NamedTuple):
    """Why the caller cannot be identified."""

    user_error: SmlaunchError
    has_credentials: bool
    """There are some, which do not work, or AWS does not answer."""

    def __str__(self) -> str:
        return str(self.user_error)


def find_account_problem(target: Target) -> AccountProblem | None:
    """Ask who the caller is, and return why that is unknown; None if it is known."""
    if target.account is not None:
        return None
    try:
        target.identity.get_caller_identity()
    except CallError as error:
        user_error = to_user_error(error, target.location, target.credential_source)
        return AccountProblem(user_error, has_credentials=error.code != NO_CREDENTIALS)
    return None


def require_plan_without_account(job: Job, account_problem: AccountProblem) -> None:
    """Raise the account's problem if there are credentials, which should work, or if the plan lacks what only
    the account can tell."""
    if account_problem.has_credentials:
        raise account_problem.user_error
    for name, channel in job.inputs.items():
        if channel.split == "bytes" and channel.is_in_s3 and job.compute.host_count > 1:
            raise AccountError(
                f"inputs.{name}.split: bytes takes the names and sizes of the objects at {channel.uri}, and "
                f"{account_problem.user_error}"
            )
