"""Finds secrets by a file's content: key material, access keys, values of secret names.

Only the beginning of each file is scanned. Archives, databases and encoded files are not unpacked.
"""

from __future__ import annotations

import codecs
import re

from smlaunch.secrets.masking import is_secret_name, mask_named_value, mask_text

SCANNED_BYTES = 1 << 20
"""Longer files are data more often than keys."""

_PEM_HEADER = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----")
_KEY_DATA = re.compile(rb"[A-Za-z0-9+/=]{40}")
_KEY_DATA_WITHIN_BYTES = 400
"""Headers such as DEK-Info come before the key data. Code that only names the header line has no key after
it."""

_PUBLIC_PEM_KIND = re.compile(
    rb"(?:.* )?(?:CERTIFICATE|PUBLIC KEY|CERTIFICATE REQUEST|CRL|PARAMETERS|PKCS7)(?: BLOCK)?"
)
_AFTER_ESCAPED_LINE_END = rb"(?<=\\[nrt])"
"""A line end in JSON, as in a notebook's output: its letter is not part of a word."""

_AWS_KEY_ID = re.compile(
    rb"(?:(?<![A-Za-z0-9])|" + _AFTER_ESCAPED_LINE_END + rb")A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])"
)
_AWS_SECRET_KEY = re.compile(
    rb"(?:(?<![A-Za-z0-9/+])|" + _AFTER_ESCAPED_LINE_END + rb")[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])"
)
_ESCAPE_SEQUENCES = (
    (
        re.compile(rb"(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\\e)\[[0-9;]*m"),
        b" ",
    ),  # colours, of a log or a notebook
    (re.compile(rb"\\/|\\u002[fF]|%2[fF]"), b"/"),
    (re.compile(rb"\\u002[bB]|%2[bB]"), b"+"),
)
_MAX_KEY_DISTANCE_BYTES = 4096
"""Between an access key's id and its secret."""

_DOCUMENTATION_KEY_SUFFIX = b"EXAMPLE"
"""Part of AWS's own sample keys."""


def find_secret(content: bytes) -> str | None:
    """Return the kind of secret in a file: a private key, or an AWS access key with its secret. None without
    one."""
    content = _as_utf8(content)
    if b"PRIVATE KEY" in content and _has_private_key(content):
        return "a private key"
    if (b"AKIA" in content or b"ASIA" in content) and _has_aws_key(content):
        return "an AWS access key"
    return None


def _as_utf8(content: bytes) -> bytes:
    """Return the scanned part, converted to UTF-8 if it begins as UTF-16 does."""
    content = content[:SCANNED_BYTES]
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace").encode("utf-8", "replace")
    return content


def is_public_material(content: bytes) -> bool:
    """Return whether the content is certificates, public keys and the like, and nothing else."""
    kinds = _PEM_HEADER.findall(content)
    return bool(kinds) and all(_PUBLIC_PEM_KIND.fullmatch(kind) for kind in kinds)


def _has_private_key(content: bytes) -> bool:
    return any(
        b"PRIVATE KEY" in header[1]
        and _KEY_DATA.search(content, header.end(), header.end() + _KEY_DATA_WITHIN_BYTES) is not None
        for header in _PEM_HEADER.finditer(content)
    )


def _has_aws_key(content: bytes) -> bool:
    """Return whether a file's content has an AWS access key id with a secret key near it. Keys from AWS's
    documentation do not count."""
    # A key in JSON, in a URL or in coloured output may be interrupted by escape sequences: remove them.
    for escape_sequence, replacement in _ESCAPE_SEQUENCES:
        content = escape_sequence.sub(replacement, content)
    for key_id_match in _AWS_KEY_ID.finditer(content):
        if key_id_match[0].endswith(_DOCUMENTATION_KEY_SUFFIX):  # EXAMPLE
            continue
        nearby_start = max(0, key_id_match.start() - _MAX_KEY_DISTANCE_BYTES)
        nearby_bytes = content[nearby_start : key_id_match.end() + _MAX_KEY_DISTANCE_BYTES]
        # Forty characters may also be a hash or a path.
        if any(_looks_random(secret_key) for secret_key in _AWS_SECRET_KEY.findall(nearby_bytes)):
            return True
    return False


def _looks_random(text: bytes) -> bool:
    """Return whether a text mixes characters as random ones do. A hexadecimal hash or a path does not."""
    kinds = (rb"[a-z]", rb"[A-Z]", rb"[0-9]")
    return _DOCUMENTATION_KEY_SUFFIX not in text and all(re.search(kind, text) for kind in kinds)


# ---- checks for files whose names alone do not decide ------------------------------------------------------

_ANY_CASE_PEM_HEADER = re.compile(rb"-----BEGIN ([A-Za-z0-9 ]+)-----")
_BASE64_DATA = re.compile(rb"[A-Za-z0-9+/=]{32}")
_KEY_FILE_HEADERS = (b"PuTTY-User-Key-File", b"SSH PRIVATE KEY FILE FORMAT")
_BASE64_TEXT = re.compile(
    rb"\s*(?:[A-Za-z0-9+/_-]{16,}={0,2}|(?:[A-Za-z0-9+/]{40,}={0,2}\s+)+[A-Za-z0-9+/=]*)\s*"
)
"""One word, or lines of base64."""

_ARCHIVE_MAGIC = (b"PK", b"\x1f\x8b")
"""ZIP, which presentations and models also are, or gzip."""

_KEEPASS_MAGIC = b"\x03\xd9\xa2\x9a"

_KEY_VALUE_PAIR = re.compile(
    r"""([A-Za-z_][A-Za-z0-9_.-]{0,80})["']?[ \t]*[:=][ \t]*("[^"\n]*"|'[^'\n]*'|[^\s"',;]+)"""
)
_RANDOM_VALUE = re.compile(r"(?=[^0-9]*[0-9])(?=[^A-Za-z]*[A-Za-z])[A-Za-z0-9+=]{20,}")
_KUBERNETES_SECRET = re.compile(r"(?m)^\s*[\"']?kind[\"']?:\s*[\"']?Secret\b")


def holds_more_than_public(content: bytes) -> bool:
    """Return whether the content holds anything but certificates, public keys and parameters."""
    return not is_public_material(content)


def holds_key(content: bytes) -> bool:
    """Return whether the content holds a key."""
    content = _as_utf8(content)
    if is_public_material(content):
        return False
    return (
        _has_secret_pem_block(content)
        or content.startswith(_KEY_FILE_HEADERS)
        or _is_der_private_key(content)
        or _BASE64_TEXT.fullmatch(content) is not None
        or find_secret(content) is not None
    )


def _has_secret_pem_block(content: bytes) -> bool:
    """Return whether the content has a PEM block (``-----BEGIN ...-----``) of another kind than certificates,
    public keys and parameters."""
    return any(
        not _PUBLIC_PEM_KIND.fullmatch(header[1])
        and _BASE64_DATA.search(content, header.end(), header.end() + _KEY_DATA_WITHIN_BYTES)
        for header in _ANY_CASE_PEM_HEADER.finditer(content)
    )


def holds_key_or_bytes(content: bytes) -> bool:
    """Return whether the content holds a key, or bytes that are neither text nor an archive."""
    if holds_key(content):
        return True
    return (
        _decode_text(content) is None
        and not is_public_material(content)
        and not content.startswith(_ARCHIVE_MAGIC)
    )


def holds_passwords(content: bytes) -> bool:
    """Return whether the content is a KeePass database."""
    return content.startswith(_KEEPASS_MAGIC)


def holds_secret_values(content: bytes) -> bool:
    """Return whether the content holds a value of a secret's name, a value in a secret's format, or bytes
    that are not text."""
    text = _decode_text(content)
    if text is None or find_secret(content) is not None or mask_text(text) != text:
        return True
    for pair in _KEY_VALUE_PAIR.finditer(text):
        name, value = pair[1], pair[2].strip("\"'")
        if mask_named_value(name, value) != value or _RANDOM_VALUE.fullmatch(value):
            return True
    return _KUBERNETES_SECRET.search(text) is not None or _has_secret_column(text)


def _has_secret_column(csv_text: str) -> bool:
    """Return whether a text is a CSV table that has rows, and a column with the name of a secret."""
    header_row, _, data_rows = csv_text.partition("\n")
    has_rows = bool(data_rows.strip())
    return has_rows and any(is_secret_name(column.strip("\"' \r")) for column in header_row.split(","))


def _is_der_private_key(content: bytes) -> bool:
    """Return whether a file's content may be a binary private key: one DER sequence that fills the whole
    file."""
    is_sequence = content[:1] == b"\x30"  # the tag of a SEQUENCE
    if not is_sequence or len(content) < 32:  # no key is that short
        return False
    # Byte 1 is the length of the rest if it is below 0x80; otherwise its lower 7 bits say how many bytes
    # after it have the length.
    length_byte_count = content[1] & 0x7F if content[1] >= 0x80 else 0
    if length_byte_count > 3:  # more than 16 MB
        return False
    header_length = 2 + length_byte_count
    rest_length = int.from_bytes(content[2:header_length], "big") if length_byte_count else content[1]
    return header_length + rest_length == len(content)


def _decode_text(content: bytes) -> str | None:
    """Return the scanned part as text; None for binary content."""
    scanned = _as_utf8(content)
    if b"\0" in scanned:
        return None
    try:
        # The last character may be incomplete.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(scanned)
    except UnicodeDecodeError:
        return None
