"""What a script's text shows that may break an exact resume: only a hint, to name a likely cause by its line.

The text is parsed and never run.
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
class Hints:
    """Where what stands, as ``train.py:12 random.random``; each kind by itself, in the order of lines."""

    schedulers: tuple[str, ...] = ()
    scalers: tuple[str, ...] = ()
    averages: tuple[str, ...] = ()
    random: tuple[str, ...] = ()
    loaders: tuple[str, ...] = ()
    uses_torch: bool = False


def look(text: str, name: str) -> Hints:
    """Nothing is found in a text that is no Python."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return Hints()
    calls = [
        (node.lineno, ast.unparse(node.func), node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, (ast.Name, ast.Attribute))
    ]
    calls.sort(key=lambda call: call[0])

    def found(pattern: re.Pattern[str]) -> tuple[str, ...]:
        return tuple(f"{name}:{line} {called}" for line, called, _ in calls if pattern.search(called))

    own = tuple(
        f"{name}:{line} {called}"
        for line, called, node in calls
        if _RANDOM.search(called) and all(keyword.arg != "generator" for keyword in node.keywords)
    )
    torch = re.search(r"^\s*(import|from) torch\b", text, re.MULTILINE) is not None
    return Hints(found(_SCHEDULER), found(_SCALER), found(_AVERAGE), own, found(_LOADER), torch)
