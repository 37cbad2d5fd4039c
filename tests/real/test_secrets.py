"""Secrets of a job, which the runtime reads from the services behind the endpoint."""

from __future__ import annotations

from pathlib import Path

from tests.real.moto_endpoint import StepFunctions, endpoint
from tests.runtime.host import Host

PRINT_SECRETS = "import os\nprint(os.environ['HF_TOKEN'], os.environ['WANDB_API_KEY'])"


def test_ranks_get_what_the_services_hold(tmp_path: Path) -> None:
    with endpoint(tmp_path / "home", {}) as info:
        user = StepFunctions(info)
        arn = user.client("secretsmanager").create_secret(Name="hub/token", SecretString="hf")["ARN"]
        user.client("ssm").put_parameter(Name="/research/wandb", Value="wb", Type="SecureString")
        references = (("HF_TOKEN", f"secretsmanager:{arn}"), ("WANDB_API_KEY", "ssm:/research/wandb"))
        result = Host(tmp_path / "ml", PRINT_SECRETS, environ=info.environment()).run(secrets=references)
        assert (result.exit_code, result.lines) == (0, ["[0] hf wb"])
        missing = (("HF_TOKEN", "secretsmanager:none"),)
        host = Host(tmp_path / "other", PRINT_SECRETS, environ=info.environment())
        assert host.run(secrets=missing).exit_code == 2
        assert "ResourceNotFoundException" in host.failure and "check its name" in host.failure
