"""How runs are cut into segments; the driver follows the plan."""

from __future__ import annotations

import dataclasses
import json
from datetime import date
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.chain.workflow import Workflow, build_job_request
from smlaunch.contract.checkpoint_interval import daly_interval
from smlaunch.contract.launch_spec_parser import parse_launch_spec
from smlaunch.contract.segment import STOP_AFTER_VARIABLE, UNTIL_STEP_VARIABLE
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import CheckpointFacts, DiscoveredFacts, InputFacts, ScriptFacts
from smlaunch.job.model import format_duration
from smlaunch.planner import segments
from smlaunch.planner.plan import job_hashes
from smlaunch.planner.segments import HOST_MTBF_SECONDS, SegmentOverheads, format_seconds
from smlaunch.render.plan import Plan
from tests.planner.fixtures import PLAIN, TORCH, UNTRAINED_HOURS, local, plan, region, with_inputs
from tests.planner.test_plan import refusals
from tests.strategies.requests import without_launch_hash

OURS = ScriptFacts(imports=TORCH.imports | {"smlaunch.train"})
GB = 10**9
TWELVE = CheckpointFacts(12 * GB, 4 * GB)


def chain(job: dict[str, Any] | None = None, facts: DiscoveredFacts | None = None) -> Plan:
    """Returns the plan for a script that can resume."""
    return plan(job, dataclasses.replace(facts or region(), script=OURS))


def rules(job_plan: Plan) -> list[str]:
    return [reason.rule for reason in job_plan.reasons]


# ---- cutting ---------------------------------------------------------------------------------------------


def test_what_fits_into_one_job_is_one_job_as_ever() -> None:
    job_plan = chain({"limits": {"max_runtime": "28d"}})
    assert [segment.max_runtime for segment in job_plan.segments] == [28 * 86400]
    assert not job_plan.workflow.policy.chain
    assert job_plan.schedule is None
    assert job_plan.checkpoints is None
    assert "Environment" not in job_plan.requests[0]


CUTS = [
    ({"max_runtime": "60d", "segment": "24h"}, {}, 61, "24h", "1435m"),
    ({"max_runtime": "60d"}, {}, 3, "28d", "671h55m"),
    ({"max_runtime": "60d"}, {"max_runtime_quota": 5 * 86400}, 13, "5d", "119h55m"),
    ({"max_runtime": "60d"}, {"max_runtime_quota": None}, 13, "5d", "119h55m"),
    ({"max_runtime": "60d", "segment": "28d"}, {"max_runtime_quota": None}, 3, "28d", "671h55m"),
    ({"max_runtime": "60d", "segment": "28d"}, {"max_runtime_quota": 28 * 86400}, 3, "28d", "671h55m"),
    ({"max_runtime": "3d", "segment": "7d"}, {}, 1, "3d", "71h55m"),
    ({"segment": "7d"}, {}, 1, "24h", "1435m"),
]


@pytest.mark.parametrize(("limits", "facts", "count", "length", "stop_after"), CUTS)
def test_cuts(
    limits: dict[str, str], facts: dict[str, Any], count: int, length: str, stop_after: str
) -> None:
    job_plan = chain({"limits": limits}, region(**facts))
    first = job_plan.segments[0]
    assert len(job_plan.segments) == len(job_plan.planned_jobs) == count
    assert format_duration(first.max_runtime) == length
    assert first.stop_after == segments.parse_duration(stop_after)
    assert job_plan.workflow.policy.chain
    assert [task.name for task in job_plan.planned_jobs][:2] == [f"digits-s{n}-a1" for n in (1, 2)][:count]


def test_every_segment_is_told_its_planned_end_and_its_prefix() -> None:
    job_plan = chain({"limits": {"max_runtime": "50h", "segment": "24h"}})
    bucket = "s3://sagemaker-us-east-1-123456789012/smlaunch/digits"
    for task, segment in zip(job_plan.planned_jobs, job_plan.segments, strict=True):
        assert task.request["CheckpointConfig"] == {
            "S3Uri": f"{bucket}/checkpoints/",
            "LocalPath": "/opt/ml/checkpoints",
        }
        assert task.request["Environment"][STOP_AFTER_VARIABLE] == str(segment.stop_after)
        assert task.request["StoppingCondition"]["MaxRuntimeInSeconds"] == segment.max_runtime
        uris = [c["DataSource"]["S3DataSource"]["S3Uri"] for c in task.request["InputDataConfig"]]
        assert f"{bucket}/launch/" in map(without_launch_hash, uris)
        assert task.launch_spec == job_plan.planned_jobs[0].launch_spec
    (launch,) = [upload for upload in job_plan.uploads if upload.kind == "launch"]
    spec = parse_launch_spec(launch.content or "")
    assert spec.run == "digits"
    assert spec.margin_seconds == 300
    assert spec.checkpoints is not None
    assert spec.checkpoints.failure_seconds == round(HOST_MTBF_SECONDS, 1)


@settings(max_examples=40, deadline=None)
@given(
    segments=st.integers(1, 20),
    last_seconds=st.integers(0, 28 * 86400),
    segment=st.integers(2, 28 * 86400),
    known_facts=st.sampled_from([region(), local()]),
)
def test_the_plans_tasks_are_what_the_driver_would_send(
    segments: int, last_seconds: int, segment: int, known_facts: DiscoveredFacts
) -> None:
    """And their planned ends lie before their limits, within the time there is in all."""
    total = segments * segment + last_seconds % segment
    limits = {"max_runtime": f"{total}s", "segment": f"{segment}s"}
    try:
        job_plan = chain({"limits": limits}, known_facts)
    except JobError as error:
        message = str(error)
        assert "leaves no time to train" in message or "more than 999 segments" in message
        return
    workflow = Workflow.from_json(job_plan.workflow.to_json())
    assert json.loads(workflow.to_json()) == json.loads(job_plan.workflow.to_json())
    seconds_left = float(total)
    for task, segment_plan in zip(job_plan.planned_jobs, job_plan.segments, strict=True):
        repeated_request = build_job_request(workflow, task.segment, 1, seconds_left=seconds_left)
        assert repeated_request == task.request
        assert segment_plan.stop_after is not None
        assert 0 <= segment_plan.stop_after <= segment_plan.max_runtime <= seconds_left
        seconds_left -= segment_plan.stop_after if segment_plan.max_runtime > 1 else 1
    assert job_plan.workflow.policy.total_seconds == total


# ---- planned ends, start cost, interval --------------------------------------------------------------------


def test_short_segments_give_a_quarter() -> None:
    job_plan = chain({"limits": {"max_runtime": "40s", "segment": "10s"}}, local())
    assert (job_plan.segments[0].max_runtime, job_plan.segments[0].stop_after) == (10, 7)
    assert "a quarter of its time" in str(job_plan)


def test_what_a_start_brings_makes_the_planned_end_earlier() -> None:
    facts = {"train": InputFacts("s3://b/t/", "s3", objects=9, bytes=120 * GB)}
    job = {"limits": {"max_runtime": "60d", "segment": "24h"}, "inputs": {"train": "s3://b/t/"}}
    job_plan = chain(job, with_inputs(region(), facts))
    assert job_plan.schedule is not None
    assert job_plan.schedule.start == 600 + 60
    assert job_plan.segments[0].stop_after == 86400 - 300 - 600
    job["inputs"] = {"train": {"uri": "s3://b/t/", "mode": "FastFile"}}
    streamed = chain(job, with_inputs(region(), facts))
    assert streamed.segments[0].stop_after == 86400 - 300


def test_a_segment_of_which_nothing_is_left_is_refused() -> None:
    lines = refusals({"limits": {"max_runtime": "10m", "segment": "1s"}}, local(script=OURS))
    assert lines[0].startswith("limits.segment: 1s leaves no time to train"), lines


def test_a_segment_too_short_to_train_in_is_refused() -> None:
    (line,) = refusals({"limits": {"max_runtime": "3h", "segment": "75s"}}, region(script=OURS))
    assert line.startswith(
        "limits.segment: 75s leaves no time to train: starting takes 1m, and 19s are reserved"
    )


def test_more_segments_than_names_are_refused() -> None:
    (line,) = refusals({"limits": {"max_runtime": "60d", "segment": "10m"}}, region(script=OURS))
    assert line.startswith("limits.segment: 60d would take more than 999 segments")


def test_the_expectation_is_dalys() -> None:
    """Anchors: T = 2000 h, M = 72 h, d = 1 s, R = 5 min, S = 24 h, Q = 15 min give a goodput of .9672 there;
    here the margin before the limit is not lost, since a segment ends when it has saved."""
    job_plan = chain({"limits": {"max_runtime": "60d", "segment": "24h"}, "compute": {"hosts": 4}})
    expected = job_plan.schedule
    assert expected is not None
    assert expected.mtbf == HOST_MTBF_SECONDS / 4
    assert expected.interval == pytest.approx(daly_interval(1.0, HOST_MTBF_SECONDS / 4))
    assert 0.998 < expected.goodput < 1
    assert expected.makespan == 60 * 86400 + 61 * 300
    assert f"{format_seconds(expected.interval)} or as measured" in str(job_plan)


def test_spot_hosts_fail_more_often() -> None:
    job = {"limits": {"max_runtime": "60d", "segment": "24h"}, "compute": {"spot": True}}
    on_spot = chain(job).schedule
    assert on_spot is not None
    assert on_spot.mtbf == segments.SPOT_MTBF_SECONDS


def test_a_stated_interval_is_kept() -> None:
    job_plan = chain({"limits": {"segment": "12h"}, "checkpoints": {"interval": "20m", "keep": 5}})
    assert job_plan.checkpoints is not None
    assert (job_plan.checkpoints.interval_seconds, job_plan.checkpoints.keep) == (1200.0, 5)
    assert "one every 20m; the newest 5 are kept" in str(job_plan)
    assert "checkpoints.interval" not in rules(job_plan)


UNREAD_QUOTA = (
    "is not known (ListServiceQuotas: AccessDenied): AWS's default is 5d, a quota that can be raised"
)


def test_a_quota_nobody_could_read_is_the_default() -> None:
    unread = region(
        max_runtime_quota=None, max_runtime_quota_problem="ListServiceQuotas: AccessDenied", script=OURS
    )
    job_plan = chain({"limits": {"max_runtime": "60d"}}, unread)
    assert job_plan.segments[0].max_runtime == 5 * 86400
    assert any(UNREAD_QUOTA in text for text in job_plan.warnings)
    stated = chain({"limits": {"max_runtime": "60d", "segment": "20d"}}, unread)
    assert stated.segments[0].max_runtime == 20 * 86400
    assert any(UNREAD_QUOTA in text for text in stated.warnings)
    short = chain({"limits": {"max_runtime": "60d", "segment": "5d"}}, unread)
    assert not any("quota for the longest run" in text for text in short.warnings)
    in_one_job = plan({"strategy": "processing", "limits": {"max_runtime": "6d"}}, unread)
    assert any(UNREAD_QUOTA in text for text in in_one_job.warnings)
    known_quota = chain({"limits": {"max_runtime": "60d"}}, region(max_runtime_quota=5 * 86400))
    assert "segment.quota" in rules(known_quota)


# ---- what a chain is worth ---------------------------------------------------------------------------------

SEVERAL = {"limits": {"max_runtime": "3d", "segment": "24h"}}


@pytest.mark.parametrize(
    ("limits", "field"), [({"max_runtime": "60d"}, "max_runtime"), (SEVERAL["limits"], "segment")]
)
def test_a_script_that_does_nothing_is_refused_past_its_limit(limits: dict[str, str], field: str) -> None:
    (line,) = refusals({"limits": limits}, region(script=PLAIN))
    assert line.startswith(f"limits.{field}: ")
    assert "nothing in train.py resumes where another job has stopped" in line
    assert "DMTCP" in line
    assert "CRIU" in line


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (ScriptFacts(imports=frozenset({"xgboost"})), "XGBoost resumes after the last saved tree"),
        (ScriptFacts(imports=frozenset({"tensorflow.keras"})), "BackupAndRestore resumes"),
        (ScriptFacts(imports=frozenset({"lightning"})), "ckpt_path"),
        (ScriptFacts(imports=frozenset({"transformers"})), "resume_from_checkpoint"),
        (ScriptFacts(imports=frozenset({"torch.load"})), "a state of its own"),
        (ScriptFacts(names_checkpoint_dir=True), "saves its own checkpoints"),
        (ScriptFacts(module_imports=frozenset({"xgboost.sklearn"})), "XGBoost resumes"),
    ],
)
def test_what_a_chain_is_worth_without_ours(script: ScriptFacts, message: str) -> None:
    assert any(message in text for text in plan(SEVERAL, region(script=script)).warnings)


def test_ours_found_in_a_module_of_the_source_is_ours() -> None:
    job_plan = plan(SEVERAL, region(script=ScriptFacts(module_imports=frozenset({"smlaunch.train"}))))
    assert "resume.exact" in rules(job_plan)
    assert job_plan.warnings == ()


def test_one_segment_asks_nothing_of_the_script() -> None:
    assert plan({"limits": {"max_runtime": "10h", "segment": "24h"}}, region(script=PLAIN)).warnings == ()


def test_a_prefix_that_the_user_states_is_believed() -> None:
    job_plan = plan({**SEVERAL, "checkpoints": "s3://b/c/"}, region(script=PLAIN))
    assert any("verify-resume" in text for text in job_plan.warnings)


# ---- carriers ----------------------------------------------------------------------------------------------


def test_a_state_that_the_sync_could_not_bring_in_time_goes_directly() -> None:
    checkpoint_facts = CheckpointFacts(total_bytes=6000 * GB, step_bytes=2000 * GB)
    job = {
        "limits": {"max_runtime": "10d", "segment": "24h"},
        "compute": {"hosts": 8},
        "checkpoints": "s3://b/c/",
    }
    job_plan = chain(job, region(checkpoints=checkpoint_facts))
    assert job_plan.checkpoints is not None
    assert job_plan.checkpoints.upload == "direct"
    assert "CheckpointConfig" not in job_plan.requests[0]
    assert "upload.direct" in rules(job_plan)
    small = chain(job, region(checkpoints=CheckpointFacts(30 * GB, 10 * GB)))
    assert small.checkpoints is not None
    assert small.checkpoints.upload == "sync"
    isolated = chain(
        {**job, "network_isolation": True}, region(checkpoints=CheckpointFacts(900 * GB, 300 * GB))
    )
    assert isolated.checkpoints is not None
    assert isolated.checkpoints.upload == "sync"
    assert any("only the sync is possible" in text for text in isolated.warnings)


def test_a_direct_carrier_that_cannot_be() -> None:
    job = {**SEVERAL, "checkpoints": {"upload": "direct"}, "network_isolation": True}
    (line,) = refusals(job, region(script=OURS))
    assert line.startswith("checkpoints.upload: direct uploads from the hosts to S3")
    own_script = ScriptFacts(names_checkpoint_dir=True)
    (line,) = refusals({**SEVERAL, "checkpoints": {"upload": "direct"}}, region(script=own_script))
    assert "train.py does not use it; use sync" in line


# ---- segments that differ ----------------------------------------------------------------------------------

GROWS = {
    "limits": {"max_runtime": "72h", "segment": "24h"},
    "hyperparameters": {"lr": 0.1, "batch": 32},
    "segments": [
        {"until_step": 1000},
        {"hyperparameters": {"batch": 64}, "compute": {"hosts": 2}, "length": "12h"},
    ],
}


def test_no_difference_of_segments_shows_a_secret() -> None:
    segments = [{"length": "12h"}, {"hyperparameters": {"api_token": "Sup3rS3cretPw"}}]
    job_plan = chain({**GROWS, "hyperparameters": {"api_token": "BaseS3cret1"}, "segments": segments})
    (warning,) = [text for text in job_plan.warnings if "bit-identical" in text]
    assert "api_token" in warning
    assert not [text for text in job_plan.warnings if "S3cret" in text]


def test_later_segments_may_differ() -> None:
    job_plan = chain(GROWS)
    first, second = job_plan.workflow.variants
    assert (first.first_segment, second.first_segment) == (1, 2)
    assert (first.until_step, second.until_step) == (1000, None)
    assert first.request["Environment"][UNTIL_STEP_VARIABLE] == "1000"
    assert UNTIL_STEP_VARIABLE not in second.request["Environment"]
    assert first.request["HyperParameters"] == {"lr": "0.1", "batch": "32"}
    assert second.request["HyperParameters"] == {"lr": "0.1", "batch": "64"}
    assert [segment.hosts for segment in job_plan.segments[:3]] == [1, 2, 2]
    assert [segment.max_runtime for segment in job_plan.segments[:3]] == [86400, 43200, 43200]
    (warning,) = [text for text in job_plan.warnings if "bit-identical" in text]
    assert warning.startswith("What follows on step 1000 differs (hosts 1 -> 2, batch 32 -> 64)")
    launch_uris = [upload.uri for upload in job_plan.uploads if upload.kind == "launch"]
    assert [without_launch_hash(uri) for uri in launch_uris] == [
        "s3://sagemaker-us-east-1-123456789012/smlaunch/digits/launch/job.json"
    ] * 2
    assert launch_uris[0] != launch_uris[1]  # of their contents


def test_lengths_add_up_where_nothing_else_is_said() -> None:
    job_plan = chain({"segments": [{"length": "1h"}, {"length": "2h"}]})
    assert job_plan.schedule is not None
    assert job_plan.schedule.total == 3 * 3600
    (line,) = refusals(
        {"limits": {"max_runtime": "9h", "segment": "1h"}, "segments": [{"length": "2h"}]},
        region(script=OURS),
    )
    assert line.startswith("segments[0].length: 2h is longer than the 1h")


def test_a_change_that_never_comes_is_told() -> None:
    job_plan = chain({"limits": {"max_runtime": "2h"}, "segments": [{}, {}]})
    assert any(text.startswith("segments[1] never starts") for text in job_plan.warnings)


# ---- money, attempts, spot ---------------------------------------------------------------------------------

DEAR = {"instance_type": "ml.g5.12xlarge", "price_per_hour": 10.0}


def test_a_cap_of_a_chain_ends_it_on_the_way() -> None:
    limits = {"max_runtime": "60d", "segment": "24h", "max_cost": 500.0}
    job_plan = chain({"limits": limits, "compute": DEAR})
    assert job_plan.cost.maximum == 500.0
    assert job_plan.workflow.policy.max_cost == 500.0
    assert job_plan.workflow.variants[0].price_per_hour == 10.0
    assert "cost.capped-while-running" in rules(job_plan)
    (line,) = refusals({"limits": {**limits, "max_cost": 3}, "compute": DEAR}, region(script=OURS))
    assert line.startswith(
        "limits.max_cost: 1 x ml.g5.12xlarge for up to 60d, and 1d21h of starts, transfers"
    )
    assert "may cost $14,857.50" in line
    assert "it pays for 3m" in line
    rehearsed = chain({"limits": limits, "compute": DEAR}, local())
    assert rehearsed.cost.maximum == 500.0


def test_the_money_of_a_chain_ends_on_a_date() -> None:
    limits = {"max_runtime": "60d", "segment": "24h", "max_cost": 500.0}
    facts = region(today=date(2026, 11, 27))
    job_plan = chain({"limits": limits, "compute": DEAR}, facts)
    # 50 hours at $10, and a wait for hosts after each of two segments.
    assert job_plan.cost.money_ends == job_plan.to_dict()["cost"]["money_ends"] == "2026-11-29"
    text = " ".join(str(job_plan).split())
    assert "pays for 2d2h of it at $10.00 per hour, until about 2026-11-29 if it starts today" in text
    assert "before it has cost $500.00, about 2026-11-29 if it starts today;" in text
    assert chain({"limits": {**limits, "max_cost": 50_000}, "compute": DEAR}, facts).cost.money_ends is None
    assert chain({"limits": limits, "compute": DEAR}).cost.money_ends is None


def test_the_dearest_segment_bounds_the_cost() -> None:
    job_plan = chain({**GROWS, "compute": DEAR})
    assert job_plan.cost.per_hour == 20.0
    assert job_plan.cost.maximum == 20.0 * (72 + UNTRAINED_HOURS * 3 * len(job_plan.segments))


def test_attempts() -> None:
    assert chain().workflow.policy.attempts == 1
    assert chain(SEVERAL).workflow.policy.attempts == 3
    assert chain({"limits": {"attempts": 7}}).workflow.policy.attempts == 7


def test_what_is_only_about_money_and_patience_is_not_part_of_the_jobs_hash() -> None:
    base = {"compute": {"spot": True}, "checkpoints": "s3://b/c/"}
    changed = {
        "compute": {"spot": True, "on_demand_fallback": True},
        "checkpoints": "s3://b/c/",
        "limits": {"attempts": 5},
    }
    assert (
        chain(base).job_hash
        == chain(changed).job_hash
        == job_hashes(chain(base).job, region(script=OURS)).complete
    )


def test_a_spot_run_of_more_than_one_job_may_last_has_a_prefix_of_its_own() -> None:
    spot = {"compute": {"spot": True}}
    quota = dataclasses.replace(region(script=OURS), max_runtime_quota=5 * 86400)
    for limits, facts in (("60d", None), ("10d", quota)):
        job_plan = chain({**spot, "limits": {"max_runtime": limits}}, facts)
        assert job_plan.checkpoints is not None and job_plan.checkpoints.uri.endswith("/checkpoints/")
    (line,) = refusals({**spot, "limits": {"max_runtime": "10d"}}, region(script=OURS))
    assert line.startswith("checkpoints: a spot job of 10d that is interrupted starts from zero")


def test_attempts_without_checkpoints_start_from_the_beginning() -> None:
    def warnings(job: dict[str, Any]) -> list[str]:
        return [warning for warning in chain(job).warnings if warning.startswith("limits.attempts: each of")]

    assert len(warnings({"limits": {"attempts": 4}})) == 1
    for other in ({"checkpoints": {}}, {"limits": {"attempts": 4, "max_runtime": "2d", "segment": "1d"}}):
        assert warnings({"limits": {"attempts": 4}, **other}) == []
    assert warnings({}) == []


def test_a_last_step_needs_a_script_that_reports_its_steps() -> None:
    own_checkpoints = ScriptFacts(names_checkpoint_dir=True)
    (line,) = refusals(GROWS, region(script=own_checkpoints))
    assert line.startswith("segments[0].until_step: nothing in train.py reports its training steps, so no")
    assert "on each host" not in line and "--allow script.until-step" in line
    facts = region(script=own_checkpoints._replace(names_progress_line=True))
    (warning,) = [text for text in plan(GROWS, facts).warnings if text.startswith("segments[0].until_step")]
    assert "the segment ends when train.py prints `smlaunch: progress step=1000` or a later step" in warning
    assert not [text for text in chain(GROWS).warnings if text.startswith("segments[0].until_step")]


def test_steps_of_segments_rise() -> None:
    segments = [{"until_step": 100}, {"until_step": 50}, {"until_step": 100}, {"until_step": 101}, {}]
    lines = refusals({"segments": segments}, region(script=OURS))
    assert [line.partition(":")[0] for line in lines] == ["segments[1].until_step", "segments[2].until_step"]
    assert "until step 50, never does; the steps must rise" in lines[0]


def test_a_role_of_another_partition_is_refused() -> None:
    role = "arn:aws-cn:iam::123456789012:role/SageMaker"
    (line,) = refusals({}, dataclasses.replace(region(script=OURS), role=role))
    assert line.startswith(f"role: {role!r} is a role of another partition than us-east-1")


def test_amounts_and_times_that_differ_are_shown_differently() -> None:
    price = {"price_per_hour": 4.22}
    (line,) = refusals(
        {"compute": price, "limits": {"max_runtime": "45m", "max_cost": 4.2199}}, region(script=OURS)
    )
    assert "may cost $4.2200, more than $4.2199" in line
    limits = {"max_runtime": "28d1s", "segment": "14d"}
    assert "28d1s of training in all" in str(chain({"limits": limits}))


def test_a_spot_chain_needs_no_prefix_of_the_users() -> None:
    job_plan = chain({**SEVERAL, "compute": {"spot": True, "on_demand_fallback": True}})
    assert job_plan.workflow.policy.on_demand_fallback
    assert job_plan.requests[0]["StoppingCondition"]["MaxWaitTimeInSeconds"] == 2 * 86400
    (line,) = refusals({"compute": {"on_demand_fallback": True}})
    assert line.startswith("compute.on_demand_fallback: it replaces spot capacity")


def test_variables_of_the_plan_are_not_the_users() -> None:
    (line,) = refusals({"environment": {STOP_AFTER_VARIABLE: "3"}})
    assert line.startswith(
        f"environment.{STOP_AFTER_VARIABLE}: names that begin with SMLAUNCH_ are smlaunch's own"
    )


def test_the_document_and_the_text_tell_of_segments() -> None:
    job_plan = chain({"limits": {"max_runtime": "60d", "segment": "24h"}})
    document = job_plan.to_dict()
    assert json.loads(json.dumps(document)) == document
    assert document["segments"][60]["index"] == 61
    assert document["schedule"]["goodput"] == job_plan.schedule.goodput  # type: ignore[union-attr]
    assert document["checkpoints"]["upload"] == "sync"
    text = str(job_plan)
    assert "  segments     60 x 1d + 5h; the first ends itself after 23h55m\n" in text
    assert "send the next, up to digits-s61-a1 if none fails" in text


def test_costs_of_a_known_state() -> None:
    job = chain({"compute": {"hosts": 2}, "checkpoints": "s3://b/c/"}).job
    costs = SegmentOverheads.for_job(job, region(checkpoints=TWELVE))
    assert costs.checkpoint_stall_seconds == pytest.approx(1.0)
    assert costs.download_seconds == pytest.approx(60.0)
    assert costs.last_save_seconds == pytest.approx(40.0)
    job = chain({**SEVERAL, "compute": {"hosts": 2}, "checkpoints": "s3://b/c/"}, region(checkpoints=TWELVE))
    assert "downloads 12.0 GB of checkpoints to each of 2 hosts, in 1m at 200 MB/s" in str(job).replace(
        "\n    ", " "
    )
