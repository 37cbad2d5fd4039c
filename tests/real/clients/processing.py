"""The official SDK, version 2 or 3, as a client: a ScriptProcessor.

    python processing.py JOB.json

Prints one line of JSON: the job's name, what it was described as, and what the client raised.
"""

import json
import sys
from pathlib import Path

import boto3

job = json.loads(Path(sys.argv[1]).read_text())
if job["version"] == 2:
    from sagemaker import Session
    from sagemaker.processing import ProcessingInput, ProcessingOutput, ScriptProcessor

    def processing_input(source, target, sharding):
        return ProcessingInput(source=source, destination=target, s3_data_distribution_type=sharding)

    def processing_output(source, target):
        return ProcessingOutput(source=source, destination=target)

else:
    from sagemaker.core.helper.session_helper import Session
    from sagemaker.core.processing import ScriptProcessor
    from sagemaker.core.shapes import ProcessingInput, ProcessingOutput, ProcessingS3Input, ProcessingS3Output

    def processing_input(source, target, sharding):
        s3 = ProcessingS3Input(
            s3_uri=source,
            local_path=target,
            s3_data_type="S3Prefix",
            s3_input_mode="File",
            s3_data_distribution_type=sharding,
        )
        return ProcessingInput(input_name="data", s3_input=s3)

    def processing_output(source, target):
        s3 = ProcessingS3Output(s3_uri=target, local_path=source, s3_upload_mode="EndOfJob")
        return ProcessingOutput(output_name="out", s3_output=s3)


session = Session(boto_session=boto3.Session(), default_bucket=job["bucket"])
processor = ScriptProcessor(
    role=job["role"],
    image_uri=job["image"],
    command=["python3"],
    instance_type="ml.m5.large",
    instance_count=2,
    sagemaker_session=session,
    base_job_name=job["name"],
    env={"PYTHONUNBUFFERED": "1"},
)
raised = None
try:
    processor.run(
        code=job["code"],
        inputs=[processing_input(job["data"], "/opt/ml/processing/input/data", "ShardedByS3Key")],
        outputs=[processing_output("/opt/ml/processing/out", job["out"])],
        arguments=job["arguments"],
        wait=True,
        logs=True,
    )
except Exception as error:
    raised = f"{type(error).__name__}: {error}"
print("result", json.dumps({"raised": raised}))
