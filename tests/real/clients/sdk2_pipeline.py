"""The official SDK, version 2, as a client: its Pipeline with each kind of step that this endpoint has.

    python sdk2_pipeline.py JOB.json

Prints one line of JSON: what the SDK says of two executions, the second of which is to fail, and the SDK's
own definition.
"""

import json
import sys
from pathlib import Path

import boto3
from sagemaker.estimator import Estimator
from sagemaker.inputs import TrainingInput
from sagemaker.processing import ProcessingOutput, ScriptProcessor
from sagemaker.workflow.condition_step import ConditionStep
from sagemaker.workflow.conditions import ConditionGreaterThanOrEqualTo, ConditionIn, ConditionNot
from sagemaker.workflow.execution_variables import ExecutionVariables
from sagemaker.workflow.fail_step import FailStep
from sagemaker.workflow.functions import Join, JsonGet
from sagemaker.workflow.parameters import ParameterFloat, ParameterInteger, ParameterString
from sagemaker.workflow.pipeline import Pipeline
from sagemaker.workflow.pipeline_context import PipelineSession
from sagemaker.workflow.properties import PropertyFile
from sagemaker.workflow.retry import (
    SageMakerJobExceptionTypeEnum,
    SageMakerJobStepRetryPolicy,
    StepExceptionTypeEnum,
    StepRetryPolicy,
)
from sagemaker.workflow.steps import CacheConfig, ProcessingStep, TrainingStep

job = json.loads(Path(sys.argv[1]).read_text())
session = PipelineSession(boto_session=boto3.Session(), default_bucket=job["bucket"])
code = session.upload_data(job["train"], key_prefix="pipeline/code")

least = ParameterFloat(name="Least", default_value=0.5)
hosts = ParameterInteger(name="Hosts", default_value=1)
mood = ParameterString(name="Mood", default_value="good", enum_values=["good", "bad"])
cache = CacheConfig(enable_caching=True, expire_after="P1D")

processor = ScriptProcessor(
    image_uri=job["image"],
    command=["python3"],
    role=job["role"],
    instance_type="ml.m5.large",
    instance_count=1,
    sagemaker_session=session,
)
report = PropertyFile(name="Report", output_name="prepared", path="report.json")
prepare = ProcessingStep(
    name="Prepare",
    step_args=processor.run(
        code=job["prepare"],
        outputs=[
            ProcessingOutput(
                output_name="prepared",
                source="/opt/ml/processing/prepared",
                # Without one the SDK writes the execution's id here, and no two executions are the same.
                destination=f"s3://{job['bucket']}/pipeline/prepared",
            )
        ],
    ),
    property_files=[report],
    cache_config=cache,
    retry_policies=[
        StepRetryPolicy(
            exception_types=[StepExceptionTypeEnum.THROTTLING, StepExceptionTypeEnum.SERVICE_FAULT],
            interval_seconds=1,
            max_attempts=3,
        )
    ],
)
estimator = Estimator(
    image_uri=job["image"],
    role=job["role"],
    instance_type="ml.m5.large",
    instance_count=hosts,
    hyperparameters={"mood": mood, "run": ExecutionVariables.PIPELINE_EXECUTION_ID},
    metric_definitions=[{"Name": "acc", "Regex": "acc=([0-9.]+);"}],
    container_entry_point=["python3", "-u", "/opt/ml/input/data/code/train.py"],
    output_path=Join(on="/", values=["s3:/", job["bucket"], "pipeline", "out"]),
    disable_profiler=True,
    debugger_hook_config=False,
    sagemaker_session=session,
)
prepared = prepare.properties.ProcessingOutputConfig.Outputs["prepared"].S3Output.S3Uri
train = TrainingStep(
    name="Train",
    step_args=estimator.fit({"code": TrainingInput(code), "prepared": TrainingInput(prepared)}),
    retry_policies=[
        SageMakerJobStepRetryPolicy(
            exception_types=[SageMakerJobExceptionTypeEnum.INTERNAL_ERROR], expire_after_mins=5
        )
    ],
)
good = ConditionStep(
    name="Good",
    conditions=[
        ConditionGreaterThanOrEqualTo(left=train.properties.FinalMetricDataList["acc"].Value, right=least),
        ConditionGreaterThanOrEqualTo(
            left=JsonGet(step_name="Prepare", property_file=report, json_path="rows[0].count"), right=3
        ),
        ConditionNot(ConditionIn(value=mood, in_values=["bad", "worse"])),
    ],
    if_steps=[],
    else_steps=[FailStep(name="Bad", error_message=Join(on=" ", values=["in a", mood, "mood"]))],
)
pipeline = Pipeline(
    name="sdk2-pipeline",
    parameters=[least, hosts, mood],
    steps=[prepare, train, good],
    sagemaker_session=session,
)


def execute_pipeline(**parameters):
    execution = pipeline.start(parameters=parameters, execution_display_name="by-sdk2")
    raised = None
    try:
        execution.wait(delay=1, max_attempts=120)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    return {
        "raised": raised,
        "status": execution.describe()["PipelineExecutionStatus"],
        "arn": execution.arn,
        "steps": execution.list_steps(),
        "parameters": execution.list_parameters()["PipelineParameters"],
    }


pipeline.upsert(role_arn=job["role"], description="once", tags=[{"Key": "a", "Value": "1"}])
pipeline.upsert(role_arn=job["role"], description="and again", tags=[{"Key": "b", "Value": "2"}])
result = {
    "definition": json.loads(pipeline.definition()),
    "description": pipeline.describe()["PipelineDescription"],
    "good": execute_pipeline(),
    "bad": execute_pipeline(Mood="bad", Least=0.75),
}
pipeline.delete()
print("result", json.dumps(result, default=str))
