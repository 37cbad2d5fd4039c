"""From a job to a created one, on fakes: what is uploaded, sent, attached to and refused."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from smlaunch.aws.interfaces import CallError
from smlaunch.catalog.instances import known_types
from smlaunch.cli import run_connection
from smlaunch.cli.runs import logs as logs_command
from smlaunch.contract.run_names import is_run_id
from smlaunch.contract.segment_outcome import FINISHED, SegmentOutcome
from smlaunch.errors import AccountError, JobError, TrainingFailed
from smlaunch.job.model import Job, parse_duration
from smlaunch.render.plan import Plan
from smlaunch.runs.attach_run import attach
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import generate_run_id, plan, prepare
from smlaunch.runs.run_folder import RunFolder
from smlaunch.runs.run_list import list_runs
from smlaunch.text.format import format_dollars
from tests.runs.fakes import (
    BUCKET,
    ROLE,
    FakeControl,
    FakeLogs,
    FakeStorage,
    fake_target,
    job_description,
    time_at,
)


@pytest.fixture
def target() -> Target:
    return fake_target()


@pytest.fixture
def job(tmp_path: Path) -> Job:
    source = tmp_path / "source"
    source.mkdir()
    (source / "train.py").write_text("print('hello')")
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "a.bin").write_bytes(b"a" * 10)
    (data / "deep" / "b.bin").write_bytes(b"b" * 20)
    return Job(entry=source / "train.py", role=ROLE, inputs={"train": data}, name="demo")


def control(target: Target) -> FakeControl:
    return target.__dict__["control_plane"]  # type: ignore[no-any-return]


def storage(target: Target) -> FakeStorage:
    return target.__dict__["storage"]  # type: ignore[no-any-return]


def test_a_plan_changes_nothing(job: Job, target: Target) -> None:
    job_plan = plan(job, target)
    assert job_plan.run == "demo"
    assert storage(target).puts == []
    assert control(target).created == []


def test_a_launch_uploads_everything_the_request_names(job: Job, target: Target) -> None:
    run = launch(job, target)
    request = control(target).created[0]
    assert run.jobs == (request["TrainingJobName"],)
    assert not run.attached
    keys = storage(target).objects[BUCKET]
    for channel in request["InputDataConfig"]:
        prefix = channel["DataSource"]["S3DataSource"]["S3Uri"].removeprefix(f"s3://{BUCKET}/")
        assert any(key.startswith(prefix) for key in keys), channel["ChannelName"]
    assert {len(content) for key, content in keys.items() if key.endswith(".bin")} == {10, 20}


def test_a_single_job_stores_no_workflow(job: Job, target: Target) -> None:
    run = launch(job, target)
    assert not run.chain_drivers
    keys = storage(target).objects[BUCKET]
    stored_names = {key.rpartition("/")[2] for key in keys if key.startswith("smlaunch/demo/")}
    assert stored_names == {"claim.json", "runtime.pyz", "job.json"}


def test_the_workflow_is_saved_before_the_first_job(job: Job, target: Target) -> None:
    source = Path(job.program)
    source.write_text("import smlaunch.train")
    longer = Job.from_mapping({**job.to_mapping(), "limits": {"max_runtime": "2d", "segment": "1d"}})

    keys_at_request: set[str] = set()

    def refuse(request: object) -> str:
        keys_at_request.update(storage(target).objects[BUCKET])
        raise CallError("CreateTrainingJob", "AccessDeniedException", "not authorized", 400)

    control(target).create_job = refuse  # type: ignore[method-assign,assignment]
    with pytest.raises(AccountError):
        launch(longer, target)
    by_which_it_goes_on = {"smlaunch/demo/claim.json", "smlaunch/demo/workflow.json"}
    assert by_which_it_goes_on <= keys_at_request
    assert not by_which_it_goes_on & storage(target).objects[BUCKET].keys()  # another job may have the name


def test_existing_objects_are_not_uploaded_again(job: Job, target: Target) -> None:
    launch(job, target)
    first = len(storage(target).puts)
    second_job = Job.from_mapping({**job.to_mapping(), "name": "demo-2"})
    launch(second_job, target)
    sent_keys = storage(target).puts[first:]
    assert [key for key in sent_keys if key.endswith((".bin", "source.tar.gz"))] == []


def test_the_same_job_and_name_attach_and_start_nothing(job: Job, target: Target) -> None:
    launch(job, target)
    second_run = launch(job, target)
    assert second_run.attached
    assert len(control(target).created) == 1


def test_a_chain_launched_with_another_max_runtime_is_the_same_run(job: Job, target: Target) -> None:
    Path(job.program).write_text("import smlaunch.train")
    chain = job.with_changes(limits={"max_runtime": "2d", "segment": "1d", "max_cost": 900})
    messages: list[str] = []
    for max_runtime in ("2d", "3d", "60d"):
        run = launch(chain.with_changes(limits={"max_runtime": max_runtime}), target, messages.append)
        workflow = RunFolder.for_run(BUCKET, "demo").load_workflow(target.storage)
        assert workflow is not None and workflow.policy.total_seconds == parse_duration(max_runtime)
        assert [driver.workflow for driver in run.chain_drivers] == [workflow]
    assert len(control(target).created) == 1
    assert [message.partition(";")[0] for message in messages] == [
        "changed for the jobs that follow: max_runtime from 2d to 3d",
        "changed for the jobs that follow: max_runtime from 3d to 60d",
    ]
    for other in ({"limits": {"segment": "12h"}}, {"hyperparameters": {"lr": 0.2}}):
        with pytest.raises(JobError, match="was made of another job"):
            launch(chain.with_changes(**other), target)


def test_a_run_keeps_its_price_unless_a_launch_states_another(job: Job, target: Target) -> None:
    Path(job.program).write_text("import smlaunch.train")
    chain = job.with_changes(
        compute={"instance_type": "ml.m5.xlarge", "hosts": 2},
        limits={"max_runtime": "2d", "segment": "1d", "max_cost": 900_000},
    )
    changed = "price per hour of all hosts changed from {}, also for the jobs that have ended"
    not_counted = (
        "price per hour of all hosts: the run counts {} and not {}, the plan's; state "
        "compute.price_per_hour to change it"
    )
    catalog = format_dollars(2 * (known_types()["ml.m5.xlarge"].usd_per_hour or 0))
    for stated_price, counted_price, expected in [
        (3600, 7200, []),
        (3600, 7200, []),
        (None, 7200, [not_counted.format("$7,200.00", catalog)]),
        (1, 2, [changed.format("$7,200.00 to $2.00")]),
        (1.001, 2.002, [changed.format("$2.0000 to $2.0020")]),
        (None, 2.002, [not_counted.format("$2.00", catalog)]),
    ]:
        messages: list[str] = []
        run = launch(chain.with_changes(compute={"price_per_hour": stated_price}), target, messages.append)
        workflow = RunFolder.for_run(BUCKET, "demo").load_workflow(target.storage)
        assert workflow is not None
        assert [variant.price_per_hour for variant in workflow.variants] == [counted_price]
        assert [driver.workflow for driver in run.chain_drivers] == [workflow]
        assert messages == expected
    assert len(control(target).created) == 1


def test_results_of_a_job_whose_record_is_gone_are_not_replaced(job: Job, target: Target) -> None:
    launch(job, target)
    job_name, output_uri = "demo-s1-a1", control(target).created[0]["OutputDataConfig"]["S3OutputPath"]
    bucket, _, prefix = output_uri.removeprefix("s3://").partition("/")
    later_target = fake_target()  # of the same account, whose job was deleted
    later_target.storage.put_bytes(bucket, f"{prefix.rstrip('/')}/{job_name}/output/model.tar.gz", b"a model")
    with pytest.raises(JobError, match=f"results of an earlier job {job_name} are at .* take another name"):
        launch(job, later_target)
    assert control(later_target).created == []


def test_a_stated_address_of_results_is_not_that_of_one_job(job: Job, target: Target) -> None:
    """What lies there may be another run's, or anything: it says nothing about a job of this name."""
    output = {"S3Uri": "s3://mine/res/", "LocalPath": "/opt/ml/processing/output", "S3UploadMode": "EndOfJob"}
    outputs = [{"OutputName": "output", "S3Output": output}]
    processing_job = job.with_changes(
        strategy="processing", request={"ProcessingOutputConfig": {"Outputs": outputs}}
    )
    storage(target).create_bucket("mine", "us-east-1")
    storage(target).put_bytes("mine", "res/summary.txt", b"of another run")
    launch(processing_job, target)
    assert len(control(target).created) == 1
    reasons = " ".join(reason.explanation for reason in plan(processing_job, target).reasons)
    assert "Outputs are stored at s3://mine/res/ itself, and replace files" in reasons


@pytest.mark.parametrize("is_other", [True, False])
def test_another_job_that_has_finished_under_the_name_is_refused(
    job: Job, target: Target, is_other: bool
) -> None:
    """Such as one in another region, with the same prefix for checkpoints."""
    job = job.with_changes(checkpoints="s3://bucket/kept/")
    job_hash = "0" * 64 if is_other else plan(job, target).job_hash
    outcome = SegmentOutcome(FINISHED, 20, "demo", "demo-s1-a1", ranks_succeeded=True, job_hash=job_hash)
    storage(target).create_bucket("bucket", "us-east-1")
    storage(target).put_bytes("bucket", f"kept/{outcome.path}", outcome.to_bytes())
    if not is_other:  # its record was deleted: it trains the rest again, and makes its model
        later_outcome = outcome._replace(job="demo-s3-a1", segment=3)
        other_run = outcome._replace(run="demo-s1", job="demo-s1-s1-a1")
        for stored in (later_outcome, other_run):
            storage(target).put_bytes("bucket", f"kept/{stored.path}", stored.to_bytes())
        assert launch(job, target).name == "demo"
        assert set(storage(target).objects["bucket"]) == {f"kept/{other_run.path}"}
        return
    message = "name: another job has trained to its end as run demo .* take another name, or another prefix"
    with pytest.raises(JobError, match=message):
        launch(job, target)
    assert control(target).created == []


def test_another_job_under_the_name_is_refused(job: Job, target: Target) -> None:
    launch(job, target)
    puts_before = list(storage(target).puts)
    other = Job.from_mapping({**job.to_mapping(), "hyperparameters": {"lr": 0.2}})
    with pytest.raises(JobError, match=r"source or data; take another name .a hyperparameter that is text"):
        launch(other, target)
    assert storage(target).puts == puts_before, "what lies at the run's place belongs to the first job"


def test_a_create_with_a_lost_response_finds_its_job(
    job: Job, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    plain = control(target).create_job

    def create_and_lose_response(request: dict[str, object]) -> str:
        plain(request)
        raise CallError("CreateTrainingJob", "Unreachable", "Connection reset")

    calls = iter([create_and_lose_response, plain, plain])
    control(target).create_job = lambda request: next(calls)(request)  # type: ignore
    assert not launch(job, target).attached  # nobody had launched it before
    assert len(control(target).created) == 1


@pytest.mark.parametrize(("retries", "attached"), [(0, True), (1, False)])
def test_of_clients_that_launch_at_once_one_has_launched(
    job: Job, target: Target, retries: int, attached: bool
) -> None:
    """After a retry of botocore's own, the job may be that of its first request, whose answer was lost."""
    plain = control(target).create_job

    def lose_race(request: dict[str, object]) -> str:
        plain(request)  # the other client's
        raise CallError("CreateTrainingJob", "ResourceInUse", "the name exists", 400, retries)

    control(target).create_job = lose_race  # type: ignore
    assert launch(job, target).attached is attached
    assert len(control(target).created) == 1


def test_a_missing_default_bucket_is_created_and_reported(job: Job, target: Target) -> None:
    storage(target).objects.clear()
    messages: list[str] = []
    launch(job, target, on_message=messages.append)
    assert messages == [f"created the bucket {BUCKET} for source and results"]


def test_a_refusal_names_the_next_step(job: Job, target: Target) -> None:
    control(target).create_errors = [
        CallError("CreateTrainingJob", "AccessDeniedException", "not authorized", 400)
    ]
    with pytest.raises(AccountError, match="allow the caller sagemaker:CreateTrainingJob"):
        launch(job, target)


def test_a_displayed_request_has_its_secrets_masked_and_boto3_gets_them(job: Job, target: Target) -> None:
    secrets = {"MY_PASSWORD": "hunter2hunter2", "DB": "postgres://u:sesame99@h/db"}
    with_secrets = job.with_changes(environment={**secrets, "MODE": "fast"})
    (request,) = plan(with_secrets, target).requests
    texts = [
        repr(request),
        str(request),
        f"{request['Environment']}",
        pretty(request),
        pretty(request["Environment"]),
    ]
    for text in texts:
        assert "hunter2" not in text and "sesame99" not in text and "'MODE': 'fast'" in text
    assert json.loads(json.dumps(request))["Environment"].items() >= secrets.items()
    assert isinstance(request, dict) and request["Environment"]["MY_PASSWORD"] == "hunter2hunter2"
    launch(with_secrets, target)
    assert control(target).created[0]["Environment"].items() >= secrets.items()


def pretty(value: Any) -> str:
    """Returns what IPython asks such an object for."""
    printed: list[Any] = []
    value._repr_pretty_(SimpleNamespace(pretty=printed.append), False)
    assert type(printed[0]) is dict, "which IPython lays out itself"
    return str(printed[0])


@pytest.mark.parametrize("columns", [60, 200])
def test_a_printed_plan_has_the_width_of_the_terminal(
    job: Job, target: Target, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    job_plan = plan(job, target)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", SimpleNamespace(isatty=lambda: True))
        patch.setenv("COLUMNS", str(columns))
        lines = str(job_plan).splitlines()
    assert not [line for line in lines if len(line) > columns and len(line.split()) > 1]
    assert max(map(len, lines)) > columns / 2


def test_a_plan_can_be_launched_later_unless_the_source_has_changed(job: Job, target: Target) -> None:
    job_plan = plan(job, target)
    assert isinstance(job_plan, Plan)
    program, notes = Path(job.program), Path(job.program).with_name("notes.txt")
    program.with_name("Untitled.ipynb").write_text("the notebook with these calls, saved between them")
    content = program.read_text()
    program.write_text("print('changed')")
    notes.write_text("new")
    with pytest.raises(
        JobError, match=rf"^source: notes.txt, {program.name} changed since the plan was made"
    ):
        launch(job_plan, target)
    program.write_text(content)
    notes.unlink()
    assert launch(job_plan, target).name == "demo"


@pytest.mark.parametrize(
    "entry",
    [
        {"entry": "source/train.py"},
        {"entry": {"module": "source.train"}},
        {"entry": {"command": ["python", "train.py"]}, "source": "source"},
    ],
    ids=["script", "module", "command"],
)
def test_a_plan_can_be_launched_from_another_folder(
    entry: dict[str, Any], job: Job, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(job.program).parents[1]
    monkeypatch.chdir(folder)
    job_plan = plan(Job(**entry, role=ROLE, inputs={"train": "data"}, name="demo"), target)
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert launch(job_plan, target).name == "demo"
    keys = storage(target).objects[BUCKET]
    assert {key.rpartition("/")[2] for key in keys} >= {"source.tar.gz", "a.bin", "b.bin"}


def test_all_mistakes_are_reported_at_once(tmp_path: Path, target: Target) -> None:
    job = Job(
        entry=tmp_path / "nope.py", inputs={"train": "s3://no-such-bucket/x/", "test": tmp_path / "nothing"}
    )
    with pytest.raises(JobError) as caught:
        prepare(job, target)
    assert {problem.path for problem in caught.value.problems} >= {
        "entry",
        "role",
        "inputs.train",
        "inputs.test",
    }


def test_an_ignored_script_is_reported(tmp_path: Path, target: Target) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / ".gitignore").write_text("train.py\n")
    message = r"train.py is left out of the source by an ignore file; add a line '!train.py'"
    with pytest.raises(JobError, match=message):
        prepare(Job(entry=tmp_path / "train.py", role=ROLE), target)


def test_a_script_outside_of_its_source_is_reported(tmp_path: Path, target: Target) -> None:
    (tmp_path / "train.py").write_text("")
    (tmp_path / "lib").mkdir()
    with pytest.raises(JobError, match="is outside of the source folder"):
        prepare(Job(entry=tmp_path / "train.py", source=tmp_path / "lib", role=ROLE), target)


@pytest.mark.parametrize("entry", ["train_ddp.py", "Ünïcode.py", "--.py", "a" * 90 + ".py", "3.14_pi.sh"])
def test_generated_names_are_valid_run_ids(entry: str) -> None:
    # Three: of twenty with four random characters two are the same once in five thousand times.
    names = {generate_run_id(entry) for _ in range(3)}
    assert all(is_run_id(name) for name in names)
    assert len(names) == 3


# ---- runs that exist -------------------------------------------------------------------------------


def test_a_run_is_found_again_by_its_name_alone(job: Job, target: Target) -> None:
    launch(job, target)
    attached_run = attach("demo", target)
    assert attached_run.jobs == ("demo-s1-a1",)
    assert attached_run.describe().exit_code == 0
    assert attached_run.result().status == "Completed"


def test_waiting_for_a_failure_raises_it(target: Target) -> None:
    reason = "AlgorithmError: rank 1 on algo-1 exited with code 3: ValueError: x, exit code: 3"
    control(target).descriptions_by_job["demo-s1-a1"] = [
        job_description("demo-s1-a1", "Failed", ["Failed"], FailureReason=reason)
    ]
    with pytest.raises(TrainingFailed, match="run demo: rank 1 on algo-1 exited with code 3: ValueError: x"):
        attach("demo", target).result()


def test_any_training_job_can_be_attached_by_name(target: Target) -> None:
    control(target).descriptions_by_job["SomeoneElses-Job"] = [
        job_description("SomeoneElses-Job", "Stopped", ["Stopped"])
    ]
    assert attach("SomeoneElses-Job", target).describe().exit_code == 5


def test_an_unknown_name_is_reported(job: Job, target: Target) -> None:
    launch(job, target)
    with pytest.raises(JobError, match=r"there is no run 'demmo' on us-east-1, did you mean 'demo'\?"):
        attach("demmo", target)


def test_stop_a_running_and_an_ended_run(job: Job, target: Target) -> None:
    launch(job, target)
    attach("demo", target).stop()
    assert control(target).stopped == []
    control(target).descriptions_by_job["demo-s1-a1"] = [
        job_description("demo-s1-a1", "InProgress", ["Training"])
    ]
    attach("demo", target).stop()
    assert control(target).stopped == ["demo-s1-a1"]


def test_logs_returns_all_lines_so_far(job: Job, target: Target) -> None:
    launch(job, target)
    logs: FakeLogs = target.__dict__["logs"]
    logs.page_size = 2
    logs.add_lines("demo-s1-a1/algo-1-5", *"abcde")
    assert [line.text for line in attach("demo", target).logs()] == list("abcde")


def test_logs_as_json(job: Job, target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    launch(job, target)
    logs: FakeLogs = target.__dict__["logs"]
    logs.add_lines("demo-s1-a1/algo-1-5", "a")
    connection = nullcontext(SimpleNamespace(target=target))
    monkeypatch.setattr(run_connection, "open_connection", lambda *_, **__: connection)
    result = CliRunner().invoke(logs_command, ["demo", "--json"], standalone_mode=False)
    line = {"job": "demo-s1-a1", "host": "algo-1", "at": 0, "text": "a"}
    assert json.loads(result.output) == {"run": "demo", "lines": [line]}
    assert [line.at for line in attach("demo", target).logs()] == [0]


def test_list_runs_shows_runs_not_jobs(target: Target) -> None:
    for name in ("one-s1-a1", "other", "one-s2-a1"):
        control(target).descriptions_by_job[name] = [job_description(name, "Completed", ["Completed"])]
    assert [(row.run, row.job) for row in list_runs(target, 10)] == [("one", "one-s2-a1"), ("other", "other")]
    assert len(list_runs(target, 1)) == 1


def test_a_run_hides_no_job_of_its_name(target: Target) -> None:
    """Another client's job may be called like a run: then its ARN names it."""
    for name, status in (("one-s1-a1", "Completed"), ("one", "Stopped"), ("two", "Completed")):
        control(target).descriptions_by_job[name] = [job_description(name, status, [status])]
    arn = str(control(target).describe_job("one")["TrainingJobArn"])
    rows = {row.run: (row.job, row.status) for row in list_runs(target, 10)}
    assert rows == {
        "one": ("one-s1-a1", "Completed"),
        arn: ("one", "Stopped"),
        "two": ("two", "Completed"),
    }
    assert {run: attach(run, target).jobs for run in rows} == {run: (job,) for run, (job, _) in rows.items()}


@pytest.mark.parametrize("status", ["InProgress", "Completed"])
def test_a_listed_run_was_created_with_its_first_job(target: Target, status: str) -> None:
    """It was once the creation of a later job, where the list ended between the two."""
    for second, name in enumerate(("one-s1-a1", "other", "one-s2-a1")):
        description = job_description(name, "Completed", ["Completed"], CreationTime=time_at(second))
        control(target).descriptions_by_job[name] = [description]
    control(target).descriptions_by_job["one-s2-a1"][0]["TrainingJobStatus"] = status  # type: ignore[index]
    (row,) = list_runs(target, 1)
    assert (row.run, row.job, row.created) == ("one", "one-s2-a1", time_at(0).timestamp())


def test_a_result_is_an_outcome_or_an_exception(job: Job, target: Target) -> None:
    run = launch(job, target)
    assert (run.done(), run.status, run.exception()) == (True, "Completed", None)
    assert run.result() == run.wait()
    control(target).descriptions_by_job["demo-s1-a1"] = [
        job_description("demo-s1-a1", "InProgress", ["Training"]),
        job_description("demo-s1-a1", "Failed", ["Failed"], FailureReason="AlgorithmError: x"),
    ]
    failed_run = attach("demo", target)
    assert failed_run.wait().exit_code == 1
    assert (failed_run.done(), failed_run.status) == (True, "Failed")
    assert type(failed_run.exception()) is TrainingFailed
