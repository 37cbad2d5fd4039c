"""The metrics service in its three protocols, and its CBOR codec."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.session import get_session
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.local.services import cbor
from smlaunch.local.services.timestamp import Timestamp
from smlaunch.local.stores.metric_store import MetricSample, MetricStore
from tests.local.front.conftest import ServerHarness

PROTOCOLS = ("smithy-rpc-v2-cbor", "json", "query")


def client(front: ServerHarness, protocol: str) -> Any:
    session = get_session()
    loader = session.get_component("data_loader")
    model = loader.load_service_model("cloudwatch", "service-2")
    metadata = {**model["metadata"], "protocol": protocol, "protocols": [protocol]}
    changed_model = {**model, "metadata": metadata}

    class Loader:
        def __getattr__(self, name: str) -> Any:
            return getattr(loader, name)

        def load_service_model(self, service: str, kind: str, api_version: str | None = None) -> Any:
            if (service, kind) == ("cloudwatch", "service-2"):
                return changed_model
            return loader.load_service_model(service, kind, api_version)

    session.register_component("data_loader", Loader())
    original = front.client("sts")
    credentials = original._request_signer._credentials.get_frozen_credentials()
    return session.create_client(
        "cloudwatch",
        region_name="us-east-1",
        endpoint_url=original.meta.endpoint_url,
        aws_access_key_id=credentials.access_key,
        aws_secret_access_key=credentials.secret_key,
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_put_metric_data_can_be_read_back(front: ServerHarness, protocol: str) -> None:
    cloudwatch = client(front, protocol)
    namespace = f"Mine/{protocol}"
    dimensions = [{"Name": "Host", "Value": "a b&c"}, {"Name": "Rank", "Value": "0"}]
    now = time.time() // 60 * 60
    sets = {"SampleCount": 2, "Sum": 5.0, "Minimum": 1.0, "Maximum": 4.0}
    cloudwatch.put_metric_data(
        Namespace=namespace,
        MetricData=[
            {
                "MetricName": "loss",
                "Dimensions": dimensions,
                "Timestamp": now - 60,
                "Value": 1.5,
                "Unit": "Bytes",
            },
            {
                "MetricName": "loss",
                "Dimensions": dimensions,
                "Timestamp": now,
                "Values": [1, 3],
                "Counts": [1, 2],
            },
            {"MetricName": "set", "StatisticValues": sets, "Timestamp": now},
        ],
    )
    metrics = cloudwatch.list_metrics(Namespace=namespace)["Metrics"]
    assert [metric["MetricName"] for metric in metrics] == ["loss", "set"]
    assert metrics[0]["Dimensions"] == dimensions
    metric = {"Namespace": namespace, "MetricName": "loss", "Dimensions": dimensions}
    times = {"StartTime": now - 300, "EndTime": now + 60}
    data = cloudwatch.get_metric_data(
        MetricDataQueries=[{"Id": "a", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Average"}}],
        **times,
    )
    (result,) = data["MetricDataResults"]
    assert [round(value, 6) for value in result["Values"]] == [round(7 / 3, 6), 1.5]
    assert [stamp.timestamp() for stamp in result["Timestamps"]] == [now, now - 60]
    (point,) = cloudwatch.get_metric_statistics(
        Namespace=namespace, MetricName="set", Period=60, Statistics=["Sum", "SampleCount"], **times
    )["Datapoints"]
    assert (point["Sum"], point["SampleCount"]) == (5.0, 2.0)
    with pytest.raises(ClientError) as raised:
        cloudwatch.get_metric_statistics(**metric, **times, Period=60, ExtendedStatistics=["p99"])
    assert "percentiles" in raised.value.response["Error"]["Message"]
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    with pytest.raises(ClientError, match="it has PutMetricData"):
        cloudwatch.describe_alarms()


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_none(member) for key, member in value.items() if member is not None}
    return [without_none(member) for member in value] if isinstance(value, list) else value


@given(values)
def test_cbor_round_trip(value: Any) -> None:
    assert cbor.decode(cbor.encode(value)) == without_none(value)


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_raise_invalid_cbor(data: bytes) -> None:
    with suppress(cbor.InvalidCbor):
        cbor.decode(data)


def test_cbor_of_other_encoders() -> None:
    assert cbor.decode(b"\xbf\x61a\x9f\x01\x02\xff\xff") == {"a": [1, 2]}
    assert cbor.decode(b"\x7f\x61a\x61b\xff") == "ab"
    assert cbor.decode(b"\xf9\x3c\x00") == 1.0
    moment = cbor.decode(b"\xc1\x1a\x00\x00\x00\x05")
    assert isinstance(moment, Timestamp)
    assert cbor.decode(cbor.encode(moment)) == 5.0


@given(
    st.lists(st.tuples(st.integers(0, 600), st.floats(-1e6, 1e6)), min_size=1, max_size=30),
    st.sampled_from([1, 60, 300]),
)
def test_periods_hold_every_sample_once(
    tmp_path_factory: pytest.TempPathFactory, points: list[tuple[int, float]], period: int
) -> None:
    store = MetricStore(tmp_path_factory.mktemp("metrics") / "metrics.sqlite")
    store.put_samples(
        "n", {}, [MetricSample("m", second * 1000, 1, value, value, value) for second, value in points]
    )
    buckets = store.statistics_by_period("n", "m", {}, 0, 601, period)
    assert sum(bucket.sample_count for bucket in buckets) == len(points)
    for bucket in buckets:
        inside = [value for second, value in points if bucket.start <= second < bucket.start + period]
        assert (bucket.sample_count, bucket.minimum, bucket.maximum) == (
            len(inside),
            min(inside),
            max(inside),
        )
        assert math.isclose(bucket.total, sum(inside), rel_tol=1e-9, abs_tol=1e-6)
    store.close()
