"""smlaunch in Airflow (extra ``smlaunch[airflow]``): an operator, its trigger, and ``@task.smlaunch``.

``names`` and ``tries`` are pure and ``driving`` knows only smlaunch, so that what a try does is tested
without Airflow; ``operators``, ``triggers`` and ``decorators`` are what Airflow sees of it.
"""

from __future__ import annotations

from typing import Any

_WHERE = {"SmlaunchOperator": "operators", "SmlaunchTrigger": "triggers"}
__all__ = ["SmlaunchOperator", "SmlaunchTrigger"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)
