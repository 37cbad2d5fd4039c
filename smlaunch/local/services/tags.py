"""The SageMaker operations on tags, for all kinds of jobs and for pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from smlaunch.local.errors import validation_error
from smlaunch.local.services.job_lists import offset

_LIMIT = 50


class Tagged(Protocol):
    """A store of things that have tags. Both methods give None where nothing has this ARN."""

    def tags_of(self, arn: str) -> Mapping[str, str] | None: ...

    def change_tags(
        self, arn: str, how: Callable[[Mapping[str, str]], Mapping[str, str]]
    ) -> Mapping[str, str] | None:
        """At once; what ``how`` raises comes through."""


class Tags:
    """One method per operation, named in snake case, as the dispatcher calls them."""

    def __init__(self, *stores: Tagged) -> None:
        self._stores = stores

    def add_tags(self, params: dict[str, Any]) -> dict[str, Any]:
        added = {tag["Key"]: tag["Value"] for tag in params["Tags"]}

        def more(tags: Mapping[str, str]) -> Mapping[str, str]:
            if len({**tags, **added}) > _LIMIT:
                raise validation_error(f"A resource can have {_LIMIT} tags at most")
            return {**tags, **added}

        return {"Tags": _listed(self._change(params["ResourceArn"], more))}

    def delete_tags(self, params: dict[str, Any]) -> dict[str, Any]:
        gone = set(params["TagKeys"])
        self._change(
            params["ResourceArn"],
            lambda tags: {key: value for key, value in tags.items() if key not in gone},
        )
        return {}

    def list_tags(self, params: dict[str, Any]) -> dict[str, Any]:
        arn = params["ResourceArn"]
        tags = _listed(_found(store.tags_of(arn) for store in self._stores))
        start = offset(params.get("NextToken"))
        end = start + (params.get("MaxResults") or _LIMIT)
        answer: dict[str, Any] = {"Tags": tags[start:end]}
        if end < len(tags):
            answer["NextToken"] = str(end)
        return answer

    def _change(self, arn: str, how: Callable[[Mapping[str, str]], Mapping[str, str]]) -> Mapping[str, str]:
        return _found(store.change_tags(arn, how) for store in self._stores)


def _found(answers: Any) -> Mapping[str, str]:
    found: Mapping[str, str] | None = next((tags for tags in answers if tags is not None), None)
    if found is None:
        raise validation_error("Requested resource not found.")
    return found


def _listed(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]
