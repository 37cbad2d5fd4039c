"""What the client reads of a run: only files whose hash the log states, from the run's own prefix."""

from __future__ import annotations

import hashlib
import pickle
import tarfile
from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

import pytest

from smlaunch.contract.failure_reason import format_failure
from smlaunch.errors import FunctionError, ServiceError, StoppedByUser, TrainingFailed
from smlaunch.functions.function_output import AnnouncedFile, FunctionOutput, RemoteTraceback, read_member
from smlaunch.functions.host_program import (
    ERROR_KIND,
    ERROR_LINE,
    JSON,
    MAX_RESULT_BYTES,
    OUTPUT_FOLDER,
    PICKLE,
    RESULT_KIND,
    RESULT_LINE,
    encode_error,
)
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_kinds import run_of_single_job
from tests.runs.fakes import BUCKET, fake_target, job_description
from tests.tables import table

JOB = "f-s1-a1"
KEY = f"smlaunch/f/output/{JOB}/output/output.tar.gz"


class Evidence:
    """Unpickling it leaves a trace."""

    traces: list[str] = []  # noqa: RUF012

    def __reduce__(self) -> Any:
        return Evidence.traces.append, ("unpickled",)


def archive_of(files: Mapping[str, bytes]) -> bytes:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, BytesIO(content))
    return buffer.getvalue()


def result_line(content: bytes, result_format: str = JSON, **changes: Any) -> str:
    sha256 = changes.get("sha256", hashlib.sha256(content).hexdigest())
    return RESULT_LINE.format(RESULT_KIND, result_format, changes.get("size", len(content)), sha256)


def error_line(content: bytes, rank: int) -> str:
    return ERROR_LINE.format(ERROR_KIND, rank, len(content), hashlib.sha256(content).hexdigest())


class EndedRun:
    """A run of one job that has ended. ``logs``: lines by host."""

    def __init__(
        self, logs: Mapping[str, Sequence[str]], files: Mapping[str, bytes] | None, **description: Any
    ) -> None:
        self.target: Target = fake_target()
        status = description.pop("status", "Completed")
        described = job_description(JOB, status, ["Training", status], **description)
        self.target.__dict__["control_plane"].descriptions_by_job[JOB] = [described]
        for host, lines in logs.items():
            self.target.__dict__["logs"].add_lines(f"{JOB}/{host}-1700000000000", *lines)
        if files is not None:
            folder_files = {f"{OUTPUT_FOLDER}/{name}": content for name, content in files.items()}
            self.target.__dict__["storage"].put_bytes(BUCKET, KEY, archive_of(folder_files))

    def wait(self) -> Any:
        run = run_of_single_job("f", self.target, JOB, attached=False)
        return FunctionOutput(run, self.target, f"s3://{BUCKET}/smlaunch/f/output/", "train").wait()


def test_a_result_is_read_by_the_hash_in_the_log() -> None:
    lines = ["step 1", f"[0] {result_line(b'[1, 2]')}", "[1] bye"]
    assert EndedRun({"algo-1": lines, "algo-2": ["[2] x"]}, {"result.json": b"[1, 2]"}).wait() == [1, 2]
    # What ends without a line break comes before the line.
    assert EndedRun({"algo-1": [f"loss 0.5{result_line(b'3')}"]}, {"result.json": b"3"}).wait() == 3


EVIDENCE = pickle.dumps(Evidence())


@table(
    ("line", "files", "problem"),
    [
        (result_line(b"[1]"), {"result.json": b"[2]"}, "SHA-256 differs"),
        (result_line(b"x" * len(EVIDENCE), PICKLE), {"result.pkl": EVIDENCE}, "SHA-256 differs"),
        (result_line(b"[1]"), {"result.json": b"[1, 2]"}, "has 6 bytes, and the log states 3"),
        (result_line(b"[1]"), {"result.pkl": EVIDENCE}, "has no smlaunch-function/result.json"),
        (result_line(EVIDENCE), {"result.json": EVIDENCE}, "not the JSON that was announced"),
        (result_line(b"[1]", size=MAX_RESULT_BYTES + 1), {"result.json": b"[1]"}, "at most 1,073,741,824"),
        (result_line(b"[1]"), None, "is missing"),
        ("no line", {"result.json": b"[1]"}, "states no hash of a result"),
        (result_line(b"[1]", "eval"), {"result.json": b"[1]"}, "states no hash of a result"),
        (result_line(b"[1]") + " x", {"result.json": b"[1]"}, "states no hash of a result"),
        # Only rank 0 announces a result, and only on the first host.
        ("[1] " + result_line(EVIDENCE, PICKLE), {"result.pkl": EVIDENCE}, "states no hash of a result"),
    ],
)
def test_a_result_that_is_not_the_announced_one_is_not_read(
    line: str, files: Mapping[str, bytes] | None, problem: str
) -> None:
    with pytest.raises(ServiceError) as caught:
        EndedRun({"algo-1": [line]}, files).wait()
    assert problem in str(caught.value)
    assert not Evidence.traces


def test_another_host_announces_no_result() -> None:
    logs = {"algo-1": ["x"], "algo-2": [result_line(EVIDENCE, PICKLE)]}
    with pytest.raises(ServiceError, match="states no hash of a result"):
        EndedRun(logs, {"result.pkl": EVIDENCE}).wait()
    assert not Evidence.traces


def test_an_archive_that_is_none_is_named() -> None:
    run = EndedRun({"algo-1": [result_line(b"[1]")]}, None)
    for content in (b"", b"no archive", archive_of({"smlaunch-function/result.json": b"[1]"})[:-30]):
        run.target.__dict__["storage"].put_bytes(BUCKET, KEY, content)
        with pytest.raises(ServiceError, match="cannot be read"):
            run.wait()


def test_a_link_in_the_archive_is_not_followed() -> None:
    buffer = BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        member = tarfile.TarInfo(f"{OUTPUT_FOLDER}/result.json")
        member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(member)
    run = EndedRun({"algo-1": [result_line(b"[1]")]}, None)
    run.target.__dict__["storage"].put_bytes(BUCKET, KEY, buffer.getvalue())
    with pytest.raises(ServiceError, match="cannot be read"):
        run.wait()


def test_a_large_member_comes_through_a_stream_in_pieces() -> None:
    content = bytes(range(256)) * 20_000
    stream = archive_of({"other": content[::-1], f"./{OUTPUT_FOLDER}/result.pkl": content})
    chunks = iter([stream[start : start + 777] for start in range(0, len(stream), 777)])
    assert read_member(chunks, AnnouncedFile("result.pkl", len(content), "")) == content


class LossIsNan(Exception):
    def __init__(self, step: int) -> None:
        super().__init__(step)
        self.step = step


def failed_run(
    lines: Mapping[str, Sequence[str]], files: Mapping[str, bytes] | None, reason: str
) -> EndedRun:
    return EndedRun(lines, files, status="Failed", FailureReason=reason)


def reason_of(host: str, rank: int | None, cause: str) -> str:
    return "AlgorithmError: " + format_failure(host, rank, 1, cause, f"Traceback\n{cause}")


def test_the_exception_of_the_rank_that_failed_first_is_raised() -> None:
    first, later = (
        encode_error(LossIsNan(7), "trace of 3"),
        encode_error(ConnectionError("lost"), "trace of 0"),
    )
    logs = {"algo-1": ["[0] " + error_line(later, 0)], "algo-2": ["x", "y", "[3] " + error_line(first, 3)]}
    run = failed_run(logs, {"error-0": later, "error-3": first}, reason_of("algo-2", 3, "LossIsNan: 7"))
    with pytest.raises(LossIsNan) as caught:
        run.wait()
    assert caught.value.step == 7
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "trace of 3" in str(caught.value.__cause__)


def test_the_last_line_of_a_rank_is_its_own() -> None:
    content = encode_error(ValueError("bad"), "Traceback\nhere")
    lines = [f"[0] {error_line(b'forged', 0)}", f"[0] {error_line(content, 0)}"]
    run = EndedRun({"algo-1": lines}, {"error-0": content}, status="Failed", FailureReason="x")
    with pytest.raises(ValueError, match="bad"):
        run.wait()


def test_an_exception_that_is_not_the_announced_one_is_replaced() -> None:
    announced = encode_error(LossIsNan(7), "trace")
    changed = announced.partition(b"\n")[0] + b"\n" + EVIDENCE
    logs = {"algo-1": [error_line(announced, 0)]}
    for files in ({"error-0": changed}, {}, None):
        with pytest.raises(FunctionError) as caught:
            failed_run(logs, files, reason_of("algo-1", None, "LossIsNan: 7")).wait()
        assert "LossIsNan: 7" in str(caught.value)
        assert "not available" in str(caught.value)
    assert not Evidence.traces


class TwoArguments(Exception):
    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first}, {second}")


def test_an_exception_that_cannot_be_pickled_has_a_substitute() -> None:
    content = encode_error(TwoArguments(1, 2), "trace")
    run = failed_run({"algo-1": [error_line(content, 0)]}, {"error-0": content}, reason_of("algo-1", 0, "x"))
    with pytest.raises(FunctionError, match=r"train raised .*TwoArguments: 1, 2") as caught:
        run.wait()
    assert caught.value.type_name.endswith(".TwoArguments")
    assert caught.value.traceback == "trace"
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.type_name, copy.traceback) == (
        str(caught.value),
        caught.value.type_name,
        caught.value.traceback,
    )


def test_a_result_that_cannot_be_rebuilt_is_no_fault_of_the_service() -> None:
    content = pickle.dumps({"loss": 0.5, "error": TwoArguments(1, 2)})
    run = EndedRun({"algo-1": [result_line(content, PICKLE)]}, {"result.pkl": content})
    with pytest.raises(FunctionError, match=r"missing 1 required positional argument.*output\.tar\.gz"):
        run.wait()


def test_a_host_that_was_to_start_something_else_is_named() -> None:
    line = "smlaunch: error: /opt/ml/input/data/smlaunch/job.json is not what the job was requested with"
    run = failed_run({"algo-1": [line]}, None, "AlgorithmError: , exit code: 1")
    with pytest.raises(ServiceError, match=r"job\.json is not what the job .*see who may write"):
        run.wait()
    with pytest.raises(TrainingFailed):  # what a rank prints is no such line
        failed_run({"algo-1": ["[0] " + line]}, None, "AlgorithmError: , exit code: 1").wait()


def test_a_run_that_ended_otherwise_raises_its_own_error() -> None:
    with pytest.raises(TrainingFailed, match="SIGKILL"):
        failed_run({"algo-1": ["x"]}, None, reason_of("algo-1", 0, "SIGKILL")).wait()
    with pytest.raises(StoppedByUser):
        EndedRun({"algo-1": [result_line(b"[1]")]}, {"result.json": b"[1]"}, status="Stopped").wait()
