"""The exported DAG file: its bytes, rejected jobs, and workarounds for the provider's defects."""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from smlaunch.errors import JobError
from smlaunch.export.airflow import CHECK_INTERVAL_SECONDS, WAIT_SLACK_SECONDS, export_airflow
from tests.export.jobs import CAPPED, CHAIN, DIFFERENT, DIRECT, PROCESSING, SINGLE, SPOT, plan_of

GOLDEN = Path(__file__).with_name("airflow_chain.py.txt")


def text_of(job: Any, name: str = "digits") -> str:
    (text,) = export_airflow(plan_of(job), name).values()
    return text


def dag_functions(job: Any, **names: object) -> dict[str, Any]:
    """Return the namespace of the DAG file's plain functions, without the parts that need Airflow."""
    tree = ast.parse(text_of(job))
    nodes = [
        node
        for node in tree.body
        if isinstance(node, ast.Assign)
        or (isinstance(node, ast.FunctionDef) and not node.decorator_list and node.name != "run_of")
    ]
    operators = {"SageMakerTrainingOperator": dict, "SageMakerProcessingOperator": dict}
    space: dict[str, Any] = {"timedelta": dict, "find_spec": find_spec, **operators, **names}
    body = ast.Module([ast.parse("from __future__ import annotations").body[0], *nodes], [])
    exec(compile(body, "digits.py", "exec"), space)
    return space


def test_the_file_of_a_chain() -> None:
    """Delete the golden file and run this test twice to write it again."""
    text = text_of(CHAIN)
    if not GOLDEN.exists():
        GOLDEN.write_text(text)
        pytest.fail(f"{GOLDEN} was not there and is written now: read it")
    assert text == GOLDEN.read_text() == text_of(CHAIN)


@pytest.mark.parametrize("job", [CHAIN, SINGLE, DIRECT, PROCESSING])
def test_it_is_python_of_readable_width(job: Any) -> None:
    text = text_of(job)
    compile(text, "digits.py", "exec")
    assert not [
        line for line in text.splitlines() if len(line) > 120 and "://" not in line and ".ecr." not in line
    ]
    assert "<<" not in text


def test_the_waiter_is_patient_for_as_long_as_a_job_may_take() -> None:
    space = dag_functions(CHAIN)
    operator = space["train"](1, space["config_1"](1, 86400, 86100))
    assert operator["max_attempts"] * operator["check_interval"] >= 86400 + WAIT_SLACK_SECONDS
    assert operator["check_interval"] == CHECK_INTERVAL_SECONDS
    assert operator["action_if_job_exists"] == "fail"
    assert operator["print_log"] is True


def test_what_has_no_one_instance_type_is_not_asked_for_its_count() -> None:
    job = {"compute": {"instance_preferences": ["ml.g5.xlarge", "ml.g5.2xlarge"]}}
    space = dag_functions(job)
    config = space["config_1"](1, 3600, None)
    assert "InstanceType" not in config["ResourceConfig"]
    assert space["train"](1, config)["print_log"] is False


def test_a_processing_job_has_its_own_operator() -> None:
    text = text_of(PROCESSING)
    assert "SageMakerProcessingOperator" in text and "Training" not in text
    space = dag_functions(PROCESSING)
    config = space["config_1"](1, 3600, None)
    assert config["ProcessingJobName"] == f"{space['RUN']}-s1-a{space['ATTEMPT']}"
    assert config["StoppingCondition"] == {"MaxRuntimeInSeconds": 3600}
    operator = space["process"](1, config)
    assert operator["max_attempts"] * operator["check_interval"] >= 3600 + WAIT_SLACK_SECONDS
    assert operator["action_if_job_exists"] == "fail"


@pytest.mark.parametrize(("job", "kind"), [(SINGLE, "Training"), (PROCESSING, "Processing")])
def test_a_stopped_job_is_not_a_completed_one(job: Any, kind: str) -> None:
    space = dag_functions(job, AirflowException=ValueError)
    answer = {f"{kind}JobName": "digits-s1-a1", f"{kind}JobStatus": "Completed"}
    space["check_completed"](None, {kind: answer})
    with pytest.raises(ValueError, match="digits-s1-a1: Stopped"):
        space["check_completed"](None, {kind: {**answer, f"{kind}JobStatus": "Stopped"}})


class Refused(Exception):
    """botocore's ClientError."""

    def __init__(self, code: str) -> None:
        super().__init__(code)
        self.response = {"Error": {"Code": code}}


@pytest.mark.parametrize(
    ("jobs", "raised"),
    [
        # The second attempt was rejected while the first one's job ran, and created no job.
        ({1: "InProgress", 2: "ValidationException"}, "run-s1-a1 still runs"),
        ({1: "Failed", 2: "ValidationException"}, None),
        ({1: "InProgress", 2: "ThrottlingException"}, "ThrottlingException"),
        ({1: "ValidationException", 2: "ResourceNotFound"}, None),
        ({1: "Failed", 2: "Stopped"}, "run-s1-a2 was stopped"),
    ],
)
def test_no_try_begins_while_the_job_of_any_before_it_may_run(
    jobs: dict[int, str], raised: str | None
) -> None:
    class Hook:
        def __init__(self, **_: object) -> None: ...

        def describe_training_job(self, name: str) -> dict[str, str]:
            status = jobs[int(name.rpartition("-a")[2])]
            if status not in ("InProgress", "Failed", "Stopped"):
                raise Refused(status)
            return {
                "TrainingJobName": name,
                "TrainingJobStatus": status,
                "FailureReason": "AlgorithmError: x",
            }

    names = {"ClientError": Refused, "SageMakerHook": Hook}
    space = dag_functions(CHAIN, **names, AirflowException=ValueError, AirflowFailException=ValueError)
    operator = SimpleNamespace(config={"TrainingJobName": "run-s1-a3"}, retries=2)
    context = {"ti": SimpleNamespace(try_number=3, max_tries=2), "task": operator}
    if raised is None:
        space["check_previous_attempt"](context)
    else:
        with pytest.raises((ValueError, Refused), match=raised):
            space["check_previous_attempt"](context)


def test_a_text_that_looks_like_jinja_comes_out_as_it_was() -> None:
    odd = {"a": "{{ ti }}", "b": "{% raw %}", "c": '{# "x" \\ #}', "d": "plain"}
    hyperparameters = dag_functions({**SINGLE, "hyperparameters": odd})["config_1"](1, 3600, None)[
        "HyperParameters"
    ]
    assert hyperparameters.pop("d") == "plain"
    for key, value in hyperparameters.items():
        assert value.startswith("{{ ") and value.endswith(" }}") and "{" not in value[2:]
        assert ast.literal_eval(value[3:-3]) == odd[key], "a text in quotes, to Jinja as to Python"


@pytest.mark.parametrize(
    ("job", "field"),
    [
        (SPOT, "compute.on_demand_fallback"),
        (DIFFERENT, "segments[].until_step"),
        (CAPPED, "limits.max_cost"),
        ({**CHAIN, "limits": {"max_runtime": "600h", "segment": "1h"}}, "limits.segment"),
    ],
)
def test_what_has_no_words_is_refused_by_its_field(job: Any, field: str) -> None:
    with pytest.raises(JobError) as refused:
        export_airflow(plan_of(job), "digits")
    assert [problem.path for problem in refused.value.problems] == [field]


def test_a_name_that_no_run_could_have() -> None:
    with pytest.raises(JobError, match="--called"):
        export_airflow(plan_of(CHAIN), "Nightly_Digits")


def test_the_picture_on_the_page() -> None:
    from tests.export.airflow_page import PAGE, update_page  # it imports this module

    page = PAGE.read_text()
    assert update_page(page) == page, "python -m tests.export.airflow_page writes it anew"
