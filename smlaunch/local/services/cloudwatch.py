"""CloudWatch's metrics, small: put, list, and read by periods, in each protocol that clients speak.

boto3 and AWS CLI v2 send rpc-v2-cbor by now, older ones JSON or the query protocol (botocore's model names
all three). Metric math, percentiles and alarms are not had, and say so.
"""

from __future__ import annotations

import datetime
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from smlaunch.local.caller import current
from smlaunch.local.errors import ApiError
from smlaunch.local.messages import Payload, Request, Response
from smlaunch.local.metric_store import Bucket, MetricStore, Sample
from smlaunch.local.services import cbor
from smlaunch.local.services.cbor_errors import HEADERS, CborErrors, is_cbor
from smlaunch.local.services.json_service import method_name
from smlaunch.local.services.query_service import to_xml

NAMESPACE = "http://monitoring.amazonaws.com/doc/2010-08-01/"
_BODY_LIMIT = 1 << 20
_LIST_PAGE = 500
_POINTS_PAGE = 100_800
_STATISTICS: Mapping[str, Callable[[Bucket], float]] = {
    "SampleCount": lambda bucket: bucket.many,
    "Sum": lambda bucket: bucket.total,
    "Average": lambda bucket: bucket.total / bucket.many,
    "Minimum": lambda bucket: bucket.low,
    "Maximum": lambda bucket: bucket.high,
}

Params = Mapping[str, Any]


class CloudWatch:
    """One method per operation. Times are seconds since the epoch; numbers may come as text."""

    def __init__(self, metrics: MetricStore) -> None:
        self._metrics = metrics

    def put_metric_data(self, params: Params) -> dict[str, Any]:
        namespace = _needed(params, "Namespace")
        for number, datum in enumerate(params.get("MetricData") or (), 1):
            place = f"MetricData.member.{number}"
            stamp = datum.get("Timestamp")
            ms = round((time.time() if stamp is None else _seconds(stamp, place)) * 1000)
            samples = _samples(datum, _needed(datum, "MetricName", place), ms, place)
            self._metrics.add(namespace, _dimensions(datum), samples)
        return {}

    def list_metrics(self, params: Params) -> dict[str, Any]:
        wanted = [(entry["Name"], entry.get("Value")) for entry in params.get("Dimensions") or ()]
        found = [
            {
                "Namespace": namespace,
                "MetricName": name,
                "Dimensions": [{"Name": key, "Value": value} for key, value in dimensions.items()],
            }
            for namespace, name, dimensions in self._metrics.metrics(
                params.get("Namespace"), params.get("MetricName")
            )
            if all(key in dimensions and value in (None, dimensions[key]) for key, value in wanted)
        ]
        start = _offset(params)
        answer: dict[str, Any] = {"Metrics": found[start : start + _LIST_PAGE]}
        if start + _LIST_PAGE < len(found):
            answer["NextToken"] = str(start + _LIST_PAGE)
        return answer

    def get_metric_statistics(self, params: Params) -> dict[str, Any]:
        if params.get("ExtendedStatistics"):
            raise _invalid("ExtendedStatistics", "percentiles are not had on this endpoint")
        statistics = params.get("Statistics") or ()
        if not statistics:
            raise _invalid("Statistics", "at least one of them is needed")
        for name in statistics:
            _statistic(name)
        buckets = self._buckets(params, params, int(_needed(params, "Period")))
        points = [
            {
                "Timestamp": cbor.Moment(bucket.start),
                **{name: _STATISTICS[name](bucket) for name in statistics},
                "Unit": bucket.unit,
            }
            for bucket in buckets
        ]
        return {"Label": params["MetricName"], "Datapoints": points}

    def get_metric_data(self, params: Params) -> dict[str, Any]:
        results = []
        start = _offset(params)
        limit = int(params.get("MaxDatapoints") or _POINTS_PAGE)
        further = False
        for query in params.get("MetricDataQueries") or ():
            if query.get("Expression"):
                raise _invalid("MetricDataQueries.Expression", "metric math is not had on this endpoint")
            wanted = query.get("MetricStat") or {}
            metric = wanted.get("Metric") or {}
            statistic = _statistic(_needed(wanted, "Stat"))
            buckets = self._buckets(params, metric, int(_needed(wanted, "Period")))
            if params.get("ScanBy", "TimestampDescending") == "TimestampDescending":
                buckets.reverse()
            page = buckets[start : start + limit]
            more = start + limit < len(buckets)
            further = further or more
            if str(query.get("ReturnData", True)).lower() == "false":
                continue
            results.append(
                {
                    "Id": _needed(query, "Id"),
                    "Label": query.get("Label") or metric["MetricName"],
                    "Timestamps": [cbor.Moment(bucket.start) for bucket in page],
                    "Values": [statistic(bucket) for bucket in page],
                    "StatusCode": "PartialData" if more else "Complete",
                }
            )
        answer: dict[str, Any] = {"MetricDataResults": results, "Messages": []}
        if further:
            answer["NextToken"] = str(start + limit)
        return answer

    def _buckets(self, times: Params, metric: Params, period: int) -> list[Bucket]:
        if period < 1:
            raise _invalid("Period", "it must be positive")
        begin, end = (_seconds(_needed(times, name), name) for name in ("StartTime", "EndTime"))
        if begin >= end:
            raise _invalid("StartTime", "it must be less than EndTime")
        return self._metrics.buckets(
            *(_needed(metric, "Namespace"), _needed(metric, "MetricName"), _dimensions(metric)),
            *(begin, end, period),
        )


class CloudWatchService:
    """Reads whichever protocol a request is in and answers in the same."""

    def __init__(self, handler: CloudWatch) -> None:
        self._handler = handler

    def serve(self, request: Request, payload: Payload) -> Response:
        body = payload.read(_BODY_LIMIT)
        if is_cbor(request):
            result = self._call(request.path.rpartition("/")[2], _decoded(body))
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
        result = self._call(action, _nested(fields))
        answer = {
            f"{action}Result": _rendered(result),
            "ResponseMetadata": {"RequestId": current().request_id},
        }
        return Response(200, {"Content-Type": "text/xml"}, to_xml({f"{action}Response": answer}, NAMESPACE))

    def error(self, error: ApiError, request_id: str) -> Response:
        return CborErrors().error(error, request_id)

    def _call(self, operation: str, params: Any) -> dict[str, Any]:
        name = method_name(operation)
        method = getattr(self._handler, name, None) if name.isidentifier() and name[0] != "_" else None
        if method is None or not isinstance(params, Mapping):
            known = "PutMetricData, ListMetrics, GetMetricStatistics, GetMetricData"
            text = f"The local endpoint has no cloudwatch:{operation}; it has {known}"
            raise ApiError("UnknownOperationException", text)
        result: dict[str, Any] = method(params)
        return result


def _decoded(body: bytes) -> Any:
    try:
        return cbor.decode(body) if body else {}
    except cbor.BadCbor as error:
        raise ApiError("SerializationException", str(error)) from None


def _nested(fields: Mapping[str, str]) -> dict[str, Any]:
    """``MetricData.member.1.Value=3`` → ``{"MetricData": [{"Value": "3"}]}``; lists by their numbers."""
    tree: dict[str, Any] = {}
    for name, value in fields.items():
        node = tree
        *above, last = [part for part in name.split(".") if part != "member"]
        for part in above:
            held = node.setdefault(part, {})
            node = held if isinstance(held, dict) else {}
        node[last] = value
    listed = _listed(tree)
    return listed if isinstance(listed, dict) else {}


def _listed(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    if node and all(key.isdecimal() for key in node):
        return [_listed(node[key]) for key in sorted(node, key=int)]
    return {key: _listed(value) for key, value in node.items()}


def _rendered(value: Any) -> Any:
    """Times as the query protocol writes them."""
    if isinstance(value, cbor.Moment):
        return datetime.datetime.fromtimestamp(value, datetime.timezone.utc)
    if isinstance(value, Mapping):
        return {key: _rendered(held) for key, held in value.items()}
    return [_rendered(held) for held in value] if isinstance(value, list) else value


def _samples(datum: Params, name: str, ms: int, place: str) -> list[Sample]:
    unit = datum.get("Unit") or "None"
    given = datum.get("StatisticValues")
    if given:
        parts = ("SampleCount", "Sum", "Minimum", "Maximum")
        many, total, low, high = (_number(_needed(given, part, place), place) for part in parts)
        return [Sample(name, ms, many, total, low, high, unit)]
    values: Sequence[Any] = datum.get("Values") or [_needed(datum, "Value", place)]
    counts: Sequence[Any] = datum.get("Counts") or [1] * len(values)
    if len(counts) != len(values):
        raise _invalid(f"{place}.Counts", "as many are needed as there are Values")
    pairs = [
        (_number(value, place), _number(count, place)) for value, count in zip(values, counts, strict=True)
    ]
    return [Sample(name, ms, count, value * count, value, value, unit) for value, count in pairs]


def _dimensions(holder: Params) -> dict[str, str]:
    return {entry["Name"]: entry["Value"] for entry in holder.get("Dimensions") or ()}


def _statistic(name: str) -> Callable[[Bucket], float]:
    if name not in _STATISTICS:
        raise _invalid("Statistic", f"{name!r} is not had on this endpoint; it has {', '.join(_STATISTICS)}")
    return _STATISTICS[name]


def _seconds(value: Any, place: str) -> float:
    if isinstance(value, (int, float)):
        return float(value)
    try:
        moment = datetime.datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return _number(value, place)
    return moment.replace(tzinfo=moment.tzinfo or datetime.timezone.utc).timestamp()


def _number(value: Any, place: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise _invalid(place, f"{value!r} is not a number") from None
    if not math.isfinite(number):
        raise _invalid(place, f"{value!r} is not finite")
    return number


def _needed(holder: Params, name: str, place: str = "") -> Any:
    if holder.get(name) in (None, ""):
        where = f"{place}.{name}" if place else name
        raise ApiError("MissingRequiredParameterException", f"The parameter {where} is required.")
    return holder[name]


def _offset(params: Params) -> int:
    token = params.get("NextToken")
    if token and not str(token).isdecimal():
        raise ApiError("InvalidNextToken", "The next token is not valid.")
    return int(token or 0)


def _invalid(place: str, text: str) -> ApiError:
    return ApiError("InvalidParameterValueException", f"The parameter {place} is not valid: {text}")
