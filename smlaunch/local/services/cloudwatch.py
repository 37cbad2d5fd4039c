"""CloudWatch metrics: put, list, and statistics by period, in all protocols of its clients.

boto3 and AWS CLI v2 use rpc-v2-cbor, older versions JSON or the query protocol (botocore's model names all
three). Metric math, percentiles and alarms are rejected.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from smlaunch.local.api_errors import ApiError
from smlaunch.local.http_messages import Payload, Request, Response
from smlaunch.local.metric_store import MetricPeriod, MetricSample, MetricStore
from smlaunch.local.request_context import current_context
from smlaunch.local.services import cbor
from smlaunch.local.services.cbor_errors import HEADERS, CborErrors, is_cbor
from smlaunch.local.services.json_service import method_name
from smlaunch.local.services.query_service import to_xml

NAMESPACE = "http://monitoring.amazonaws.com/doc/2010-08-01/"
_MAX_BODY_BYTES = 1 << 20
_METRICS_PER_PAGE = 500
_POINTS_PER_PAGE = 100_800
_STATISTIC_BY_NAME: Mapping[str, Callable[[MetricPeriod], float]] = {
    "SampleCount": lambda bucket: bucket.sample_count,
    "Sum": lambda bucket: bucket.total,
    "Average": lambda bucket: bucket.total / bucket.sample_count,
    "Minimum": lambda bucket: bucket.minimum,
    "Maximum": lambda bucket: bucket.maximum,
}

Params = Mapping[str, Any]


class CloudWatchOperations:
    """One method for each operation. Times are in seconds since the epoch; numbers may be strings."""

    def __init__(self, metrics: MetricStore) -> None:
        self._metrics = metrics

    def put_metric_data(self, params: Params) -> dict[str, Any]:
        namespace = _required(params, "Namespace")
        for number, datum in enumerate(params.get("MetricData") or (), 1):
            field_path = f"MetricData.member.{number}"
            timestamp = datum.get("Timestamp")
            timestamp_ms = round(
                (time.time() if timestamp is None else _parse_time(timestamp, field_path)) * 1000
            )
            samples = _parse_samples(
                datum, _required(datum, "MetricName", field_path), timestamp_ms, field_path
            )
            self._metrics.put_samples(namespace, _dimensions(datum), samples)
        return {}

    def list_metrics(self, params: Params) -> dict[str, Any]:
        dimension_filters = [(entry["Name"], entry.get("Value")) for entry in params.get("Dimensions") or ()]
        metrics = [
            {
                "Namespace": namespace,
                "MetricName": name,
                "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
            }
            for namespace, name, dimensions in self._metrics.metrics(
                params.get("Namespace"), params.get("MetricName")
            )
            if all(key in dimensions and value in (None, dimensions[key]) for key, value in dimension_filters)
        ]
        start = _page_offset(params)
        response: dict[str, Any] = {"Metrics": metrics[start : start + _METRICS_PER_PAGE]}
        if start + _METRICS_PER_PAGE < len(metrics):
            response["NextToken"] = str(start + _METRICS_PER_PAGE)
        return response

    def get_metric_statistics(self, params: Params) -> dict[str, Any]:
        """Return the statistics of one metric for each period of a time range."""
        if params.get("ExtendedStatistics"):
            raise _invalid_parameter("ExtendedStatistics", "this endpoint has no percentiles")
        statistics = params.get("Statistics") or ()
        if not statistics:
            raise _invalid_parameter("Statistics", "at least one is required")
        for name in statistics:
            _statistic(name)  # raises for an unknown one
        periods = self._periods(params, params, int(_required(params, "Period")))
        points = [
            {
                "Timestamp": cbor.CborTimestamp(period.start),
                **{name: _STATISTIC_BY_NAME[name](period) for name in statistics},
                "Unit": period.unit,
            }
            for period in periods
        ]
        return {"Label": params["MetricName"], "Datapoints": points}

    def get_metric_data(self, params: Params) -> dict[str, Any]:
        """Return one statistic of several metrics for each period of a time range, in pages."""
        results = []
        start = _page_offset(params)
        limit = int(params.get("MaxDatapoints") or _POINTS_PER_PAGE)
        has_next_page = False
        for query in params.get("MetricDataQueries") or ():
            if query.get("Expression"):
                raise _invalid_parameter("MetricDataQueries.Expression", "this endpoint has no metric math")
            metric_stat = query.get("MetricStat") or {}
            metric = metric_stat.get("Metric") or {}
            statistic = _statistic(_required(metric_stat, "Stat"))
            periods = self._periods(params, metric, int(_required(metric_stat, "Period")))
            if params.get("ScanBy", "TimestampDescending") == "TimestampDescending":
                periods.reverse()
            page = periods[start : start + limit]
            is_partial = start + limit < len(periods)
            has_next_page = has_next_page or is_partial
            if str(query.get("ReturnData", True)).lower() == "false":
                continue
            results.append(
                {
                    "Id": _required(query, "Id"),
                    "Label": query.get("Label") or metric["MetricName"],
                    "Timestamps": [cbor.CborTimestamp(period.start) for period in page],
                    "Values": [statistic(period) for period in page],
                    "StatusCode": "PartialData" if is_partial else "Complete",
                }
            )
        response: dict[str, Any] = {"MetricDataResults": results, "Messages": []}
        if has_next_page:
            response["NextToken"] = str(start + limit)
        return response

    def _periods(self, time_range: Params, metric: Params, period: int) -> list[MetricPeriod]:
        if period < 1:
            raise _invalid_parameter("Period", "it must be positive")
        start, end = (_parse_time(_required(time_range, name), name) for name in ("StartTime", "EndTime"))
        if start >= end:
            raise _invalid_parameter("StartTime", "it must be less than EndTime")
        return self._metrics.periods(
            *(_required(metric, "Namespace"), _required(metric, "MetricName"), _dimensions(metric)),
            *(start, end, period),
        )


class CloudWatchService:
    """Responds in the protocol of the request."""

    def __init__(self, handler: CloudWatchOperations) -> None:
        self._handler = handler

    def serve(self, request: Request, payload: Payload) -> Response:
        """Respond to a request in its own protocol: CBOR, JSON or query."""
        body = payload.read(_MAX_BODY_BYTES)
        if is_cbor(request):
            result = self._call(request.path.rpartition("/")[2], _decode_body(body))
            return Response(200, dict(HEADERS), cbor.encode(result))
        target = request.headers.get("x-amz-target", "")
        if target:
            try:
                params = json.loads(body or b"{}")
            except ValueError as error:
                raise ApiError("SerializationException", f"The body is not JSON: {error}") from None
            result = self._call(target.rpartition(".")[2], params)
            return Response(200, {"Content-Type": "application/x-amz-json-1.0"}, json.dumps(result).encode())
        fields = {**request.query, **dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))}
        action = fields.get("Action", "")
        result = self._call(action, _nest_fields(fields))
        response = {
            f"{action}Result": _with_datetimes(result),
            "ResponseMetadata": {"RequestId": current_context().request_id},
        }
        return Response(200, {"Content-Type": "text/xml"}, to_xml({f"{action}Response": response}, NAMESPACE))

    def error_response(self, error: ApiError, request_id: str) -> Response:
        return CborErrors().error_response(error, request_id)

    def _call(self, operation: str, params: Any) -> dict[str, Any]:
        name = method_name(operation)
        method = getattr(self._handler, name, None) if name.isidentifier() and name[0] != "_" else None
        if method is None or not isinstance(params, Mapping):
            supported = "PutMetricData, ListMetrics, GetMetricStatistics, GetMetricData"
            message = f"The local endpoint has no cloudwatch:{operation}; it has {supported}"
            raise ApiError("UnknownOperationException", message)
        result: dict[str, Any] = method(params)
        return result


def _decode_body(body: bytes) -> Any:
    try:
        return cbor.decode(body) if body else {}
    except cbor.InvalidCbor as error:
        raise ApiError("SerializationException", str(error)) from None


def _nest_fields(fields: Mapping[str, str]) -> dict[str, Any]:
    """Turn ``MetricData.member.1.Value=3`` into ``{"MetricData": [{"Value": "3"}]}``."""
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        node = tree
        *parents, last = [parent for parent in name.split(".") if parent != "member"]
        for parent in parents:
            child = node.setdefault(parent, {})
            node = child if isinstance(child, dict) else {}
        node[last] = value
    nested = _lists_by_number(tree)
    return nested if isinstance(nested, dict) else {}


def _lists_by_number(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(key.isdecimal() for key in node):
        return [_lists_by_number(node[key]) for key in sorted(node, key=int)]
    return {key: _lists_by_number(value) for key, value in node.items()}


def _with_datetimes(value: Any) -> Any:
    """Replace CborTimestamps by datetimes, which the query protocol encodes."""
    if isinstance(value, cbor.CborTimestamp):
        return datetime.datetime.fromtimestamp(value, datetime.timezone.utc)
    if isinstance(value, Mapping):
        return {key: _with_datetimes(item) for key, item in value.items()}
    return [_with_datetimes(item) for item in value] if isinstance(value, list) else value


def _parse_samples(datum: Params, name: str, timestamp_ms: int, field_path: str) -> list[MetricSample]:
    unit = datum.get("Unit") or "None"
    statistics = datum.get("StatisticValues")
    if statistics:
        names = ("SampleCount", "Sum", "Minimum", "Maximum")
        sample_count, total, minimum, maximum = (
            _parse_number(_required(statistics, statistic, field_path), field_path) for statistic in names
        )
        return [MetricSample(name, timestamp_ms, sample_count, total, minimum, maximum, unit)]
    values: Sequence[Any] = datum.get("Values") or [_required(datum, "Value", field_path)]
    counts: Sequence[Any] = datum.get("Counts") or [1] * len(values)
    if len(counts) != len(values):
        raise _invalid_parameter(f"{field_path}.Counts", "as many are needed as there are Values")
    pairs = [
        (_parse_number(value, field_path), _parse_number(count, field_path))
        for value, count in zip(values, counts, strict=True)
    ]
    return [
        MetricSample(name, timestamp_ms, count, value * count, value, value, unit) for value, count in pairs
    ]


def _dimensions(holder: Params) -> dict[str, str]:
    return {entry["Name"]: entry["Value"] for entry in holder.get("Dimensions") or ()}


def _statistic(name: str) -> Callable[[MetricPeriod], float]:
    """Return the function that computes a statistic. Raises ApiError for an unknown name."""
    if name not in _STATISTIC_BY_NAME:
        raise _invalid_parameter(
            "Statistic", f"this endpoint does not have {name!r}; it has {', '.join(_STATISTIC_BY_NAME)}"
        )
    return _STATISTIC_BY_NAME[name]


def _parse_time(value: Any, field_path: str) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    try:
        parsed = datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return _parse_number(value, field_path)
    return parsed.replace(tzinfo=parsed.tzinfo or datetime.timezone.utc).timestamp()


def _parse_number(value: Any, field_path: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _invalid_parameter(field_path, f"{value!r} is not a number") from None
    if not math.isfinite(number):
        raise _invalid_parameter(field_path, f"{value!r} is not finite")
    return number


def _required(holder: Params, name: str, parent: str = "") -> Any:
    if holder.get(name) in (None, ""):
        field_path = f"{parent}.{name}" if parent else name
        raise ApiError("MissingRequiredParameterException", f"The parameter {field_path} is required.")
    return holder[name]


def _page_offset(params: Params) -> int:
    token = params.get("NextToken")
    if token and not str(token).isdecimal():
        raise ApiError("InvalidNextToken", "The next token is not valid.")
    return int(token or 0)


def _invalid_parameter(field_path: str, problem: str) -> ApiError:
    return ApiError("InvalidParameterValueException", f"The parameter {field_path} is not valid: {problem}")
