"""The official SDK, version 3, as a client: its Pipeline with each kind of step that this endpoint has.

    python sdk3_pipeline.py JOB.json

Prints one line of JSON: the SDK's own definitions, and, unless the job says ``"run": false``, what the SDK
says of their executions.
"""

import json
import sys
from pathlib import Path

import boto3
from sagemaker.core.processing import ScriptProcessor
from sagemaker.core.shapes import ProcessingOutput, ProcessingS3Output
from sagemaker.core.workflow.conditions import ConditionGreaterThanOrEqualTo, ConditionIn, ConditionNot
from sagemaker.core.workflow.execution_variables import ExecutionVariables
from sagemaker.core.workflow.functions import Join, JsonGet
from sagemaker.core.workflow.parameters import (
    ParameterBoolean,
    ParameterFloat,
    ParameterInteger,
    ParameterString,
)
from sagemaker.core.workflow.pipeline_context import PipelineSession
from sagemaker.core.workflow.properties import PropertyFile
from sagemaker.mlops.workflow import (
    CacheConfig,
    ConditionStep,
    FailStep,
    Pipeline,
    ProcessingStep,
    SageMakerJobExceptionTypeEnum,
    SageMakerJobStepRetryPolicy,
    StepExceptionTypeEnum,
    StepRetryPolicy,
    TrainingStep,
)
from sagemaker.mlops.workflow.function_step import step
from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InputData, OutputDataConfig, SourceCode, StoppingCondition

job = json.loads(Path(sys.argv[1]).read_text())
session = PipelineSession(boto_session=boto3.Session(), default_bucket=job["bucket"])
prefix = f"s3://{job['bucket']}/sdk3-pipeline"

least = ParameterFloat(name="Least", default_value=0.5)
hosts = ParameterInteger(name="Hosts", default_value=1)
mood = ParameterString(name="Mood", default_value="good", enum_values=["good", "bad"])
strict = ParameterBoolean(name="Strict", default_value=True)


def of_jobs():
    processor = ScriptProcessor(
        image_uri=job["image"],
        command=["python3"],
        role=job["role"],
        instance_type="ml.m5.large",
        instance_count=1,
        sagemaker_session=session,
    )
    report = PropertyFile(name="Report", output_name="prepared", path="report.json")
    output = ProcessingS3Output(
        s3_uri=f"{prefix}/prepared", local_path="/opt/ml/processing/prepared", s3_upload_mode="EndOfJob"
    )
    prepare = ProcessingStep(
        name="Prepare",
        step_args=processor.run(
            code=job["prepare"], outputs=[ProcessingOutput(output_name="prepared", s3_output=output)]
        ),
        property_files=[report],
        cache_config=CacheConfig(enable_caching=True, expire_after="P1D"),
        retry_policies=[
            StepRetryPolicy(
                exception_types=[StepExceptionTypeEnum.THROTTLING, StepExceptionTypeEnum.SERVICE_FAULT],
                interval_seconds=1,
                max_attempts=3,
            )
        ],
    )
    trainer = ModelTrainer(
        training_image=job["image"],
        source_code=SourceCode(source_dir=job["source"], entry_script="train.py"),
        compute=Compute(instance_type="ml.m5.large", instance_count=hosts, volume_size_in_gb=30),
        hyperparameters={"mood": mood, "run": ExecutionVariables.PIPELINE_EXECUTION_ID, "lr": 0.1},
        output_data_config=OutputDataConfig(s3_output_path=f"{prefix}/out"),
        stopping_condition=StoppingCondition(max_runtime_in_seconds=600),
        role=job["role"],
        sagemaker_session=session,
        base_job_name="sdk3-pipeline",
    )
    prepared = prepare.properties.ProcessingOutputConfig.Outputs["prepared"].S3Output.S3Uri
    train = TrainingStep(
        name="Train",
        step_args=trainer.train(input_data_config=[InputData(channel_name="prepared", data_source=prepared)]),
        retry_policies=[
            SageMakerJobStepRetryPolicy(
                exception_types=[SageMakerJobExceptionTypeEnum.INTERNAL_ERROR], expire_after_mins=5
            )
        ],
    )
    good = ConditionStep(
        name="Good",
        conditions=[
            ConditionGreaterThanOrEqualTo(
                left=JsonGet(step_name="Prepare", property_file=report, json_path="rows[0].count"),
                right=least,
            ),
            ConditionNot(ConditionIn(value=mood, in_values=["bad", "worse"])),
        ],
        if_steps=[],
        else_steps=[FailStep(name="Bad", error_message=Join(on=" ", values=["in a", mood, "mood"]))],
        depends_on=[train],
    )
    return Pipeline(
        name="sdk3-jobs",
        parameters=[least, hosts, mood, strict],
        steps=[prepare, train, good],
        sagemaker_session=session,
    )


def of_functions():
    words = {"image_uri": job["image"], "role": job["role"], "instance_type": "ml.m5.large"}

    @step(name="Count", **words)
    def count(number, word):
        return {"rows": number + 1, "word": word}

    @step(name="Double", **words)
    def double(rows):
        return rows * 2

    doubled = double(count(hosts, mood)["rows"])
    enough = ConditionStep(
        name="Enough",
        conditions=[ConditionGreaterThanOrEqualTo(left=doubled, right=4)],
        if_steps=[],
        else_steps=[FailStep(name="TooFew", error_message="too few")],
    )
    return Pipeline(
        name="sdk3-functions", parameters=[hosts, mood], steps=[doubled, enough], sagemaker_session=session
    )


def execute_pipeline(pipeline, **parameters):
    execution = pipeline.start(parameters=parameters, execution_display_name="by-sdk3")
    raised = None
    try:
        execution.wait(delay=1, max_attempts=240)
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    return {
        "raised": raised,
        "status": execution.describe()["PipelineExecutionStatus"],
        "arn": execution.arn,
        "steps": execution.list_steps(),
        "parameters": execution.list_parameters()["PipelineParameters"],
    }


pipelines = {"jobs": of_jobs(), "functions": of_functions()}
result = {"definitions": {name: json.loads(one.definition()) for name, one in pipelines.items()}}
if job.get("run", True):
    for pipeline in pipelines.values():
        pipeline.upsert(role_arn=job["role"], description="once", tags=[{"Key": "a", "Value": "1"}])
        pipeline.upsert(role_arn=job["role"], description="and again", tags=[{"Key": "b", "Value": "2"}])
    result["good"] = execute_pipeline(pipelines["jobs"])
    result["bad"] = execute_pipeline(pipelines["jobs"], Mood="bad", Least=0.75)
    result["functions"] = execute_pipeline(pipelines["functions"])
print("result", json.dumps(result, default=str))
