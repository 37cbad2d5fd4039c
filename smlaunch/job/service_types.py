"""Types of fields whose values only the service can look up: keys, plans and functions of the account, and
the regular expressions that it applies."""

from __future__ import annotations

import re
from functools import partial
from typing import Annotated

from smlaunch.api.validation.java_patterns import python_metric_pattern
from smlaunch.contract.secret_reference import REFERENCE_PATTERN, parse_secret_reference
from smlaunch.job.field_types import NonEmptyText, integer_from
from smlaunch.job.sections import FieldError, FieldRule

_KMS_KEY = r"[a-zA-Z0-9:/_-]{1,2048}"
_KMS_ARN = r"arn:[a-z-]+:kms:[a-z0-9-]+:[0-9]{12}:(key|alias)/.+"
_TRAINING_PLAN = r"arn:aws[a-z-]*:sagemaker:[a-z0-9-]+:[0-9]{12}:training-plan/\S+"
_OUTPUT_PATH = r"^/opt/ml/processing(/[^/]+)+/?$"
_RELATIVE_STEP = r"/\.{1,2}(/|$)"
_OWN_FOLDER = r"^/opt/ml/processing/(input|output)(/|$)"
_LAMBDA_FUNCTION = r"arn:[A-Za-z0-9-]+:lambda:[A-Za-z0-9-]+:[0-9]{12}:function:\S+"


def _check_form(pattern: str, needed: str, text: str) -> str:
    if not re.fullmatch(pattern, text):
        raise FieldError(f"{{}} is not {needed}", repr(text))
    return text


def _check_kms_key(text: str) -> str:
    is_wrong_arn = text.startswith("arn:") and not re.fullmatch(_KMS_ARN, text)
    if is_wrong_arn or not re.fullmatch(_KMS_KEY, text):
        raise FieldError(
            "{} is not a KMS key; write its id, its ARN (arn:aws:kms:REGION:ACCOUNT:key/ID), or alias/NAME",
            repr(text),
        )
    return text


def _check_metric_regex(text: str) -> str:
    try:
        compiled = re.compile(python_metric_pattern(text))
    except re.error as error:
        if str(error).startswith("bad escape \\"):  # one of Java's that smlaunch does not know
            return text
        raise FieldError(f"{{}} is not a regular expression: {error}", repr(text)) from None
    if not compiled.groups:
        raise FieldError("{} has no group; put the number in parentheses, such as loss=([0-9.]+)", repr(text))
    return text


def _check_output_path(text: str) -> str:
    if not re.search(_OUTPUT_PATH, text) or re.search(_RELATIVE_STEP, text):
        raise FieldError("{} is no folder below /opt/ml/processing, where outputs are", repr(text))
    if re.search(_OWN_FOLDER, text):
        raise FieldError(
            "{} is where inputs, or the job's own output, are; name another folder below /opt/ml/processing",
            repr(text),
        )
    return text


def _check_secret_reference(text: str) -> str:
    if parse_secret_reference(text) is None:
        # Without the text, which may be the secret itself.
        raise FieldError(
            "it is no reference to a secret; write secretsmanager:NAME-or-ARN or ssm:NAME, never the value"
        )
    return text


def _arn_rule(pattern: str, needed: str) -> FieldRule:
    return FieldRule(partial(_check_form, pattern, needed), {"pattern": f"^{pattern}$"})


KmsKey = Annotated[NonEmptyText, FieldRule(_check_kms_key, {"pattern": f"^{_KMS_KEY}$"})]
TrainingPlanArn = Annotated[
    NonEmptyText,
    _arn_rule(
        _TRAINING_PLAN,
        "the ARN of a training plan, such as arn:aws:sagemaker:REGION:ACCOUNT:training-plan/NAME",
    ),
]
LambdaArn = Annotated[
    NonEmptyText,
    _arn_rule(
        _LAMBDA_FUNCTION,
        "the ARN of a Lambda function, such as arn:aws:lambda:REGION:ACCOUNT:function:NAME",
    ),
]
SecretReferenceText = Annotated[
    NonEmptyText, FieldRule(_check_secret_reference, {"pattern": f"^({REFERENCE_PATTERN})$"})
]
OutputPath = Annotated[
    NonEmptyText,
    FieldRule(
        _check_output_path,
        {"pattern": _OUTPUT_PATH, "not": {"pattern": f"{_RELATIVE_STEP}|{_OWN_FOLDER}"}},
    ),
]
MetricRegex = Annotated[NonEmptyText, FieldRule(_check_metric_regex)]
RetryCount = Annotated[int, integer_from(1, 30)]
