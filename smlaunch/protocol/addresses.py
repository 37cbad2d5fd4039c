"""Addresses in S3, as every room writes them."""

from typing import Optional, Tuple

_SCHEME = "s3://"


def split_s3(uri: str) -> Optional[Tuple[str, str]]:
    """``s3://bucket/some/key`` -> bucket and key, the key as it stands, empty where there is none. None for
    what names no bucket in S3."""
    bucket, _, key = uri[len(_SCHEME) :].partition("/")
    return (bucket, key) if uri.startswith(_SCHEME) and bucket else None
