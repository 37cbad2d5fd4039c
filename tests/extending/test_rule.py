"""A rule from one file: the example of docs/extending.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from smlaunch.errors import JobError
from smlaunch.job.model import Job
from tests.planner.fixtures import TORCH, make_plan, region

JOB = {"entry": "train.py"}


def problem_paths(job: dict[str, Any]) -> list[str]:
    try:
        make_plan(Job.from_mapping(job), region(), "digits")
    except JobError as error:
        return [problem.path for problem in error.problems]
    return []


def test_it_applies_when_its_file_is_imported(import_example: Callable[[str], Any]) -> None:
    assert problem_paths(JOB) == []
    import_example("company_tags.py")
    assert problem_paths(JOB) == ["tags"]
    assert problem_paths({**JOB, "tags": {"cost-center": "7"}}) == []


def test_it_applies_when_its_package_is_installed(install_example: Callable[[str, str, str], None]) -> None:
    entry_point = "cost-center = company_tags:reject_jobs_without_cost_center"
    install_example("company_tags.py", "smlaunch.rules", entry_point)
    assert problem_paths(JOB) == ["tags"]
    assert problem_paths({**JOB, "tags": {"cost-center": "7"}}) == []


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("no_such_module:rule", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("company_tags:rule", "it is no smlaunch.planner.rules.rule.Rule"),
    ],
)
def test_one_that_cannot_be_loaded_is_not_skipped(
    install_example: Callable[[str, str, str], None], address: str, reason: str
) -> None:
    install_example("company_tags.py", "smlaunch.rules", f"tags = {address}")
    with pytest.raises(JobError) as caught:
        make_plan(Job.from_mapping(JOB), region(), "digits")
    assert f"the rule 'tags', which another package registers as {address}" in str(caught.value)
    assert reason in str(caught.value) and "repair or uninstall that package" in str(caught.value)


def test_a_rule_for_machines_rejects_them_and_none_that_the_job_names(
    import_example: Callable[[str], Any],
) -> None:
    import_example("company_machines.py")
    large, job = "ml.p5.48xlarge", {**JOB, "workload": {"model_memory": "60GB"}}
    plan = make_plan(Job.from_mapping(job), region(script=TORCH), "digits")
    objections = {option.rule for option in plan.candidates if option.instance_type == large}
    assert objections == {"company.largest-type"}
    stated_job = {**job, "compute": {"instance_type": large}}
    assert make_plan(Job.from_mapping(stated_job), region(script=TORCH), "digits").instance_type == large
