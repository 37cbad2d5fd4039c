"""A rule from one file: the example of docs/extending.md."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.job.model import Job
from smlaunch.planner import rules
from smlaunch.planner.plan_context import StrategyMatch
from smlaunch.planner.rules import built_in_rules, register_rule, rules_of
from smlaunch.planner.rules.rule import Rule
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


def strategy_of(imports: frozenset[str], **job: Any) -> tuple[str, str]:
    """Strategy and the rule that chose it."""
    plan = make_plan(Job.from_mapping({**JOB, **job}), region(script=ScriptFacts(imports=imports)), "digits")
    return plan.strategy, next(reason.rule for reason in plan.reasons)


TRAINER = frozenset({"acme_trainer"})


def test_a_rule_for_strategies_chooses_before_what_takes_every_script(
    import_example: Callable[[str], Any],
) -> None:
    assert strategy_of(TRAINER) == ("custom", "strategy.single-process")
    import_example("company_trainer.py")
    assert strategy_of(TRAINER) == ("ddp", "company.trainer")
    # Scripts that it does not take go on to smlaunch's last rules; evidence of smlaunch's own decides first.
    assert strategy_of(frozenset({"json"})) == ("custom", "strategy.single-process")
    assert strategy_of(TRAINER | {"horovod.torch"}) == ("horovod", "strategy.horovod")
    assert strategy_of(TRAINER, strategy="mpi") == ("mpi", "strategy.given")


def test_a_rule_for_strategies_of_an_installed_package(
    install_example: Callable[[str, str, str], None],
) -> None:
    install_example("company_trainer.py", "smlaunch.rules", "a = company_trainer:choose_ddp_for_trainer")
    assert strategy_of(TRAINER) == ("ddp", "company.trainer")


def chooser(name: str, order: int) -> Rule[Any, StrategyMatch]:
    def choose(_: Any) -> Any:
        yield StrategyMatch("mpi", name)

    return Rule(name, "choose strategy", "", "", "", ("entry",), (), choose, order=order)


def test_a_rule_cannot_take_an_id_of_smlaunch_or_an_unknown_phase() -> None:
    with pytest.raises(ValueError, match=r"there is a rule spot\.checkpoints already"):
        register_rule(chooser("spot.checkpoints", 50))
    unknown: Any = "zzz"
    with pytest.raises(ValueError, match=r"phase is one of choose strategy, .* not 'zzz'"):
        register_rule(replace(chooser("other", 50), phase=unknown))


def test_the_order_decides_and_then_the_sequence_of_registration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules._OTHER_RULES, "_registered", {})
    orders = [rule.order for rule in rules_of("choose strategy")]
    assert orders == sorted(orders)
    library_order = next(rule.order for rule in built_in_rules() if rule.id == "strategy.library")
    for name, order in (("b", 50), ("a", 50), ("same", library_order), ("first", 0)):
        register_rule(chooser(name, order))
    ids = [rule.id for rule in rules_of("choose strategy")]
    assert ids[0] == "first"
    after_library = ids.index("strategy.library") + 1
    assert ids[after_library : after_library + 4] == ["same", "strategy.shards", "b", "a"]
    assert strategy_of(TRAINER, strategy="ddp") == ("mpi", "first")
