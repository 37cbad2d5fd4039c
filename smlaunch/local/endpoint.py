"""The local endpoint: storage, services, executor and jobs behind an HTTP server on one loopback port.

An embedded endpoint runs in the client's process, a background endpoint in its own process (daemon.py).
Several endpoints may share one state directory at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from smlaunch.errors import EndpointError, disk_full_message, is_disk_full
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.faults import read_fault_plan
from smlaunch.local.request_context import ACCOUNT, DEFAULT_REGION, ROLE_ARN
from smlaunch.local.settings import CALL_LOG_VARIABLE, Settings
from smlaunch.local.state_dir import JobOwner, StateDir, default_root, write_private_file

if TYPE_CHECKING:
    from smlaunch.local.credentials import Credentials
    from smlaunch.local.dispatch import Dispatch, Service
    from smlaunch.local.executors.base import Executor
    from smlaunch.local.server import Server

EXECUTORS = ("processes", "containers")
_DEFAULT_BUCKET = f"sagemaker-{DEFAULT_REGION}-{ACCOUNT}"


class Endpoint:
    """A local endpoint; also a context manager that starts and closes it.

    ``executor``: one of EXECUTORS. ``isolation``, for the executor ``processes`` only: full, user or plain;
    None chooses the strongest level that works. ``port=0`` chooses a free port.
    """

    def __init__(
        self,
        state_dir: Path | None = None,
        *,
        isolation: str | None = None,
        executor: str = "processes",
        settings: Settings | None = None,
        port: int = 0,
    ) -> None:
        if executor not in EXECUTORS:
            raise EndpointError(f"executor {executor!r} is unknown; there is {', '.join(EXECUTORS)}")
        if executor == "containers" and isolation is not None:
            raise EndpointError(
                "isolation levels belong to the executor `processes`; containers have one only"
            )
        self._executor = executor
        self._home = state_dir or default_root()
        self._isolation = isolation
        self._settings = settings or Settings()
        self._port = port

    def start(self) -> EndpointInfo:
        """Start the endpoint and return when it serves. Raises EndpointError for a state directory that
        cannot be used, an isolation level that does not work here, a port in use, or a full disk."""
        try:
            return self._start()
        except Exception as error:
            if isinstance(error, EndpointError) or not is_disk_full(error):
                raise
            raise EndpointError(disk_full_message(self._home, error)) from error

    def _start(self) -> EndpointInfo:
        from smlaunch.local.call_log import CallLog
        from smlaunch.local.credentials import Keyring
        from smlaunch.local.dispatch import Dispatch
        from smlaunch.local.job_store import JobStore
        from smlaunch.local.jobs.manager import JobManager
        from smlaunch.local.jobs.runner import EndpointServices
        from smlaunch.local.log_store import LogStore
        from smlaunch.local.metric_store import MetricStore
        from smlaunch.local.moto.forwarder import MotoForwarder
        from smlaunch.local.object_store import ObjectStore
        from smlaunch.local.pipelines.executions import PipelineExecutions
        from smlaunch.local.pipelines.job_client import JobClient
        from smlaunch.local.pipelines.runner import PipelineServices
        from smlaunch.local.pipelines.store import PipelineStore
        from smlaunch.local.services import standard_services
        from smlaunch.local.services.json_service import JsonService
        from smlaunch.local.services.pipelines import PipelineOperations
        from smlaunch.local.services.processing_jobs import ProcessingJobOperations
        from smlaunch.local.services.tags import TagOperations
        from smlaunch.local.services.training_jobs import TrainingJobOperations

        state_dir = StateDir(self._home)
        settings = self._settings
        if settings.faults is None:
            settings = replace(settings, faults=read_fault_plan(os.environ))
        create_executor = self._executor_factory(state_dir, settings)
        call_log_path = settings.call_log or os.environ.get(CALL_LOG_VARIABLE)
        self._call_log = CallLog(Path(call_log_path)) if call_log_path else None
        credentials = _load_credentials(state_dir)
        job_store = JobStore(state_dir.jobs_database)
        objects = ObjectStore(state_dir.objects_dir)
        logs = LogStore(state_dir.logs_dir)
        metrics = MetricStore(state_dir.metrics_database)
        pipelines = PipelineStore(state_dir.pipelines_database)
        self._stores = (objects, job_store, metrics, pipelines)
        owner = JobOwner(state_dir)
        script_environment: dict[str, str] = {}
        executor = create_executor(owner, script_environment)
        job_services = EndpointServices(
            *(job_store, objects, logs, metrics, executor, settings, script_environment),
            self._other_executor_recovery(state_dir),
            state_dir.root,
        )
        self._jobs = JobManager(job_services, state_dir, owner)
        keyring = Keyring(credentials)
        services = standard_services(objects, logs, metrics, keyring)
        training = TrainingJobOperations(job_store, self._jobs, settings)
        processing = ProcessingJobOperations(job_store, self._jobs)
        job_client = JobClient(lambda: services["sagemaker"], training, processing, self._call_log)
        self._pipeline_executions = PipelineExecutions(
            PipelineServices(pipelines, job_client, objects), self._jobs
        )
        self._jobs.set_event_listener(self._pipeline_executions)
        self._jobs.clean_up_dead_endpoints()
        services["sagemaker"] = JsonService(
            "sagemaker",
            *(training, processing, TagOperations(job_store, pipelines)),
            PipelineOperations(pipelines, self._pipeline_executions, objects, job_client),
        )
        self._moto = MotoForwarder(lambda: self._server.url, credentials, settings, state_dir.moto_log)
        services, fallback = _with_throttling(services, self._moto, settings)
        dispatch = Dispatch(keyring, services, fallback, call_log=self._call_log, state_dir=state_dir.root)
        self._server = self._start_server(dispatch)
        objects.create_bucket(_DEFAULT_BUCKET)
        info = EndpointInfo(
            url=self._server.url,
            region=DEFAULT_REGION,
            access_key=credentials.access_key,
            secret_key=credentials.secret_key,
            account=ACCOUNT,
            role_arn=ROLE_ARN,
            bucket=_DEFAULT_BUCKET,
            pid=os.getpid(),
            isolation=executor.isolation,
            executor=executor.name,
            home=str(state_dir.root),
        )
        script_environment.update(
            {name: value for name, value in info.environment().items() if value and "REGION" not in name}
        )
        return info

    def _start_server(self, dispatch: Dispatch) -> Server:
        """Listen on the port. Raises EndpointError when that fails, after closing jobs and stores."""
        from smlaunch.local.server import Server

        try:
            return Server(dispatch, port=self._port)
        except OSError as error:
            self._jobs.close()
            self._close_stores()
            raise EndpointError(
                f"cannot listen on port {self._port} of 127.0.0.1: {error.strerror}; leave the port out to "
                "get a free one"
            ) from error

    def _executor_factory(
        self, state: StateDir, settings: Settings
    ) -> Callable[[JobOwner, Mapping[str, str]], Executor]:
        """Choose the executor now and return the function that creates it, given this endpoint's JobOwner and
        the environment of scripts (filled once the endpoint serves). Raises EndpointError when the executor
        does not work here."""
        if self._executor == "containers":
            from smlaunch.local.executors import containers_engine
            from smlaunch.local.executors.containers import Containers
            from smlaunch.local.executors.containers_engine import ENGINE_VARIABLE

            engine_name = settings.container_engine or os.environ.get(ENGINE_VARIABLE) or None
            engine = containers_engine.choose_engine(state.engine_cache, engine_name)
            options = settings.container_options or containers_engine.options_from_environment(os.environ)
            return lambda owner, script_environment: Containers(
                *(owner.hosts_dir, owner.id, engine, script_environment),
                *(settings.container_shm_bytes, options),
            )
        from smlaunch.local.executors import levels
        from smlaunch.local.executors.processes import Processes

        level = levels.choose_level(state.hosts_dir, state.isolation_cache, self._isolation)
        return lambda owner, _: Processes(owner.hosts_dir, owner.id, level.name, level.views)

    def _other_executor_recovery(self, state: StateDir) -> Callable[[str], object]:
        """Return a function that ends the hosts of a dead endpoint that had the other executor. It imports
        that executor only when it is called."""

        def remove_leftovers(owner: str) -> None:
            if self._executor == "containers":
                from smlaunch.local.executors import processes

                processes.remove_leftovers(owner)
            else:
                from smlaunch.local.executors import containers

                containers.remove_leftovers_by_cached_engine(state.engine_cache, owner)

        return remove_leftovers

    def close(self) -> None:
        """Stop all jobs (SIGTERM, then SIGKILL after ``close_grace_seconds``) and the server. No process is
        left running."""
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
        for store in self._stores:
            store.close()
        if self._call_log is not None:
            self._call_log.close()


def _with_throttling(
    services: dict[str, Service], fallback: Service, settings: Settings
) -> tuple[dict[str, Service], Service]:
    """Wrap all services, and the fallback, if the settings have a fault plan."""
    if settings.faults is None or not settings.faults.faults:
        return services, fallback
    from smlaunch.local.services.throttling import ThrottledService

    plan = settings.faults
    throttled = {name: ThrottledService(name, service, plan) for name, service in services.items()}
    return dict(throttled), ThrottledService("", fallback, plan)


def _load_credentials(state: StateDir) -> Credentials:
    """Read the state directory's access key; create it if there is none. Raises StateDamaged."""
    from smlaunch.local import credentials

    path = state.credentials_file
    try:
        return credentials.read_credentials(path)
    except FileNotFoundError:
        write_private_file(path, credentials.generate_credentials(), overwrite=False)
        return credentials.read_credentials(path)
