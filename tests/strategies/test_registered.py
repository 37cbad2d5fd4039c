"""Strategies that other packages register: usable ones work, and the others affect nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from smlaunch.catalog import registry
from smlaunch.catalog.strategies import known_strategies
from smlaunch.cli.main import run_command
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import FeatureLocation, InputFacts, ScriptFacts
from smlaunch.strategies import load_strategy
from tests.planner.fixtures import PLAIN, plan, region, with_inputs

RING = """\
from smlaunch.contract.launch_spec import ServiceSpec
from smlaunch.strategies.base import Strategy


class Ring(Strategy):
    name = "ring"
    summary = "starts a ring"
    rendezvous = True
    is_multi_host = True
    frameworks = ("PyTorch",)
    trainium_support = "no"
    script_joins_ranks = True

    def services(self, setting):
        return (ServiceSpec("meeting", ("serve",)),)


class Lake(Strategy):
    name = "lake"
    summary = "makes a cluster for tables"
    rendezvous = False
    one_process_per_host = True
    libraries = ("lake", "pool")
    is_for_tables = True
    sized_by_data = True


class Shards(Strategy):
    name = "shards"
    summary = "starts a process on each host"
    rendezvous = False
    one_process_per_host = True
    joins_hosts = False
    works_on_shards = True
    loads_all_data = True
"""


@pytest.fixture
def registered_strategies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs a package with usable and unusable strategies."""
    about = tmp_path / "strategies_of_others-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: strategies-of-others\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[smlaunch.strategies]\nring = ring_of_others:Ring\nlake = ring_of_others:Lake\n"
        "shards = ring_of_others:Shards\nbroken = broken_of_others:Broken\n"
        "nameless = json:Nope\nother = json:JSONDecoder\n"
    )
    (tmp_path / "ring_of_others.py").write_text(RING)
    (tmp_path / "broken_of_others.py").write_text("import no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(registry, "_installed", registry._installed.__wrapped__)
    monkeypatch.setattr(registry, "_is_any_installed", registry._is_any_installed.__wrapped__)


def test_one_that_can_be_used(registered_strategies: None) -> None:
    assert "ring" in known_strategies()
    assert load_strategy("ring").summary == "starts a ring"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("broken", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("nameless", "AttributeError: module 'json' has no attribute 'Nope'"),
        ("other", "it is no smlaunch.strategies.base.Strategy"),
    ],
)
def test_one_that_cannot_is_told_with_its_package(
    registered_strategies: None, name: str, reason: str
) -> None:
    with pytest.raises(JobError) as caught:
        load_strategy(name)
    (problem,) = caught.value.problems
    assert problem.path == "strategy"
    assert problem.message.startswith(f"{name!r}, which another package registers as ")
    assert reason in problem.message


def test_the_list_shows_the_others(registered_strategies: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["init", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["strategies"]
    assert rows["ring"] == "starts a ring" and rows["ddp"].startswith("starts every rank")
    assert "cannot be loaded" in rows["broken"]


def test_machines_are_compared_for_it_as_for_ours(registered_strategies: None) -> None:
    """Analysis of the script finds one accelerator; the strategy declares more."""
    script = ScriptFacts(imports=frozenset({"torch"}), features={"backward": FeatureLocation(3)})
    job = {"strategy": "ring", "workload": {"time_on_one": "4000h", "wanted_time": "48h"}}
    assert plan(job, region(script=script)).hosts > 1


def test_a_script_that_imports_none_of_its_libraries_is_told_as_for_ours(registered_strategies: None) -> None:
    message = (
        "train.py does not import lake: unless one of its modules does, lake starts processes that it does "
        "not use."
    )
    assert message in plan({"strategy": "lake"}, region(script=PLAIN)).warnings
    uses = ScriptFacts(imports=frozenset({"pool.tables"}))
    assert message not in plan({"strategy": "lake"}, region(script=uses)).warnings


def test_tables_choose_its_machines_as_for_ours(registered_strategies: None) -> None:
    tables = with_inputs(region(), {"train": InputFacts("s3://b/x", "s3", objects=9, bytes=300 * 10**9)})
    job = {"inputs": {"train": "s3://b/x"}}
    built_in_plan, registered_plan = (plan({"strategy": name, **job}, tables) for name in ("spark", "lake"))
    assert registered_plan.hosts == 3
    assert (registered_plan.instance_type, registered_plan.hosts) == (
        built_in_plan.instance_type,
        built_in_plan.hosts,
    )
    assert any("Lake distributes the work" in reason.explanation for reason in registered_plan.reasons)


def test_parts_choose_its_hosts_as_for_ours(registered_strategies: None) -> None:
    """The strategy declares that it has its data in memory, though no import of the script shows that."""
    rows = InputFacts("s3://b/x", "s3", objects=900, bytes=900 * 10**9)
    world = with_inputs(region(script=PLAIN), {"train": rows})
    job = {"inputs": {"train": {"uri": "s3://b/x", "split": "key"}}, "workload": {"wanted_time": "2h"}}
    assert plan({"strategy": "shards", **job}, world).hosts > 1


def test_what_it_does_not_go_with_is_refused_as_for_ours(registered_strategies: None) -> None:
    image = "763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:2.19.0-gpu-py312"
    with pytest.raises(JobError, match="image: it is TensorFlow's, and ring distributes PyTorch"):
        plan({"strategy": "ring", "image": image})
    with pytest.raises(JobError, match=r"strategy: ring does not work on ml\.trn1\.32xlarge"):
        plan({"strategy": "ring", "compute": {"instance_type": "ml.trn1.32xlarge"}})


def test_what_its_script_lacks_is_told_as_for_ours(registered_strategies: None) -> None:
    script = ScriptFacts(
        imports=frozenset({"torch"}),
        features={"backward": FeatureLocation(3), "process-group": FeatureLocation(1)},
    )
    job = {"strategy": "ring", "compute": {"hosts": 2}}
    assert any("train.py lacks" in warning for warning in plan(job, region(script=script)).warnings)


def test_what_it_starts_beside_the_ranks_is_not_dropped_without_a_word(registered_strategies: None) -> None:
    assert plan({"strategy": "ring"}).planned_jobs[0].launch_spec is not None
    with pytest.raises(JobError, match=r"launcher: ring starts more than ranks, which torchrun does not"):
        plan({"strategy": "ring", "launcher": "torchrun"})


def test_a_plan_tells_it_without_a_traceback(
    registered_strategies: None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SMLAUNCH_HOME", str(tmp_path / ".smlaunch"))
    (tmp_path / "train.py").write_text("print()\n")
    assert run_command(["plan", str(tmp_path / "train.py"), "--strategy", "broken", "--local"]) == 2
    assert capsys.readouterr().err.startswith("error: strategy: 'broken', which another package registers")
