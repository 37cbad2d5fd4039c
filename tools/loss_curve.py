"""Draws a run's loss over all its segments, and checks that they join: no step missing, none told twice with
another loss.

    python tools/loss_curve.py RUN --local --out curve.svg
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from smlaunch.contract.progress_line import parse_line
from smlaunch.contract.run_names import parse_job_name
from smlaunch.runs.log_tail import split_rank_prefix

SMLAUNCH = Path(sys.executable).parent / "smlaunch"


class Point(NamedTuple):
    job: str
    step: int
    loss: float


def points(lines: Iterable[dict[str, Any]], metric: str = "loss") -> list[Point]:
    """Of the lines of ``smlaunch logs --json``, oldest first: every progress line of the first rank."""
    found = []
    for line in lines:
        progress = parse_line(line["text"])
        if progress is None or split_rank_prefix(line["text"])[0] not in (None, 0):
            continue
        step, loss = progress.values.get("step"), progress.values.get(metric)
        if isinstance(step, int) and isinstance(loss, (int, float)):
            found.append(Point(line["job"], step, float(loss)))
    return found


def gaps(found: Sequence[Point]) -> list[str]:
    """What keeps the curve from being one curve; nothing when it is one."""
    wrong = []
    losses: dict[int, Point] = {}
    for point in found:
        before = losses.setdefault(point.step, point)
        if before.loss != point.loss:
            wrong.append(f"step {point.step}: {before.loss!r} in {before.job}, {point.loss!r} in {point.job}")
    steps = sorted(losses)
    wrong += [f"no step between {low} and {high}" for low, high in pairwise(steps) if high - low != 1]
    return wrong


def draw(found: Sequence[Point], out: Path, title: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    # The same points give the same file: no date in it, and no random identifiers.
    matplotlib.rcParams["svg.hashsalt"] = title
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 3.6), layout="constrained")
    for job in dict.fromkeys(point.job for point in found):
        task = parse_job_name(job)
        label = f"segment {task.segment}, attempt {task.attempt}" if task else job
        mine = [point for point in found if point.job == job]
        axes.plot([point.step for point in mine], [point.loss for point in mine], label=label, linewidth=1.2)
        axes.axvline(mine[0].step, color="0.85", linewidth=0.8, zorder=0)
    axes.set(title=title, xlabel="training step", ylabel="loss")
    axes.legend(fontsize="small")
    figure.savefig(out, metadata={"Date": None})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run")
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("loss.svg"))
    asked = parser.parse_args()
    command = [SMLAUNCH, "logs", asked.run, "--json", *(["--local"] if asked.local else [])]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    found = points(json.loads(ran.stdout)["lines"])
    wrong = gaps(found)
    draw(found, asked.out, f"{asked.run}: loss over {len({point.job for point in found})} jobs")
    print(f"{len(found)} steps, {asked.out}")
    for sentence in wrong:
        print(f"not one curve: {sentence}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
