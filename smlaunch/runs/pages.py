"""``data.listing``'s pages of S3, on botocore: its requests, signatures and retries, with a quicker reading.

botocore takes some 50 ms of a core to read a page of a thousand keys, as long as S3 takes to send it. With
ten connections its reading would be all that a listing waits for.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from botocore import handlers

from smlaunch.data.listing import Page
from smlaunch.ports import UNREACHABLE, CallError
from smlaunch.runs.aws import call

_PAGE = "SmlaunchPage"

_COLUMNS = [re.compile(f"<{name}>([^<]*)</{name}>") for name in ("Key", "Size", "ETag", "LastModified")]


class S3Pages:
    """Pager. ``client``: a botocore client for S3 that is used for nothing else."""

    def __init__(self, client: Any) -> None:
        events = client.meta.events
        events.register("before-parse.s3.ListObjectsV2", _read_early)
        # Parses the whole answer to see whether it is an error that came with status 200; so do we.
        events.unregister("before-parse.s3.*", getattr(handlers, "_handle_200_error", None))
        self._client = client

    def page(self, bucket: str, prefix: str, after: str) -> Page:
        params = {"Bucket": bucket, "Prefix": prefix, "EncodingType": "url"}
        if after:
            params["StartAfter"] = after
        answer = call("ListObjectsV2", self._client.list_objects_v2, **params)
        if _PAGE not in answer:
            raise CallError("ListObjectsV2", UNREACHABLE, "the answer is no list of objects")
        page: Page = answer[_PAGE]
        return page


def _read_early(
    response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **unused: object
) -> None:
    """An event handler of botocore: puts our page into the answer and leaves it nothing to read.

    What came with status 200 and is no page becomes a failure of the service, which botocore tries again.
    """
    if response_dict["status_code"] >= 300:
        return
    with suppress(ElementTree.ParseError, ValueError, KeyError):
        customized_response_dict[_PAGE] = read_page(response_dict["body"])
        response_dict["body"] = b"<ListBucketResult/>"
        return
    response_dict["status_code"] = 500


def read_page(body: bytes) -> Page:
    """ListObjectsV2's answer. Raises ParseError, ValueError or KeyError when it is none."""
    text = body.decode()
    return _quickly(text) or _as_xml(text)


def _quickly(text: str) -> Page | None:
    """An answer as S3 writes it, several times as fast as by its tree; None when written otherwise."""
    if not (text.endswith("</ListBucketResult>") and text.count("<ListBucketResult") == 1):
        return None
    keys, sizes, etags, modified = (column.findall(text) for column in _COLUMNS)
    count = text.count("<Contents")
    if any(len(column) != count for column in (keys, sizes, etags, modified)) or "&" in "".join(keys):
        return None
    etags = [etag.replace("&quot;", "").strip('"') for etag in etags]
    if "<EncodingType>url</EncodingType>" in text:
        keys = [_decoded(key) for key in keys]
    more = "<IsTruncated>true</IsTruncated>" in text
    return Page(keys, [int(size) for size in sizes], etags, modified, more)


def _as_xml(text: str) -> Page:
    root = ElementTree.fromstring(text)  # noqa: S314 - the service's own answer, and expat bounds entities
    space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
    if root.tag != f"{space}ListBucketResult":
        raise ValueError(f"it is <{root.tag}>")
    keys: list[str] = []
    sizes: list[int] = []
    etags: list[str] = []
    modified: list[str] = []
    for entry in root.iter(f"{space}Contents"):
        found = {part.tag.removeprefix(space): part.text or "" for part in entry}
        keys.append(found["Key"])
        sizes.append(int(found["Size"]))
        etags.append(found.get("ETag", "").strip('"'))
        modified.append(found["LastModified"])
    if root.findtext(f"{space}EncodingType") == "url":
        keys = [_decoded(key) for key in keys]
    return Page(keys, sizes, etags, modified, root.findtext(f"{space}IsTruncated") == "true")


def _decoded(key: str) -> str:
    return unquote_plus(key, errors="strict") if "%" in key or "+" in key else key
