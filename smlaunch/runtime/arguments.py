"""Hyperparameters: what they mean, and how they become words on a command line.

As AWS's training toolkit does it (environment.read_hyperparameters, params.SAGEMAKER_HYPERPARAMETERS and
mapping.to_cmd_args), with one difference: a number keeps the text it was sent as, so that ``1e-4`` or
``0.10`` reaches the script as such and not as Python would write it.

    sent as              decoded          words
    0.10                 0.1              --lr 0.10
    adam                 'adam'           --opt adam
    "0.10"               '0.10'           --opt 0.10
    true, null           True, None       --flag True, --flag ''
    [1, "a"]             [1, 'a']         --layers "[1, 'a']"
    {"b": 2, "a": 1}     {...}            --options a=1,b=2
"""

import json
from typing import Any, Dict, List, Mapping, NamedTuple, Tuple

from smlaunch.runtime.problems import Unusable

_PREFIX = "sagemaker_"
_TUNING_METRIC = "_tuning_objective_metric"
_DEFAULT_MODULE = "default_user_module_name"

_TOOLKIT_OWN = frozenset(
    _PREFIX + name
    for name in (
        *("program", "submit_directory", "enable_cloudwatch_metrics", "region", "container_log_level"),
        *("job_name", "s3_output"),
    )
) | {_TUNING_METRIC, _DEFAULT_MODULE}
"""Control words of the toolkit and of automatic tuning, which a script never sees as arguments."""


class Hyperparameters(NamedTuple):
    """``values`` are the user's own, decoded; ``texts`` the same as they were sent; ``framework`` those that
    steer AWS's toolkit (``sagemaker_...``) and that it hands on as SM_FRAMEWORK_PARAMS.
    """

    values: Dict[str, Any]
    texts: Dict[str, str]
    framework: Dict[str, Any]

    def words(self) -> List[str]:
        """``--key value ...``, keys sorted, ``-k`` for a key of one letter."""
        return [word for _, pair in self.named_words() for word in pair]

    def named_words(self) -> List[Tuple[str, Tuple[str, str]]]:
        """The same, each pair of words with the key it comes from."""
        return [
            (key, (_option(key), _word(self.values[key], self.texts[key]))) for key in sorted(self.values)
        ]


def read(path: str) -> Hyperparameters:
    """A missing file is the same as no hyperparameters. Raises Unusable."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
    except FileNotFoundError:
        document = {}
    except (OSError, ValueError) as error:
        raise Unusable("{}: cannot be read: {}".format(path, error)) from None
    if not isinstance(document, dict):
        raise Unusable("{}: not a JSON object".format(path))
    return decode(document)


def decode(sent: Mapping[str, Any]) -> Hyperparameters:
    values: Dict[str, Any] = {}
    texts: Dict[str, str] = {}
    framework: Dict[str, Any] = {}
    for key, raw in sent.items():
        value, text = _decoded(raw)
        if key in _TOOLKIT_OWN:
            continue
        if key.startswith(_PREFIX):
            framework[key] = value
        else:
            values[key], texts[key] = value, text
    return Hyperparameters(values, texts, framework)


def _decoded(raw: Any) -> Tuple[Any, str]:
    if not isinstance(raw, str):
        return raw, str(raw)
    try:
        return json.loads(raw), raw
    except (ValueError, RecursionError):
        return raw, raw


def _option(key: str) -> str:
    if not key:
        return ""
    return "--" + key if len(key) > 1 else "-" + key


def _word(value: Any, text: str) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join("{}={}".format(key, value[key]) for key in sorted(value))
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return text
    return str(value)
