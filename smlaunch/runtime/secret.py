"""What the hosts of one job know and nobody else does, and how each shows the other that it knows it.

The secret is made at each submission and travels as an object of its own beside runtime.pyz. It never crosses
the network: each side sends a fresh nonce, and answers the other's with an HMAC over both (wire.py).

The purpose and the side are part of what is signed, so that no answer can be used for anything else, nor sent
back to whom it came from; fresh nonces from both sides, so that none can be used twice.
"""

import hashlib
import hmac
import os

from smlaunch.runtime.problems import Unusable

NONCE_BYTES = 32
PROOF_BYTES = 32
"""Of SHA-256."""

_HEX_DIGITS = 64


def read(path: str) -> bytes:
    """The job's key from its file: 32 bytes as 64 hexadecimal digits. Raises Unusable, which never shows what
    the file holds.
    """
    try:
        with open(path, "rb") as file:
            text = file.read(_HEX_DIGITS + 3).strip()
    except OSError as error:
        raise Unusable(
            "{}: {}: without it the hosts of this job cannot know each other; "
            "submit the job again with smlaunch, which makes it".format(path, error.strerror)
        ) from None
    try:
        key = bytes.fromhex(text.decode("ascii"))
    except ValueError:
        key = b""
    if len(text) != _HEX_DIGITS or len(key) * 2 != _HEX_DIGITS:
        raise Unusable("{}: not a secret: {} hexadecimal digits are needed".format(path, _HEX_DIGITS))
    return key


def nonce() -> bytes:
    return os.urandom(NONCE_BYTES)


def proof(key: bytes, purpose: str, side: str, *parts: bytes) -> bytes:
    """HMAC-SHA256 over purpose, side and parts, each with its length before it: nothing can move from one
    part into the next.
    """
    mac = hmac.new(key, digestmod=hashlib.sha256)
    for part in (purpose.encode("utf-8"), side.encode("utf-8"), *parts):
        mac.update(len(part).to_bytes(8, "big"))
        mac.update(part)
    return mac.digest()


def same(one: bytes, other: bytes) -> bool:
    """Takes as long whether they differ early, late or not at all."""
    return hmac.compare_digest(one, other)
