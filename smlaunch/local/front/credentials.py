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
from smlaunch.local.front.request_context import ACCOUNT
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
    """Seconds since the epoch."""


def generate_credentials() -> bytes:
    """Generate a random key as it is stored, in the format of AWS's keys, which some clients check."""
    return encode_credentials(Credentials("AKIA" + secrets.token_hex(8).upper(), secrets.token_urlsafe(30)))


def encode_credentials(credentials: Credentials) -> bytes:
    """Encode a key as it is stored."""
    return json.dumps(formats.CREDENTIALS.with_version(asdict(credentials))).encode()


def read_credentials(path: Path) -> Credentials:
    """Read the access key that clients of the endpoint sign with. Raises FileNotFoundError, and StateDamaged
    for a file that is damaged or cannot be read."""
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
    except (ValueError, RecursionError):
        raise unusable_file_error(path, "is damaged: it is not JSON", lost_data) from None
    has_version = isinstance(document, dict) and formats.VERSION_KEY in document
    if has_version:
        try:
            # Checks the document's format version, and upgrades a document of an earlier one.
            document = formats.CREDENTIALS.upgrade_document(document, str(path))
        except FormatError as error:  # such as a file of a later version of smlaunch
            raise unusable_file_error(path, f"cannot be used ({error})", lost_data) from None
    required_fields = ("access_key", "secret_key")
    has_required_fields = isinstance(document, dict) and all(
        isinstance(document.get(name), str) and document[name] for name in required_fields
    )
    if not has_required_fields:
        raise unusable_file_error(path, f"is damaged: it holds no {' and '.join(required_fields)}", lost_data)
    if not has_version:
        raise unusable_file_error(path, "is damaged: it has no version", lost_data)
    return Credentials(document["access_key"], document["secret_key"])


class Keyring:
    """Valid access keys. Temporary keys are derived, not stored, so they stay valid after a restart."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def find_identity(self, access_key: str, session_token: str | None, now: float) -> SigningIdentity | None:
        """Return the secret key and the ARN of the client that signs with an access key; None if the key or
        token was not issued here or has expired. ``session_token``: of temporary credentials, where it
        contains their ARN and expiry as ``<base64 JSON>.<HMAC>``; None or empty otherwise. ``now``: seconds
        since the epoch."""
        if not session_token:  # obstore sends an empty header for an AWS_SESSION_TOKEN that is set and empty
            if access_key != self._credentials.access_key:
                return None
            return SigningIdentity(self._credentials.secret_key, f"arn:aws:iam::{ACCOUNT}:root")
        encoded_claims, _, claims_hmac = session_token.rpartition(".")  # claims: ARN and expiry
        if not hmac.compare_digest(claims_hmac.encode(), self._claims_hmac(encoded_claims).encode()):
            return None  # the HMAC, made with this endpoint's secret key, shows who issued the token
        # No temporary credentials are stored: their keys are derived from the token.
        claims = json.loads(base64.urlsafe_b64decode(encoded_claims))
        if claims["expires"] <= now or access_key != self._access_key_of_token(session_token):
            return None
        return SigningIdentity(self._secret_key_of_token(session_token), claims["arn"])

    def issue_temporary_credentials(self, arn: str, seconds: float, now: float) -> TemporaryCredentials:
        expires = now + seconds
        encoded_claims = base64.urlsafe_b64encode(
            json.dumps({"arn": arn, "expires": expires}).encode()
        ).decode()
        token = f"{encoded_claims}.{self._claims_hmac(encoded_claims)}"
        return TemporaryCredentials(
            self._access_key_of_token(token), self._secret_key_of_token(token), token, expires
        )

    def _claims_hmac(self, encoded_claims: str) -> str:
        return self._derive_with_secret_key("seal", encoded_claims)

    def _secret_key_of_token(self, token: str) -> str:
        return self._derive_with_secret_key("secret", token)

    def _access_key_of_token(self, token: str) -> str:
        digest = hashlib.sha256(self._derive_with_secret_key("key", token).encode()).digest()
        return "ASIA" + base64.b32encode(digest[:10]).decode()

    def _derive_with_secret_key(self, purpose: str, text: str) -> str:
        secret = self._credentials.secret_key.encode()
        digest = hmac.new(secret, f"{purpose}:{text}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
