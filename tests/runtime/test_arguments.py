"""Hyperparameters and variables arrive exactly, or are refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.runtime import hyperparameters
from tests.runtime.host import Host

MakeHost = Callable[..., Host]

HOSTILE = (
    *("", " ", "  two  ", "\t", "\n", "a\nb\r\nc", "\\", "\\n", "\\\\server\\share", "%s %d", "{x}", "${x}"),
    *(
        "'",
        '"',
        "''",
        "it's",
        'say "no"',
        "`id`",
        "$(id)",
        "$HOME",
        "; rm -rf /",
        "&& id",
        "| cat",
        "> /tmp/x",
    ),
    *(
        "*",
        "?",
        "[a-z]",
        "~",
        "~root",
        "!",
        "!!",
        "#",
        "#!/bin/sh",
        "-",
        "--",
        "--help",
        "-x",
        "=",
        "a=b",
        ",",
    ),
    *("é", "日本語", "🦀", "e\u0301", "\u202eabc", "\ufeff", "\u0000x"[1:], "\x1b[31mred", "\x7f", "\x01"),
    *(
        "true",
        "None",
        "nan",
        "NaN",
        "Infinity",
        "1e999",
        "0x10",
        "007",
        "1_000",
        "+1",
        ".5",
        "1.",
        "-0",
        "1e-4",
    ),
    *("0.10", " 1 ", "12345678901234567890123", "[", "{", '"', "{'a': 1}", "[1,", "null ", "a" * 2500),
)

NAMES = (
    *(
        "lr",
        "a",
        "learning-rate",
        "model.lr",
        "a b",
        "a=b",
        "日本",
        "'",
        '"',
        "$x",
        "; id",
        "-x",
        "--x",
        "%s",
        "*",
    ),
    *("PATH", "UPPER", "0", "x\ny", "a/b", "é", "🦀", "a:b", "sm_x", "x" * 256),
)

PRINT_ARGUMENTS = """
import json, os, sys
hps = {k: v for k, v in os.environ.items() if k.startswith("SM_HP_")}
print(json.dumps({"argv": sys.argv[1:], "hps": json.loads(os.environ["SM_HPS"]), "variables": hps}))
"""


def encode_value(value: Any) -> str:
    """Encode a value as the client does: text stays as it is unless JSON would read it as another type."""
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return value if isinstance(read, (int, float)) and not isinstance(read, bool) else json.dumps(value)


def test_every_hostile_value_arrives_exactly(make_host: MakeHost) -> None:
    sent = {f"k{index:03d}": encode_value(value) for index, value in enumerate(HOSTILE)}
    output = make_host(PRINT_ARGUMENTS, hyperparameters=sent).run().documents()[0]
    values = dict(zip(output["argv"][::2], output["argv"][1::2], strict=True))
    assert values == {f"--k{index:03d}": value for index, value in enumerate(HOSTILE)}
    assert len(HOSTILE) >= 40


def test_every_hostile_name_arrives_exactly(make_host: MakeHost) -> None:
    output = make_host(PRINT_ARGUMENTS, hyperparameters=dict.fromkeys(NAMES, "v")).run().documents()[0]
    options = sorted(NAMES)
    assert output["argv"][::2] == ["--" + name if len(name) > 1 else "-" + name for name in options]
    assert set(output["hps"]) == set(NAMES)
    # A name that cannot be a variable's name is missing among the variables only.
    names = {*NAMES, *(name.replace("-", "_") for name in NAMES)}
    assert set(output["variables"]) == {"SM_HP_" + name.upper() for name in names if "=" not in name}


def test_a_dash_becomes_an_underscore_too_unless_that_is_another_name(make_host: MakeHost) -> None:
    """The toolkit keeps the dash, SDK v3's drivers replace it, and a shell can read only the underscore."""
    output = (
        make_host(PRINT_ARGUMENTS, hyperparameters={"a-b": "dash", "a_b": "line", "c-d": "dash"})
        .run()
        .documents()[0]
    )
    assert output["variables"] == {
        "SM_HP_A-B": "dash",
        "SM_HP_A_B": "line",
        "SM_HP_C-D": "dash",
        "SM_HP_C_D": "dash",
    }


def test_every_hostile_value_arrives_through_the_environment(make_host: MakeHost) -> None:
    sent = {f"MINE_{index}": value for index, value in enumerate(HOSTILE)}
    train = (
        "import json, os\nprint(json.dumps({k: v for k, v in os.environ.items() if k.startswith('MINE_')}))"
    )
    assert make_host(train, environ=sent).run().documents()[0] == sent


def test_bytes_that_are_no_utf8_come_out_as_they_went_in(make_host: MakeHost) -> None:
    train = "import os\nprint(os.environb[b'ODD'].hex())"
    assert make_host(
        train, environ={"ODD": b"\xff\xfe\x80".decode("utf-8", "surrogateescape")}
    ).run().lines == ["[0] fffe80"]


@pytest.mark.parametrize("value", ["a\0b", "half \ud83e pair"])
def test_what_no_argument_can_carry_is_refused_by_name(make_host: MakeHost, value: str) -> None:
    host = make_host(PRINT_ARGUMENTS, hyperparameters={"fine": "1", "name-of-it": value})
    result = host.run()
    assert result.exit_code == 2
    assert "hyperparameter 'name-of-it'" in result.stderr
    assert "name-of-it" in host.failure


@pytest.mark.parametrize(
    ("sent", "word"),
    [
        ("true", "True"),
        ("false", "False"),
        ("null", ""),
        ('"true"', "true"),
        ('"0.10"', "0.10"),
        ("0.10", "0.10"),
        ('[1, "a", null, true, 0.10]', "[1, 'a', None, True, 0.1]"),
        ('{"b": 2, "a": [1], "c": null}', "a=[1],b=2,c=None"),
        ("adam", "adam"),
        ('"with \\"quotes\\""', 'with "quotes"'),
    ],
)
def test_values_become_words_as_the_toolkit_makes_them(sent: str, word: str) -> None:
    assert hyperparameters.decode_hyperparameters({"key": sent}).to_args() == ["--key", word]


def test_control_words_of_the_toolkit_are_not_arguments() -> None:
    read = hyperparameters.decode_hyperparameters(
        {
            "sagemaker_program": "x.py",
            "_tuning_objective_metric": "acc",
            "sagemaker_mpi_enabled": "true",
            "b": "1",
            "a": "2",
        }
    )
    assert read.to_args() == ["-a", "2", "-b", "1"]
    assert read.framework_params == {"sagemaker_mpi_enabled": True}


@given(st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=30), max_size=5))
def test_any_text_is_read_back_as_it_was(values: dict[str, str]) -> None:
    own = {key: value for key, value in values.items() if not key.startswith(("sagemaker_", "_tuning"))}
    words = hyperparameters.decode_hyperparameters(
        {key: encode_value(value) for key, value in own.items()}
    ).to_args()
    assert words[1::2] == [own[key] for key in sorted(own)]
