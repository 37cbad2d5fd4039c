"""How to reach an endpoint: what its client loads of it, and no more."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class EndpointInfo:
    """What a client needs to use an endpoint, and what it runs jobs with. ``pid`` is its process."""

    url: str
    region: str
    access_key: str
    secret_key: str = field(repr=False)
    account: str
    role_arn: str
    bucket: str
    pid: int
    isolation: str
    executor: str
    home: str

    def environment(self) -> dict[str, str]:
        """The variables that point any AWS client at the endpoint."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            # A session token or a profile of the user's would win over, or be mixed with, these keys.
            "AWS_SESSION_TOKEN": "",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def to_json(self) -> bytes:
        return json.dumps(asdict(self), indent=2).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> EndpointInfo:
        return cls(**json.loads(text))
