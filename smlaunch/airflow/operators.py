"""SmlaunchOperator: a job, or a chain of jobs, as one task."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator, conf

from smlaunch.airflow.connection_ref import ConnectionRef
from smlaunch.airflow.run_ids import base_run_id, validate_run_id
from smlaunch.airflow.start_action import last_try_before_clear
from smlaunch.airflow.task_runs import (
    StartedRun,
    TaskTry,
    fetch_outcome,
    format_event,
    read_log_lines,
    reattach,
    start_or_reattach,
    submit_due_jobs,
)
from smlaunch.airflow.triggers import SmlaunchTrigger
from smlaunch.errors import (
    EXIT_BAD_JOB,
    EXIT_LIMIT,
    EXIT_REFUSED,
    EXIT_STOPPED,
    SmlaunchError,
)
from smlaunch.job.model import Job
from smlaunch.runs.attach_run import attach
from smlaunch.runs.job_poller import Event, LogLine, PollWarning
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.providers.common.compat.sdk import Context

NON_RETRYABLE_EXIT_CODES = frozenset((EXIT_BAD_JOB, EXIT_REFUSED, EXIT_STOPPED, EXIT_LIMIT))
"""A retry would meet the same refusal or the same cap, or undo a person's stop."""


class SmlaunchOperator(BaseOperator):
    """Launches a job and follows it to its end; a chain with all its segments.

    :param job: a Job, a mapping with the keys of a job file, or the path of a job file (templated).
    :param run: the run's id (templated); by default made of DAG, task, DAG run and map index. A later run of
        the same task instance is called ``<run>-t<try>``.
    :param deferrable: free the worker while a job runs.
    :param aws_conn_id: an Airflow connection to AWS; None uses boto3's own credentials.
    :param region_name: an AWS region, by default the connection's.
    :param endpoint_url: a local endpoint on the worker's machine, by default the connection's, else
        AWS_ENDPOINT_URL.
    :param local: the background endpoint of the worker's SMLAUNCH_HOME.
    :param follow_logs: copy the job's log into the task's log.
    :param poll_interval: seconds between two polls of the trigger; by default 30, on a local endpoint 1.
    """

    template_fields: Sequence[str] = ("job", "run", "aws_conn_id", "region_name", "endpoint_url")
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    ui_color = "#d9e8f5"

    def __init__(
        self,
        *,
        job: Job | Mapping[str, Any] | str | PathLike[str],
        run: str | None = None,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        aws_conn_id: str | None = "aws_default",
        region_name: str | None = None,
        endpoint_url: str | None = None,
        local: bool = False,
        follow_logs: bool = True,
        poll_interval: float | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = job
        self.run = run
        self.deferrable = deferrable
        self.aws_conn_id = aws_conn_id
        self.region_name = region_name
        self.endpoint_url = endpoint_url
        self.local = local
        self.follow_logs = follow_logs
        self.poll_interval = poll_interval
        self._is_killed = False
        self._active_run: Run | None = None

    @property
    def connection(self) -> ConnectionRef:
        return ConnectionRef(self.aws_conn_id, self.region_name, self.endpoint_url, self.local)

    def execute(self, context: Context) -> dict[str, Any]:
        """Start the run of this try of the Airflow task, or reattach to the one that an earlier worker
        started. Follow it to its end, or defer the task (a trigger waits instead of this worker); return its
        outcome."""
        with _translate_errors():  # to Airflow's: whether the task is tried again
            target = self.connection.open_target()  # the region or the local endpoint
            started_run = start_or_reattach(
                self._task_try(context), self._load_job, target, self._log_message
            )
            self._active_run = started_run.run
            context["ti"].xcom_push(key="run", value=started_run.run.name)
            # ``on_kill`` may have been called before there was a run that it could stop.
            if self._is_killed:
                started_run.run.stop()
            elif self.deferrable and not started_run.is_finished:
                return self._submit_jobs_and_defer(context, started_run)
            elif not started_run.is_finished:  # otherwise an earlier try has left only the report
                started_run.run.wait(self._log_event)
            return self._report_outcome(context, started_run.run.name, target)

    def execute_complete(
        self, context: Context, event: dict[str, Any] | None = None, resuming: bool = False
    ) -> dict[str, Any]:
        """Continue a deferred task: the trigger has seen a job end, or an action is due."""
        with _translate_errors():
            trigger_event = event or {}
            name = str(trigger_event["run"])
            run = reattach(name, self.connection.open_target(), self._log_message, resume=resuming)
            self._active_run = run
            remaining_seconds = self._remaining_seconds(context)
            if remaining_seconds is not None and remaining_seconds <= 0:
                run.stop()
                raise AirflowException(f"{name} did not end within execution_timeout; it is being stopped")
            return self._submit_jobs_and_defer(
                context, StartedRun(run, resuming), trigger_event.get("jobs", ())
            )

    def on_kill(self) -> None:
        """Stop the run at a checkpoint. A later try resumes it from there."""
        # Called between any two instructions of the task, so that it uses none of their connections or locks.
        self._is_killed = True
        run = self._active_run
        if run is not None:
            attach(run.name, self.connection.open_target()).stop()

    def _submit_jobs_and_defer(
        self, context: Context, started_run: StartedRun, jobs_of_last_trigger: Iterable[str] = ()
    ) -> dict[str, Any]:
        """Submit the run's due jobs and defer the Airflow task until one ends or another is due
        (``wake_at``), or report the outcome of a run that has ended. To defer raises an exception, by which
        the worker is freed: only a report is returned. ``jobs_of_last_trigger``: jobs for which the task was
        deferred last. A trigger waits in place of the worker."""
        run = started_run.run
        wait_condition = submit_due_jobs(run)
        if wait_condition.run_has_ended:
            return self._report_outcome(context, run.name, run.target)
        # A triggerer overwrites a try's log file with each trigger (Airflow 3.3.2), so that the lines of the
        # trigger before are lost.
        if self.follow_logs:
            for job in jobs_of_last_trigger:
                if job not in wait_condition.running_jobs:
                    self._log_all_lines(run, job)
        remaining_seconds = self._remaining_seconds(context)  # None without an execution_timeout
        deadline = None if remaining_seconds is None else time.time() + remaining_seconds
        wake_times = [wake_at for wake_at in (wait_condition.wake_at, deadline) if wake_at is not None]
        self.defer(
            trigger=SmlaunchTrigger(
                run=run.name,
                jobs=list(wait_condition.running_jobs),
                wake_at=min(wake_times, default=None),
                connection=self.connection.to_dict(),
                follow_logs=self.follow_logs,
                poll_interval=self.poll_interval,
            ),
            method_name="execute_complete",
            # The resume is done once another job runs.
            kwargs={"resuming": started_run.was_resumed and not wait_condition.running_jobs},
        )
        raise AssertionError("defer returned")

    def _report_outcome(self, context: Context, name: str, target: Target) -> dict[str, Any]:
        outcome = fetch_outcome(name, target)
        document = outcome.to_dict()
        error = outcome.error
        if error is None:
            self.log.info("%s: %s", name, document["because"])
            return document
        context["ti"].xcom_push(key="result", value=document)
        raise error

    def _remaining_seconds(self, context: Context) -> float | None:
        """Return the seconds until execution_timeout, which counts deferred time too; None without one."""
        started_at = context["ti"].start_date
        if self.execution_timeout is None or started_at is None:
            return None
        return float(self.execution_timeout.total_seconds() - (time.time() - started_at.timestamp()))

    def _task_try(self, context: Context) -> TaskTry:
        ti = context["ti"]
        last_try = last_try_before_clear(ti.max_tries, self.retries or 0)
        if self.run:
            return TaskTry(validate_run_id(self.run), ti.try_number, last_try, has_generated_id=False)
        map_index = -1 if ti.map_index is None else ti.map_index
        return TaskTry(base_run_id(ti.dag_id, ti.task_id, ti.run_id, map_index), ti.try_number, last_try)

    def _load_job(self) -> Job:
        if isinstance(self.job, Job):
            return self.job
        if isinstance(self.job, Mapping):
            return Job.from_mapping(self.job)
        return Job.from_file(fspath(self.job))

    def _log_all_lines(self, run: Run, job: str) -> None:
        for line in read_log_lines(job, run.target):
            self._log_event(line)

    def _log_message(self, text: str) -> None:
        self.log.info("%s", text)

    def _log_event(self, event: Event) -> None:
        if isinstance(event, PollWarning):
            self.log.warning("%s", format_event(event))
        elif self.follow_logs or not isinstance(event, LogLine):
            self.log.info("%s", format_event(event))


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Raise smlaunch's errors as Airflow's, and fail the task for good where a retry cannot help."""
    try:
        yield
    except SmlaunchError as error:
        kind = AirflowFailException if error.exit_code in NON_RETRYABLE_EXIT_CODES else AirflowException
        raise kind(str(error)) from None  # the message is complete without a traceback
