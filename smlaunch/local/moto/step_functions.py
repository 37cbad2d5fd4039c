"""Step Functions as moto interprets it, with what makes it this endpoint's: our tasks, calls and repairs."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import moto.stepfunctions.parser.models  # noqa: F401  the whole interpreter, before its names are rebound
from botocore.exceptions import ClientError
from moto.core.config import default_user_config
from moto.stepfunctions.parser.asl.component.state.exec.state_task import state_task_factory
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import state_task_service_factory
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service_sfn import (
    StateTaskServiceSfn,
)

from smlaunch.local.moto import repairs
from smlaunch.local.moto.clients import Clients
from smlaunch.local.moto.sagemaker_tasks import SageMakerTask


class NestedExecution(StateTaskServiceSfn):
    """``states:startExecution``; a nested execution is stopped with the one that waits for it."""

    def __init__(self, clients: Clients) -> None:
        super().__init__()
        self._clients = clients

    def _eval_integration_pattern(
        self,
        env: Any,
        resource_runtime_part: Any,
        normalised_parameters: dict[str, Any],
        state_credentials: Any,
    ) -> None:
        nested = env.stack[-1]["ExecutionArn"]
        super()._eval_integration_pattern(
            env, resource_runtime_part, normalised_parameters, state_credentials
        )
        if not env.is_running():
            role = state_credentials.role_arn
            client = self._clients.of_role(role, "stepfunctions", resource_runtime_part.region)
            with contextlib.suppress(ClientError):  # it has ended meanwhile
                client.stop_execution(executionArn=nested)


def install(clients: Clients, wait_factor: float, error_names: Mapping[str, str]) -> None:
    """Once in a process."""
    default_user_config["stepfunctions"]["execute_state_machine"] = True
    repairs.single_values_below_an_index()
    repairs.escapes_in_intrinsic_functions()
    repairs.unnamed_executions()
    repairs.stopping_at_once()
    repairs.what_is_stopped_stays_stopped()
    repairs.waits(wait_factor)
    repairs.maps_of_many_items()
    repairs.failures_of_a_distributed_map()
    repairs.names_of_members()
    repairs.names_of_errors(error_names)
    repairs.output_as_json()
    repairs.codes_of_errors()
    repairs.calls_to(clients.of_role)
    moto_s = state_task_service_factory.state_task_service_for

    def state_task_service_for(service_name: str) -> Any:
        if service_name == "sagemaker":
            return SageMakerTask(clients, error_names)
        if service_name == "states":
            return NestedExecution(clients)
        return moto_s(service_name)

    state_task_factory.state_task_service_for = state_task_service_for
