from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from smlaunch.local.jobs.metric_definitions import MetricReader, metric_values_in_line
from tests.local.jobs.conftest import spec


class FakeMetricStore:
    def __init__(self) -> None:
        self.points: list[tuple[str, int, float]] = []

    def put_points(
        self, namespace: str, dimensions: Mapping[str, str], points: Sequence[tuple[str, int, float]]
    ) -> None:
        assert (namespace, dimensions) == ("/aws/sagemaker/TrainingJobs", {"TrainingJobName": "job"})
        self.points += points


def definitions(*pairs: tuple[str, str]) -> dict[str, Any]:
    metrics = [{"Name": name, "Regex": regex} for name, regex in pairs]
    return {
        "AlgorithmSpecification": {
            "TrainingImage": "image",
            "TrainingInputMode": "File",
            "MetricDefinitions": metrics,
        }
    }


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False)))
def test_every_number_printed_is_read_and_the_last_one_is_final(printed: list[float]) -> None:
    store = FakeMetricStore()
    job = spec(**definitions(("loss", r"loss=([-+0-9.e]+)"), ("never", "x=([0-9]+)")))
    reader = MetricReader(job, store)
    reader.store_metrics_in_lines(
        [(number, f"step {number} loss={value!r};") for number, value in enumerate(printed)]
    )
    assert store.points == [("loss", number, value) for number, value in enumerate(printed)]
    last = [
        {"MetricName": "loss", "Value": value, "Timestamp": (len(printed) - 1) / 1000}
        for value in printed[-1:]
    ]
    assert reader.latest_values() == last


@given(st.text(max_size=60))
def test_any_line_can_be_read(line: str) -> None:
    patterns = [
        (name, re.compile(regex)) for name, regex in (("a", "(.*)"), ("b", "(x)?(y)?"), ("c", "[0-9]+"))
    ]
    for name, value in metric_values_in_line(patterns, line):
        assert name in "abc"
        assert isinstance(value, float)


def test_without_a_group_the_whole_match_counts() -> None:
    assert metric_values_in_line([("a", re.compile("[0-9.]+"))], "took 1.5 s") == [("a", 1.5)]
