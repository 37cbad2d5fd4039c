"""What an account is to have for smlaunch, as the user names it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from smlaunch.catalog.instances import find_instance_type, near_sizes
from smlaunch.catalog.quotas import ON_DEMAND_QUOTA, SPOT_QUOTA
from smlaunch.catalog.regions import partition_of
from smlaunch.errors import JobError, Problem

EXECUTION_POLICY_NAME = "smlaunch-execution"
"""The inline policy of the execution role."""

_PATTERN_BY_OPTION = {
    "--account": (re.compile(r"[0-9]{12}"), "an account id has 12 digits"),
    "--role-name": (
        re.compile(r"[\w+=,.@-]{1,64}", re.ASCII),
        "a role's name has up to 64 of A-Z a-z 0-9 _+=,.@-",
    ),
    "--policy-name": (
        re.compile(r"[\w+=,.@-]{1,128}", re.ASCII),
        "a policy's name has up to 128 of A-Z a-z 0-9 _+=,.@-",
    ),
    "--user": (re.compile(r"[\w+=,.@-]{1,64}", re.ASCII), "the name of an IAM user, without its ARN"),
    "--data-bucket": (
        re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
        "a bucket's name has 3 to 63 of a-z 0-9 . -, without s3:// and without a prefix",
    ),
    "--kms-key": (re.compile(r"arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:key/.+"), "the ARN of a KMS key"),
    "--secret": (
        re.compile(r"arn:[a-z-]+:(secretsmanager|ssm):[a-z0-9-]+:[0-9]{12}:(secret:|parameter/).+"),
        "the ARN of a secret of Secrets Manager, or of a parameter of Systems Manager",
    ),
    "--instance-type": (
        re.compile(r"ml\.[a-z0-9-]+\.[a-z0-9]+"),
        "a type of SageMaker, such as ml.g5.xlarge",
    ),
}


@dataclass(frozen=True)
class QuotaRequest:
    """A quota of SageMaker, by its name in Service Quotas, and the number of hosts that it is to allow."""

    name: str
    hosts: int


@dataclass(frozen=True)
class AccountSetup:
    """Names of what one account gets in one region. Checked by ``check``."""

    account: str
    region: str
    role_name: str = "smlaunch-training"
    policy_name: str = "smlaunch-user"
    """The managed policy of those who call smlaunch."""
    user: str | None = None
    """IAM user to whom the policy is attached."""
    data_buckets: Sequence[str] = ()
    """Buckets that jobs read, beside the default one. They may belong to another account."""
    kms_keys: Sequence[str] = ()
    secrets: Sequence[str] = ()
    """ARNs of what jobs fetch by ``secrets:``."""
    in_vpc: bool = False
    instance_type: str | None = None
    hosts: int | None = None
    spot: bool = False

    @property
    def partition(self) -> str:
        return partition_of(self.region)

    @property
    def bucket(self) -> str:
        """The SageMaker SDK's default bucket."""
        return f"sagemaker-{self.region}-{self.account}"

    @property
    def role_arn(self) -> str:
        return f"arn:{self.partition}:iam::{self.account}:role/{self.role_name}"

    @property
    def policy_arn(self) -> str:
        return f"arn:{self.partition}:iam::{self.account}:policy/{self.policy_name}"

    @property
    def quota(self) -> QuotaRequest | None:
        """None without an instance type."""
        if self.instance_type is None:
            return None
        name = SPOT_QUOTA if self.spot else ON_DEMAND_QUOTA.format("training job")
        return QuotaRequest(name.format(self.instance_type), self.hosts or 1)

    def check(self) -> None:
        """Raise JobError with every problem, by option."""
        problems = list(self._problems())
        if problems:
            raise JobError(problems)

    def _problems(self) -> Iterator[Problem]:
        values: dict[str, Sequence[str | None]] = {
            "--account": [self.account],
            "--role-name": [self.role_name],
            "--policy-name": [self.policy_name],
            "--user": [self.user],
            "--data-bucket": self.data_buckets,
            "--kms-key": self.kms_keys,
            "--secret": self.secrets,
            "--instance-type": [self.instance_type],
        }
        for option, option_values in values.items():
            pattern, expected = _PATTERN_BY_OPTION[option]
            for value in option_values:
                if value is not None and not pattern.fullmatch(value):
                    yield Problem(option, f"{value!r} is none: {expected}")
        yield from self._quota_problems()

    def _quota_problems(self) -> Iterator[Problem]:
        name = self.instance_type
        is_known = name is None or name.count(".") != 2 or find_instance_type(name) is not None
        # Of a type of an unknown family nothing is known: it may be new, and has no near sizes.
        if name is not None and not is_known and (near := near_sizes(name)):
            yield Problem("--instance-type", f"{name} does not exist; this family has {', '.join(near)}")
        if self.instance_type is None:
            for option, is_given in (("--hosts", self.hosts is not None), ("--spot", self.spot)):
                if is_given:
                    yield Problem(option, "a quota is one of an instance type; give --instance-type too")
