"""A run in parts: every part an execution of the same machine, each with its own data."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smlaunch.errors import EXIT_TRAINING_FAILED, JobError
from smlaunch.export.flow import ERRORS, flow_of
from smlaunch.export.policies import permissions
from smlaunch.export.step_functions import FILE, export_step_functions
from smlaunch.planning.workflow import Ending
from tests.export.played import RUN, Fate, Service, by_machine
from tests.planning.test_carry import SKEWED, facts, job, world
from tests.planning.world import plan

PLAN = plan(job(), world(facts(SKEWED)))
MACHINE: dict[str, Any] = json.loads(export_step_functions(PLAN, "parts")[FILE])


def played(*fates: Fate) -> tuple[Service, str | None]:
    service = Service(fates, PLAN.job_hash, keeps=False)
    return service, by_machine(MACHINE, service).error


def test_every_part_is_a_run_with_its_own_manifest() -> None:
    service, error = played()
    assert error is None
    assert service.executions == [RUN, *(f"{RUN}-p{number}" for number in range(1, 5))]
    for part, made in zip(PLAN.parts, service.made, strict=True):
        wanted = part.tasks[0].request
        assert made["TrainingJobName"] == wanted["TrainingJobName"].replace("digits", RUN)
        assert made["InputDataConfig"] == wanted["InputDataConfig"]
        assert made["Environment"]["SMLAUNCH_RUN"] == made["TrainingJobName"].removesuffix("-s1-a1")


def test_a_part_that_fails_is_tried_again_alone_and_fails_the_run_at_its_end() -> None:
    once = Fate(Ending.ALGORITHM, says=False)
    service, error = played(once)
    assert [made["TrainingJobName"] for made in service.made][:2] == [f"{RUN}-p1-s1-a1", f"{RUN}-p1-s1-a2"]
    assert error is None
    service, error = played(*[once] * 3)
    assert error == ERRORS[EXIT_TRAINING_FAILED]
    assert service.made[-1]["TrainingJobName"] == f"{RUN}-p4-s1-a1"


def test_what_a_machine_of_parts_cannot_do_is_refused_by_name() -> None:
    own_place = plan({**job(), "checkpoints": {"uri": "s3://mine/ckpt/"}}, world(facts(SKEWED)))
    for made, run, field in ((own_place, None, "checkpoints.uri"), (PLAN, "digits", "name")):
        with pytest.raises(JobError) as refused:
            export_step_functions(made, "parts", run=run)
        assert [problem.path for problem in refused.value.problems] == [field]


def test_what_the_parts_call_is_allowed() -> None:
    allowed = permissions(flow_of(PLAN), MACHINE, "parts")["Statement"]
    assert {"GoOn", "WaitForWhatGoesOn", "HearOfExecutions"} <= {one["Sid"] for one in allowed}


def test_a_part_that_goes_on_in_another_execution_takes_its_data_along() -> None:
    state = MACHINE["States"]["Hand over"]["Parameters"]["Input"]["smlaunch"]
    assert state["part.$"] == "$.part"
    assert MACHINE["States"]["Take over"]["Parameters"]["part.$"] == "$.smlaunch.part"
