"""Options about capacity reach the service, here the endpoint, and have their effect."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import botocore.session
import pytest

from tests.e2e.command import smlaunch


@pytest.fixture
def sagemaker(home: Path) -> Any:
    assert smlaunch("local", "start").code == 0
    settings = smlaunch("local", "env", "--json").json()
    session = botocore.session.Session(profile=None)
    session.set_credentials(settings["AWS_ACCESS_KEY_ID"], settings["AWS_SECRET_ACCESS_KEY"])
    region = settings.get("AWS_REGION") or settings["AWS_DEFAULT_REGION"]
    yield session.create_client("sagemaker", region_name=region, endpoint_url=settings["AWS_ENDPOINT_URL"])
    assert smlaunch("local", "stop").code == 0


def test_preferences_a_bound_on_the_wait_and_warm_pools(home: Path, tmp_path: Path, sagemaker: Any) -> None:
    script = tmp_path / "source" / "train.py"
    script.parent.mkdir()
    script.write_text("print('hello')\n")

    def run(name: str, *arguments: str) -> dict[str, Any]:
        result = smlaunch("run", script, "--local", "--name", name, *arguments)
        assert result.code == 0, result.text
        answer: dict[str, Any] = sagemaker.describe_training_job(TrainingJobName=f"{name}-s1-a1")
        return answer

    types = ("ml.g5.xlarge", "ml.g6.xlarge")
    either = [word for kind in types for word in ("--instance-preference", kind)]
    description = run("either", *either, "--hosts", "2", "--strategy", "custom", "--max-pending", "1h")
    resources = description["ResourceConfig"]
    assert resources["InstancePreferences"] == [{"InstanceType": kind} for kind in types]
    assert "InstanceType" not in resources
    assert (resources["SelectedInstanceType"], resources["SelectedInstanceCount"]) == ("ml.g5.xlarge", 2)
    assert description["StoppingCondition"]["MaxPendingTimeInSeconds"] == 3600

    warm = ("--instance-type", "ml.g5.xlarge", "--keep-alive", "30m")
    assert run("first", *warm)["WarmPoolStatus"]["Status"] == "Available"
    assert run("second", *warm)["WarmPoolStatus"]["Status"] == "Available"
    status = sagemaker.describe_training_job(TrainingJobName="first-s1-a1")["WarmPoolStatus"]
    assert status["Status"] == "Reused"
    assert status["ReusedByJob"] == "second-s1-a1"
