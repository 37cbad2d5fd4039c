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

from smlaunch.local.front.api_errors import ApiError
from smlaunch.local.front.http_messages import Payload, Request, Response
from smlaunch.local.json_types import JsonMapping, JsonObject
from smlaunch.local.services import cbor
from smlaunch.local.services.cbor_errors import CBOR_HEADERS, CborErrors, is_cbor_request
from smlaunch.local.services.query_service import (
    MAX_BODY_BYTES,
    find_operation_method,
    parse_query_request,
    query_response,
)
from smlaunch.local.services.timestamp import Timestamp
from smlaunch.local.stores.metric_store import MetricSample, MetricStore, PeriodStatistics

NAMESPACE = "http://monitoring.amazonaws.com/doc/2010-08-01/"
_METRICS_PER_PAGE = 500
_POINTS_PER_PAGE = 100_800
_STATISTIC_BY_NAME: Mapping[str, Callable[[PeriodStatistics], float]] = {
    "SampleCount": lambda period: period.sample_count,
    "Sum": lambda period: period.total,
    "Average": lambda period: period.total / period.sample_count,
    "Minimum": lambda period: period.minimum,
    "Maximum": lambda period: period.maximum,
}


class CloudWatchOperations:
    """One method for each operation. Times are in seconds since the epoch; numbers may be strings."""

    def __init__(self, metrics: MetricStore) -> None:
        self._metric_store = metrics

    def put_metric_data(self, params: JsonMapping) -> JsonObject:
        """Respond to PutMetricData: store samples of the metrics of a namespace, each with its own time or
        the present one. Raises ApiError."""
        namespace = _get_required_field(params, "Namespace")
        for number, datum in enumerate(params.get("MetricData") or (), 1):
            field_path = f"MetricData.member.{number}"  # for error messages
            stated_time = datum.get("Timestamp")
            timestamp = time.time() if stated_time is None else _parse_time(stated_time, field_path)
            metric_name = _get_required_field(datum, "MetricName", field_path)
            samples = _parse_samples(datum, metric_name, round(timestamp * 1000), field_path)
            self._metric_store.put_samples(namespace, _dimension_values(datum), samples)
        return {}

    def list_metrics(self, params: JsonMapping) -> JsonObject:
        """Respond to ListMetrics: a page of the metrics that have the given namespace, name and dimensions.
        A dimension without a value stands for any value. Raises ApiError."""
        wanted_dimensions = [(entry["Name"], entry.get("Value")) for entry in params.get("Dimensions") or ()]
        metrics = [
            {
                "Namespace": namespace,
                "MetricName": metric_name,
                "Dimensions": [{"Name": name, "Value": value} for name, value in dimensions.items()],
            }
            for namespace, metric_name, dimensions in self._metric_store.list_metrics(
                params.get("Namespace"), params.get("MetricName")
            )
            if all(
                name in dimensions and value in (None, dimensions[name]) for name, value in wanted_dimensions
            )
        ]
        page_start = _parse_page_offset(params)
        page_end = page_start + _METRICS_PER_PAGE
        response: JsonObject = {"Metrics": metrics[page_start:page_end]}
        if page_end < len(metrics):
            response["NextToken"] = str(page_end)
        return response

    def get_metric_statistics(self, params: JsonMapping) -> JsonObject:
        """Respond to GetMetricStatistics: the statistics of one metric for each period of a time range.
        Raises ApiError."""
        if params.get("ExtendedStatistics"):
            raise _invalid_parameter_error("ExtendedStatistics", "this endpoint has no percentiles")
        statistics = params.get("Statistics") or ()
        if not statistics:
            raise _invalid_parameter_error("Statistics", "at least one is required")
        statistic_functions = {name: _find_statistic_function(name) for name in statistics}
        # This request has the metric and the time range side by side.
        periods = self._query_periods(params, params, int(_get_required_field(params, "Period")))
        datapoints = [
            {
                "Timestamp": Timestamp(period.start),
                **{name: compute(period) for name, compute in statistic_functions.items()},
                "Unit": period.unit,
            }
            for period in periods
        ]
        return {"Label": params["MetricName"], "Datapoints": datapoints}

    def get_metric_data(self, params: JsonMapping) -> JsonObject:
        """Respond to GetMetricData: one statistic of each of several metrics for each period of a time range,
        in pages. A page has periods N to M of each metric, and the token of the next page is M. Raises
        ApiError."""
        results = []
        page_start = _parse_page_offset(params)
        page_end = page_start + int(params.get("MaxDatapoints") or _POINTS_PER_PAGE)
        has_next_page = False
        for metric_query in params.get("MetricDataQueries") or ():
            timestamps, values = self._query_statistic(metric_query, params)
            is_partial = page_end < len(values)
            has_next_page = has_next_page or is_partial
            # A query with ReturnData false is only an input of metric math. It may be the text "false".
            if str(metric_query.get("ReturnData", True)).lower() == "false":
                continue
            results.append(
                {
                    "Id": _get_required_field(metric_query, "Id"),
                    "Label": metric_query.get("Label") or metric_query["MetricStat"]["Metric"]["MetricName"],
                    "Timestamps": timestamps[page_start:page_end],
                    "Values": values[page_start:page_end],
                    "StatusCode": "PartialData" if is_partial else "Complete",
                }
            )
        response: JsonObject = {"MetricDataResults": results, "Messages": []}
        if has_next_page:
            response["NextToken"] = str(page_end)
        return response

    def _query_statistic(
        self, metric_query: JsonMapping, params: JsonMapping
    ) -> tuple[list[Timestamp], list[float]]:
        """Return the times and values of the one statistic that a query of GetMetricData asks for; ``params``
        are those of the request, with the time range. Raises ApiError."""
        if metric_query.get("Expression"):
            raise _invalid_parameter_error("MetricDataQueries.Expression", "this endpoint has no metric math")
        metric_stat = metric_query.get("MetricStat") or {}
        compute_statistic = _find_statistic_function(_get_required_field(metric_stat, "Stat"))
        period_seconds = int(_get_required_field(metric_stat, "Period"))
        periods = self._query_periods(metric_stat.get("Metric") or {}, params, period_seconds)
        # The service's default is the newest first.
        if params.get("ScanBy", "TimestampDescending") == "TimestampDescending":
            periods.reverse()
        timestamps = [Timestamp(period.start) for period in periods]
        return timestamps, [compute_statistic(period) for period in periods]

    def _query_periods(
        self, metric: JsonMapping, time_range: JsonMapping, period_seconds: int
    ) -> list[PeriodStatistics]:
        """Return the statistics of a metric (Namespace, MetricName, Dimensions) for each period of a time
        range (StartTime, EndTime) in which it has samples, in order of time. Raises ApiError."""
        if period_seconds < 1:
            raise _invalid_parameter_error("Period", "it must be positive")
        start = _parse_time(_get_required_field(time_range, "StartTime"), "StartTime")
        end = _parse_time(_get_required_field(time_range, "EndTime"), "EndTime")
        if start >= end:
            raise _invalid_parameter_error("StartTime", "it must be less than EndTime")
        namespace = _get_required_field(metric, "Namespace")
        metric_name = _get_required_field(metric, "MetricName")
        return self._metric_store.statistics_by_period(
            namespace, metric_name, _dimension_values(metric), start, end, period_seconds
        )


class CloudWatchService:
    """Responds in the protocol of the request."""

    def __init__(self, handler: CloudWatchOperations) -> None:
        self._handler = handler

    def serve(self, request: Request, payload: Payload) -> Response:
        """Respond to an HTTP request to CloudWatch in the protocol of the client: rpc-v2-cbor, JSON or
        query."""
        body = payload.read_all(MAX_BODY_BYTES)
        if is_cbor_request(request):
            return self._serve_cbor(request, body)
        if request.headers.get("x-amz-target"):
            return self._serve_json(request, body)
        return self._serve_query(request, body)

    def _serve_cbor(self, request: Request, body: bytes) -> Response:
        """Respond in rpc-v2-cbor, where the path ends with the operation's name."""
        result = self._call_operation(request.path.rpartition("/")[2], _decode_cbor_body(body))
        return Response(200, dict(CBOR_HEADERS), cbor.encode(result))

    def _serve_json(self, request: Request, body: bytes) -> Response:
        """Respond in JSON, where the header x-amz-target ends with the operation's name."""
        try:
            params = json.loads(body or b"{}")
        except ValueError as error:
            raise ApiError("SerializationException", f"The body is not JSON: {error}") from None
        result = self._call_operation(request.headers["x-amz-target"].rpartition(".")[2], params)
        return Response(200, {"Content-Type": "application/x-amz-json-1.0"}, json.dumps(result).encode())

    def _serve_query(self, request: Request, body: bytes) -> Response:
        """Respond in the query protocol: form fields, of which Action names the operation, and XML."""
        operation, params = parse_query_request(request, body)
        return query_response(operation, self._call_operation(operation, params), NAMESPACE)

    def error_response(self, error: ApiError, request_id: str) -> Response:
        return CborErrors().error_response(error, request_id)

    def _call_operation(self, operation: str, params: Any) -> JsonObject:
        method = find_operation_method(self._handler, operation)
        if method is None or not isinstance(params, Mapping):
            supported = "PutMetricData, ListMetrics, GetMetricStatistics, GetMetricData"
            message = f"The local endpoint has no cloudwatch:{operation}; it has {supported}"
            raise ApiError("UnknownOperationException", message)
        result: JsonObject = method(params)
        return result


def _decode_cbor_body(body: bytes) -> Any:
    try:
        return cbor.decode(body) if body else {}
    except cbor.InvalidCbor as error:
        raise ApiError("SerializationException", str(error)) from None


def _parse_samples(
    datum: JsonMapping, metric_name: str, timestamp_ms: int, field_path: str
) -> list[MetricSample]:
    """Return the samples of one MetricDatum: its values with their counts, or the StatisticValues that a
    client has computed of many values. ``field_path`` is the datum's, for messages. Raises ApiError."""
    unit = datum.get("Unit") or "None"
    statistics = datum.get("StatisticValues")
    if statistics:
        sample_count, total, minimum, maximum = (
            _parse_number(_get_required_field(statistics, statistic_name, field_path), field_path)
            for statistic_name in ("SampleCount", "Sum", "Minimum", "Maximum")
        )
        return [MetricSample(metric_name, timestamp_ms, sample_count, total, minimum, maximum, unit)]
    values: Sequence[Any] = datum.get("Values") or [_get_required_field(datum, "Value", field_path)]
    counts: Sequence[Any] = datum.get("Counts") or [1] * len(values)
    if len(counts) != len(values):
        raise _invalid_parameter_error(f"{field_path}.Counts", "as many are needed as there are Values")
    samples = []
    for value_text, count_text in zip(values, counts, strict=True):
        value, count = _parse_number(value_text, field_path), _parse_number(count_text, field_path)
        samples.append(MetricSample(metric_name, timestamp_ms, count, value * count, value, value, unit))
    return samples


def _dimension_values(holder: JsonMapping) -> dict[str, str]:
    return {entry["Name"]: entry["Value"] for entry in holder.get("Dimensions") or ()}


def _find_statistic_function(name: str) -> Callable[[PeriodStatistics], float]:
    """Return the function that computes a statistic. Raises ApiError for an unknown name."""
    if name not in _STATISTIC_BY_NAME:
        raise _invalid_parameter_error(
            "Statistic", f"this endpoint does not have {name!r}; it has {', '.join(_STATISTIC_BY_NAME)}"
        )
    return _STATISTIC_BY_NAME[name]


def _parse_time(value: Any, field_path: str) -> float:
    """Return a time, given as a number or as ISO 8601 text, in seconds since the epoch. Raises ApiError."""
    if isinstance(value, (int, float)):
        return float(value)
    try:
        parsed_time = datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return _parse_number(value, field_path)  # a number as text, as in the query protocol
    if parsed_time.tzinfo is None:  # without an offset, the time is UTC
        parsed_time = parsed_time.replace(tzinfo=datetime.timezone.utc)
    return parsed_time.timestamp()


def _parse_number(value: Any, field_path: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _invalid_parameter_error(field_path, f"{value!r} is not a number") from None
    if not math.isfinite(number):
        raise _invalid_parameter_error(field_path, f"{value!r} is not finite")
    return number


def _get_required_field(holder: JsonMapping, name: str, parent: str = "") -> Any:
    if holder.get(name) in (None, ""):
        field_path = f"{parent}.{name}" if parent else name
        raise ApiError("MissingRequiredParameterException", f"The parameter {field_path} is required.")
    return holder[name]


def _parse_page_offset(params: JsonMapping) -> int:
    """Return the index of a page's first entry, which NextToken states; 0 without it. Raises ApiError."""
    token = params.get("NextToken")
    if token and not str(token).isdecimal():
        raise ApiError("InvalidNextToken", "The next token is not valid.")
    return int(token or 0)


def _invalid_parameter_error(field_path: str, problem: str) -> ApiError:
    return ApiError("InvalidParameterValueException", f"The parameter {field_path} is not valid: {problem}")
