"""``data.listing``'s pages of S3, on botocore: its requests, signatures and retries, with a quicker reading.

botocore's own reading of a page takes longer than S3 takes to send it; with ten connections it would be all
that a listing waits for.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from smlaunch.data.listing import Page
from smlaunch.launch.aws import call
from smlaunch.ports import UNREACHABLE, CallError

_PAGE = "SmlaunchPage"


class S3Pages:
    """Pager. ``client``: a botocore client for S3 that is used for nothing else."""

    def __init__(self, client: Any) -> None:
        client.meta.events.register("before-parse.s3.ListObjectsV2", _read_early)
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

    What is no page stays as it is: botocore tells errors, which may come with status 200, and tries again.
    """
    if response_dict["status_code"] < 300:
        with suppress(ElementTree.ParseError, ValueError, KeyError):
            customized_response_dict[_PAGE] = read_page(response_dict["body"])
            response_dict["body"] = b"<ListBucketResult/>"


def read_page(body: bytes) -> Page:
    """ListObjectsV2's answer. Raises ParseError, ValueError or KeyError when it is none."""
    root = ElementTree.fromstring(body)  # noqa: S314 - the service's own answer, by expat, which bounds entities
    space = root.tag[: root.tag.index("}") + 1] if root.tag.startswith("{") else ""
    if root.tag != f"{space}ListBucketResult":
        raise ValueError(f"it is <{root.tag}>")
    keys: list[str] = []
    sizes: list[int] = []
    etags: list[str] = []
    modified: list[str] = []
    key, size, etag, at = f"{space}Key", f"{space}Size", f"{space}ETag", f"{space}LastModified"
    for entry in root.iter(f"{space}Contents"):
        found = {part.tag: part.text or "" for part in entry}
        keys.append(found[key])
        sizes.append(int(found[size]))
        etags.append(found.get(etag, "").strip('"'))
        modified.append(found[at])
    if root.findtext(f"{space}EncodingType") == "url":
        keys = [unquote_plus(text, errors="strict") if "%" in text or "+" in text else text for text in keys]
    return Page(keys, sizes, etags, modified, root.findtext(f"{space}IsTruncated") == "true")
