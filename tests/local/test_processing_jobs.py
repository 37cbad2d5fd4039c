"""Processing jobs on a real endpoint, with boto3 as the client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, WaiterError

from smlaunch.local import api_support, request_rejections
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.fault_injection import FaultPlan, HostLost, NoCapacity
from smlaunch.local.services.processing_jobs import DESCRIBED_MEMBERS
from tests.local import changes
from tests.local.client import PRELUDE, EndpointClient
from tests.local.endpoint_harness import endpoint_harness
from tests.local.executors.conftest import eventually
from tests.local.test_training_jobs_api import fields, has_row_or_parent_row, model

GROUP = "/aws/sagemaker/ProcessingJobs"
FAULTS = FaultPlan(
    faults=(
        HostLost(after=0.3, jobs="lost-*", hosts="algo-2"),
        NoCapacity(jobs="choosy", instance_types="ml.p*"),
    )
)


class Jobs(EndpointClient):
    """The same few lines of Python, run as processing jobs."""

    def request(self, name: str, script: str, hosts: int = 1, **changes: Any) -> dict[str, Any]:
        self.put(f"code/{name}/script.py", (PRELUDE + script).encode())
        cluster = {"InstanceType": "ml.m5.large", "InstanceCount": hosts, "VolumeSizeInGB": 1}
        return {
            "ProcessingJobName": name,
            "RoleArn": self.info.role_arn,
            "AppSpecification": {
                "ImageUri": "image:1",
                "ContainerEntrypoint": ["python3", "-u", "/opt/ml/processing/input/code/script.py"],
            },
            "ProcessingResources": {"ClusterConfig": cluster},
            **changes,
            "ProcessingInputs": [
                s3_input("code", f"s3://tests/code/{name}/script.py", "/opt/ml/processing/input/code"),
                *changes.get("ProcessingInputs", []),
            ],
        }

    def create(self, name: str, script: str, hosts: int = 1, **changes: Any) -> str:
        answer = self.sagemaker.create_processing_job(**self.request(name, script, hosts, **changes))
        return str(answer["ProcessingJobArn"])

    def describe(self, name: str) -> dict[str, Any]:
        job: dict[str, Any] = self.sagemaker.describe_processing_job(ProcessingJobName=name)
        return job

    def wait(self, name: str, *until: str, patience: float = 60.0) -> dict[str, Any]:
        def find_job() -> dict[str, Any] | None:
            job = self.describe(name)
            return job if job["ProcessingJobStatus"] in {*until, "Completed", "Failed", "Stopped"} else None

        job = changes.until(self.info.home, find_job, patience)
        assert job is not None, f"{name} did not end: {self.describe(name)}"
        return job

    def log_lines(self, name: str) -> dict[str, list[str]]:
        """Return the lines of each host's log by the host's label."""
        lines_by_label = {}
        try:
            streams = self.logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")
        except self.logs.exceptions.ResourceNotFoundException:
            return {}
        for stream in streams["logStreams"]:
            stream_name = stream["logStreamName"]
            events = self.logs.get_log_events(
                logGroupName=GROUP, logStreamName=stream_name, startFromHead=True
            )
            label = stream_name.partition("/")[2].rpartition("-")[0]
            lines_by_label[label] = [event["message"] for event in events["events"]]
        return lines_by_label

    def bodies(self, prefix: str) -> dict[str, str]:
        return {
            key.removeprefix(prefix): self.s3.get_object(Bucket="tests", Key=key)["Body"].read().decode()
            for key in self.keys(prefix)
        }


def s3_input(name: str, uri: str, path: str, **changes: Any) -> dict[str, Any]:
    s3 = {"S3Uri": uri, "LocalPath": path, "S3DataType": "S3Prefix", "S3InputMode": "File", **changes}
    return {"InputName": name, "S3Input": s3}


def outputs(mode: str = "EndOfJob", path: str = "/opt/ml/processing/out", key: str = "out") -> dict[str, Any]:
    s3 = {"S3Uri": f"s3://tests/{key}", "LocalPath": path, "S3UploadMode": mode}
    return {"Outputs": [{"OutputName": "out", "S3Output": s3}]}


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    settings = Settings(
        checkpoint_sync_seconds=0.1, failed_peer_grace_seconds=0.5, stop_grace_seconds=5.0, faults=FAULTS
    )
    with Endpoint(tmp_path_factory.mktemp("home"), settings=settings) as info:
        yield Jobs(info)


@pytest.fixture
def plain_jobs(tmp_path: Path) -> Iterator[Jobs]:
    with Endpoint(tmp_path / "home", isolation="plain") as info:
        yield Jobs(info)


def test_inputs_and_outputs_of_a_processing_job(jobs: Jobs) -> None:
    check_inputs_and_outputs(jobs)


def test_inputs_and_outputs_at_level_plain(plain_jobs: Jobs) -> None:
    check_inputs_and_outputs(plain_jobs)


def check_inputs_and_outputs(jobs: Jobs) -> None:
    for number in range(5):
        jobs.put(f"data/part-{number}", b"12345"[:number])
    jobs.put("lists/some.json", json.dumps([{"prefix": "s3://tests/data/"}, "part-1", "part-3"]).encode())
    script = """
place = ROOT + "/processing/"
host = json.load(open(ROOT + "/config/resourceconfig.json"))
job = json.load(open(ROOT + "/config/processingjobconfig.json"))
found = {name: sorted(os.listdir(place + name)) for name in ("all", "mine", "listed", "deep/est")}
found |= {"host": host, "job": job, "env": os.environ["MINE"], "argv": sys.argv[1:], "cwd": os.getcwd()}
rank = host["hosts"].index(host["current_host"])
os.makedirs(place + "out/deep", exist_ok=True)
with open(place + f"out/deep/{rank}.json", "w") as file:
    json.dump(found, file)
os.symlink("/etc/hostname", place + f"out/link-{rank}")
open(ROOT + "/output/message", "w").write(f"host {rank} read {len(found['mine'])};")
"""
    changes: dict[str, Any] = {
        "ProcessingInputs": [
            s3_input("all", "s3://tests/data/", "/opt/ml/processing/all"),
            s3_input(
                "mine",
                "s3://tests/data/",
                "/opt/ml/processing/mine/",
                S3DataDistributionType="ShardedByS3Key",
            ),
            s3_input(
                "listed", "s3://tests/lists/some.json", "/opt/ml/processing/listed", S3DataType="ManifestFile"
            ),
            {"InputName": "own", "AppManaged": True},
        ],
        "Environment": {"MINE": "a b\n'"},
    }
    config = outputs()
    config["Outputs"].append(
        {
            "OutputName": "empty",
            "S3Output": {
                "S3Uri": "s3://made-bucket/x",
                "LocalPath": "/opt/ml/processing/deep/est",
                "S3UploadMode": "EndOfJob",
            },
        }
    )
    request = jobs.request("whole", script, 2, ProcessingOutputConfig=config, **changes)
    request["AppSpecification"]["ContainerArguments"] = ["--n", "a b"]
    jobs.sagemaker.create_processing_job(**request)
    waiter = jobs.sagemaker.get_waiter("processing_job_completed_or_stopped")
    waiter.wait(ProcessingJobName="whole", WaiterConfig={"Delay": 0.1, "MaxAttempts": 600})
    job = jobs.describe("whole")
    assert job["ProcessingJobStatus"] == "Completed", job.get("FailureReason")
    one, two = (json.loads(text) for text in jobs.bodies("out/deep/").values())
    assert sorted(jobs.keys("out/")) == ["out/deep/0.json", "out/deep/1.json"]
    for host in (one, two):
        assert host["host"].keys() == {"current_host", "hosts"}
        assert host["all"] == [f"part-{number}" for number in range(5)]
        assert host["listed"] == ["part-1", "part-3"]
        assert host["deep/est"] == []
        assert (host["env"], host["argv"]) == ("a b\n'", ["--n", "a b"])
        assert host["job"] == {"ProcessingJobArn": job["ProcessingJobArn"], **request}
    assert sorted(one["mine"] + two["mine"]) == one["all"]
    assert not set(one["mine"]) & set(two["mine"])
    lengths = [len(host["mine"]) for host in (one, two)]
    assert job["ExitMessage"] == f"host 0 read {lengths[0]};host 1 read {lengths[1]};"
    assert job["ProcessingStartTime"] <= job["ProcessingEndTime"]
    logs = jobs.log_lines("whole")
    assert len(logs) == 2
    text = "\n".join(logs["algo-1"])
    assert "image image:1 is not run" in text
    assert "bucket made-bucket was not there" in text
    assert "link-0 is a symbolic link" in text


def test_continuous_outputs_are_uploaded_while_the_job_runs_and_after_a_failure(jobs: Jobs) -> None:
    script = """
place = ROOT + "/processing/live/"
open(place + "early", "w").write("1")
while not os.path.exists(ROOT + "/go"):
    time.sleep(0.02)
    if os.path.getmtime(place + "early") + 1.5 < time.time():
        break
os.remove(place + "early")
open(place + "late", "w").write("2")
open(ROOT + "/output/message", "w").write("no luck")
open(ROOT + "/output/failure", "w").write("not read")
sys.exit(7)
"""
    jobs.create(
        "live", script, ProcessingOutputConfig=outputs("Continuous", "/opt/ml/processing/live", "live")
    )
    has_live_upload = False
    while jobs.describe("live")["ProcessingJobStatus"] == "InProgress":
        has_live_upload = has_live_upload or jobs.keys("live/") == ["live/early"]
    job = jobs.wait("live")
    assert has_live_upload
    assert (job["ProcessingJobStatus"], job["FailureReason"]) == ("Failed", "AlgorithmError: , exit code: 7")
    assert job["ExitMessage"] == "no luck"
    assert jobs.bodies("live/") == {"early": "1", "late": "2"}


def test_outputs_of_a_failed_job_are_not_uploaded(jobs: Jobs) -> None:
    script = "open(ROOT + '/processing/out/x', 'w').write('x'); sys.exit(1)"
    jobs.create("failed", script, ProcessingOutputConfig=outputs(key="failed"))
    assert jobs.wait("failed")["ProcessingJobStatus"] == "Failed"
    with pytest.raises(WaiterError, match="terminal failure"):
        jobs.sagemaker.get_waiter("processing_job_completed_or_stopped").wait(ProcessingJobName="failed")
    assert jobs.keys("failed/") == []


@pytest.mark.parametrize(
    ("name", "content", "status", "message"),
    [
        ("long", b"x" * 5000, "Completed", "x" * 1024),
        ("cut", b"x" * 1023 + "ü".encode() + b"y", "Completed", "x" * 1023),
        ("latin", "ü".encode("latin-1"), "Failed", None),
        ("none", b"", "Completed", None),
    ],
)
def test_the_exit_message(jobs: Jobs, name: str, content: bytes, status: str, message: str | None) -> None:
    job = name + "-message"
    jobs.create(job, f"open(ROOT + '/output/message', 'wb').write({content!r})")
    ended = jobs.wait(job)
    assert (ended["ProcessingJobStatus"], ended.get("ExitMessage")) == (status, message)
    if status == "Failed":
        assert ended["FailureReason"].startswith("ClientError: the exit message")


WAIT_FOR_STOP = """
def leave(number, frame):
    open(ROOT + "/output/message", "w").write("told")
    sys.exit(3)
signal.signal(signal.SIGTERM, leave)
import json
host = json.load(open(ROOT + "/config/resourceconfig.json"))["current_host"]
open(ROOT + "/processing/out/" + host, "w").write("begun")
while True:
    signal.pause()
"""


def test_a_stop_sends_sigterm(jobs: Jobs) -> None:
    jobs.create("stopped", WAIT_FOR_STOP, 2, ProcessingOutputConfig=outputs("Continuous", key="stopped"))
    while len(jobs.keys("stopped/")) < 2:  # a host that has not started yet gets no SIGTERM
        assert jobs.describe("stopped")["ProcessingJobStatus"] == "InProgress"
    jobs.sagemaker.stop_processing_job(ProcessingJobName="stopped")
    job = jobs.wait("stopped")
    assert job["ProcessingJobStatus"] == "Stopped"
    assert job["ExitMessage"] == "toldtold"
    assert "FailureReason" not in job
    with pytest.raises(ClientError, match="in status Stopped"):
        jobs.sagemaker.stop_processing_job(ProcessingJobName="stopped")


def test_max_runtime_stops(jobs: Jobs) -> None:
    limit: dict[str, Any] = {"StoppingCondition": {"MaxRuntimeInSeconds": 1}}
    jobs.create("long", WAIT_FOR_STOP, ProcessingOutputConfig=outputs(key="long"), **limit)
    job = jobs.wait("long")
    assert (job["ProcessingJobStatus"], job["StoppingCondition"]) == ("Stopped", limit["StoppingCondition"])
    assert jobs.keys("long/") == []


def test_faults_apply_to_processing_jobs(jobs: Jobs) -> None:
    jobs.create("lost-1", "time.sleep(60)", 2)
    cluster = {
        "InstancePreferences": [{"InstanceType": "ml.p3.2xlarge"}, {"InstanceType": "ml.m5.large"}],
        "VolumeSizeInGB": 1,
    }
    jobs.create("choosy", "", ProcessingResources={"ClusterConfig": cluster})
    assert jobs.wait("choosy")["ProcessingResources"]["ClusterConfig"] == {
        **cluster,
        "SelectedInstanceType": "ml.m5.large",
        "SelectedInstanceCount": 1,
    }
    lost = jobs.wait("lost-1")
    assert lost["FailureReason"].startswith("InternalServerError: ")


def test_names_lists_tags_and_deletion(jobs: Jobs) -> None:
    arn = jobs.create("Listed-1", "", Tags=[{"Key": "k", "Value": "v"}])
    assert arn == f"arn:aws:sagemaker:us-east-1:{jobs.info.account}:processing-job/listed-1"
    with pytest.raises(jobs.sagemaker.exceptions.ResourceInUse):
        jobs.create("Listed-1", "")
    jobs.create("Listed-2", "sys.exit(1)")
    for name in ("Listed-1", "Listed-2"):
        jobs.wait(name)
    pages = jobs.sagemaker.get_paginator("list_processing_jobs").paginate(
        NameContains="Listed-", SortBy="Name", SortOrder="Descending", PaginationConfig={"PageSize": 1}
    )
    summaries = [one for page in pages for one in page["ProcessingJobSummaries"]]
    assert [(one["ProcessingJobName"], one["ProcessingJobStatus"]) for one in summaries] == [
        ("Listed-2", "Failed"),
        ("Listed-1", "Completed"),
    ]
    assert summaries[0]["FailureReason"] == "AlgorithmError: , exit code: 1"
    # Each kind of job has names of its own.
    assert "Listed-1" not in str(jobs.sagemaker.list_training_jobs()["TrainingJobSummaries"])
    tags = jobs.sagemaker.list_tags(ResourceArn=arn)["Tags"]
    assert tags == [{"Key": "k", "Value": "v"}]
    jobs.sagemaker.delete_processing_job(ProcessingJobName="Listed-1")
    with pytest.raises(ClientError, match="Could not find requested job with name: Listed-1"):
        jobs.describe("Listed-1")


def test_jobs_of_a_killed_endpoint_are_failed_by_the_next() -> None:
    with endpoint_harness("plain") as harness:
        client = Jobs(harness.start())
        client.create("orphaned", "print('here', flush=True); time.sleep(600)")
        assert eventually(lambda: "here" in str(client.log_lines("orphaned")))
        harness.kill()
        job = Jobs(harness.start()).describe("orphaned")
        assert job["ProcessingJobStatus"] == "Failed"
        assert job["FailureReason"].startswith("InternalServerError: the endpoint that ran this job ended")


def test_unavailable_input_data(jobs: Jobs) -> None:
    wanted = s3_input("void", "s3://tests/nothing/", "/opt/ml/processing/void")
    jobs.create("void", "", ProcessingInputs=[wanted])
    reason = jobs.wait("void")["FailureReason"]
    assert reason.startswith("ClientError: Data download failed:No S3 objects found")


def test_rejections_name_every_field(jobs: Jobs) -> None:
    def rejection_text(**changes: Any) -> str:
        with pytest.raises(ClientError) as raised:
            jobs.create("refused", "", **changes)
        assert raised.value.response["Error"]["Code"] == "ValidationException"
        return str(raised.value)

    wanted = [
        s3_input("pipe", "s3://tests/x", "/opt/ml/processing/x", S3InputMode="Pipe"),
        s3_input("up", "s3://tests/x", "/opt/ml/processing/../y"),
        s3_input("twice", "s3://tests/x", "/opt/ml/processing/input/code/"),
        {"InputName": "nothing"},
    ]
    text = rejection_text(ProcessingInputs=wanted, AppSpecification={"ImageUri": "image"})
    for part in (
        "ProcessingInputs[1].S3Input.S3InputMode: Pipe",
        "ProcessingInputs[2].S3Input.LocalPath: /opt/ml/processing/../y",
        "ProcessingInputs[3].S3Input.LocalPath: /opt/ml/processing/input/code/: ProcessingInputs[0]",
        "ProcessingInputs[4].S3Input: it is required",
        "AppSpecification.ContainerEntrypoint",
    ):
        assert part in text, part
    text = rejection_text(
        ProcessingInputs=[s3_input("away", "s3://tests/x", "/tmp/x", S3CompressionType="Gzip")]
    )
    assert "LocalPath must begin with /opt/ml/processing/" in text
    assert "S3CompressionType Gzip needs S3InputMode Pipe" in text
    with pytest.raises(ClientError, match="Could not find"):
        jobs.describe("refused")


def test_the_support_matrix_has_every_field_of_the_request() -> None:
    known = set(fields("CreateProcessingJobRequest", ""))
    for path in known:
        assert has_row_or_parent_row(path, api_support.PROCESSING_JOB_SUPPORT), path
    for path, row in api_support.PROCESSING_JOB_SUPPORT.items():
        assert path in known, f"{path} is no field of CreateProcessingJob"
        assert row.note or row.level == "supported", path
    accepted = {path for path in api_support.PROCESSING_JOB_SUPPORT if "." not in path}
    described = model()["shapes"]["DescribeProcessingJobResponse"]["members"].keys()
    assert (accepted & described) - {"ProcessingJobName"} == set(DESCRIBED_MEMBERS)


def test_an_input_with_the_location_of_an_output_lacks_its_own() -> None:
    request = {
        "AppSpecification": {"ContainerEntrypoint": ["x"]},
        "ProcessingInputs": [{"InputName": "a", "S3Output": {"LocalPath": "/opt/ml/processing/a"}}],
    }
    assert [field for field, _ in request_rejections.processing_rejections(request)] == [
        "ProcessingInputs[0].S3Input"
    ]
