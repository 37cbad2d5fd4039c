"""URIs in S3."""

from typing import Optional, Tuple

_SCHEME = "s3://"


def split_s3_uri(uri: str) -> Optional[Tuple[str, str]]:
    """Split ``s3://bucket/some/key`` into bucket and key; the key is unchanged, and may be empty. None for a
    text that names no bucket in S3.
    """
    bucket, _, key = uri[len(_SCHEME) :].partition("/")
    return (bucket, key) if uri.startswith(_SCHEME) and bucket else None
