from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Any

import pytest

from smlaunch.local.jobs import states
from smlaunch.local.jobs.control import JobControl
from smlaunch.local.jobs.states import JobState


def test_a_full_disk_ends_no_job_on_its_way() -> None:
    stored: list[str] = []
    full = True

    def save(state: JobState, result: Mapping[str, Any] | None) -> None:
        if full:
            raise sqlite3.OperationalError("database or disk is full")
        stored.append(state.secondary)

    control = JobControl(states.begin(0.0), save, 1.0, None)
    control.go("Downloading")
    control.go("Training")
    control.upload()
    assert control.state.secondary == "Uploading"
    with pytest.raises(sqlite3.OperationalError):
        control.end(None, {})
    full = False
    assert control.end(None, {}).status == "Completed"
    assert stored == ["Completed"]
    control.close()
