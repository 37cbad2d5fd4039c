"""The generated part of docs/pipelines.md; ``python -m tests.export.pipeline_page`` writes it."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from smlaunch.job.yaml_file import dump_job_yaml
from smlaunch.local.pipelines import pipeline_definition as endpoint_reader
from tests.conftest import ROOT
from tests.export.test_pipeline_steps import LONG, WORK, export_file

PAGE = ROOT / "docs" / "pipelines.md"

JOBS: Mapping[str, Mapping[str, Any]] = {
    "prepare.yaml": {**WORK, "inputs": {"raw": "s3://mine/raw/"}},
    "train.yaml": {**LONG, "limits": {"max_runtime": "48h", "segment": "24h"}},
    "evaluate.yaml": {**WORK, "compute": {"instance_type": "ml.m5.large", "hosts": 2}},
}
"""The jobs that the pipeline file in the page names."""

_SHAPES = {"Training": ("[[", "]]"), "Processing": ("[", "]"), "Condition": ("{", "}"), "Fail": (">", "]")}
_FILE = re.compile(r"<!-- the pipeline's file -->\n```yaml\n(.*?)```", re.DOTALL)
_PICTURE = re.compile(r"(<!-- generated: picture -->\n).*?(<!-- end -->)", re.DOTALL)


def definition(page: str) -> str:
    """Return the exported definition of the pipeline file in the page."""
    match = _FILE.search(page)
    assert match is not None
    with tempfile.TemporaryDirectory() as folder:
        for name, job in JOBS.items():
            (Path(folder) / name).write_text(dump_job_yaml(dict(job)))
        file = Path(folder) / "churn.yaml"
        file.write_text(match[1])
        return export_file(file)


def _picture(text: str) -> Iterator[str]:
    """Yield the lines of the picture: arrows to conditions and their branches, dotted arrows for data."""
    steps = endpoint_reader.parse_definition(text).steps
    ids = {name: f"s{number}" for number, name in enumerate(steps)}
    yield "```mermaid"
    yield "flowchart TD"
    for name, step in steps.items():
        before, after = _SHAPES[step.type]
        yield f'  {ids[name]}{before}"{name}"{after}'
    for name, step in steps.items():
        read = [other for other in steps if other in step.dependencies and steps[other].type != "Condition"]
        if step.type == "Condition":
            yield from (f"  {ids[other]} --> {ids[name]}" for other in read)
            continue
        if step.branch is not None:
            condition, outcome = step.branch
            yield f"  {ids[condition]} -- {'yes' if outcome else 'no'} --> {ids[name]}"
        yield from (f"  {ids[other]} -.-> {ids[name]}" for other in read)
    yield "```"


def update_page(page: str) -> str:
    """Return the page with its current generated part."""
    picture = "\n".join(_picture(definition(page)))
    assert _PICTURE.search(page)
    return _PICTURE.sub(lambda match: f"{match[1]}{picture}\n{match[2]}", page)


if __name__ == "__main__":
    PAGE.write_text(update_page(PAGE.read_text()))
