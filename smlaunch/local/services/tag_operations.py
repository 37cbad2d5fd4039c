"""SageMaker's operations on tags, for all kinds of jobs and for pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from smlaunch.local.front.api_errors import validation_error
from smlaunch.local.json_types import JsonObject
from smlaunch.local.services.job_listing_pages import parse_offset

_MAX_TAGS = 50


class TagStore(Protocol):
    """A store of resources with tags. Both methods return None when no resource has this ARN."""

    def tags_of(self, arn: str) -> Mapping[str, str] | None: ...

    def change_tags(
        self, arn: str, modify: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str] | None:
        """Replace the tags in one transaction; ``modify`` may raise."""


class TagOperations:
    """One method for each operation, for JsonService."""

    def __init__(self, *stores: TagStore) -> None:
        self._stores = stores

    def add_tags(self, params: JsonObject) -> JsonObject:
        added = {tag["Key"]: tag["Value"] for tag in params["Tags"]}

        def with_added(tags: Mapping[str, str]) -> Mapping[str, str]:
            if len({**tags, **added}) > _MAX_TAGS:
                raise validation_error(f"A resource can have {_MAX_TAGS} tags at most")
            return {**tags, **added}

        return {"Tags": _tag_list(self._change(params["ResourceArn"], with_added))}

    def delete_tags(self, params: JsonObject) -> JsonObject:
        removed_keys = set(params["TagKeys"])
        self._change(
            params["ResourceArn"],
            lambda tags: {key: value for key, value in tags.items() if key not in removed_keys},
        )
        return {}

    def list_tags(self, params: JsonObject) -> JsonObject:
        arn = params["ResourceArn"]
        tags = _tag_list(_first_tags(store.tags_of(arn) for store in self._stores))
        start = parse_offset(params.get("NextToken"))
        end = start + (params.get("MaxResults") or _MAX_TAGS)
        response: JsonObject = {"Tags": tags[start:end]}
        if end < len(tags):
            response["NextToken"] = str(end)
        return response

    def _change(
        self, arn: str, modify: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        return _first_tags(store.change_tags(arn, modify) for store in self._stores)


def _first_tags(results: Any) -> Mapping[str, str]:
    first: Mapping[str, str] | None = next((tags for tags in results if tags is not None), None)
    if first is None:
        raise validation_error("Requested resource not found.")
    return first


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
