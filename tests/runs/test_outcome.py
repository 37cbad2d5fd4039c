from __future__ import annotations

from dataclasses import replace

import pytest

from smlaunch.chain.next_action import FinishRun
from smlaunch.contract.failure_reason import Failure, format_failure
from smlaunch.errors import LimitReached, ServiceError, StoppedByUser, TrainingFailed
from smlaunch.runs.log_tail import LogTail, split_rank_prefix
from smlaunch.runs.missing_files import missing_package_hint
from smlaunch.runs.run_outcome import RunOutcome, outcome_from_description, summarize_job
from tests.runs.fakes import job_description
from tests.tables import table


@pytest.mark.parametrize(
    ("status", "secondary", "reason", "code", "error"),
    [
        ("Completed", "Completed", "", 0, None),
        ("InProgress", "Training", "", None, None),
        ("Failed", "Failed", "AlgorithmError: x, exit code: 1", 1, TrainingFailed),
        ("Failed", "Failed", "ClientError: Data download failed", 2, TrainingFailed),
        ("Failed", "Failed", "CapacityError: Unable to provision", 4, ServiceError),
        ("Failed", "Failed", "InternalServerError: We encountered", 4, ServiceError),
        ("Stopped", "Stopped", "", 5, StoppedByUser),
        ("Stopped", "MaxRuntimeExceeded", "", 6, LimitReached),
        ("Stopped", "MaxWaitTimeExceeded", "", 6, LimitReached),
    ],
)
def test_exit_codes(
    status: str, secondary: str, reason: str, code: int | None, error: type[Exception] | None
) -> None:
    job = outcome_from_description(
        job_description("r-s0-a0", status, ["Starting", secondary], FailureReason=reason)
    )
    run = RunOutcome("r", (job,))
    assert run.exit_code == code
    run_error = run.error
    assert (type(run_error) if run_error else None) is error
    if run_error is not None:
        assert run_error.exit_code == code


def test_a_service_that_failed_is_named() -> None:
    text = format_failure("algo-2", None, 137, "", signal_name="SIGKILL", service_name="ray-worker")
    job = outcome_from_description(
        job_description(
            "r-s0-a0", "Failed", ["Failed"], FailureReason=f"AlgorithmError: {text}, exit code: 137"
        )
    )
    assert summarize_job(job) == "service ray-worker on algo-2 was killed by SIGKILL"


def test_a_container_that_leaves_no_message() -> None:
    """As the service has it for other clients' images."""
    job = outcome_from_description(
        job_description("r", "Failed", ["Failed"], FailureReason="AlgorithmError: , exit code: 7")
    )
    assert summarize_job(job) == "the container exited with code 7, and left no message"


def test_the_first_failure_is_parsed_from_the_reason() -> None:
    text = format_failure("algo-2", 3, 1, "ValueError: boom", "Traceback ...\nValueError: boom")
    reason = f"AlgorithmError: {text}, exit code: 1"
    job = outcome_from_description(job_description("r-s0-a0", "Failed", ["Failed"], FailureReason=reason))
    assert summarize_job(job) == "rank 3 on algo-2 exited with code 1: ValueError: boom"
    document = RunOutcome("r", (job,)).to_dict()
    assert document["jobs"][0]["failure"] == {
        "cause": "ValueError: boom",
        "host": "algo-2",
        "rank": 3,
        "exit_code": 1,
        "signal": None,
        "traceback": "Traceback ...\nValueError: boom",
        "service": None,
    }


@pytest.mark.parametrize("output", ["s3://b/out", "s3://b/out/"])
def test_the_model_of_a_run_is_that_of_its_last_job_although_its_record_was_deleted(output: str) -> None:
    job = outcome_from_description(
        job_description(
            "r-s1-a1",
            "Completed",
            ["Completed"],
            ModelArtifacts={"S3ModelArtifacts": "s3://b/out/r-s1-a1/output/model.tar.gz"},
            OutputDataConfig={"S3OutputPath": output},
        )
    )
    end = FinishRun(0, "Completed", "completed", model_job="r-s2-a1")
    outcome = RunOutcome("r", (job,), is_chain=True, final_result=end)
    assert outcome.model_artifacts == "s3://b/out/r-s2-a1/output/model.tar.gz"
    empty = replace(job, name="r-s2-a1", model_artifacts="s3://b/out/r-s2-a1/output/model.tar.gz")
    end = FinishRun(0, "Completed", "completed", model_job="r-s1-a1")
    outcome = RunOutcome("r", (job, empty), is_chain=True, final_result=end)
    assert outcome.model_artifacts == "s3://b/out/r-s1-a1/output/model.tar.gz"
    known = RunOutcome("r", (job,), is_chain=True, final_result=FinishRun(0, "Completed", "completed"))
    assert known.model_artifacts == "s3://b/out/r-s1-a1/output/model.tar.gz"


def test_the_document_has_its_documented_keys() -> None:
    job = outcome_from_description(
        job_description(
            "r-s0-a0",
            "Completed",
            ["Completed"],
            ModelArtifacts={"S3ModelArtifacts": "s3://b/model.tar.gz"},
            CheckpointConfig={"S3Uri": "s3://b/c/"},
            FinalMetricDataList=[{"MetricName": "acc", "Value": 0.5}],
        ),
        {"loss": 0.25},
    )
    document = RunOutcome("r", (job,)).to_dict()
    assert list(document) == [
        "run",
        "status",
        "exit_code",
        "because",
        "hint",
        "jobs",
        "model_artifacts",
        "checkpoints",
        "step",
        "driver",
        "metrics",
        "data_wait",
        "warnings",
    ]
    assert document["metrics"] == {"loss": 0.25, "acc": 0.5}
    assert document["model_artifacts"] == "s3://b/model.tar.gz"
    assert document["jobs"][0]["created"] == "2027-01-15T08:00:00.000Z"


LOG = """starting
Traceback (most recent call last):
  File "data.py", line 1, in load
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "train.py", line 12, in <module>
    main()
ValueError: boom
[rank3]: cleaning up""".splitlines()


def test_the_whole_traceback_comes_from_the_failed_ranks_own_log() -> None:
    evidence = LogTail()
    for line in LOG:
        evidence.add_line("algo-2", f"[3] {line}")
        evidence.add_line("algo-2", f"[2] {line.replace('boom', 'noise')}")
        evidence.add_line("algo-1", f"[0] {line.replace('boom', 'follower')}")
    failure = Failure("ValueError: boom", "algo-2", 3, 1, "...\nValueError: boom")
    assert evidence.find_traceback(failure).splitlines() == LOG[1:-1]
    evidence = LogTail()
    for line in LOG:  # as torch prints it once there is a process group
        evidence.add_line("algo-2", f"[3] [rank3]: {line}")
    assert evidence.find_traceback(failure).splitlines() == LOG[1:-1]


def test_without_a_log_the_reason_is_used() -> None:
    failure = Failure("ValueError: boom", "algo-2", 3, 1, "...short")
    assert LogTail().find_traceback(failure) == "...short"
    assert LogTail().find_traceback(Failure("no idea")) == ""


def test_rank_prefixes() -> None:
    assert split_rank_prefix("[12] hello") == (12, "hello")
    assert split_rank_prefix("[12]") == (12, "")
    assert split_rank_prefix("[info] hello") == (None, "[info] hello")


def test_the_data_wait_is_reported_with_advice() -> None:
    description = job_description("r-s0-a0", "Completed", ["Completed"])
    assert RunOutcome("r", (outcome_from_description(description),)).to_dict()["data_wait"] is None
    data_wait = RunOutcome(
        "r", (outcome_from_description(description, {"data_wait_share": 0.43}),)
    ).to_dict()["data_wait"]
    assert (data_wait["share"], data_wait["input_bound"]) == (0.43, True)
    assert data_wait["because"] == "input bound: 43% of step time"
    assert data_wait["advice"]


@table(
    ("text", "line"),
    [
        ("ModuleNotFoundError: No module named 'cv2'", "the line opencv-python-headless to"),
        ("ModuleNotFoundError: No module named 'sklearn.svm'", "the line scikit-learn to"),
        ("ModuleNotFoundError: No module named 'some_package'", "the line some-package to"),
        ("FileNotFoundError: No such file or directory: 'cv2'", ""),
        ("ImportError: cannot import name 'a' from 'b'", ""),
    ],
)
def test_a_missing_package_has_its_line_for_requirements(text: str, line: str) -> None:
    hint = missing_package_hint(f"rank 0 on algo-1: {text}\n")
    assert (line in hint) if line else hint == ""
