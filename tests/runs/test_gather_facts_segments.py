"""Facts that are gathered for a run of several jobs, and for no other."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from smlaunch.aws.botocore_client import ServiceQuotas
from smlaunch.aws.interfaces import CallError
from smlaunch.discovery.script_analysis import modules_mention_checkpoints
from smlaunch.discovery.source_modules import read_source_program
from smlaunch.facts.discovered_facts import CheckpointFacts, SourceFacts
from smlaunch.job.model import Compute, Job
from smlaunch.runs.launch_target import Target
from tests.runs.fakes import ROLE, FakeQuotas, fake_target, gather_needed_facts

LONGEST = "Longest run time for a training job"


def job_of(folder: Path, **limits: str) -> Job:
    (folder / "train.py").write_text("import torch\n")
    return Job(entry=folder / "train.py", role=ROLE, limits=limits)


def source_of(folder: Path) -> SourceFacts:
    return SourceFacts(str(folder), "train.py", "0" * 64, 1, 1)


def target_with(quotas: FakeQuotas, **services: object) -> Target:
    target = fake_target(**services)
    target.__dict__["quotas"] = quotas
    return target


@pytest.mark.parametrize(
    ("limits", "is_requested"),
    [
        ({}, 0),
        ({"max_runtime": "5d"}, 0),
        ({"max_runtime": "60d", "segment": "24h"}, 0),
        ({"max_runtime": "6d"}, 1),
        ({"max_runtime": "60d", "segment": "10d"}, 1),
    ],
)
def test_the_quota_is_read_only_for_long_jobs(
    tmp_path: Path, limits: dict[str, str], is_requested: int
) -> None:
    quotas = FakeQuotas({LONGEST: 10 * 86400})
    facts = gather_needed_facts(job_of(tmp_path, **limits), target_with(quotas), source_of(tmp_path))
    assert quotas.requested_quotas == [(LONGEST,)] * is_requested
    assert facts.max_runtime_quota == (10 * 86400 if is_requested else None)


def test_a_quota_that_may_not_be_read_has_its_reason(tmp_path: Path) -> None:
    access_denied = CallError("ListServiceQuotas", "AccessDeniedException", "no")
    job = job_of(tmp_path, max_runtime="6d")
    facts = gather_needed_facts(job, target_with(FakeQuotas(access_denied)), source_of(tmp_path))
    assert facts.max_runtime_quota is None
    assert facts.max_runtime_quota_problem == "ListServiceQuotas: AccessDeniedException"


def test_a_local_endpoint_has_no_quotas(tmp_path: Path) -> None:
    quotas = FakeQuotas({LONGEST: 1})
    target = dataclasses.replace(fake_target(), kind="local")
    target.__dict__.update(quotas=quotas, storage=fake_target().storage, identity=fake_target().identity)
    job = job_of(tmp_path, max_runtime="60d")
    many_hosts = job.with_changes(compute=Compute(hosts=30, instance_type="ml.g5.xlarge"))
    for asks in (job, many_hosts):
        facts = gather_needed_facts(asks, target, source_of(tmp_path))
        assert (facts.quotas, facts.quotas_problem) == ({}, None)
    assert quotas.requested_quotas == []


@pytest.mark.parametrize(
    ("compute", "expected_quotas"),
    [
        ({}, []),
        ({"instance_type": "ml.m5.xlarge"}, []),
        ({"hosts": 2}, ["ml.m5.xlarge for training job usage"]),
        ({"instance_type": "ml.g5.xlarge"}, ["ml.g5.xlarge for training job usage"]),
        ({"spot": True}, ["ml.m5.xlarge for spot training job usage"]),
        (
            {"keep_alive": "1h"},
            ["ml.m5.xlarge for training job usage", "ml.m5.xlarge for training warm pool usage"],
        ),
        (
            {"hosts": 21, "instance_preferences": ["ml.g5.xlarge", "ml.g6.xlarge"]},
            [
                "ml.g5.xlarge for training job usage",
                "ml.g6.xlarge for training job usage",
                "Number of instances for a training job",
            ],
        ),
    ],
)
def test_the_right_quotas_are_read(
    tmp_path: Path, compute: dict[str, Any], expected_quotas: list[str]
) -> None:
    quotas = FakeQuotas({"ml.g5.xlarge for training job usage": 4.0})
    job = job_of(tmp_path).with_changes(compute=Compute(**compute))
    facts = gather_needed_facts(job, target_with(quotas), source_of(tmp_path))
    assert quotas.requested_quotas == ([tuple(expected_quotas)] if expected_quotas else [])
    assert list(facts.quotas) == expected_quotas
    if "ml.g5.xlarge for training job usage" in expected_quotas:
        assert facts.quotas["ml.g5.xlarge for training job usage"] == 4.0


def test_one_pass_is_enough_for_a_long_run_of_many_hosts(tmp_path: Path) -> None:
    quotas = FakeQuotas({LONGEST: 10 * 86400, "ml.m5.xlarge for training job usage": 8.0})
    job = job_of(tmp_path, max_runtime="6d").with_changes(compute=Compute(hosts=4))
    facts = gather_needed_facts(job, target_with(quotas), source_of(tmp_path))
    assert len(quotas.requested_quotas) == 1
    assert facts.max_runtime_quota == 10 * 86400
    assert facts.quotas == {"ml.m5.xlarge for training job usage": 8.0}


def test_the_quota_is_found_by_its_name_on_any_page() -> None:
    pages = {
        None: {"Quotas": [{"QuotaName": "Number of instances", "Value": 20.0}], "NextToken": "2"},
        "2": {"Quotas": [{"QuotaName": "Longest run time for a training job", "Value": 432000.0}]},
    }

    class Client:
        def list_service_quotas(self, **params: object) -> object:
            assert params["ServiceCode"] == "sagemaker"
            return pages[params.get("NextToken")]  # type: ignore[index]

    read = ServiceQuotas(Client()).quota_values
    assert read([LONGEST]) == {LONGEST: 432000.0}
    assert read(["Number of instances", LONGEST]) == {"Number of instances": 20.0, LONGEST: 432000.0}
    assert read(["Number of instances", "no such quota"]) == {"Number of instances": 20.0}


def test_paging_ends_when_all_quotas_are_found() -> None:
    class Client:
        pages = 0

        def list_service_quotas(self, **params: object) -> object:
            self.pages += 1
            return {"Quotas": [{"QuotaName": f"q{self.pages}", "Value": 1.0}], "NextToken": "on"}

    client = Client()
    assert ServiceQuotas(client).quota_values(["q2"]) == {"q2": 1.0}
    assert client.pages == 2
    assert ServiceQuotas(client).quota_values(["never"]) == {}
    assert client.pages == 52


def test_existing_checkpoints_are_counted(tmp_path: Path) -> None:
    target = fake_target()
    storage = target.storage
    storage.create_bucket("b", "us-east-1")
    for step, size in ((10, 7), (20, 5)):
        for rank in range(2):
            storage.put_bytes("b", f"c/smlaunch/step-{step:012d}/rank-{rank}.shard", b"x" * size)
    storage.put_bytes("b", "c/smlaunch/outcome-x-s1-a1.json", b"{}")
    job = job_of(tmp_path, segment="24h", max_runtime="3d").with_changes(
        checkpoints=Job(entry="a.py", checkpoints="s3://b/c/").checkpoints
    )
    assert gather_needed_facts(job, target, source_of(tmp_path)).checkpoints == CheckpointFacts(26, 10)
    plain = job.with_changes(limits=job_of(tmp_path).limits)
    assert gather_needed_facts(plain, target, source_of(tmp_path)).checkpoints is not None
    without_prefix = plain.with_changes(checkpoints=None)
    assert gather_needed_facts(without_prefix, target, source_of(tmp_path)).checkpoints is None


def test_modules_of_the_source_are_followed(tmp_path: Path) -> None:
    files = {
        "run/train.py": "import lib.loop\nfrom helper import go\n",
        "run/helper.py": "import json\n",
        "lib/__init__.py": "",
        "lib/loop.py": "from .deep import inner\nfrom . import other\n",
        "lib/deep/__init__.py": "",
        "lib/deep/inner.py": "from smlaunch.train import Checkpointer\n",
        "lib/other.py": "import lib.loop, xgboost\nthis is no python\n",
        "unused.py": "import transformers\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    imports = read_source_program(tmp_path / "run" / "train.py", tmp_path).library_imports.names
    assert {"smlaunch.train", "json"} <= imports
    assert not {"transformers", "xgboost", "helper"} & imports, "helper is the source's own"


def test_a_relative_path_to_the_script_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text("from . import x\nfrom .. import y\nimport own\n")
    (tmp_path / "own.py").write_text("import smlaunch.train\n")
    monkeypatch.chdir(tmp_path)
    assert "smlaunch.train" in read_source_program(Path("train.py"), Path(".")).library_imports.names


def test_a_module_may_name_the_checkpoint_directory(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("from common import *\n")
    (tmp_path / "common.py").write_text("CK = '/opt/ml/checkpoints'\n")
    assert modules_mention_checkpoints(read_source_program(tmp_path / "train.py", tmp_path))
    (tmp_path / "common.py").write_text("CK = 'elsewhere'\n")
    assert not modules_mention_checkpoints(read_source_program(tmp_path / "train.py", tmp_path))
