"""moto's faults that executions meet, each repaired from outside. Seen in moto 5.2.5.

Every function repairs one, from when it is called, for the whole process. tests/real/test_moto_repairs.py
runs each without its repair and with it: where moto has mended one, that test says so and the repair can go.
A fault of older versions, that a second execution fails with "cannot pickle '_thread.RLock' object", is gone
since 5.2.5, which the extra asks for.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from botocore.response import StreamingBody
from botocore.session import Session
from jsonpath_ng.ext import parse
from jsonpath_ng.jsonpath import Child, Fields, Index, Root
from moto.core.exceptions import AWSError
from moto.core.responses import ActionResult
from moto.stepfunctions.parser import api
from moto.stepfunctions.parser.asl.component.common.error_name.failure_event import (
    FailureEvent,
    FailureEventException,
)
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name import StatesErrorName
from moto.stepfunctions.parser.asl.component.common.error_name.states_error_name_type import (
    StatesErrorNameType,
)
from moto.stepfunctions.parser.asl.component.common.retry import retrier_decl
from moto.stepfunctions.parser.asl.component.intrinsic.argument.argument import ArgumentLiteral
from moto.stepfunctions.parser.asl.component.intrinsic.function.statesfunction.generic.string_format import (
    StringFormat,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_map.iteration import iteration_worker
from moto.stepfunctions.parser.asl.component.state.exec.state_map.iteration.itemprocessor import (
    distributed_item_processor_worker,
)
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service import state_task_service_aws_sdk
from moto.stepfunctions.parser.asl.component.state.exec.state_task.service.state_task_service import (
    StateTaskService,
)
from moto.stepfunctions.parser.asl.component.state.wait.wait_function.wait_function import WaitFunction
from moto.stepfunctions.parser.asl.eval.environment import Environment
from moto.stepfunctions.parser.asl.eval.event.event_detail import EventDetails
from moto.stepfunctions.parser.asl.eval.program_state import ProgramRunning, ProgramStopped
from moto.stepfunctions.parser.asl.parse.asl_parser import AmazonStateLanguageParser, ASLParserException
from moto.stepfunctions.parser.asl.parse.intrinsic.intrinsic_parser import IntrinsicParser
from moto.stepfunctions.parser.asl.utils import boto_client, json_path
from moto.stepfunctions.parser.asl.utils.encoding import to_json_str
from moto.stepfunctions.parser.backend.execution import BaseExecutionWorkerCommunication, Execution
from moto.stepfunctions.parser.models import StepFunctionsParserBackend
from moto.stepfunctions.responses import StepFunctionResponse

_PARSER = "moto.stepfunctions.parser"
_LOOK_SECONDS = 0.5
_DATA = ("Parameters", "Result", "ResultSelector", "ItemSelector")
"""Fields of states whose members are the user's."""
_TOO_MANY = StatesErrorNameType.StatesExceedToleratedFailureThreshold
SDK_NAMES = {
    "s3": "S3",
    "sagemaker": "SageMaker",
    "secretsmanager": "SecretsManager",
    "cloudwatchlogs": "CloudWatchLogs",
}
"""As errors of ``aws-sdk:`` tasks begin: the service's name in the AWS SDK for Java 2."""


def single_values_below_an_index() -> None:
    """``$.t.list[0].value`` gives the value. moto wraps it in a list, so that no Choice on it is ever true,
    to keep ``list[*].value`` a list where it has one element (its issue 7825)."""
    moto_s = json_path.extract_json

    def extract_json(path: str, data: Any) -> Any:
        expression = parse(path)
        if _is_definite(expression):
            found = expression.find(data)
            if len(found) == 1:
                return found[0].value
        return moto_s(path, data)

    _rebind(moto_s, extract_json)


def _is_definite(expression: Any) -> bool:
    """Whether it can mean one place only."""
    if isinstance(expression, Child):
        return _is_definite(expression.left) and _is_definite(expression.right)
    if isinstance(expression, Fields):
        return len(expression.fields) == 1 and expression.fields[0] != "*"
    if isinstance(expression, Index):
        return len(expression.indices) == 1
    return isinstance(expression, Root)


_ESCAPED = {"'": "\ue000", "\\": "\ue001", "{": "\ue002", "}": "\ue003"}
"""What may follow a backslash in a text of an intrinsic function, and what stands for it meanwhile:
characters for private use, which moto's grammar takes for letters."""
_CONTROLS = {"\n": "\ue004", "\r": "\ue005", "\t": "\ue006"}


def escapes_in_intrinsic_functions() -> None:
    """``States.Format('it\\'s \\{{}\\}', $.x)``: moto cuts the text at its first escaped character, without
    an error, or takes it for a name. And the text of a path, ``States.Format($.text)``, may have braces."""
    moto_s, moto_s_literal = IntrinsicParser.parse, ArgumentLiteral._eval_body

    def parse_function(source: str) -> Any:
        with contextlib.suppress(ValueError):  # moto hands it over as it stands between JSON's quotes
            source = json.loads(f'"{source}"', strict=False)
        for character, meanwhile in _CONTROLS.items():
            source = source.replace(character, meanwhile)
        return moto_s(re.sub(r"\\(['\\{}])", lambda found: _ESCAPED[found.group(1)], source))

    def literal(self: Any, env: Any) -> None:
        moto_s_literal(self, env)
        if isinstance(env.stack[-1], str):
            env.stack[-1] = _unescaped(env.stack[-1])

    def form(self: Any, env: Any) -> None:
        self.argument_list.eval(env=env)
        text, *values = env.stack.pop()
        first = self.argument_list.arguments[0]
        pieces = (first.definition_value if isinstance(first, ArgumentLiteral) else text).split("{}")
        if len(pieces) != len(values) + 1:
            raise ValueError(f"States.Format: {len(pieces) - 1} places for {len(values)} values")
        said = [*map(self._to_str_repr, values), ""]
        env.stack.append("".join(map("".join, zip(map(_unescaped, pieces), said, strict=True))))

    IntrinsicParser.parse = staticmethod(parse_function)
    ArgumentLiteral._eval_body = literal
    StringFormat._eval_body = form


def _unescaped(text: str) -> str:
    for character, meanwhile in (_ESCAPED | _CONTROLS).items():
        text = text.replace(meanwhile, character)
    return text


def unnamed_executions() -> None:
    """StartExecution without a name makes one. moto calls all of them None, and refuses the second."""
    moto_s = StepFunctionsParserBackend.start_execution

    def start_execution(
        self: Any, state_machine_arn: str, name: str | None = None, *rest: Any, **more: Any
    ) -> Any:
        return moto_s(self, state_machine_arn, name or str(uuid.uuid4()), *rest, **more)

    StepFunctionsParserBackend.start_execution = start_execution


def stopping_at_once() -> None:
    """StopExecution ends the execution before it answers, and keeps the error and the cause it was given.
    moto drops both, and answers without the stopDate that every client reads."""

    def stop(
        self: Any, stop_date: datetime.datetime, error: str | None = None, cause: str | None = None
    ) -> None:
        state = _environment_of(self)
        state.set_stop(stop_date=stop_date, error=error, cause=cause)
        if isinstance(state.program_state(), ProgramStopped):
            self.exec_status, self.stop_date = api.ExecutionStatus.ABORTED, stop_date
            self.error, self.cause = error, cause

    def stop_execution(self: Any) -> Any:
        found = self.stepfunction_backend.describe_execution(self._get_param("executionArn"))
        if found.exec_status == api.ExecutionStatus.RUNNING:
            now = datetime.datetime.now(tz=datetime.timezone.utc)
            found.stop(now, self._get_param("error"), self._get_param("cause"))
        return ActionResult({"stopDate": found.stop_date})

    Execution.stop = stop
    StepFunctionResponse.stop_execution = stop_execution


def what_is_stopped_stays_stopped() -> None:
    """An execution that is stopped in the midst of a Map or a Parallel is ABORTED. moto lets the items and
    branches that ended with it fail it after that, with a word on 'get'."""
    moto_s = Environment.set_error

    def set_error(self: Any, error: Any) -> None:
        if not isinstance(self.program_state(), ProgramStopped):
            moto_s(self, error)

    Environment.set_error = set_error


def _environment_of(execution: Any) -> Any:
    """Its program's, which a thread of its own makes right after the start. moto's set_stop before that is
    lost."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        found = execution.exec_worker.env
        if found is not None and found.program_state() is not None:
            return found
        time.sleep(0.01)
    raise RuntimeError(f"{execution.exec_arn} did not begin within 10 s")


def waits(factor: float = 1.0) -> None:
    """A stopped execution does not sleep a Retry's interval to its end, and Wait keeps fractions of seconds.
    ``factor``: how long a second of Wait and Retry is."""
    waiting = threading.local()
    moto_s = retrier_decl.RetrierDecl._eval_body

    def retry(self: Any, env: Any) -> None:
        waiting.env = env
        moto_s(self, env)

    class Clock:
        @staticmethod
        def sleep(seconds: float) -> None:
            _pause(waiting.env, seconds * factor)

    def wait_interval(self: Any, env: Any, wait_seconds: float) -> None:
        _pause(env, wait_seconds * factor)

    retrier_decl.RetrierDecl._eval_body = retry
    retrier_decl.time = Clock
    WaitFunction._wait_interval = wait_interval


def _pause(env: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    # The event is set and cleared in one go, so a waiter may sleep through it: it looks for itself.
    while isinstance(env.program_state(), ProgramRunning) and (left := deadline - time.monotonic()) > 0:
        env.program_state_event.wait(min(left, _LOOK_SECONDS))


def failures_of_a_distributed_map() -> None:
    """More failed items than ToleratedFailureCount or ToleratedFailurePercentage allow, without them one,
    fail the Map, and what still runs of it is stopped. moto puts null in their places and goes on."""
    worker = distributed_item_processor_worker.DistributedItemProcessorWorker
    moto_s = worker._eval_job

    def eval_job(self: Any, env: Any, job: Any) -> None:
        moto_s(self, env, job)
        record, items = self._map_run_record, self._job_pool._jobs_number
        failed = record.item_counter.failed.get() + record.item_counter.timed_out.get()
        limits = [record.tolerated_failure_count, record.tolerated_failure_percentage / 100 * items]
        if failed > min([limit for limit in limits if limit > 0], default=0):
            cause = (
                f"The specified tolerated failure threshold was exceeded: {failed} of {items} items failed"
            )
            details = api.ExecutionFailedEventDetails(error=_TOO_MANY.to_name(), cause=cause)
            event = FailureEvent(
                env=env,
                error_name=StatesErrorName(typ=_TOO_MANY),
                event_type=api.HistoryEventType.MapStateFailed,
                event_details=EventDetails(executionFailedEventDetails=details),
            )
            job.job_output = FailureEventException(event)

    worker._eval_job = eval_job


def maps_of_many_items() -> None:
    """A worker of a Map takes one item after the other. moto's calls itself for the next: after about a
    thousand it dies of recursion, and the Map never ends."""
    inline, distributed = iteration_worker, distributed_item_processor_worker
    for worker in (inline.IterationWorker, distributed.DistributedItemProcessorWorker):
        worker._eval_pool = _in_a_loop(worker._eval_pool)


def _in_a_loop(step: Callable[..., None]) -> Callable[..., None]:
    """``step`` ends with a call of itself, which is made when it has returned."""

    def eval_pool(self: Any, job: Any, worker_frame: Any) -> None:
        if "following" in vars(self):
            self.following = (job, worker_frame)
            return
        self.following = (job, worker_frame)
        while self.following is not None:
            now, self.following = self.following, None
            step(self, *now)
        del self.following

    return eval_pool


def names_of_members() -> None:
    """Members are called in a state machine as the AWS SDK for Java calls them, ``StateMachineArn``, and in
    the API's model ``stateMachineArn``. moto leaves the translation out, so that ``states:startExecution``
    and ``aws-sdk:sfn`` fail. Bodies of S3's objects become text and times ISO 8601, which JSON can hold."""
    models = Session()

    def shape_of(task: Any, service: str | None, action: str | None, side: str) -> Any:
        model = models.get_service_model(task._get_boto_service_name(service))
        wanted = task._get_boto_service_action(action).replace("_", "")
        name = next((name for name in model.operation_names if name.lower() == wanted), None)
        return getattr(model.operation_model(name), side) if name is not None else None

    def parameters(
        self: Any,
        parameters: dict[str, Any],
        boto_service_name: str | None = None,
        service_action_name: str | None = None,
    ) -> None:
        shape = shape_of(self, boto_service_name, service_action_name, "input_shape")
        if shape is not None:
            self._to_boto_request(parameters, shape)

    def response(
        self: Any,
        response: Any,
        boto_service_name: str | None = None,
        service_action_name: str | None = None,
    ) -> None:
        shape = shape_of(self, boto_service_name, service_action_name, "output_shape")
        if shape is not None:
            self._from_boto_response(response, shape)

    StateTaskService._normalise_parameters = parameters
    StateTaskService._normalise_response = response
    StateTaskService._from_boto_response_value = staticmethod(_json_value)
    StateTaskService._to_sfn_cased = staticmethod(lambda name: name[:1].upper() + name[1:])
    StateTaskService._SERVICE_NAME_SFN_TO_BOTO_OVERRIDES["cloudwatchlogs"] = "logs"


def _json_value(value: Any) -> Any:
    if isinstance(value, StreamingBody):
        value = value.read()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime.datetime):
        text = value.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    return value


def names_of_errors(chosen: Mapping[str, str]) -> None:
    """Errors of ``aws-sdk:`` tasks are named ``SageMaker.ResourceInUseException``, not ``sagemaker.``; those
    that the service's model does not have are ``SageMaker.SageMakerException``. ``chosen``: names for codes,
    which come first."""
    state_task_service_aws_sdk._SERVICE_ERROR_NAMES.update(SDK_NAMES)
    task = state_task_service_aws_sdk.StateTaskServiceAwsSdk
    moto_s = task._normalise_exception_name

    def named(service: str, error: Any) -> Any:
        return chosen.get(error.response["Error"]["Code"]) or moto_s(service, error)

    task._normalise_exception_name = staticmethod(named)


def output_as_json() -> None:
    """What an execution gives is JSON also where it is a text, ``"yes"`` with its quotes, or null."""
    moto_s = BaseExecutionWorkerCommunication._reflect_execution_status

    def reflect(self: Any) -> None:
        moto_s(self)
        if self.execution.exec_status == api.ExecutionStatus.SUCCEEDED:
            self.execution.output = to_json_str(self.execution.output, separators=(",", ":"))

    BaseExecutionWorkerCommunication._reflect_execution_status = reflect


def codes_of_errors() -> None:
    """An error of Step Functions bears its code; of many, InvalidDefinition among them, moto's is empty, so
    that no client raises the right exception. And what is wrong with a definition is said in one sentence,
    also that it needs what moto has not: it would fail when it runs, with a word on 'NoneType'."""
    for kind in vars(api).values():
        if isinstance(kind, type) and issubclass(kind, AWSError) and "code" in vars(kind):
            kind.TYPE = kind.code  # type: ignore[attr-defined]

    def validate(definition: str) -> None:
        try:
            AmazonStateLanguageParser.parse(definition)
        except Exception as error:
            cause = "; ".join(error.errors) if isinstance(error, ASLParserException) else str(error)
            message = f"Invalid State Machine Definition: '{cause or repr(error)}'"
            raise api.InvalidDefinition(message) from None
        if missing := list(_not_played(json.loads(definition), "$")):
            plays = "the local endpoint plays JSONPath definitions without variables or ResultWriter"
            text = f"{plays}, so not {'; '.join(missing)}"
            raise api.InvalidDefinition(f"Invalid State Machine Definition: '{text}'")

    StepFunctionsParserBackend._validate_definition = staticmethod(validate)


def _not_played(value: Any, path: str) -> Iterator[str]:
    """Where a definition uses JSONata, variables, or a ResultWriter, whose manifest would list nothing."""
    if isinstance(value, dict):
        for name, held in value.items():
            writes = name == "ResultWriter" and "ItemProcessor" in value
            if writes or name == "Assign" or (name == "QueryLanguage" and held == "JSONata"):
                yield f"{path}.{name}"
            elif name not in _DATA:
                yield from _not_played(held, f"{path}.{name}")
    elif isinstance(value, list):
        for number, held in enumerate(value):
            yield from _not_played(held, f"{path}[{number}]")


def calls_to(client_of: Callable[[str, str, str], Any]) -> None:
    """What tasks call is this endpoint, as ``client_of(role, service, region)`` reaches it. moto calls
    localhost:5000 with keys that nobody knows."""

    def boto_client_for(region: str, service: str, state_credentials: Any = None) -> Any:
        return client_of(state_credentials.role_arn, service, region)

    _rebind(boto_client.boto_client_for, boto_client_for)


def _rebind(old: Any, new: Callable[..., Any]) -> None:
    """Everywhere that the interpreter's modules have imported it by its name, which is the new one's too."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PARSER) and getattr(module, new.__name__, None) is old:
            setattr(module, new.__name__, new)
