"""The DAGs of test_airflow.py, as a user would write them. Airflow reads this file, the tests copy it."""

from __future__ import annotations

import os
import signal
from datetime import datetime, timedelta
from typing import Any

from airflow.providers.amazon.aws.operators.sagemaker import SageMakerTrainingOperator
from airflow.sdk import DAG, task
from botocore.client import BaseClient

from smlaunch.airflow import SmlaunchOperator

SOURCE = os.environ["TEST_SOURCE"]


def job(
    script: str = "train.py", attempts: int = 3, segment: str = "60s", **environment: str
) -> dict[str, Any]:
    limits = {"max_runtime": "1h", "segment": segment, "attempts": attempts}
    return {"entry": f"{SOURCE}/{script}", "limits": limits, "environment": environment}


def dag(name: str) -> DAG:
    return DAG(name, schedule=None, start_date=datetime(2026, 1, 1))


with dag("whole"):
    trained = SmlaunchOperator(task_id="train", job=job())

    @task
    def message_lines(result: dict[str, Any]) -> list[str]:
        return [result["status"], result["model_artifacts"], *(row["name"] for row in result["jobs"])]

    message_lines(trained.output)

with dag("deferred"):

    @task.smlaunch(deferrable=True)
    def train() -> dict[str, Any]:
        return job("halves.py", TEST_PAUSE="0.4")

    train()

with dag("cleared"):
    SmlaunchOperator(task_id="train", job=job("halves.py", TEST_PAUSE="0.4"), deferrable=True)

with dag("retried"):
    SmlaunchOperator(
        task_id="train", job=job("fails.py", attempts=1), retries=2, retry_delay=timedelta(seconds=0)
    )

RETRIED = {"retries": 4, "retry_delay": timedelta(seconds=0)}


def dies_when_a_job_was_created(context: Any) -> None:
    """Between CreateTrainingJob's answer and whatever comes next, the first try is lost with its supervisor,
    in segment 1, and the second loses its supervisor alone, in segment 2."""
    number = context["ti"].try_number
    call = BaseClient._make_api_call

    def last_call(client: Any, operation: str, arguments: Any) -> Any:
        answer = call(client, operation, arguments)
        if operation == "CreateTrainingJob" and arguments["TrainingJobName"].endswith(f"-s{number}-a1"):
            os.kill(os.getppid(), signal.SIGKILL)
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return answer

    BaseClient._make_api_call = last_call


with dag("lost_submitting"):
    SmlaunchOperator(
        task_id="train", job=job("halves.py"), pre_execute=dies_when_a_job_was_created, **RETRIED
    )

with dag("lost_training"):
    SmlaunchOperator(task_id="train", job=job("halves.py", TEST_PAUSE="0.4"), **RETRIED)

with dag("restarted"):
    SmlaunchOperator(task_id="train", job=job("halves.py", TEST_PAUSE="0.8"), deferrable=True, **RETRIED)

with dag("processed"):
    cleaning = {
        "entry": f"{SOURCE}/clean.py",
        "strategy": "processing",
        "inputs": {"raw": f"{SOURCE}/raw"},
        "args": ["a word"],
    }
    SmlaunchOperator(task_id="train", job=cleaning, deferrable=True)

with dag("misconnected"):
    SmlaunchOperator(task_id="train", job=job(), aws_conn_id="nobodys", **RETRIED)

with dag("killed"):
    SmlaunchOperator(task_id="train", job=job("halves.py", segment="20m", TEST_PAUSE="8"))

with dag("killed_deferred"):
    SmlaunchOperator(task_id="train", job=job("halves.py", segment="20m", TEST_PAUSE="8"), deferrable=True)

with dag("amazon"):
    SageMakerTrainingOperator(
        task_id="train",
        check_interval=1,
        config={
            "TrainingJobName": "by-amazons-operator",
            "RoleArn": os.environ["SMLAUNCH_ROLE"],
            "AlgorithmSpecification": {
                "TrainingImage": "123456789012.dkr.ecr.us-east-1.amazonaws.com/any:1",
                "TrainingInputMode": "File",
                "ContainerEntrypoint": ["python3", "-c", "print('a line of the job')"],
            },
            "ResourceConfig": {"InstanceType": "ml.m5.large", "InstanceCount": "1", "VolumeSizeInGB": 10},
            "StoppingCondition": {"MaxRuntimeInSeconds": "60"},
            "OutputDataConfig": {"S3OutputPath": f"s3://{os.environ['TEST_BUCKET']}/amazon"},
        },
    )
