"""Every job of bad_jobs.yaml is refused, with all of its problems, before anything is changed anywhere."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from smlaunch.errors import EXIT_BAD_JOB, JobError, Problem
from smlaunch.job import Job
from smlaunch.job_rest import rest_of
from smlaunch.planning.choose import choose_strategy
from smlaunch.planning.notes import Notes
from smlaunch.planning.refusals import RULES
from smlaunch.planning.refusals import Case as RuleCase
from smlaunch.planning.surroundings import SourceFacts
from smlaunch.runs.api import launch, with_the_rest
from smlaunch.strategies import load
from smlaunch.survey import survey
from tests.planning.bad_jobs import Case, cases, target_of, write_source

CASES = cases()


def test_there_are_sixty_and_more() -> None:
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
    assert sum(len(case.says) >= 4 for case in CASES) >= 6


def told(problems: Iterable[Problem]) -> dict[str, list[str]]:
    lines: dict[str, list[str]] = defaultdict(list)
    for problem in problems:
        lines[problem.path].append(problem.message)
    return dict(lines)


def check_words(case: Case, problems: Iterable[Problem]) -> None:
    lines = told(problems)
    assert set(lines) == set(case.says), lines
    for field, words in case.says.items():
        for word in words:
            assert any(word in line for line in lines[field]), (field, word, lines[field])


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_it_is_refused_with_all_that_is_wrong(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SMLAUNCH_ROLE", "SAGEMAKER_ROLE_ARN", "SAGEMAKER_ROLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    write_source(case, tmp_path)
    target, recorder = target_of(case)
    with pytest.raises(JobError) as caught:
        try:
            job = Job.from_mapping(case.job)
        except JobError as error:
            raise with_the_rest(error, target) from None  # as the command line does
        launch(job, target)
    assert caught.value.exit_code == EXIT_BAD_JOB
    check_words(case, caught.value.problems)
    assert recorder.writes == []


def test_every_rule_is_broken_by_one_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    broken = set()
    for case in CASES:
        write_source(case, tmp_path)
        job = readable(case.job)
        if job is not None:
            looked = survey(job, target_of(case)[0], SourceFacts(".", job.entry or "", "", 1, 1))
            seen = RuleCase(job, looked, load(choose_strategy(job, looked, Notes())))
            broken |= {rule.name for rule in RULES if list(rule.find(seen))}
    assert broken == {rule.name for rule in RULES}


def readable(mapping: dict[str, Any]) -> Job | None:
    try:
        return Job.from_mapping(mapping)
    except JobError as error:
        rest = rest_of(mapping, error.problems)
        return None if rest is None else rest.job
