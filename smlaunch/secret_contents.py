"""Secrets by what is in a file: key material, access keys, values of names that speak of a secret.

Of each file the beginning is looked at; what is in archives, databases or encodings is not seen.
"""

from __future__ import annotations

import codecs
import re

from smlaunch.masking import mask_text, masked, secret_name

LOOKED_AT = 1 << 20
"""Bytes from a file's beginning; what is longer is data more often than a key."""

_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_KEY_FOLLOWS = re.compile(rb"[A-Za-z0-9+/=]{40}")
_KEY_STARTS_WITHIN = 400
"""Bytes: headers such as DEK-Info come first. Code that only names the line has no key after it."""

_PUBLIC = re.compile(
    rb"(?:.* )?(?:CERTIFICATE|PUBLIC KEY|CERTIFICATE REQUEST|CRL|PARAMETERS|PKCS7)(?: BLOCK)?"
)
_ESCAPED = rb"(?<=\\[nrt])"
"""A line's end as JSON writes it, in a notebook's output: its letter belongs to no word."""

_AWS_ID = re.compile(rb"(?:(?<![A-Za-z0-9])|" + _ESCAPED + rb")A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])")
_AWS_SECRET = re.compile(rb"(?:(?<![A-Za-z0-9/+])|" + _ESCAPED + rb")[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")
_SPELLINGS = (
    (
        re.compile(rb"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\\e)\[[0-9;]*m"),
        b" ",
    ),  # colours, of a log or a notebook
    (re.compile(rb"\\/|\\u002[fF]|%2[fF]"), b"/"),
    (re.compile(rb"\\u002[bB]|%2[bB]"), b"+"),
)
_NEAR = 4096
"""Bytes between an access key's id and its secret, at most."""

_EXAMPLE = b"EXAMPLE"
"""In AWS's own sample keys."""


def secret_in(content: bytes) -> str | None:
    """What a file holds that nobody else should have: a private key, or an AWS access key with its secret."""
    content = _readable(content)
    if b"PRIVATE KEY" in content and _private_key(content):
        return "a private key"
    if (b"AKIA" in content or b"ASIA" in content) and _aws_key(content):
        return "an AWS access key"
    return None


def _readable(content: bytes) -> bytes:
    """What is looked at, in UTF-8 where it begins as UTF-16 does."""
    content = content[:LOOKED_AT]
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace").encode("utf-8", "replace")
    return content


def is_public(content: bytes) -> bool:
    """Whether these are certificates, public keys and the like, and nothing else."""
    kinds = _BLOCK.findall(content)
    return bool(kinds) and all(_PUBLIC.fullmatch(kind) for kind in kinds)


def _private_key(content: bytes) -> bool:
    return any(
        b"PRIVATE KEY" in block[1]
        and _KEY_FOLLOWS.search(content, block.end(), block.end() + _KEY_STARTS_WITHIN) is not None
        for block in _BLOCK.finditer(content)
    )


def _aws_key(content: bytes) -> bool:
    for spelling, plain in _SPELLINGS:
        content = spelling.sub(plain, content)
    for found in _AWS_ID.finditer(content):
        if found[0].endswith(_EXAMPLE):
            continue
        near = content[max(0, found.start() - _NEAR) : found.end() + _NEAR]
        if any(_is_mixed(secret[0]) for secret in _AWS_SECRET.finditer(near)):
            return True
    return False


def _is_mixed(word: bytes) -> bool:
    """As random characters are; a hash in hexadecimal digits, or a path, is not."""
    kinds = (rb"[a-z]", rb"[A-Z]", rb"[0-9]")
    return _EXAMPLE not in word and all(re.search(kind, word) for kind in kinds)


# ---- what decides where a name alone does not -------------------------------------------------------------

_ANY_BLOCK = re.compile(rb"-----BEGIN ([A-Za-z0-9 ]+)-----")
_WORD_FOLLOWS = re.compile(rb"[A-Za-z0-9+/=]{32}")
_KEY_FILES = (b"PuTTY-User-Key-File", b"SSH PRIVATE KEY FILE FORMAT")
_ENCODED = re.compile(
    rb"\s*(?:[A-Za-z0-9+/_-]{16,}={0,2}|(?:[A-Za-z0-9+/]{40,}={0,2}\s+)+[A-Za-z0-9+/=]*)\s*"
)
"""One word, or lines of base64."""

_PACKED = (b"PK", b"\x1f\x8b")
"""A ZIP, as a presentation is and a model, or gzip."""

_KEEPASS = b"\x03\xd9\xa2\x9a"

_PAIR = re.compile(
    r"""([A-Za-z_][A-Za-z0-9_.-]{0,80})["']?[ \t]*[:=][ \t]*("[^"\n]*"|'[^'\n]*'|[^\s"',;]+)"""
)
_RANDOM = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9+=]{20,}")
_MANIFEST = re.compile(r"(?m)^\s*[\"']?kind[\"']?:\s*[\"']?Secret\b")


def holds_more_than_public(content: bytes) -> bool:
    """anything but certificates, public keys and parameters"""
    return not is_public(content)


def holds_key(content: bytes) -> bool:
    """a key"""
    content = _readable(content)
    if is_public(content):
        return False
    blocks = any(
        not _PUBLIC.fullmatch(block[1])
        and _WORD_FOLLOWS.search(content, block.end(), block.end() + _KEY_STARTS_WITHIN)
        for block in _ANY_BLOCK.finditer(content)
    )
    return (
        blocks
        or content.startswith(_KEY_FILES)
        or _is_der(content)
        or _ENCODED.fullmatch(content) is not None
        or secret_in(content) is not None
    )


def holds_key_or_bytes(content: bytes) -> bool:
    """a key, or bytes that are neither text nor packed"""
    if holds_key(content):
        return True
    return _text(content) is None and not is_public(content) and not content.startswith(_PACKED)


def holds_passwords(content: bytes) -> bool:
    """a KeePass database"""
    return content.startswith(_KEEPASS)


def holds_values(content: bytes) -> bool:
    """a value under a secret's name, a value in a secret's form, or bytes that are no text"""
    text = _text(content)
    if text is None or secret_in(content) is not None or mask_text(text) != text:
        return True
    pairs = ((found[1], found[2].strip("\"'")) for found in _PAIR.finditer(text))
    if any(masked(name, value) != value or _RANDOM.fullmatch(value) for name, value in pairs):
        return True
    columns, _, rows = text.partition("\n")
    return bool(_MANIFEST.search(text)) or (
        bool(rows.strip()) and any(secret_name(cell.strip("\"' \r")) for cell in columns.split(","))
    )


def _is_der(content: bytes) -> bool:
    """A key in binary: one sequence, as long as it says."""
    if content[:1] != b"0" or len(content) < 32:
        return False
    width = content[1] & 0x7F if content[1] & 0x80 else 0
    length = int.from_bytes(content[2 : 2 + width], "big") if width else content[1]
    return width <= 3 and 2 + width + length == len(content)


def _text(content: bytes) -> str | None:
    """What is looked at as a text; None for what is none."""
    looked_at = _readable(content)
    if b"\0" in looked_at:
        return None
    try:
        # The last character may be cut.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(looked_at)
    except UnicodeDecodeError:
        return None
