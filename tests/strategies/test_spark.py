"""``strategy: spark``: the request, and the cluster of a processing job's hosts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from smlaunch.api.validation.request_check import check_request
from smlaunch.contract.launch_spec import Concat, LaunchSpec, Ref
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import InputFacts, ScriptFacts
from smlaunch.render.plan import Plan
from smlaunch.runtime import spark_program
from tests.planner.fixtures import ROLE, local, plan, region, with_inputs
from tests.strategies.requests import without_launch_hash

PYSPARK = ScriptFacts(imports=frozenset({"pyspark.sql", "pyspark.sql.SparkSession"}))
TABLES = InputFacts("s3://b/tables/", "s3", objects=9, bytes=90)
MASTER = Concat((Ref("leader_address", suffix=":"), Ref("port", offset=4)))
URL = Concat((Ref("leader_address", prefix="spark://", suffix=":"), Ref("port", offset=4)))
WORKER = Concat((Ref("address", suffix=":"), Ref("own_port", offset=8)))


def plan_spark(is_local: bool = False, channel: dict[str, Any] | None = None, **job: Any) -> Plan:
    facts = (local if is_local else region)(script=PYSPARK)
    inputs = {"tables": channel or {"uri": "s3://b/tables/"}}
    job = {"compute": {"hosts": 2, "instance_type": "ml.m5.4xlarge"}, "inputs": inputs, **job}
    return plan(job, with_inputs(facts, {"tables": TABLES}))


def spec_of(job_plan: Plan) -> LaunchSpec:
    spec = job_plan.planned_jobs[0].launch_spec
    assert spec is not None
    return spec


def settings(spec: LaunchSpec) -> dict[str, str | Ref]:
    """Returns spark-submit's settings by --conf."""
    arguments = list(spec.ranks.argv)
    values: dict[str, str | Ref] = {}
    for previous, word in pairwise(arguments):
        if previous == "--conf" and isinstance(word, str):
            key, _, values[key] = word.partition("=")
        elif previous == "--conf" and isinstance(word, Ref):
            values[word.prefix.rstrip("=")] = Ref(word.name)
    return values


def whole_channel(name: str, uri: str) -> dict[str, Any]:
    """Returns an input that every host has completely."""
    return {
        "InputName": name,
        "S3Input": {
            "S3Uri": uri,
            "LocalPath": f"/opt/ml/processing/input/{name}",
            "S3DataType": "S3Prefix",
            "S3InputMode": "File",
            "S3DataDistributionType": "FullyReplicated",
        },
    }


def test_the_request_of_a_processing_job_in_the_spark_image() -> None:
    job_plan = plan_spark(args=["--day", "monday"])
    assert job_plan.strategy == "spark"
    assert "strategy.pyspark" in [reason.rule for reason in job_plan.reasons]
    assert check_request("CreateProcessingJob", job_plan.requests[0]) == []
    (request,) = json.loads(without_launch_hash(json.dumps(job_plan.requests)))
    bucket = "s3://sagemaker-us-east-1-123456789012/smlaunch"
    assert [tag["Key"] for tag in request["Tags"]] == [
        *("smlaunch:format", "smlaunch:run", "smlaunch:segment", "smlaunch:attempt", "smlaunch:job"),
    ]
    assert {key: value for key, value in request.items() if key != "Tags"} == {
        "ProcessingJobName": "digits-s1-a1",
        "AppSpecification": {
            "ImageUri": "173754725891.dkr.ecr.us-east-1.amazonaws.com/sagemaker-spark-processing:"
            "3.5-cpu-py312-v1",
            "ContainerEntrypoint": ["python3", "/opt/ml/processing/input/smlaunch/runtime.pyz"],
        },
        "ProcessingResources": {
            "ClusterConfig": {"InstanceType": "ml.m5.4xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30}
        },
        "ProcessingInputs": [
            whole_channel("tables", "s3://b/tables/"),
            whole_channel("smlaunch", f"{bucket}/digits/launch/"),
            whole_channel("code", f"{bucket}/source/{'ab' * 32}/"),
        ],
        "ProcessingOutputConfig": {
            "Outputs": [
                {
                    "OutputName": "output",
                    "S3Output": {
                        "S3Uri": f"{bucket}/digits/output/digits-s1-a1/output/",
                        "LocalPath": "/opt/ml/processing/output",
                        "S3UploadMode": "EndOfJob",
                    },
                }
            ]
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": 86400},
        "RoleArn": ROLE,
    }
    assert not any("the whole work" in warning for warning in job_plan.warnings)


@pytest.mark.parametrize(
    ("region_name", "account"), [("us-east-1", "173754725891"), ("eu-west-1", "571004829621")]
)
def test_the_account_is_the_regions(region_name: str, account: str) -> None:
    job_plan = plan({}, region(script=PYSPARK, region=region_name))
    assert job_plan.image.startswith(
        f"{account}.dkr.ecr.{region_name}.amazonaws.com/sagemaker-spark-processing:"
    )


def test_a_master_on_the_leader_a_worker_on_every_host_and_the_driver_on_the_leader() -> None:
    spec = spec_of(plan_spark())
    master, worker = spec.services
    assert (master.name, master.runs_on, master.ready_address) == ("spark-master", "leader", MASTER)
    assert (worker.name, worker.runs_on, worker.ready_address) == ("spark-worker", "all", WORKER)
    assert master.argv[3:] == (
        *("spark-class", "org.apache.spark.deploy.master.Master", "--host", Ref("address")),
        *("--port", Ref("port", offset=4), "--webui-port", "0"),
    )
    assert worker.argv[3:] == (
        *("spark-class", "org.apache.spark.deploy.worker.Worker", "--host", Ref("address")),
        *("--port", Ref("own_port", offset=8), "--webui-port", "0"),
        *("--cores", "16", "--memory", "34160m", URL),
    )
    assert (spec.ranks.runs_on, spec.ranks.per_host, spec.ranks.rendezvous, spec.needs_secret) == (
        "leader",
        1,
        False,
        True,
    )
    assert spec.ranks.argv[3:6] == ("spark-submit", "--master", URL)
    for program in (master, worker, spec.ranks):
        assert dict(program.env)["SPARK_LOCAL_IP"] == Ref("address")
        assert dict(program.env)["PYSPARK_PYTHON"] == Ref("python")


def test_the_driver_knows_where_it_is_and_waits_for_all_workers() -> None:
    spec = spec_of(plan_spark(args=["--day", "monday"]))
    spark_settings = settings(spec)
    assert spark_settings["spark.driver.host"] == Ref("address")
    assert spark_settings["spark.cores.max"] == "32"
    assert spark_settings["spark.scheduler.minRegisteredResourcesRatio"] == "1.0"
    # 64 GiB: 0.9 x 65536 - 2048 MiB, of which three fifths and one.
    assert spark_settings["spark.executor.memory"] == "34160m"
    assert spec.ranks.argv[-5:] == (
        *("--driver-memory", "11386m", Ref("source", suffix="/train.py"), "--day", "monday"),
    )


def test_what_the_options_say() -> None:
    spec = spec_of(plan_spark(options={"cores": 2, "memory": "3g", "driver_memory": "500m"}))
    spark_settings = settings(spec)
    assert (spark_settings["spark.cores.max"], spark_settings["spark.executor.memory"]) == ("4", "3g")
    assert spec.services[1].argv[-5:] == ("--cores", "2", "--memory", "3g", URL)
    assert "500m" in spec.ranks.argv


def test_hosts_of_one_machine_take_a_core_each_and_sparks_own_memory() -> None:
    spec = spec_of(plan_spark(is_local=True))
    assert settings(spec)["spark.cores.max"] == "2"
    assert "spark.executor.memory" not in settings(spec)
    assert "--memory" not in spec.services[1].argv


def test_what_cannot_work_is_told_by_its_field() -> None:
    with pytest.raises(JobError) as caught:
        plan_spark(
            strategy="spark",
            channel={"uri": "s3://b/tables/", "split": "key"},
            options={"cores": 0, "memory": "lots"},
            hyperparameters={"lr": 1},
        )
    messages = {problem.path: problem.message for problem in caught.value.problems}
    assert messages.keys() >= {"inputs.tables.split", "options.cores", "options.memory", "hyperparameters"}
    assert "data on other hosts is never read" in messages["inputs.tables.split"]


def test_sparks_programs_are_found_where_the_image_says_or_beside_pyspark(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "spark-class").touch()
    assert spark_program.find_spark_program("spark-class", {"SPARK_HOME": str(tmp_path)}) == str(
        tmp_path / "bin" / "spark-class"
    )
    with pytest.raises(RuntimeError, match="spark-submit is not there"):
        spark_program.find_spark_program("spark-submit", {"SPARK_HOME": str(tmp_path)})


def test_without_a_spark_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_program, "_pyspark_home", lambda: None)
    with pytest.raises(RuntimeError, match="name pyspark in the requirements"):
        spark_program.find_spark_program("spark-class", {})


def test_scratch_goes_where_this_hosts_temporary_files_go(tmp_path: Path) -> None:
    # What tempfile says is settled once in a process.
    code = (
        "from smlaunch.runtime.spark_program import spark_environment as e; import os; "
        "print(e(os.environ)['SPARK_WORKER_DIR'], e({'SPARK_LOCAL_DIRS': '/disk'})['SPARK_LOCAL_DIRS'])"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True
    )
    assert result.stdout.split() == [str(tmp_path / "spark-worker"), "/disk"]
