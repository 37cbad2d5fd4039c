"""The local endpoint: storage, services, executor and jobs behind an HTTP server on one loopback port.

An embedded endpoint runs in the client's process, a background endpoint in its own process
(background_endpoint.py). Several endpoints may share one state directory at the same time.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from smlaunch.errors import EndpointError, disk_full_message, is_disk_full
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.endpoint_settings import CALL_LOG_VARIABLE, Settings
from smlaunch.local.executors import DEFAULT_EXECUTOR, EXECUTORS, load_executor
from smlaunch.local.executors.executor_base import EndpointContext
from smlaunch.local.fault_injection import read_fault_plan
from smlaunch.local.front.request_context import ACCOUNT, DEFAULT_REGION, ROLE_ARN
from smlaunch.local.state_dir import EndpointRegistration, StateDir, default_root, write_private_file

if TYPE_CHECKING:
    from smlaunch.local.executors.executor_base import Executor
    from smlaunch.local.front.credentials import Credentials, Keyring
    from smlaunch.local.front.http_server import Server
    from smlaunch.local.front.request_dispatcher import RequestDispatcher, Service
    from smlaunch.local.jobs.job_manager import JobManager

log = logging.getLogger(__name__)
_DEFAULT_BUCKET = f"sagemaker-{DEFAULT_REGION}-{ACCOUNT}"


class Endpoint:
    """A local endpoint; also a context manager that starts and closes it.

    ``executor``: the name of one. ``isolation``, for an executor that has levels: full, user or plain; None
    chooses the strongest level that works. ``port=0`` chooses a free port.
    """

    def __init__(
        self,
        state_dir: Path | None = None,
        *,
        isolation: str | None = None,
        executor: str = DEFAULT_EXECUTOR,
        settings: Settings | None = None,
        port: int = 0,
    ) -> None:
        """``state_dir``: None for the default directory; the other arguments are described above. Raises
        EndpointError for an executor that does not exist or takes no isolation level."""
        self._executor_class = load_executor(executor)
        if isolation is not None and not self._executor_class.takes_isolation:
            raise EndpointError(
                f"isolation levels belong to the executor `{DEFAULT_EXECUTOR}`, not to {executor}"
            )
        self._home = state_dir or default_root()
        self._isolation = isolation
        self._settings = settings or Settings()
        self._script_environment: dict[str, str] = {}
        self._port = port

    def preview(self) -> EndpointInfo:
        """Return what is known of the endpoint before its start: its address and key are empty. Raises
        EndpointError for a state directory that cannot be used, an isolation level that does not work here,
        or a full disk."""
        with self._disk_full_as_error():
            return self._describe("", "", "")

    def start(self) -> EndpointInfo:
        """Start the endpoint and return when it serves. Raises EndpointError as ``preview`` does, and for a
        port in use."""
        with self._disk_full_as_error():
            return self._start()

    @contextmanager
    def _disk_full_as_error(self) -> Iterator[None]:
        """Context in which any error of a full disk becomes an EndpointError that names the state
        directory."""
        try:
            yield
        except Exception as error:
            if isinstance(error, EndpointError) or not is_disk_full(error):
                raise
            raise EndpointError(disk_full_message(self._home, error)) from error

    @cached_property
    def _state_dir(self) -> StateDir:
        return StateDir(self._home)

    @cached_property
    def _executor(self) -> Executor:
        context = EndpointContext(self._state_dir, self._settings, self._isolation, self._script_environment)
        return self._executor_class(context)

    def _describe(self, url: str, access_key: str, secret_key: str) -> EndpointInfo:
        return EndpointInfo(
            url=url,
            region=DEFAULT_REGION,
            access_key=access_key,
            secret_key=secret_key,
            account=ACCOUNT,
            role_arn=ROLE_ARN,
            bucket=_DEFAULT_BUCKET,
            pid=os.getpid(),
            isolation=self._executor.isolation,
            executor=self._executor.name,
            home=str(self._state_dir.root),
        )

    def _start(self) -> EndpointInfo:
        """Open the stores, create the services and start to serve. Raises EndpointError and StateDamaged."""
        from smlaunch.local.front.call_log import CallLog
        from smlaunch.local.front.credentials import Keyring
        from smlaunch.local.front.request_dispatcher import RequestDispatcher
        from smlaunch.local.moto.forwarder import MotoForwarder

        self._pid = os.getpid()
        settings = self._settings
        if settings.faults is None:
            settings = replace(settings, faults=read_fault_plan(os.environ))
        call_log_path = settings.call_log or os.environ.get(CALL_LOG_VARIABLE)
        self._call_log = CallLog(Path(call_log_path)) if call_log_path else None
        credentials = _load_credentials(self._state_dir)
        keyring = Keyring(credentials)
        self._stores = _Stores(self._state_dir)
        self._jobs = self._create_job_manager(settings)
        services = self._create_services(keyring, settings)
        self._moto = MotoForwarder(self._server_url, credentials, settings, self._state_dir.moto_log)
        dispatcher = RequestDispatcher(
            keyring,
            services,
            fallback=_throttle_by_fault_plan("", self._moto, settings),
            call_log=self._call_log,
            state_dir=self._state_dir.root,
        )
        self._server = self._start_server(dispatcher)
        self._stores.objects.create_bucket(_DEFAULT_BUCKET)
        info = self._describe(self._server.url, credentials.access_key, credentials.secret_key)
        # A job has a region of its own.
        self._script_environment.update(
            {name: value for name, value in info.environment().items() if value and "REGION" not in name}
        )
        return info

    def _create_job_manager(self, settings: Settings) -> JobManager:
        from smlaunch.local.jobs.job_manager import JobManager
        from smlaunch.local.jobs.job_runner import JobServices

        registration = EndpointRegistration(self._state_dir)
        services = JobServices(
            job_store=self._stores.jobs,
            object_store=self._stores.objects,
            log_store=self._stores.logs,
            metric_store=self._stores.metrics,
            executor=self._executor,
            registration=registration,
            settings=settings,
            credentials=self._script_environment,  # filled when the server has started
            remove_leftovers=self._remove_leftovers,
            state_directory=self._state_dir.root,
        )
        return JobManager(services, self._state_dir, registration)

    def _create_services(self, keyring: Keyring, settings: Settings) -> dict[str, Service]:
        """Return the endpoint's own services by the names that clients sign for. First fails the jobs and the
        executions of endpoints that have died."""
        from smlaunch.local.pipelines.execution_runner import PipelineServices
        from smlaunch.local.pipelines.job_client import JobClient
        from smlaunch.local.pipelines.running_executions import PipelineExecutions
        from smlaunch.local.services import standard_services
        from smlaunch.local.services.json_service import JsonService
        from smlaunch.local.services.pipelines import PipelineOperations
        from smlaunch.local.services.processing_jobs import ProcessingJobOperations
        from smlaunch.local.services.tag_operations import TagOperations
        from smlaunch.local.services.training_jobs import TrainingJobOperations

        stores = self._stores
        training = TrainingJobOperations(stores.jobs, self._jobs, settings)
        processing = ProcessingJobOperations(stores.jobs, self._jobs)
        job_client = JobClient((training, processing), self._call_log)
        self._pipeline_executions = PipelineExecutions(
            PipelineServices(stores.pipelines, job_client, stores.objects), self._jobs
        )
        self._jobs.set_event_listener(self._pipeline_executions)
        self._jobs.clean_up_dead_endpoints()
        sagemaker_service = JsonService(
            "sagemaker",
            training,
            processing,
            TagOperations(stores.jobs, stores.pipelines),
            PipelineOperations(stores.pipelines, self._pipeline_executions, stores.objects, job_client),
        )
        services = standard_services(stores.objects, stores.logs, stores.metrics, keyring)
        services["sagemaker"] = sagemaker_service
        throttled_services = {
            name: _throttle_by_fault_plan(name, service, settings) for name, service in services.items()
        }
        job_client.sagemaker_service = throttled_services["sagemaker"]
        return throttled_services

    def _server_url(self) -> str:
        return self._server.url

    def _start_server(self, dispatcher: RequestDispatcher) -> Server:
        """Listen on the port. Raises EndpointError when that fails, after closing jobs and stores."""
        from smlaunch.local.front.http_server import Server

        try:
            return Server(dispatcher, port=self._port)
        except OSError as error:
            self._jobs.close()
            self._close_stores()
            raise EndpointError(
                f"cannot listen on port {self._port} of 127.0.0.1: {error.strerror}; leave the port out to "
                "get a free one"
            ) from error

    def _remove_leftovers(self, dead_endpoint_id: str) -> None:
        """End the hosts of a dead endpoint, which may have had any executor."""
        self._executor.remove_leftovers(dead_endpoint_id)
        for name in EXECUTORS.names():
            if name == self._executor.name:
                continue
            try:
                other_executor = load_executor(name)(self._executor.context)
            except EndpointError as error:  # of its package; this endpoint does not need it
                log.warning("%s", error)
                continue
            other_executor.remove_leftovers(dead_endpoint_id)

    def close(self) -> None:
        """Stop all jobs (SIGTERM, then SIGKILL after ``close_grace_seconds``) and the server. No process is
        left running. Does nothing in a process forked from the one that started it: the jobs are
        that one's."""
        if os.getpid() != self._pid:
            return
        self._moto.close()  # first: a state machine would retry jobs that are stopped here
        # The server closes last: scripts may still save to S3 on SIGTERM.
        self._pipeline_executions.close()
        self._jobs.close()
        self._pipeline_executions.join()
        self._server.close()
        self._close_stores()

    def __enter__(self) -> EndpointInfo:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_stores(self) -> None:
        self._stores.close()
        if self._call_log is not None:
            self._call_log.close()


class _Stores:
    """The stores in an endpoint's state directory."""

    def __init__(self, state_dir: StateDir) -> None:
        """Open all stores. Raises StateDamaged."""
        from smlaunch.local.pipelines.pipeline_store import PipelineStore
        from smlaunch.local.stores.job_store import JobStore
        from smlaunch.local.stores.log_store import LogStore
        from smlaunch.local.stores.metric_store import MetricStore
        from smlaunch.local.stores.object_store import ObjectStore

        self.jobs = JobStore(state_dir.jobs_database)
        self.objects = ObjectStore(state_dir.objects_dir)
        self.logs = LogStore(state_dir.logs_dir)
        self.metrics = MetricStore(state_dir.metrics_database)
        self.pipelines = PipelineStore(state_dir.pipelines_database)

    def close(self) -> None:
        for store in (self.objects, self.jobs, self.metrics, self.pipelines):
            store.close()


def _throttle_by_fault_plan(service_name: str, service: Service, settings: Settings) -> Service:
    """Return a service that throttles calls as the settings' fault plan says; without a plan, the service
    itself. ``service_name``: the name that clients sign for, empty for several."""
    if settings.faults is None or not settings.faults.faults:
        return service
    from smlaunch.local.services.throttling import ThrottledService

    return ThrottledService(service_name, service, settings.faults)


def _load_credentials(state: StateDir) -> Credentials:
    """Read the state directory's access key; create it if there is none. Raises StateDamaged."""
    from smlaunch.local.front import credentials

    path = state.credentials_file
    try:
        return credentials.read_credentials(path)
    except FileNotFoundError:
        write_private_file(path, credentials.generate_credentials(), overwrite=False)
        return credentials.read_credentials(path)
