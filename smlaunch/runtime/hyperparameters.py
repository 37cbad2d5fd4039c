"""Decode hyperparameters and convert them to command-line arguments.

As AWS's training toolkit does it (environment.read_hyperparameters, params.SAGEMAKER_HYPERPARAMETERS and
mapping.to_cmd_args), with one difference: a number keeps the text it was sent as, so that ``1e-4`` or
``0.10`` reaches the script as such and not as Python would write it.

    sent as              decoded          arguments
    0.10                 0.1              --lr 0.10
    adam                 'adam'           --opt adam
    "0.10"               '0.10'           --opt 0.10
    true, null           True, None       --flag True, --flag ''
    [1, "a"]             [1, 'a']         --layers "[1, 'a']"
    {"b": 2, "a": 1}     {...}            --options a=1,b=2

The script's own flags, such as those that argparse stores as true, are a second difference: where job.json
names them, true becomes ``--flag`` alone and false nothing.
"""

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from smlaunch.runtime.errors import SetupError

_SAGEMAKER_TOOLKIT_PREFIX = "sagemaker_"
_TUNING_METRIC = "_tuning_objective_metric"
_DEFAULT_MODULE = "default_user_module_name"

_SAGEMAKER_TOOLKIT_KEYS = frozenset(
    _SAGEMAKER_TOOLKIT_PREFIX + name
    for name in (
        *("program", "submit_directory", "enable_cloudwatch_metrics", "region", "container_log_level"),
        *("job_name", "s3_output"),
    )
) | {_TUNING_METRIC, _DEFAULT_MODULE}
"""Keys of the toolkit and of automatic tuning: no script gets them as arguments."""


class Hyperparameters(NamedTuple):
    """The hyperparameters of the job."""

    values: Dict[str, Any]
    """The user's own, decoded."""

    raw_texts: Dict[str, str]
    """The same, as they were sent."""

    framework_params: Dict[str, Any]
    """Those that control AWS's toolkit (``sagemaker_...``); ranks get them as SM_FRAMEWORK_PARAMS."""

    flags: Mapping[str, str] = {}
    """Keys of the script's flags, by job.json, each with the option that states the opposite, or nothing."""

    def to_args(self) -> List[str]:
        """``--key value ...``, keys sorted; ``-k`` for a key of one letter."""
        return [argument for _, option in self.to_named_args() for argument in option]

    def to_named_args(self) -> List[Tuple[str, Tuple[str, ...]]]:
        """Key, and the arguments that it becomes, in the order of keys."""
        return [(key, self._args_of(key)) for key in sorted(self.values)]

    def _args_of(self, key: str) -> Tuple[str, ...]:
        """Return the command-line arguments for a hyperparameter: ``--key value``. For a flag of the script
        only ``--key`` if it is true; if it is false, the opposite option (``--no-key``) or nothing.
        """
        value = self.values[key]
        lower_text = str(value).lower()
        if key not in self.flags or lower_text not in ("true", "false"):
            return _option_name(key), _format_argument_value(value, self.raw_texts[key])
        if lower_text == "true":
            return (_option_name(key),)
        opposite_option = self.flags[key]
        return (opposite_option,) if opposite_option else ()


def read_hyperparameters(path: str) -> Hyperparameters:
    """Return the job's hyperparameters from hyperparameters.json; none without the file. Raises
    SetupError.
    """
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError) as error:
        raise SetupError("{}: cannot be read: {}".format(path, error)) from None
    if not isinstance(document, dict):
        raise SetupError("{}: not a JSON object".format(path))
    return decode_hyperparameters(document)


def decode_hyperparameters(encoded: Mapping[str, Any]) -> Hyperparameters:
    """Return the hyperparameters of a job: the user's own, decoded and as they were sent, and the settings
    ``sagemaker_...`` for frameworks. Keys that are for AWS's toolkit itself, such as ``sagemaker_program``,
    are left out. ``encoded``: values as the service passes them, text or JSON.
    """
    values: Dict[str, Any] = {}
    raw_texts: Dict[str, str] = {}
    framework_params: Dict[str, Any] = {}
    for key, encoded_value in encoded.items():
        value, raw_text = _decode_value(encoded_value)
        if key in _SAGEMAKER_TOOLKIT_KEYS:
            continue
        if key.startswith(_SAGEMAKER_TOOLKIT_PREFIX):  # for a framework's container
            framework_params[key] = value
        else:
            values[key], raw_texts[key] = value, raw_text
    return Hyperparameters(values, raw_texts, framework_params)


def _decode_value(encoded: Any) -> Tuple[Any, str]:
    """Return the decoded value, and the text as it was sent."""
    if not isinstance(encoded, str):
        return encoded, str(encoded)
    try:
        return json.loads(encoded), encoded
    except (ValueError, RecursionError):
        return encoded, encoded


def _option_name(key: str) -> str:
    if not key:
        return ""
    return "--" + key if len(key) > 1 else "-" + key


def _format_argument_value(value: Any, raw_text: str) -> str:
    """Return a hyperparameter as a command-line argument, as AWS's toolkit formats it; a number keeps the
    text ``raw_text`` that it was sent as.
    """
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join("{}={}".format(key, value[key]) for key in sorted(value))
    if isinstance(value, (int, float)) and not isinstance(value, bool):  # bool is a subclass of int
        return raw_text
    return str(value)
