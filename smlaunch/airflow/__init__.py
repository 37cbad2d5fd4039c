"""smlaunch in Airflow (extra ``smlaunch[airflow]``): an operator, its trigger, and ``@task.smlaunch``.

``run_ids`` and ``start_action`` are pure and ``task_runs`` knows only smlaunch, so that a try's actions are
tested without Airflow; ``operators``, ``triggers`` and ``decorators`` are Airflow's interface to them.
"""

from __future__ import annotations

from typing import Any

_MODULE_BY_NAME = {"SmlaunchOperator": "operators", "SmlaunchTrigger": "triggers"}
__all__ = ["SmlaunchOperator", "SmlaunchTrigger"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_MODULE_BY_NAME[name]}"), name)
