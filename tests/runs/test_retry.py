from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.aws.interfaces import UNREACHABLE, CallError
from smlaunch.aws.service_errors import BackoffPolicy, call_with_retries, is_role_not_ready_yet, to_user_error
from smlaunch.errors import AccountError, EndpointError, JobError, ServiceError

QUOTA = (
    "The account-level service limit 'ml.p4d.24xlarge for training job usage' is {limit} Instances, "
    "with current utilization of {used} Instances and a request delta of {delta} Instances."
)


def raise_next(errors: list[CallError]) -> str:
    if errors:
        raise errors.pop(0)
    return "done"


def test_transient_errors_are_retried_with_growing_waits() -> None:
    errors = [CallError("CreateTrainingJob", "ThrottlingException", "Rate exceeded", 400) for _ in range(4)]
    waits: list[float] = []
    reported_waits: list[float] = []
    answer = call_with_retries(
        lambda: raise_next(errors),
        BackoffPolicy(first_seconds=1, max_seconds=5, total_seconds=100),
        sleep=waits.append,
        random_fraction=lambda: 1.0,
        on_retry=lambda _, seconds: reported_waits.append(seconds),
    )
    assert answer == "done"
    assert waits == reported_waits == [1, 2, 4, 5]


@pytest.mark.parametrize("code", ["ValidationException", "AccessDeniedException", "ResourceLimitExceeded"])
def test_a_refusal_is_not_repeated(code: str) -> None:
    waits: list[float] = []
    with pytest.raises(CallError):
        call_with_retries(
            lambda: raise_next([CallError("CreateTrainingJob", code, "no", 400)] * 2), sleep=waits.append
        )
    assert waits == []


def test_any_fault_of_the_service_is_transient_whatever_its_name() -> None:
    assert (
        call_with_retries(
            lambda: "x" if recorded_waits else raise_next([CallError("X", "Odd", "?", 503)]),
            sleep=record_wait,
        )
        == "x"
    )


recorded_waits: list[float] = []
record_wait = recorded_waits.append


def test_a_new_role_is_waited_for_a_minute() -> None:
    error = CallError(
        "CreateTrainingJob", "ValidationException", "Could not assume role arn:aws:iam::1:role/x.", 400
    )
    waits: list[float] = []
    with pytest.raises(CallError):
        call_with_retries(
            lambda: raise_next([error] * 1000), sleep=waits.append, random_fraction=lambda: 0.999
        )
    assert sum(waits) == pytest.approx(60)


@given(st.floats(0, 1, exclude_max=True), st.integers(1, 10_000), st.floats(0, 600))
def test_waits_stay_within_their_limits(rng: float, tries: int, waited: float) -> None:
    patience = BackoffPolicy(first_seconds=1, max_seconds=30, total_seconds=300)
    delay = patience.next_delay(tries, waited, rng)
    if waited >= 300:
        assert delay is None
    else:
        assert delay is not None and 0 < delay <= min(30, 300 - waited)


def translate(code: str, message: str, operation: str = "CreateTrainingJob", status: int = 400) -> Exception:
    return to_user_error(CallError(operation, code, message, status), "eu-west-1")


@pytest.mark.parametrize(
    ("code", "message", "kind", "expected_text"),
    [
        (
            "AccessDeniedException",
            "User x is not authorized",
            AccountError,
            "allow the caller sagemaker:Create",
        ),
        (
            "AccessDeniedException",
            "not authorized to perform: iam:PassRole on y",
            AccountError,
            "iam:PassRole on the",
        ),
        (
            "ExpiredTokenException",
            "The security token is expired",
            AccountError,
            "have expired; name a profile",
        ),
        ("UnrecognizedClientException", "The token is invalid", AccountError, "add --local"),
        ("NoCredentials", "Unable to locate credentials", AccountError, "aws configure"),
        ("ThrottlingException", "Rate exceeded", ServiceError, "same name continues from here"),
        ("ValidationException", "bad image", JobError, "bad image"),
        (UNREACHABLE, "Could not connect", ServiceError, "check the network"),
    ],
)
def test_messages_name_cause_and_next_step(
    code: str, message: str, kind: type[Exception], expected_text: str
) -> None:
    error = translate(code, message)
    assert type(error) is kind
    assert expected_text in str(error)


def test_denied_deployments_name_the_permission() -> None:
    no_trust = (
        "Neither the global service principal states.amazonaws.com, nor the regional one is authorized to "
        "assume the provided role."
    )
    for service_message, hint in (
        ("User x is not authorized", "allow the caller states:CreateStateMachine"),
        ("User x is not authorized to perform: iam:PassRole on y", "iam:PassRole on the machine's role"),
        (no_trust, "trust.json"),
    ):
        error = CallError("CreateStateMachine", "AccessDeniedException", service_message, 400)
        assert hint in str(to_user_error(error, "eu-west-1"))
        assert is_role_not_ready_yet(error) == (service_message == no_trust)


def test_a_quota_that_can_never_fit_and_one_that_is_used_up() -> None:
    never_fits = translate("ResourceLimitExceeded", QUOTA.format(limit=1, used=0, delta=2))
    fits_later = translate("ResourceLimitExceeded", QUOTA.format(limit=4, used=3, delta=2))
    assert isinstance(never_fits, AccountError) and "fewer --hosts" in str(never_fits)
    assert isinstance(fits_later, AccountError) and "wait until running jobs end" in str(fits_later)
    assert "'ml.p4d.24xlarge for training job usage' is 4, of which 3 are in use" in str(fits_later)


def test_a_gone_endpoint_is_reported() -> None:
    error = to_user_error(
        CallError("ListTrainingJobs", UNREACHABLE, "refused"), "the local endpoint at http://127.0.0.1:1"
    )
    assert isinstance(error, EndpointError)
    assert "smlaunch local status" in str(error)


def test_an_endpoint_of_this_machine_that_is_gone_is_waited_for_some_seconds() -> None:
    waits: list[float] = []

    def refuse_connection() -> None:
        message = 'Could not connect to the endpoint URL: "http://127.0.0.1:1234/"'
        raise CallError("DescribeTrainingJob", UNREACHABLE, message)

    with pytest.raises(CallError) as caught:
        call_with_retries(refuse_connection, sleep=waits.append, random_fraction=lambda: 1.0)
    assert sum(waits) == 5
    error_text = str(to_user_error(caught.value, "the local endpoint at http://127.0.0.1:1234"))
    assert "`smlaunch local start` starts it" in error_text
