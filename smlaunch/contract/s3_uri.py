"""URIs in S3."""

import re
from typing import Optional, Tuple

_SCHEME = "s3://"
_BUCKET = re.compile(r"arn:[^/:]+:s3[^/:]*:[^/:]*:[^/:]*:accesspoint[/:][^/]+|[^/]+")
"""A bucket's name, or the ARN of an access point, which stands for one in S3's API."""


def split_s3_uri(uri: str) -> Optional[Tuple[str, str]]:
    """Split ``s3://bucket/some/key`` into bucket and key; the key is unchanged, and may be empty. The bucket
    may be an access point: its alias, or its ARN. None for a text that names no bucket in S3.
    """
    match = _BUCKET.match(uri, len(_SCHEME)) if uri.startswith(_SCHEME) else None
    return None if match is None else (match.group(), uri[match.end() + 1 :])
