"""CloudWatch Logs on the log store: what writes, reads and follows streams.

A position in a stream is the byte offset in its file. Tokens are that offset, as ``f/`` (forward) and ``b/``
(backward) with the 56 digits that the service's own have; to callers they are opaque.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import json
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from smlaunch.local.caller import current
from smlaunch.local.errors import ApiError
from smlaunch.local.log_store import LogEvent, LogStore, StreamInfo
from smlaunch.local.services.log_patterns import compile_pattern

_PAGE = 10_000
_PAGE_BYTES = 1 << 20
"""The service's own bounds of one answer: events, and bytes of text."""
_PER_EVENT = 26
"""Bytes that the service counts for an event beside its text."""
_DAY_MS = 86_400_000


class Logs:
    def __init__(self, store: LogStore) -> None:
        self._store = store

    # Groups and streams

    def create_log_group(self, params: dict[str, Any]) -> dict[str, Any]:
        for name in ("kmsKeyId", "tags", "deletionProtectionEnabled"):
            if params.get(name):
                raise _refused(name)
        if params.get("logGroupClass", "STANDARD") != "STANDARD":
            raise _refused("logGroupClass")
        if not self._store.create_group(params["logGroupName"]):
            raise ApiError("ResourceAlreadyExistsException", "The specified log group already exists")
        return {}

    def create_log_stream(self, params: dict[str, Any]) -> dict[str, Any]:
        if not self._store.create_stream(params["logGroupName"], params["logStreamName"]):
            raise ApiError("ResourceAlreadyExistsException", "The specified log stream already exists")
        return {}

    def delete_log_group(self, params: dict[str, Any]) -> dict[str, Any]:
        self._store.delete_group(params["logGroupName"])
        return {}

    def delete_log_stream(self, params: dict[str, Any]) -> dict[str, Any]:
        self._store.delete_stream(params["logGroupName"], params["logStreamName"])
        return {}

    def describe_log_groups(self, params: dict[str, Any]) -> dict[str, Any]:
        _refuse(params, "accountIdentifiers", "includeLinkedAccounts", "logGroupClass", "logGroupIdentifiers")
        prefix, pattern = params.get("logGroupNamePrefix", ""), params.get("logGroupNamePattern", "")
        groups = [
            {
                "logGroupName": name,
                "creationTime": created,
                "metricFilterCount": 0,
                "arn": f"{_arn(name)}:*",
                "logGroupArn": _arn(name),
                "storedBytes": self._store.group_size(name),
                "logGroupClass": "STANDARD",
            }
            for name, created in self._store.groups(prefix)
            if pattern.lower() in name.lower()
        ]
        return _paged("logGroups", groups, params)

    def describe_log_streams(self, params: dict[str, Any]) -> dict[str, Any]:
        prefix, by_time = params.get("logStreamNamePrefix", ""), params.get("orderBy") == "LastEventTime"
        if prefix and by_time:
            text = "Cannot order by LastEventTime with a logStreamNamePrefix."
            raise ApiError("InvalidParameterException", text)
        streams = list(self._store.streams(_group(params), prefix))
        if by_time:
            streams.sort(key=lambda info: (info.last or 0, info.name))
        if params.get("descending"):
            streams.reverse()
        return _paged("logStreams", [_stream(info) for info in streams], params)

    # Events

    def put_log_events(self, params: dict[str, Any]) -> dict[str, Any]:
        _refuse(params, "entity")
        group, stream, events = params["logGroupName"], params["logStreamName"], params["logEvents"]
        self._store.size(group, stream)  # unlike the store, the service does not make what is missing
        times = [event["timestamp"] for event in events]
        if times != sorted(times):
            text = "Log events in a single PutLogEvents request must be in chronological order."
            raise ApiError("InvalidParameterException", text)
        now = time.time_ns() // 1_000_000
        rejected = {}
        old = sum(timestamp < now - 14 * _DAY_MS for timestamp in times)
        new = sum(timestamp > now + _DAY_MS // 12 for timestamp in times)
        if old:
            rejected["tooOldLogEventEndIndex"] = old
        if new:
            rejected["tooNewLogEventStartIndex"] = len(times) - new
        kept = events[old : len(events) - new]
        self._store.append(group, stream, [(event["timestamp"], event["message"]) for event in kept])
        answer: dict[str, Any] = {"nextSequenceToken": _token("", self._store.size(group, stream))[1:]}
        if rejected:
            answer["rejectedLogEventsInfo"] = rejected
        return answer

    def get_log_events(self, params: dict[str, Any]) -> dict[str, Any]:
        _refuse(params, "unmask")
        group, stream = _group(params), params["logStreamName"]
        limit = params.get("limit", _PAGE)
        wanted = _between(params)
        end = self._store.size(group, stream)
        direction, offset = _offset(params.get("nextToken"), end)
        forward = direction == "f" if direction else params.get("startFromHead", False)
        if forward:
            start = offset if direction else 0
            events = _page(filter(wanted, self._store.read(group, stream, start)), limit)
            # Without events the token stays as it was: that is how clients know that they have seen all.
            before, after = (events[0].start, events[-1].end) if events else (start, start)
        else:
            events = _page(filter(wanted, self._store.read_back(group, stream, offset)), limit)[::-1]
            before, after = (events[0].start, events[-1].end) if events else (offset, offset)
        return {
            "events": [_event(event) for event in events],
            "nextForwardToken": _token("f", after),
            "nextBackwardToken": _token("b", before),
        }

    def filter_log_events(self, params: dict[str, Any]) -> dict[str, Any]:
        _refuse(params, "unmask")
        group = _group(params)
        names, prefix = params.get("logStreamNames"), params.get("logStreamNamePrefix")
        if names and prefix:
            text = "logStreamNames and logStreamNamePrefix cannot be given together"
            raise ApiError("InvalidParameterException", text)
        if names is None:
            names = [info.name for info in self._store.streams(group, prefix or "")]
        matches, within = compile_pattern(params.get("filterPattern", "")), _between(params)
        seen: dict[str, int] = _decoded(params["nextToken"]) if params.get("nextToken") else {}
        limit, size = params.get("limit", _PAGE), 0
        events: list[dict[str, Any]] = []
        more = False
        sources = [self._tagged(group, name, seen.get(name, 0)) for name in names]
        for _, name, event in heapq.merge(*sources):
            if within(event) and matches(event.message):
                size += len(event.message.encode()) + _PER_EVENT
                if len(events) == limit or (events and size > _PAGE_BYTES):
                    more = True
                    break
                identity = f"{event.start:056d}"
                events.append({"logStreamName": name, **_event(event), "eventId": identity})
            seen[name] = event.end
        answer: dict[str, Any] = {"events": events, "searchedLogStreams": []}
        if more:
            answer["nextToken"] = base64.urlsafe_b64encode(json.dumps(seen).encode()).decode()
        return answer

    def _tagged(self, group: str, name: str, offset: int) -> Iterator[tuple[int, str, LogEvent]]:
        return ((event.timestamp, name, event) for event in self._store.read(group, name, offset))


def _page(events: Iterator[LogEvent], limit: int) -> list[LogEvent]:
    page: list[LogEvent] = []
    size = 0
    for event in islice(events, limit):
        size += len(event.message.encode()) + _PER_EVENT
        if page and size > _PAGE_BYTES:
            break
        page.append(event)
    return page


def _between(params: dict[str, Any]) -> Callable[[LogEvent], bool]:
    """startTime is within, endTime is not (FilterLogEvents: neither is told apart in practice)."""
    start, end = params.get("startTime"), params.get("endTime")
    if start is None and end is None:
        return lambda event: True
    first, last = start or 0, end if end is not None else 1 << 62
    return lambda event: first <= event.timestamp < last


def _event(event: LogEvent) -> dict[str, Any]:
    return {"timestamp": event.timestamp, "message": event.message, "ingestionTime": event.ingestion}


def _stream(info: StreamInfo) -> dict[str, Any]:
    described = {
        "logStreamName": info.name,
        "creationTime": info.created,
        "arn": f"{_arn(info.group)}:log-stream:{info.name}",
        "storedBytes": 0,  # the service itself has answered 0 here since 2019
        "uploadSequenceToken": _token("", info.size)[1:],
    }
    if info.first is not None:
        described |= {
            "firstEventTimestamp": info.first,
            "lastEventTimestamp": info.last,
            "lastIngestionTime": info.last_ingestion,
        }
    return described


def _arn(group: str) -> str:
    return current().resource_arn("logs", f"log-group:{group}")


def _group(params: dict[str, Any]) -> str:
    """The group's name, which may be given by the group's ARN as well."""
    name, identifier = params.get("logGroupName"), params.get("logGroupIdentifier")
    if (name is None) == (identifier is None):
        text = "Exactly one of logGroupName and logGroupIdentifier must be given"
        raise ApiError("InvalidParameterException", text)
    text = str(name or identifier)
    return text.split(":log-group:", 1)[-1].removesuffix(":*")


def _paged(name: str, entries: list[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
    start = _decoded(params["nextToken"]).get("at", 0) if params.get("nextToken") else 0
    end = start + params.get("limit", 50)
    answer: dict[str, Any] = {name: entries[start:end]}
    if end < len(entries):
        answer["nextToken"] = base64.urlsafe_b64encode(json.dumps({"at": end}).encode()).decode()
    return answer


def _decoded(token: str) -> dict[str, int]:
    try:
        content = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, binascii.Error):
        raise _bad_token() from None
    if not isinstance(content, dict) or not all(
        type(value) is int and value >= 0 for value in content.values()
    ):
        raise _bad_token()
    return content


def _token(direction: str, offset: int) -> str:
    return f"{direction}/{offset:056d}"


def _offset(token: str | None, end: int) -> tuple[str, int]:
    if token is None:
        return "", end
    direction, _, digits = token.partition("/")
    if direction not in ("f", "b") or not (digits.isascii() and digits.isdigit()):
        raise _bad_token()
    return direction, min(int(digits), end)


def _bad_token() -> ApiError:
    return ApiError("InvalidParameterException", "The specified nextToken is invalid.")


def _refuse(params: dict[str, Any], *names: str) -> None:
    for name in names:
        if params.get(name):
            raise _refused(name)


def _refused(name: str) -> ApiError:
    return ApiError("InvalidParameterException", f"smlaunch's local endpoint does not provide {name}")
