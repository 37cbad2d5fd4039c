"""The parts of an exported DAG file that are the same for every job. ``<<WORD>>`` is filled in."""

NOTES = """\
Each DAG run is a run of its own. Each try of a training task is the
segment's next attempt, under a name of its own, and goes on from the newest checkpoint in S3. What
`smlaunch run` does and this file does not: tries count from a segment's first one, not from its newest
checkpoint; every failure waits as long as one for capacity does; a segment that leaves no newer checkpoint
is followed by the next one, not by itself again; files are not compared where a script reports no step;
checkpoints of earlier segments are not cleaned up."""

PROCESSING_NOTES = """\
Each DAG run is a run of its own. Each try of its task is the
next attempt, under a name of its own, and does all of the work anew. What `smlaunch run` does and this file
does not: every failure waits as long as one for capacity does; the job's log stays in CloudWatch Logs."""

HEAD = '''\
"""<<TITLE>>: <<COUNT>>, by the Amazon provider's own operators.

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

TRIES = '''

def newest_before(run: str, attempt: int) -> tuple[int, dict]:
    """The newest attempt before this one that came to be: a try that was refused has none. 0 without any."""
    hook = SageMakerHook(aws_conn_id=AWS_CONNECTION, region_name=REGION)
    while (attempt := attempt - 1) > 0:
        try:
            return attempt, hook.describe_<<WORK>>_job(f"{run}-a{attempt}")
        except ClientError as error:
            if error.response["Error"]["Code"] not in ("ValidationException", "ResourceNotFound"):
                raise  # nobody knows whether it runs
    return 0, {}


def before_a_try(context) -> None:
    """Never two jobs at once, and no try that cannot help. Raises for the attempt before, where that runs,
    was stopped by a person, or failed for good; whoever clears the task has decided to go on."""
    ti, operator = context["ti"], context["task"]
    run = operator.config["<<KIND>>JobName"].rpartition("-a")[0]
    attempt, before = newest_before(run, ti.try_number)
    if not attempt:
        return
    status, secondary = before["<<KIND>>JobStatus"], before.get("SecondaryStatus")
    name = before["<<KIND>>JobName"]
    if status in ("InProgress", "Stopping"):
        raise AirflowException(f"{name} still runs, and nobody watches it")
    if ti.max_tries - operator.retries >= attempt:
        return  # cleared since
    if status == "Stopped" and secondary not in <<LIMITS>>:
        raise AirflowFailException(f"{name} was stopped")
    if status == "Failed" and before.get("FailureReason", "").partition(":")[0] in <<FINAL>>:
        raise AirflowFailException(f"{name} cannot work as written: {before['FailureReason']}")


def after_a_try(context, result) -> None:
    """Raises for a stopped job, which the operator takes for a completed one where it does not defer."""
    job = result["<<KIND>>"]
    if job["<<KIND>>JobStatus"] != "Completed":
        raise AirflowException(f"{job['<<KIND>>JobName']}: {job['<<KIND>>JobStatus']}")


def <<FUNCTION>>(number: int, config: dict) -> <<OPERATOR>>:
    stopping = config["StoppingCondition"]
    longest = stopping.get("MaxWaitTimeInSeconds", stopping["MaxRuntimeInSeconds"]) + <<SLACK>>
    return <<OPERATOR>>(
        task_id=f"segment_{number}",
        config=config,
        aws_conn_id=AWS_CONNECTION,
        region_name=REGION,
        deferrable=DEFERRABLE,
        check_interval=<<INTERVAL>>,
        max_attempts=-(-longest // <<INTERVAL>>),  # looks; by default it gives up after 60
<<PRINT_LOG>>        action_if_job_exists="fail",  # another name would be a job that nobody knows of
        pre_execute=before_a_try,
        post_execute=after_a_try,
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

ONE_PART = _DAG

CHAIN_PARTS = (
    '''

OUTCOME = <<OUTCOME>>
OWNER = <<OWNER>>  # the account that its bucket has to belong to


def outcome_of(uri: str) -> dict:
    """What the newest segment said when it ended; nothing where it said nothing."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    s3 = S3Hook(aws_conn_id=AWS_CONNECTION, region_name=REGION).get_conn()
    try:
        found = s3.get_object(Bucket=bucket, Key=key, ExpectedBucketOwner=OWNER)
    except s3.exceptions.NoSuchKey:
        return {}
    return json.loads(found["Body"].read())


@task.short_circuit(ignore_downstream_trigger_rules=False)
def more_to_train(number: int, job: str, uri: str) -> bool:
    """Whether the training goes on. A missing word means yes; a finished training leaves the rest out."""
    until = time.monotonic() + <<GRACE>>  # it may come to S3 after its job has ended
    while not (said := outcome_of(uri)).get("job", "").startswith(job) and time.monotonic() < until:
        time.sleep(5)
    if said.get("result") == <<FINISHED>>:
        return False
    own = said if said.get("job", "").startswith(job) else {}
    far = [own.get("step"), own.get("reported")]  # the newest committed step, the highest one reported
    ti = get_current_context()["ti"]
    ti.xcom_push(key="far", value=far)
    before = [ti.xcom_pull(task_ids=f"more_after_{earlier}", key="far") for earlier in range(1, number)]
    best, idle = [0, 0], 0
    for one in [*before, far]:
        steps = [step or 0 for step in one or (None, None)]
        known = any(step is not None for step in one or ())  # nobody knows how far a silent script is
        moved = any(step > most for step, most in zip(steps, best))
        idle = idle + 1 if known and not moved else 0
        best = [max(pair) for pair in zip(steps, best)]
    if idle >= <<IDLE>>:
        raise AirflowFailException(f"no progress: {idle} segments came no further than step {max(best)}")
    return True


@task(trigger_rule="none_failed")
def finished(uri: str, trained: list) -> str:
    """The model of the last segment that ran. Fails where the training time was not enough."""
    said = outcome_of(uri)
    if said.get("result") != <<FINISHED>>:
        raise AirflowFailException(f"its training time is used up, at step {said.get('step')}")
    return [job for job in trained if job][-1]["Training"]["ModelArtifacts"]["S3ModelArtifacts"]


def in_order(segments: list) -> None:
    """segment_1 -> more_after_1 -> segment_2 -> ... -> finished"""
    jobs, before = [], None
    for number, config in segments:
        job = train(number, config)
        jobs.append(job)
        if before is not None:
            before >> job
        if number < len(segments):
            check = more_to_train.override(task_id=f"more_after_{number}")
            before = check(number, f"{RUN}-s{number}-a", OUTCOME)
            job >> before
    done = finished(OUTCOME, [job.output for job in jobs])
    jobs[-1] >> done
'''
    + _DAG
)
