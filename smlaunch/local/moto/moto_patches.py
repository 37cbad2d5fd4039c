"""Patches for bugs of moto that executions meet. Seen in moto 5.2.5.

Each function patches one bug, for the whole process. tests/real/test_moto_repairs.py runs each with and
without its patch: when moto has fixed a bug, that test fails, and the patch can be removed. The test named in
a patch runs state machines through the endpoint, and fails without the patch
(tests/real/test_moto_step_functions.py, test_exported_machine.py). A bug of older versions, that a second
execution fails with "cannot pickle '_thread.RLock' object", is fixed in 5.2.5, which the extra requires.
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
_POLL_SECONDS = 0.5
_USER_DATA_FIELDS = ("Parameters", "Result", "ResultSelector", "ItemSelector")
"""Fields of states whose content is the user's data."""
_THRESHOLD_EXCEEDED = StatesErrorNameType.StatesExceedToleratedFailureThreshold
SDK_NAMES = {
    "s3": "S3",
    "sagemaker": "SageMaker",
    "secretsmanager": "SecretsManager",
    "cloudwatchlogs": "CloudWatchLogs",
}
"""Prefixes of the error names of ``aws-sdk:`` tasks: service names in the AWS SDK for Java 2."""


def patch_definite_paths() -> None:
    """Make ``$.t.list[0].value`` return the value. moto returns a list, so that no Choice on it is true, to
    keep ``list[*].value`` a list when it has one element (moto's issue 7825).

    Needed by ``test_a_completed_job_gives_its_description``.
    """
    original = json_path.extract_json

    def extract_json(path: str, data: Any) -> Any:
        expression = parse(path)
        if _matches_one_value_at_most(expression):
            matches = expression.find(data)
            if len(matches) == 1:
                return matches[0].value
        return original(path, data)

    _replace_in_interpreter(original, extract_json)


def _matches_one_value_at_most(expression: Any) -> bool:
    """Return whether an expression of the package jsonpath_ng, such as ``$.list[0].name``, can match one
    value at most."""
    if isinstance(expression, Child):  # two expressions, one below the other
        return _matches_one_value_at_most(expression.left) and _matches_one_value_at_most(expression.right)
    if isinstance(expression, Fields):
        return len(expression.fields) == 1 and expression.fields[0] != "*"
    if isinstance(expression, Index):
        return len(expression.indices) == 1
    return isinstance(expression, Root)


_PLACEHOLDER_BY_ESCAPED = {"'": "\ue000", "\\": "\ue001", "{": "\ue002", "}": "\ue003"}
"""Characters that may be escaped in a string of an intrinsic function, and placeholders for them: private use
characters, which moto's grammar accepts as letters."""
_PLACEHOLDER_BY_LINE_BREAK_OR_TAB = {"\n": "\ue004", "\r": "\ue005", "\t": "\ue006"}


def patch_intrinsic_escapes() -> None:
    """Support escapes in ``States.Format('it\\'s \\{{}\\}', $.x)``. moto cuts the string at the first escaped
    character, without an error, or takes it for a name. Allow braces in the text of a path,
    ``States.Format($.text)``. Each character is replaced by a placeholder, which moto's grammar accepts,
    before moto parses the text, and put back when it is evaluated.

    Needed by ``test_addresses_may_have_quotes_and_braces``.
    """
    # A function such as States.Format(...) is text in a state machine; a literal is a quoted argument of it.
    original_parse, original_eval = IntrinsicParser.parse, ArgumentLiteral._eval_body

    def parse_function(function_text: str) -> Any:
        with contextlib.suppress(ValueError):  # moto passes the content of the JSON string undecoded
            function_text = json.loads(f'"{function_text}"', strict=False)
        for character, placeholder in _PLACEHOLDER_BY_LINE_BREAK_OR_TAB.items():
            function_text = function_text.replace(character, placeholder)
        return original_parse(
            re.sub(r"\\(['\\{}])", lambda match: _PLACEHOLDER_BY_ESCAPED[match.group(1)], function_text)
        )

    def eval_literal(self: Any, env: Any) -> None:
        original_eval(self, env)
        if isinstance(env.stack[-1], str):
            env.stack[-1] = _replace_placeholders(env.stack[-1])

    def eval_format(self: Any, env: Any) -> None:
        """Evaluate States.Format, such as ``States.Format('step {}', $.n)``: put its text on the
        interpreter's stack (``env.stack``). ``self`` is moto's parsed call. Values replace the ``{}`` of the
        template."""
        self.argument_list.eval(env=env)
        template, *values = env.stack.pop()
        # A literal is taken as it was parsed: its evaluation has turned placeholders into braces already.
        template_argument = self.argument_list.arguments[0]
        if isinstance(template_argument, ArgumentLiteral):
            template = template_argument.definition_value
        pieces = template.split("{}")
        if len(pieces) != len(values) + 1:
            raise ValueError(f"States.Format: {len(pieces) - 1} placeholders for {len(values)} values")
        value_texts = [*map(self._to_str_repr, values), ""]  # none follows the last piece
        text = ""
        for piece, value_text in zip(pieces, value_texts, strict=True):
            text += _replace_placeholders(piece) + value_text
        env.stack.append(text)

    IntrinsicParser.parse = staticmethod(parse_function)
    ArgumentLiteral._eval_body = eval_literal
    StringFormat._eval_body = eval_format


def _replace_placeholders(text: str) -> str:
    for character, placeholder in (_PLACEHOLDER_BY_ESCAPED | _PLACEHOLDER_BY_LINE_BREAK_OR_TAB).items():
        text = text.replace(placeholder, character)
    return text


def patch_unnamed_executions() -> None:
    """Generate a name in StartExecution without one. moto names all of them None and rejects the second.

    Needed by ``test_a_map_of_nested_machines_runs_a_job_for_each``.
    """
    original = StepFunctionsParserBackend.start_execution

    def start_execution(
        self: Any, state_machine_arn: str, name: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        return original(self, state_machine_arn, name or str(uuid.uuid4()), *args, **kwargs)

    StepFunctionsParserBackend.start_execution = start_execution


def patch_stop_execution() -> None:
    """Stop the execution before StopExecution responds, and store its error and cause. moto drops both, and
    responds without the stopDate that every client reads.

    Needed by ``test_stopping_an_execution_stops_its_job``.
    """

    def stop(
        self: Any, stop_date: datetime.datetime, error: str | None = None, cause: str | None = None
    ) -> None:
        environment = _wait_for_environment(self)
        environment.set_stop(stop_date=stop_date, error=error, cause=cause)
        if isinstance(environment.program_state(), ProgramStopped):
            self.exec_status, self.stop_date = api.ExecutionStatus.ABORTED, stop_date
            self.error, self.cause = error, cause

    def stop_execution(self: Any) -> Any:
        execution = self.stepfunction_backend.describe_execution(self._get_param("executionArn"))
        if execution.exec_status == api.ExecutionStatus.RUNNING:
            now = datetime.datetime.now(tz=datetime.timezone.utc)
            execution.stop(now, self._get_param("error"), self._get_param("cause"))
        return ActionResult({"stopDate": execution.stop_date})

    Execution.stop = stop
    StepFunctionResponse.stop_execution = stop_execution


def patch_stopped_state() -> None:
    """Keep an execution ABORTED that was stopped within a Map or a Parallel. In moto the items and branches
    that were stopped with it let it fail afterwards, with a message about 'get'.

    Needed by ``test_an_execution_that_is_stopped_in_a_map_is_aborted``.
    """
    original = Environment.set_error

    def set_error(self: Any, error: Any) -> None:
        if not isinstance(self.program_state(), ProgramStopped):
            original(self, error)

    Environment.set_error = set_error


def _wait_for_environment(execution: Any) -> Any:
    """Wait for the environment of an execution, the state of moto's interpreter, and return it. The
    execution's thread creates it after the start; moto's set_stop has no effect before that."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        environment = execution.exec_worker.env
        if environment is not None and environment.program_state() is not None:
            return environment
        time.sleep(0.01)
    raise RuntimeError(f"{execution.exec_arn} did not begin within 10 s")


def patch_waits(factor: float = 1.0) -> None:
    """End the waiting of a Retry when the execution is stopped, and keep fractions of seconds in Wait.
    ``factor``: multiplies the waiting times of Wait and Retry.

    Needed by ``test_throttling_is_retried_by_the_name_that_was_chosen``.
    """
    current_thread = threading.local()
    original = retrier_decl.RetrierDecl._eval_body

    def eval_retrier(self: Any, env: Any) -> None:
        current_thread.env = env
        original(self, env)

    class RetrierClock:
        @staticmethod
        def sleep(seconds: float) -> None:
            _wait_while_running(current_thread.env, seconds * factor)

    def wait_interval(self: Any, env: Any, wait_seconds: float) -> None:
        _wait_while_running(env, wait_seconds * factor)

    retrier_decl.RetrierDecl._eval_body = eval_retrier
    retrier_decl.time = RetrierClock
    WaitFunction._wait_interval = wait_interval


def _wait_while_running(env: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    # The event is set and cleared at once, so that a waiter may miss it: so the state is polled too.
    while (
        isinstance(env.program_state(), ProgramRunning)
        and (remaining_seconds := deadline - time.monotonic()) > 0
    ):
        env.program_state_event.wait(min(remaining_seconds, _POLL_SECONDS))


def patch_map_failures() -> None:
    """Fail a distributed Map and stop its other items when more items have failed than
    ToleratedFailureCount or ToleratedFailurePercentage allow, by default none. moto uses null as their
    results and goes on.

    Needed by ``test_a_distributed_map_fails_where_more_items_fail_than_it_tolerates``.
    """
    worker = distributed_item_processor_worker.DistributedItemProcessorWorker
    original = worker._eval_job

    def eval_job(self: Any, env: Any, job: Any) -> None:
        original(self, env, job)
        record, item_count = self._map_run_record, self._job_pool._jobs_number
        failed_count = record.item_counter.failed.get() + record.item_counter.timed_out.get()
        limits = [record.tolerated_failure_count, record.tolerated_failure_percentage / 100 * item_count]
        if failed_count > min([limit for limit in limits if limit > 0], default=0):
            cause = (
                f"The specified tolerated failure threshold was exceeded: {failed_count} of {item_count} "
                "items failed"
            )
            details = api.ExecutionFailedEventDetails(error=_THRESHOLD_EXCEEDED.to_name(), cause=cause)
            event = FailureEvent(
                env=env,
                error_name=StatesErrorName(typ=_THRESHOLD_EXCEEDED),
                event_type=api.HistoryEventType.MapStateFailed,
                event_details=EventDetails(executionFailedEventDetails=details),
            )
            job.job_output = FailureEventException(event)

    worker._eval_job = eval_job


def patch_parameter_names() -> None:
    """Translate the names of parameters. State machines have those of the AWS SDK for Java,
    ``StateMachineArn``, the API's model ``stateMachineArn``; moto does not translate them, so that
    ``states:startExecution`` and ``aws-sdk:sfn`` fail. Also turn bodies of S3 objects into text and times
    into ISO 8601, for JSON.

    Needed by ``test_a_nested_execution_is_stopped_with_its_parent``.
    """
    model_session = Session()

    # Shapes are botocore's types of an operation's request and response.
    def find_operation_shape(task: Any, service: str | None, action: str | None, shape_attribute: str) -> Any:
        model = model_session.get_service_model(task._get_boto_service_name(service))
        lower_case_name = task._get_boto_service_action(action).replace("_", "")
        for operation_name in model.operation_names:
            if operation_name.lower() == lower_case_name:
                return getattr(model.operation_model(operation_name), shape_attribute)
        return None

    def normalise_parameters(
        self: Any,
        parameters: dict[str, Any],
        boto_service_name: str | None = None,
        service_action_name: str | None = None,
    ) -> None:
        input_shape = find_operation_shape(self, boto_service_name, service_action_name, "input_shape")
        if input_shape is not None:
            self._to_boto_request(
                parameters, input_shape
            )  # moto's method: it renames the parameters in place

    def normalise_response(
        self: Any,
        response: Any,
        boto_service_name: str | None = None,
        service_action_name: str | None = None,
    ) -> None:
        output_shape = find_operation_shape(self, boto_service_name, service_action_name, "output_shape")
        if output_shape is not None:
            self._from_boto_response(response, output_shape)  # in place too

    StateTaskService._normalise_parameters = normalise_parameters
    StateTaskService._normalise_response = normalise_response
    StateTaskService._from_boto_response_value = staticmethod(_json_compatible_value)
    StateTaskService._to_sfn_cased = staticmethod(lambda name: name[:1].upper() + name[1:])
    StateTaskService._SERVICE_NAME_SFN_TO_BOTO_OVERRIDES["cloudwatchlogs"] = "logs"


def _json_compatible_value(value: Any) -> Any:
    """Return a value of an AWS client's response as one that JSON can hold."""
    if isinstance(value, StreamingBody):
        value = value.read()
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, datetime.datetime):
        text = value.astimezone(datetime.timezone.utc).isoformat(timespec="milliseconds")
        return text.replace("+00:00", "Z")
    return value


def patch_error_names(custom_names: Mapping[str, str]) -> None:
    """Name errors of ``aws-sdk:`` tasks ``SageMaker.ResourceInUseException``, not ``sagemaker.``; errors that
    the service's model does not have are ``SageMaker.SageMakerException``. ``custom_names``: names by code,
    which take precedence.

    Needed by ``test_objects_are_read_and_written_in_the_endpoint_s_own_store``.
    """
    state_task_service_aws_sdk._SERVICE_ERROR_NAMES.update(SDK_NAMES)
    task = state_task_service_aws_sdk.StateTaskServiceAwsSdk
    original = task._normalise_exception_name

    def error_name(service: str, error: Any) -> Any:
        return custom_names.get(error.response["Error"]["Code"]) or original(service, error)

    task._normalise_exception_name = staticmethod(error_name)


def patch_execution_output() -> None:
    """Encode the output of an execution as JSON also when it is a string, ``"yes"`` with quotes, or null.

    Needed by ``test_a_name_that_is_taken_is_an_error_by_its_name``.
    """
    original = BaseExecutionWorkerCommunication._reflect_execution_status

    def reflect(self: Any) -> None:
        original(self)
        if self.execution.exec_status == api.ExecutionStatus.SUCCEEDED:
            self.execution.output = to_json_str(self.execution.output, separators=(",", ":"))

    BaseExecutionWorkerCommunication._reflect_execution_status = reflect


def patch_error_codes() -> None:
    """Set the codes of Step Functions' errors. Many of moto's are empty, InvalidDefinition's among them, so
    that no client raises the right exception. Explain a definition's mistakes in one sentence, and also
    reject fields that moto lacks: it would fail while it runs, with a message about 'NoneType'.

    Needed by ``test_an_integration_that_is_not_here_is_refused_at_once``.
    """
    for error_class in vars(api).values():
        if (
            isinstance(error_class, type)
            and issubclass(error_class, AWSError)
            and "code" in vars(error_class)
        ):
            # moto answers with TYPE, which many of the classes leave empty.
            error_class.TYPE = error_class.code  # type: ignore[attr-defined]

    def validate_definition(definition: str) -> None:
        """Raise InvalidDefinition unless moto can run the state machine of this JSON text: moto must be able
        to parse it, and have all its fields. ``api`` is moto's module with the errors of Step Functions."""
        try:
            AmazonStateLanguageParser.parse(definition)
        except Exception as error:
            # moto's parser lists all mistakes in ``errors``.
            cause = "; ".join(error.errors) if isinstance(error, ASLParserException) else str(error)
            message = f"Invalid State Machine Definition: '{cause or repr(error)}'"
            raise api.InvalidDefinition(message) from None
        paths_of_unsupported_fields = list(_unsupported_fields(json.loads(definition), "$"))
        if paths_of_unsupported_fields:
            supported_text = "the local endpoint runs JSONPath definitions without variables or ResultWriter"
            limitation_text = f"{supported_text}, so not {'; '.join(paths_of_unsupported_fields)}"
            raise api.InvalidDefinition(f"Invalid State Machine Definition: '{limitation_text}'")

    StepFunctionsParserBackend._validate_definition = staticmethod(validate_definition)


def _unsupported_fields(definition_part: Any, path: str) -> Iterator[str]:
    """Yield the paths in a part of a state machine's definition, itself at ``path``, that use JSONata,
    variables (Assign), or the ResultWriter of a Map, whose manifest would be empty."""
    if isinstance(definition_part, dict):
        for field_name, field_value in definition_part.items():
            is_result_writer = field_name == "ResultWriter" and "ItemProcessor" in definition_part
            is_jsonata = field_name == "QueryLanguage" and field_value == "JSONata"
            if is_result_writer or is_jsonata or field_name == "Assign":
                yield f"{path}.{field_name}"
            # In the user's own data (Parameters, Result, ...), a key named like a field is not one.
            elif field_name not in _USER_DATA_FIELDS:
                yield from _unsupported_fields(field_value, f"{path}.{field_name}")
    elif isinstance(definition_part, list):
        for index, field_value in enumerate(definition_part):
            yield from _unsupported_fields(field_value, f"{path}[{index}]")


def patch_boto_clients(create_client: Callable[[str, str, str], Any]) -> None:
    """Make tasks call this endpoint, with clients from ``create_client(role, service, region)``. moto calls
    localhost:5000 with invalid keys.

    Needed by ``test_jobs_are_described_by_the_plain_api``.
    """

    def boto_client_for(region: str, service: str, state_credentials: Any = None) -> Any:
        return create_client(state_credentials.role_arn, service, region)

    _replace_in_interpreter(boto_client.boto_client_for, boto_client_for)


def _replace_in_interpreter(old: Any, new: Callable[..., Any]) -> None:
    """Replace ``old`` in all of the interpreter's modules that have imported it. Both have the same name."""
    for name, module in list(sys.modules.items()):
        if name.startswith(_PARSER) and getattr(module, new.__name__, None) is old:
            setattr(module, new.__name__, new)
