"""Address and credentials of an endpoint. Clients import only this module of the endpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields

from smlaunch.contract import formats


@dataclass(frozen=True)
class EndpointInfo:
    """Address, credentials and executor of an endpoint. ``pid``: its process; ``home``: its state directory.
    The names of the fields are the keys of endpoint.json."""

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
        """Return the environment variables that make any AWS client use the endpoint."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            # The user's own session token would be combined with these keys.
            "AWS_SESSION_TOKEN": "",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def to_json(self) -> bytes:
        return json.dumps(formats.ENDPOINT.with_version(asdict(self)), indent=2).encode() + b"\n"

    @classmethod
    def from_json(cls, text: bytes) -> EndpointInfo:
        """Raises ValueError or TypeError for what is none, and FormatError for another version's."""
        found = formats.ENDPOINT.upgrade_document(json.loads(text), "endpoint.json")
        names = {one.name for one in fields(cls)}
        return cls(**{name: value for name, value in found.items() if name in names})
