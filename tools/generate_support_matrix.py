"""Writes docs/support-matrix.md from the table in smlaunch/local/api_support.json.

    python tools/generate_support_matrix.py [--check]

``--check`` writes nothing and fails when the page differs from the table.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import fields
from pathlib import Path

from smlaunch.local.api_support import SUPPORT_TABLES
from smlaunch.local.endpoint_settings import Settings

TARGET = Path(__file__).parent.parent / "docs" / "support-matrix.md"
_HEAD = """# Support matrix of the local endpoint

This page is generated from `smlaunch/local/api_support.json` by `tools/generate_support_matrix.py`; a test
compares them. A row applies to all fields below it that have no row of their own. A **supported** field has
the same effect as on SageMaker. A **recorded** field is stored and returned by Describe, and has no effect;
the plan and the first host's log say so. A **rejected** field causes a ValidationException that names it.
No field is ignored silently.

"""
_CONTAINERS = """
## Differences with the executor `containers`

The tables above apply to the executor `processes`. With `--executor containers`, these rows replace their
rows.

"""
_SETTINGS = """
## Behavior that AWS does not document

If AWS does not document a behavior, a field of `smlaunch.local.endpoint_settings.Settings` determines it. The
docstring of each field contains reasons and sources.

| setting | default |
|---|---|
"""


def page() -> str:
    settings_rows = "".join(
        f"| `{setting.name}` | `{setting.default!r}` |\n"
        for setting in fields(Settings)
        if setting.name != "inherit_environment"
    )
    sections = [
        _HEAD + _table("CreateTrainingJob"),
        _table("CreateProcessingJob"),
        _table("Other operations"),
        _table("Pipelines") + _CONTAINERS + _table("CreateTrainingJob in containers", 3),
        _table("CreateProcessingJob in containers", 3) + _SETTINGS + settings_rows,
    ]
    return "\n".join(sections)


def _table(title: str, level: int = 2) -> str:
    lines = [f"{'#' * level} {title}", "", "| field | support | note |", "|---|---|---|"]
    for path, row in SUPPORT_TABLES[title].items():
        notes = [row.note] if row.note else []
        notes += [f"`{value}` is rejected: {reason}" for value, reason in row.rejected_values.items()]
        lines.append(f"| `{path}` | {row.level} | {'; '.join(notes).replace('|', '/')} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare only")
    if parser.parse_args().check:
        same = TARGET.read_text() == page()
        print(f"{TARGET.name} {'matches' if same else 'does NOT match'} the table")
        return 0 if same else 1
    TARGET.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
