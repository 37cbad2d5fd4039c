"""CloudWatch Logs on top of the log store: write, read, filter and follow streams.

A position in a stream is a byte offset in its file. Tokens are that offset, as ``f/`` (forward) and ``b/``
(backward) with 56 digits like the service's; they are opaque to clients.
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

from smlaunch.local.api_errors import ApiError
from smlaunch.local.log_store import LogStore, StoredLogEvent, StreamInfo
from smlaunch.local.request_context import current_context
from smlaunch.local.services.log_patterns import compile_pattern

_EVENTS_PER_PAGE = 10_000
_MAX_PAGE_BYTES = 1 << 20
"""Limits of one response, as in the service: events, and bytes of text."""
_EVENT_OVERHEAD_BYTES = 26
"""Bytes that the service adds to the size of each event."""
_DAY_MS = 86_400_000


class CloudWatchLogsOperations:
    def __init__(self, store: LogStore) -> None:
        self._store = store

    # Groups and streams

    def create_log_group(self, params: dict[str, Any]) -> dict[str, Any]:
        """Create a log group. Raises ApiError if it exists, or for settings that this endpoint does not
        have."""
        for name in ("kmsKeyId", "tags", "deletionProtectionEnabled"):
            if params.get(name):
                raise _unsupported_parameter(name)
        if params.get("logGroupClass", "STANDARD") != "STANDARD":
            raise _unsupported_parameter("logGroupClass")
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
        _reject_unsupported(
            params, "accountIdentifiers", "includeLinkedAccounts", "logGroupClass", "logGroupIdentifiers"
        )
        prefix, pattern = params.get("logGroupNamePrefix", ""), params.get("logGroupNamePattern", "")
        groups = [
            {
                "logGroupName": name,
                "creationTime": created,
                "metricFilterCount": 0,
                "arn": f"{_group_arn(name)}:*",
                "logGroupArn": _group_arn(name),
                "storedBytes": self._store.group_size(name),
                "logGroupClass": "STANDARD",
            }
            for name, created in self._store.groups(prefix)
            if pattern.lower() in name.lower()
        ]
        return _paged_response("logGroups", groups, params)

    def describe_log_streams(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a page of a group's log streams, sorted by name or by the time of their last event."""
        prefix, by_time = params.get("logStreamNamePrefix", ""), params.get("orderBy") == "LastEventTime"
        if prefix and by_time:
            text = "Cannot order by LastEventTime with a logStreamNamePrefix."
            raise ApiError("InvalidParameterException", text)
        streams = list(self._store.streams(_group_name(params), prefix))
        if by_time:
            streams.sort(key=lambda info: (info.last_timestamp or 0, info.name))
        if params.get("descending"):
            streams.reverse()
        return _paged_response("logStreams", [_stream_member(info) for info in streams], params)

    # Events

    def put_log_events(self, params: dict[str, Any]) -> dict[str, Any]:
        """Append events to a log stream; those that are too old or too new are dropped and counted in the
        response."""
        _reject_unsupported(params, "entity")
        group, stream, events = params["logGroupName"], params["logStreamName"], params["logEvents"]
        self._store.end_offset(group, stream)  # raises for a missing stream, which append would create
        times = [event["timestamp"] for event in events]
        if times != sorted(times):
            text = "Log events in a single PutLogEvents request must be in chronological order."
            raise ApiError("InvalidParameterException", text)
        now_ms = time.time_ns() // 1_000_000
        rejected = {}
        too_old_count = sum(timestamp < now_ms - 14 * _DAY_MS for timestamp in times)
        too_new_count = sum(timestamp > now_ms + _DAY_MS // 12 for timestamp in times)
        if too_old_count:
            rejected["tooOldLogEventEndIndex"] = too_old_count
        if too_new_count:
            rejected["tooNewLogEventStartIndex"] = len(times) - too_new_count
        accepted_events = events[too_old_count : len(events) - too_new_count]
        self._store.append(
            group, stream, [(event["timestamp"], event["message"]) for event in accepted_events]
        )
        response: dict[str, Any] = {
            "nextSequenceToken": _stream_token("", self._store.end_offset(group, stream))[1:]
        }
        if rejected:
            response["rejectedLogEventsInfo"] = rejected
        return response

    def get_log_events(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a page of one stream's events, and tokens for the pages before and after it."""
        _reject_unsupported(params, "unmask")
        group, stream = _group_name(params), params["logStreamName"]
        limit = params.get("limit", _EVENTS_PER_PAGE)
        is_in_time_range = _time_filter(params)
        end = self._store.end_offset(group, stream)
        direction, offset = _parse_stream_token(params.get("nextToken"), end)
        forward = direction == "f" if direction else params.get("startFromHead", False)
        if forward:
            start = offset if direction else 0
            events = _take_page(filter(is_in_time_range, self._store.read(group, stream, start)), limit)
            # Without events the token stays the same: clients recognize the end by that.
            backward_offset, forward_offset = (events[0].start, events[-1].end) if events else (start, start)
        else:
            events = _take_page(
                filter(is_in_time_range, self._store.read_backward(group, stream, offset)), limit
            )[::-1]
            backward_offset, forward_offset = (
                (events[0].start, events[-1].end) if events else (offset, offset)
            )
        return {
            "events": [_event_member(event) for event in events],
            "nextForwardToken": _stream_token("f", forward_offset),
            "nextBackwardToken": _stream_token("b", backward_offset),
        }

    def filter_log_events(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a page of the events of several streams that match a pattern, by time. The token for the
        next page has each stream's offset."""
        _reject_unsupported(params, "unmask")
        group = _group_name(params)
        names, prefix = params.get("logStreamNames"), params.get("logStreamNamePrefix")
        if names and prefix:
            text = "logStreamNames and logStreamNamePrefix cannot be given together"
            raise ApiError("InvalidParameterException", text)
        if names is None:
            names = [info.name for info in self._store.streams(group, prefix or "")]
        matches, is_in_time_range = compile_pattern(params.get("filterPattern", "")), _time_filter(params)
        offset_by_stream: dict[str, int] = (
            _decode_token(params["nextToken"]) if params.get("nextToken") else {}
        )
        limit, size_bytes = params.get("limit", _EVENTS_PER_PAGE), 0
        events: list[dict[str, Any]] = []
        has_next_page = False
        event_streams = [self._events_of_stream(group, name, offset_by_stream.get(name, 0)) for name in names]
        for _, name, event in heapq.merge(*event_streams):
            if is_in_time_range(event) and matches(event.message):
                size_bytes += len(event.message.encode()) + _EVENT_OVERHEAD_BYTES
                if len(events) == limit or (events and size_bytes > _MAX_PAGE_BYTES):
                    has_next_page = True
                    break
                event_id = f"{event.start:056d}"
                events.append({"logStreamName": name, **_event_member(event), "eventId": event_id})
            offset_by_stream[name] = event.end
        response: dict[str, Any] = {"events": events, "searchedLogStreams": []}
        if has_next_page:
            response["nextToken"] = base64.urlsafe_b64encode(json.dumps(offset_by_stream).encode()).decode()
        return response

    def _events_of_stream(
        self, group: str, name: str, offset: int
    ) -> Iterator[tuple[int, str, StoredLogEvent]]:
        return ((event.timestamp, name, event) for event in self._store.read(group, name, offset))


def _take_page(events: Iterator[StoredLogEvent], limit: int) -> list[StoredLogEvent]:
    page: list[StoredLogEvent] = []
    size_bytes = 0
    for event in islice(events, limit):
        size_bytes += len(event.message.encode()) + _EVENT_OVERHEAD_BYTES
        if page and size_bytes > _MAX_PAGE_BYTES:
            break
        page.append(event)
    return page


def _time_filter(params: dict[str, Any]) -> Callable[[StoredLogEvent], bool]:
    """Return a filter for events from startTime (inclusive) to endTime (exclusive)."""
    start, end = params.get("startTime"), params.get("endTime")
    if start is None and end is None:
        return lambda event: True
    first, last = start or 0, end if end is not None else 1 << 62
    return lambda event: first <= event.timestamp < last


def _event_member(event: StoredLogEvent) -> dict[str, Any]:
    return {"timestamp": event.timestamp, "message": event.message, "ingestionTime": event.ingestion_time}


def _stream_member(info: StreamInfo) -> dict[str, Any]:
    member = {
        "logStreamName": info.name,
        "creationTime": info.created,
        "arn": f"{_group_arn(info.group)}:log-stream:{info.name}",
        "storedBytes": 0,  # the service returns 0 since 2019
        "uploadSequenceToken": _stream_token("", info.size_bytes)[1:],
    }
    if info.first_timestamp is not None:
        member |= {
            "firstEventTimestamp": info.first_timestamp,
            "lastEventTimestamp": info.last_timestamp,
            "lastIngestionTime": info.last_ingestion,
        }
    return member


def _group_arn(group: str) -> str:
    return current_context().resource_arn("logs", f"log-group:{group}")


def _group_name(params: dict[str, Any]) -> str:
    """Return the group's name from logGroupName, or from logGroupIdentifier, which may be an ARN."""
    name, identifier = params.get("logGroupName"), params.get("logGroupIdentifier")
    if (name is None) == (identifier is None):
        text = "Exactly one of logGroupName and logGroupIdentifier must be given"
        raise ApiError("InvalidParameterException", text)
    text = str(name or identifier)
    return text.split(":log-group:", 1)[-1].removesuffix(":*")


def _paged_response(member: str, entries: list[dict[str, Any]], params: dict[str, Any]) -> dict[str, Any]:
    start = _decode_token(params["nextToken"]).get("at", 0) if params.get("nextToken") else 0
    end = start + params.get("limit", 50)
    response: dict[str, Any] = {member: entries[start:end]}
    if end < len(entries):
        response["nextToken"] = base64.urlsafe_b64encode(json.dumps({"at": end}).encode()).decode()
    return response


def _decode_token(token: str) -> dict[str, int]:
    try:
        content = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, binascii.Error):
        raise _invalid_token() from None
    if not isinstance(content, dict) or not all(
        type(value) is int and value >= 0 for value in content.values()
    ):
        raise _invalid_token()
    return content


def _stream_token(direction: str, offset: int) -> str:
    return f"{direction}/{offset:056d}"


def _parse_stream_token(token: str | None, end: int) -> tuple[str, int]:
    if token is None:
        return "", end
    direction, _, digits = token.partition("/")
    if direction not in ("f", "b") or not (digits.isascii() and digits.isdigit()):
        raise _invalid_token()
    return direction, min(int(digits), end)


def _invalid_token() -> ApiError:
    return ApiError("InvalidParameterException", "The specified nextToken is invalid.")


def _reject_unsupported(params: dict[str, Any], *names: str) -> None:
    for name in names:
        if params.get(name):
            raise _unsupported_parameter(name)


def _unsupported_parameter(name: str) -> ApiError:
    return ApiError("InvalidParameterException", f"smlaunch's local endpoint does not provide {name}")
