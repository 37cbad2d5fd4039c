"""Update, Delete, Search, warm pools, metrics and TensorBoard output of a real endpoint, by boto3."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from smlaunch.local.endpoint import Endpoint
from smlaunch.local.endpoint_settings import Settings
from tests.local.client import EndpointClient

SETTINGS = Settings(checkpoint_sync_seconds=0.1, close_grace_seconds=0.5, stop_grace_seconds=2)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EndpointClient]:
    with Endpoint(tmp_path_factory.mktemp("home"), isolation="plain", settings=SETTINGS) as info:
        yield EndpointClient(info)


def test_a_deleted_job_s_name_can_be_used_again(client: EndpointClient) -> None:
    delete, name = client.sagemaker.delete_training_job, {"TrainingJobName": "twice"}
    client.create("twice", "signal.pause()")
    with pytest.raises(client.sagemaker.exceptions.ResourceInUse, match=r"InProgress|Stopping"):
        delete(**name)
    client.sagemaker.stop_training_job(**name)
    client.wait("twice")
    delete(**name)
    with pytest.raises(ClientError, match="not found"):
        client.describe("twice")
    with pytest.raises(client.sagemaker.exceptions.ResourceNotFound):
        delete(**name)
    assert client.run("twice", "")["TrainingJobStatus"] == "Completed"


# Warm pools


def warm_pool_config(seconds: int, **changes: Any) -> dict[str, Any]:
    resources = {"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}
    return {"ResourceConfig": {**resources, "KeepAlivePeriodInSeconds": seconds, **changes}}


def warm_pool_status(client: EndpointClient, name: str) -> dict[str, Any] | None:
    status: dict[str, Any] | None = client.describe(name).get("WarmPoolStatus")
    return status


def test_a_warm_pool_is_retained_reused_and_released(client: EndpointClient) -> None:
    client.create("warm-1", "time.sleep(0.3)", **warm_pool_config(600))
    assert warm_pool_status(client, "warm-1") == {"Status": "InUse"}
    client.wait("warm-1")
    retained_pool = warm_pool_status(client, "warm-1")
    assert retained_pool is not None
    assert retained_pool["Status"] == "Available"
    summaries = client.sagemaker.list_training_jobs(WarmPoolStatusEquals="Available")["TrainingJobSummaries"]
    assert [job["TrainingJobName"] for job in summaries] == ["warm-1"]
    with pytest.raises(client.sagemaker.exceptions.ResourceInUse, match="warm pool"):
        client.sagemaker.delete_training_job(TrainingJobName="warm-1")

    client.run("other-type", "", **warm_pool_config(600, InstanceType="ml.c5.xlarge"))
    assert (warm_pool_status(client, "warm-1") or {})["Status"] == "Available"
    client.run("warm-2", "", **warm_pool_config(600))
    reused_pool = warm_pool_status(client, "warm-1")
    assert reused_pool is not None
    assert (reused_pool["Status"], reused_pool["ReusedByJob"]) == ("Reused", "warm-2")
    assert reused_pool["ResourceRetainedBillableTimeInSeconds"] >= 0
    client.sagemaker.delete_training_job(TrainingJobName="warm-1")

    update = client.sagemaker.update_training_job
    update(TrainingJobName="warm-2", ResourceConfig={"KeepAlivePeriodInSeconds": 0})
    assert (warm_pool_status(client, "warm-2") or {})["Status"] == "Terminated"
    with pytest.raises(ClientError, match="no warm pool"):
        update(TrainingJobName="warm-2", ResourceConfig={"KeepAlivePeriodInSeconds": 60})


def test_a_warm_pool_expires(client: EndpointClient) -> None:
    client.run("brief", "", **warm_pool_config(1, InstanceType="ml.m4.xlarge"))
    deadline = time.monotonic() + 10
    while (warm_pool_status(client, "brief") or {})["Status"] == "Available" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert warm_pool_status(client, "brief") == {
        "Status": "Terminated",
        "ResourceRetainedBillableTimeInSeconds": 1,
    }


def test_a_warm_pool_update_of_a_running_job_applies_at_its_end(client: EndpointClient) -> None:
    client.create("extended", "signal.pause()", **warm_pool_config(5, InstanceType="ml.m4.2xlarge"))
    client.wait("extended", "Training")
    update = client.sagemaker.update_training_job
    update(TrainingJobName="extended", ResourceConfig={"KeepAlivePeriodInSeconds": 900})
    client.sagemaker.stop_training_job(TrainingJobName="extended")
    job = client.wait("extended")
    assert job["ResourceConfig"]["KeepAlivePeriodInSeconds"] == 900
    assert job["WarmPoolStatus"]["Status"] == "Available"
    client.run("cold", "")
    with pytest.raises(ClientError, match="no warm pool"):
        update(TrainingJobName="cold", ResourceConfig={"KeepAlivePeriodInSeconds": 9})


# Search


@pytest.fixture(scope="module")
def searched_jobs(client: EndpointClient) -> None:
    for number, lr in enumerate((0.1, 0.01, 0.001)):
        script = f"print('accuracy={0.5 + number / 10};'); sys.exit({number} == 2)"
        definitions = [{"Name": "test:acc", "Regex": "accuracy=([0-9.]+);"}]
        request = client.request(
            f"sought-{number}",
            script,
            HyperParameters={"lr": str(lr), "model.size": "big"},
            Tags=[{"Key": "team", "Value": f"team {number}"}],
        )
        request["AlgorithmSpecification"]["MetricDefinitions"] = definitions
        client.sagemaker.create_training_job(**request)
    for number in range(3):
        client.wait(f"sought-{number}")


def search_filter(name: str, operator: str | None, value: str | None = None) -> dict[str, Any]:
    entry = {"Name": name, "Operator": operator, "Value": value}
    return {key: member for key, member in entry.items() if member is not None}


@pytest.mark.parametrize(
    ("entry", "numbers"),
    [
        (search_filter("TrainingJobName", "Equals", "sought-1"), "1"),
        (search_filter("TrainingJobName", None, "sought-1"), "1"),
        (search_filter("TrainingJobStatus", "Equals", "Failed"), "2"),
        (search_filter("TrainingJobStatus", "NotEquals", "Failed"), "01"),
        (search_filter("TrainingJobStatus", "In", "Failed,Stopped"), "2"),
        (search_filter("HyperParameters.lr", "LessThan", "0.05"), "12"),
        (search_filter("HyperParameters.model.size", "Equals", "big"), "012"),
        (search_filter("HyperParameters.absent", "Exists"), ""),
        (search_filter("FailureReason", "NotExists"), "01"),
        (search_filter("Tags.team", "Contains", "TEAM 2"), "012"),
        (search_filter("Tags.team", "Equals", "team 2"), "2"),
        (search_filter("Metrics.test:acc", "GreaterThanOrEqualTo", "0.6"), "12"),
        (search_filter("CreationTime", "GreaterThan", "2020-01-01T00:00:00"), "012"),
        (search_filter("CreationTime", "LessThan", "2020-01-01T00:00:00Z"), ""),
        (search_filter("ResourceConfig.InstanceCount", "Equals", "1"), "012"),
    ],
)
def test_search_filters(
    client: EndpointClient, searched_jobs: None, entry: dict[str, Any], numbers: str
) -> None:
    name_filter = search_filter("TrainingJobName", "Contains", "sought")
    pages = client.sagemaker.get_paginator("search").paginate(
        Resource="TrainingJob",
        SearchExpression={"Filters": [name_filter, entry]},
        SortBy="TrainingJobName",
        SortOrder="Ascending",
        PaginationConfig={"PageSize": 2},
    )
    jobs = [result["TrainingJob"] for page in pages for result in page["Results"]]
    assert [job["TrainingJobName"][-1] for job in jobs] == list(numbers)


def test_search_combines_and_sorts(client: EndpointClient, searched_jobs: None) -> None:
    nested = {
        "NestedPropertyName": "InputDataConfig",
        "Filters": [
            search_filter("InputDataConfig.ChannelName", "Equals", "program"),
            search_filter("InputDataConfig.DataSource.S3DataSource.S3Uri", "Contains", "code/sought-"),
        ],
    }
    either = {
        "Operator": "Or",
        "Filters": [search_filter("TrainingJobName", "Equals", f"sought-{n}") for n in (0, 2)],
    }
    answer = client.sagemaker.search(
        Resource="TrainingJob",
        SearchExpression={"NestedFilters": [nested], "SubExpressions": [either]},
        SortBy="Metrics.test:acc",
        SortOrder="Descending",
    )
    jobs = [result["TrainingJob"] for result in answer["Results"]]
    assert [job["TrainingJobName"] for job in jobs] == ["sought-2", "sought-0"]
    assert answer["TotalHits"] == {"Value": 2, "Relation": "EqualTo"}
    assert jobs[0]["Tags"] == [{"Key": "team", "Value": "team 2"}]
    for entry in (
        search_filter("TrainingJobName", "GreaterThan", "3"),
        search_filter("CreationTime", "Equals", "soon"),
    ):
        with pytest.raises(ClientError, match="ValidationException"):
            client.sagemaker.search(Resource="TrainingJob", SearchExpression={"Filters": [entry]})
    with pytest.raises(ClientError, match="TrainingJob only"):
        client.sagemaker.search(Resource="Endpoint")


# Metrics

PRINT_LOSSES = """
for step in range(5):
    print(f"step={step} loss={2.0 - step / 10:.1f} acc=nan-yet", flush=True)
"""


@pytest.fixture(scope="module")
def measured_job(client: EndpointClient) -> dict[str, Any]:
    request = client.request("measured", PRINT_LOSSES, hosts=2)
    request["AlgorithmSpecification"]["MetricDefinitions"] = [
        {"Name": "train:loss", "Regex": "loss=([0-9.]+)"},
        {"Name": "never", "Regex": "accuracy ([0-9.]+)"},
        {"Name": "no number", "Regex": "acc=([a-z-]+)"},
    ]
    client.sagemaker.create_training_job(**request)
    return client.wait("measured")


def test_final_metrics(measured_job: dict[str, Any]) -> None:
    (metric,) = measured_job["FinalMetricDataList"]
    assert (metric["MetricName"], round(metric["Value"], 5)) == ("train:loss", 1.6)
    assert measured_job["TrainingStartTime"] <= metric["Timestamp"] <= measured_job["TrainingEndTime"]


NAMESPACE = "/aws/sagemaker/TrainingJobs"


def test_metrics_are_in_cloudwatch(client: EndpointClient, measured_job: dict[str, Any]) -> None:
    info = client.info
    cloudwatch = boto3.Session(info.access_key, info.secret_key, region_name=info.region).client(
        "cloudwatch", endpoint_url=info.url, config=Config(retries={"total_max_attempts": 1})
    )
    dimensions = [{"Name": "TrainingJobName", "Value": "measured"}]
    metrics = cloudwatch.list_metrics(Namespace=NAMESPACE, Dimensions=dimensions)["Metrics"]
    expected = {"Namespace": NAMESPACE, "MetricName": "train:loss", "Dimensions": dimensions}
    assert metrics == [expected]
    now = datetime.now(timezone.utc)
    times = {"StartTime": now - timedelta(hours=1), "EndTime": now + timedelta(minutes=1)}
    points = cloudwatch.get_metric_statistics(
        **expected,
        **times,
        Period=3600 * 24,
        Statistics=["SampleCount", "Average", "Minimum", "Maximum", "Sum"],
    )["Datapoints"]
    assert sum(point["SampleCount"] for point in points) == 10
    assert round(points[0]["Average"], 3) == 1.8
    assert (points[0]["Minimum"], points[0]["Maximum"]) == (1.6, 2.0)
    query = {"Metric": expected, "Period": 1, "Stat": "Minimum"}
    data = cloudwatch.get_paginator("get_metric_data").paginate(
        MetricDataQueries=[{"Id": "loss", "MetricStat": query}], **times, ScanBy="TimestampAscending"
    )
    results = [result for page in data for result in page["MetricDataResults"]]
    assert min(value for result in results for value in result["Values"]) == 1.6
    assert all(stamp.tzinfo for result in results for stamp in result["Timestamps"])
    with pytest.raises(ClientError, match="metric math"):
        cloudwatch.get_metric_data(MetricDataQueries=[{"Id": "m", "Expression": "1+1"}], **times)


def test_a_regex_that_cannot_be_read_is_refused(client: EndpointClient) -> None:
    request = client.request("bad-regex", "")
    request["AlgorithmSpecification"]["MetricDefinitions"] = [{"Name": "x", "Regex": "loss=(["}]
    with pytest.raises(ClientError, match=r"MetricDefinitions\[0\]\.Regex"):
        client.sagemaker.create_training_job(**request)


def test_tensorboard_files_are_synchronized(client: EndpointClient) -> None:
    script = "open(ROOT + '/output/tensorboard/events', 'w').write('scalars')"
    client.run("board", script, TensorBoardOutputConfig={"S3OutputPath": "s3://boards/x"})
    body = client.s3.get_object(Bucket="boards", Key="x/board/tensorboard-output/events")["Body"].read()
    assert body == b"scalars"


# Instance groups

PRINT_CONFIG = """
config = json.load(open(ROOT + "/input/config/resourceconfig.json"))
channels = json.load(open(ROOT + "/input/config/inputdataconfig.json"))
names = {name: sorted(os.listdir(ROOT + "/input/data/" + name)) for name in channels if name != "program"}
sizes = {group["instance_group_name"]: len(group["hosts"]) for group in config["instance_groups"]}
print(json.dumps([config["current_group_name"], config["current_instance_type"], names, sizes]))
"""


def test_instance_groups_have_their_own_channels(client: EndpointClient) -> None:
    for number in range(4):
        client.put(f"grouped/part-{number}", b"x")

    def channel(name: str, groups: list[str], distribution: str) -> dict[str, Any]:
        source = {
            "S3DataType": "S3Prefix",
            "S3Uri": "s3://tests/grouped/",
            "S3DataDistributionType": distribution,
            "InstanceGroupNames": groups,
        }
        return {"ChannelName": name, "DataSource": {"S3DataSource": source}}

    groups = [
        {"InstanceGroupName": "cpu", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
        {"InstanceGroupName": "gpu", "InstanceType": "ml.g5.xlarge", "InstanceCount": 2},
    ]
    channels = [channel("all", ["cpu"], "FullyReplicated"), channel("part", ["gpu"], "ShardedByS3Key")]
    resources = {"InstanceGroups": groups, "VolumeSizeInGB": 1}
    request = client.request("groups", PRINT_CONFIG, ResourceConfig=resources, InputDataConfig=channels)
    program = request["InputDataConfig"][0]["DataSource"]["S3DataSource"]
    program["InstanceGroupNames"] = ["cpu", "gpu"]
    client.sagemaker.create_training_job(**request)
    job = client.wait("groups")
    assert job["TrainingJobStatus"] == "Completed", job
    assert job["ResourceConfig"] == resources
    reports = {label: json.loads(line) for label, (line,) in client.printed_lines("groups").items()}
    sizes = {"cpu": 1, "gpu": 2}
    everything = [f"part-{number}" for number in range(4)]
    assert reports["algo-1"] == ["cpu", "ml.c5.xlarge", {"all": everything}, sizes]
    shares = []
    for label in ("algo-2", "algo-3"):
        group, kind, (names), group_sizes = reports[label]
        assert (group, kind, group_sizes, list(names)) == ("gpu", "ml.g5.xlarge", sizes, ["part"])
        shares.append(names["part"])
    assert [len(share) for share in shares] == [2, 2]
    assert sorted(shares[0] + shares[1]) == everything


def test_a_name_can_be_used_again_at_once(client: EndpointClient) -> None:
    for _ in range(5):
        client.run("again", "")
        client.sagemaker.delete_training_job(TrainingJobName="again")
    assert client.sagemaker.list_training_jobs(NameContains="again")["TrainingJobSummaries"] == []
