"""Jobs that need several attempts, or wait for their hosts: a fault plan on a real endpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from smlaunch.errors import EndpointError
from smlaunch.local import background_endpoint
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from tests.local.client import EndpointClient

SPOT: dict[str, Any] = {
    "EnableManagedSpotTraining": True,
    "StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxWaitTimeInSeconds": 60},
}
FAULTS = {
    "seed": 3,
    "faults": [
        {
            "fault": "spot-interruption",
            "jobs": "taken-*",
            "after": [0.3, 0.5],
            "attempts": [1, 2],
            "away": 0.1,
        },
        {"fault": "spot-interruption", "jobs": "never-back", "after": 0.2, "away": 600},
        {"fault": "host-lost", "jobs": "lost-*", "hosts": "algo-2", "after": 0.3, "attempts": [1, 2]},
        {"fault": "host-lost", "jobs": "disk-lost", "hosts": "algo-2", "after": 2},
        {"fault": "spot-interruption", "jobs": "disk-taken", "after": 1, "away": 600},
        {"fault": "no-capacity", "jobs": "starved-*", "attempts": [1]},
        {"fault": "no-capacity", "jobs": "late-*", "seconds": 0.3},
        {"fault": "no-capacity", "jobs": "choosy", "instance_types": "ml.p5.*"},
        {"fault": "throttle", "operations": "AddTags", "first": 2},
    ],
}
COUNT_ATTEMPTS = """
count = ROOT + "/checkpoints/count"
attempt = int(open(count).read()) + 1 if os.path.exists(count) else 1
print("attempt", attempt, flush=True)
def leave(number, frame):
    with open(count + ".partial", "w") as file:
        file.write(str(attempt))
    os.rename(count + ".partial", count)
    print("told", flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
if attempt < 3:
    while True:
        signal.pause()
open(ROOT + "/model/done", "w").write(str(attempt))
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointClient]:
    home = tmp_path_factory.mktemp("home")
    plan = home / "faults.json"
    plan.write_text(json.dumps(FAULTS))
    settings = Settings(
        checkpoint_sync_seconds=0.1, close_grace_seconds=0.5, stop_grace_seconds=2, spot_notice_seconds=1
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMLAUNCH_FAULTS", str(plan))
        with Endpoint(home / "state", isolation="plain", settings=settings) as info:
            yield EndpointClient(info)


def statuses(job: dict[str, Any]) -> list[str]:
    return [step["Status"] for step in job["SecondaryStatusTransitions"]]


ATTEMPT_STATUSES = ["Starting", "Downloading", "Training"]


def test_an_interrupted_spot_job_resumes_from_its_checkpoints(client: EndpointClient) -> None:
    checkpoints = {"S3Uri": "s3://tests/spot"}
    job = client.run("taken-twice", COUNT_ATTEMPTS, CheckpointConfig=checkpoints, **SPOT)
    interrupted_attempt = [*ATTEMPT_STATUSES, "Interrupted"]
    assert statuses(job) == [
        *interrupted_attempt,
        *interrupted_attempt,
        *ATTEMPT_STATUSES,
        "Uploading",
        "Completed",
    ]
    assert job["TrainingJobStatus"] == "Completed"
    steps = job["SecondaryStatusTransitions"]
    for earlier, later in pairwise(steps):
        assert earlier["EndTime"] == later["StartTime"]
    assert client.read_archive("out/taken-twice/output/model.tar.gz") == {"done": "3"}
    assert 0 < job["BillableTimeInSeconds"] <= job["TrainingTimeInSeconds"]
    streams = client.logs.describe_log_streams(
        logGroupName="/aws/sagemaker/TrainingJobs", logStreamNamePrefix="taken-twice/"
    )["logStreams"]
    assert len(streams) == 3  # new hosts, new streams


def test_on_demand_jobs_are_not_interrupted(client: EndpointClient) -> None:
    job = client.run("taken-not", "time.sleep(0.7)")
    assert statuses(job) == [*ATTEMPT_STATUSES, "Uploading", "Completed"]
    assert job["BillableTimeInSeconds"] == job["TrainingTimeInSeconds"]


def test_max_wait_ends_a_job_without_capacity_for_its_retry(client: EndpointClient) -> None:
    limits = {"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 2}
    job = client.run("never-back", "signal.pause()", **{**SPOT, "StoppingCondition": limits})
    assert statuses(job) == [*ATTEMPT_STATUSES, "Interrupted", "Stopping", "MaxWaitTimeExceeded"]
    assert job["TrainingJobStatus"] == "Stopped"
    assert "ModelArtifacts" not in job or not job["ModelArtifacts"]


def test_a_spot_job_without_capacity(client: EndpointClient) -> None:
    limits = {"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 1}
    job = client.run("starved-spot", "", **{**SPOT, "StoppingCondition": limits})
    assert statuses(job) == ["Starting", "Stopping", "MaxWaitTimeExceeded"]
    assert "Insufficient capacity" in job["SecondaryStatusTransitions"][0]["StatusMessage"]
    assert "TrainingStartTime" not in job


def test_an_interrupted_job_can_be_stopped(client: EndpointClient) -> None:
    client.create("taken-and-stopped", "signal.pause()", **SPOT)
    client.wait("taken-and-stopped", "Interrupted")
    client.sagemaker.stop_training_job(TrainingJobName="taken-and-stopped")
    job = client.wait("taken-and-stopped")
    assert statuses(job)[-2:] == ["Stopping", "Stopped"]


def test_a_lost_host_is_an_internal_error_and_is_retried(client: EndpointClient) -> None:
    retried = client.run(
        "lost-and-tried", "time.sleep(1.5)", hosts=2, RetryStrategy={"MaximumRetryAttempts": 2}
    )
    restarted_attempt = [*ATTEMPT_STATUSES, "Restarting"]
    assert statuses(retried) == [
        *restarted_attempt,
        *restarted_attempt,
        *ATTEMPT_STATUSES,
        "Uploading",
        "Completed",
    ]
    assert "algo-2" in retried["SecondaryStatusTransitions"][3]["StatusMessage"]
    not_retried = client.run("lost-once", "time.sleep(5)", hosts=2)
    assert not_retried["FailureReason"].startswith("InternalServerError: algo-2 failed: host algo-2 was lost")
    retried_once = client.run("lost-few", "time.sleep(5)", hosts=2, RetryStrategy={"MaximumRetryAttempts": 1})
    assert (retried_once["TrainingJobStatus"], statuses(retried_once).count("Restarting")) == ("Failed", 1)


# The file stays open: it is stored only at the end of its host.
KEEP_FILE_OPEN = """
name = json.load(open(ROOT + "/input/config/resourceconfig.json"))["current_host"]
file = open(ROOT + "/checkpoints/" + name, "w")
file.write("state"); file.flush()
"""


def test_the_disk_of_a_lost_host_is_lost_with_it(client: EndpointClient) -> None:
    job = client.run(
        "disk-lost",
        KEEP_FILE_OPEN + "signal.pause()",
        hosts=2,
        CheckpointConfig={"S3Uri": "s3://tests/disk-lost"},
    )
    assert job["FailureReason"].startswith("InternalServerError: algo-2 failed: host algo-2 was lost")
    assert len(client.keys("disk-lost/")) == 1, "the other host had time to leave"


def test_a_host_killed_after_its_notice_loses_its_disk(client: EndpointClient) -> None:
    script = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + KEEP_FILE_OPEN + "time.sleep(600)"
    client.create("disk-taken", script, CheckpointConfig={"S3Uri": "s3://tests/disk-taken"}, **SPOT)
    client.wait("disk-taken", "Interrupted")
    assert client.keys("disk-taken/") == []
    client.sagemaker.stop_training_job(TrainingJobName="disk-taken")
    client.wait("disk-taken")


def test_the_training_s_own_failure_is_not_retried(client: EndpointClient) -> None:
    job = client.run("own-fault", "sys.exit(3)", RetryStrategy={"MaximumRetryAttempts": 5})
    assert statuses(job) == [*ATTEMPT_STATUSES, "Failed"]
    assert job["FailureReason"] == "AlgorithmError: , exit code: 3"


def test_max_runtime_covers_all_attempts_together(client: EndpointClient) -> None:
    limits = {"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 50}
    job = client.run("taken-too-long", "signal.pause()", **{**SPOT, "StoppingCondition": limits})
    assert statuses(job)[-2:] == ["Stopping", "MaxRuntimeExceeded"]
    assert statuses(job).count("Training") > 1


def test_capacity(client: EndpointClient) -> None:
    failed = client.run("starved-on-demand", "")
    assert failed["FailureReason"].startswith("CapacityError: Unable to provision requested ML compute")
    assert statuses(failed) == ["Starting", "Failed"]
    assert statuses(client.run("late-hosts", "")) == [*ATTEMPT_STATUSES, "Uploading", "Completed"]
    pending = {"MaxRuntimeInSeconds": 60, "MaxPendingTimeInSeconds": 7200}
    job = client.run("late-pending", "", StoppingCondition=pending)
    assert statuses(job) == ["Starting", "Pending", *ATTEMPT_STATUSES, "Uploading", "Completed"]


def test_the_first_available_instance_type_is_selected(client: EndpointClient) -> None:
    preferences = [{"InstanceType": name} for name in ("ml.p5.48xlarge", "ml.g5.xlarge", "ml.m5.large")]
    resources = {"InstancePreferences": preferences, "InstanceCount": 2, "VolumeSizeInGB": 1}
    script = "print(json.load(open(ROOT + '/input/config/resourceconfig.json'))['current_instance_type'])"
    job = client.run("choosy", script, ResourceConfig=resources)
    assert job["ResourceConfig"]["SelectedInstanceType"] == "ml.g5.xlarge"
    assert job["ResourceConfig"]["SelectedInstanceCount"] == 2
    assert job["ResourceConfig"]["InstancePreferences"] == preferences
    assert client.printed_lines("choosy") == {label: ["ml.g5.xlarge"] for label in ("algo-1", "algo-2")}


def test_throttling(client: EndpointClient) -> None:
    arn = client.create("throttled", "")
    for _ in range(2):
        with pytest.raises(ClientError, match="Rate exceeded") as raised:
            client.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "a", "Value": "b"}])
        assert raised.value.response["Error"]["Code"] == "ThrottlingException"
    client.sagemaker.add_tags(ResourceArn=arn, Tags=[{"Key": "a", "Value": "b"}])


def test_max_wait_may_be_28_days(client: EndpointClient) -> None:
    limits = {"MaxRuntimeInSeconds": 2_419_200, "MaxWaitTimeInSeconds": 2_500_000}
    job = client.run("late-and-long", "time.sleep(0.1)", **{**SPOT, "StoppingCondition": limits})
    assert job["TrainingJobStatus"] == "Completed"


def test_an_invalid_fault_plan_fails_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMLAUNCH_FAULTS", str(tmp_path / "absent.json"))
    with pytest.raises(EndpointError, match=r"SMLAUNCH_FAULTS=.*absent\.json"):
        Endpoint(tmp_path / "home", isolation="plain").start()


def test_a_background_endpoint_has_the_fault_plan_of_its_starter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(FAULTS))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SMLAUNCH_FAULTS", "plan.json")
    info = background_endpoint.start_endpoint(tmp_path / "home", isolation="plain")
    try:
        assert EndpointClient(info).run("starved-there", "")["FailureReason"].startswith("CapacityError")
    finally:
        background_endpoint.stop_endpoint(tmp_path / "home")
