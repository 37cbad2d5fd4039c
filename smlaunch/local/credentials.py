"""The endpoint's own key, and the temporary ones that STS derives from it."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from smlaunch.local.caller import ACCOUNT
from smlaunch.local.damage import forbidden, unusable


@dataclass(frozen=True)
class Credentials:
    """Made at random once per state directory, and kept in it, readable by its owner alone."""

    access_key: str
    secret_key: str = field(repr=False)


class Identity(NamedTuple):
    """The secret that an access key signs with, and whom it stands for."""

    secret_key: str
    arn: str


class TemporaryCredentials(NamedTuple):
    """``expires`` in seconds since the epoch."""

    access_key: str
    secret_key: str
    session_token: str
    expires: float


def fresh() -> bytes:
    """A random key as it is stored, in the form of AWS's own, which some clients check."""
    key = {"access_key": "AKIA" + secrets.token_hex(8).upper(), "secret_key": secrets.token_urlsafe(30)}
    return json.dumps(key).encode()


def read(path: Path) -> Credentials:
    """Raises FileNotFoundError, and StateDamaged for a file that holds no key."""
    lost = "the key that clients sign their requests with; a new one takes `smlaunch local env` in each shell"
    try:
        key = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise
    except PermissionError as error:
        raise forbidden(path) from error
    except OSError as error:
        raise unusable(path, f"cannot be read: {error.strerror}", lost) from error
    except ValueError:
        raise unusable(path, "is damaged: it is not JSON", lost) from None
    names = ("access_key", "secret_key")
    if not isinstance(key, dict) or any(
        not isinstance(key.get(name), str) or not key[name] for name in names
    ):
        raise unusable(path, f"is damaged: it holds no {' and '.join(names)}", lost)
    return Credentials(key["access_key"], key["secret_key"])


class Keyring:
    """Which keys are good. Temporary keys are derived, not stored: they outlive a restart of the endpoint."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def find(self, access_key: str, session_token: str | None, now: float) -> Identity | None:
        """None for a key or token not issued here, or run out. ``now``: seconds since the epoch."""
        if not session_token:  # obstore sends an empty header for an AWS_SESSION_TOKEN that is set and empty
            if access_key != self._credentials.access_key:
                return None
            return Identity(self._credentials.secret_key, f"arn:aws:iam::{ACCOUNT}:root")
        body, _, seal = session_token.rpartition(".")
        if not hmac.compare_digest(seal.encode(), self._derive("seal", body).encode()):
            return None
        claims = json.loads(base64.urlsafe_b64decode(body))
        if claims["expires"] <= now or access_key != self._access_key(session_token):
            return None
        return Identity(self._derive("secret", session_token), claims["arn"])

    def issue(self, arn: str, seconds: float, now: float) -> TemporaryCredentials:
        expires = now + seconds
        body = base64.urlsafe_b64encode(json.dumps({"arn": arn, "expires": expires}).encode()).decode()
        token = f"{body}.{self._derive('seal', body)}"
        return TemporaryCredentials(self._access_key(token), self._derive("secret", token), token, expires)

    def _access_key(self, token: str) -> str:
        digest = hashlib.sha256(self._derive("key", token).encode()).digest()
        return "ASIA" + base64.b32encode(digest[:10]).decode()

    def _derive(self, purpose: str, text: str) -> str:
        secret = self._credentials.secret_key.encode()
        digest = hmac.new(secret, f"{purpose}:{text}".encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")
