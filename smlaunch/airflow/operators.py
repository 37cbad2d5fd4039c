"""SmlaunchOperator: a job, or a chain of them, as one task."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException, BaseOperator, conf

from smlaunch.airflow.driving import (
    Begun,
    Try,
    advance,
    again,
    begin_try,
    follow,
    lines_of,
    result_of,
    sentence,
)
from smlaunch.airflow.names import base_of, given_base
from smlaunch.airflow.reach import Reach
from smlaunch.airflow.tries import cleared_at
from smlaunch.airflow.triggers import SmlaunchTrigger
from smlaunch.errors import (
    EXIT_BAD_JOB,
    EXIT_LIMIT,
    EXIT_REFUSED,
    EXIT_STOPPED,
    SmlaunchError,
)
from smlaunch.job import Job
from smlaunch.runs.follow import Event, LogLine, Trouble
from smlaunch.runs.run import Run
from smlaunch.runs.target import Target

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.providers.common.compat.sdk import Context

FINAL = frozenset((EXIT_BAD_JOB, EXIT_REFUSED, EXIT_STOPPED, EXIT_LIMIT))
"""A retry would meet the same refusal or the same cap, or undo a person's stop."""


class SmlaunchOperator(BaseOperator):
    """Launches a job and sees it to its end; a chain with all its segments.

    :param job: a Job, a mapping with the keys of a job file, or the path of a job file (templated).
    :param run: the run's id (templated); by default made of DAG, task, DAG run and map index. A later run of
        the same task instance is called ``<run>-t<try>``.
    :param deferrable: free the worker while a job runs.
    :param aws_conn_id: an Airflow connection to AWS; None leaves it to boto3.
    :param region_name: an AWS region, by default the connection's.
    :param endpoint_url: a local endpoint on the worker's machine, by default the connection's, else
        AWS_ENDPOINT_URL.
    :param local: the standing endpoint of the worker's SMLAUNCH_HOME.
    :param follow_logs: bring the job's log into the task's log.
    :param poll_interval: seconds between two looks of the trigger; by default 30, on a local endpoint 1.
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
        self._killed = False
        self._under_way: Run | None = None

    @property
    def reach(self) -> Reach:
        return Reach(self.aws_conn_id, self.region_name, self.endpoint_url, self.local)

    def execute(self, context: Context) -> dict[str, Any]:
        with _told_to_airflow():
            target = self.reach.target()
            begun = begin_try(self._try(context), self._job, target, self._tell)
            self._under_way = begun.run
            context["ti"].xcom_push(key="run", value=begun.run.name)
            if self._killed:
                begun.run.stop()
            elif self.deferrable and not begun.over:
                return self._step(context, begun)
            elif not begun.over:
                follow(begun.run, self._hear)
            return self._result(context, begun.run.name, target)

    def go_on(
        self, context: Context, event: dict[str, Any] | None = None, resuming: bool = False
    ) -> dict[str, Any]:
        """Where a deferred task comes back: the trigger has seen a job end, or something is due."""
        with _told_to_airflow():
            seen = event or {}
            name = str(seen["run"])
            run = again(name, self.reach.target(), self._tell, resuming=resuming)
            self._under_way = run
            left = self._time_left(context)
            if left is not None and left <= 0:
                run.stop()
                raise AirflowException(f"{name} did not end within execution_timeout; it is being stopped")
            return self._step(context, Begun(run, resuming), seen.get("jobs", ()))

    def on_kill(self) -> None:
        """Stops the run at a checkpoint. A later try goes on from there."""
        # Called between any two instructions of the task: what those hold (connections, locks) is left alone.
        self._killed = True
        run = self._under_way
        if run is not None:
            Run.attach(run.name, self.reach.target()).stop()

    def _step(self, context: Context, begun: Begun, watched: Iterable[str] = ()) -> dict[str, Any]:
        """``watched``: the jobs that the trigger before had."""
        run = begun.run
        standing = advance(run)
        if standing.ended:
            return self._result(context, run.name, run.target)
        # A triggerer begins a try's log file anew with each trigger (Airflow 3.3.2), and what the one before
        # told of these jobs is gone then.
        for job in watched if self.follow_logs else ():
            if job not in standing.jobs:
                self._retell(run, job)
        left = self._time_left(context)
        ends = None if left is None else time.time() + left
        self.defer(
            trigger=SmlaunchTrigger(
                run=run.name,
                jobs=list(standing.jobs),
                wake_at=min((at for at in (standing.wake_at, ends) if at is not None), default=None),
                reach=self.reach.to_dict(),
                follow_logs=self.follow_logs,
                poll_interval=self.poll_interval,
            ),
            method_name="go_on",
            # Whatever it was resumed from is past once there is another job.
            kwargs={"resuming": begun.resumed and not standing.jobs},
        )
        raise AssertionError("defer returned")

    def _result(self, context: Context, name: str, target: Target) -> dict[str, Any]:
        outcome = result_of(name, target)
        document = outcome.to_dict()
        error = outcome.error()
        if error is None:
            self.log.info("%s: %s", name, document["because"])
            return document
        context["ti"].xcom_push(key="result", value=document)
        raise error

    def _time_left(self, context: Context) -> float | None:
        """Seconds until execution_timeout, which counts deferred time too; None without one."""
        began = context["ti"].start_date
        if self.execution_timeout is None or began is None:
            return None
        return float(self.execution_timeout.total_seconds() - (time.time() - began.timestamp()))

    def _try(self, context: Context) -> Try:
        ti = context["ti"]
        cleared = cleared_at(ti.max_tries, self.retries or 0)
        if self.run:
            return Try(given_base(self.run), ti.try_number, cleared, own=False)
        map_index = -1 if ti.map_index is None else ti.map_index
        return Try(base_of(ti.dag_id, ti.task_id, ti.run_id, map_index), ti.try_number, cleared)

    def _job(self) -> Job:
        if isinstance(self.job, Job):
            return self.job
        if isinstance(self.job, Mapping):
            return Job.from_mapping(self.job)
        return Job.from_file(fspath(self.job))

    def _retell(self, run: Run, job: str) -> None:
        for line in lines_of(job, run.target):
            self._hear(line)

    def _tell(self, text: str) -> None:
        self.log.info("%s", text)

    def _hear(self, event: Event) -> None:
        if isinstance(event, Trouble):
            self.log.warning("%s", sentence(event))
        elif self.follow_logs or not isinstance(event, LogLine):
            self.log.info("%s", sentence(event))


@contextmanager
def _told_to_airflow() -> Iterator[None]:
    """Fails the task for good where another try could not help."""
    try:
        yield
    except SmlaunchError as error:
        kind = AirflowFailException if error.exit_code in FINAL else AirflowException
        raise kind(str(error)) from None  # the message is whole; where it was raised helps nobody
