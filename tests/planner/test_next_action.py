"""Every way in which a run continues or ends, and the invariants that hold in all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.chain.next_action import (
    OUTCOME_GRACE_SECONDS,
    FinishRun,
    FollowJob,
    RunAction,
    SubmitJob,
    WaitUntil,
    next_action,
)
from smlaunch.chain.observed_run import (
    ObservedJob,
    ObservedRun,
    RunProgress,
    cost_so_far,
    progress_by_job,
    run_progress_after,
)
from smlaunch.chain.workflow import (
    ENDING_BY_FAILURE_REASON,
    RULE_BY_ENDING,
    JobEnding,
    RunPolicy,
    SegmentVariant,
    Workflow,
    build_job_request,
    classify_ending,
    variant_of_segment,
)
from smlaunch.contract.run_names import JobName
from smlaunch.contract.segment import (
    FROM_FILES_VARIABLE,
    FROM_REPORTED_VARIABLE,
    FROM_STEP_VARIABLE,
    STOP_AFTER_VARIABLE,
)
from smlaunch.contract.segment_outcome import CONTINUE, FINISHED, SegmentOutcome, find_newest_outcome
from smlaunch.errors import EXIT_COMPLETED, EXIT_MACHINE, JobError, disk_full_message
from smlaunch.export.run_template import max_billed_seconds

RUN = "long"
NOW = 1_800_000_000.0
CHAIN = RunPolicy(chain=True, attempts=3)


def request(**fields: Any) -> dict[str, Any]:
    tags = {
        "smlaunch:format": "1.0",
        "smlaunch:run": RUN,
        "smlaunch:segment": "1",
        "smlaunch:attempt": "1",
        "smlaunch:job": "h",
    }
    return {
        "TrainingJobName": f"{RUN}-s1-a1",
        "StoppingCondition": {"MaxRuntimeInSeconds": 1000},
        "Environment": {STOP_AFTER_VARIABLE: "800", "MINE": "1"},
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        **fields,
    }


def spot_request() -> dict[str, Any]:
    stopping = {"MaxRuntimeInSeconds": 1000, "MaxWaitTimeInSeconds": 2000}
    return request(EnableManagedSpotTraining=True, StoppingCondition=stopping)


def workflow(policy: RunPolicy = CHAIN, *variants: SegmentVariant) -> Workflow:
    return Workflow(RUN, "h", variants or (SegmentVariant(1, request()),), policy, "s3://b/long/")


def observed_job(
    segment: int = 1, attempt: int = 1, ending: JobEnding | None = JobEnding.COMPLETED, **fields: Any
) -> ObservedJob:
    return ObservedJob(segment, attempt, ending, **{"ended_at": NOW - 1, "training_seconds": 100.0, **fields})


def old_job(
    segment: int = 1, attempt: int = 1, ending: JobEnding = JobEnding.COMPLETED, **fields: Any
) -> ObservedJob:
    """Returns a job that ended so long ago that nobody waits for its outcome."""
    return observed_job(segment, attempt, ending, ended_at=NOW - 99, **fields)


def outcome_of(result: str = CONTINUE, job: str = f"{RUN}-s1-a1", step: int | None = 10) -> SegmentOutcome:
    return SegmentOutcome(result, step, RUN, job)


def observe(*jobs: ObservedJob, **fields: Any) -> ObservedRun:
    return ObservedRun(NOW, jobs, **fields)


CONTINUES = outcome_of(step=None)
"""Of some other job: what the newest one has told stands in ``reported``."""


def rows(reported: list[int], ending: JobEnding, segment: int = 0) -> list[ObservedJob]:
    """Returns a first job, and one that began at each of these reported steps: as segments, or as attempts of
    one."""
    return [old_job(1, 1, ending)] + [
        old_job(segment or number + 1, number if segment else 1, ending, from_reported_step=step)
        for number, step in enumerate(reported, 1)
    ]


def start_fields(mark: RunProgress) -> dict[str, Any]:
    return {
        "from_step": mark.newest_checkpoint_step,
        "from_reported_step": mark.reported_step,
        "from_files_digest": mark.checkpoint_files_digest,
    }


def expect_submit(action: RunAction) -> SubmitJob:
    assert isinstance(action, SubmitJob), action
    return action


def expect_finish(action: RunAction) -> FinishRun:
    assert isinstance(action, FinishRun), action
    return action


class TestRequests:
    def test_the_first_one_is_the_plans_own(self) -> None:
        assert build_job_request(workflow(), 1, 1) == request()

    def test_later_ones_differ_in_name_and_tags_and_say_where_they_begin(self) -> None:
        later_request = build_job_request(workflow(), 4, 2, newest_checkpoint_step=70)
        assert later_request["TrainingJobName"] == f"{RUN}-s4-a2"
        tags = {tag["Key"]: tag["Value"] for tag in later_request["Tags"]}
        assert tags == {
            "smlaunch:format": "1.0",
            "smlaunch:run": RUN,
            "smlaunch:segment": "4",
            "smlaunch:attempt": "2",
            "smlaunch:job": "h",
        }
        assert later_request["Environment"] == {
            STOP_AFTER_VARIABLE: "800",
            "MINE": "1",
            FROM_STEP_VARIABLE: "70",
        }

    def test_on_demand_has_no_wait_for_spot(self) -> None:
        later_request = build_job_request(
            workflow(CHAIN, SegmentVariant(1, spot_request())), 1, 2, spot=False
        )
        assert "EnableManagedSpotTraining" not in later_request
        assert later_request["StoppingCondition"] == {"MaxRuntimeInSeconds": 1000}

    @pytest.mark.parametrize(
        ("seconds_left", "limit", "stop_after"), [(600, 600, 400), (300, 300, 150), (5000, 1000, 800)]
    )
    def test_a_shorter_segment_ends_earlier_too(
        self, seconds_left: float, limit: int, stop_after: int
    ) -> None:
        later_request = build_job_request(workflow(), 2, 1, seconds_left=seconds_left)
        assert later_request["StoppingCondition"]["MaxRuntimeInSeconds"] == limit
        assert later_request["Environment"][STOP_AFTER_VARIABLE] == str(stop_after)

    def test_the_workflow_is_not_changed(self) -> None:
        stored_workflow = workflow(CHAIN, SegmentVariant(1, spot_request()))
        build_job_request(stored_workflow, 3, 1, newest_checkpoint_step=5, spot=False, seconds_left=10)
        assert stored_workflow == workflow(CHAIN, SegmentVariant(1, spot_request()))

    def test_variants_by_number(self) -> None:
        stored_workflow = workflow(
            CHAIN, *(SegmentVariant(first, request(InputMode=str(first))) for first in (1, 2, 5))
        )
        chosen = [variant_of_segment(stored_workflow, segment, 0).first_segment for segment in range(1, 8)]
        assert chosen == [1, 2, 2, 2, 5, 5, 5]

    def test_a_variant_with_a_last_step_holds_until_it_is_reached(self) -> None:
        stored_workflow = workflow(
            CHAIN,
            SegmentVariant(1, request(), until_step=50),
            SegmentVariant(2, request(), until_step=90),
            SegmentVariant(3, request()),
        )
        assert [
            variant_of_segment(stored_workflow, 4, step).first_segment for step in (0, 49, 50, 89, 90)
        ] == [
            1,
            1,
            2,
            2,
            3,
        ]
        assert variant_of_segment(stored_workflow, 2).first_segment == 2

    def test_the_reported_step_counts_for_a_script_that_commits_nothing(self) -> None:
        stored_workflow = workflow(
            CHAIN, SegmentVariant(1, request(), until_step=10), SegmentVariant(2, request(InputMode="next"))
        )
        for committed, reported, is_next in ((0, 9, False), (0, 10, True), (8, 12, False), (10, 10, True)):
            later_request = build_job_request(
                stored_workflow, 2, 1, newest_checkpoint_step=committed, reported_step=reported
            )
            assert ("InputMode" in later_request) is is_next, (committed, reported)

    def test_written_and_read_again(self) -> None:
        stored_workflow = workflow(
            replace(CHAIN, max_cost=5.0), SegmentVariant(1, spot_request(), 3.5, until_step=7)
        )
        assert Workflow.from_json(stored_workflow.to_json()) == stored_workflow

    def test_later_versions(self) -> None:
        text = workflow().to_json()
        newer = text.replace('"version": "1.1"', '"version": "1.7", "more": [1]')
        assert Workflow.from_json(newer) == workflow()
        with pytest.raises(JobError, match=r"version 2\.0"):
            Workflow.from_json(text.replace('"version": "1.1"', '"version": "2.0"'))
        for document in ("", "[]", "{}", '{"version": "1.1"}'):
            with pytest.raises(JobError, match=r"workflow\.json"):
                Workflow.from_json(document)


class TestEndings:
    def test_words_of_the_service(self) -> None:
        assert classify_ending("InProgress", "Interrupted", "") is None
        assert classify_ending("Completed", "Completed", "") is JobEnding.COMPLETED
        assert classify_ending("Stopped", "MaxRuntimeExceeded", "") is JobEnding.TIME_LIMIT
        assert classify_ending("Stopped", "MaxWaitTimeExceeded", "") is JobEnding.WAIT_EXCEEDED
        assert classify_ending("Stopped", "Stopped", "") is JobEnding.STOPPED
        for word, ending in ENDING_BY_FAILURE_REASON.items():
            assert classify_ending("Failed", "Failed", f"{word}: why") is ending
        assert classify_ending("Failed", "Failed", "") is JobEnding.ALGORITHM
        full = disk_full_message("/home", "No space left on device")
        assert classify_ending("Failed", "Failed", f"ClientError: {full}") is JobEnding.DISK_FULL
        assert RULE_BY_ENDING[JobEnding.DISK_FULL].exit_code == EXIT_MACHINE

    def test_there_is_a_rule_for_each(self) -> None:
        assert set(RULE_BY_ENDING) == set(JobEnding)


class TestOneJob:
    """A run without a chain."""

    ONE_JOB = RunPolicy()

    @pytest.mark.parametrize(
        ("ending", "code"),
        [
            (JobEnding.COMPLETED, 0),
            (JobEnding.ALGORITHM, 1),
            (JobEnding.CLIENT, 2),
            (JobEnding.CAPACITY, 4),
            (JobEnding.SERVICE, 4),
            (JobEnding.STOPPED, 5),
            (JobEnding.TIME_LIMIT, 6),
            (JobEnding.WAIT_EXCEEDED, 6),
        ],
    )
    def test_ends_as_its_job_does(self, ending: JobEnding, code: int) -> None:
        assert (
            expect_finish(next_action(workflow(self.ONE_JOB), observe(observed_job(ending=ending)))).exit_code
            == code
        )

    def test_starts_and_is_watched(self) -> None:
        assert expect_submit(next_action(workflow(self.ONE_JOB), observe())).request == request()
        assert next_action(workflow(self.ONE_JOB), observe(observed_job(ending=None))) == FollowJob(
            JobName(RUN, 1, 1)
        )

    def test_ended_itself_before_its_limit(self) -> None:
        action = expect_finish(
            next_action(
                workflow(self.ONE_JOB),
                observe(observed_job(), outcome_file=outcome_of(), newest_checkpoint_step=10),
            )
        )
        assert (action.exit_code, "step 10" in action.summary) == (6, True)

    def test_attempts_where_they_are_asked_for(self) -> None:
        one_job = workflow(RunPolicy(attempts=2))
        second = expect_submit(next_action(one_job, observe(observed_job(ending=JobEnding.SERVICE))))
        assert second.name == JobName(RUN, 1, 2)
        jobs = observed_job(ending=JobEnding.SERVICE), observed_job(1, 2, JobEnding.SERVICE)
        assert expect_finish(next_action(one_job, observe(*jobs))).exit_code == 4


class TestChain:
    def test_the_next_segment_from_a_newer_checkpoint(self) -> None:
        action = expect_submit(
            next_action(
                workflow(), observe(observed_job(), newest_checkpoint_step=10, outcome_file=outcome_of())
            )
        )
        assert action.name == JobName(RUN, 2, 1)
        assert action.request["Environment"][FROM_STEP_VARIABLE] == "10"

    def test_the_end(self) -> None:
        jobs = observed_job(), observed_job(2, from_step=10)
        action = expect_finish(
            next_action(
                workflow(),
                observe(
                    *jobs, newest_checkpoint_step=15, outcome_file=outcome_of(FINISHED, f"{RUN}-s2-a1", 15)
                ),
            )
        )
        assert (action.exit_code, action.status) == (0, "Completed")

    def test_an_outcome_may_come_late(self) -> None:
        action = next_action(workflow(), observe(observed_job(), newest_checkpoint_step=10))
        assert isinstance(action, WaitUntil)
        assert action.until == NOW - 1 + OUTCOME_GRACE_SECONDS
        late = observe(observed_job(ended_at=NOW - OUTCOME_GRACE_SECONDS - 1), newest_checkpoint_step=10)
        assert expect_submit(next_action(workflow(), late)).name == JobName(RUN, 2, 1)

    @pytest.mark.parametrize(
        ("reported_step", "exit_code", "words"),
        [
            (12, 1, f"{RUN}-s1-a1 trained to its end, step 12, with settings that apply"),
            (10, 0, "completed"),
            (7, 0, "; step 10 was not reached or not reported"),
            (None, 0, "; step 10 was not reached or not reported"),
        ],
    )
    def test_a_training_that_went_past_the_last_step_of_its_settings_has_failed(
        self, reported_step: int | None, exit_code: int, words: str
    ) -> None:
        stored_workflow = workflow(
            CHAIN, SegmentVariant(1, request(), until_step=10), SegmentVariant(2, request())
        )
        outcome = outcome_of(FINISHED, step=None)._replace(ranks_succeeded=True)
        for ending in (JobEnding.COMPLETED, JobEnding.STOPPED):
            ended_run = observe(
                observed_job(ending=ending), outcome_file=outcome, reported_step=reported_step
            )
            action = expect_finish(next_action(stored_workflow, ended_run))
            assert (action.exit_code, action.is_final) == (exit_code, True)
            assert words in action.summary
        in_last_settings = observe(
            old_job(), observed_job(2, from_reported_step=12), outcome_file=outcome, reported_step=99
        )
        assert expect_finish(next_action(stored_workflow, in_last_settings)).summary == "completed"
        with_nothing_left = replace(in_last_settings, reported_step=None)
        action = expect_finish(next_action(stored_workflow, with_nothing_left))
        assert action.exit_code == 1
        assert action.summary.startswith(f"{RUN}-s1-a1 trained to its end, step 12, with settings")

    def test_a_job_after_the_end_of_the_training_does_not_have_the_model(self) -> None:
        jobs = (f"{RUN}-s1-a1", f"{RUN}-s2-a1", f"{RUN}-s3-a1")
        results = ((CONTINUE, True), (FINISHED, True), (FINISHED, True))
        files = {
            outcome.path: outcome.to_bytes()
            for number, (job, (result, succeeded)) in enumerate(zip(jobs, results, strict=True), 1)
            for outcome in [SegmentOutcome(result, 10, RUN, job, number, 1, ranks_succeeded=succeeded)]
        }
        newest = find_newest_outcome(files, files.__getitem__, RUN)
        assert newest is not None and newest.job == jobs[2]
        ended_run = observe(old_job(), old_job(2), old_job(3), outcome_file=newest, newest_checkpoint_step=10)
        assert expect_finish(next_action(workflow(), ended_run)).model_job == jobs[1]
        del files[newest.path]
        newest = find_newest_outcome(files, files.__getitem__, RUN)
        ended_run = observe(old_job(), old_job(2), outcome_file=newest, newest_checkpoint_step=10)
        assert expect_finish(next_action(workflow(), ended_run)).model_job == ""

    def test_a_run_that_had_finished_when_it_was_stopped_has_completed(self) -> None:
        stopped_run = observe(
            observed_job(ending=JobEnding.STOPPED),
            newest_checkpoint_step=10,
            outcome_file=outcome_of(FINISHED)._replace(ranks_succeeded=True),
            stop_requested=True,
        )
        action = expect_finish(next_action(workflow(), stopped_run))
        assert (action.status, action.exit_code) == ("Completed", 0)
        assert "it had finished when it was stopped" in action.summary
        stopped_and_finished = replace(stopped_run, outcome_file=outcome_of(FINISHED))
        assert expect_finish(next_action(workflow(), stopped_and_finished)).status == "Stopped"

    def test_ranks_that_train_apart_have_no_step_in_common(self) -> None:
        """The rank with the highest step has finished; another continues below it, which its files show."""
        independent = CONTINUES._replace(independent_ranks=2)
        jobs = [
            old_job(segment, from_reported_step=100, from_files_digest=digest)
            for segment, digest in ((2, "a"), (3, "b"), (4, "c"))
        ]
        on = observe(
            *jobs,
            outcome_file=independent,
            reported_step=45,
            newest_job_repeats_steps=True,
            checkpoint_files_digest="d",
        )
        assert expect_submit(next_action(workflow(), on)).name == JobName(RUN, 5, 1)
        idle = [replace(job, from_files_digest="a") for job in jobs]
        end = expect_finish(
            next_action(
                workflow(),
                observe(*idle, outcome_file=independent, reported_step=45, checkpoint_files_digest="a"),
            )
        )
        assert end.status == "Failed"

    @pytest.mark.parametrize("ending", [JobEnding.COMPLETED, JobEnding.TIME_LIMIT, JobEnding.STOPPED])
    def test_a_run_whose_last_job_was_deleted_has_that_jobs_model(self, ending: JobEnding) -> None:
        """The archive of the job before it was named as the model; or it was created again."""
        last = SegmentOutcome(FINISHED, 10, RUN, f"{RUN}-s2-a1", 2, ranks_succeeded=True)
        end = expect_finish(next_action(workflow(), observe(old_job(ending=ending), outcome_file=last)))
        assert (end.exit_code, end.model_job) == (EXIT_COMPLETED, f"{RUN}-s2-a1")
        assert end.summary == f"completed by {RUN}-s2-a1, whose record was deleted since"
        known = [old_job(), old_job(2)]
        assert expect_finish(next_action(workflow(), observe(*known, outcome_file=last))).model_job == ""
        unsaved = last._replace(ranks_succeeded=False)  # its model may never have been written
        action = next_action(workflow(), observe(old_job(ending=JobEnding.TIME_LIMIT), outcome_file=unsaved))
        assert isinstance(action, SubmitJob)

    def test_another_runs_outcome_is_not_ours(self) -> None:
        stale = observe(
            observed_job(ended_at=NOW - 99),
            newest_checkpoint_step=10,
            outcome_file=SegmentOutcome(FINISHED, 10, "other", "other-s9-a1"),
        )
        assert expect_submit(next_action(workflow(), stale)).name == JobName(RUN, 2, 1)

    def test_at_its_max_runtime_with_a_newer_checkpoint(self) -> None:
        action = expect_submit(
            next_action(
                workflow(), observe(observed_job(ending=JobEnding.TIME_LIMIT), newest_checkpoint_step=10)
            )
        )
        assert action.name == JobName(RUN, 2, 1)

    @pytest.mark.parametrize("ending", [JobEnding.COMPLETED, JobEnding.TIME_LIMIT])
    def test_no_newer_checkpoint_is_the_same_segment_again_and_then_the_end(self, ending: JobEnding) -> None:
        jobs = [observed_job(), *(observed_job(2, attempt, ending, from_step=10) for attempt in (1, 2, 3))]
        resubmitted = expect_submit(
            next_action(
                workflow(),
                observe(*jobs[:3], newest_checkpoint_step=10, outcome_file=outcome_of(job=f"{RUN}-s2-a2")),
            )
        )
        assert resubmitted.name == JobName(RUN, 2, 3)
        action = expect_finish(
            next_action(
                workflow(),
                observe(*jobs, newest_checkpoint_step=10, outcome_file=outcome_of(job=f"{RUN}-s2-a3")),
            )
        )
        assert (action.exit_code, action.status) == (1, "Failed")
        assert f"{RUN}-s2-a1, {RUN}-s2-a2, {RUN}-s2-a3 left nothing newer than step 10" in action.summary

    def test_a_checkpoint_that_did_not_get_there_is_told(self) -> None:
        jobs = [observed_job(1, attempt) for attempt in (1, 2, 3)]
        action = expect_finish(
            next_action(workflow(), observe(*jobs, outcome_file=outcome_of(job=f"{RUN}-s1-a3", step=40)))
        )
        assert "committed step 40, which is incomplete in S3" in action.summary

    def test_a_failure_after_progress_goes_on_and_attempts_count_anew(self) -> None:
        jobs = [observed_job(1, attempt, JobEnding.ALGORITHM, from_step=attempt) for attempt in range(1, 8)]
        assert expect_submit(
            next_action(workflow(), observe(*jobs, newest_checkpoint_step=9))
        ).name == JobName(RUN, 1, 8)

    def test_a_failure_without_progress_uses_up_attempts(self) -> None:
        jobs = [
            observed_job(1, attempt, JobEnding.ALGORITHM, reason="AlgorithmError: boom", from_step=5)
            for attempt in (1, 2, 3)
        ]
        assert expect_submit(
            next_action(workflow(), observe(*jobs[:2], newest_checkpoint_step=5))
        ).name == JobName(RUN, 1, 3)
        action = expect_finish(next_action(workflow(), observe(*jobs, newest_checkpoint_step=5)))
        assert (action.exit_code, action.status) == (1, "Failed")
        assert "boom; tried 3 times without a newer checkpoint" in action.summary

    def test_what_cannot_work_is_given_up_at_once(self) -> None:
        failed = observed_job(ending=JobEnding.CLIENT, reason="ClientError: no such bucket")
        assert expect_finish(next_action(workflow(), observe(failed))).exit_code == 2

    def test_capacity_is_waited_for_longer_each_time(self) -> None:
        waits = []
        for attempts in (1, 2):
            jobs = [observed_job(1, attempt + 1, JobEnding.CAPACITY) for attempt in range(attempts)]
            waits.append(expect_submit(next_action(workflow(), observe(*jobs))).not_before - (NOW - 1))
        assert waits == [60.0, 120.0]
        near = expect_submit(
            next_action(workflow(), observe(observed_job(ending=JobEnding.CAPACITY), wait_time_scale=0.01))
        )
        assert near.not_before == pytest.approx(NOW - 1 + 0.6)

    @pytest.mark.parametrize("ending", [JobEnding.WAIT_EXCEEDED, JobEnding.CAPACITY])
    def test_starved_spot_goes_on_demand_when_asked(self, ending: JobEnding) -> None:
        spot_workflow = workflow(replace(CHAIN, on_demand_fallback=True), SegmentVariant(1, spot_request()))
        action = expect_submit(next_action(spot_workflow, observe(observed_job(ending=ending, is_spot=True))))
        assert action.name == JobName(RUN, 1, 2)
        assert "EnableManagedSpotTraining" not in action.request
        assert action.not_before == 0.0
        later_run = observe(
            observed_job(ending=ending, is_spot=True),
            observed_job(1, 2, JobEnding.ALGORITHM),
            newest_checkpoint_step=5,
        )
        assert "EnableManagedSpotTraining" not in expect_submit(next_action(spot_workflow, later_run)).request
        on = observe(
            observed_job(ending=ending, is_spot=True),
            observed_job(1, 2),
            newest_checkpoint_step=5,
            outcome_file=outcome_of(job=f"{RUN}-s1-a2"),
        )
        assert expect_submit(next_action(spot_workflow, on)).request["EnableManagedSpotTraining"] is True

    def test_starved_spot_ends_the_run_when_not(self) -> None:
        spot_workflow = workflow(CHAIN, SegmentVariant(1, spot_request()))
        assert (
            expect_finish(
                next_action(
                    spot_workflow, observe(observed_job(ending=JobEnding.WAIT_EXCEEDED, is_spot=True))
                )
            ).exit_code
            == 6
        )

    def test_a_person_stops_it_and_goes_on(self) -> None:
        stopped_run = observe(observed_job(ending=JobEnding.STOPPED), newest_checkpoint_step=7)
        assert expect_finish(next_action(workflow(), stopped_run)).exit_code == 5
        resubmitted = expect_submit(
            next_action(workflow(), replace(stopped_run, override_failure=JobName(RUN, 1, 1)))
        )
        assert resubmitted.name == JobName(RUN, 1, 2)
        assert resubmitted.not_before == 0.0

    def test_a_stop_between_two_segments(self) -> None:
        between_segments = observe(
            observed_job(), newest_checkpoint_step=10, outcome_file=outcome_of(), stop_requested=True
        )
        assert expect_finish(next_action(workflow(), between_segments)).exit_code == 5
        finished_run = observe(
            observed_job(), newest_checkpoint_step=10, outcome_file=outcome_of(FINISHED), stop_requested=True
        )
        assert expect_finish(next_action(workflow(), finished_run)).exit_code == 0
        assert expect_finish(next_action(workflow(), observe(stop_requested=True))).exit_code == 5

    def test_finished_and_then_failed_is_done_again_for_its_model(self) -> None:
        failed = observed_job(ending=JobEnding.SERVICE, reason="InternalServerError: gone")
        action = expect_submit(
            next_action(
                workflow(),
                observe(
                    failed,
                    newest_checkpoint_step=20,
                    outcome_file=outcome_of(FINISHED, step=20)._replace(ranks_succeeded=True),
                ),
            )
        )
        assert action.clears_outcome


class TestScriptsWithCheckpointsOfTheirOwn:
    """The content of these checkpoints is unknown: the highest step that a job reports counts."""

    @pytest.mark.parametrize("ending", [JobEnding.COMPLETED, JobEnding.TIME_LIMIT])
    def test_the_next_segment_after_a_higher_step(self, ending: JobEnding) -> None:
        action = expect_submit(
            next_action(
                workflow(), observe(*rows([63, 126], ending), outcome_file=CONTINUES, reported_step=189)
            )
        )
        assert action.name == JobName(RUN, 4, 1)
        assert action.reason == "the script has reported step 189"
        assert action.request["Environment"][FROM_REPORTED_VARIABLE] == "189"

    def test_a_crash_after_a_higher_step_goes_on(self) -> None:
        jobs = [
            observed_job(1, attempt, JobEnding.ALGORITHM, from_reported_step=attempt * 10 - 10 or None)
            for attempt in range(1, 9)
        ]
        action = expect_submit(next_action(workflow(), observe(*jobs, reported_step=71)))
        assert (action.name, action.request["Environment"][FROM_REPORTED_VARIABLE]) == (
            JobName(RUN, 1, 9),
            "71",
        )

    def test_three_jobs_without_a_higher_one_end_it(self) -> None:
        for reported in (63, 60, 0, None):
            jobs = rows([63, 63, 63], JobEnding.COMPLETED, segment=2)
            resubmitted = expect_submit(
                next_action(workflow(), observe(*jobs[:3], outcome_file=CONTINUES, reported_step=reported))
            )
            assert resubmitted.name == JobName(RUN, 2, 3)
            assert resubmitted.request["Environment"][FROM_REPORTED_VARIABLE] == "63"
            end = expect_finish(
                next_action(workflow(), observe(*jobs, outcome_file=CONTINUES, reported_step=reported))
            )
            assert (end.exit_code, end.status) == (1, "Failed")
            names = ", ".join(f"{RUN}-s2-a{attempt}" for attempt in (1, 2, 3))
            assert end.summary.startswith(
                f"no progress: {names} did not get the run beyond step 63: the script"
            )

    def test_a_script_that_begins_anew_may_get_a_little_further(self) -> None:
        """The machine's speed decides how far; it is no progress, for a later client too."""
        jobs = rows([63, 63, 63], JobEnding.COMPLETED, segment=2)
        resubmitted = expect_submit(
            next_action(
                workflow(),
                observe(*jobs[:3], outcome_file=CONTINUES, reported_step=66, newest_job_repeats_steps=True),
            )
        )
        assert resubmitted.request["Environment"][FROM_REPORTED_VARIABLE] == "63"
        end = expect_finish(
            next_action(
                workflow(),
                observe(*jobs, outcome_file=CONTINUES, reported_step=66, newest_job_repeats_steps=True),
            )
        )
        assert "s2-a3 reported steps up to 66, and most of them had been reported before" in end.summary

    def test_three_failures_at_the_same_step(self) -> None:
        jobs = [
            observed_job(2, attempt, JobEnding.ALGORITHM, reason="AlgorithmError: boom", from_reported_step=5)
            for attempt in (1, 2, 3)
        ]
        assert expect_submit(next_action(workflow(), observe(*jobs[:2], reported_step=5))).name == JobName(
            RUN, 2, 3
        )
        end = expect_finish(next_action(workflow(), observe(*jobs, reported_step=5)))
        assert end.exit_code == 1
        assert end.summary == "AlgorithmError: boom; tried 3 times without getting the run beyond step 5"

    def test_failures_and_planned_ends_are_counted_together(self) -> None:
        endings = JobEnding.ALGORITHM, JobEnding.COMPLETED, JobEnding.TIME_LIMIT
        jobs = [
            observed_job(2, attempt, ending, from_reported_step=5)
            for attempt, ending in enumerate(endings, 1)
        ]
        assert expect_finish(next_action(workflow(), observe(*jobs, reported_step=5))).exit_code == 1

    def test_a_committed_step_counts_also_where_none_is_reported_beyond(self) -> None:
        jobs = [
            observed_job(1, attempt, JobEnding.ALGORITHM, from_reported_step=57, from_step=50)
            for attempt in (1, 2, 3)
        ]
        action = expect_submit(
            next_action(workflow(), observe(*jobs, reported_step=55, newest_checkpoint_step=54))
        )
        environment = action.request["Environment"]
        assert (environment[FROM_STEP_VARIABLE], environment[FROM_REPORTED_VARIABLE]) == ("54", "57")

    def test_where_no_step_is_reported_changed_files_count(self) -> None:
        jobs = [old_job(), old_job(2, from_files_digest="aa"), old_job(3, from_files_digest="bb")]
        action = expect_submit(
            next_action(workflow(), observe(*jobs, outcome_file=CONTINUES, checkpoint_files_digest="cc"))
        )
        assert (action.name, action.reason) == (JobName(RUN, 4, 1), "its checkpoint files have changed")
        assert action.request["Environment"][FROM_FILES_VARIABLE] == "cc"
        idle = [*jobs, *(old_job(4, attempt, from_files_digest="cc") for attempt in (1, 2, 3))]
        resubmitted = expect_submit(
            next_action(workflow(), observe(*idle[:-1], outcome_file=CONTINUES, checkpoint_files_digest="cc"))
        )
        assert resubmitted.name == JobName(RUN, 4, 3)
        end = expect_finish(
            next_action(workflow(), observe(*idle, outcome_file=CONTINUES, checkpoint_files_digest="cc"))
        )
        assert (end.exit_code, "saved no new or changed checkpoint file" in end.summary) == (1, True)

    @pytest.mark.parametrize(
        ("mark", "reported", "ending", "counts"),
        [
            (RunProgress(), None, JobEnding.COMPLETED, True),
            (RunProgress(), None, JobEnding.TIME_LIMIT, True),
            (RunProgress(), None, JobEnding.SERVICE, True),  # a machine failed, and not the script
            (RunProgress(), None, JobEnding.ALGORITHM, False),
            (RunProgress(checkpoint_files_digest="old"), None, JobEnding.ALGORITHM, False),
            (RunProgress(), 0, JobEnding.COMPLETED, False),
            (RunProgress(0, 63), 63, JobEnding.COMPLETED, False),
            (RunProgress(0, 63), None, JobEnding.COMPLETED, False),
            (RunProgress(0, 63, "old"), None, JobEnding.COMPLETED, False),
        ],
    )
    def test_when_new_files_are_progress(
        self, mark: RunProgress, reported: int | None, ending: JobEnding, counts: bool
    ) -> None:
        """A log, or a counter of attempts, changes in every job."""
        files = {f"digest {number}" for number in range(3)}
        for digest in files:  # of each of three jobs in a row, whatever the one before has left
            job = old_job(2, 1, ending, **start_fields(mark))
            after = run_progress_after(
                job, observe(job, reported_step=reported, checkpoint_files_digest=digest)
            )
            assert progress_by_job([job], after) == [counts]
            mark = after

    def test_a_script_that_fails_at_one_step_and_keeps_a_log_ends(self) -> None:
        """Its first job reports ten steps; the others fail before they report one."""
        jobs = rows([10, 10, 10], JobEnding.ALGORITHM, segment=1)
        end = expect_finish(next_action(workflow(), observe(*jobs, checkpoint_files_digest="log")))
        assert (end.exit_code, end.summary.count("tried 3 times")) == (1, 1)
        assert "without getting the run beyond step 10" in end.summary
        silent = [old_job(1, attempt, JobEnding.ALGORITHM) for attempt in (1, 2, 3)]
        end = expect_finish(next_action(workflow(), observe(*silent, checkpoint_files_digest="log")))
        assert "tried 3 times without a reported step; files that a failed script changed are" in end.summary

    def test_no_file_and_no_step_ends_it(self) -> None:
        jobs = [old_job(1, attempt) for attempt in (1, 2, 3)]
        assert expect_submit(
            next_action(workflow(), observe(*jobs[:2], outcome_file=CONTINUES))
        ).name == JobName(RUN, 1, 3)
        end = expect_finish(next_action(workflow(), observe(*jobs, outcome_file=CONTINUES)))
        assert (end.exit_code, "no complete checkpoint is in S3" in end.summary) == (1, True)

    @settings(max_examples=200, deadline=None)
    @given(st.lists(st.tuples(st.none() | st.integers(0, 9), st.booleans(), st.sampled_from(["", "a", "b"]))))
    def test_whoever_looks_later_judges_alike(self, observations: list[tuple[int | None, bool, str]]) -> None:
        """A job is judged when it has ended; the request of the next job keeps the result for later
        clients."""
        jobs: list[ObservedJob] = []
        progress_flags: list[bool] = []
        mark = RunProgress()
        for attempt, (reported, repeats, files) in enumerate(observations, 1):
            jobs.append(observed_job(1, attempt, JobEnding.ALGORITHM, **start_fields(mark)))
            now = observe(
                *jobs, reported_step=reported, newest_job_repeats_steps=repeats, checkpoint_files_digest=files
            )
            next_mark = run_progress_after(jobs[-1], now)
            progress_flags.append(progress_by_job(jobs[-1:], next_mark)[0])
            assert progress_by_job(jobs, next_mark) == progress_flags
            assert repeats is False or reported is None or not progress_flags[-1]
            mark = next_mark


class TestCaps:
    def test_training_time_is_used_up(self) -> None:
        capped_workflow = workflow(replace(CHAIN, total_seconds=1500))
        most = observe(
            observed_job(training_seconds=850.0), newest_checkpoint_step=10, outcome_file=outcome_of()
        )
        action = expect_submit(next_action(capped_workflow, most))
        assert action.request["StoppingCondition"]["MaxRuntimeInSeconds"] == 650
        assert action.request["Environment"][STOP_AFTER_VARIABLE] == "450"
        used_up_run = observe(
            observed_job(training_seconds=1200.0), newest_checkpoint_step=10, outcome_file=outcome_of()
        )
        assert expect_finish(next_action(capped_workflow, used_up_run)).exit_code == 6

    def test_cost_shortens_the_last_segment_and_ends_the_run(self) -> None:
        capped_workflow = workflow(
            replace(CHAIN, max_cost=10.0), SegmentVariant(1, request(), price_per_hour=36.0)
        )
        one_segment = observe(
            observed_job(billable_seconds=500.0), newest_checkpoint_step=10, outcome_file=outcome_of()
        )
        assert cost_so_far(capped_workflow, one_segment.jobs) == pytest.approx(5.0)
        shortened = expect_submit(next_action(capped_workflow, one_segment)).request
        assert shortened["StoppingCondition"]["MaxRuntimeInSeconds"] == 500
        two = observed_job(billable_seconds=500.0), observed_job(2, billable_seconds=460.0, from_step=10)
        action = expect_finish(
            next_action(
                capped_workflow,
                observe(*two, newest_checkpoint_step=20, outcome_file=outcome_of(job=f"{RUN}-s2-a1")),
            )
        )
        assert action.exit_code == 6
        assert "$10.00 leaves too little for another job: $9.60 spent" in action.summary
        assert "step 20" in action.summary

    def test_what_a_warm_pool_costs_after_the_run_is_reserved(self) -> None:
        warm_request = request(ResourceConfig={"KeepAlivePeriodInSeconds": 300})
        capped_workflow = workflow(
            replace(CHAIN, max_cost=10.0), SegmentVariant(1, warm_request, price_per_hour=36.0)
        )
        one_segment = observe(
            observed_job(billable_seconds=200.0), newest_checkpoint_step=10, outcome_file=outcome_of()
        )
        shortened = expect_submit(next_action(capped_workflow, one_segment)).request
        assert shortened["StoppingCondition"]["MaxRuntimeInSeconds"] == 500
        assert max_billed_seconds(capped_workflow) == 700
        used_up = observed_job(billable_seconds=700.0)
        end = next_action(
            capped_workflow, observe(used_up, newest_checkpoint_step=10, outcome_file=outcome_of())
        )
        spent_text = "is reached: $7.00 spent, $3.00 kept back for the wait of its last hosts"
        assert spent_text in expect_finish(end).summary
        assert expect_finish(end).raisable_limit == "max_cost"

    def test_attempts_of_a_single_job_share_its_time_and_its_cost(self) -> None:
        """36 dollars an hour are a cent a second."""
        single_request = request(Environment={})
        policy = RunPolicy(attempts=4, total_seconds=1000, max_cost=10.5)
        retried = workflow(policy, SegmentVariant(1, single_request, price_per_hour=36.0))

        def failed(
            attempt: int, seconds: float, ending: JobEnding = JobEnding.ALGORITHM, billed: float | None = None
        ) -> ObservedJob:
            billable_seconds = seconds if billed is None else billed
            times = {"training_seconds": seconds, "billable_seconds": billable_seconds}
            return observed_job(1, attempt, ending, reason="exit code 3", **times)

        action = expect_submit(next_action(retried, observe(failed(1, 700.0))))
        assert action.name.attempt == 2
        assert action.request["StoppingCondition"]["MaxRuntimeInSeconds"] == 300
        # The second one is stopped at what was left of the time.
        stopped_run = observe(failed(1, 700.0), failed(2, 300.0, JobEnding.TIME_LIMIT))
        stopped = expect_finish(next_action(retried, stopped_run))
        assert (stopped.exit_code, stopped.status) == (6, "Stopped")
        assert stopped.summary.startswith("stopped after 2 attempts: its training time of 1000s is used up")
        # No third one starts when the second has used up the rest, or the service has billed more than that.
        for second, cap in (
            (failed(2, 300.0), "its training time of 1000s is used up"),
            (failed(2, 250.0, billed=400.0), "its max_cost of $10.50 is reached: $11.00 spent"),
        ):
            refused = expect_finish(next_action(retried, observe(failed(1, 700.0), second)))
            assert refused.exit_code == 6
            assert refused.summary.startswith(f"exit code 3; no new attempt: {cap}"), refused.summary


# ---- whatever happens --------------------------------------------------------------------------------


class World:
    """A simulated service with jobs, checkpoints and an outcome; the result of each job is random."""

    def __init__(self, stored_workflow: Workflow, endings: list[tuple[JobEnding, int, bool]]) -> None:
        self.workflow = stored_workflow
        self.endings = endings
        self.jobs: dict[JobName, ObservedJob] = {}
        self.step = 0
        self.outcome: SegmentOutcome | None = None
        self.now = NOW
        self.most_billable = 0.0

    def observed(self, **fields: Any) -> ObservedRun:
        return ObservedRun(self.now, tuple(self.jobs.values()), self.step, self.outcome, **fields)

    def create(self, action: SubmitJob) -> None:
        """Accepts a name once, as SageMaker does."""
        if action.name in self.jobs:
            return
        assert all(job.ending is not None for job in self.jobs.values()), "two jobs of a run at once"
        ending, gain, finishes = self.endings[len(self.jobs) % len(self.endings)]
        limit = action.request["StoppingCondition"]["MaxRuntimeInSeconds"]
        self.now = max(self.now, action.not_before) + 1
        if action.clears_outcome:
            self.outcome = None
        if ending is JobEnding.WAIT_EXCEEDED and not action.request.get("EnableManagedSpotTraining"):
            ending = JobEnding.TIME_LIMIT
        used_seconds = (
            0.0 if ending in (JobEnding.CAPACITY, JobEnding.CLIENT, JobEnding.WAIT_EXCEEDED) else float(limit)
        )
        step_before, self.step = self.step, self.step + (gain if used_seconds else 0)
        if ending is JobEnding.COMPLETED:
            result = FINISHED if finishes else CONTINUE
            self.outcome = SegmentOutcome(result, self.step, RUN, str(action.name))
        self.now += used_seconds
        self.jobs[action.name] = ObservedJob(
            action.name.segment,
            action.name.attempt,
            ending,
            ended_at=self.now,
            training_seconds=used_seconds,
            billable_seconds=used_seconds,
            is_spot=bool(action.request.get("EnableManagedSpotTraining")),
            from_step=int(action.request["Environment"].get(FROM_STEP_VARIABLE, 0)),
        )
        assert self.jobs[action.name].from_step == step_before


ending_lists = st.lists(
    st.tuples(st.sampled_from(list(JobEnding)), st.integers(0, 3), st.booleans()), min_size=1, max_size=8
)
policies = st.builds(
    RunPolicy,
    chain=st.booleans(),
    attempts=st.integers(1, 4),
    total_seconds=st.integers(1000, 5000),
    max_cost=st.none() | st.floats(1.0, 100.0),
    on_demand_fallback=st.booleans(),
)
prices = st.none() | st.floats(0.5, 50.0)


def run_to_end(world: World) -> tuple[FinishRun, int]:
    for count in range(500):
        action = next_action(world.workflow, world.observed())
        assert next_action(world.workflow, world.observed()) == action
        if isinstance(action, FinishRun):
            return action, count
        if isinstance(action, WaitUntil):
            assert action.until > world.now
            world.now = action.until
        else:
            jobs_before = len(world.jobs)
            world.create(expect_submit(action))
            assert len(world.jobs) == jobs_before + 1, "a name was asked for twice"
    raise AssertionError("it never ends")


@settings(max_examples=200, deadline=None)
@given(ending_lists, policies, prices, st.booleans())
def test_every_run_ends_within_its_bounds(
    job_endings: list[tuple[JobEnding, int, bool]], policy: RunPolicy, price: float | None, spot: bool
) -> None:
    variant = SegmentVariant(1, spot_request() if spot else request(), price)
    world = World(workflow(policy, variant), job_endings)
    end, _ = run_to_end(world)
    jobs = list(world.jobs.values())
    assert next_action(world.workflow, world.observed()) == end
    assert sum(job.training_seconds for job in jobs[1:]) <= max(0, policy.total_seconds or 0)
    if policy.max_cost is not None and price is not None and len(jobs) > 1:
        assert (cost_so_far(world.workflow, jobs[1:]) or 0.0) <= policy.max_cost
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
@given(ending_lists, policies, st.lists(st.tuples(st.booleans(), st.integers(0, 50)), max_size=40))
def test_two_drivers_and_killed_ones_make_the_same_jobs(
    job_endings: list[tuple[JobEnding, int, bool]], policy: RunPolicy, troubles: list[tuple[bool, int]]
) -> None:
    """``troubles``, round by round: whether the driver is killed before it acts, and what another one, that
    looked some time ago and only now gets to act, had seen."""
    single_driver, shared = World(workflow(policy), job_endings), World(workflow(policy), job_endings)
    end, _ = run_to_end(single_driver)
    observed_runs: list[ObservedRun] = []
    for _ in range(500):
        is_killed, run_index = troubles.pop() if troubles else (False, 0)
        if observed_runs:
            stale = next_action(shared.workflow, observed_runs[-1 - run_index % len(observed_runs)])
            if isinstance(stale, SubmitJob):
                shared.create(stale)
        observed_runs.append(shared.observed())
        action = next_action(shared.workflow, shared.observed())
        if isinstance(action, FinishRun):
            break
        if isinstance(action, WaitUntil):
            shared.now = action.until
        elif not is_killed:
            shared.create(expect_submit(action))
    assert list(shared.jobs) == list(single_driver.jobs)
    assert (shared.step, action) == (single_driver.step, end)
