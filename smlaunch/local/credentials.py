"""The endpoint's access key, and the temporary credentials that STS derives from it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from smlaunch.contract import formats
from smlaunch.contract.formats import FormatError
from smlaunch.local.request_context import ACCOUNT
from smlaunch.local.state_errors import permission_error, unusable_file_error


@dataclass(frozen=True)
class Credentials:
    """Random access key of a state directory, stored in a file that only its owner can read."""

    access_key: str
    secret_key: str = field(repr=False)


class SigningIdentity(NamedTuple):
    """Secret key and ARN that belong to an access key."""

    secret_key: str
    arn: str


class TemporaryCredentials(NamedTuple):
    """Credentials issued by STS. ``expires`` in seconds since the epoch."""

    access_key: str
    secret_key: str
    session_token: str
    expires: float


def generate_credentials() -> bytes:
    """Generate a random key as it is stored, in the format of AWS's keys, which some clients check."""
    return encode_credentials(Credentials("AKIA" + secrets.token_hex(8).upper(), secrets.token_urlsafe(30)))


def encode_credentials(credentials: Credentials) -> bytes:
    """Encode a key as it is stored."""
    return json.dumps(formats.CREDENTIALS.stamp(asdict(credentials))).encode()


def read_credentials(path: Path) -> Credentials:
    """Read the stored key. Raises FileNotFoundError, and StateDamaged for a damaged file."""
    lost_data = (
        "the key that clients sign their requests with; a new one takes `smlaunch local env` in each shell"
    )
    try:
        document = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise permission_error(path) from error
    except OSError as error:
        raise unusable_file_error(path, f"cannot be read: {error.strerror}", lost_data) from error
    except ValueError:
        raise unusable_file_error(path, "is damaged: it is not JSON", lost_data) from None
    names = ("access_key", "secret_key")
    if not isinstance(document, dict) or any(
        not isinstance(document.get(name), str) or not document[name] for name in names
    ):
        raise unusable_file_error(path, f"is damaged: it holds no {' and '.join(names)}", lost_data)
    try:
        document = formats.CREDENTIALS.upgrade_document(document, str(path))
    except FormatError as error:
        raise unusable_file_error(path, f"cannot be used ({error})", lost_data) from None
    return Credentials(document["access_key"], document["secret_key"])


class Keyring:
    """Valid access keys. Temporary keys are derived, not stored, so they stay valid after a restart."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def find(self, access_key: str, session_token: str | None, now: float) -> SigningIdentity | None:
        """Return None for a key or token that was not issued here, or has expired. ``now``: seconds since the
        epoch."""
        if not session_token:  # obstore sends an empty header for an AWS_SESSION_TOKEN that is set and empty
            if access_key != self._credentials.access_key:
                return None
            return SigningIdentity(self._credentials.secret_key, f"arn:aws:iam::{ACCOUNT}:root")
        encoded_claims, _, signature = session_token.rpartition(".")
        if not hmac.compare_digest(signature.encode(), self._derive("seal", encoded_claims).encode()):
            return None
        claims = json.loads(base64.urlsafe_b64decode(encoded_claims))
        if claims["expires"] <= now or access_key != self._access_key(session_token):
            return None
        return SigningIdentity(self._derive("secret", session_token), claims["arn"])

    def issue(self, arn: str, seconds: float, now: float) -> TemporaryCredentials:
        expires = now + seconds
        encoded_claims = base64.urlsafe_b64encode(
            json.dumps({"arn": arn, "expires": expires}).encode()
        ).decode()
        token = f"{encoded_claims}.{self._derive('seal', encoded_claims)}"
        return TemporaryCredentials(self._access_key(token), self._derive("secret", token), token, expires)

    def _access_key(self, token: str) -> str:
        digest = hashlib.sha256(self._derive("key", token).encode()).digest()
        return "ASIA" + base64.b32encode(digest[:10]).decode()

    def _derive(self, purpose: str, text: str) -> str:
        secret = self._credentials.secret_key.encode()
        digest = hmac.new(secret, f"{purpose}:{text}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
