"""A segment: the variables of its ranks, its planned end, and its outcome file."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from smlaunch.contract.launch_spec import CheckpointSpec, LaunchSpec, LaunchSpecError, RankSpec, Ref
from smlaunch.contract.launch_spec_parser import parse_launch_spec
from smlaunch.contract.run_names import parse_job_name
from smlaunch.contract.segment import DIRECT, Segment
from smlaunch.contract.segment_outcome import (
    CONTINUE,
    FINISHED,
    HostSegmentOutcome,
    SegmentOutcome,
    find_newest_outcome,
    parse_host_outcome,
    parse_outcome,
)
from tests.runtime.host import SCRIPT, Host, finish
from tests.runtime.test_signals import read_ready_lines

MakeHost = Callable[..., Host]

CHECKPOINTS = CheckpointSpec("/opt/ml/checkpoints/", "s3://b/run/checkpoints/", keep=5, interval_seconds=90.0)
JOB = "digits-s2-a3"
OUTCOME_FILE = "smlaunch/outcome-digits-s2-a3.json"
PRINT_ENVIRONMENT = "import json, os\nprint(json.dumps(dict(os.environ)))"
WAIT_FOR_STOP_FILE = """
import os, sys, time
print("ready", flush=True)
end = time.monotonic() + 30
while not os.path.exists(os.environ["SMLAUNCH_STOP_FILE"]) and time.monotonic() < end:
    time.sleep(0.01)
print("asked", flush=True)
"""
IGNORE_STOP_FILE = """
import os, signal, sys
def leave(number, frame):
    print("file", os.path.exists(os.environ["SMLAUNCH_STOP_FILE"]), flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
while True:
    signal.pause()
"""


def segment_host(make_host: MakeHost, train: str, job: str = JOB, **settings: Any) -> Host:
    environ = {"TRAINING_JOB_NAME": job, **settings.pop("environ", {})}
    return make_host(train, environ=environ, **settings)


def outcome_of(host: Host, file_name: str = OUTCOME_FILE) -> SegmentOutcome | None:
    path = Path(host.paths.checkpoints) / file_name
    return parse_outcome(path.read_bytes()) if path.exists() else None


def write_outcome(host: Host, outcome: SegmentOutcome) -> None:
    path = Path(host.paths.checkpoints) / outcome.path
    path.parent.mkdir(parents=True)
    path.write_bytes(outcome.to_bytes())


# ---- variables of the ranks ----------------------------------------------------------------------------


def test_every_rank_is_told_of_its_segment(make_host: MakeHost) -> None:
    host = segment_host(
        make_host, PRINT_ENVIRONMENT, environ={"SMLAUNCH_STOP_AFTER": "3600", "SMLAUNCH_UNTIL_STEP": "500"}
    )
    before = time.time()
    environments = host.run(per_host=2, run="digits", checkpoints=CHECKPOINTS, deterministic=True).documents()
    assert len(environments) == 2
    for environment in environments:
        segment = Segment.from_environment(environment)
        assert segment.stop_at is not None
        assert before + 3600 <= segment.stop_at <= time.time() + 3600
        assert segment == Segment(
            run="digits",
            job=JOB,
            segment=2,
            attempt=3,
            checkpoint_dir=host.paths.checkpoints,
            checkpoints_uri="s3://b/run/checkpoints/",
            keep_steps=5,
            interval_seconds=90.0,
            stop_file=f"{host.root}/smlaunch/stop",
            stop_at=segment.stop_at,
            until_step=500,
            deterministic=True,
        )
    assert Path(host.paths.checkpoints).is_dir()


def test_the_requests_run_counts_more_than_job_json(make_host: MakeHost) -> None:
    """One job.json serves every run that an orchestrator starts with it."""
    own = {"SMLAUNCH_RUN": "nightly", "SMLAUNCH_CHECKPOINTS_URI": "s3://b/nightly/checkpoints/"}
    host = segment_host(make_host, PRINT_ENVIRONMENT, "nightly-s2-a3", environ=own)
    (environment,) = host.run(run="digits", checkpoints=CHECKPOINTS).documents()
    segment = Segment.from_environment(environment)
    assert (segment.run, segment.segment, segment.attempt) == ("nightly", 2, 3)
    assert segment.checkpoints_uri == "s3://b/nightly/checkpoints/"


def test_a_run_that_was_only_inherited_is_another_ones(make_host: MakeHost) -> None:
    """A rank may launch a run on its own machine; that run's host inherits the outer job's variables."""
    outer = {"SMLAUNCH_RUN": "outer", "SMLAUNCH_CHECKPOINTS_URI": "s3://b/outer/checkpoints/"}
    host = segment_host(make_host, PRINT_ENVIRONMENT, environ=outer)
    (environment,) = host.run(run="digits", checkpoints=CHECKPOINTS).documents()
    segment = Segment.from_environment(environment)
    assert (segment.run, segment.segment, segment.checkpoints_uri) == ("digits", 2, CHECKPOINTS.uri)


def test_a_job_that_keeps_nothing_is_told_so(make_host: MakeHost) -> None:
    environment = make_host(PRINT_ENVIRONMENT).run().documents()[0]
    assert Segment.from_environment(environment) == Segment(stop_file=environment["SMLAUNCH_STOP_FILE"])


def test_a_service_that_makes_its_own_names_says_the_segment_itself(make_host: MakeHost) -> None:
    host = segment_host(
        make_host,
        PRINT_ENVIRONMENT,
        job="pipelines-x1y2",
        environ={"SMLAUNCH_SEGMENT": "4", "SMLAUNCH_ATTEMPT": "2"},
    )
    segment = Segment.from_environment(host.run(run="digits", checkpoints=CHECKPOINTS).documents()[0])
    assert (segment.run, segment.job) == ("digits", "pipelines-x1y2")
    assert (segment.segment, segment.attempt) == (4, 2)


@pytest.mark.parametrize("variable", ["SMLAUNCH_STOP_AFTER", "SMLAUNCH_UNTIL_STEP"])
def test_a_variable_that_is_no_number_is_refused_by_name(make_host: MakeHost, variable: str) -> None:
    result = make_host(PRINT_ENVIRONMENT, environ={variable: "soon"}).run()
    assert result.exit_code == 2
    assert f"{variable}: a number" in result.stderr


def test_the_order_survives_its_journey() -> None:
    checkpoints = CheckpointSpec("/opt/ml/checkpoints", "s3://b/p/", DIRECT, 4, 60.0, 86400.0)
    spec = LaunchSpec(
        RankSpec(("true",)), run="r", checkpoints=checkpoints, margin_seconds=30.0, deterministic=True
    )
    assert parse_launch_spec(spec.to_json()) == spec
    older = {"version": "1.0", "ranks": {"argv": ["true"]}}
    assert parse_launch_spec(json.dumps(older)).checkpoints is None
    with pytest.raises(LaunchSpecError, match=r"checkpoints\.upload: one of sync, direct"):
        parse_launch_spec(spec.to_json().replace('"direct"', '"pigeon"'))


# ---- the planned end -----------------------------------------------------------------------------------


def test_at_the_planned_end_ranks_leave_by_themselves(make_host: MakeHost) -> None:
    host = segment_host(make_host, WAIT_FOR_STOP_FILE, environ={"SMLAUNCH_STOP_AFTER": "1"})
    result = host.run(per_host=2, run="digits", checkpoints=CHECKPOINTS, margin_seconds=40.0)
    assert (result.exit_code, host.failure) == (0, "")
    assert sorted(result.lines)[:2] == ["[0] asked", "[0] ready"]
    assert outcome_of(host) == SegmentOutcome(CONTINUE, None, "digits", JOB, 2, 3, ranks_succeeded=True)
    assert "segment 2 of run digits: continue" in result.stderr


def test_ranks_that_stay_after_the_planned_end_are_stopped(make_host: MakeHost) -> None:
    host = segment_host(make_host, IGNORE_STOP_FILE, environ={"SMLAUNCH_STOP_AFTER": "0.6"})
    result = host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=1.0)
    assert result.exit_code == 0
    assert "[0] file True" in result.lines
    assert outcome_of(host) == SegmentOutcome(CONTINUE, None, "digits", JOB, 2, 3, ranks_succeeded=True)


REPORT_STEPS = """
import time
for step in range(1, 2000):
    print(f"smlaunch: progress step={step}", flush=True)
    time.sleep(0.01)
"""


def test_a_segment_ends_at_the_report_of_its_last_step(make_host: MakeHost) -> None:
    """A script that knows of no stop file is stopped at once: it has not trained far beyond that step."""
    environ = {"SMLAUNCH_STOP_AFTER": "3600", "SMLAUNCH_UNTIL_STEP": "3"}
    host = segment_host(make_host, REPORT_STEPS, environ=environ)
    result = host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=3600.0)
    assert (result.exit_code, host.failure) == (0, "")
    outcome = outcome_of(host)
    assert outcome is not None and outcome.result == CONTINUE
    assert outcome.reported_step is not None and 3 <= outcome.reported_step < 1999
    assert "its ranks have been stopped: this is no failure" in result.stderr


def test_a_script_that_reads_the_stop_file_leaves_by_itself_after_its_last_step(make_host: MakeHost) -> None:
    reports = WAIT_FOR_STOP_FILE.replace('"ready"', '"smlaunch: progress step=5 steps=9"')
    environ = {"SMLAUNCH_STOP_AFTER": "3600", "SMLAUNCH_UNTIL_STEP": "3"}
    host = segment_host(make_host, reports, environ=environ)
    result = host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=3600.0)
    assert (result.exit_code, host.failure) == (0, "")
    assert "asked" in "".join(result.lines)
    outcome = outcome_of(host)
    assert outcome is not None and (outcome.result, outcome.reported_step) == (CONTINUE, 5)


SIGTERM_REACTIONS = {
    "dies of the signal": "signal.pause()",
    "is deaf": "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nwhile True: signal.pause()",
    "exits with 143": "signal.signal(signal.SIGTERM, lambda *_: os._exit(143))\nsignal.pause()",
    "exits with 1": "signal.signal(signal.SIGTERM, lambda *_: sys.exit('no'))\nsignal.pause()",
    "has a child that is deaf": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsubprocess.Popen(['sleep', '100'])\n"
        "signal.signal(signal.SIGTERM, signal.SIG_DFL)\nsignal.pause()"
    ),
}
IMPORTS = "import os, signal, subprocess, sys\n"
REPORT_STEP = "print('smlaunch: progress step=7 steps=9', flush=True)\n"


@pytest.mark.parametrize("reaction", SIGTERM_REACTIONS)
def test_a_script_that_knows_nothing_of_segments_has_not_failed_at_the_planned_end(
    make_host: MakeHost, reaction: str
) -> None:
    host = segment_host(
        make_host, IMPORTS + REPORT_STEP + SIGTERM_REACTIONS[reaction], environ={"SMLAUNCH_STOP_AFTER": "0.6"}
    )
    result = host.run(per_host=2, run="digits", checkpoints=CHECKPOINTS, margin_seconds=1.0)
    assert (result.exit_code, host.failure) == (0, "")
    assert outcome_of(host) == SegmentOutcome(CONTINUE, None, "digits", JOB, 2, 3, reported_step=7)
    assert result.stderr.count("the segment is at its planned end, and its ranks have been stopped") == 1


@pytest.mark.parametrize("reaction", SIGTERM_REACTIONS)
def test_where_nobody_could_read_that_the_run_goes_on_it_has_failed(
    make_host: MakeHost, reaction: str
) -> None:
    """Without an outcome file, exit code 0 would mean that the training is complete."""
    host = segment_host(
        make_host, IMPORTS + SIGTERM_REACTIONS[reaction], environ={"SMLAUNCH_STOP_AFTER": "0.3"}
    )
    result = host.run(run="digits", margin_seconds=0.6, grace_seconds=50.0)
    assert result.exit_code != 0
    assert host.failure


def test_ranks_that_have_finished_and_do_not_leave_have_failed(make_host: MakeHost) -> None:
    """Their last work, such as saving the model, is missing."""
    outcome = SegmentOutcome(FINISHED, 120, "digits", JOB, 2, 3)
    train = (
        IMPORTS
        + f"""
os.mkdir(os.environ["SMLAUNCH_CHECKPOINTS"] + "/smlaunch")
with open(os.path.join(os.environ["SMLAUNCH_CHECKPOINTS"], {OUTCOME_FILE!r}), "wb") as file:
    file.write({outcome.to_bytes()!r})
signal.pause()
"""
    )
    host = segment_host(make_host, train, environ={"SMLAUNCH_STOP_AFTER": "0.6"})
    assert host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=0.4).exit_code == 143
    assert "after the planned end of their segment" in host.failure
    assert outcome_of(host) == outcome


def test_a_rank_that_fails_after_the_planned_end_before_anybody_stops_it_has_failed(
    make_host: MakeHost,
) -> None:
    host = segment_host(
        make_host, WAIT_FOR_STOP_FILE + "sys.exit('no room')", environ={"SMLAUNCH_STOP_AFTER": "0.3"}
    )
    assert host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=40.0).exit_code == 1
    assert "no room" in host.failure


def test_on_one_of_several_hosts_it_may_miss_a_rank_that_was_stopped_a_moment_before(
    make_host: MakeHost,
) -> None:
    hosts = ["127.0.0.1", "127.0.0.2"]
    late = {"SMLAUNCH_STOP_AFTER": "0.3"}
    host = segment_host(
        make_host,
        WAIT_FOR_STOP_FILE + "sys.exit('lost a peer')",
        environ=late,
        hosts=hosts,
        current=hosts[1],
    )
    result = host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=40.0, rendezvous=False)
    assert (result.exit_code, host.failure) == (0, "")


def test_the_stop_file_is_there_before_the_signal(make_host: MakeHost) -> None:
    host = segment_host(make_host, IGNORE_STOP_FILE)
    with host.start(per_host=2, run="digits", checkpoints=CHECKPOINTS) as process:
        read_ready_lines(process, 2)
        process.send_signal(signal.SIGTERM)
        result = finish(process)
    assert sorted(result.lines) == ["[0] file True", "[1] file True"]
    assert outcome_of(host) == SegmentOutcome(CONTINUE, None, "digits", JOB, 2, 3, ranks_succeeded=True)


def test_a_stop_file_of_an_attempt_before_does_not_count(make_host: MakeHost) -> None:
    host = segment_host(make_host, "import os\nprint(os.path.exists(os.environ['SMLAUNCH_STOP_FILE']))")
    (host.root / "smlaunch").mkdir()
    (host.root / "smlaunch" / "stop").touch()
    assert host.run().lines == ["[0] False"]


def test_where_nothing_may_be_written_there_is_a_stop_file_all_the_same(make_host: MakeHost) -> None:
    host = segment_host(make_host, WAIT_FOR_STOP_FILE, environ={"SMLAUNCH_STOP_AFTER": "1"})
    (host.root / "smlaunch").write_text("in the way")
    result = host.run(margin_seconds=40.0)
    assert "[0] asked" in result.lines


# ---- outcomes ------------------------------------------------------------------------------------------

REPORT_LAST_STEP = "print('smlaunch: progress step=9 steps=9', flush=True)\n"
ENDS_AFTER_THE_PLANNED_END = """
import time
print("smlaunch: progress step=25 steps=26", flush=True)
time.sleep(1)
"""


def ended_after_the_planned_end(make_host: MakeHost, train: str, **settings: Any) -> SegmentOutcome | None:
    """Outcome of ranks that leave with 0 between the planned end and its signal."""
    host = segment_host(make_host, train, environ={"SMLAUNCH_STOP_AFTER": "0.2"}, **settings)
    assert host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=40.0).exit_code == 0
    return outcome_of(host)


def test_a_script_that_does_not_read_the_stop_file_and_ends_by_itself_has_finished(
    make_host: MakeHost,
) -> None:
    outcome = ended_after_the_planned_end(make_host, ENDS_AFTER_THE_PLANNED_END)
    assert outcome == SegmentOutcome(
        FINISHED, None, "digits", JOB, 2, 3, ranks_succeeded=True, reported_step=25
    )


@pytest.mark.parametrize(
    "line",
    [
        *("import smlaunch.train", "from smlaunch import train", "# os.environ['SMLAUNCH_STOP_FILE']"),
        *("# name.startswith('SMLAUNCH_')", "# /opt/ml/smlaunch/stop"),
    ],
)
def test_a_source_that_mentions_the_stop_file_may_have_left_for_it(make_host: MakeHost, line: str) -> None:
    outcome = ended_after_the_planned_end(
        make_host, ENDS_AFTER_THE_PLANNED_END, source={"lib/helper.py": line}
    )
    assert outcome is not None
    assert outcome.result == CONTINUE


def test_the_last_step_of_all_is_the_end_unless_there_was_a_signal(make_host: MakeHost) -> None:
    """A signal may end a script while it saves its model or validates after an epoch."""
    last = ENDS_AFTER_THE_PLANNED_END + "print('smlaunch: progress step=26 steps=26', flush=True)\n"
    outcome = ended_after_the_planned_end(make_host, "# SMLAUNCH_STOP_FILE\n" + last)
    assert outcome is not None
    assert (outcome.result, outcome.reported_step) == (FINISHED, 26)
    host = segment_host(
        make_host,
        REPORT_LAST_STEP + IGNORE_STOP_FILE,
        environ={"SMLAUNCH_STOP_AFTER": "0.6"},
        name="signalled",
    )
    assert host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=1.0).exit_code == 0
    outcome = outcome_of(host)
    assert outcome is not None
    assert (outcome.result, outcome.reported_step) == (CONTINUE, 9)


def test_the_last_step_of_one_independent_rank_says_nothing_of_the_others(make_host: MakeHost) -> None:
    train = "# SMLAUNCH_STOP_FILE\n" + ENDS_AFTER_THE_PLANNED_END + REPORT_LAST_STEP
    for rendezvous, result in ((True, FINISHED), (False, CONTINUE)):
        host = segment_host(make_host, train, environ={"SMLAUNCH_STOP_AFTER": "0.2"}, name=f"ml-{rendezvous}")
        settings = {"per_host": 2, "rendezvous": rendezvous, "margin_seconds": 40.0}
        assert host.run(run="digits", checkpoints=CHECKPOINTS, **settings).exit_code == 0
        outcome = outcome_of(host)
        assert outcome is not None
        assert outcome.result == result


FINISHES_IN_THE_GRACE_PERIOD = """
import os, signal
state = os.path.join(os.environ["SMLAUNCH_CHECKPOINTS"], "state.json")
open(state, "w").close()
signal.signal(signal.SIGTERM, lambda *_: None)
print("ready", flush=True)
signal.pause()
"""


SAVE_MODEL = "open(os.environ['SM_MODEL_DIR'] + '/m', 'w').close()"
REMOVE_CHECKPOINT = "os.unlink(state)"
LOGS = "open(os.path.join(os.environ['SMLAUNCH_CHECKPOINTS'], 'train.log'), 'a').close()"
COUNTS_FROM_0 = "print('smlaunch: progress step=8 steps=9', flush=True)"


@pytest.mark.parametrize(
    ("end", "result"),
    [
        ([REPORT_LAST_STEP, REMOVE_CHECKPOINT, SAVE_MODEL], FINISHED),
        (
            [
                REPORT_LAST_STEP,
                REMOVE_CHECKPOINT,
                "open(os.environ['SM_OUTPUT_DATA_DIR'] + '/m', 'w').close()",
            ],
            FINISHED,
        ),
        ([REPORT_LAST_STEP, REMOVE_CHECKPOINT], CONTINUE),
        ([REPORT_LAST_STEP, SAVE_MODEL], CONTINUE),
        ([REMOVE_CHECKPOINT, SAVE_MODEL], CONTINUE),
        (["print('smlaunch: progress step=7 steps=9', flush=True)", REMOVE_CHECKPOINT, SAVE_MODEL], CONTINUE),
        ([COUNTS_FROM_0, REMOVE_CHECKPOINT, SAVE_MODEL], FINISHED),
        ([COUNTS_FROM_0, SAVE_MODEL], CONTINUE),
        ([LOGS, REPORT_LAST_STEP, REMOVE_CHECKPOINT, SAVE_MODEL], FINISHED),
        ([REPORT_LAST_STEP, REMOVE_CHECKPOINT, LOGS, SAVE_MODEL], CONTINUE),
    ],
)
def test_the_last_step_and_removed_checkpoints_after_a_signal_are_the_end(
    make_host: MakeHost, end: list[str], result: str
) -> None:
    before, after = (end[:1], end[1:]) if end[0] == LOGS else ([], end)
    train = "\n".join(
        ["import os", *before, FINISHES_IN_THE_GRACE_PERIOD, *after],
    )
    host = segment_host(make_host, train, environ={"SMLAUNCH_STOP_AFTER": "0.6"})
    assert host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=1.0).exit_code == 0
    outcome = outcome_of(host)
    assert outcome is not None
    assert outcome.result == result


def test_a_training_that_was_repeated_to_its_last_step_has_finished(make_host: MakeHost) -> None:
    """It leaves a file that it does not resume from, so that it would begin anew in every segment."""
    train = FINISHES_IN_THE_GRACE_PERIOD + REPORT_LAST_STEP + SAVE_MODEL
    for earlier, result in (("9", FINISHED), ("8", CONTINUE)):
        environ = {"SMLAUNCH_STOP_AFTER": "0.6", "SMLAUNCH_FROM_REPORTED": earlier}
        host = segment_host(make_host, train, environ=environ, name=f"after-{earlier}")
        assert host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=1.0).exit_code == 0
        outcome = outcome_of(host)
        assert outcome is not None
        assert outcome.result == result


ENDS_MIDWAY = """
import time
print("smlaunch: progress step=86 steps=150", flush=True)
time.sleep(1)
"""


def test_a_script_that_leaves_midway_after_the_planned_end_goes_on(make_host: MakeHost) -> None:
    """However it learned of the stop file: its last progress line says that there is more to train."""
    outcome = ended_after_the_planned_end(make_host, ENDS_MIDWAY)
    assert outcome is not None
    assert (outcome.result, outcome.reported_step) == (CONTINUE, 86)


@pytest.mark.parametrize(
    "settings",
    [
        {"argv": (*SCRIPT, "--leave-when", "SMLAUNCH_STOP_FILE")},
        {"env": {"WATCH": "SMLAUNCH_STOP_FILE"}},
        {"env": {"WATCH": "/opt/ml/smlaunch/stop"}},
    ],
    ids=["argument", "environment", "path"],
)
def test_the_stop_file_may_be_named_outside_the_source(make_host: MakeHost, settings: dict[str, Any]) -> None:
    train = "import time\nprint('no total', flush=True)\ntime.sleep(1)"
    host = segment_host(make_host, train, environ={"SMLAUNCH_STOP_AFTER": "0.2"})
    assert host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=40.0, **settings).exit_code == 0
    outcome = outcome_of(host)
    assert outcome is not None
    assert outcome.result == CONTINUE


HOSTS = ["127.0.0.1", "127.0.0.2"]


def test_a_host_that_trains_independently_says_that_it_has_not_finished(make_host: MakeHost) -> None:
    waits = "import signal\nprint('smlaunch: progress step=25 steps=40', flush=True)\nsignal.pause()"
    host = segment_host(
        make_host, waits, environ={"SMLAUNCH_STOP_AFTER": "0.6"}, hosts=HOSTS, current=HOSTS[1]
    )
    result = host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=1.0, rendezvous=False)
    assert (result.exit_code, host.failure) == (0, "")
    folder = Path(host.paths.checkpoints)
    (path,) = [each for each in folder.rglob("*") if each.is_file()]
    assert path.name == f"outcome-{JOB}.{HOSTS[1]}.json"
    leader = SegmentOutcome(FINISHED, None, "digits", JOB, 2, 3, ranks_succeeded=True, reported_step=8)
    files = {str(path.relative_to(folder)): path.read_bytes(), leader.path: leader.to_bytes()}
    merged = find_newest_outcome(files, files.__getitem__, "digits")
    assert merged == leader._replace(result=CONTINUE, reported_step=25)


def test_a_host_that_has_finished_after_an_interruption_takes_that_back(make_host: MakeHost) -> None:
    host = segment_host(make_host, "", hosts=HOSTS, current=HOSTS[1])
    unfinished = HostSegmentOutcome(HOSTS[1], CONTINUE, "digits", JOB, 2, 3)
    path = Path(host.paths.checkpoints, unfinished.path)
    path.parent.mkdir(parents=True)
    path.write_bytes(unfinished.to_bytes())
    assert host.run(run="digits", checkpoints=CHECKPOINTS, rendezvous=False).exit_code == 0
    ranks = parse_host_outcome(path.read_bytes())
    assert ranks == unfinished._replace(result=FINISHED)


# ---- independent ranks ---------------------------------------------------------------------------------

INDEPENDENT: dict[str, Any] = {
    "run": "digits",
    "checkpoints": CHECKPOINTS,
    "rendezvous": False,
    "independent": True,
}
ONE_OF_TWO_FINISHES = """
import os, sys, time
if os.environ["PROCESS"] == "0":
    sys.exit(0)
while not os.path.exists(os.environ["SMLAUNCH_STOP_FILE"]):
    time.sleep(0.01)
"""


def test_each_rank_that_trains_apart_has_an_end_of_its_own(make_host: MakeHost) -> None:
    host = segment_host(
        make_host, ONE_OF_TWO_FINISHES, environ={"SMLAUNCH_STOP_AFTER": "1"}, hosts=HOSTS, current=HOSTS[1]
    )
    env = {"PROCESS": Ref("local_rank")}
    assert host.run(per_host=2, env=env, margin_seconds=40.0, **INDEPENDENT).exit_code == 0
    (path,) = Path(host.paths.checkpoints).rglob("outcome-*")
    assert parse_host_outcome(path.read_bytes()) == HostSegmentOutcome(
        HOSTS[1], CONTINUE, "digits", JOB, 2, 3, None, 4, ((0, JOB),)
    )


@pytest.mark.parametrize(
    ("job", "total", "others", "result"),
    [
        ("digits-s1-a1", 4, {0, 1}, FINISHED),
        ("digits-s1-a1", 4, {1}, CONTINUE),
        ("digits-s2-a2", 4, {0, 1}, CONTINUE),
        ("digits-s1-a1", 6, {0, 1}, CONTINUE),
        ("other-s1-a1", 4, {0, 1}, CONTINUE),
    ],
    ids=["an earlier segment", "not all", "an attempt that failed", "other shards", "another run"],
)
def test_the_leader_calls_finished_what_it_knows_of_all_ranks(
    make_host: MakeHost, job: str, total: int, others: set[int], result: str
) -> None:
    name = parse_job_name(job)
    assert name is not None
    earlier = HostSegmentOutcome(
        *(HOSTS[1], CONTINUE, name.run, job, name.segment, name.attempt),
        independent_ranks=total,
        finished_ranks=tuple((rank, job) for rank in sorted(others)),
    )
    host = segment_host(make_host, "", hosts=HOSTS, current=HOSTS[0])
    path = Path(host.paths.checkpoints, earlier.path)
    path.parent.mkdir(parents=True)
    path.write_bytes(earlier.to_bytes())
    assert host.run(per_host=2, **INDEPENDENT).exit_code == 0
    outcome = outcome_of(host)
    assert outcome is not None
    assert (outcome.result, outcome.independent_ranks) == (result, 4)


def test_a_run_of_ranks_that_train_apart_has_finished_when_each_has() -> None:
    """Ranks may finish in different segments; an attempt that was retried does not count."""

    def of_host(host: str, segment: int, attempt: int, *ranks: int) -> HostSegmentOutcome:
        job = f"digits-s{segment}-a{attempt}"
        return HostSegmentOutcome(
            *(host, CONTINUE, "digits", job, segment, attempt),
            independent_ranks=4,
            finished_ranks=tuple((rank, job) for rank in ranks),
        )

    def newest_outcome(*hosts: HostSegmentOutcome) -> SegmentOutcome | None:
        leader = SegmentOutcome(CONTINUE, None, "digits", JOB, 2, 3, True, independent_ranks=4)
        files = {outcome.path: outcome.to_bytes() for outcome in (leader, *hosts)}
        return find_newest_outcome(files, files.__getitem__, "digits")

    first, own = of_host("a", 1, 1, 0, 1), of_host("b", 2, 3, 0, 1)
    outcome = newest_outcome(first, own)
    assert outcome is not None
    assert (outcome.result, outcome.finished_in) == (FINISHED, ("digits-s1-a1", JOB))
    for hosts in (
        (first,),
        (first, of_host("b", 2, 3, 0)),
        (first, of_host("b", 2, 2, 0, 1)),
        (of_host("a", 3, 1, 0, 1), own),
        (first._replace(independent_ranks=6), own),
    ):
        outcome = newest_outcome(*hosts)
        assert outcome is not None
        assert outcome.result == CONTINUE


@pytest.mark.parametrize(
    ("mention", "step", "early_seconds", "result"),
    [
        ("SMLAUNCH_STOP_AFTER", 20, 0.6, CONTINUE),
        ("SMLAUNCH_STOP_AT", 20, 0.6, CONTINUE),
        ("SMLAUNCH_STOP_AT", 45, 0.6, FINISHED),
        ("SMLAUNCH_STOP_AT", 20, 4.0, FINISHED),
        ("nothing", 20, 0.6, FINISHED),
    ],
    ids=["after", "at", "the last step", "long before the end", "knows nothing of the end"],
)
def test_a_script_that_watches_the_time_and_leaves_before_the_planned_end(
    make_host: MakeHost, mention: str, step: int, early_seconds: float, result: str
) -> None:
    line = f"smlaunch: progress step={step} steps=45"
    leave = "float(os.environ['SMLAUNCH_STOP' + '_AT']) - time.time()"
    train = (
        f"# {mention}\nimport os, time\nprint({line!r}, flush=True)\n"
        f"time.sleep(max(0, {leave} - {early_seconds}))"
    )
    host = segment_host(make_host, train, environ={"SMLAUNCH_STOP_AFTER": "4"})
    assert host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=40.0).exit_code == 0
    outcome = outcome_of(host)
    assert outcome is not None
    assert outcome.result == result


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "make", ["os.mkfifo(path)", "os.symlink('/dev/zero', path)", "os.truncate(path, 1 << 40)"]
)
def test_a_hostile_file_in_place_of_the_outcome_is_replaced(make_host: MakeHost, make: str) -> None:
    train = f"""
import os
path = os.path.join(os.environ["SMLAUNCH_CHECKPOINTS"], {OUTCOME_FILE!r})
os.mkdir(os.path.dirname(path))
if "truncate" in {make!r}:
    open(path, "w").close()
{make}
"""
    host = segment_host(make_host, train)
    assert host.run(run="digits", checkpoints=CHECKPOINTS).exit_code == 0
    assert outcome_of(host) == SegmentOutcome(FINISHED, None, "digits", JOB, 2, 3, ranks_succeeded=True)


def test_a_script_that_says_nothing_has_finished(make_host: MakeHost) -> None:
    host = segment_host(make_host, "")
    assert host.run(run="digits", checkpoints=CHECKPOINTS).exit_code == 0
    assert outcome_of(host) == SegmentOutcome(FINISHED, None, "digits", JOB, 2, 3, ranks_succeeded=True)


def test_what_the_ranks_have_said_stands(make_host: MakeHost) -> None:
    outcome = SegmentOutcome(CONTINUE, 120, "digits", JOB, 2, 3)
    train = f"""
import os
os.mkdir(os.environ["SMLAUNCH_CHECKPOINTS"] + "/smlaunch")
with open(os.path.join(os.environ["SMLAUNCH_CHECKPOINTS"], {OUTCOME_FILE!r}), "wb") as file:
    file.write({outcome.to_bytes()!r})
"""
    host = segment_host(make_host, train)
    assert host.run(run="digits", checkpoints=CHECKPOINTS).exit_code == 0
    assert outcome_of(host) == outcome._replace(ranks_succeeded=True)


def test_a_failure_says_how_far_it_had_come(make_host: MakeHost) -> None:
    host = segment_host(make_host, REPORT_STEP + "raise SystemExit(3)")
    assert host.run(run="digits", checkpoints=CHECKPOINTS).exit_code == 3
    assert outcome_of(host) == SegmentOutcome(CONTINUE, None, "digits", JOB, 2, 3, reported_step=7)


def test_a_stop_by_the_platform_says_how_far_it_had_come(make_host: MakeHost) -> None:
    """The platform stops a job at MaxRuntime or at a spot notice."""
    host = segment_host(
        make_host, "import signal\n" + REPORT_STEP + "print('ready', flush=True)\nsignal.pause()"
    )
    with host.start(run="digits", checkpoints=CHECKPOINTS) as process:
        read_ready_lines(process, 1)
        process.send_signal(signal.SIGTERM)
        assert finish(process).exit_code == 143
    assert outcome_of(host) == SegmentOutcome(CONTINUE, None, "digits", JOB, 2, 3, reported_step=7)


@pytest.mark.parametrize(
    ("lines", "reported"),
    [
        (["smlaunch: progress step=3", "smlaunch: progress step=12 loss=1", "smlaunch: progress step=4"], 12),
        (["epoch 1 | smlaunch: progress loss=0.5 step=8"], None),
        (
            ["step 63", "smlaunch: metric step=9", "smlaunch: progress steps=9", "smlaunch:progress step=9"],
            None,
        ),
        (["smlaunch: progress step=-1", "smlaunch: progress step=1.5", "smlaunch: progress step=x"], None),
        (["smlaunch: progress step=99999999999999999999", "x" * 300_000 + "smlaunch: progress step=2"], None),
    ],
)
def test_what_counts_as_a_reported_step(make_host: MakeHost, lines: list[str], reported: int | None) -> None:
    train = f"import sys\nsys.stdout.write({chr(10).join(lines)!r})"
    host = segment_host(make_host, train, environ={"SMLAUNCH_STOP_AFTER": "60"})
    result = host.run(run="digits", checkpoints=CHECKPOINTS)
    outcome = outcome_of(host)
    assert outcome is not None and outcome.reported_step == reported
    silent = "smlaunch: progress not known: the script reports no step\n"
    assert result.stderr.count(silent) == (reported is None)


def test_a_line_that_comes_in_pieces_is_one(make_host: MakeHost) -> None:
    """A last line without a newline counts too: a rank may be killed while it writes."""
    train = """
import os, time
for piece in ("a line\\nsmlau", "nch: prog", "ress step=5", "1\\nsmlaunch: progress st", "ep=52"):
    os.write(1, piece.encode())
    time.sleep(0.02)
"""
    host = segment_host(make_host, train)
    host.run(run="digits", checkpoints=CHECKPOINTS)
    assert outcome_of(host) == SegmentOutcome(
        FINISHED, None, "digits", JOB, 2, 3, ranks_succeeded=True, reported_step=52
    )


@pytest.mark.parametrize(
    ("begins", "ends", "repeats"), [(1, 64, True), (60, 126, False), (1, 200, False), (10, 63, True)]
)
def test_a_script_that_begins_anew_is_told_from_one_that_goes_on(
    make_host: MakeHost, begins: int, ends: int, repeats: bool
) -> None:
    loop = (
        f"for step in range({begins}, {ends} + 1): print('smlaunch: progress step=%d' % step, flush=True)\n"
    )
    late = {"SMLAUNCH_STOP_AFTER": "1", "SMLAUNCH_FROM_REPORTED": "63"}
    host = segment_host(make_host, loop + WAIT_FOR_STOP_FILE, environ=late)
    host.run(run="digits", checkpoints=CHECKPOINTS, margin_seconds=40.0)
    expected = SegmentOutcome(
        CONTINUE, None, "digits", JOB, 2, 3, ranks_succeeded=True, reported_step=ends, repeats_steps=repeats
    )
    assert outcome_of(host) == expected


def test_a_job_that_was_interrupted_has_reported_what_it_had_before(make_host: MakeHost) -> None:
    """After a spot interruption the job continues under the same name from the newest checkpoint."""
    host = segment_host(make_host, REPORT_STEP)
    write_outcome(host, SegmentOutcome(CONTINUE, None, "digits", JOB, 2, 3, reported_step=40))
    assert host.run(run="digits", checkpoints=CHECKPOINTS).exit_code == 0
    assert outcome_of(host) == SegmentOutcome(
        FINISHED, None, "digits", JOB, 2, 3, ranks_succeeded=True, reported_step=40
    )


def test_only_the_leader_says_it(make_host: MakeHost) -> None:
    hosts = ["127.0.0.1", "127.0.0.2"]
    host = segment_host(make_host, "", hosts=hosts, current=hosts[1])
    assert host.run(run="digits", checkpoints=CHECKPOINTS, rendezvous=False).exit_code == 0
    assert outcome_of(host) is None


def test_a_run_that_is_finished_ends_at_once(make_host: MakeHost) -> None:
    host = segment_host(make_host, "print('trains')")
    before = SegmentOutcome(FINISHED, 900, "digits", "digits-s1-a1", ranks_succeeded=True)
    write_outcome(host, before)
    result = host.run(run="digits", checkpoints=CHECKPOINTS)
    assert (result.exit_code, result.stdout) == (0, "")
    warning = "warning: this job trained nothing: run digits had trained to its end before"
    assert result.stderr == f"smlaunch: {warning}\n"
    assert outcome_of(host) == before._replace(job=JOB, segment=2, attempt=3)


@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(
            SegmentOutcome(FINISHED, 900, "other", "other-s1-a1", ranks_succeeded=True), id="another run's"
        ),
        pytest.param(
            SegmentOutcome(CONTINUE, 900, "digits", "digits-s1-a1", ranks_succeeded=True),
            id="to be continued",
        ),
        pytest.param(SegmentOutcome(FINISHED, 900, "digits", "digits-s2-a2", 2, 2), id="model not saved"),
        pytest.param(
            SegmentOutcome(CONTINUE, 900, "digits", JOB, 2, 3, ranks_succeeded=True),
            id="interrupted, the same job",
        ),
    ],
)
def test_whatever_else_lies_there_lets_it_train(make_host: MakeHost, outcome: SegmentOutcome) -> None:
    """Model not saved: the ranks had written FINISHED, and the host was lost before they exited."""
    host = segment_host(make_host, "print('trains')")
    write_outcome(host, outcome)
    result = host.run(run="digits", checkpoints=CHECKPOINTS)
    assert result.lines == ["[0] trains"]
    assert outcome_of(host) == SegmentOutcome(FINISHED, None, "digits", JOB, 2, 3, ranks_succeeded=True)


@pytest.mark.parametrize("segment", [1, 2, 5])
def test_another_job_that_has_finished_under_the_runs_name_is_a_failure(
    make_host: MakeHost, segment: int
) -> None:
    """The job would complete with an empty model, without a rank of it having run."""
    host = segment_host(make_host, "print('trains')")
    other = SegmentOutcome(
        FINISHED, 900, "digits", f"digits-s{segment}-a1", segment, ranks_succeeded=True, job_hash="a" * 64
    )
    write_outcome(host, other)
    result = host.run(run="digits", checkpoints=CHECKPOINTS, job_hash="b" * 64)
    assert (result.exit_code, result.stdout) == (2, "")
    reason = "s3://b/run/checkpoints/: another job has trained to its end under the name of run digits"
    assert reason in result.stderr and "take another name, or another prefix" in result.stderr
    assert reason in Path(host.paths.failure_file).read_text()
    assert outcome_of(host, other.path) == other


@pytest.mark.parametrize(("stored", "own"), [(None, "b" * 64), ("a" * 64, None), ("b" * 64, "b" * 64)])
def test_a_finished_run_whose_job_is_the_same_or_not_known_ends_at_once(
    make_host: MakeHost, stored: str | None, own: str | None
) -> None:
    """Releases before stored no hash."""
    host = segment_host(make_host, "print('trains')")
    write_outcome(
        host,
        SegmentOutcome(FINISHED, 900, "digits", "digits-s1-a1", ranks_succeeded=True, job_hash=stored),
    )
    result = host.run(run="digits", checkpoints=CHECKPOINTS, job_hash=own)
    assert (result.exit_code, result.stdout) == (0, "")


@pytest.mark.parametrize(("segment", "attempt"), [(2, 3), (2, 4), (3, 1)])
def test_a_job_that_had_ended_before_makes_its_model_again(
    make_host: MakeHost, segment: int, attempt: int
) -> None:
    """It was interrupted after its end, or its record was deleted: an empty model would replace its own."""
    host = segment_host(make_host, "print('trains')")
    job = f"digits-s{segment}-a{attempt}"
    write_outcome(host, SegmentOutcome(FINISHED, 900, "digits", job, segment, attempt, ranks_succeeded=True))
    result = host.run(run="digits", checkpoints=CHECKPOINTS, job_hash="b" * 64)
    assert result.lines == ["[0] trains"]
    assert outcome_of(host) == SegmentOutcome(
        FINISHED, None, "digits", JOB, 2, 3, ranks_succeeded=True, job_hash="b" * 64
    )


def test_an_outcome_that_cannot_be_written_is_no_failure_of_the_training(make_host: MakeHost) -> None:
    train = "import os\nd = os.environ['SMLAUNCH_CHECKPOINTS']\nos.rmdir(d)\nopen(d, 'w').close()"
    result = segment_host(make_host, train).run(run="digits", checkpoints=CHECKPOINTS)
    assert result.exit_code == 0
    assert "the outcome cannot be written" in result.stderr
