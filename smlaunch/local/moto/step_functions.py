"""Step Functions with moto's interpreter and this endpoint's tasks, clients and patches."""

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

from smlaunch.local.moto import moto_patches
from smlaunch.local.moto.role_clients import RoleClients
from smlaunch.local.moto.sagemaker_tasks import SageMakerTask


class NestedExecution(StateTaskServiceSfn):
    """Task ``states:startExecution``; a nested execution is stopped with the execution that waits for it."""

    def __init__(self, clients: RoleClients) -> None:
        super().__init__()
        self._clients = clients

    def _eval_integration_pattern(
        self,
        env: Any,
        resource_runtime_part: Any,
        normalised_parameters: dict[str, Any],
        state_credentials: Any,
    ) -> None:
        nested_arn = env.stack[-1]["ExecutionArn"]
        super()._eval_integration_pattern(
            env, resource_runtime_part, normalised_parameters, state_credentials
        )
        if not env.is_running():
            role = state_credentials.role_arn
            client = self._clients.client_for_role(role, "stepfunctions", resource_runtime_part.region)
            with contextlib.suppress(ClientError):  # the nested execution has ended meanwhile
                client.stop_execution(executionArn=nested_arn)


def install(clients: RoleClients, wait_factor: float, error_names: Mapping[str, str]) -> None:
    """Install tasks, patches and clients into moto. Call it once in a process."""
    default_user_config["stepfunctions"]["execute_state_machine"] = True
    moto_patches.patch_definite_paths()
    moto_patches.patch_intrinsic_escapes()
    moto_patches.patch_unnamed_executions()
    moto_patches.patch_stop_execution()
    moto_patches.patch_stopped_state()
    moto_patches.patch_waits(wait_factor)
    moto_patches.patch_map_failures()
    moto_patches.patch_parameter_names()
    moto_patches.patch_error_names(error_names)
    moto_patches.patch_execution_output()
    moto_patches.patch_error_codes()
    moto_patches.patch_boto_clients(clients.client_for_role)
    original = state_task_service_factory.state_task_service_for

    def state_task_service_for(service_name: str) -> Any:
        if service_name == "sagemaker":
            return SageMakerTask(clients, error_names)
        if service_name == "states":
            return NestedExecution(clients)
        return original(service_name)

    state_task_factory.state_task_service_for = state_task_service_for
