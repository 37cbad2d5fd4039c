"""The JSON and query protocols, and the small services, as boto3 sees them."""

from __future__ import annotations

import datetime
import time
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.local.front.conftest import ServerHarness
from tests.test_validate import REQUEST


def test_a_json_operation(front: ServerHarness) -> None:
    client = front.client("sagemaker", region_name="eu-central-1")
    answer = client.create_training_job(**REQUEST)
    assert answer["TrainingJobArn"] == "arn:aws:sagemaker:eu-central-1:000000000000:training-job/a-job"
    assert front.sagemaker.requests[-1] == REQUEST
    china = front.client("sagemaker", region_name="cn-north-1").create_training_job(**REQUEST)
    assert china["TrainingJobArn"].startswith("arn:aws-cn:sagemaker:cn-north-1:")
    (job,) = client.list_training_jobs()["TrainingJobSummaries"]
    created_at = datetime.datetime(2026, 11, 1, 12, tzinfo=datetime.timezone.utc)
    assert job["CreationTime"] == created_at
    assert job["LastModifiedTime"] - created_at == datetime.timedelta(seconds=0.25)


def test_json_errors_are_typed(front: ServerHarness) -> None:
    client = front.client("sagemaker")
    with pytest.raises(client.exceptions.ResourceInUse):
        client.create_training_job(**{**REQUEST, "TrainingJobName": "taken"})
    before = len(front.sagemaker.requests)
    with pytest.raises(
        ClientError, match="2 validation errors detected: Value 'a_b' at 'trainingJobName'"
    ) as bad:
        client.create_training_job(
            **{**REQUEST, "TrainingJobName": "a_b", "HyperParameters": {"x" * 300: ""}}
        )
    assert bad.value.response["Error"]["Code"] == "ValidationException"
    assert bad.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    assert len(front.sagemaker.requests) == before
    with pytest.raises(ClientError, match=r"sagemaker:ListModels; it has CreateTrainingJob") as unknown:
        client.list_models()
    assert unknown.value.response["Error"]["Code"] == "UnknownOperationException"
    known = "iam, logs, monitoring, s3, sagemaker, sts"
    with pytest.raises(ClientError, match=f"no service 'ec2'; it has: {known}"):
        front.client("ec2").describe_regions()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "is not JSON"),
        (b"[]", "not a JSON object"),
        (b'{"MaxResults": NaN}', "is not JSON"),
        (b'{"MaxResults": "5"}', "STRING_VALUE can not be converted to integer at 'MaxResults'"),
        (b'{"MaxResults": 5.5}', "DECIMAL_VALUE can not be converted to integer"),
        (b"\xff", "is not JSON"),
    ],
)
def test_bodies_that_cannot_be_read(front: ServerHarness, body: bytes, message: str) -> None:
    import urllib.error
    import urllib.request

    import botocore.session
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest

    from tests.local.front.conftest import CREDENTIALS

    session = botocore.session.Session()
    session.set_credentials(CREDENTIALS.access_key, CREDENTIALS.secret_key)
    headers = {"X-Amz-Target": "SageMaker.ListTrainingJobs", "Content-Type": "application/x-amz-json-1.1"}
    request = AWSRequest("POST", front.url + "/", headers, data=body)
    SigV4Auth(session.get_credentials(), "sagemaker", "us-east-1").add_auth(request)
    sent = urllib.request.Request(request.url, body, dict(request.headers), method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(sent)
    assert refused.value.code == 400
    text = refused.value.read().decode()
    assert "SerializationException" in text
    assert message in text


def test_sts(front: ServerHarness) -> None:
    sts = front.client("sts")
    identity = sts.get_caller_identity()
    assert (identity["Account"], identity["Arn"]) == ("000000000000", "arn:aws:iam::000000000000:root")
    with pytest.raises(ClientError, match="AccessDenied"):
        sts.assume_role(RoleArn="arn:aws:iam::111111111111:role/theirs", RoleSessionName="me")
    with pytest.raises(ClientError, match="does not provide the action 'GetFederationToken'"):
        sts.get_federation_token(Name="me")
    with pytest.raises(ClientError, match="InvalidAction"):
        front.client("iam").create_user(UserName="x")


def test_iam(front: ServerHarness) -> None:
    iam = front.client("iam")
    role = iam.get_role(RoleName="smlaunch-local")["Role"]
    assert role["Arn"] == "arn:aws:iam::000000000000:role/smlaunch-local"
    principal = role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"]
    assert principal == {"Service": "sagemaker.amazonaws.com"}
    assert [entry["RoleName"] for entry in iam.list_roles()["Roles"]] == ["smlaunch-local"]
    with pytest.raises(iam.exceptions.NoSuchEntityException):
        iam.get_role(RoleName="another")
    actions = ["sagemaker:CreateTrainingJob", "s3:GetObject"]
    results = iam.simulate_principal_policy(PolicySourceArn=role["Arn"], ActionNames=actions)
    assert [entry["EvalActionName"] for entry in results["EvaluationResults"]] == actions
    assert {entry["EvalDecision"] for entry in results["EvaluationResults"]} == {"allowed"}
    assert iam.list_attached_role_policies(RoleName="smlaunch-local")["AttachedPolicies"]


GROUP = "/aws/sagemaker/TrainingJobs"


def test_following_a_log(front: ServerHarness) -> None:
    logs = front.client("logs")
    stream = "job/algo-1-1"
    front.logs.append_events(GROUP, stream, [(1000, "one"), (2000, "two\nlines\t\\")])
    stream_id = {"logGroupName": GROUP, "logStreamName": stream}
    first = logs.get_log_events(**stream_id, startFromHead=True)
    assert [(event["timestamp"], event["message"]) for event in first["events"]] == [
        (1000, "one"),
        (2000, "two\nlines\t\\"),
    ]
    token = first["nextForwardToken"]
    idle = logs.get_log_events(**stream_id, nextToken=token)
    assert idle["events"] == []
    assert idle["nextForwardToken"] == token
    front.logs.append_events(GROUP, stream, [(3000, "three")])
    more = logs.get_log_events(**stream_id, nextToken=token)
    assert [event["message"] for event in more["events"]] == ["three"]
    back = logs.get_log_events(**stream_id, nextToken=more["nextBackwardToken"])
    assert [event["message"] for event in back["events"]] == ["one", "two\nlines\t\\"]
    last = logs.get_log_events(**stream_id, limit=1)
    assert [event["message"] for event in last["events"]] == ["three"]
    between = logs.get_log_events(**stream_id, startFromHead=True, startTime=2000, endTime=3000)
    assert len(between["events"]) == 1
    with pytest.raises(logs.exceptions.ResourceNotFoundException):
        logs.get_log_events(logGroupName=GROUP, logStreamName="none")
    with pytest.raises(logs.exceptions.InvalidParameterException):
        logs.get_log_events(**stream_id, nextToken="x/1")
    for token in ("x", "NQ==", "W10=", "eyJhdCI6ICJ4In0="):
        with pytest.raises(logs.exceptions.InvalidParameterException):
            logs.describe_log_streams(logGroupName=GROUP, nextToken=token)


def test_pages_of_a_log(front: ServerHarness) -> None:
    logs = front.client("logs")
    front.logs.append_events("pages", "s", [(number, str(number)) for number in range(25)])
    stream_id = {"logGroupName": "pages", "logStreamName": "s"}
    messages: list[str] = []
    answer = logs.get_log_events(**stream_id, startFromHead=True, limit=10)
    while answer["events"]:
        messages += [event["message"] for event in answer["events"]]
        answer = logs.get_log_events(**stream_id, nextToken=answer["nextForwardToken"], limit=10)
    assert messages == [str(number) for number in range(25)]
    front.logs.append_events("large", "s", [(number, "x" * 100_000) for number in range(25)])
    stream_id["logGroupName"] = "large"
    assert (
        len(logs.get_log_events(**stream_id, startFromHead=True)["events"]) == 10
    )  # an answer holds a megabyte


def test_filtering_over_streams(front: ServerHarness) -> None:
    logs = front.client("logs")
    for host in (1, 2):
        front.logs.append_events(
            "filter", f"job/algo-{host}", [(n * 2 + host, f"host {host} step {n}") for n in range(10)]
        )
    pages = logs.get_paginator("filter_log_events").paginate(
        logGroupName="filter", logStreamNamePrefix="job/", PaginationConfig={"PageSize": 7}
    )
    events = [event for page in pages for event in page["events"]]
    assert len(events) == 20
    assert [event["timestamp"] for event in events] == sorted(event["timestamp"] for event in events)

    def matching(pattern: str) -> int:
        matches: list[Any] = logs.filter_log_events(logGroupName="filter", filterPattern=pattern)["events"]
        return len(matches)

    assert matching('"host 1" step') == 10
    assert matching("?9 ?8") == 4
    assert matching("host -1") == 9
    assert matching("%step [0-3]$%") == 8
    with pytest.raises(logs.exceptions.InvalidParameterException):
        logs.filter_log_events(logGroupName="filter", filterPattern="{ $.a = 1 }")


def test_writing_a_log(front: ServerHarness) -> None:
    logs = front.client("logs")
    logs.create_log_group(logGroupName="mine")
    with pytest.raises(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_group(logGroupName="mine")
    stream_id = {"logGroupName": "mine", "logStreamName": "s"}
    with pytest.raises(logs.exceptions.ResourceNotFoundException):
        logs.put_log_events(**stream_id, logEvents=[{"timestamp": 1, "message": "x"}])
    logs.create_log_stream(**stream_id)
    now = int(time.time() * 1000)
    events = [{"timestamp": at, "message": "x"} for at in (now - 20 * 86_400_000, now, now + 86_400_000)]
    rejected = logs.put_log_events(**stream_id, logEvents=events)["rejectedLogEventsInfo"]
    assert rejected == {"tooOldLogEventEndIndex": 1, "tooNewLogEventStartIndex": 2}
    with pytest.raises(logs.exceptions.InvalidParameterException):
        logs.put_log_events(**stream_id, logEvents=events[::-1])
    (described,) = logs.describe_log_streams(logGroupName="mine")["logStreams"]
    assert described["lastEventTimestamp"] == now
    assert described["arn"] == "arn:aws:logs:us-east-1:000000000000:log-group:mine:log-stream:s"
    groups = logs.describe_log_groups(logGroupNamePrefix="mi")["logGroups"]
    assert [group["logGroupName"] for group in groups] == ["mine"]
    for number in range(3):
        logs.create_log_stream(logGroupName="mine", logStreamName=f"t{number}")
    pages = logs.get_paginator("describe_log_streams").paginate(
        logGroupName="mine", PaginationConfig={"PageSize": 2}
    )
    assert [s["logStreamName"] for page in pages for s in page["logStreams"]] == ["s", "t0", "t1", "t2"]
    latest = logs.describe_log_streams(logGroupName="mine", orderBy="LastEventTime", descending=True, limit=1)
    assert latest["logStreams"][0]["logStreamName"] == "s"
    logs.delete_log_stream(**stream_id)
    logs.delete_log_group(logGroupName="mine")
