"""Fetch the secrets that job.json refers to. Their values are variables of the ranks, and nothing else."""

import base64
import json
from typing import Dict, Iterator, Mapping, Optional, Sequence, Set, Tuple

from smlaunch.contract.secret_reference import SECRETS_MANAGER, SecretReference, parse_secret_reference
from smlaunch.runtime.errors import SetupError

MASK = "****"
_SHORTEST_MASKED = 4
"""Characters. A shorter value would be found in ordinary words."""

_NOT_FOUND_CODES = ("ResourceNotFoundException", "ParameterNotFound")

_masked_texts: Set[str] = set()
"""What the values of this host's secrets look like in its output."""


def fetch_secrets(references: Sequence[Tuple[str, str]], environ: Mapping[str, str]) -> Dict[str, str]:
    """Return the values of secrets by the variable's name. ``references``: name and reference of each.
    Raises SetupError for the first one that cannot be read."""
    if not references:
        return {}
    from smlaunch.runtime.aws_call import AwsCallError  # loads HTTP, which most jobs need not

    values = {}
    for name, text in references:
        reference = parse_secret_reference(text)
        if reference is None:
            raise SetupError("secrets.{}: {!r} is no reference to a secret".format(name, text))
        try:
            value = _fetch_secret(reference, environ)
        except AwsCallError as error:
            hint = ""
            if error.code.startswith("AccessDenied"):
                hint = "; the job's role needs {} for it".format(reference.permission)
            elif error.code in _NOT_FOUND_CODES:
                hint = "; check its name, and whose region and account it is in"
            text = "secrets.{}: {} cannot be read: {}{}".format(name, text, error, hint)
            raise SetupError(text) from None
        if value is None or "\0" in value:
            raise SetupError(
                "secrets.{}: {} holds bytes that are no text, which no variable can".format(name, text)
            )
        values[name] = value
    _masked_texts.update(text for value in values.values() for text in _shown_forms(value))
    return values


def mask_fetched_values(text: str) -> str:
    """Return a text of the runtime's own, such as the reason of a failure, without the values of secrets."""
    for masked_text in sorted(_masked_texts, key=len, reverse=True):
        text = text.replace(masked_text, MASK)
    return text


def _shown_forms(value: str) -> Iterator[str]:
    """Yield what stands for a value in a text: the value and each of its lines, because output is read by
    lines, without the blanks around them, and as Python and JSON quote it."""
    for part in (value, *value.splitlines()):
        shown_part = part.strip()
        if len(shown_part) >= _SHORTEST_MASKED:
            yield shown_part
            yield repr(shown_part)[1:-1]
            yield json.dumps(shown_part)[1:-1]


def _fetch_secret(reference: SecretReference, environ: Mapping[str, str]) -> Optional[str]:
    """Return the value; None if it is no text. Raises AwsCallError."""
    from smlaunch.runtime.aws_call import call_json_service

    if reference.service != SECRETS_MANAGER:
        parameters = {"Name": reference.id, "WithDecryption": True}
        answer = call_json_service("ssm", "AmazonSSM.GetParameter", parameters, reference.region, environ)
        return str(answer["Parameter"]["Value"])
    answer = call_json_service(
        "secretsmanager",
        "secretsmanager.GetSecretValue",
        {"SecretId": reference.id},
        reference.region,
        environ,
    )
    if "SecretString" in answer:
        return str(answer["SecretString"])
    try:
        return base64.b64decode(answer["SecretBinary"]).decode()
    except UnicodeDecodeError:
        return None
