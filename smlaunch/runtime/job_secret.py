"""The secret of a job's hosts, and how each host proves to the others that it knows it.

A secret is made at each submission and is an object of its own beside runtime.pyz. It never crosses the
network: each side sends a fresh nonce and answers the other's nonce with an HMAC over both
(peer_connection.py).

Purpose and side are signed too, so an answer cannot be used for anything else or be sent back to its author;
the fresh nonces of both sides prevent replays.
"""

import hashlib
import hmac
import os

from smlaunch.runtime.errors import SetupError

NONCE_BYTES = 32
PROOF_BYTES = 32
"""Of SHA-256."""

_HEX_DIGITS = 64


def read_secret(path: str) -> bytes:
    """Return the secret key that the hosts of the job share, from its file: 32 bytes as 64 hexadecimal
    digits. Raises SetupError, whose message never shows the content of the file.
    """
    try:
        with open(path, "rb") as file:
            hex_text = file.read(_HEX_DIGITS + 3).strip()  # room for a line end; more is an error
    except OSError as error:
        raise SetupError(
            "{}: {}: without it the hosts of this job cannot know each other; "
            "submit the job again with smlaunch, which makes it".format(path, error.strerror)
        ) from None
    try:
        key = bytes.fromhex(hex_text.decode("ascii"))
    except ValueError:
        key = b""
    # Both lengths: fromhex accepts spaces between digits.
    if len(hex_text) != _HEX_DIGITS or len(key) * 2 != _HEX_DIGITS:
        raise SetupError("{}: not a secret: {} hexadecimal digits are needed".format(path, _HEX_DIGITS))
    return key


def make_nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def compute_proof(key: bytes, purpose: str, side: str, *parts: bytes) -> bytes:
    """HMAC-SHA256 over purpose, side and parts. Each is preceded by its length, so that no byte can move from
    one part to the next.
    """
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in (purpose.encode("utf-8"), side.encode("utf-8"), *parts):
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.digest()


def equal_constant_time(left: bytes, right: bytes) -> bool:
    """Compare in a time that does not depend on where the values differ."""
    return hmac.compare_digest(left, right)
