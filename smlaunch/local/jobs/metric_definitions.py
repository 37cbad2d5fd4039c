"""MetricDefinitions: numbers in the output of the hosts, for Describe and for CloudWatch.

Namespace and dimension are those that AWS's own clients query (SageMaker SDK v2, analytics.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from smlaunch.api.validation.java_patterns import python_metric_pattern
from smlaunch.local.jobs.job_spec import JobSpec
from smlaunch.local.jobs.store_interfaces import MetricStorage

CLOUDWATCH_NAMESPACE = "/aws/sagemaker/TrainingJobs"
DIMENSION = "TrainingJobName"


class MetricReader:
    """Reads the metrics of a job. All hosts write to the same metrics, as on SageMaker."""

    def __init__(self, spec: JobSpec, metric_store: MetricStorage) -> None:
        self._named_patterns = [
            (metric_name, re.compile(python_metric_pattern(regex)))
            for metric_name, regex in spec.metric_definitions
        ]
        self._metric_store = metric_store
        self._dimensions = {DIMENSION: spec.name}
        self._latest_value_by_metric: dict[str, tuple[int, float]] = {}

    def store_metrics_in_lines(self, lines: Sequence[tuple[int, str]]) -> None:
        """Find the values of the job's metrics in lines of its output, and store them as CloudWatch metrics.
        The lines are given as (milliseconds since the epoch, line), in the order of their printing."""
        metric_points: list[tuple[str, int, float]] = []  # (name, milliseconds, value)
        for milliseconds, line in lines:
            for metric_name, value in metric_values_in_line(self._named_patterns, line):
                self._latest_value_by_metric[metric_name] = (milliseconds, value)
                metric_points.append((metric_name, milliseconds, value))
        if metric_points:
            self._metric_store.put_points(CLOUDWATCH_NAMESPACE, self._dimensions, metric_points)

    def latest_values(self) -> list[dict[str, Any]]:
        """Return FinalMetricDataList: the latest value of each metric."""
        return [
            {"MetricName": metric_name, "Value": value, "Timestamp": milliseconds / 1000}
            for metric_name, (milliseconds, value) in self._latest_value_by_metric.items()
        ]


def metric_values_in_line(
    named_patterns: Sequence[tuple[str, re.Pattern[str]]], line: str
) -> list[tuple[str, float]]:
    """Return the metrics, as (name, value), that a line of a script's output reports, at most one value per
    metric. ``named_patterns`` has the name and regular expression of each of the request's MetricDefinitions;
    the first group is the number, or the whole match if the expression has no group."""
    named_values: list[tuple[str, float]] = []
    for metric_name, pattern in named_patterns:
        match = pattern.search(line)
        if match is None:
            continue
        number_text = match.group(1) if pattern.groups else match.group()
        try:
            named_values.append((metric_name, float(number_text)))
        except (TypeError, ValueError):
            continue  # the group matched nothing, or no number
    return named_values
