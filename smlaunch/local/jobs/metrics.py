"""MetricDefinitions: numbers in the output of the hosts, for Describe and for CloudWatch.

Namespace and dimension are those that AWS's own clients query (SageMaker SDK v2, analytics.py).
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
    """Reads the metrics of a job. All hosts write to the same metrics, as on SageMaker."""

    def __init__(self, spec: JobSpec, metrics: Metrics) -> None:
        self._patterns = [(name, re.compile(regex)) for name, regex in spec.metric_definitions]
        self._metrics = metrics
        self._dimensions = {DIMENSION: spec.name}
        self._latest: dict[str, tuple[int, float]] = {}

    def read_lines(self, lines: Sequence[tuple[int, str]]) -> None:
        """Store the metrics in lines of output, given as (milliseconds since the epoch, line), in the order
        of their printing."""
        points = []
        for milliseconds, line in lines:
            for name, value in values_in_line(self._patterns, line):
                self._latest[name] = (milliseconds, value)
                points.append((name, milliseconds, value))
        if points:
            self._metrics.put_points(NAMESPACE, self._dimensions, points)

    def latest_values(self) -> list[dict[str, Any]]:
        """Return FinalMetricDataList: the latest value of each metric."""
        return [
            {"MetricName": name, "Value": value, "Timestamp": milliseconds / 1000}
            for name, (milliseconds, value) in self._latest.items()
        ]


def values_in_line(patterns: Sequence[tuple[str, re.Pattern[str]]], line: str) -> list[tuple[str, float]]:
    """Return the (name, value) pairs of a line, at most one per metric: the first group of the pattern, if
    it is a number."""
    values = []
    for name, pattern in patterns:
        match = pattern.search(line)
        if match is None:
            continue
        text = match.group(1) if pattern.groups else match.group()
        try:
            values.append((name, float(text)))
        except (TypeError, ValueError):
            continue  # the group matched nothing, or no number
    return values
