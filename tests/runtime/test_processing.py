"""The runtime on a host of a processing job, which has other files and the same ranks."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from smlaunch.contract.launch_spec import LaunchSpec, RankSpec, Ref
from smlaunch.contract.sagemaker_paths import (
    LAUNCH_FILE,
    ROOT_VARIABLE,
    RUNTIME_ARCHIVE,
    RUNTIME_CHANNEL,
    SOURCE_ARCHIVE,
    SOURCE_CHANNEL,
    Paths,
    ProcessingPaths,
)
from smlaunch.runtime.cluster import processing
from smlaunch.runtime.errors import SetupError
from tests.runtime.host import runtime_archive


def write_host_files(root: Path, script: str, **job: Any) -> ProcessingPaths:
    """Write the files of a host called localhost: a channel ``train`` and an input in another directory."""
    paths = ProcessingPaths(str(root))
    for name in (RUNTIME_CHANNEL, SOURCE_CHANNEL, "train"):
        Path(paths.channel_dir(name)).mkdir(parents=True)
    for folder in (paths.config, paths.output, paths.output_data):
        Path(folder).mkdir(parents=True, exist_ok=True)
    launch = Path(paths.channel_dir(RUNTIME_CHANNEL))
    (launch / RUNTIME_ARCHIVE).write_bytes(runtime_archive())
    ranks = RankSpec((Ref("python"), Ref("source", suffix="/main.py"), "--n", "3"), (), 1, False)
    (launch / LAUNCH_FILE).write_text(LaunchSpec(ranks=ranks, source=SOURCE_ARCHIVE, run="clean").to_json())
    with tarfile.open(Path(paths.channel_dir(SOURCE_CHANNEL)) / SOURCE_ARCHIVE, "w:gz") as tar:
        member = tarfile.TarInfo("main.py")
        member.size = len(script)
        tar.addfile(member, io.BytesIO(script.encode()))
    document = {"current_host": "localhost", "hosts": ["localhost"]}
    Path(paths.resource_config).write_text(json.dumps(document))
    inputs = [
        {
            "InputName": "train",
            "S3Input": {"LocalPath": "/opt/ml/processing/input/train", "S3Uri": "s3://b/x"},
        },
        {"InputName": "other", "S3Input": {"LocalPath": "/opt/ml/processing/other", "S3Uri": "s3://b/y"}},
        {"InputName": "own", "AppManaged": True},
    ]
    request = {"ProcessingJobName": "clean-s1-a1", "ProcessingInputs": inputs, **job}
    Path(paths.job_config).write_text(json.dumps(request))
    return paths


def run(paths: ProcessingPaths) -> subprocess.CompletedProcess[str]:
    archive = Path(paths.channel_dir(RUNTIME_CHANNEL)) / RUNTIME_ARCHIVE
    environment = {**os.environ, ROOT_VARIABLE: paths.root}
    return subprocess.run(
        [sys.executable, str(archive)], env=environment, capture_output=True, text=True, timeout=60
    )


def test_a_script_finds_its_inputs_and_its_output(tmp_path: Path) -> None:
    script = """
import json, os, sys
names = ("SM_CHANNEL_TRAIN", "SM_CHANNELS", "SM_OUTPUT_DATA_DIR", "SM_HOSTS", "SM_NETWORK_INTERFACE_NAME")
print(json.dumps([sys.argv[1:], {name: os.environ[name] for name in names}]))
"""
    paths = write_host_files(tmp_path, script)
    result = run(paths)
    assert result.returncode == 0, result.stderr
    words, variables = json.loads(result.stdout.split("] ", 1)[-1])
    assert words == ["--n", "3"]
    assert variables == {
        "SM_CHANNEL_TRAIN": f"{tmp_path}/processing/input/train",
        "SM_CHANNELS": '["train"]',
        "SM_OUTPUT_DATA_DIR": f"{tmp_path}/processing/output",
        "SM_HOSTS": '["localhost"]',
        "SM_NETWORK_INTERFACE_NAME": "lo",
    }


def test_a_failure_is_told_in_the_exit_message(tmp_path: Path) -> None:
    paths = write_host_files(tmp_path, "raise ValueError('no such column')")
    result = run(paths)
    assert result.returncode == 1
    message = Path(paths.message).read_text()
    assert "ValueError: no such column" in message
    assert not Path(Paths(str(tmp_path)).failure_file).exists()


def test_a_training_job_s_host_is_none(tmp_path: Path) -> None:
    paths = Paths(str(tmp_path))
    environ = {ROOT_VARIABLE: str(tmp_path)}
    assert type(Paths.from_environment(environ)) is Paths
    processing_paths = ProcessingPaths(str(tmp_path))
    for folder in (paths.config, processing_paths.config):
        Path(folder).mkdir(parents=True)
    Path(processing_paths.resource_config).write_text("{}")
    assert type(Paths.from_environment(environ)) is ProcessingPaths
    Path(paths.resource_config).write_text("{}")
    assert type(Paths.from_environment(environ)) is Paths


def test_a_request_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    paths = write_host_files(tmp_path, "")
    Path(paths.job_config).write_text("[]")
    with pytest.raises(SetupError, match=r"processingjobconfig\.json"):
        processing.read_job(paths)
