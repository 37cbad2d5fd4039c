"""An exported state machine, run by a third-party interpreter, with real jobs."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import boto3
import pytest

from smlaunch.connection.open_connection import target_of_endpoint
from smlaunch.errors import EXIT_STOPPED, EXIT_TRAINING_FAILED, StoppedByUser
from smlaunch.export.run_template import ITEMS_FILE, ORCHESTRATOR_ERRORS
from smlaunch.export.step_functions import (
    DEFINITION_FILE,
    PERMISSIONS_FILE,
    TASK_FILE,
    export_step_functions,
    with_items_upload,
)
from smlaunch.job.model import Job
from smlaunch.local.front.call_log import read_call_log
from smlaunch.runs.attach_run import attach
from smlaunch.runs.deploy_state_machine import deploy_state_machine
from smlaunch.runs.launch_target import Target
from smlaunch.runs.plan_job import prepare_export
from smlaunch.runs.plan_upload import upload_plan_files
from tests.cli.conftest import COMMAND, Shell
from tests.conftest import ROOT
from tests.e2e.chains import SEGMENTS, TRUE_WEIGHTS, write_script
from tests.real.moto_endpoint import StepFunctions, endpoint, moto_python, wait_until
from tests.real.test_four_ways import allows

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the path of the log of every call to the endpoint."""
    return tmp_path_factory.mktemp("calls") / "calls.jsonl"


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[StepFunctions]:
    with endpoint(tmp_path_factory.mktemp("machine") / "home", {"call_log": str(log)}) as info:
        yield StepFunctions(info)


def export_and_deploy(
    user: StepFunctions, script: Path, name: str, job: dict[str, Any] | None = None, **options: Any
) -> tuple[Target, str, dict[str, str]]:
    """Returns the target, the ARN of the deployed machine, and the export's files."""
    limits = {"max_runtime": "10m", "segment": "60s"}
    chain = {"entry": str(script), "strategy": "custom", "limits": limits}
    target = target_of_endpoint(user.info)
    preparation = prepare_export(Job.from_mapping(job or chain), target)
    files = export_step_functions(preparation.plan, name, time_scale=target.polling.time_scale, **options)
    upload_plan_files(with_items_upload(preparation.plan, files), preparation.source, target, lambda _: None)
    arn = f"arn:aws:states:{user.info.region}:{user.info.account}:stateMachine:{name}"
    role = f"arn:aws:iam::{user.info.account}:role/{name}"
    first = deploy_state_machine(target, arn, files[DEFINITION_FILE], role)
    assert (first.arn, first.change) == (arn, "created")
    assert deploy_state_machine(target, arn, files[DEFINITION_FILE], role).change == "unchanged"
    return target, arn, files


def assert_allowed(log: Path, name: str, files: dict[str, str]) -> None:
    """Checks that the policy written for the machine's role allows every call of it."""
    permissions = json.loads(files[PERMISSIONS_FILE])["Statement"]
    own_calls = [call for call in read_call_log(log) if f":assumed-role/{name}/" in call.caller]
    needs = {(need.action, need.resource) for call in own_calls for need in call.needs}
    assert {action.partition(":")[0] for action, _ in needs} >= {"sagemaker", "iam"}
    assert [need for need in sorted(needs) if not allows(permissions, *need)] == []


def names(target: Target, run: str) -> list[str]:
    return [row.name for row in reversed(list(target.control_plane.list_jobs(f"{run}-s")))]


def weights(target: Target, uri: str) -> str:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    content = target.storage.get_bytes(bucket, key)
    assert content is not None
    with tarfile.open(fileobj=BytesIO(content)) as archive:
        file = archive.extractfile("weights")
        assert file is not None
        return file.read().decode()


def test_a_chain_runs_to_its_end_without_a_client(user: StepFunctions, tmp_path: Path) -> None:
    target, machine, _ = export_and_deploy(user, write_script(tmp_path), "chain")
    execution = user.wait_for_end(user.execute(machine, name="nightly"), 120)
    assert execution["status"] == "SUCCEEDED", execution
    assert names(target, "nightly") == [f"nightly-s{number}-a1" for number in range(1, SEGMENTS + 1)]
    result = json.loads(execution["output"])
    assert (result["run"], result["status"], result["step"]) == ("nightly", "Completed", 50)
    assert weights(target, result["model_artifacts"]) == TRUE_WEIGHTS
    outcome = attach("nightly", target).describe()
    assert (outcome.status, outcome.exit_code, outcome.step) == ("Completed", 0, 50)
    # Another execution is another run with its own checkpoints.
    second_execution = user.wait_for_end(user.execute(machine, name="nightly-2"), 120)
    assert json.loads(second_execution["output"])["job"] == f"nightly-2-s{SEGMENTS}-a1"


def test_addresses_may_have_quotes_and_braces(user: StepFunctions, tmp_path: Path) -> None:
    """They are literals of States.Format, which adds the run's name."""
    job = {
        "entry": str(write_script(tmp_path)),
        "strategy": "custom",
        "limits": {"max_runtime": "10m", "segment": "60s"},
        "checkpoints": {"uri": f"s3://{user.info.bucket}/the team's {{best}}/"},
    }
    target, machine, _ = export_and_deploy(user, tmp_path / "train.py", "quotes", job=job)
    execution = user.wait_for_end(user.execute(machine, name="quoted"), 120)
    assert execution["status"] == "SUCCEEDED", execution
    assert weights(target, json.loads(execution["output"])["model_artifacts"]) == TRUE_WEIGHTS
    prefix = "the team's {best}/quoted/"
    assert any(
        "/outcome-quoted-s" in listed.key for listed in target.storage.list_objects(user.info.bucket, prefix)
    )


def test_faults_and_throttled_creates_change_nothing_of_the_result(tmp_path: Path) -> None:
    """A host that is lost, and creates that are throttled, which come under SageMaker's common error name."""
    rows = [
        {"fault": "host-lost", "after": 0.2, "jobs": "shaken-s2-a1"},
        {"fault": "throttle", "operations": "CreateTrainingJob", "calls": [1, 5]},
    ]
    plan = tmp_path / "faults.json"
    plan.write_text(json.dumps({"seed": 3, "faults": rows}))
    with endpoint(tmp_path / "home", {}, plan) as info:
        user = StepFunctions(info)
        script = write_script(tmp_path / "src")
        job = {
            "entry": str(script),
            "strategy": "custom",
            "limits": {"max_runtime": "10m", "segment": "60s"},
            "environment": {"TEST_PAUSE": "0.05"},
        }
        target, machine, _ = export_and_deploy(user, script, "shaken", job=job)
        execution = user.wait_for_end(user.execute(machine, name="shaken"), 200)
        assert execution["status"] == "SUCCEEDED", execution
        job_names = names(target, "shaken")
        assert sorted(job_names) == sorted(
            [f"shaken-s{number}-a1" for number in range(1, SEGMENTS + 1)] + ["shaken-s2-a2"]
        )
        assert weights(target, json.loads(execution["output"])["model_artifacts"]) == TRUE_WEIGHTS


def test_a_script_that_fails_ends_the_execution_as_it_would_end_the_run(
    user: StepFunctions, tmp_path: Path
) -> None:
    script = write_script(tmp_path)
    script.write_text("import smlaunch.train\nraise SystemExit(3)\n")
    target, machine, _ = export_and_deploy(user, script, "failing")
    execution = user.execute(machine, name="bad")
    description = user.wait_for_end(execution, 120)
    assert (description["status"], description["error"]) == (
        "FAILED",
        ORCHESTRATOR_ERRORS[EXIT_TRAINING_FAILED],
    ), description
    assert names(target, "bad") == ["bad-s1-a1", "bad-s1-a2", "bad-s1-a3"]
    assert "AlgorithmError" in description["cause"]
    outcome = attach(execution, target).describe()
    assert (outcome.exit_code, outcome.execution) == (EXIT_TRAINING_FAILED, execution)


def test_a_run_is_stopped_by_its_job_and_by_its_execution(user: StepFunctions, tmp_path: Path) -> None:
    job = {
        "entry": str(write_script(tmp_path)),
        "strategy": "custom",
        "limits": {"max_runtime": "10m", "segment": "60s"},
        "environment": {"TEST_PAUSE": "0.5"},
    }
    target, machine, _ = export_and_deploy(user, tmp_path / "train.py", "stopped", job=job)
    executions = {name: user.execute(machine, name=name) for name in ("by-job", "by-execution")}
    assert wait_until(lambda: all(names(target, name) for name in executions))
    attach("by-job", target).stop()
    assert target.orchestrators.stop_execution(executions["by-execution"])
    description = user.wait_for_end(executions["by-job"])
    assert (description["status"], description["error"]) == ("FAILED", ORCHESTRATOR_ERRORS[EXIT_STOPPED])
    assert user.wait_for_end(executions["by-execution"])["status"] == "ABORTED"
    for name in executions:
        with pytest.raises(StoppedByUser):
            attach(name, target).result()
        assert len(names(target, name)) == 1


def job_in_parts(tmp_path: Path, hosts: int, end: str = "") -> dict[str, Any]:
    """Its model tells which files a part was given. ``end``: the script's last line."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(6):
        (data / f"{number}.txt").write_text("x" * (number + 1))
    script = tmp_path / "src" / "count.py"
    script.parent.mkdir()
    script.write_text(
        "import os\nfrom pathlib import Path\n"
        "found = sorted(path.name for path in Path(os.environ['SM_CHANNEL_TRAIN']).iterdir())\n"
        f"Path(os.environ['SM_MODEL_DIR'], 'weights').write_text(' '.join(found))\n{end}"
    )
    return {
        "entry": str(script),
        "strategy": "share-nothing",
        "compute": {"hosts": hosts},
        "inputs": {"train": {"uri": str(data), "split": "bytes", "split_via": "jobs"}},
    }


def test_every_part_of_a_run_is_an_execution_with_its_own_data(user: StepFunctions, tmp_path: Path) -> None:
    job = job_in_parts(tmp_path, 2)
    target, machine, _ = export_and_deploy(user, Path(job["entry"]), "parts", job=job)
    execution = user.wait_for_end(user.execute(machine, name="fan"), 120)
    assert execution["status"] == "SUCCEEDED", execution
    results = json.loads(execution["output"])
    assert [part["result"]["job"] for part in results] == ["fan-p1-s1-a1", "fan-p2-s1-a1"]
    names_by_part = [weights(target, part["result"]["model_artifacts"]).split() for part in results]
    assert all(names_by_part)
    assert sorted(name for part_names in names_by_part for name in part_names) == [
        f"{number}.txt" for number in range(6)
    ]


def test_a_processing_job_gives_its_output_and_tells_why_it_failed(
    user: StepFunctions, log: Path, tmp_path: Path
) -> None:
    script = tmp_path / "clean.py"
    script.write_text(
        "import os\nfrom pathlib import Path\n"
        "if os.environ['SMLAUNCH_RUN'] == 'dirty':\n    raise ValueError('row 1')\n"
        "Path(os.environ['SM_OUTPUT_DATA_DIR'], 'clean').write_text('rows')\n"
    )
    job = {"entry": str(script), "strategy": "processing", "limits": {"attempts": 2}}
    target, machine, files = export_and_deploy(user, script, "clean", job=job)
    execution = user.wait_for_end(user.execute(machine, name="tables"), 60)
    assert execution["status"] == "SUCCEEDED", execution
    output = json.loads(execution["output"])
    bucket, _, key = output["output"].removeprefix("s3://").partition("/")
    assert target.storage.get_bytes(bucket, f"{key}clean") == b"rows"
    failed = user.wait_for_end(user.execute(machine, name="dirty"), 60)
    assert (failed["status"], failed["error"]) == ("FAILED", ORCHESTRATOR_ERRORS[EXIT_TRAINING_FAILED]), (
        failed
    )
    assert "ValueError: row 1" in failed["cause"]
    assert names(target, "dirty") == ["dirty-s1-a1", "dirty-s1-a2"]
    assert_allowed(log, "clean", files)


def read_part_result(target: Target, results: str, number: int) -> dict[str, Any]:
    bucket, _, key = results.removeprefix("s3://").partition("/")
    part_result: dict[str, Any] = json.loads(target.storage.get_bytes(bucket, f"{key}{number}.json") or b"")
    return part_result


def test_many_parts_are_read_from_a_list_in_s3(user: StepFunctions, log: Path, tmp_path: Path) -> None:
    """The export puts at most two parts inline here, so that three are many."""
    job = job_in_parts(tmp_path, 3)
    target, machine, files = export_and_deploy(user, Path(job["entry"]), "many", job=job, max_inline_shards=2)
    assert len(json.loads(files[ITEMS_FILE])) == 3
    execution = user.wait_for_end(user.execute(machine, name="wide"), 120)
    assert execution["status"] == "SUCCEEDED", execution
    output = json.loads(execution["output"])
    assert output["shards"] == [{"shard": number, "error": ""} for number in (1, 2, 3)]
    names_by_part = []
    for number in (1, 2, 3):
        result = read_part_result(target, output["results"], number)["result"]
        assert result["job"] == f"wide-p{number}-s1-a1"
        names_by_part.append(weights(target, result["model_artifacts"]).split())
    assert all(names_by_part)
    assert sorted(name for part_names in names_by_part for name in part_names) == [
        f"{number}.txt" for number in range(6)
    ]
    assert_allowed(log, "many", files)


def test_the_command_stages_the_list_and_writes_it_beside_the_definition(tmp_path: Path) -> None:
    job = {**job_in_parts(tmp_path, 201), "entry": "count.py"}
    for number in range(201):
        (tmp_path / "data" / f"{number}.txt").write_text(str(number))
    (tmp_path / "src" / "job.yaml").write_text(json.dumps(job))
    command = [*COMMAND, "export", "step-functions", "job.yaml", "--local"]
    subprocess.run(
        [*command, "--out", tmp_path / "out"],
        cwd=tmp_path / "src",
        env={**os.environ, "SMLAUNCH_HOME": str(tmp_path / "home")},
        check=True,
    )
    out = tmp_path / "out"
    every = json.loads((out / DEFINITION_FILE).read_text())["States"]["Every shard"]
    location = every["ItemReader"]["Parameters"]
    staged_list = tmp_path / "home" / "s3" / location["Bucket"] / location["Key"]
    assert staged_list.read_text() == (out / ITEMS_FILE).read_text()
    assert len(json.loads(staged_list.read_text())) == 201


def test_one_of_many_parts_that_fails_fails_the_run_when_the_others_have_ended(
    user: StepFunctions, tmp_path: Path
) -> None:
    job = job_in_parts(tmp_path, 3, end="assert '5.txt' not in found\n")
    target, machine, _ = export_and_deploy(user, Path(job["entry"]), "torn", job=job, max_inline_shards=2)
    execution = user.wait_for_end(user.execute(machine, name="torn"), 120)
    assert (execution["status"], execution["error"]) == (
        "FAILED",
        ORCHESTRATOR_ERRORS[EXIT_TRAINING_FAILED],
    ), execution
    match = re.fullmatch(
        r"the shards \[(\d)\] failed so; .* stands in (s3:.*)<number>\.json", execution["cause"]
    )
    assert match is not None, execution["cause"]
    for number in (1, 2, 3):
        part_result = read_part_result(target, match[2], number)
        assert ("AlgorithmError" in part_result.get("cause", "")) == (number == int(match[1])), part_result
        assert part_result["execution"] == f"torn-p{number}"


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Returns a command line beside a background endpoint that has moto."""
    (tmp_path / "work").mkdir()
    shell = Shell(tmp_path / "work", tmp_path / "home")
    command = [moto_python(), "-m", "smlaunch.cli.main", "local", "start"]
    subprocess.run(command, cwd=ROOT, env=shell.environment, check=True)
    yield shell
    shell("local", "stop")


def test_the_command_deploys_a_machine_that_plain_boto3_starts(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, and from a flow of the team's own by the Task that was written for it."""
    (shell.folder / "train.py").write_text("print('trained')\n")
    role = "arn:aws:iam::000000000000:role/machine"
    arguments = ("export", "step-functions", "train.py", "--strategy", "custom", "--local", "--deploy")
    first = shell(*arguments, "--machine-role", role, "--called", "nightly", "--embed", "task", "--out", "m")
    assert first.code == 0, first.err
    arn = first.out.splitlines()[-1]
    assert first.err.startswith("created") and arn.endswith(":stateMachine:nightly")
    second_export = shell(*arguments, "--machine-role", role, "--called", "nightly", "--json")
    assert json.loads(second_export.out) == {
        "run": None,
        "staged": True,
        "files": [],
        "state_machine": arn,
        "change": "unchanged",
    }
    changed = shell(*arguments, "--machine-role", role, "--called", "nightly", "--max-runtime", "1h")
    assert (changed.out, changed.err.split(";")[0]) == (f"{arn}\n", "updated")

    for line in shell("local", "env").out.splitlines():
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            monkeypatch.setenv(name, *shlex.split(value))
    states = boto3.Session().client("stepfunctions")

    def wait_for_end(machine: str, run: str) -> dict[str, Any]:
        execution = states.start_execution(stateMachineArn=machine, name=run)["executionArn"]
        assert wait_until(lambda: states.describe_execution(executionArn=execution)["status"] != "RUNNING")
        description: dict[str, Any] = states.describe_execution(executionArn=execution)
        assert description["status"] == "SUCCEEDED", description
        output: dict[str, Any] = json.loads(description["output"])
        return output

    assert wait_for_end(arn, "monday")["job"] == "monday-s1-a1"
    inner = json.loads((shell.folder / "m" / TASK_FILE).read_text())
    definition = json.dumps({"StartAt": "Train", "States": inner})
    outer = states.create_state_machine(name="theirs", definition=definition, roleArn=role)["stateMachineArn"]
    assert wait_for_end(outer, "tuesday")["training"]["result"]["job"] == "tuesday-s1-a1"

    refused_export = shell(*arguments, "--machine-role", role, "--called", "theirs")
    assert (refused_export.code, refused_export.out) == (2, "")
    assert "was not exported by smlaunch" in refused_export.err
    deployed = states.describe_state_machine(stateMachineArn=outer)["definition"]
    assert json.loads(deployed) == json.loads(definition)


def test_a_flow_of_the_teams_own_waits_for_the_run(user: StepFunctions, tmp_path: Path) -> None:
    target, machine, files = export_and_deploy(
        user, write_script(tmp_path), "inner", with_embedding_task=True
    )
    task = json.loads(files[TASK_FILE])["Train"]
    assert task["Parameters"]["StateMachineArn"] == machine
    execution = user.wait_for_end(
        user.execute(user.machine("outer", task), {"theirs": 1}, name="outer-1"), 120
    )
    assert execution["status"] == "SUCCEEDED", execution
    output = json.loads(execution["output"])
    assert output["theirs"] == 1
    assert output["training"]["result"]["run"] == "outer-1"
    assert len(names(target, "outer-1")) == SEGMENTS
