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
    """Return the findings in a script's text; none for a text that is not Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return LintFindings()
    calls = [
        (node.lineno, ast.unparse(node.func), node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))
    ]
    calls.sort(key=lambda call: call[0])

    def matching_calls(pattern: re.Pattern[str]) -> tuple[str, ...]:
        return tuple(f"{name}:{line} {called}" for line, called, _ in calls if pattern.search(called))

    random_calls = tuple(
        f"{name}:{line} {callee}"
        for line, callee, node in calls
        if _RANDOM.search(callee) and all(keyword.arg != "generator" for keyword in node.keywords)
    )
    uses_torch = re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE) is not None
    return LintFindings(
        matching_calls(_SCHEDULER),
        matching_calls(_SCALER),
        matching_calls(_AVERAGE),
        random_calls,
        matching_calls(_LOADER),
        uses_torch,
    )
