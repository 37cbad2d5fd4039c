"""Jobs end to end at every isolation level: boto3 against a real endpoint with real host processes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from smlaunch.errors import EndpointError
from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors import process_cleanup
from smlaunch.local.executors.isolation_levels import ISOLATION_LEVELS
from smlaunch.local.state_dir import StateDir
from tests.local.client import EndpointClient
from tests.local.executors.conftest import level_or_skip

SETTINGS = Settings(stop_grace_seconds=3, checkpoint_sync_seconds=0.1, close_grace_seconds=1)


@pytest.fixture(scope="module", params=ISOLATION_LEVELS)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EndpointClient]:
    level_or_skip(request.param)
    home = tmp_path_factory.mktemp(f"home-{request.param}")
    endpoint = Endpoint(home, isolation=request.param, settings=SETTINGS)
    info = endpoint.start()
    state = StateDir(home)
    (owner,) = (lock.stem for lock in state.owners_dir.glob("*.lock"))
    yield EndpointClient(info)
    endpoint.close()
    assert list(state.hosts_dir.iterdir()) == []
    assert list(state.owners_dir.iterdir()) == []
    assert process_cleanup.find_processes_of_owner(owner + "/") == []
    assert list(Path(tempfile.gettempdir()).glob(f"sml-{owner}*")) == []


def statuses(job: dict[str, Any]) -> list[str]:
    return [step["Status"] for step in job["SecondaryStatusTransitions"]]


def test_a_job_on_two_hosts_from_data_to_model(client: EndpointClient) -> None:
    for number in range(5):
        client.put(f"data/part-{number}", b"x")
    client.put("ckpt/before", b"earlier")
    sharded = {
        "S3DataType": "S3Prefix",
        "S3Uri": "s3://tests/data/",
        "S3DataDistributionType": "ShardedByS3Key",
    }
    script = """
config = json.load(open(ROOT + "/input/config/resourceconfig.json"))
me = config["current_host"]
assert socket.gethostbyname(me).startswith("127.")
print(config["hosts"].index(me), sorted(os.listdir(ROOT + "/input/data/train")))
print(json.load(open(ROOT + "/input/config/hyperparameters.json")), os.environ["TRAINING_JOB_NAME"])
print(open(ROOT + "/checkpoints/before").read())
number = config["hosts"].index(me)
open(f"{ROOT}/checkpoints/after-{number}", "w").write("x")
open(f"{ROOT}/model/of-{number}", "w").write(str(number))
print("to stderr", file=sys.stderr)
"""
    job = client.run(
        "whole",
        script,
        hosts=2,
        HyperParameters={"lr": "0.1"},
        InputDataConfig=[{"ChannelName": "train", "DataSource": {"S3DataSource": sharded}}],
        CheckpointConfig={"S3Uri": "s3://tests/ckpt"},
    )
    assert job["TrainingJobStatus"] == "Completed", (job, client.lines("whole"))
    assert statuses(job) == ["Starting", "Downloading", "Training", "Uploading", "Completed"]
    printed = client.printed_lines("whole")
    assert printed["algo-1"] == [
        "0 ['part-0', 'part-2', 'part-4']",
        "{'lr': '0.1'} whole",
        "earlier",
        "to stderr",
    ]
    assert printed["algo-2"][0] == "1 ['part-1', 'part-3']"
    assert client.keys("ckpt/") == ["ckpt/after-0", "ckpt/after-1", "ckpt/before"]
    assert job["ModelArtifacts"]["S3ModelArtifacts"] == "s3://tests/out/whole/output/model.tar.gz"
    assert client.read_archive("out/whole/output/model.tar.gz") == {"of-0": "0", "of-1": "1"}
    log_text = "\n".join(client.lines("whole")["algo-1"])
    assert "image image:1 is not run" in log_text
    assert "ResourceConfig.VolumeSizeInGB" in log_text


def test_the_first_failing_host_is_the_failure_reason_and_stops_the_others(client: EndpointClient) -> None:
    script = """
me = json.load(open(ROOT + "/input/config/resourceconfig.json"))
if me["hosts"].index(me["current_host"]) == 0:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(55))
    print("waiting", flush=True)
    time.sleep(1000)
time.sleep(0.3)  # a pid 1 that has no handler yet would not hear SIGTERM
open(ROOT + "/output/failure", "w").write("the reason")
sys.exit(3)
"""
    job = client.run("fails", script, hosts=2)
    assert job["TrainingJobStatus"] == job["SecondaryStatus"] == "Failed"
    assert job["FailureReason"] == "AlgorithmError: the reason, exit code: 3"
    assert "ModelArtifacts" not in job
    assert statuses(job)[-2:] == ["Training", "Failed"]


def test_a_failed_job_leaves_what_it_has_written(client: EndpointClient) -> None:
    script = """
os.makedirs(ROOT + "/output/data", exist_ok=True)
open(f"{ROOT}/output/data/trace", "w").write("step 7")
sys.exit(3)
"""
    job = client.run("leaves", script)
    assert job["FailureReason"] == "AlgorithmError: , exit code: 3"
    assert "ModelArtifacts" not in job
    assert client.keys("out/leaves/") == ["out/leaves/output/output.tar.gz"]
    assert client.read_archive("out/leaves/output/output.tar.gz") == {"trace": "step 7"}
    # An output that cannot be uploaded does not hide the failure.
    job = client.run("leaves-again", script, OutputDataConfig={"S3OutputPath": "s3://no-such-bucket/out"})
    assert job["FailureReason"] == "AlgorithmError: , exit code: 3"


def test_a_host_may_finish_early(client: EndpointClient) -> None:
    script = """
me = json.load(open(ROOT + "/input/config/resourceconfig.json"))
if me["hosts"].index(me["current_host"]) == 1: time.sleep(0.3)
"""
    assert client.run("early", script, hosts=2)["TrainingJobStatus"] == "Completed"


SAVE_ON_SIGTERM = """
def leave(*_):
    open(ROOT + "/checkpoints/told-" + me, "w").write("x")
    open(ROOT + "/model/kept-" + me, "w").write("x")
    sys.exit(7)
config = json.load(open(ROOT + "/input/config/resourceconfig.json"))
me = str(config["hosts"].index(config["current_host"]))
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True: signal.pause()
"""


def test_a_stop_reaches_every_host_and_uploads_what_it_saved(client: EndpointClient) -> None:
    client.create("stops", SAVE_ON_SIGTERM, hosts=2, CheckpointConfig={"S3Uri": "s3://tests/stop-ckpt"})
    client.wait_for_line("stops", "ready", count=2)
    client.sagemaker.stop_training_job(TrainingJobName="stops")
    job = client.wait("stops")
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert statuses(job) == ["Starting", "Downloading", "Training", "Stopping", "Stopped"]
    assert "FailureReason" not in job
    assert client.keys("stop-ckpt/") == ["stop-ckpt/told-0", "stop-ckpt/told-1"]
    assert set(client.read_archive("out/stops/output/model.tar.gz")) == {"kept-0", "kept-1"}
    with pytest.raises(client.sagemaker.exceptions.ClientError, match="is in status Stopped"):
        client.sagemaker.stop_training_job(TrainingJobName="stops")


def test_max_runtime_ends_a_job_the_same_way(client: EndpointClient) -> None:
    job = client.run(
        "too-long",
        SAVE_ON_SIGTERM,
        StoppingCondition={"MaxRuntimeInSeconds": 1},
        CheckpointConfig={"S3Uri": "s3://tests/long-ckpt"},
    )
    assert (job["TrainingJobStatus"], job["SecondaryStatus"]) == ("Stopped", "MaxRuntimeExceeded")
    assert client.keys("long-ckpt/") == ["long-ckpt/told-0"]
    assert job["TrainingTimeInSeconds"] >= 1


@pytest.mark.parametrize(
    ("name", "uri", "reason"),
    [
        (
            "no-data",
            "s3://tests/nothing/here",
            "ClientError: Data download failed:No S3 objects found under S3",
        ),
        (
            "no-bucket",
            "s3://not-there-at-all/x",
            "ClientError: Data download failed:No S3 objects found under S3",
        ),
    ],
)
def test_missing_input_data(client: EndpointClient, name: str, uri: str, reason: str) -> None:
    source = {"S3DataType": "S3Prefix", "S3Uri": uri}
    channels = [{"ChannelName": "train", "DataSource": {"S3DataSource": source}}]
    job = client.run(name, "print('never')", InputDataConfig=channels)
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith(reason)
    assert uri in job["FailureReason"]
    assert statuses(job) == ["Starting", "Downloading", "Failed"]


def test_an_entry_point_that_does_not_exist(client: EndpointClient) -> None:
    algorithm = {
        "TrainingImage": "image:1",
        "TrainingInputMode": "File",
        "ContainerEntrypoint": ["no-such-program"],
    }
    job = client.run("no-entry", "", AlgorithmSpecification=algorithm)
    assert "no-such-program" in job["FailureReason"]
    assert job["FailureReason"].endswith(", exit code: 127")
    del algorithm["ContainerEntrypoint"]
    job = client.run("no-train", "", AlgorithmSpecification=algorithm)
    assert "train" in job["FailureReason"]
    assert "ContainerEntrypoint" in job["FailureReason"]


def test_a_missing_output_bucket_is_created_and_logged(client: EndpointClient) -> None:
    bucket = f"fresh-{client.info.isolation}"
    job = client.run("new-bucket", "", OutputDataConfig={"S3OutputPath": f"s3://{bucket}/x"})
    assert job["TrainingJobStatus"] == "Completed"
    assert client.s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 1
    assert f"bucket {bucket} was not there and has been made" in "\n".join(
        client.lines("new-bucket")["algo-1"]
    )


def test_an_output_that_cannot_be_written(client: EndpointClient) -> None:
    job = client.run("no-output", "", OutputDataConfig={"S3OutputPath": "s3://Never_Made/x"})
    assert job["TrainingJobStatus"] == "Failed"
    assert job["FailureReason"].startswith("ClientError: The specified bucket is not valid")


def test_a_script_can_call_the_endpoint_with_its_environment(client: EndpointClient) -> None:
    script = """
import boto3
print(boto3.client("s3").get_object(Bucket="tests", Key="for-the-script")["Body"].read().decode())
print(boto3.client("sts").get_caller_identity()["Account"])
"""
    client.put("for-the-script", b"reached")
    job = client.run("calls-back", script)
    assert client.printed_lines("calls-back") == {"algo-1": ["reached", "000000000000"]}, job


def test_a_large_channel_may_be_written_to_without_harm(client: EndpointClient) -> None:
    for number in range(100):
        client.put(f"large/{number:03}", b"original")
    source = {"S3DataType": "S3Prefix", "S3Uri": "s3://tests/large"}
    channels = [{"ChannelName": "large", "DataSource": {"S3DataSource": source}}]
    script = """
folder = ROOT + "/input/data/large/"
print(len(os.listdir(folder)))
for name in sorted(os.listdir(folder)):
    with open(folder + name, "r+") as file: file.write("HARM")
os.unlink(folder + "099")
print(open(folder + "000").read(), len(os.listdir(folder)))
"""
    client.run("writes", script, InputDataConfig=channels)
    assert client.printed_lines("writes") == {"algo-1": ["100", "HARMinal 99"]}
    assert len(client.keys("large/")) == 100
    assert client.s3.get_object(Bucket="tests", Key="large/000")["Body"].read() == b"original"


def test_programs_may_make_sockets_in_their_temporary_directory(client: EndpointClient) -> None:
    script = """
import multiprocessing.connection, tempfile
with multiprocessing.connection.Listener(family="AF_UNIX"): print("listens")
open(tempfile.gettempdir() + "/mine", "w").write("x"); print(os.listdir(tempfile.gettempdir()))
"""
    name = "a-job-with-a-rather-long-name-that-makes-its-paths-longer-still"
    client.run(name, script)
    assert client.printed_lines(name)["algo-1"][0] == "listens"


def test_the_same_name_in_two_regions_at_once(client: EndpointClient) -> None:
    other = EndpointClient(replace(client.info, region="eu-west-1"))
    for each in (client, other):
        each.create("twice", "time.sleep(0.2)")
    assert {each.wait("twice")["TrainingJobStatus"] for each in (client, other)} == {"Completed"}


def test_several_jobs_at_once(client: EndpointClient) -> None:
    """All run at the same time: the ports of a job that has ended may be those of the next one."""
    names = [f"one-of-{number}" for number in range(4)]
    script = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(os.environ["SMLAUNCH_PORT"], "has-started")
signal.pause()
"""
    for name in names:
        client.create(name, script, hosts=2)
    for name in names:
        client.wait_for_line(name, "has-started", count=2, patience=60)
    for name in names:
        client.sagemaker.stop_training_job(TrainingJobName=name)
    assert {client.wait(name)["TrainingJobStatus"] for name in names} == {"Stopped"}
    ports = {client.printed_lines(name)["algo-1"][0].split()[0] for name in names}
    assert len(ports) == 4


def test_a_port_in_use(tmp_path: Path) -> None:
    with Endpoint(tmp_path / "one", isolation="plain") as info:
        port = int(info.url.rpartition(":")[2])
        with pytest.raises(EndpointError, match=f"port {port} of 127.0.0.1"):
            Endpoint(tmp_path / "two", isolation="plain", port=port).start()
    assert list(StateDir(tmp_path / "two").owners_dir.iterdir()) == []


def test_an_unknown_executor(tmp_path: Path) -> None:
    with pytest.raises(EndpointError, match="'slurmy' is unknown"):
        Endpoint(tmp_path, executor="slurmy")
    with pytest.raises(EndpointError, match="isolation levels belong to the executor `processes`"):
        Endpoint(tmp_path, executor="containers", isolation="full")
    settings = Settings(container_engine="rkt")
    with pytest.raises(EndpointError, match="engine 'rkt' is unknown; there are podman, docker"):
        Endpoint(tmp_path, executor="containers", settings=settings).start()
