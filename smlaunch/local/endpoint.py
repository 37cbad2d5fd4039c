"""The local endpoint put together: storage, services, executor, jobs, and one port on loopback in front.

Embedded, it lives in the client's process; standing, in a process of its own (standing.py). Several may share
one state directory at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from smlaunch.errors import EndpointError, disk_full, is_disk_full
from smlaunch.local.caller import ACCOUNT, DEFAULT_REGION, ROLE_ARN
from smlaunch.local.endpoint_info import EndpointInfo
from smlaunch.local.faults import from_environment
from smlaunch.local.settings import CALL_LOG_VARIABLE, Settings
from smlaunch.local.state_dir import Owner, StateDir, default_root, publish

if TYPE_CHECKING:
    from smlaunch.local.credentials import Credentials
    from smlaunch.local.executors.base import Executor

EXECUTORS = ("processes", "containers")


class Endpoint:
    """``executor``: one of EXECUTORS. ``isolation``, of ``processes`` alone: full, user or plain; None takes
    the best there is. ``port=0`` takes a free port."""

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
        """Serves when it returns. Raises EndpointError, for a state directory that cannot be used, an
        isolation level that does not work here, a port that is taken, or a disk that is full."""
        try:
            return self._start()
        except Exception as error:
            if isinstance(error, EndpointError) or not is_disk_full(error):
                raise
            raise EndpointError(disk_full(self._home, error)) from error

    def _start(self) -> EndpointInfo:
        from smlaunch.local.call_log import CallLog
        from smlaunch.local.credentials import Keyring
        from smlaunch.local.dispatch import Dispatch, Service
        from smlaunch.local.jobs.manager import JobManager
        from smlaunch.local.jobs.runner import Rooms
        from smlaunch.local.log_store import LogStore
        from smlaunch.local.metric_store import MetricStore
        from smlaunch.local.moto.fallback import MotoFallback
        from smlaunch.local.objects import ObjectStore
        from smlaunch.local.pipelines.door import JobDoor
        from smlaunch.local.pipelines.runner import Rooms as PipelineRooms
        from smlaunch.local.pipelines.runs import PipelineRuns
        from smlaunch.local.pipelines.store import PipelineStore
        from smlaunch.local.server import Server
        from smlaunch.local.services import standard_services
        from smlaunch.local.services.json_service import JsonService
        from smlaunch.local.services.pipelines import Pipelines
        from smlaunch.local.services.processing import ProcessingJobs
        from smlaunch.local.services.sagemaker import SageMakerService
        from smlaunch.local.services.tags import Tags
        from smlaunch.local.services.throttled import Throttled
        from smlaunch.local.store import JobStore

        state = StateDir(self._home)
        settings = self._settings
        if settings.faults is None:
            settings = replace(settings, faults=from_environment(os.environ))
        recorded = settings.call_log or os.environ.get(CALL_LOG_VARIABLE)
        chosen = self._chosen(state, settings)
        calls = CallLog(Path(recorded)) if recorded else None
        credentials = _credentials(state)
        store = JobStore(state.database)
        objects = ObjectStore(state.objects)
        logs = LogStore(state.logs)
        metrics = MetricStore(state.metrics)
        pipelines = PipelineStore(state.pipelines)
        owner = Owner(state)
        script_environment: dict[str, str] = {}
        executor = chosen(owner, script_environment)
        rooms = Rooms(
            *(store, objects, logs, metrics, executor, settings, script_environment),
            self._recover_others(state),
            state.root,
        )
        jobs = JobManager(rooms, state, owner)
        keyring = Keyring(credentials)
        services = standard_services(objects, logs, metrics, keyring)
        training, processing = SageMakerService(store, jobs, settings), ProcessingJobs(store, jobs)
        door = JobDoor(lambda: services["sagemaker"], training, processing, calls)
        self._runs = PipelineRuns(PipelineRooms(pipelines, door, objects), jobs)
        jobs.follow(self._runs)
        jobs.recover()
        operations = Pipelines(pipelines, self._runs, objects, door)
        services["sagemaker"] = JsonService(
            "sagemaker", training, processing, operations, Tags(store, pipelines)
        )
        self._moto = MotoFallback(lambda: self._server.url, credentials, settings, state.moto_log)
        others: Service = self._moto
        if settings.faults is not None and settings.faults.faults:
            services = {name: Throttled(name, service, settings.faults) for name, service in services.items()}
            others = Throttled("", others, settings.faults)
        dispatch = Dispatch(keyring, services, others, calls=calls, home=state.root)
        self._jobs = jobs
        self._stores = (objects, store, metrics, pipelines)
        self._calls = calls
        try:
            self._server = Server(dispatch, port=self._port)
        except OSError as error:
            jobs.close()
            self._close_stores()
            raise EndpointError(
                f"port {self._port} on 127.0.0.1 cannot be had: {error.strerror}; leave it out for a free one"
            ) from error
        bucket = f"sagemaker-{DEFAULT_REGION}-{ACCOUNT}"
        objects.create_bucket(bucket)
        info = EndpointInfo(
            url=self._server.url,
            region=DEFAULT_REGION,
            access_key=credentials.access_key,
            secret_key=credentials.secret_key,
            account=ACCOUNT,
            role_arn=ROLE_ARN,
            bucket=bucket,
            pid=os.getpid(),
            isolation=executor.isolation,
            executor=executor.name,
            home=str(state.root),
        )
        script_environment.update(
            {name: value for name, value in info.environment().items() if value and "REGION" not in name}
        )
        return info

    def _chosen(self, state: StateDir, settings: Settings) -> Callable[[Owner, Mapping[str, str]], Executor]:
        """What makes the executor for an owner and, as soon as they are known, the endpoint's variables.
        Raises EndpointError when it does not work here."""
        if self._executor == "containers":
            from smlaunch.local.executors import containers_engine
            from smlaunch.local.executors.containers import Containers
            from smlaunch.local.executors.containers_engine import ENGINE_VARIABLE

            wanted = settings.container_engine or os.environ.get(ENGINE_VARIABLE) or None
            engine = containers_engine.best(state.engine, wanted)
            options = settings.container_options or containers_engine.options_from(os.environ)
            return lambda owner, reach: Containers(
                owner.hosts, owner.id, engine, reach, settings.container_shm_bytes, options
            )
        from smlaunch.local.executors import levels
        from smlaunch.local.executors.processes import Processes

        level = levels.best(state.hosts, state.levels, self._isolation)
        return lambda owner, reach: Processes(owner.hosts, owner.id, level.name, level.views)

    def _recover_others(self, state: StateDir) -> Callable[[str], object]:
        """What ends hosts that an endpoint with the other executor left here. Loaded when there are any."""

        def recover(owner: str) -> None:
            if self._executor == "containers":
                from smlaunch.local.executors import processes

                processes.recover(owner)
            else:
                from smlaunch.local.executors import containers

                containers.recover_as_remembered(state.engine, owner)

        return recover

    def close(self) -> None:
        """Stops all its jobs (SIGTERM, then SIGKILL after ``close_grace_seconds``) and the server. No process
        is left."""
        self._moto.close()  # a state machine would run jobs that end here again
        # Then the jobs: their scripts may still save something to S3 on SIGTERM.
        self._runs.close()
        self._jobs.close()
        self._runs.join()
        self._server.close()
        self._close_stores()

    def __enter__(self) -> EndpointInfo:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_stores(self) -> None:
        for store in self._stores:
            store.close()
        if self._calls is not None:
            self._calls.close()


def _credentials(state: StateDir) -> Credentials:
    """This state directory's own random key, made by the first that needs it. Raises StateDamaged."""
    from smlaunch.local import credentials

    path = state.credentials
    try:
        return credentials.read(path)
    except FileNotFoundError:
        publish(path, credentials.fresh(), replace=False)
        return credentials.read(path)
