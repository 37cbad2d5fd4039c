"""MetricDefinitions: numbers read out of what the hosts print, for Describe and for CloudWatch.

Namespace and dimension are those that AWS's own clients ask for (SageMaker SDK v2, analytics.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from smlaunch.local.jobs.spec import JobSpec
from smlaunch.local.jobs.stores import Metrics

NAMESPACE = "/aws/sagemaker/TrainingJobs"
DIMENSION = "TrainingJobName"


class MetricReader:
    """Lines in the order they were printed; all hosts feed the same metrics, as on SageMaker."""

    def __init__(self, spec: JobSpec, metrics: Metrics) -> None:
        self._patterns = [(name, re.compile(regex)) for name, regex in spec.metrics]
        self._metrics = metrics
        self._dimensions = {DIMENSION: spec.name}
        self._latest: dict[str, tuple[int, float]] = {}

    def feed(self, events: Sequence[tuple[int, str]]) -> None:
        """``events``: milliseconds since the epoch and a line."""
        points = []
        for milliseconds, line in events:
            for name, value in values(self._patterns, line):
                self._latest[name] = (milliseconds, value)
                points.append((name, milliseconds, value))
        if points:
            self._metrics.put_points(NAMESPACE, self._dimensions, points)

    def final(self) -> list[dict[str, Any]]:
        """FinalMetricDataList: the last value of each metric."""
        return [
            {"MetricName": name, "Value": value, "Timestamp": milliseconds / 1000}
            for name, (milliseconds, value) in self._latest.items()
        ]


def values(patterns: Sequence[tuple[str, re.Pattern[str]]], line: str) -> list[tuple[str, float]]:
    """Each metric at most once a line: the pattern's first group, when it is a number."""
    found = []
    for name, pattern in patterns:
        match = pattern.search(line)
        if match is None:
            continue
        text = match.group(1) if pattern.groups else match.group()
        try:
            found.append((name, float(text)))
        except (TypeError, ValueError):
            continue  # the group matched something else this time, or nothing
    return found
