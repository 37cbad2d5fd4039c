from __future__ import annotations

from typing import Any

from smlaunch.runs.data_wait_advice import assess_data_wait


def request(*channels: tuple[str, str | None], instance_type: str = "ml.g5.12xlarge") -> dict[str, Any]:
    rows = [
        {
            "ChannelName": name,
            "DataSource": {"S3DataSource": {"S3Uri": f"s3://b/{name}/"}},
            **({"InputMode": mode} if mode else {}),
        }
        for name, mode in channels
    ]
    return {"InputDataConfig": rows, "ResourceConfig": {"InstanceType": instance_type}}


def test_little_waiting_needs_no_advice() -> None:
    data_wait = assess_data_wait(0.034, request(("train", "File")))
    assert (data_wait.is_input_bound, data_wait.advice) == (False, ())
    assert data_wait.summary == "not input bound: 3.4% of step time is waiting for data"


def test_what_follows_depends_on_how_the_data_come() -> None:
    data_wait = assess_data_wait(0.43, request(("smlaunch", "File"), ("train", "FastFile")))
    assert data_wait.summary == "input bound: 43% of step time"
    assert data_wait.advice[0].startswith("train comes from S3 in every epoch")
    assert (
        data_wait.advice[-1]
        == "what fits these data: smlaunch data advise s3://b/train/ --instance-type ml.g5.12xlarge"
    )
    on_disk = assess_data_wait(0.43, request(("train", None))).advice
    assert "48 processors" in on_disk[0]
    assert not any("volume" in sentence for sentence in on_disk)
    assert any(
        "volume" in text
        for text in assess_data_wait(1.0, request(("a", "File"), instance_type="ml.m5.large")).advice
    )


def test_processes_of_this_machine_are_not_the_instance_type() -> None:
    advice = assess_data_wait(
        0.5, request(("train", "File"), instance_type="ml.m5.large"), has_real_hosts=False
    ).advice
    assert not any("ml.m5" in sentence or "processors" in sentence for sentence in advice)
    assert advice[-1] == "what fits these data: smlaunch data advise s3://b/train/ --local"


def test_without_channels_or_with_nonsense() -> None:
    assert "no channel" in assess_data_wait(0.5, {}).advice[0]
    assert assess_data_wait(7.0, {}).share == 1.0
    assert assess_data_wait(-1.0, {}).share == 0.0
