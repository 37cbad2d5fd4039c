"""Inputs and outputs of a processing job, on hosts that are only directories."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.local.endpoint_settings import Settings
from smlaunch.local.executors.executor_interface import JobHost
from smlaunch.local.jobs import channel_data, job_state
from smlaunch.local.jobs.job_handler import HandlerContext
from smlaunch.local.jobs.processing_job import ProcessingJobHandler, read_exit_messages
from smlaunch.local.stores.job_store import JobRecord
from smlaunch.local.stores.object_store import ObjectStore

OUT = "/opt/ml/processing/out"


def make_work(**changes: Any) -> ProcessingJobHandler:
    s3 = {"S3Uri": "s3://data/kept/", "LocalPath": OUT, "S3UploadMode": "EndOfJob", **changes}
    request = {
        "ProcessingJobName": "job",
        "AppSpecification": {"ImageUri": "image", "ContainerEntrypoint": ["run"]},
        "ProcessingResources": {"ClusterConfig": {"InstanceType": "ml.m5.large", "InstanceCount": 2}},
        "ProcessingInputs": [
            {
                "InputName": name,
                "S3Input": {"S3Uri": "s3://data/big/", "LocalPath": path, "S3DataType": "S3Prefix"},
            }
            for name, path in (("alone", "/opt/ml/processing/big"), ("around", "/opt/ml/processing/all"))
        ],
        "ProcessingOutputConfig": {"Outputs": [{"OutputName": "out", "S3Output": s3}]},
    }
    arn = "arn:aws:sagemaker:us-east-1:000000000000:processing-job/job"
    record = JobRecord("processing-job", "us-east-1", "job", arn, "me", request, job_state.initial_state(0.0))
    return ProcessingJobHandler(record, lambda kind: 0.0)


def make_tools(objects: ObjectStore, notes: list[str], **settings: Any) -> HandlerContext:
    return HandlerContext(objects, Settings(**settings), lambda label, text: notes.append(f"{label}: {text}"))


def stored_outputs(objects: ObjectStore) -> dict[str, str]:
    return {
        entry.key: objects.object_body_path("data", entry.key).read_text()
        for entry in objects.list_objects("data", "kept/")
    }


def write_outputs(hosts: list[JobHost]) -> None:
    for number, host in enumerate(hosts):
        folder = host.opt_ml_folder / "processing/out"
        (folder / "deep").mkdir(parents=True)
        (folder / "same").write_text(str(number))
        (folder / f"deep/{number}").write_text("own")


def test_a_view_hides_no_output(objects: ObjectStore, hosts: list[JobHost]) -> None:
    for number in range(100):
        objects.put_object_bytes("data", f"big/{number}", b"x")
    job = make_work(LocalPath="/opt/ml/processing/all/out")
    job.write_host_files(hosts, hosts[0])
    channel_setup = channel_data.prepare_channels(job.spec, hosts, objects, Settings(), True, lambda: None)
    assert {view.target for views in channel_setup.mounts_by_host.values() for view in views} == {
        "processing/big"
    }
    assert len(os.listdir(hosts[0].opt_ml_folder / "processing/all")) == 101
    # An input that is also an output is copied, since the job changes it.
    job = make_work(S3Uri="s3://data/big/")
    channel_setup = channel_data.prepare_channels(job.spec, hosts, objects, Settings(), True, lambda: None)
    assert not any(channel_setup.mounts_by_host.values())


@pytest.mark.parametrize(("setting", "uploaded"), [("completed", "c"), ("stopped", "cs"), ("all", "csf")])
def test_of_which_jobs_outputs_are_uploaded(
    objects: ObjectStore, hosts: list[JobHost], setting: str, uploaded: str
) -> None:
    for end in "csf":
        write_outputs(hosts)
        reason = "AlgorithmError: , exit code: 1" if end == "f" else None
        outcome = make_work().upload_results(
            hosts, make_tools(objects, [], processing_outputs_of=setting), reason, end == "s"
        )
        assert outcome.failure_reason == reason
        assert bool(stored_outputs(objects)) == (end in uploaded), end
        for host in hosts:
            shutil.rmtree(host.opt_ml_folder)
        for key in stored_outputs(objects):
            objects.delete_object("data", key)


@pytest.mark.parametrize("deletes", [False, True])
def test_what_is_deleted_on_a_host_while_it_runs(
    objects: ObjectStore, hosts: list[JobHost], deletes: bool
) -> None:
    job = make_work(S3UploadMode="Continuous")
    settings = {"processing_continuous_deletes": deletes}
    (sync,) = job.create_syncs(hosts, make_tools(objects, [], **settings), lambda: None)
    write_outputs(hosts)
    sync._sync_once(hosts_have_ended=False)
    sync._sync_once(hosts_have_ended=False)
    (hosts[0].opt_ml_folder / "processing/out/deep/0").unlink()
    sync._sync_once(hosts_have_ended=True)
    assert ("kept/deep/0" in stored_outputs(objects)) is not deletes
    assert stored_outputs(objects).keys() >= {"kept/same", "kept/deep/1"}
    job.upload_results(hosts, make_tools(objects, []), None, False)
    assert ("kept/deep/0" in stored_outputs(objects)) is not deletes


def test_names_that_clash_and_links_are_told(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path
) -> None:
    write_outputs(hosts)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("of this machine")
    (hosts[0].opt_ml_folder / "processing/out/away").symlink_to(tmp_path / "secret")
    notes: list[str] = []
    make_work().upload_results(hosts, make_tools(objects, notes), None, False)
    assert stored_outputs(objects) == {"kept/same": "0", "kept/deep/0": "own", "kept/deep/1": "own"}
    assert any("same exists on algo-1 too" in note for note in notes)
    (warning,) = [note for note in notes if note.startswith("algo-1: warning: hosts have written different")]
    assert "Not uploaded: /opt/ml/processing/out/same (1 byte, algo-2)." in warning
    assert any("away is a symbolic link" in note for note in notes)


def test_an_output_that_became_a_link_is_not_followed(
    objects: ObjectStore, hosts: list[JobHost], tmp_path: Path
) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/key").write_text("of this machine")
    for host in hosts:
        host.opt_ml_folder.mkdir(parents=True)
    (hosts[0].opt_ml_folder / "processing").mkdir()
    (hosts[0].opt_ml_folder / "processing/out").symlink_to(tmp_path / "secret")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/key").write_text("of this machine")
    (hosts[1].opt_ml_folder / "processing").symlink_to(tmp_path)
    notes: list[str] = []
    outcome = make_work().upload_results(hosts, make_tools(objects, notes), None, False)
    assert (outcome.failure_reason or "").startswith(
        "ClientError: Data upload failed:output out: /opt/ml/processing/out"
    )
    assert stored_outputs(objects) == {}
    assert sum("lies behind a symbolic link" in note for note in notes) == 2


@pytest.mark.parametrize("mode", ["EndOfJob", "Continuous"])
def test_an_output_that_cannot_be_stored_fails_the_job_and_keeps_no_other(
    objects: ObjectStore, hosts: list[JobHost], mode: str
) -> None:
    write_outputs(hosts)
    (hosts[1].opt_ml_folder / "processing/out" / os.fsdecode(b"odd-\xff")).write_text("x")
    notes: list[str] = []
    job = make_work(S3UploadMode=mode)
    for sync in job.create_syncs(hosts, make_tools(objects, notes), lambda: None):
        sync.finish()
    outcome = job.upload_results(hosts, make_tools(objects, notes), None, False)
    assert (outcome.failure_reason or "").startswith("ClientError: Data upload failed:output out: ")
    assert "odd-\\xff" in (outcome.failure_reason or "")
    assert "its name is not UTF-8" in (outcome.failure_reason or "")
    assert stored_outputs(objects).keys() == {"kept/same", "kept/deep/0", "kept/deep/1"}
    # An earlier failure stays the job's failure.
    assert job.upload_results(
        hosts, make_tools(objects, notes), "AlgorithmError: , exit code: 1", False
    ).failure_reason == ("AlgorithmError: , exit code: 1")


def test_a_message_behind_a_link_is_none(hosts: list[JobHost], tmp_path: Path) -> None:
    (tmp_path / "message").write_text("of this machine")
    hosts[0].opt_ml_folder.mkdir(parents=True)
    (hosts[0].opt_ml_folder / "output").symlink_to(tmp_path)
    assert read_exit_messages([(hosts[0].opt_ml_folder, "output/message")]) == ""


def test_an_output_without_a_bucket_fails_the_job_and_keeps_its_message(
    objects: ObjectStore, hosts: list[JobHost]
) -> None:
    write_outputs(hosts)
    (hosts[0].opt_ml_folder / "output").mkdir()
    (hosts[0].opt_ml_folder / "output/message").write_text("done")
    outcome = make_work(S3Uri="s3://absent/x").upload_results(hosts, make_tools(objects, []), None, False)
    assert (outcome.failure_reason or "").startswith("ClientError: Data upload failed:s3://absent/x/")
    assert outcome.describe_fields == {"ExitMessage": "done"}


@given(st.lists(st.text(max_size=700), min_size=1, max_size=3))
def test_messages_are_joined_and_cut_between_characters(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("messages")
    files = [(folder, str(number)) for number in range(len(texts))]
    for (_, name), text in zip(files, texts, strict=True):
        (folder / name).write_bytes(text.encode())
    message = read_exit_messages(files)
    assert len(message.encode()) <= 1024
    assert message == "".join(texts)[: len(message)] or len("".join(texts).encode()) > 1024
    if len("".join(texts).encode()) <= 1024:
        assert message == "".join(texts)


def test_a_message_that_is_no_file_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    assert read_exit_messages([(tmp_path, name) for name in ("pipe", "link", "absent")]) == ""
