"""Timing two or more commands against each other on a machine that others use too.

Commands run in turn (A B C, A B C, ...), the first round is thrown away, and what counts is the median and
the ratio of medians: a slow minute of the machine then hits all of them alike.
"""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """Seconds over all counted rounds."""

    name: str
    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    def __str__(self) -> str:
        low, high = min(self.seconds), max(self.seconds)
        return f"{self.name:44s} {low * 1000:9.1f} {self.median * 1000:9.1f} {high * 1000:9.1f}"


def interleave(measures: Mapping[str, Callable[[], float]], rounds: int = 7) -> dict[str, Figure]:
    """Each measure returns seconds. One warm-up round, then ``rounds`` counted ones."""
    samples: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(rounds + 1):
        for name, measure in measures.items():
            seconds = measure()
            if turn:
                samples[name].append(seconds)
    return {name: Figure(name, tuple(values)) for name, values in samples.items()}


def first_line(command: list[str], environment: dict[str, str]) -> float:
    """Seconds from starting ``command`` until the last of two ranks prints ``FIRST-LINE`` and its clock."""
    started = time.time()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    times = [float(text) for text in re.findall(r"FIRST-LINE ([0-9.]+)", done.stdout + done.stderr)]
    if done.returncode or len(times) != 2:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return max(times) - started


def report(figures: Mapping[str, Figure], baseline: str, goals: Mapping[str, float] | None = None) -> bool:
    """Print medians and ratios to the baseline; False when a goal (name to largest ratio) is missed."""
    print(f"{'milliseconds':44s} {'min':>9s} {'median':>9s} {'max':>9s}   ratio")
    reached = True
    for name, figure in figures.items():
        ratio = figure.median / figures[baseline].median
        line = f"{figure}   {ratio:.3f}x"
        goal = (goals or {}).get(name)
        if goal is not None:
            met = ratio <= goal
            reached &= met
            line += f"  (goal {goal}x: {'met' if met else 'MISSED'})"
        print(line)
    return reached
