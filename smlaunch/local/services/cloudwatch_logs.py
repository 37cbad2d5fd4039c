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

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.request_context import current_request_context
from smlaunch.local.json_types import JsonObject
from smlaunch.local.services.log_patterns import compile_pattern
from smlaunch.local.stores.log_store import LogStore, StoredLogEvent, StreamInfo

_EVENTS_PER_PAGE = 10_000
_MAX_PAGE_BYTES = 1 << 20
"""Limits of one response, as in the service: events, and bytes of text."""
_EVENT_OVERHEAD_BYTES = 26
"""Bytes that the service adds to the size of each event."""
_MAX_EVENT_AGE_MS, _MAX_EVENT_FUTURE_MS = 14 * 86_400_000, 2 * 3_600_000
"""PutLogEvents rejects older events, and events further in the future."""


class CloudWatchLogsOperations:
    def __init__(self, store: LogStore) -> None:
        self._log_store = store

    # Groups and streams

    def create_log_group(self, params: JsonObject) -> JsonObject:
        """Respond to CreateLogGroup: create a log group. Raises ApiError if it exists, or for settings that
        this endpoint does not have."""
        for name in ("kmsKeyId", "tags", "deletionProtectionEnabled"):
            if params.get(name):
                raise _unsupported_parameter_error(name)
        if params.get("logGroupClass", "STANDARD") != "STANDARD":
            raise _unsupported_parameter_error("logGroupClass")
        is_new = self._log_store.create_group(params["logGroupName"])
        if not is_new:
            raise ApiError("ResourceAlreadyExistsException", "The specified log group already exists")
        return {}

    def create_log_stream(self, params: JsonObject) -> JsonObject:
        if not self._log_store.create_stream(params["logGroupName"], params["logStreamName"]):
            raise ApiError("ResourceAlreadyExistsException", "The specified log stream already exists")
        return {}

    def delete_log_group(self, params: JsonObject) -> JsonObject:
        self._log_store.delete_group(params["logGroupName"])
        return {}

    def delete_log_stream(self, params: JsonObject) -> JsonObject:
        self._log_store.delete_stream(params["logGroupName"], params["logStreamName"])
        return {}

    def describe_log_groups(self, params: JsonObject) -> JsonObject:
        _reject_unsupported_parameters(
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
                "storedBytes": self._log_store.group_size_bytes(name),
                "logGroupClass": "STANDARD",
            }
            for name, created in self._log_store.list_groups(prefix)
            if pattern.lower() in name.lower()
        ]
        return _create_page_response("logGroups", groups, params)

    def describe_log_streams(self, params: JsonObject) -> JsonObject:
        """Respond to DescribeLogStreams: a page of a group's log streams, sorted by name or by the time of
        their last event."""
        name_prefix = params.get("logStreamNamePrefix", "")
        sort_by_time = params.get("orderBy") == "LastEventTime"
        if name_prefix and sort_by_time:
            error_text = "Cannot order by LastEventTime with a logStreamNamePrefix."
            raise ApiError("InvalidParameterException", error_text)
        streams = list(self._log_store.list_streams(_read_group_name(params), name_prefix))
        if sort_by_time:
            # An empty stream has no last event, and comes first.
            streams.sort(key=lambda stream: (stream.last_timestamp or 0, stream.name))
        if params.get("descending"):
            streams.reverse()
        return _create_page_response(
            "logStreams", [_describe_log_stream(stream) for stream in streams], params
        )

    # Events

    def put_log_events(self, params: JsonObject) -> JsonObject:
        """Respond to PutLogEvents: append events to a log stream. As in the service, those older than 14 days
        or more than 2 hours in the future are dropped; the response names their indexes."""
        _reject_unsupported_parameters(params, "entity")
        group_name, stream_name, events = params["logGroupName"], params["logStreamName"], params["logEvents"]
        # Called because it raises for a missing stream, which append_events would create.
        self._log_store.stream_size_bytes(group_name, stream_name)
        timestamps_ms = [event["timestamp"] for event in events]
        if timestamps_ms != sorted(timestamps_ms):
            error_text = "Log events in a single PutLogEvents request must be in chronological order."
            raise ApiError("InvalidParameterException", error_text)
        now_ms = time.time_ns() // 1_000_000
        too_old_count = sum(timestamp < now_ms - _MAX_EVENT_AGE_MS for timestamp in timestamps_ms)
        too_new_count = sum(timestamp > now_ms + _MAX_EVENT_FUTURE_MS for timestamp in timestamps_ms)
        # In chronological order, the events before ``accepted_start`` are too old, those from
        # ``accepted_end`` on too far in the future.
        accepted_start, accepted_end = too_old_count, len(events) - too_new_count
        rejected_info = {}
        if too_old_count:
            rejected_info["tooOldLogEventEndIndex"] = accepted_start
        if too_new_count:
            rejected_info["tooNewLogEventStartIndex"] = accepted_end
        accepted_events = [
            (event["timestamp"], event["message"]) for event in events[accepted_start:accepted_end]
        ]
        self._log_store.append_events(group_name, stream_name, accepted_events)
        new_size_bytes = self._log_store.stream_size_bytes(group_name, stream_name)
        response: JsonObject = {"nextSequenceToken": _format_sequence_token(new_size_bytes)}
        if rejected_info:
            response["rejectedLogEventsInfo"] = rejected_info
        return response

    def get_log_events(self, params: JsonObject) -> JsonObject:
        """Respond to GetLogEvents: a page of one stream's events, and tokens for the pages before and after
        it. A token is a direction (f: forward, b: backward) with a byte offset in the stream; without one,
        the page has the stream's last events, or its first with startFromHead."""
        _reject_unsupported_parameters(params, "unmask")
        group_name, stream_name = _read_group_name(params), params["logStreamName"]
        limit = params.get("limit", _EVENTS_PER_PAGE)  # a page also ends at 1 MB
        is_in_time_range = _create_time_range_filter(params)
        stream_end_offset = self._log_store.stream_size_bytes(group_name, stream_name)
        if params.get("nextToken") is not None:
            direction, offset = _parse_stream_token(params["nextToken"], stream_end_offset)
        elif params.get("startFromHead", False):
            direction, offset = "f", 0
        else:
            direction, offset = "b", stream_end_offset
        if direction == "f":
            stored_events = self._log_store.read_events(group_name, stream_name, offset)
            events = _take_events_of_page(filter(is_in_time_range, stored_events), limit)
        else:
            stored_events = self._log_store.read_events_backward(group_name, stream_name, offset)
            events = _take_events_of_page(filter(is_in_time_range, stored_events), limit)  # newest first
            events.reverse()  # a page is always in the order of the stream
        # An event's start and end are byte offsets in the stream. Without events the tokens stay the same:
        # clients recognize the end by that.
        backward_offset = events[0].start if events else offset
        forward_offset = events[-1].end if events else offset
        return {
            "events": [_describe_log_event(event) for event in events],
            "nextForwardToken": _format_stream_token("f", forward_offset),
            "nextBackwardToken": _format_stream_token("b", backward_offset),
        }

    def filter_log_events(self, params: JsonObject) -> JsonObject:
        """Respond to FilterLogEvents: a page of the events of several streams that match a pattern, by time.
        The token for the next page has the byte offset in each stream from which it goes on."""
        _reject_unsupported_parameters(params, "unmask")
        group_name = _read_group_name(params)
        stream_names = self._find_requested_stream_names(group_name, params)
        matches_pattern = compile_pattern(params.get("filterPattern", ""))
        is_in_time_range = _create_time_range_filter(params)
        next_offset_by_stream: dict[str, int] = (
            _decode_page_token(params["nextToken"]) if params.get("nextToken") else {}
        )
        limit = params.get("limit", _EVENTS_PER_PAGE)
        page_bytes = 0
        response: JsonObject = {"events": [], "searchedLogStreams": []}
        # Tuples of time, stream and event, from the offset where the page before ended.
        event_streams = [
            self._read_sortable_events(group_name, stream_name, next_offset_by_stream.get(stream_name, 0))
            for stream_name in stream_names
        ]
        for _, stream_name, event in heapq.merge(*event_streams):  # by time, then by the stream's name
            # An event that does not match takes no room in the page, and is not read again either.
            if is_in_time_range(event) and matches_pattern(event.message):
                page_bytes += len(event.message.encode()) + _EVENT_OVERHEAD_BYTES
                event_count = len(response["events"])
                # A page has one event at least, however large.
                is_page_full = event_count == limit or (event_count > 0 and page_bytes > _MAX_PAGE_BYTES)
                if is_page_full:
                    response["nextToken"] = _encode_page_token(next_offset_by_stream)
                    break
                event_id = f"{event.start:056d}"  # its byte offset in the stream, in the service's form
                response["events"].append(
                    {"logStreamName": stream_name, **_describe_log_event(event), "eventId": event_id}
                )
            next_offset_by_stream[stream_name] = event.end
        return response

    def _find_requested_stream_names(self, group_name: str, params: JsonObject) -> list[str]:
        """Return the streams that a FilterLogEvents request names, by logStreamNames or by the beginning of
        their names; all of the group if it names none. Raises ApiError."""
        stream_names, name_prefix = params.get("logStreamNames"), params.get("logStreamNamePrefix")
        if stream_names and name_prefix:
            error_text = "logStreamNames and logStreamNamePrefix cannot be given together"
            raise ApiError("InvalidParameterException", error_text)
        if stream_names is not None:
            return list(stream_names)
        return [stream.name for stream in self._log_store.list_streams(group_name, name_prefix or "")]

    def _read_sortable_events(
        self, group: str, name: str, offset: int
    ) -> Iterator[tuple[int, str, StoredLogEvent]]:
        return ((event.timestamp, name, event) for event in self._log_store.read_events(group, name, offset))


def _take_events_of_page(events: Iterator[StoredLogEvent], limit: int) -> list[StoredLogEvent]:
    """Return the first events: at most ``limit`` and at most 1 MB, but one event however large."""
    page: list[StoredLogEvent] = []
    page_bytes = 0
    for event in islice(events, limit):
        page_bytes += len(event.message.encode()) + _EVENT_OVERHEAD_BYTES
        if page and page_bytes > _MAX_PAGE_BYTES:
            break
        page.append(event)
    return page


def _create_time_range_filter(params: JsonObject) -> Callable[[StoredLogEvent], bool]:
    """Return a filter for events from startTime (inclusive) to endTime (exclusive), in milliseconds since the
    epoch. A missing one does not limit them."""
    start_ms, end_ms = params.get("startTime"), params.get("endTime")

    def is_in_time_range(event: StoredLogEvent) -> bool:
        if start_ms is not None and event.timestamp < start_ms:
            return False
        return end_ms is None or event.timestamp < end_ms

    return is_in_time_range


def _describe_log_event(event: StoredLogEvent) -> JsonObject:
    return {"timestamp": event.timestamp, "message": event.message, "ingestionTime": event.ingestion_time}


def _describe_log_stream(info: StreamInfo) -> JsonObject:
    description = {
        "logStreamName": info.name,
        "creationTime": info.created,
        "arn": f"{_group_arn(info.group)}:log-stream:{info.name}",
        "storedBytes": 0,  # the service returns 0 since 2019
        "uploadSequenceToken": _format_sequence_token(info.size_bytes),
    }
    if info.first_timestamp is not None:
        description |= {
            "firstEventTimestamp": info.first_timestamp,
            "lastEventTimestamp": info.last_timestamp,
            "lastIngestionTime": info.last_ingestion,
        }
    return description


def _group_arn(group: str) -> str:
    return current_request_context().resource_arn("logs", f"log-group:{group}")


def _read_group_name(params: JsonObject) -> str:
    """Return the group's name from logGroupName, or from logGroupIdentifier, which may be an ARN."""
    name, identifier = params.get("logGroupName"), params.get("logGroupIdentifier")
    if (name is None) == (identifier is None):
        text = "Exactly one of logGroupName and logGroupIdentifier must be given"
        raise ApiError("InvalidParameterException", text)
    text = str(name or identifier)
    return text.split(":log-group:", 1)[-1].removesuffix(":*")


def _create_page_response(list_name: str, entries: list[JsonObject], params: JsonObject) -> JsonObject:
    start = _decode_page_token(params["nextToken"]).get("at", 0) if params.get("nextToken") else 0
    end = start + params.get("limit", 50)
    response: JsonObject = {list_name: entries[start:end]}
    if end < len(entries):
        response["nextToken"] = _encode_page_token({"at": end})
    return response


def _encode_page_token(offset_by_name: dict[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(offset_by_name).encode()).decode()


def _decode_page_token(token: str) -> dict[str, int]:
    """Return the offsets, by name, from which a token made by ``_encode_page_token`` goes on. Raises
    ApiError."""
    try:
        offset_by_name = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, binascii.Error):
        raise _invalid_token() from None
    if not isinstance(offset_by_name, dict):
        raise _invalid_token()
    for offset in offset_by_name.values():
        if type(offset) is not int or offset < 0:
            raise _invalid_token()
    return offset_by_name


def _format_stream_token(direction: str, offset: int) -> str:
    return f"{direction}/{offset:056d}"


def _format_sequence_token(size_bytes: int) -> str:
    return f"{size_bytes:056d}"


def _parse_stream_token(token: str, stream_end_offset: int) -> tuple[str, int]:
    """Parse a token of GetLogEvents such as ``f/0123``: the direction, f (forward) or b (backward), and the
    byte offset in the stream, at most its end. Raises ApiError."""
    direction, _, digits = token.partition("/")
    if direction not in ("f", "b") or not (digits.isascii() and digits.isdigit()):
        raise _invalid_token()
    return direction, min(int(digits), stream_end_offset)


def _invalid_token() -> ApiError:
    return ApiError("InvalidParameterException", "The specified nextToken is invalid.")


def _reject_unsupported_parameters(params: JsonObject, *names: str) -> None:
    for name in names:
        if params.get(name):
            raise _unsupported_parameter_error(name)


def _unsupported_parameter_error(name: str) -> ApiError:
    return ApiError("InvalidParameterException", f"smlaunch's local endpoint does not provide {name}")
