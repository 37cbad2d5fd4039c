"""The official SDK, version 3, as a client: ModelTrainer with its own drivers.

    python sdk3.py JOB.json

Prints one line of JSON: the job's name and what the client raised. The job's end is for the reader to ask.
"""

import json
import logging
import sys
from pathlib import Path

import boto3
from sagemaker.core.helper.session_helper import Session
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, Networking, OutputDataConfig, SourceCode, StoppingCondition
from sagemaker.train.distributed import MPI, Torchrun

logging.basicConfig(level=logging.INFO, format="%(message)s")  # where its wait(logs=True) writes
job = json.loads(Path(sys.argv[1]).read_text())
# Without a bucket of our own the SDK asks an STS endpoint that is wired into it.
session = Session(boto_session=boto3.Session(), default_bucket=job["bucket"])
drivers = {"torchrun": Torchrun, "mpi": MPI}
distributed = None
if job["driver"] in drivers:
    distributed = drivers[job["driver"]](process_count_per_node=job["per_host"], **job.get("options", {}))
trainer = ModelTrainer(
    training_image=job["image"],
    source_code=SourceCode(source_dir=job["source"], entry_script=job["entry"]),
    compute=Compute(instance_type="ml.m5.large", instance_count=job["hosts"], volume_size_in_gb=30),
    networking=Networking(enable_network_isolation=job.get("isolated", False)),
    distributed=distributed,
    output_data_config=OutputDataConfig(s3_output_path=f"s3://{job['bucket']}/sdk3"),
    stopping_condition=StoppingCondition(max_runtime_in_seconds=job["max_runtime"]),
    environment=job.get("environment"),
    role=job["role"],
    sagemaker_session=session,
    base_job_name=job["name"],
    hyperparameters=job["hyperparameters"],
)
raised = None
try:
    trainer.train(wait=True, logs=job.get("logs", False))
except Exception as error:
    raised = f"{type(error).__name__}: {error}"
training_job = trainer._latest_training_job
print(
    "result", json.dumps({"job": training_job.training_job_name if training_job else None, "raised": raised})
)
