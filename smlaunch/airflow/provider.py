"""Information for Airflow's provider manager (entry point ``apache_airflow_provider``)."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    return {
        "package-name": "smlaunch",
        "name": "smlaunch",
        "description": "Distributed training on Amazon SageMaker, chains included, as one task.",
        "task-decorators": [
            {"name": "smlaunch", "class-name": "smlaunch.airflow.decorators.smlaunch_task"},
        ],
    }
