"""One host of a training job with /opt/ml as the platform prepares it, for any of the launchers."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HOSTS = ["algo-1", "algo-2"]

TRAIN = """\
import json, os, sys
with open(os.environ["TOLD_TO"], "w") as file:
    json.dump({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd()}, file)
"""

HYPERPARAMETERS = {
    "lr": "0.10",
    "epochs": "3",
    "optimizer": '"adam"',
    "plain": "text",
    "nesterov": "true",
    "layers": "[64, 32]",
    "schedule": '{"warmup": 5, "kind": "cosine"}',
    "batch-size": "32",
    "nothing": "null",
    "k": "7",
}
"""As SDK v2 and plain clients send them: JSON, or text that is none."""

ON_ITS_OWN = """\
set -e
mount --bind "$0/opt" /opt
mount --bind "$0/hosts" /etc/hosts
hostname algo-2 2>/dev/null || true
cd /opt/ml
exec "$@"
"""


@dataclass(frozen=True)
class ReceivedLaunch:
    argv: list[str]
    env: dict[str, str]


@dataclass
class Machine:
    """``python``: a virtual environment's, whose programs are on the PATH. Needs root: it is the only way to
    be at /opt/ml, which one of AWS's launchers takes for granted."""

    root: Path
    python: Path
    hosts: Sequence[str]
    current: str
    image: Mapping[str, str] = field(default_factory=dict)
    """Variables that the image sets."""

    def __post_init__(self) -> None:
        ml = self.root / "opt" / "ml"
        for name in ("input/config", "input/data/train", "model", "output/data", "checkpoints"):
            (ml / name).mkdir(parents=True)
        hosts_lines = "".join(f"127.0.0.{number}\t{name}\n" for number, name in enumerate(HOSTS, 1))
        (self.root / "hosts").write_text("127.0.0.1\tlocalhost\n" + hosts_lines)
        self.configure("hyperparameters.json", HYPERPARAMETERS)
        channel = {
            "TrainingInputMode": "File",
            "S3DistributionType": "FullyReplicated",
            "RecordWrapperType": "None",
        }
        self.configure("inputdataconfig.json", {"train": channel})
        group = {
            "instance_group_name": "homogeneousCluster",
            "instance_type": "ml.m5.xlarge",
            "hosts": list(self.hosts),
        }
        self.configure(
            "resourceconfig.json",
            {
                "current_host": self.current,
                "current_instance_type": "ml.m5.xlarge",
                "current_group_name": "homogeneousCluster",
                "hosts": list(self.hosts),
                "instance_groups": [group],
                "network_interface_name": "lo",
            },
        )

    def configure(self, name: str, document: Any) -> None:
        (self.ml / "input" / "config" / name).write_text(json.dumps(document))

    @property
    def ml(self) -> Path:
        return self.root / "opt" / "ml"

    def put(self, name: str, content: bytes | str, mode: int = 0o644) -> None:
        path = self.ml / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        path.chmod(mode)

    def run(self, command: Sequence[str]) -> ReceivedLaunch:
        """Runs ``command`` as the container's program; returns what the script received."""
        report = self.ml / "model" / "told.json"
        environ = {
            "PATH": f"{self.python.parent}{os.pathsep}/usr/local/bin{os.pathsep}/usr/bin{os.pathsep}/bin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "TRAINING_JOB_NAME": "golden",
            "TRAINING_JOB_ARN": "arn:aws:sagemaker:us-east-1:111122223333:training-job/golden",
            "AWS_REGION": "us-east-1",
            "PYTHONPATH": "/opt/ml/container",
            **self.image,
            "OWN": 'the job\'s own; "quoted" $HOME',
            "TOLD_TO": "/opt/ml/model/told.json",
        }
        result = subprocess.run(
            ["unshare", "--mount", "--uts", "sh", "-c", ON_ITS_OWN, str(self.root), *command],
            env=environ,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        document = json.loads(report.read_text())
        return ReceivedLaunch(document["argv"], document["env"])
