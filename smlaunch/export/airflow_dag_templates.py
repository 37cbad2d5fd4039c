"""Source text of an exported DAG file. ``<<NAME>>`` is a placeholder."""

NOTES_WITH_CHECKPOINTS = """\
Each DAG run is a new run. Each try of a training task is the next
attempt of its segment, with its own job name, and continues from the newest checkpoint in S3. Differences
from `smlaunch run`: attempts count from the first one of a segment, not from its newest checkpoint; every
failure waits as long as a capacity error; a segment without a newer checkpoint is followed by the next
segment, not repeated; files are not compared where a script reports no step; checkpoints of earlier segments
are not deleted; each try has the whole time limit of its segment, so that all tries together may take longer
than limits.max_runtime and cost more than the plan says."""

NOTES_WITHOUT_CHECKPOINTS = """\
Each DAG run is a new run. Each try of its task is the next
attempt, with its own job name, and repeats all of the work. Differences from `smlaunch run`: every failure
waits as long as a capacity error; the log of the job stays in CloudWatch Logs; each try has the whole time
limit, so that all tries together may take longer than limits.max_runtime and cost more than the plan says."""

HEADER_SOURCE = '''\
"""<<TITLE>>: <<COUNT>>, with operators of the Amazon provider.

Written by `smlaunch export airflow`. <<NOTES>>
"""

from __future__ import annotations

import json
import time
from datetime import datetime, timedelta
from importlib.util import find_spec

from airflow.providers.amazon.aws.hooks.s3 import S3Hook
from airflow.providers.amazon.aws.hooks.sagemaker import SageMakerHook
from airflow.providers.amazon.aws.operators.sagemaker import <<OPERATOR>>
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import DAG, get_current_context, task
from botocore.exceptions import ClientError

AWS_CONNECTION = "aws_default"
REGION = <<REGION>>
DEFERRABLE = find_spec("aiobotocore") is not None
"""Frees the worker while a job runs. The provider's trigger needs aiobotocore (its extra of that name)."""

RUN = <<RUN>>
ATTEMPT = "{{ ti.try_number }}"
DRIVER = "Airflow's {{ dag.dag_id }} {{ run_id }}"


def run_of(dag_run) -> str:
    """The run's id: the same in every task of a DAG run."""
    return <<DAG>> + f"-{dag_run.run_after:%Y%m%dt%H%M%S}"
'''

ATTEMPTS_SOURCE = '''

def newest_attempt_before(run: str, attempt: int) -> tuple[int, dict]:
    """Return the newest earlier attempt with a job, and its description; 0 without one."""
    hook = SageMakerHook(aws_conn_id=AWS_CONNECTION, region_name=REGION)
    while (attempt := attempt - 1) > 0:
        try:
            return attempt, hook.describe_<<WORK>>_job(f"{run}-a{attempt}")
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("ValidationException", "ResourceNotFound"):
                raise  # it is unknown whether the job runs
    return 0, {}


def check_previous_attempt(context) -> None:
    """Raise if the previous attempt still runs, was stopped by a user, or failed permanently.

    Clearing the task overrides a stop or a permanent failure.
    """
    ti, operator = context["ti"], context["task"]
    run = operator.config["<<KIND>>JobName"].rpartition("-a")[0]
    attempt, previous_job = newest_attempt_before(run, ti.try_number)
    if not attempt:
        return
    status, secondary = previous_job["<<KIND>>JobStatus"], previous_job.get("SecondaryStatus")
    name = previous_job["<<KIND>>JobName"]
    if status in ("InProgress", "Stopping"):
        raise AirflowException(f"{name} still runs; this task does not wait for it")
    if ti.max_tries - operator.retries >= attempt:
        return  # the task was cleared after this attempt
    if status == "Stopped" and secondary not in <<LIMITS>>:
        raise AirflowFailException(f"{name} was stopped")
    if status == "Failed" and previous_job.get("FailureReason", "").partition(":")[0] in <<FINAL>>:
        raise AirflowFailException(f"{name} cannot succeed: {previous_job['FailureReason']}")


def check_completed(context, result) -> None:
    """Raise for a stopped job: without deferral, the operator treats it as completed."""
    job = result["<<KIND>>"]
    if job["<<KIND>>JobStatus"] != "Completed":
        raise AirflowException(f"{job['<<KIND>>JobName']}: {job['<<KIND>>JobStatus']}")


def <<FUNCTION>>(number: int, config: dict) -> <<OPERATOR>>:
    limits = config["StoppingCondition"]
    wait_seconds = limits.get("MaxWaitTimeInSeconds", limits["MaxRuntimeInSeconds"]) + <<SLACK>>
    return <<OPERATOR>>(
        task_id=f"segment_{number}",
        config=config,
        aws_conn_id=AWS_CONNECTION,
        region_name=REGION,
        deferrable=DEFERRABLE,
        check_interval=<<INTERVAL>>,
        max_attempts=-(-wait_seconds // <<INTERVAL>>),  # status checks; the default is 60
<<PRINT_LOG>>        action_if_job_exists="fail",  # a generated name would be an unknown job
        pre_execute=check_previous_attempt,
        post_execute=check_completed,
        retries=<<RETRIES>>,
        retry_delay=timedelta(seconds=<<DELAY>>),
        retry_exponential_backoff=True,
        max_retry_delay=timedelta(seconds=<<LONGEST>>),
        botocore_config={"retries": {"mode": "standard", "max_attempts": <<CREATES>>}},  # throttled
    )
'''

_DAG = """

with DAG(
    <<DAG>>,
    schedule=None,
    start_date=datetime(2020, 1, 1),
    catchup=False,
    user_defined_macros={"run_of": run_of},
):
"""

SINGLE_JOB_SOURCE = _DAG

CHAIN_SOURCE = (
    '''

# S3 prefix of the outcome files of the jobs; the job name and .json follow.
# A task gets it as an argument: Airflow renders nothing else.
OUTCOMES = <<OUTCOMES>>
OWNER = <<OWNER>>  # account that must own the bucket


def read_outcome(outcomes: str, job: dict) -> dict:
    """Return the outcome file of a job; an empty dict where there is none."""
    name = job["Training"]["TrainingJobName"]
    bucket, _, key = f"{outcomes}{name}.json".removeprefix("s3://").partition("/")
    s3 = S3Hook(aws_conn_id=AWS_CONNECTION, region_name=REGION).get_conn()
    try:
        response = s3.get_object(Bucket=bucket, Key=key, ExpectedBucketOwner=OWNER)
    except s3.exceptions.NoSuchKey:
        return {}
    return json.loads(response["Body"].read())


@task.short_circuit(ignore_downstream_trigger_rules=False)
def more_to_train(number: int, outcomes: str, job: dict) -> bool:
    """Whether the training continues. A missing outcome means yes; if not, later segments are skipped."""
    deadline = time.monotonic() + <<GRACE>>  # the outcome may reach S3 after the end of its job
    while not (outcome := read_outcome(outcomes, job)) and time.monotonic() < deadline:
        time.sleep(5)
    if outcome.get("result") == <<FINISHED>>:
        return False
    progress = [outcome.get("step"), outcome.get("reported_step")]  # newest committed, highest reported
    ti = get_current_context()["ti"]
    ti.xcom_push(key="progress", value=progress)
    earlier_progress = [
        ti.xcom_pull(task_ids=f"more_after_{earlier}", key="progress") for earlier in range(1, number)
    ]
    highest, stalled_segments = [0, 0], 0
    for segment_progress in [*earlier_progress, progress]:
        steps = [step or 0 for step in segment_progress or (None, None)]
        # Nobody compares files here: a segment without a step is progress while no segment has had one.
        is_known = any(highest) or any(step is not None for step in segment_progress or ())
        has_progress = any(step > highest_step for step, highest_step in zip(steps, highest))
        stalled_segments = stalled_segments + 1 if is_known and not has_progress else 0
        highest = [max(pair) for pair in zip(steps, highest)]
    if stalled_segments >= <<IDLE>>:
        raise AirflowFailException(
            f"no progress: {stalled_segments} segments did not get beyond step {max(highest)}"
        )
    return True


@task(trigger_rule="none_failed")
def finished(outcomes: str, jobs: list) -> str:
    """Return the model of the last segment that ran. Fails where the training is not finished."""
    last_job = [job for job in jobs if job][-1]
    outcome = read_outcome(outcomes, last_job)
    if outcome.get("result") != <<FINISHED>>:
        raise AirflowFailException(f"the training time is used up, at step {outcome.get('step')}")
    return last_job["Training"]["ModelArtifacts"]["S3ModelArtifacts"]


def chain_tasks(segments: list) -> None:
    """segment_1 -> more_after_1 -> segment_2 -> ... -> finished"""
    jobs, previous_check = [], None
    for number, config in segments:
        job = train(number, config)
        jobs.append(job)
        if previous_check is not None:
            previous_check >> job
        if number < len(segments):
            check = more_to_train.override(task_id=f"more_after_{number}")
            previous_check = check(number, OUTCOMES, job.output)
            job >> previous_check
    model = finished(OUTCOMES, [job.output for job in jobs])
    jobs[-1] >> model
'''
    + _DAG
)
