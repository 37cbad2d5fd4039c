"""Writes docs/honesty.md from the table in smlaunch/local/honesty.py.

    python tools/generate_honesty.py [--check]

``--check`` writes nothing and fails when the page is not what the table says.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from smlaunch.local.honesty import (
    CREATE_PROCESSING_JOB,
    CREATE_TRAINING_JOB,
    OTHER_OPERATIONS,
    PIPELINES,
    PROCESSING_IN_CONTAINERS,
    TRAINING_IN_CONTAINERS,
    Row,
)
from smlaunch.local.settings import Settings

TARGET = Path(__file__).parent.parent / "docs" / "honesty.md"
_HEAD = """# What the local endpoint does with every field

This page is generated from `smlaunch/local/honesty.py` by `tools/generate_honesty.py`; a test compares them.
A row holds for all fields below it that have no row of their own. What is **without effect** is recorded,
shown by Describe, told in the plan and in the first host's log. What is **refused** ends in a
ValidationException that names the field. Nothing is ignored silently.

"""
_CONTAINERS = """
## What differs with the executor `containers`

The tables above are those of the executor `processes`. Where hosts are containers (`--executor containers`),
these rows stand for theirs.

"""
_SETTINGS = """
## What nobody knows of SageMaker

Where AWS does not document a behaviour, a field of `smlaunch.local.settings.Settings` decides. The reasons
and sources stand beside each field there.

| setting | default |
|---|---|
"""


def page() -> str:
    known = "".join(
        f"| `{one.name}` | `{one.default!r}` |\n"
        for one in fields(Settings)
        if one.name != "inherit_environment"
    )
    return (
        _HEAD
        + _table("CreateTrainingJob", CREATE_TRAINING_JOB)
        + "\n"
        + _table("CreateProcessingJob", CREATE_PROCESSING_JOB)
        + "\n"
        + _table("Other operations", OTHER_OPERATIONS)
        + "\n"
        + _table("Pipelines", PIPELINES)
        + _CONTAINERS
        + _table("CreateTrainingJob in containers", TRAINING_IN_CONTAINERS, 3)
        + "\n"
        + _table("CreateProcessingJob in containers", PROCESSING_IN_CONTAINERS, 3)
        + _SETTINGS
        + known
    )


def _table(title: str, rows: Mapping[str, Row], level: int = 2) -> str:
    lines = [f"{'#' * level} {title}", "", "| field | here | what that means |", "|---|---|---|"]
    for path, row in rows.items():
        texts = [row.sentence] if row.sentence else []
        texts += [f"`{value}` is refused: {reason}" for value, reason in row.refused_values.items()]
        lines.append(f"| `{path}` | {row.effect} | {'; '.join(texts).replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    if parser.parse_args().check:
        same = TARGET.read_text() == page()
        print(f"{TARGET.name} {'is' if same else 'is NOT'} what the table says")
        return 0 if same else 1
    TARGET.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
