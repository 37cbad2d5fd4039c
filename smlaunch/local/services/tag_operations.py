"""SageMaker's operations on tags, for all kinds of jobs and for pipelines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

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
        """Respond to ListTags: a page of the tags of a resource. Raises ApiError."""
        resource_arn = params["ResourceArn"]
        tags = _tag_list(_tags_of_found_resource(store.tags_of(resource_arn) for store in self._stores))
        page_start = parse_offset(params.get("NextToken"))
        page_end = page_start + (params.get("MaxResults") or _MAX_TAGS)
        response: JsonObject = {"Tags": tags[page_start:page_end]}
        if page_end < len(tags):
            response["NextToken"] = str(page_end)
        return response

    def _change(
        self, arn: str, modify: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str]:
        return _tags_of_found_resource(store.change_tags(arn, modify) for store in self._stores)


def _tags_of_found_resource(results: Iterable[Mapping[str, str] | None]) -> Mapping[str, str]:
    """Return the tags from the one store that has the resource; the others have returned None. Raises
    ApiError if none has it."""
    found_tags = next((tags for tags in results if tags is not None), None)
    if found_tags is None:
        raise validation_error("Requested resource not found.")
    return found_tags


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
