"""References to secrets, which a job has instead of their values."""

import re
from typing import NamedTuple, Optional

SECRETS_MANAGER = "secretsmanager"
SSM = "ssm"

REFERENCE_PATTERN = (
    r"secretsmanager:(arn:[a-z-]+:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:)?[A-Za-z0-9/_+=.@-]{1,512}"
    r"|ssm:(arn:[a-z-]+:ssm:[a-z0-9-]+:[0-9]{12}:parameter)?[A-Za-z0-9/_.-]{1,1011}"
)
"""Names as GetSecretValue and GetParameter take them, in botocore's models and their text."""

_ARN_REGION_INDEX = 3


class SecretReference(NamedTuple):
    """Where a secret is."""

    service: str
    """SECRETS_MANAGER, or SSM for a parameter of Systems Manager's Parameter Store."""

    id: str
    """Name or ARN."""

    @property
    def region(self) -> Optional[str]:
        """The region that an ARN names; None for a name, which is one of the job's region."""
        return self.id.split(":")[_ARN_REGION_INDEX] if self.id.startswith("arn:") else None

    @property
    def permission(self) -> str:
        """What the job's role needs."""
        return "secretsmanager:GetSecretValue" if self.service == SECRETS_MANAGER else "ssm:GetParameter"


def parse_secret_reference(text: str) -> Optional[SecretReference]:
    """Return the reference that a text is; None for any other text, such as the secret itself."""
    if re.fullmatch(REFERENCE_PATTERN, text) is None:
        return None
    service, _, secret_id = text.partition(":")
    return SecretReference(service, secret_id)
