"""A real Airflow, with its scheduler, workers and triggerer, against `smlaunch local start`.

Some DAGs begin at once, and each test looks at its own: never a second job, never a lost one. Airflow's
processes reach the endpoint by an Airflow connection.
"""

from __future__ import annotations

import ast
import io
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from tests.e2e.chains import SEGMENTS, TRUE_WEIGHTS
from tests.real.airflow_site import Site, run_of
from tests.real.conftest import program

STARTED_TOGETHER = [
    *("lost_submitting", "deferred", "killed_deferred", "retried"),
    *("amazon", "exported", "cleans", "processed", "misconnected"),
]
HOST_LOST = {"fault": "host-lost", "jobs": "exported-*-s2-a1", "after": 3.0}
SEGMENT_JOBS = [f"s{number}-a1" for number in range(1, SEGMENTS + 1)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    program("airflow", "airflow")
    new_site = Site(tmp_path_factory.mktemp("airflow"), by_connection=True, faults=[HOST_LOST])
    try:
        export(new_site)
        new_site.begin(STARTED_TOGETHER)
        yield new_site
    finally:
        new_site.close()


def export(site: Site) -> None:
    """A chain of at most three segments, of which the script needs two; and a processing job, without
    deferring. A segment takes ten seconds: see EARLIEST in smlaunch/airflow/triggers.py, which the provider's
    trigger knows nothing of."""
    dags, source = site.home / "dags", site.home / "source"
    chain = (str(source / "halves.py"), "--called", "exported", "--env", "TEST_PAUSE=0.4")
    limits = ("--max-runtime", "3m", "--segment", "60s")
    site.run("smlaunch", "export", "airflow", *chain, *limits, "--local", "--out", str(dags))
    job = (str(source / "clean.py"), "--called", "cleans", "--strategy", "processing")
    data = ("--input", f"raw={source}/raw")
    site.run("smlaunch", "export", "airflow", *job, *data, "--local", "--out", str(dags))
    text = (dags / "cleans.py").read_text()
    (dags / "cleans.py").write_text(re.sub("(?m)^DEFERRABLE = .*$", "DEFERRABLE = False", text))


def client(site: Site, service: str) -> Any:
    return boto3.session.Session().client(
        service,
        endpoint_url=site.variables["AWS_ENDPOINT_URL"],
        region_name=site.variables["AWS_REGION"],
        aws_access_key_id=site.variables["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=site.variables["AWS_SECRET_ACCESS_KEY"],
    )


def jobs(site: Site, run: str) -> dict[str, str]:
    """Returns the status of every job created for the task, by its name without the run's, oldest first."""
    pages = client(site, "sagemaker").get_paginator("list_training_jobs").paginate(NameContains=run)
    rows = [row for page in pages for row in page["TrainingJobSummaries"]]
    rows.sort(key=lambda row: row["CreationTime"])
    return {row["TrainingJobName"].removeprefix(f"{run}-"): row["TrainingJobStatus"] for row in rows}


def weights(site: Site, artifacts: str) -> str:
    bucket, _, key = artifacts.removeprefix("s3://").partition("/")
    content = client(site, "s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        member = archive.extractfile("weights")
        assert member is not None
        return member.read().decode()


def test_a_triggerer_killed_while_a_chain_is_deferred(site: Site) -> None:
    site.start("triggerer", "--skip-serve-logs")
    run = run_of("deferred")
    site.wait("segment 2", lambda: "s2-a1" in jobs(site, run))
    site.wait("a deferral", lambda: site.is_("deferred", "deferred"))
    site.kill("triggerer")
    site.start("triggerer", "--skip-serve-logs")
    site.wait("the end", lambda: site.is_("deferred", "success", "failed"))
    assert site.task("deferred")["state"] == "success", site.log("deferred")
    assert jobs(site, run) == dict.fromkeys(SEGMENT_JOBS[:2], "Completed")
    result = site.xcom("deferred")
    assert (result["status"], result["exit_code"], result["step"]) == ("Completed", 0, 50)
    assert weights(site, result["model_artifacts"]) == TRUE_WEIGHTS
    log = site.log("deferred")
    assert "begins at step 25" in log and TRUE_WEIGHTS in log, "the trigger tells what the job prints"
    assert "begins at step 0" in log, "and a later trigger does not take it away"


def test_a_deferred_task_marked_failed_stops_its_run(site: Site) -> None:
    run = run_of("killed_deferred")
    site.wait("a deferral", lambda: site.is_("killed_deferred", "deferred"))
    site.wait("its log", lambda: "begins at step 0" in site.log("killed_deferred"))
    site.mark_failed("killed_deferred")
    site.wait("a stop", lambda: jobs(site, run) == {"s1-a1": "Stopped"})


CANCELLED = """
import asyncio, time
from smlaunch.airflow.triggers import _run_in_thread

async def cancelled():
    looking = asyncio.create_task(_run_in_thread(lambda: time.sleep(0.5)))
    await asyncio.sleep(0.1)
    looking.cancel("by a person")
    try:
        await looking
    except asyncio.CancelledError as error:
        print(error.args)

asyncio.run(cancelled())
"""


def test_a_trigger_that_is_cancelled_in_the_middle_of_a_look_is_told_why(site: Site) -> None:
    """The triggerer calls on_kill if the error that comes back has the message that it sent."""
    assert site.run("python", "-c", CANCELLED).splitlines()[-1] == "('by a person',)"


def test_cleared_while_deferred_it_attaches_and_cleared_when_done_it_is_done_again(site: Site) -> None:
    run = run_of("cleared")
    site.trigger("cleared")
    site.trigger("killed")
    site.wait(
        "a deferral in segment 2", lambda: "s2-a1" in jobs(site, run) and site.is_("cleared", "deferred")
    )
    site.clear("cleared")
    site.wait("the end", lambda: site.is_("cleared", "success", "failed"))
    assert (site.task("cleared")["state"], site.task("cleared")["try_number"]) == ("success", 2)
    assert jobs(site, run) == dict.fromkeys(SEGMENT_JOBS[:2], "Completed")
    site.clear("cleared")
    site.wait("a run of its own", lambda: "t3-s1-a1" in jobs(site, run))
    # The task tells its run's name once the job's creation was answered: a moment after the job is there.
    site.wait("the name of that run", lambda: site.xcom("cleared", "run") == f"{run}-t3")


def test_a_retry_goes_on_with_the_run_that_failed(site: Site) -> None:
    run = run_of("retried")
    site.wait("the end", lambda: site.is_("retried", "success", "failed"))
    assert (site.task("retried")["state"], site.task("retried")["try_number"]) == ("success", 2)
    completed_jobs = dict.fromkeys(SEGMENT_JOBS[1:], "Completed")
    assert jobs(site, run) == {"s1-a1": "Failed", "s1-a2": "Completed", **completed_jobs}
    assert "planted in the first attempt" in site.log("retried", 1)


def test_a_task_marked_failed_stops_its_run(site: Site) -> None:
    run = run_of("killed")
    site.trigger("killed")
    site.wait("training", lambda: jobs(site, run) == {"s1-a1": "InProgress"})
    site.wait("its log", lambda: "begins at step 0" in site.log("killed"))
    site.mark_failed("killed")
    site.wait("a stop", lambda: jobs(site, run) == {"s1-a1": "Stopped"})


def test_an_exported_chain_of_amazons_operators_that_loses_a_host(site: Site) -> None:
    """The host is lost in the second segment: the task's next try is the next attempt, from the existing
    checkpoint."""
    end_states = ("success", "failed", "upstream_failed")
    site.wait("the end", lambda: site.task("exported", "finished")["state"] in end_states)
    states = {
        name: site.task("exported", name)["state"]
        for name in ("segment_1", "more_after_1", "segment_2", "more_after_2", "segment_3", "finished")
    }
    assert states == dict.fromkeys(states, "success") | {"segment_3": "skipped"}
    status_by_task = {name.rpartition("-s")[2]: status for name, status in jobs(site, "exported").items()}
    assert status_by_task == {"1-a1": "Completed", "2-a1": "Failed", "2-a2": "Completed"}
    assert site.task("exported", "segment_2")["try_number"] == 2
    assert "Pausing task as DEFERRED" in site.log("exported", task="segment_1")
    assert weights(site, site.xcom("exported", task="finished")) == TRUE_WEIGHTS


def test_an_exported_processing_job(site: Site) -> None:
    site.wait("the end", lambda: site.task("cleans", "segment_1")["state"] in ("success", "failed"))
    job = site.xcom("cleans", task="segment_1")["Processing"]
    assert re.fullmatch(r"cleans-\d{8}t\d{6}-s1-a1", job["ProcessingJobName"])
    assert job["ProcessingJobStatus"] == "Completed"
    (output,) = job["ProcessingOutputConfig"]["Outputs"]
    bucket, _, prefix = output["S3Output"]["S3Uri"].removeprefix("s3://").partition("/")
    response = client(site, "s3").get_object(Bucket=bucket, Key=f"{prefix.rstrip('/')}/a.txt")
    assert response["Body"].read() == b"ONE"
    rows = client(site, "sagemaker").list_processing_jobs(NameContains="cleans-")
    assert len(rows["ProcessingJobSummaries"]) == 1


def test_amazons_own_operator_unmodified(site: Site) -> None:
    site.wait("the end", lambda: site.is_("amazon", "success", "failed"))
    assert site.task("amazon")["state"] == "success", site.log("amazon")
    assert jobs(site, "by-amazons-operator") == {"by-amazons-operator": "Completed"}
    assert "a line of the job" in site.log("amazon")
    assert site.xcom("amazon")["Training"]["TrainingJobStatus"] == "Completed"


def check_undisturbed(site: Site, dag: str) -> None:
    """Checks that each segment has one job, and that the kills have not changed the weights."""
    site.wait("the end", lambda: site.is_(dag, "success", "failed"))
    assert site.task(dag)["state"] == "success", site.log(dag, site.task(dag)["try_number"])
    assert jobs(site, run_of(dag)) == dict.fromkeys(SEGMENT_JOBS[:2], "Completed")
    result = site.xcom(dag)
    assert (result["status"], result["exit_code"], result["step"]) == ("Completed", 0, 50)
    assert weights(site, result["model_artifacts"]) == TRUE_WEIGHTS


def test_a_worker_killed_in_mid_job(site: Site) -> None:
    site.trigger("lost_training")
    site.wait("its log", lambda: "begins at step 0" in site.log("lost_training"))
    site.trigger("restarted")
    site.kill_worker("lost_training")
    check_undisturbed(site, "lost_training")
    assert site.task("lost_training")["try_number"] == 2
    assert "exists already: attached" in site.log("lost_training", 2)


def test_a_worker_killed_right_after_a_job_was_created(site: Site) -> None:
    check_undisturbed(site, "lost_submitting")
    assert site.task("lost_submitting")["try_number"] == 3
    assert "exists already" in site.log("lost_submitting", 2)


def test_a_scheduler_killed_with_its_workers_while_a_chain_is_deferred(site: Site) -> None:
    """The job ends meanwhile: nothing is created until there is a scheduler again."""
    run = run_of("restarted")
    site.trigger("restarted")
    site.wait("a deferral", lambda: site.is_("restarted", "deferred"))
    site.kill("scheduler")
    jobs_before = jobs(site, run)
    site.wait("the job's end", lambda: set(jobs(site, run).values()) == {"Completed"})
    site.wait("the trigger", lambda: site.is_("restarted", "scheduled"))
    assert list(jobs(site, run)) == list(jobs_before)
    site.start("scheduler")
    check_undisturbed(site, "restarted")
    assert site.task("restarted")["try_number"] == 1, "nothing was lost"


def test_a_processing_job(site: Site) -> None:
    site.wait("the end", lambda: site.is_("processed", "success", "failed"))
    assert site.task("processed")["state"] == "success", site.log("processed")
    rows = client(site, "sagemaker").list_processing_jobs(NameContains=run_of("processed"))
    names = [row["ProcessingJobName"] for row in rows["ProcessingJobSummaries"]]
    assert names == [f"{run_of('processed')}-s1-a1"]
    result = site.xcom("processed")
    assert (result["status"], result["exit_code"]) == ("Completed", 0)
    assert ":processing-job/" in result["jobs"][0]["arn"]
    assert "algo-1| cleans a word" in site.log("processed")


def test_a_connection_that_does_not_exist(site: Site) -> None:
    """The provider's hook alone would use any credentials that the worker has."""
    site.wait("the end", lambda: site.is_("misconnected", "success", "failed"))
    assert (site.task("misconnected")["state"], site.task("misconnected")["try_number"]) == ("failed", 1)
    assert "aws_conn_id: there is no Airflow connection 'nobodys'" in site.log("misconnected")


def test_dags_test(site: Site, tmp_path: Path) -> None:
    """The command runs everything in one process, on a database of its own."""
    own_variables = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/airflow.db",
    }
    site.run("airflow", "db", "migrate", **own_variables)
    output = site.run("airflow", "dags", "test", "whole", "2026-01-02", **own_variables)
    names = list(dict.fromkeys(re.findall(r"whole-train-[0-9a-f]{10}", output)))
    assert len(names) == 1
    assert jobs(site, names[0]) == dict.fromkeys(SEGMENT_JOBS, "Completed")
    for text in ("algo-1| begins at step 40", f"weights {TRUE_WEIGHTS}", "segment 2: from step 10"):
        assert text in output
    returned = re.search(r"Returned value was: (\[[^]]*\])", output)
    assert returned is not None, output
    status, artifacts, *rows = ast.literal_eval(returned[1])
    assert (status, rows) == ("Completed", [f"{names[0]}-{job}" for job in SEGMENT_JOBS])
    assert weights(site, artifacts) == TRUE_WEIGHTS
