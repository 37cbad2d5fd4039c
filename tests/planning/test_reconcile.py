"""Every way a run can go on or end, and what must hold whatever happens."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.errors import EXIT_MACHINE, JobError, disk_full
from smlaunch.planning.reconcile import (
    OUTCOME_GRACE,
    Action,
    Finish,
    JobSeen,
    LookAgain,
    Mark,
    Observed,
    Submit,
    WatchJob,
    decide,
    mark_after,
    progressed,
    spent,
)
from smlaunch.planning.workflow import (
    FAILURE_CLASSES,
    RULES,
    Ending,
    Policy,
    Variant,
    Workflow,
    ending_of,
    request_for,
    variant_for,
)
from smlaunch.protocol.checkpoint import CONTINUE, FINISHED, Outcome
from smlaunch.protocol.names import TaskName
from smlaunch.protocol.segment import FROM_FILES, FROM_REPORTED, FROM_STEP, STOP_AFTER

RUN = "long"
NOW = 1_800_000_000.0
CHAIN = Policy(chain=True, attempts=3)


def request(**more: Any) -> dict[str, Any]:
    tags = {"smlaunch:run": RUN, "smlaunch:segment": "1", "smlaunch:attempt": "1", "smlaunch:job": "h"}
    return {
        "TrainingJobName": f"{RUN}-s1-a1",
        "StoppingCondition": {"MaxRuntimeInSeconds": 1000},
        "Environment": {STOP_AFTER: "800", "MINE": "1"},
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        **more,
    }


def spot_request() -> dict[str, Any]:
    stopping = {"MaxRuntimeInSeconds": 1000, "MaxWaitTimeInSeconds": 2000}
    return request(EnableManagedSpotTraining=True, StoppingCondition=stopping)


def workflow(policy: Policy = CHAIN, *variants: Variant) -> Workflow:
    return Workflow(RUN, "h", variants or (Variant(1, request()),), policy, "s3://b/long/")


def seen(
    segment: int = 1, attempt: int = 1, ending: Ending | None = Ending.COMPLETED, **more: Any
) -> JobSeen:
    return JobSeen(segment, attempt, ending, **{"ended": NOW - 1, "training_seconds": 100.0, **more})


def old(segment: int = 1, attempt: int = 1, ending: Ending = Ending.COMPLETED, **more: Any) -> JobSeen:
    """So long ago that nobody waits for its outcome."""
    return seen(segment, attempt, ending, ended=NOW - 99, **more)


def said(result: str = CONTINUE, job: str = f"{RUN}-s1-a1", step: int | None = 10) -> Outcome:
    return Outcome(result, step, RUN, job)


def look(*jobs: JobSeen, **more: Any) -> Observed:
    return Observed(NOW, jobs, **more)


CONTINUES = said(step=None)
"""Of some other job: what the newest one has told stands in ``reported``."""


def rows(reported: list[int], ending: Ending, segment: int = 0) -> list[JobSeen]:
    """A first job, and one that began at each of these reported steps: segments, or attempts of one."""
    return [old(1, 1, ending)] + [
        old(segment or number + 1, number if segment else 1, ending, from_reported=step)
        for number, step in enumerate(reported, 1)
    ]


def as_seen(mark: Mark) -> dict[str, Any]:
    return {"from_step": mark.step, "from_reported": mark.reported, "from_files": mark.files}


def submitted(action: Action) -> Submit:
    assert isinstance(action, Submit), action
    return action


def finished(action: Action) -> Finish:
    assert isinstance(action, Finish), action
    return action


class TestRequests:
    def test_the_first_one_is_the_plans_own(self) -> None:
        assert request_for(workflow(), 1, 1) == request()

    def test_later_ones_differ_in_name_and_tags_and_say_where_they_begin(self) -> None:
        made = request_for(workflow(), 4, 2, step=70)
        assert made["TrainingJobName"] == f"{RUN}-s4-a2"
        tags = {tag["Key"]: tag["Value"] for tag in made["Tags"]}
        assert tags == {
            "smlaunch:run": RUN,
            "smlaunch:segment": "4",
            "smlaunch:attempt": "2",
            "smlaunch:job": "h",
        }
        assert made["Environment"] == {STOP_AFTER: "800", "MINE": "1", FROM_STEP: "70"}

    def test_on_demand_has_no_wait_for_spot(self) -> None:
        made = request_for(workflow(CHAIN, Variant(1, spot_request())), 1, 2, spot=False)
        assert "EnableManagedSpotTraining" not in made
        assert made["StoppingCondition"] == {"MaxRuntimeInSeconds": 1000}

    @pytest.mark.parametrize(
        ("left", "limit", "stop_after"), [(600, 600, 400), (300, 300, 150), (5000, 1000, 800)]
    )
    def test_a_shorter_segment_ends_earlier_too(self, left: float, limit: int, stop_after: int) -> None:
        made = request_for(workflow(), 2, 1, seconds_left=left)
        assert made["StoppingCondition"]["MaxRuntimeInSeconds"] == limit
        assert made["Environment"][STOP_AFTER] == str(stop_after)

    def test_the_workflow_is_not_changed(self) -> None:
        made = workflow(CHAIN, Variant(1, spot_request()))
        request_for(made, 3, 1, step=5, spot=False, seconds_left=10)
        assert made == workflow(CHAIN, Variant(1, spot_request()))

    def test_variants_by_number(self) -> None:
        made = workflow(CHAIN, *(Variant(first, request(InputMode=str(first))) for first in (1, 2, 5)))
        chosen = [variant_for(made, segment, 0).first_segment for segment in range(1, 8)]
        assert chosen == [1, 2, 2, 2, 5, 5, 5]

    def test_a_variant_with_a_last_step_holds_until_it_is_reached(self) -> None:
        made = workflow(
            CHAIN,
            Variant(1, request(), until_step=50),
            Variant(2, request(), until_step=90),
            Variant(3, request()),
        )
        assert [variant_for(made, 4, step).first_segment for step in (0, 49, 50, 89, 90)] == [1, 1, 2, 2, 3]
        assert variant_for(made, 2).first_segment == 2

    def test_written_and_read_again(self) -> None:
        made = workflow(replace(CHAIN, max_cost=5.0), Variant(1, spot_request(), 3.5, until_step=7))
        assert Workflow.from_json(made.to_json()) == made

    def test_later_versions(self) -> None:
        text = workflow().to_json()
        newer = text.replace('"version": "1.0"', '"version": "1.7", "more": [1]')
        assert Workflow.from_json(newer) == workflow()
        with pytest.raises(JobError, match=r"version 2\.0"):
            Workflow.from_json(text.replace('"version": "1.0"', '"version": "2.0"'))
        for broken in ("", "[]", "{}", '{"version": "1.0"}'):
            with pytest.raises(JobError, match=r"chain\.json"):
                Workflow.from_json(broken)


class TestEndings:
    def test_words_of_the_service(self) -> None:
        assert ending_of("InProgress", "Interrupted", "") is None
        assert ending_of("Completed", "Completed", "") is Ending.COMPLETED
        assert ending_of("Stopped", "MaxRuntimeExceeded", "") is Ending.TIME
        assert ending_of("Stopped", "MaxWaitTimeExceeded", "") is Ending.STARVED
        assert ending_of("Stopped", "Stopped", "") is Ending.STOPPED
        for word, ending in FAILURE_CLASSES.items():
            assert ending_of("Failed", "Failed", f"{word}: why") is ending
        assert ending_of("Failed", "Failed", "") is Ending.ALGORITHM
        full = disk_full("/home", "No space left on device")
        assert ending_of("Failed", "Failed", f"ClientError: {full}") is Ending.MACHINE
        assert RULES[Ending.MACHINE].exit_code == EXIT_MACHINE

    def test_there_is_a_rule_for_each(self) -> None:
        assert set(RULES) == set(Ending)


class TestOneJob:
    """A run without a chain, as runs have always been."""

    ALONE = Policy()

    @pytest.mark.parametrize(
        ("ending", "code"),
        [
            (Ending.COMPLETED, 0),
            (Ending.ALGORITHM, 1),
            (Ending.CLIENT, 2),
            (Ending.CAPACITY, 4),
            (Ending.SERVICE, 4),
            (Ending.STOPPED, 5),
            (Ending.TIME, 6),
            (Ending.STARVED, 6),
        ],
    )
    def test_ends_as_its_job_does(self, ending: Ending, code: int) -> None:
        assert finished(decide(workflow(self.ALONE), look(seen(ending=ending)))).exit_code == code

    def test_starts_and_is_watched(self) -> None:
        assert submitted(decide(workflow(self.ALONE), look())).request == request()
        assert decide(workflow(self.ALONE), look(seen(ending=None))) == WatchJob(TaskName(RUN, 1, 1))

    def test_ended_itself_before_its_limit(self) -> None:
        action = finished(decide(workflow(self.ALONE), look(seen(), outcome=said(), step=10)))
        assert (action.exit_code, "step 10" in action.sentence) == (6, True)

    def test_attempts_where_they_are_asked_for(self) -> None:
        made = workflow(Policy(attempts=2))
        again = submitted(decide(made, look(seen(ending=Ending.SERVICE))))
        assert again.name == TaskName(RUN, 1, 2)
        jobs = seen(ending=Ending.SERVICE), seen(1, 2, Ending.SERVICE)
        assert finished(decide(made, look(*jobs))).exit_code == 4


class TestChain:
    def test_the_next_segment_from_a_newer_checkpoint(self) -> None:
        action = submitted(decide(workflow(), look(seen(), step=10, outcome=said())))
        assert action.name == TaskName(RUN, 2, 1)
        assert action.request["Environment"][FROM_STEP] == "10"

    def test_the_end(self) -> None:
        jobs = seen(), seen(2, from_step=10)
        action = finished(
            decide(workflow(), look(*jobs, step=15, outcome=said(FINISHED, f"{RUN}-s2-a1", 15)))
        )
        assert (action.exit_code, action.status) == (0, "Completed")

    def test_an_outcome_may_come_late(self) -> None:
        action = decide(workflow(), look(seen(), step=10))
        assert isinstance(action, LookAgain)
        assert action.at == NOW - 1 + OUTCOME_GRACE
        late = look(seen(ended=NOW - OUTCOME_GRACE - 1), step=10)
        assert submitted(decide(workflow(), late)).name == TaskName(RUN, 2, 1)

    def test_another_runs_outcome_is_not_ours(self) -> None:
        stale = look(seen(ended=NOW - 99), step=10, outcome=Outcome(FINISHED, 10, "other", "other-s9-a1"))
        assert submitted(decide(workflow(), stale)).name == TaskName(RUN, 2, 1)

    def test_at_its_max_runtime_with_a_newer_checkpoint(self) -> None:
        action = submitted(decide(workflow(), look(seen(ending=Ending.TIME), step=10)))
        assert action.name == TaskName(RUN, 2, 1)

    @pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.TIME])
    def test_no_newer_checkpoint_is_the_same_segment_again_and_then_the_end(self, ending: Ending) -> None:
        jobs = [seen(), *(seen(2, attempt, ending, from_step=10) for attempt in (1, 2, 3))]
        again = submitted(decide(workflow(), look(*jobs[:3], step=10, outcome=said(job=f"{RUN}-s2-a2"))))
        assert again.name == TaskName(RUN, 2, 3)
        action = finished(decide(workflow(), look(*jobs, step=10, outcome=said(job=f"{RUN}-s2-a3"))))
        assert (action.exit_code, action.status) == (1, "Failed")
        assert f"{RUN}-s2-a1, {RUN}-s2-a2, {RUN}-s2-a3 left nothing newer than step 10" in action.sentence

    def test_a_checkpoint_that_did_not_get_there_is_told(self) -> None:
        jobs = [seen(1, attempt) for attempt in (1, 2, 3)]
        action = finished(decide(workflow(), look(*jobs, outcome=said(job=f"{RUN}-s1-a3", step=40))))
        assert "committed step 40, which is not whole in S3" in action.sentence

    def test_a_failure_after_progress_goes_on_and_attempts_count_anew(self) -> None:
        jobs = [seen(1, attempt, Ending.ALGORITHM, from_step=attempt) for attempt in range(1, 8)]
        assert submitted(decide(workflow(), look(*jobs, step=9))).name == TaskName(RUN, 1, 8)

    def test_a_failure_without_progress_uses_up_attempts(self) -> None:
        jobs = [
            seen(1, attempt, Ending.ALGORITHM, reason="AlgorithmError: boom", from_step=5)
            for attempt in (1, 2, 3)
        ]
        assert submitted(decide(workflow(), look(*jobs[:2], step=5))).name == TaskName(RUN, 1, 3)
        action = finished(decide(workflow(), look(*jobs, step=5)))
        assert (action.exit_code, action.status) == (1, "Failed")
        assert "boom; tried 3 times without a newer checkpoint" in action.sentence

    def test_what_cannot_work_is_given_up_at_once(self) -> None:
        failed = seen(ending=Ending.CLIENT, reason="ClientError: no such bucket")
        assert finished(decide(workflow(), look(failed))).exit_code == 2

    def test_capacity_is_waited_for_longer_each_time(self) -> None:
        waits = []
        for attempts in (1, 2):
            jobs = [seen(1, attempt + 1, Ending.CAPACITY) for attempt in range(attempts)]
            waits.append(submitted(decide(workflow(), look(*jobs))).not_before - (NOW - 1))
        assert waits == [60.0, 120.0]
        near = submitted(decide(workflow(), look(seen(ending=Ending.CAPACITY), pace=0.01)))
        assert near.not_before == pytest.approx(NOW - 1 + 0.6)

    @pytest.mark.parametrize("ending", [Ending.STARVED, Ending.CAPACITY])
    def test_starved_spot_goes_on_demand_when_asked(self, ending: Ending) -> None:
        made = workflow(replace(CHAIN, on_demand_fallback=True), Variant(1, spot_request()))
        action = submitted(decide(made, look(seen(ending=ending, spot=True))))
        assert action.name == TaskName(RUN, 1, 2)
        assert "EnableManagedSpotTraining" not in action.request
        assert action.not_before == 0.0
        later = look(seen(ending=ending, spot=True), seen(1, 2, Ending.ALGORITHM), step=5)
        assert "EnableManagedSpotTraining" not in submitted(decide(made, later)).request
        on = look(seen(ending=ending, spot=True), seen(1, 2), step=5, outcome=said(job=f"{RUN}-s1-a2"))
        assert submitted(decide(made, on)).request["EnableManagedSpotTraining"] is True

    def test_starved_spot_ends_the_run_when_not(self) -> None:
        made = workflow(CHAIN, Variant(1, spot_request()))
        assert finished(decide(made, look(seen(ending=Ending.STARVED, spot=True)))).exit_code == 6

    def test_a_person_stops_it_and_goes_on(self) -> None:
        stopped = look(seen(ending=Ending.STOPPED), step=7)
        assert finished(decide(workflow(), stopped)).exit_code == 5
        again = submitted(decide(workflow(), replace(stopped, forgiven=TaskName(RUN, 1, 1))))
        assert again.name == TaskName(RUN, 1, 2)
        assert again.not_before == 0.0

    def test_a_stop_between_two_segments(self) -> None:
        between = look(seen(), step=10, outcome=said(), stop_wanted=True)
        assert finished(decide(workflow(), between)).exit_code == 5
        done = look(seen(), step=10, outcome=said(FINISHED), stop_wanted=True)
        assert finished(decide(workflow(), done)).exit_code == 0
        assert finished(decide(workflow(), look(stop_wanted=True))).exit_code == 5

    def test_finished_and_then_failed_is_done_again_for_its_model(self) -> None:
        failed = seen(ending=Ending.SERVICE, reason="InternalServerError: gone")
        action = submitted(
            decide(workflow(), look(failed, step=20, outcome=said(FINISHED, step=20)._replace(closed=True)))
        )
        assert action.clears_outcome


class TestScriptsWithCheckpointsOfTheirOwn:
    """Nobody knows what lies in them: what counts is the highest step that a job reports."""

    @pytest.mark.parametrize("ending", [Ending.COMPLETED, Ending.TIME])
    def test_the_next_segment_after_a_higher_step(self, ending: Ending) -> None:
        action = submitted(
            decide(workflow(), look(*rows([63, 126], ending), outcome=CONTINUES, reported=189))
        )
        assert action.name == TaskName(RUN, 4, 1)
        assert action.because == "the script has reported step 189"
        assert action.request["Environment"][FROM_REPORTED] == "189"

    def test_a_crash_after_a_higher_step_goes_on(self) -> None:
        jobs = [
            seen(1, attempt, Ending.ALGORITHM, from_reported=attempt * 10 - 10 or None)
            for attempt in range(1, 9)
        ]
        action = submitted(decide(workflow(), look(*jobs, reported=71)))
        assert (action.name, action.request["Environment"][FROM_REPORTED]) == (TaskName(RUN, 1, 9), "71")

    def test_three_jobs_without_a_higher_one_end_it(self) -> None:
        for reported in (63, 60, 0, None):
            jobs = rows([63, 63, 63], Ending.COMPLETED, segment=2)
            again = submitted(decide(workflow(), look(*jobs[:3], outcome=CONTINUES, reported=reported)))
            assert again.name == TaskName(RUN, 2, 3)
            assert again.request["Environment"][FROM_REPORTED] == "63"
            end = finished(decide(workflow(), look(*jobs, outcome=CONTINUES, reported=reported)))
            assert (end.exit_code, end.status) == (1, "Failed")
            names = ", ".join(f"{RUN}-s2-a{attempt}" for attempt in (1, 2, 3))
            assert end.sentence.startswith(
                f"no progress: {names} brought the run no further than step 63: the script"
            )

    def test_a_script_that_begins_anew_may_get_a_little_further(self) -> None:
        """By the machine's speed of the moment; it counts for nothing, for whoever looks later too."""
        jobs = rows([63, 63, 63], Ending.COMPLETED, segment=2)
        again = submitted(decide(workflow(), look(*jobs[:3], outcome=CONTINUES, reported=66, repeats=True)))
        assert again.request["Environment"][FROM_REPORTED] == "63"
        end = finished(decide(workflow(), look(*jobs, outcome=CONTINUES, reported=66, repeats=True)))
        assert "s2-a3 reported steps up to 66, and most of them had been reported before" in end.sentence

    def test_three_failures_at_the_same_step(self) -> None:
        jobs = [
            seen(2, attempt, Ending.ALGORITHM, reason="AlgorithmError: boom", from_reported=5)
            for attempt in (1, 2, 3)
        ]
        assert submitted(decide(workflow(), look(*jobs[:2], reported=5))).name == TaskName(RUN, 2, 3)
        end = finished(decide(workflow(), look(*jobs, reported=5)))
        assert end.exit_code == 1
        assert end.sentence == "AlgorithmError: boom; tried 3 times without bringing the run beyond step 5"

    def test_failures_and_planned_ends_are_counted_together(self) -> None:
        endings = Ending.ALGORITHM, Ending.COMPLETED, Ending.TIME
        jobs = [seen(2, attempt, ending, from_reported=5) for attempt, ending in enumerate(endings, 1)]
        assert finished(decide(workflow(), look(*jobs, reported=5))).exit_code == 1

    def test_a_committed_step_counts_also_where_none_is_reported_beyond(self) -> None:
        jobs = [seen(1, attempt, Ending.ALGORITHM, from_reported=57, from_step=50) for attempt in (1, 2, 3)]
        action = submitted(decide(workflow(), look(*jobs, reported=55, step=54)))
        environment = action.request["Environment"]
        assert (environment[FROM_STEP], environment[FROM_REPORTED]) == ("54", "57")

    def test_where_no_step_is_reported_changed_files_count(self) -> None:
        jobs = [old(), old(2, from_files="aa"), old(3, from_files="bb")]
        action = submitted(decide(workflow(), look(*jobs, outcome=CONTINUES, files="cc")))
        assert (action.name, action.because) == (TaskName(RUN, 4, 1), "its checkpoint files have changed")
        assert action.request["Environment"][FROM_FILES] == "cc"
        idle = [*jobs, *(old(4, attempt, from_files="cc") for attempt in (1, 2, 3))]
        again = submitted(decide(workflow(), look(*idle[:-1], outcome=CONTINUES, files="cc")))
        assert again.name == TaskName(RUN, 4, 3)
        end = finished(decide(workflow(), look(*idle, outcome=CONTINUES, files="cc")))
        assert (end.exit_code, "left no new or changed checkpoint file" in end.sentence) == (1, True)

    def test_files_do_not_count_where_a_step_is_reported(self) -> None:
        jobs = rows([63, 63, 63], Ending.COMPLETED, segment=2)
        assert finished(
            decide(workflow(), look(*jobs, outcome=CONTINUES, reported=63, files="new"))
        ).exit_code

    def test_no_file_and_no_step_ends_it(self) -> None:
        jobs = [old(1, attempt) for attempt in (1, 2, 3)]
        assert submitted(decide(workflow(), look(*jobs[:2], outcome=CONTINUES))).name == TaskName(RUN, 1, 3)
        end = finished(decide(workflow(), look(*jobs, outcome=CONTINUES)))
        assert (end.exit_code, "no whole checkpoint ever came" in end.sentence) == (1, True)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.booleans(), st.sampled_from(["", "a", "b"]))))
    def test_whoever_looks_later_judges_alike(self, told: list[tuple[int | None, bool, str]]) -> None:
        """A job is judged when it has ended; afterwards the next job's request says the same of it."""
        jobs: list[JobSeen] = []
        judged: list[bool] = []
        mark = Mark()
        for attempt, (reported, repeats, files) in enumerate(told, 1):
            jobs.append(seen(1, attempt, Ending.ALGORITHM, **as_seen(mark)))
            now = look(*jobs, reported=reported, repeats=repeats, files=files)
            after = mark_after(jobs[-1], now)
            judged.append(after.is_beyond(mark))
            assert progressed(jobs, after) == judged
            assert repeats is False or reported is None or not judged[-1]
            mark = after


class TestCaps:
    def test_training_time_is_used_up(self) -> None:
        made = workflow(replace(CHAIN, total_seconds=1500))
        most = look(seen(training_seconds=850.0), step=10, outcome=said())
        action = submitted(decide(made, most))
        assert action.request["StoppingCondition"]["MaxRuntimeInSeconds"] == 650
        assert action.request["Environment"][STOP_AFTER] == "450"
        rest = look(seen(training_seconds=1200.0), step=10, outcome=said())
        assert finished(decide(made, rest)).exit_code == 6

    def test_cost_shortens_the_last_segment_and_ends_the_run(self) -> None:
        made = workflow(replace(CHAIN, max_cost=10.0), Variant(1, request(), price_per_hour=36.0))
        one = look(seen(billable_seconds=500.0), step=10, outcome=said())
        assert spent(made, one.jobs) == pytest.approx(5.0)
        shortened = submitted(decide(made, one)).request
        assert shortened["StoppingCondition"]["MaxRuntimeInSeconds"] == 500
        two = seen(billable_seconds=500.0), seen(2, billable_seconds=460.0, from_step=10)
        action = finished(decide(made, look(*two, step=20, outcome=said(job=f"{RUN}-s2-a1"))))
        assert action.exit_code == 6
        assert "$10.00 is reached: $9.60 spent" in action.sentence
        assert "step 20" in action.sentence


# ---- whatever happens --------------------------------------------------------------------------------


class World:
    """Jobs, checkpoints and an outcome, as a service would have them; what each job does is drawn."""

    def __init__(self, made: Workflow, fates: list[tuple[Ending, int, bool]]) -> None:
        self.workflow = made
        self.fates = fates
        self.jobs: dict[TaskName, JobSeen] = {}
        self.step = 0
        self.outcome: Outcome | None = None
        self.now = NOW
        self.most_billable = 0.0

    def observed(self, **more: Any) -> Observed:
        return Observed(self.now, tuple(self.jobs.values()), self.step, self.outcome, **more)

    def create(self, action: Submit) -> None:
        """What SageMaker does: a name can be taken only once."""
        if action.name in self.jobs:
            return
        assert all(job.ending is not None for job in self.jobs.values()), "two jobs of a run at once"
        fate, gain, finishes = self.fates[len(self.jobs) % len(self.fates)]
        limit = action.request["StoppingCondition"]["MaxRuntimeInSeconds"]
        self.now = max(self.now, action.not_before) + 1
        if action.clears_outcome:
            self.outcome = None
        if fate is Ending.STARVED and not action.request.get("EnableManagedSpotTraining"):
            fate = Ending.TIME
        used = 0.0 if fate in (Ending.CAPACITY, Ending.CLIENT, Ending.STARVED) else float(limit)
        before, self.step = self.step, self.step + (gain if used else 0)
        if fate is Ending.COMPLETED:
            result = FINISHED if finishes else CONTINUE
            self.outcome = Outcome(result, self.step, RUN, str(action.name))
        self.now += used
        self.jobs[action.name] = JobSeen(
            action.name.segment,
            action.name.attempt,
            fate,
            ended=self.now,
            training_seconds=used,
            billable_seconds=used,
            spot=bool(action.request.get("EnableManagedSpotTraining")),
            from_step=int(action.request["Environment"].get(FROM_STEP, 0)),
        )
        assert self.jobs[action.name].from_step == before


fates = st.lists(
    st.tuples(st.sampled_from(list(Ending)), st.integers(0, 3), st.booleans()), min_size=1, max_size=8
)
policies = st.builds(
    Policy,
    chain=st.booleans(),
    attempts=st.integers(1, 4),
    total_seconds=st.integers(1000, 5000),
    max_cost=st.none() | st.floats(1.0, 100.0),
    on_demand_fallback=st.booleans(),
)
prices = st.none() | st.floats(0.5, 50.0)


def run_to_end(world: World) -> tuple[Finish, int]:
    for count in range(500):
        action = decide(world.workflow, world.observed())
        assert decide(world.workflow, world.observed()) == action
        if isinstance(action, Finish):
            return action, count
        if isinstance(action, LookAgain):
            assert action.at > world.now
            world.now = action.at
        else:
            before = len(world.jobs)
            world.create(submitted(action))
            assert len(world.jobs) == before + 1, "a name was asked for twice"
    raise AssertionError("it never ends")


@settings(max_examples=200, deadline=None)
@given(fates, policies, prices, st.booleans())
def test_every_run_ends_within_its_bounds(
    drawn: list[tuple[Ending, int, bool]], policy: Policy, price: float | None, spot: bool
) -> None:
    variant = Variant(1, spot_request() if spot else request(), price)
    world = World(workflow(policy, variant), drawn)
    end, _ = run_to_end(world)
    jobs = list(world.jobs.values())
    assert decide(world.workflow, world.observed()) == end
    assert sum(job.training_seconds for job in jobs[1:]) <= max(0, policy.total_seconds or 0)
    if policy.max_cost is not None and price is not None and len(jobs) > 1:
        assert (spent(world.workflow, jobs[1:]) or 0.0) <= policy.max_cost
    newer = [job.from_step for job in jobs[1:]] + [world.step]
    idle = longest = 0
    for job, end_step in zip(jobs, newer, strict=True):
        idle = 0 if end_step > job.from_step else idle + 1
        longest = max(longest, idle)
    assert longest <= policy.attempts + 1
    for job, following in pairwise(jobs):
        if following.segment != job.segment:
            assert following.segment == job.segment + 1
            assert following.from_step > job.from_step, "a segment followed without a newer checkpoint"


@settings(max_examples=150, deadline=None)
@given(fates, policies, st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=40))
def test_two_drivers_and_killed_ones_make_the_same_jobs(
    drawn: list[tuple[Ending, int, bool]], policy: Policy, troubles: list[tuple[bool, int]]
) -> None:
    """``troubles``, round by round: whether the driver is killed before it acts, and what another one, that
    looked some time ago and only now gets to act, had seen."""
    alone, shared = World(workflow(policy), drawn), World(workflow(policy), drawn)
    end, _ = run_to_end(alone)
    remembered: list[Observed] = []
    for _ in range(500):
        killed, looked = troubles.pop() if troubles else (False, 0)
        if remembered:
            stale = decide(shared.workflow, remembered[-1 - looked % len(remembered)])
            if isinstance(stale, Submit):
                shared.create(stale)
        remembered.append(shared.observed())
        action = decide(shared.workflow, shared.observed())
        if isinstance(action, Finish):
            break
        if isinstance(action, LookAgain):
            shared.now = action.at
        elif not killed:
            shared.create(submitted(action))
    assert list(shared.jobs) == list(alone.jobs)
    assert (shared.step, action) == (alone.step, end)
