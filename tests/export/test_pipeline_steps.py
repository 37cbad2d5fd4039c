"""A pipeline of several jobs: its definition, and all rejections with their paths."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import botocore.session
import pytest

from smlaunch.api.job_kinds import TRAINING
from smlaunch.contract.run_names import MAX_RUN_ID_LENGTH
from smlaunch.errors import JobError
from smlaunch.export import pipeline_step_order, pipeline_steps
from smlaunch.export.pipeline import DEFINITION_FILE, export_steps
from smlaunch.export.pipeline_file import (
    MAX_STEP_NAME_LENGTH,
    PipelineFile,
    is_pipeline_file,
    read_pipeline_file,
)
from smlaunch.export.pipeline_steps import iso_duration
from smlaunch.export.run_template import build_run_template
from smlaunch.facts.discovered_facts import InputFacts
from smlaunch.job.model import Job
from smlaunch.job.yaml_file import dump_job_yaml
from smlaunch.local.pipelines import pipeline_definition as endpoint_reader
from smlaunch.render.plan import Plan
from tests.export.jobs import CAPPED, CHAIN, SCRIPT, SINGLE
from tests.planner import fixtures
from tests.planner.fixtures import make_plan

WORK: Mapping[str, Any] = {
    "entry": "src/work.py",
    "strategy": "processing",
    "compute": {"instance_type": "ml.m5.large"},
}
TRAIN: Mapping[str, Any] = {**SINGLE, "entry": "src/train.py"}
LONG: Mapping[str, Any] = {**CHAIN, "entry": "src/train.py"}
EXECUTION = {"Get": "Execution.PipelineExecutionId"}


def step(name: str, job: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": name, "job": dict(job), **more}


def churn_steps() -> list[dict[str, Any]]:
    return [
        step("prepare", {**WORK, "inputs": {"raw": "s3://mine/raw/"}}, cache="30d"),
        step("train", LONG, inputs={"train": "prepare"}, require=["held_out_accuracy >= 0.97"]),
        step("evaluate", WORK, inputs={"model": "train", "data": "prepare/held/out"}),
    ]


def read(folder: Path, steps: list[dict[str, Any]], **more: Any) -> PipelineFile:
    path = folder / "pipeline.yaml"
    path.write_text(dump_job_yaml({"steps": steps, **more}))
    return read_pipeline_file(path)


def plan_for(job: Job, name: str, pending: Mapping[str, Any]) -> Plan:
    facts = {
        channel: InputFacts(source.placeholder_uri, "s3", is_pending=True)
        for channel, source in pending.items()
    }
    return make_plan(job, fixtures.with_inputs(fixtures.region(script=SCRIPT), facts), f"{name}-staged")


def export_text(folder: Path, steps: list[dict[str, Any]]) -> str:
    return export(read(folder, steps))


def export_file(path: Path) -> str:
    return export(read_pipeline_file(path))


def export(file: PipelineFile) -> str:
    """Export as for a region, where outputs of earlier steps do not exist yet."""
    plans = [(step, plan_for(step.job, step.name, step.inputs)) for step in file.steps]
    return export_steps(plans, "churn", other_problems=file.problems)[DEFINITION_FILE]


def export_problems(folder: Path, steps: list[dict[str, Any]]) -> dict[str, str]:
    with pytest.raises(JobError) as raised:
        export_text(folder, steps)
    return {problem.path: problem.message for problem in raised.value.problems}


def walk_steps(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for one in steps:
        yield one
        for branch in ("IfSteps", "ElseSteps"):
            yield from walk_steps(one["Arguments"].get(branch, []))


def exported_steps(folder: Path, steps: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the exported steps by name; the local endpoint must accept them."""
    text = export_text(folder, steps)
    endpoint_reader.parse_definition(text)
    steps_list = list(walk_steps(json.loads(text)["Steps"]))
    assert len({each["Name"] for each in steps_list}) == len(steps_list)
    return {each["Name"]: each for each in steps_list}


def input_uri(step: Mapping[str, Any], channel: str) -> Any:
    arguments = step["Arguments"]
    for one in arguments.get("InputDataConfig", ()):
        if one["ChannelName"] == channel:
            return one["DataSource"]["S3DataSource"]["S3Uri"]
    return next(
        one["S3Input"]["S3Uri"] for one in arguments["ProcessingInputs"] if one["InputName"] == channel
    )


# ---- definitions ----------------------------------------------------------------------------------------


def test_the_same_file_gives_the_same_bytes(tmp_path: Path) -> None:
    assert export_text(tmp_path, churn_steps()) == export_text(tmp_path, churn_steps())


def test_a_chain_is_followed_in_each_branch_in_which_it_has_finished(tmp_path: Path) -> None:
    steps_by_name = exported_steps(tmp_path, churn_steps())
    assert sorted(steps_by_name) == sorted(
        [
            "prepare",
            *(f"train-Segment-{number}" for number in (1, 2, 3)),
            *(f"train-Finished-{number}" for number in (1, 2, 3)),
            *(f"train-Unmet-1-At-{number}" for number in (1, 2, 3)),
            *(f"train-Fail-1-At-{number}" for number in (1, 2, 3)),
            *(f"train-Met-At-{number}" for number in (1, 2, 3)),
            *(f"evaluate-At-{number}" for number in (1, 2, 3)),
            "train-Limit",
        ]
    )
    for number in (1, 2, 3):
        model = {"Get": f"Steps.train-Segment-{number}.ModelArtifacts.S3ModelArtifacts"}
        assert input_uri(steps_by_name[f"evaluate-At-{number}"], "model") == model
        last, met = steps_by_name[f"train-Met-At-{number}"]["Arguments"]["Conditions"]
        assert last == steps_by_name[f"train-Finished-{number}"]["Arguments"]["Conditions"][0]
        name = "smlaunch:held_out_accuracy"
        metric = {"Get": f"Steps.train-Segment-{number}.FinalMetricDataList['{name}'].Value"}
        assert met == {"Type": "GreaterThanOrEqualTo", "LeftValue": metric, "RightValue": 0.97}
        unmet = {**met, "Type": "LessThan"}
        assert steps_by_name[f"train-Unmet-1-At-{number}"]["Arguments"]["Conditions"] == [last, unmet]
    uri = {"Get": "Steps.prepare.ProcessingOutputConfig.Outputs['output'].S3Output.S3Uri"}
    assert input_uri(steps_by_name["train-Segment-1"], "train") == uri
    assert input_uri(steps_by_name["evaluate-At-2"], "data") == {
        "Std:Join": {"On": "", "Values": [uri, "held/out/"]}
    }
    metrics = steps_by_name["train-Segment-2"]["Arguments"]["AlgorithmSpecification"]["MetricDefinitions"]
    assert [metric["Name"] for metric in metrics] == [
        pipeline_steps.FINISHED_METRIC,
        "smlaunch:held_out_accuracy",
    ]


def test_every_step_is_a_run_of_its_own(tmp_path: Path) -> None:
    steps_by_name = exported_steps(tmp_path, churn_steps())
    runs = {
        name: one["Arguments"]["Environment"]["SMLAUNCH_RUN"]
        for name, one in steps_by_name.items()
        if one["Type"] in ("Training", "Processing")
    }
    assert runs["train-Segment-3"] == {"Std:Join": {"On": "", "Values": [EXECUTION, "-train"]}}
    assert runs["evaluate-At-1"] == {"Std:Join": {"On": "", "Values": [EXECUTION, "-evaluate"]}}
    assert 12 + 1 + MAX_STEP_NAME_LENGTH == MAX_RUN_ID_LENGTH
    staged = {
        name: input_uri(steps_by_name[name], "smlaunch")
        for name in ("prepare", "train-Segment-1", "evaluate-At-1")
    }
    assert len(set(staged.values())) == 3


def test_a_cached_step_holds_nothing_of_the_execution_and_is_called_after_its_content(tmp_path: Path) -> None:
    steps = [
        *churn_steps()[:1],
        step("split", WORK, inputs={"data": "prepare"}, cache="90m"),
        step("other", {**WORK, "args": ["--x"]}, cache="12h", after=["prepare"]),
    ]
    steps_by_name = exported_steps(tmp_path, steps)
    for name in ("prepare", "split", "other"):
        assert "Execution." not in json.dumps(steps_by_name[name])
    assert steps_by_name["prepare"]["CacheConfig"] == {"Enabled": True, "ExpireAfter": "P30D"}
    assert steps_by_name["split"]["CacheConfig"]["ExpireAfter"] == "PT90M"
    assert steps_by_name["other"]["DependsOn"] == ["prepare"]
    run = steps_by_name["split"]["Arguments"]["Environment"]["SMLAUNCH_RUN"]
    (output,) = steps_by_name["split"]["Arguments"]["ProcessingOutputConfig"]["Outputs"]
    assert f"/smlaunch/{run}/output/" in output["S3Output"]["S3Uri"]
    steps[0]["job"]["environment"] = {"FACTOR": "3"}
    changed = exported_steps(tmp_path, steps)
    runs = {
        name: (
            steps_by_name[name]["Arguments"]["Environment"]["SMLAUNCH_RUN"],
            changed[name]["Arguments"]["Environment"]["SMLAUNCH_RUN"],
        )
        for name in steps_by_name
    }
    assert runs["prepare"][0] != runs["prepare"][1]
    assert runs["split"][0] != runs["split"][1], "what it reads is another one"
    assert runs["other"][0] == runs["other"][1]


def test_what_a_processing_job_found_can_be_required(tmp_path: Path) -> None:
    job = step("look", WORK, require=["report.json:metrics.accuracy >= 0.9", "report.json:rows[0] == 3"])
    steps_by_name = exported_steps(tmp_path, [job, step("use", WORK, inputs={"data": "look"})])
    assert steps_by_name["look"]["PropertyFiles"] == [
        {"PropertyFileName": "file-1", "OutputName": "output", "FilePath": "report.json"}
    ]
    met = steps_by_name["look-Met"]["Arguments"]
    accuracy, rows = met["Conditions"]
    assert accuracy["LeftValue"]["Std:JsonGet"] == {
        "PropertyFile": {"Get": "Steps.look.PropertyFiles.file-1"},
        "Path": "metrics.accuracy",
    }
    assert rows["Type"] == "Equals" and [one["Name"] for one in met["IfSteps"]] == ["use"]
    (not_three,) = steps_by_name["look-Unmet-2"]["Arguments"]["Conditions"]
    assert [one["Type"] for one in not_three["Conditions"]] == ["LessThan", "GreaterThan"]
    message = steps_by_name["look-Fail-2"]["Arguments"]["ErrorMessage"]
    assert message == "step look: report.json:rows[0] == 3 is required, and does not hold"


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        (">=", "GreaterThanOrEqualTo"),
        ("<=", "LessThanOrEqualTo"),
        (">", "GreaterThan"),
        ("<", "LessThan"),
        ("==", "Equals"),
    ],
)
def test_every_operator_is_the_services(tmp_path: Path, operator: str, kind: str) -> None:
    steps = [step("train", TRAIN, require=[f"loss{operator}-1e-3"]), step("use", WORK, after="train")]
    (condition,) = exported_steps(tmp_path, steps)["train-Met"]["Arguments"]["Conditions"]
    assert (condition["Type"], condition["RightValue"]) == (kind, -0.001)


def test_steps_that_need_nothing_of_each_other_stand_side_by_side(tmp_path: Path) -> None:
    text = export_text(tmp_path, [step("one", WORK), step("train", LONG), step("two", WORK, after="one")])
    names = [one["Name"] for one in json.loads(text)["Steps"]]
    assert names == ["one", "train-Segment-1", *(f"train-Finished-{number}" for number in (1, 2, 3)), "two"]


def test_what_has_no_room_is_written_without_spaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    readable = export_text(tmp_path, churn_steps())
    monkeypatch.setattr("smlaunch.export.pipeline.MAX_DEFINITION_CHARACTERS", len(readable) - 1)
    short = export_text(tmp_path, churn_steps())
    assert json.loads(short) == json.loads(readable) and len(short) < len(readable)
    monkeypatch.setattr("smlaunch.export.pipeline.MAX_DEFINITION_CHARACTERS", len(short) - 1)
    assert "characters" in export_problems(tmp_path, churn_steps())["steps"]


def test_a_metric_is_found_in_what_a_script_prints(tmp_path: Path) -> None:
    steps_by_name = exported_steps(tmp_path, [step("train", TRAIN, require=["acc.top-1 > 0"])])
    (metric,) = steps_by_name["train"]["Arguments"]["AlgorithmSpecification"]["MetricDefinitions"]
    assert metric["Name"] == "acc.top-1"
    for line, value in {
        "smlaunch: metric acc.top-1=0.5": "0.5",
        "[3] smlaunch: metric loss=2 acc.top-1=1e-3 x=1": "1e-3",
        "smlaunch: metric my_acc.top-1=0.5": None,
        "smlaunch: metric accxtop-1=0.5": None,
    }.items():
        match = re.search(metric["Regex"], line)
        assert (match and match[1]) == value, line


def test_a_built_in_algorithm_has_metrics_of_its_own(tmp_path: Path) -> None:
    job = {
        "algorithm": "xgboost",
        "compute": {"instance_type": "ml.m5.xlarge"},
        "hyperparameters": {"num_round": 10, "objective": "reg:squarederror"},
        "inputs": {"train": {"uri": "s3://mine/train/", "content_type": "text/csv"}},
    }
    steps_by_name = exported_steps(tmp_path, [step("train", job, require=["validation:rmse < 1"])])
    assert "MetricDefinitions" not in steps_by_name["train"]["Arguments"]["AlgorithmSpecification"]
    (condition,) = steps_by_name["train-Unmet-1"]["Arguments"]["Conditions"]
    assert condition["LeftValue"]["Get"] == "Steps.train.FinalMetricDataList['validation:rmse'].Value"


def test_durations() -> None:
    assert [iso_duration(seconds) for seconds in (60, 5400, 7200, 86400, 30 * 86400)] == [
        *("PT1M", "PT90M", "PT2H", "P1D", "P30D")
    ]
    for text in ("PT1M", "PT90M", "PT2H", "P1D", "P30D"):
        assert endpoint_reader.parse_duration(text)


# ---- rejections -----------------------------------------------------------------------------------------


def test_everything_that_is_wrong_with_a_file_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "broken.yaml").write_text("entry: [")
    steps: list[Any] = [
        {"name": "Big", "job": dict(WORK), "speed": 1},
        step("a", {**TRAIN, "compute": {"hosts": "none"}}, inputs={"x": "b", "y": "lost"}),
        {"name": "b", "job": "broken.yaml", "inputs": ["a"], "after": ["a", 1]},
        step(
            "c",
            {**WORK, "inputs": {"x": "s3://a/b/"}, "name": "mine"},
            inputs={"x": "a", "y": {"split": "key"}},
        ),
        step("c", WORK, cache="90s", require=["x ~ 1", "x >= nan", "r.json:x => 1"]),
        step(
            "d",
            WORK,
            inputs={"x": {"from": "a", "split": "bytes"}, "y": "a/../../b", "z": "s3://mine/z/"},
            after=["a", "e"],
        ),
        step("e", WORK, after=["d"], cache=5),
        "f",
    ]
    file = read(tmp_path, steps, pipeline="-", more=1)
    assert {problem.path for problem in file.problems} == {
        *("pipeline", "more", "steps"),
        *("steps[0].name", "steps[0].speed"),
        *("steps[1].job.compute.hosts", "steps[1].inputs.y"),
        *("steps[2].job", "steps[2].inputs", "steps[2].after"),
        *("steps[3].inputs.x", "steps[3].inputs.y", "steps[3].job.name"),
        *("steps[4].name", "steps[4].cache"),
        *(f"steps[4].require[{index}]" for index in range(3)),
        *("steps[5].inputs.x.split", "steps[5].inputs.y", "steps[5].inputs.z"),
        *("steps[6].cache", "steps[7]"),
    }
    messages = {problem.path: problem.message for problem in file.problems}
    assert messages["steps"] == "d needs e needs d: no step can need itself"
    assert "broken.yaml:1" in messages["steps[2].job"]


CACHE_ONE_DAY = {"cache": "1d"}


@pytest.mark.parametrize(
    ("steps", "path", "words"),
    [
        ([step("train", LONG, **CACHE_ONE_DAY)], "steps[0].cache", "chain's checkpoints"),
        (
            [step("train", {**TRAIN, "checkpoints": {"uri": "s3://mine/ckpt/"}}, **CACHE_ONE_DAY)],
            "steps[0].cache",
            "its checkpoints",
        ),
        (
            [step("a", WORK), step("b", WORK, inputs={"x": "a"}, **CACHE_ONE_DAY)],
            "steps[1].cache",
            "'a' is not cached",
        ),
        ([step("a", WORK, require=["accuracy >= 1"])], "steps[0].require[0]", "evaluation.json:"),
        ([step("a", WORK, require=["../x.json: >= 1"])], "steps[0].require[0]", "evaluation.json:"),
        ([step("a", TRAIN, require=["my metric >= 1"])], "steps[0].require[0]", "NAME=VALUE"),
        (
            [step("a", TRAIN), step("b", WORK, inputs={"x": "a/part"})],
            "steps[1].inputs.x",
            "without folders",
        ),
        (
            [step("a", TRAIN), step("b", TRAIN, inputs={"x": {"from": "a", "mode": "FastFile"}})],
            "steps[1].inputs.x",
            "mode File",
        ),
        ([step("a", {**CAPPED, "entry": "src/a.py"})], "steps[0].job.limits.max_cost", "does not count"),
        (
            [
                step(name, LONG, after=[before] if before else [])
                for before, name in zip(["", *"abcde"], "abcdef", strict=True)
            ],
            "steps",
            "1,000 is the most",
        ),
    ],
)
def test_what_a_pipeline_cannot_do_is_refused_by_its_place(
    tmp_path: Path, steps: list[dict[str, Any]], path: str, words: str
) -> None:
    problems = export_problems(tmp_path, steps)
    assert list(problems) == [path] and words in problems[path]


def test_each_requirement_is_told_by_its_own_place(tmp_path: Path) -> None:
    """``=>`` must not be read as ``>`` after a name that ends in ``=``."""
    problems = export_problems(
        tmp_path, [step("a", WORK, require=["r.json:x => 1", "r.json:x >= 1", "x >= 1"])]
    )
    assert list(problems) == ["steps[0].require[0]", "steps[0].require[2]"]


def test_what_stands_behind_several_requirements_waits_for_all_of_them(tmp_path: Path) -> None:
    steps = [
        step("data", WORK),
        step("a", TRAIN, require=["x > 0"], inputs={"d": "data"}),
        step("b", TRAIN, require=["y > 0"], after=["data"]),
        step("c", WORK, inputs={"one": "a", "two": "b", "three": "data"}),
        step("d", WORK, after=["c"]),
    ]
    steps_by_name = exported_steps(tmp_path, steps)
    together = steps_by_name["c-Ready"]["Arguments"]
    assert [one["Name"] for one in together["IfSteps"]] == ["c", "d"]
    values = [one["LeftValue"]["Get"] for one in together["Conditions"]]
    assert values == [f"Steps.{one}.FinalMetricDataList['{two}'].Value" for one, two in ("ax", "by")]
    assert steps_by_name["b"]["DependsOn"] == ["data"] and steps_by_name["d"]["DependsOn"] == ["c"]
    assert "DependsOn" not in steps_by_name["c"], "it stands behind the requirements"


def test_no_condition_stands_in_a_branch_of_another(tmp_path: Path) -> None:
    """Source: developer guide, condition step: nested condition steps are not supported."""
    steps = [
        *churn_steps(),
        step("again", LONG, after=["evaluate"], require=["x > 0"]),
        step("last", WORK, after="again"),
    ]
    for one in json.loads(export_text(tmp_path, steps))["Steps"]:
        branches = one["Arguments"].get("IfSteps", []) + one["Arguments"].get("ElseSteps", [])
        assert all(inner["Type"] != "Condition" for inner in branches)
        assert one["Type"] != "Condition" or "DependsOn" not in one


def test_a_names_room_is_that_of_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a" * MAX_STEP_NAME_LENGTH
    assert len(max(exported_steps(tmp_path, [step(name, LONG, require=["x > 0"])]), key=len)) <= 64
    monkeypatch.setattr("smlaunch.export.pipeline.MAX_NAME_LENGTH", 30)
    assert "30 characters" in export_problems(tmp_path, [step(name, LONG)])["steps[0].name"]


def test_the_bounds_are_the_services_where_they_are_known() -> None:
    model = botocore.session.get_session().get_service_model("sagemaker")
    members = model.operation_model("CreatePipeline").input_shape.members
    assert members["PipelineDefinition"].metadata["max"] == pipeline_step_order.MAX_DEFINITION_CHARACTERS
    execution = model.shape_for("PipelineExecutionStep").members["StepName"]
    assert execution.metadata["max"] == pipeline_step_order.MAX_NAME_LENGTH


def test_a_plan_says_that_nobody_has_looked_at_what_is_not_there() -> None:
    facts = {"train": InputFacts("s3://pipeline-step/a/", "s3", is_pending=True)}
    job = Job.from_mapping({**TRAIN, "inputs": {"train": "s3://pipeline-step/a/"}})
    plan = make_plan(job, fixtures.with_inputs(fixtures.region(script=SCRIPT), facts), "digits")
    assert any("inputs.train: an earlier step will write it" in warning for warning in plan.warnings)
    assert build_run_template(plan).kind is TRAINING


def test_the_page_has_the_picture_of_its_own_file() -> None:
    from tests.export.pipeline_page import PAGE, update_page

    page = PAGE.read_text()
    assert update_page(page) == page, "python -m tests.export.pipeline_page writes it anew"


def test_a_jobs_file_is_none_of_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(dump_job_yaml(dict(TRAIN)))
    (tmp_path / "broken.yaml").write_text("entry: [")
    assert not is_pipeline_file(tmp_path / "job.yaml")
    assert not is_pipeline_file(tmp_path / "broken.yaml") and not is_pipeline_file(tmp_path / "none.yaml")
    read(tmp_path, churn_steps())
    assert is_pipeline_file(tmp_path / "pipeline.yaml")
    (tmp_path / "empty.yaml").write_text("pipeline: churn\n")
    assert is_pipeline_file(tmp_path / "empty.yaml")
    (problem,) = read_pipeline_file(tmp_path / "empty.yaml").problems
    assert problem.path == "steps" and "at least one step" in problem.message
