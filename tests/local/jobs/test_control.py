from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import pytest

from smlaunch.local.jobs import job_state
from smlaunch.local.jobs.job_control import JobControl
from smlaunch.local.jobs.job_state import JobState


def test_a_full_disk_ends_no_job_on_its_way() -> None:
    stored: list[str] = []
    full = True

    def save(state: JobState, result: Mapping[str, Any] | None) -> None:
        if full:
            raise sqlite3.OperationalError("database or disk is full")
        stored.append(state.secondary)

    control = JobControl(job_state.initial_state(0.0), save, 1.0, None)
    control.move_to_status("Downloading")
    control.move_to_status("Training")
    control.move_to_uploading()
    assert control.state.secondary == "Uploading"
    with pytest.raises(sqlite3.OperationalError):
        control.finish(None, {})
    full = False
    assert control.finish(None, {}).status == "Completed"
    assert stored == ["Completed"]
    control.close()
