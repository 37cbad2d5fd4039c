"""Every job of bad_jobs.yaml is refused, with all of its problems, before anything is changed anywhere."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from smlaunch.discovery.config_files import OWN_VARIABLE
from smlaunch.errors import EXIT_BAD_JOB, JobError, Problem
from smlaunch.facts.discovered_facts import SourceFacts
from smlaunch.job.model import Job
from smlaunch.job.partial import parse_without_invalid_fields
from smlaunch.planner.launch_choices import choose_strategy
from smlaunch.planner.plan import Cost
from smlaunch.planner.plan_context import Diagnostics, JobContext
from smlaunch.planner.rules import PlanContext as RuleCase
from smlaunch.planner.rules import all_rules
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.plan_job import add_remaining_problems
from smlaunch.runs.team_defaults import read_settings, with_defaults
from tests.planner.bad_jobs import Case, cases, target_of, write_config, write_source
from tests.runs.fakes import gather_needed_facts
from tests.tables import table

CASES = cases()
MUCH = Cost(is_known=True, per_hour=1e6, maximum=1e6, note="")


def test_there_are_sixty_and_more() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(len(case.says) >= 4 for case in CASES) >= 6


def texts_by_field(problems: Iterable[Problem]) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        lines[problem.path].append(problem.message)
    return dict(lines)


def check_words(case: Case, problems: Iterable[Problem]) -> None:
    lines = texts_by_field(problems)
    assert set(lines) == set(case.says), lines
    for field, expected_texts in case.says.items():
        for word in expected_texts:
            assert any(word in line for line in lines[field]), (field, word, lines[field])


@table("case", CASES)
def test_it_is_refused_with_all_that_is_wrong(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SMLAUNCH_ROLE", "SAGEMAKER_ROLE_ARN", "SAGEMAKER_ROLE"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / case.name
    folder.mkdir()
    monkeypatch.chdir(folder)
    write_source(case, folder)
    monkeypatch.setenv(OWN_VARIABLE, str(write_config(case, tmp_path)))
    target, recorder = target_of(case)
    with pytest.raises(JobError) as caught:
        try:
            job = Job.from_mapping(case.job)
        except JobError as error:
            raise add_remaining_problems(error, target) from None  # as the command line does
        launch(job, target)
    assert caught.value.exit_code == EXIT_BAD_JOB
    check_words(case, caught.value.problems)
    assert recorder.writes == []


def test_every_rule_is_broken_by_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    broken_rules = set()
    validating = [rule for rule in all_rules() if rule.phase == "validate"]
    for case in CASES:
        write_source(case, tmp_path)
        monkeypatch.setenv(OWN_VARIABLE, str(write_config(case, tmp_path)))
        stated_job = parse_readable_job(case.job)
        if stated_job is not None:
            target = target_of(case)[0]
            job, team = with_defaults(
                stated_job, read_settings(target, has_account=True), target, is_processing=False
            )
            facts = gather_needed_facts(
                job, target, SourceFacts(".", job.entry.program if job.entry else "", "", 1, 1)
            )
            facts = dataclasses.replace(facts, team=team)
            strategy = choose_strategy(JobContext(job, facts), Diagnostics())
            rule_case = RuleCase(job, facts, strategy, run_id="x", cost=MUCH)
            broken_rules |= {rule.id for rule in validating if list(rule.check(rule_case))}
    assert broken_rules == {rule.id for rule in validating}


def parse_readable_job(mapping: dict[str, Any]) -> Job | None:
    try:
        return Job.from_mapping(mapping)
    except JobError as error:
        partial = parse_without_invalid_fields(mapping, error.problems)
        return None if partial is None else partial.job
