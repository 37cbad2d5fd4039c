"""Finds calls in a script that may break an exact resume, to name a likely cause by its line.

The text is parsed and never executed.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

_SCHEDULER = re.compile(r"(^|\.)(lr_scheduler\.\w+|\w+LR|OneCycleLR|get_\w*schedule\w*)$")
_SCALER = re.compile(r"(^|\.)GradScaler$")
_AVERAGE = re.compile(r"(^|\.)(AveragedModel|ExponentialMovingAverage|EMA|ModelEMA)$")
_RANDOM = re.compile(
    r"^(random\.(?!Random$|seed$|SystemRandom$)\w+|(np|numpy)\.random\.(?!default_rng$|Generator$|seed$)\w+"
    r"|torch\.(rand|randn|randint|rand_like|randn_like|randperm|normal|bernoulli|multinomial)"
    r"|(v2|transforms|T)\.Random\w+)$"
)
_LOADER = re.compile(r"(^|\.)DataLoader$")


@dataclass(frozen=True)
class LintFindings:
    """Calls by kind, in the order of lines, as ``train.py:12 random.random``."""

    schedulers: tuple[str, ...] = ()
    scalers: tuple[str, ...] = ()
    moving_averages: tuple[str, ...] = ()
    random_calls: tuple[str, ...] = ()
    data_loaders: tuple[str, ...] = ()
    uses_torch: bool = False


def lint_script(text: str, name: str) -> LintFindings:
    """Return the calls in a script's text that may break an exact resume; none for a text that is not Python.
    ``name``: of the script's file, for the findings."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return LintFindings()
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))
    ]
    calls.sort(key=lambda call: call.lineno)
    calls_without_generator = [
        call for call in calls if all(keyword.arg != "generator" for keyword in call.keywords)
    ]

    def find_calls(callee_pattern: re.Pattern[str], searched_calls: list[ast.Call]) -> tuple[str, ...]:
        callees = [(call.lineno, ast.unparse(call.func)) for call in searched_calls]
        return tuple(f"{name}:{line} {callee}" for line, callee in callees if callee_pattern.search(callee))

    return LintFindings(
        schedulers=find_calls(_SCHEDULER, calls),
        scalers=find_calls(_SCALER, calls),
        moving_averages=find_calls(_AVERAGE, calls),
        random_calls=find_calls(_RANDOM, calls_without_generator),
        data_loaders=find_calls(_LOADER, calls),
        uses_torch=re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE) is not None,
    )
