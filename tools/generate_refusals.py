"""Writes docs/refusals.md from the rules in smlaunch/planner/rules and the bad jobs of the tests.

    python tools/generate_refusals.py [--check]

``--check`` writes nothing and fails when the page is not what the rules say.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from smlaunch.planner.rules import all_rules
from smlaunch.planner.rules.rule import Rule

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "refusals.md"
BAD_JOBS = ROOT / "tests" / "planner" / "bad_jobs.yaml"

_HEAD = """# Validation of jobs

smlaunch rejects a job that cannot work before it uploads or creates anything, with exit code 2. It reports
all problems together: each line has the field as you wrote it, the cause, and the next step.

```
$ smlaunch run job.yaml
error: 3 problems
  limits.max_runtim: unknown key, did you mean 'max_runtime'?
  compute.keep_alive: spot hosts cannot stay in a warm pool; leave it out, or use hosts on demand
  inputs.train.uri: FastFile shows a whole folder; end s3://bucket/data with a slash, or take mode File
```

If smlaunch cannot read a field, it also reports the problems of the other fields, but none that only follows
from the unreadable field's default: the intended value of `max_runtime: soon` is unknown. It reports problems
that depend on a choice or a price once it can read all fields.

The tests hold {count} jobs that cannot work, with the expected text of each error; 98 of them were written
before the rules. Each is rejected with exactly its problems and without a write, and any combination of
many faults is reported completely. `tools/generate_refusals.py` generates this page.

## Rules

The source is a page of the service's documents or of the official SDKs, with what it says in short. Each rule
is a function in a module of `smlaunch/planner/rules`; [extending.md](extending.md) shows how one is added.
[planner.md](planner.md) lists the rules that choose strategy and machines.

| rule | rejected | source |
|---|---|---|
"""

_ADVICE_HEAD = """
## Rules that advise

They reject nothing: the plan has their reasons and warnings.

| rule | what the plan says | source |
|---|---|---|
"""

_ELSEWHERE_HEAD = """
## Rules in other modules

Some rules are part of the module that makes the decision. Each has its own bad job.

| rejected | module | source |
|---|---|---|
"""

_ELSEWHERE = (
    (
        "`limits.max_wait` below the training time",
        "planner/request_compiler.py",
        "2.6",
        "a wait that is shorter than the training it includes",
    ),
    (
        "a segment of more than 28 days",
        "planner/segments.py",
        "2.1",
        "a segment of more than 28 days",
    ),
    (
        "a segment too short to train",
        "planner/segments.py",
        "2.3",
        "a segment that is over before it trains",
    ),
    (
        "more segments than a job's name can number",
        "planner/planner.py",
        "2.1",
        "more segments than names have room for",
    ),
    (
        "more hosts than shards, or than files on lists",
        "planner/file_sharding.py",
        "2.8",
        "more hosts than shards",
    ),
    (
        "FastFile of a manifest",
        "planner/file_sharding.py",
        "2.4",
        "FastFile of a manifest",
    ),
    (
        "lists through a pipe",
        "planner/file_sharding.py",
        "2.4",
        "lists through a pipe",
    ),
    (
        "checkpoints with `upload: direct` under network isolation",
        "planner/checkpoint_upload.py",
        "2.1",
        "checkpoints straight to S3 without a network",
    ),
    (
        "a version without a known image",
        "planner/image_choice.py",
        "4.1",
        "a framework's version that nobody knows",
    ),
    (
        "requirements of a strategy for hosts, types, images and options",
        "strategies",
        "3, 4",
        "smddp on another type than P4",
    ),
    (
        "more than `limits.max_cost`, or a cap without a known price",
        "planner/run_cost.py",
        "5",
        "more than it may cost",
    ),
    (
        "a missing script, source, requirements file or role",
        "planner/planner.py",
        "7",
        "nobody to run as",
    ),
    (
        "other violations of the API model's tables",
        "api/validation",
        "2.1",
        "an address that is too long",
    ),
    (
        "fields that cannot be read",
        "job/model.py",
        "",
        "five mistakes in five sections of the file",
    ),
)
"""What is refused, its module below smlaunch/, its section, and the bad job that shows it."""

_WARNED_HEAD = """
## Warnings

| warning | module | source |
|---|---|---|
"""

_WARNED = (
    (
        "an image near or past the end of its security patches, on the day of the plan",
        "planner/image_choice.py",
        "4.1",
    ),
    (
        "an instance type that is not in the catalog: the service may know it",
        "planner/launch_choices.py",
        "5",
    ),
)

_WARNED_END = """
[capacity.md](capacity.md) describes which of the account's quotas are read, and when.
"""


def bad_jobs() -> list[str]:
    return [row["name"] for row in yaml.safe_load(BAD_JOBS.read_text(encoding="utf-8"))]


def page() -> str:
    names = bad_jobs()
    return (
        _HEAD.format(count=len(names))
        + _rows("validate")
        + _ADVICE_HEAD
        + _rows("advise")
        + "".join(_elsewhere(names))
        + _warned()
    )


def _warned() -> str:
    rows = "".join(f"| {what} | smlaunch/{where} | {section} |\n" for what, where, section in _WARNED)
    return _WARNED_HEAD + rows + _WARNED_END


def _rows(phase: str) -> str:
    return "".join(_row(rule) for rule in all_rules() if rule.phase == phase)


def _row(rule: Rule[Any, Any]) -> str:
    quote = rule.quote.replace("|", "\\|")
    return f"| `{rule.id}` | {rule.summary} | [{quote}]({rule.source.removeprefix('docs/')}) |\n"


def _elsewhere(names: list[str]) -> Iterator[str]:
    yield _ELSEWHERE_HEAD
    for what, where, section, shown in _ELSEWHERE:
        if shown not in names:
            raise SystemExit(f"there is no bad job {shown!r}, which is to show: {what}")
        if not (ROOT / "smlaunch" / where).exists():
            raise SystemExit(f"there is no smlaunch/{where}, which is to refuse: {what}")
        yield f"| {what} | smlaunch/{where} | {section} |\n"


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    text = page()
    if not parser.parse_args().check:
        TARGET.write_text(text, encoding="utf-8")
        return 0
    if TARGET.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{TARGET} is not what the rules say\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
