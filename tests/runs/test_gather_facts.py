from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest

from smlaunch.aws.interfaces import CallError
from smlaunch.discovery import caller_identity, input_facts
from smlaunch.discovery import gather_facts as gather_facts_module
from smlaunch.discovery.caller_identity import find_execution_role
from smlaunch.discovery.script_analysis import read_script_facts
from smlaunch.facts.discovered_facts import SourceFacts
from smlaunch.job.model import Job
from smlaunch.runs.launch_target import Target
from tests.runs.fakes import (
    ACCOUNT,
    BUCKET,
    REGION,
    ROLE,
    FakeIdentity,
    FakeStorage,
    fake_target,
    gather_needed_facts,
)

SOURCE = SourceFacts(".", "train.py", "0" * 64, 1, 1)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text("import torch\ntorch.distributed.init_process_group()\n")
    return path


def target_with(
    identity: FakeIdentity | None = None, storage: FakeStorage | None = None, **services: object
) -> Target:
    target = fake_target(**services)
    if identity:
        target.__dict__["identity"] = identity
    if storage:
        target.__dict__.update(storage=storage, input_storage=storage)
    return target


def test_the_callers_account_gives_the_bucket(script: Path) -> None:
    facts = gather_needed_facts(Job(entry=script, role=ROLE), target_with(), SOURCE)
    assert (facts.region, facts.account, facts.bucket, facts.role) == (REGION, ACCOUNT, BUCKET, ROLE)
    assert facts.partition == "aws"
    assert "torch.distributed" in facts.script.imports


def test_an_unknown_caller_is_reported_before_an_input_is_read(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        gather_facts_module, "gather_input_facts", lambda *_, **__: pytest.fail("an input was read")
    )
    identity = FakeIdentity()
    unknown_caller = CallError("GetCallerIdentity", "InvalidClientTokenId", "")
    monkeypatch.setattr(identity, "get_caller_identity", Mock(side_effect=unknown_caller))
    with pytest.raises(CallError, match="InvalidClientTokenId"):
        gather_needed_facts(
            Job(entry=script, role=ROLE, inputs={"a": "s3://data/a"}), target_with(identity), SOURCE
        )


def test_known_facts_are_not_requested(script: Path) -> None:
    target = target_with(account=ACCOUNT, role=ROLE, bucket="mine")
    target.__dict__["identity"] = None
    facts = gather_needed_facts(Job(entry=script), target, SOURCE)
    assert (facts.account, facts.role, facts.bucket) == (ACCOUNT, ROLE, "mine")


@pytest.mark.parametrize(
    ("arn", "roles", "expected"),
    [
        (f"arn:aws:sts::{ACCOUNT}:assumed-role/train/me", [ROLE], ROLE),
        (
            f"arn:aws:sts::{ACCOUNT}:assumed-role/train/me",
            [f"arn:aws:iam::{ACCOUNT}:role/team/train"],
            f"arn:aws:iam::{ACCOUNT}:role/team/train",
        ),
        (f"arn:aws:sts::{ACCOUNT}:assumed-role/train/me", [], ROLE),
        (
            f"arn:aws-cn:sts::{ACCOUNT}:assumed-role/AmazonSageMaker-ExecutionRole-2026/x",
            [],
            f"arn:aws-cn:iam::{ACCOUNT}:role/service-role/AmazonSageMaker-ExecutionRole-2026",
        ),
    ],
)
def test_an_assumed_role_is_used(arn: str, roles: list[str], expected: str) -> None:
    assert find_execution_role(None, target_with(FakeIdentity(arn, roles))) == (expected, None)


def test_a_role_by_its_name_and_from_the_environment() -> None:
    assert find_execution_role("train", target_with(FakeIdentity(roles=[ROLE]))) == (ROLE, None)
    assert find_execution_role("other", target_with()) == (f"arn:aws:iam::{ACCOUNT}:role/other", None)
    assert find_execution_role(None, target_with(environment={"SMLAUNCH_ROLE": ROLE})) == (ROLE, None)


def test_the_role_of_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata = tmp_path / "resource-metadata.json"
    metadata.write_text(json.dumps({"ExecutionRoleArn": ROLE}))
    monkeypatch.setattr(caller_identity, "STUDIO_METADATA", metadata)
    assert find_execution_role(None, target_with()) == (ROLE, None)
    foreign_role = "arn:aws:iam::210987654321:role/studio"
    metadata.write_text(json.dumps({"ExecutionRoleArn": foreign_role}))
    role, problem = find_execution_role(None, target_with())
    assert role == foreign_role
    assert problem is not None and "of the account 210987654321, and the credentials are of" in problem


def test_a_user_without_a_role_gets_advice() -> None:
    role, problem = find_execution_role(None, target_with())
    assert role is None
    assert problem is not None
    assert "user/ada" in problem and "--role" in problem


def test_inputs_in_s3(script: Path) -> None:
    storage = FakeStorage([BUCKET, "data"])
    storage.objects["data"] = {"train/a": b"12", "train/b": b"345", "other": b""}
    job = Job(
        entry=script,
        role=ROLE,
        inputs={"train": "s3://data/train/", "none": "s3://data/nothing", "gone": "s3://no-such-bucket/x/"},
    )
    inputs = gather_needed_facts(job, target_with(storage=storage), SOURCE).inputs
    assert (inputs["train"].objects, inputs["train"].bytes, inputs["train"].exists) == (2, 5, True)
    assert not inputs["none"].exists
    assert inputs["none"].problem == (
        "there is no object under s3://data/nothing; a folder's prefix ends with a slash"
    )
    assert inputs["gone"].problem == "s3://no-such-bucket/x/: there is no bucket 'no-such-bucket'"


def test_inputs_that_are_not_listed_by_a_bucket_name(script: Path) -> None:
    access_point = "arn:aws:s3:eu-west-1:123456789012:accesspoint/team"
    storage = FakeStorage([BUCKET, access_point, "data"])
    storage.objects[access_point] = {"train/1": b"12345"}
    storage.objects["data"] = {"one.manifest": b"[]"}
    job = Job(
        entry=script,
        role=ROLE,
        inputs={
            "point": f"s3://{access_point}/train/",
            "disk": "efs://fs-1a2b3c4d/x",
            "listed": {"uri": "s3://data/one.manifest", "manifest": True},
        },
    )
    inputs = gather_needed_facts(job, target_with(storage=storage), SOURCE).inputs
    assert (inputs["point"].objects, inputs["point"].bytes, inputs["point"].problem) == (1, 5, None)
    assert (inputs["disk"].kind, inputs["disk"].bytes, inputs["disk"].problem) == ("file system", None, None)
    assert (inputs["listed"].bytes, inputs["listed"].problem) == (None, None)


def test_a_long_listing_is_truncated(script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_facts, "MAX_LISTED_OBJECTS", 3)
    monkeypatch.setattr(input_facts, "MAX_COUNTED_OBJECTS", 8)
    storage = FakeStorage(["data"])
    for object_count, counts in ((8, {"File": (8, False), "FastFile": (3, True)}), (9, {"File": (8, True)})):
        storage.objects["data"] = {f"k{index}": b"x" for index in range(object_count)}
        for mode, expected in counts.items():
            job = Job(entry=script, role=ROLE, inputs={"t": {"uri": "s3://data/k", "mode": mode}})
            facts = gather_needed_facts(job, target_with(storage=storage), SOURCE).inputs["t"]
            assert (facts.objects, facts.is_truncated) == expected
            assert facts.bytes == facts.objects


def test_twenty_thousand_objects_are_counted_to_the_last(script: Path) -> None:
    storage = FakeStorage(["data"])
    storage.objects["data"] = dict.fromkeys((f"k{index}" for index in range(20_000)), b"x" * 10)
    job = Job(entry=script, role=ROLE, inputs={"t": "s3://data/k"})
    facts = gather_needed_facts(job, target_with(storage=storage), SOURCE).inputs["t"]
    assert (facts.objects, facts.bytes, facts.is_truncated) == (20_000, 200_000, False)


def test_local_inputs_are_named_by_their_content(script: Path, tmp_path: Path) -> None:
    def facts(folder: Path) -> str | None:
        return (
            gather_needed_facts(Job(entry=script, role=ROLE, inputs={"t": folder}), target_with(), SOURCE)
            .inputs["t"]
            .sha256
        )

    for name in ("one", "two"):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub" / "a").write_text("a")
        (tmp_path / name / "b").write_text("b")
    assert facts(tmp_path / "one") == facts(tmp_path / "two")
    (tmp_path / "two" / "b").rename(tmp_path / "two" / "c")
    assert facts(tmp_path / "one") != facts(tmp_path / "two")


def test_local_inputs_that_cannot_be_sent(script: Path, tmp_path: Path) -> None:
    (tmp_path / "digits").mkdir()
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "again").symlink_to(tmp_path / "loop")
    job = Job(
        entry=script,
        role=ROLE,
        inputs={
            "typo": tmp_path / "digit",
            "empty": tmp_path / "digits",
            "loop": tmp_path / "loop",
            "far": tmp_path / "no" / "where",
        },
    )
    problem_by_input = {
        name: facts.problem for name, facts in gather_needed_facts(job, target_with(), SOURCE).inputs.items()
    }
    assert problem_by_input["typo"] == f"{tmp_path}/digit does not exist, did you mean '{tmp_path}/digits'?"
    assert (
        problem_by_input["empty"] == f"{tmp_path}/digits is empty; put files into it, or name another folder"
    )
    assert (
        problem_by_input["far"] == f"{tmp_path}/no/where does not exist (nor does its folder {tmp_path}/no)"
    )
    assert "link to a folder that contains it" in str(problem_by_input["loop"])


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("import torch.distributed", "torch.distributed"),
        ("import torch.distributed as dist", "torch.distributed"),
        ("from torch import distributed as dist", "torch.distributed"),
        ("from torch.distributed import init_process_group", "torch.distributed"),
        ("import torch\ntorch.distributed.barrier()", "torch.distributed"),
        ("import torch as t\nt.distributed.fsdp.X()", "torch.distributed"),
        ("def f():\n    import torch.distributed as d\n    d.barrier()\nf()", "torch.distributed"),
    ],
)
def test_transitive_imports(tmp_path: Path, code: str, name: str) -> None:
    (tmp_path / "s.py").write_text(code)
    assert name in read_script_facts(tmp_path / "s.py").imports


def test_modules_outside_the_source_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("import torch\nx = 'torch.distributed'\nself = x\nself.torch.distributed")
    facts = read_script_facts(tmp_path / "s.py")
    assert "torch.distributed" not in facts.imports
    assert not facts.reads_resource_config


def test_scripts_that_read_the_cluster_themselves(tmp_path: Path) -> None:
    (tmp_path / "s.py").write_text("open('/opt/ml/input/config/resourceconfig.json')")
    assert read_script_facts(tmp_path / "s.py").reads_resource_config
    for line, reads in {
        "cat /opt/ml/input/config/resourceconfig.json": True,
        'python train.py --host "$SM_CURRENT_HOST"': True,
        "echo $SM_HOSTS > hosts": True,
        "echo $SM_HOSTS | python train.py": True,
        "hosts=$(echo $SM_HOSTS)": True,
        "echo start; python train.py $SM_CURRENT_HOST": True,
        'echo "host $SM_CURRENT_HOST of $SM_HOSTS"': False,
        "  # SM_HOSTS": False,
    }.items():
        (tmp_path / "s.sh").write_text(f"set -e\n{line}\npython train.py\n")
        assert read_script_facts(tmp_path / "s.sh").reads_resource_config == reads, line


def test_scripts_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "train_ddp.py").write_text("x = (\n")
    assert (
        read_script_facts(tmp_path / "train_ddp.py").syntax_mistake
        == f"{tmp_path}/train_ddp.py, line 1: '(' was never closed"
    )
    missing = read_script_facts(tmp_path / "train_dpp.py")
    assert not missing.exists
    assert missing.problem == (
        f"{tmp_path}/train_dpp.py does not exist, did you mean '{tmp_path}/train_ddp.py'?"
    )


def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.write_text("this is a text\n")
    problem = read_script_facts(notes).problem
    assert problem is not None and "neither a .py or .sh script nor executable" in problem
    notes.chmod(0o755)
    assert read_script_facts(notes).problem is None
    assert read_script_facts(Path("/dev/null")).problem == (
        "/dev/null is no ordinary file; name a script or a program"
    )
