"""``strategy: deepspeed``: how ranks start, and settings that DeepSpeed would refuse on the hosts only."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from smlaunch.catalog import instances
from smlaunch.contract.launch_spec import Ref
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import DiscoveredFacts, ScriptFacts, SourceFacts
from smlaunch.job.model import Job
from smlaunch.strategies import load_strategy
from smlaunch.strategies.base import LaunchContext
from smlaunch.strategies.deepspeed import find_config_problems
from tests.planner.fixtures import plan, region
from tests.tables import table

DEEPSPEED = ScriptFacts(
    imports=frozenset({"torch", "torch.distributed", "deepspeed", "deepspeed.initialize"})
)


def facts_with_files(**files: str) -> DiscoveredFacts:
    source = SourceFacts(
        "src", "train.py", "ab" * 32, 3, 100, json_files={f"{k}.json": v for k, v in files.items()}
    )
    return region(source=source, script=DEEPSPEED)


def test_it_is_chosen_before_ddp_and_starts_ranks_the_same_way() -> None:
    job_plan = plan(
        {"options": {"config": "zero.json"}, "args": ["--x"]},
        facts_with_files(zero='{"train_batch_size": 8}'),
    )
    assert job_plan.strategy == "deepspeed"
    assert "strategy.deepspeed" in [reason.rule for reason in job_plan.reasons]
    spec = job_plan.planned_jobs[0].launch_spec
    assert spec is not None
    assert (spec.ranks.rendezvous, spec.ranks.launcher, spec.services) == (True, "runtime", ())
    assert spec.ranks.argv == (
        *(Ref("python"), Ref("source", suffix="/train.py"), "--x"),
        *("--deepspeed_config", Ref("source", suffix="/zero.json"), Ref("hyperparameters")),
    )
    # The default type has no accelerator.
    assert ("DS_ACCELERATOR", "cpu") in spec.ranks.env
    assert any("not known to contain deepspeed" in warning for warning in job_plan.warnings)


def test_with_gpus_deepspeed_finds_them_itself() -> None:
    strategy = load_strategy("deepspeed")
    gpu = LaunchContext(
        "train.py", instance_type="ml.g5.xlarge", instance_spec=instances.find_instance_type("ml.g5.xlarge")
    )
    assert strategy.variables(gpu) == ()
    assert strategy.variables(LaunchContext("train.py", target="local")) == ()


@table(
    ("config", "message"),
    [
        ({"train_batch_size": 64}, None),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, None),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, None),
        ({"train_micro_batch_size_per_gpu": 4}, None),
        ({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 3}, None),
        ({"train_batch_size": 64, "zero_optimization": {"stage": 3}}, None),
        ({"train_batch_size": 66, "tensor_parallel": {"autotp_size": 2}}, None),
        ({"train_batch_size": 66}, "train_batch_size 66 is not train_micro_batch_size_per_gpu 16 x "),
        (
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": 4,
                "gradient_accumulation_steps": 2,
            },
            "4 x gradient_accumulation_steps 2 x 4 ranks; change one",
        ),
        ({"gradient_accumulation_steps": 2}, "neither train_batch_size nor train_micro_batch_size_per_gpu"),
        ({"train_batch_size": 0}, "train_batch_size is a whole number from 1, not 0"),
        ({"train_batch_size": 3}, "train_batch_size 3 is not"),
        ({"train_batch_size": 64, "zero_optimization": {"stage": 4}}, "stage is 0, 1, 2 or 3, not 4"),
        ([], "not a JSON object"),
    ],
)
def test_a_configuration_for_four_ranks(config: Any, message: str | None) -> None:
    messages = list(find_config_problems(json.dumps(config), 4))
    if message is None:
        assert messages == []
    else:
        assert message in " ".join(messages)


def test_what_is_no_json_is_told_with_its_place() -> None:
    (message,) = find_config_problems('{"train_batch_size": 64,}', 4)
    assert message.startswith("it is not JSON (") and "line 1" in message


def test_an_unknown_number_of_ranks_is_not_reckoned_with() -> None:
    assert list(find_config_problems('{"train_batch_size": 3}', None)) == []


def test_ranks_that_share_a_model_are_fewer_for_the_batch() -> None:
    files = {"zero.json": '{"train_batch_size": 5}'}
    settings = {
        "options": {"config": "zero.json"},
        "json_files": files,
        "host_count": 2,
        "processes_per_host": 2,
    }
    imports = frozenset({"deepspeed", "deepspeed.pipe.PipelineModule"})
    assert load_strategy("deepspeed").find_problems(LaunchContext("train.py", **settings)) != []  # type: ignore[arg-type]
    assert (
        load_strategy("deepspeed").find_problems(LaunchContext("train.py", imports=imports, **settings)) == []
    )  # type: ignore[arg-type]


@table(
    ("job", "path"),
    [
        ({"options": {"config": "bad.json"}}, "options.config"),
        ({"options": {"config": "missing.json"}}, "options.config"),
        ({"args": ["--deepspeed", "--deepspeed_config", "bad.json"]}, "args[1]"),
        ({"args": ["--deepspeed_config=bad.json"]}, "args[0]"),
        ({"hyperparameters": {"deepspeed_config": "bad.json"}}, "hyperparameters.deepspeed_config"),
    ],
)
def test_the_file_is_found_where_the_job_names_it(job: dict[str, Any], path: str) -> None:
    with pytest.raises(JobError) as caught:
        plan({"compute": {"hosts": 2}, **job}, facts_with_files(bad='{"train_batch_size": 5}'))
    assert path in [problem.path for problem in caught.value.problems]


def test_the_configuration_is_read_from_the_source(tmp_path: Path) -> None:
    from smlaunch.discovery.gather_facts import _read_named_json_files

    (tmp_path / "ds").mkdir()
    (tmp_path / "ds" / "zero.json").write_text("{}")
    (tmp_path.parent / "outside.json").write_text("{}")
    job = Job(
        entry=str(tmp_path / "train.py"),
        args=("--deepspeed_config=ds/zero.json", "../outside.json", "missing.json"),
    )
    assert _read_named_json_files(job, tmp_path) == {"ds/zero.json": "{}"}
