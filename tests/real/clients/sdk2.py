"""The official SDK, version 2, as a client: the PyTorch estimator.

Its jobs need the training toolkit's ``train``.

    python sdk2.py JOB.json

Prints one line of JSON: the job's name and what the client raised. The job's end is for the reader to ask.
"""

import json
import sys
from pathlib import Path

import boto3
import sagemaker
from sagemaker.pytorch import PyTorch

job = json.loads(Path(sys.argv[1]).read_text())
session = sagemaker.Session(boto_session=boto3.Session(), default_bucket=job["bucket"])
estimator = PyTorch(
    entry_point=job["entry"],
    source_dir=job["source"],
    role=job["role"],
    image_uri=job["image"],
    instance_type="ml.m5.large",
    instance_count=job["hosts"],
    distribution={"torch_distributed": {"enabled": True}} if job["driver"] == "torchrun" else None,
    hyperparameters=job["hyperparameters"],
    max_run=job["max_runtime"],
    enable_network_isolation=job.get("isolated", False),
    output_path=f"s3://{job['bucket']}/sdk2",
    # What a PyTorch training image sets; the endpoint does not run images.
    environment={
        "PYTHONUNBUFFERED": "1",
        "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
    },
    sagemaker_session=session,
    base_job_name=job["name"],
    disable_profiler=True,
    debugger_hook_config=False,
)
raised = None
try:
    estimator.fit(wait=True, logs="All" if job.get("logs") else "None")
except Exception as error:
    raised = f"{type(error).__name__}: {error}"
training_job = estimator.latest_training_job
print("result", json.dumps({"job": training_job.name if training_job else None, "raised": raised}))
