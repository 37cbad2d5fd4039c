"""The card of a run in a notebook: what it says, that no text becomes markup, and when it is updated."""

from __future__ import annotations

import asyncio
import logging
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch import Run, Target, attach
from smlaunch.contract.progress_line import format_line
from smlaunch.errors import TrainingFailed
from smlaunch.render.run_card import Curve, RunCard, run_card_as_html
from smlaunch.runs.job_follower import JobFollower
from smlaunch.runs.job_poller import LogLine
from smlaunch.runs.metric_curve import MetricCurves
from smlaunch.runs.notebook_card import NotebookCard
from smlaunch.runs.progress_estimate import ProgressTracker
from smlaunch.runs.run_kinds import run_of_shards, run_of_single_job
from tests.planner.test_render_html import _EVIL, Page
from tests.runs.fakes import FakeControl, FakeLogs, fake_target, job_description, time_at
from tests.runs.test_run_api import driven_chain

JOB = "demo-s1-a1"
STARTING = job_description(JOB, "InProgress", ["Starting"])
RUNNING = job_description(JOB, "InProgress", ["Starting", "Training"], TrainingStartTime=time_at(1))
TIMES = {"TrainingStartTime": time_at(1), "TrainingEndTime": time_at(1801)}
SECONDS = {"TrainingTimeInSeconds": 1800, "BillableTimeInSeconds": 900}
MODEL = "s3://b/demo/model.tar.gz"
COMPLETED = job_description(
    JOB,
    "Completed",
    ["Starting", "Training", "Completed"],
    ModelArtifacts={"S3ModelArtifacts": MODEL},
    **TIMES,
    **SECONDS,
)
REASON = "AlgorithmError: rank 3 on algo-2 exited with code 1: ValueError: boom\n"
FAILED = job_description(
    JOB, "Failed", ["Starting", "Training", "Failed"], FailureReason=REASON, **TIMES, **SECONDS
)
TRACEBACK = [
    "Traceback (most recent call last):",
    '  File "train.py", line 3, in <module>',
    "ValueError: boom",
]


# ---- the picture -------------------------------------------------------------------------------------------


def html_of(**fields: Any) -> str:
    return run_card_as_html(replace(RunCard("digits", "in progress (Training)", "running"), **fields))


@pytest.mark.parametrize(
    "fields, expected",
    [
        ({}, ["digits: in progress (Training)"]),
        (
            {"rows": [("cost", "not known"), ("where", "region us-east-1")]},
            ["cost", "not known", "us-east-1"],
        ),
        ({"progress": "step 3/4 (75%)", "fraction_done": 0.75}, ["step 3/4 (75%)"]),
        ({"metrics": {"loss": 0.25, "lr": 1e-5}}, ["loss", "0.25", "1e-05"]),
        (
            {"metrics": {f"m{number}": 1.0 for number in range(20)}},
            ["m11", "more metrics", "8, in run.metrics"],
        ),
        ({"traceback": "\n".join(TRACEBACK)}, ["\n".join(TRACEBACK)]),
        ({"traceback": "\n".join(map(str, range(500)))}, ["0\n1\n", "(440 lines are left out", "\n499"]),
        ({"hint": "run.wait() follows it", "note": "as read at 12:00"}, ["run.wait() follows it", "as read"]),
        ({"curve": Curve("loss", [(10, 2.0), (20, 1.0)])}, ["loss, steps 10 to 20, between 1 and 2"]),
        ({"curve": Curve("loss", [(1, 2.0), (2, 1.0)], has_steps=False)}, ["loss, reports 1 to 2, between"]),
        ({"curve": Curve("loss", [(1, math.nan), (2, math.inf)])}, ["loss, steps 1 to 2; no finite number"]),
        ({"curve": Curve("loss", [(1, 1), (2, math.nan), (3, 1), (4, 2)])}, ["where the curve has gaps"]),
    ],
)
def test_a_card_says_what_it_is_given(fields: dict[str, Any], expected: list[str]) -> None:
    page = Page(html_of(**fields))
    assert [text for text in expected if text not in page.text] == []


def test_a_curve_has_a_line_for_each_part_without_a_gap() -> None:
    points = [(0, 2.0), (1, 1.0), (2, math.nan), (3, 0.0), (4, math.inf), (5, 1.0), (6, 2.0)]
    html = html_of(curve=Curve("loss", points))
    lines = [line.split() for line in re.findall(r'<polyline points="([^"]*)"', html)]
    assert [len(line) for line in lines] == [2, 2, 2]
    assert lines[0][0] == "3.0,3.0", "the highest value of the first step is at the top left"
    assert lines[1][0] == lines[1][1] == "160.0,53.0", "a single value is a dot"


_NUMBERS = st.floats(allow_nan=True, allow_infinity=True)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 1e300), _NUMBERS), max_size=8), st.text(max_size=20))
def test_any_curve_lies_inside_of_its_picture(points: list[tuple[float, float]], metric: str) -> None:
    html = html_of(curve=Curve(metric, sorted(points, key=lambda point: point[0])))
    Page(html)
    for pair in re.findall(r"[\d.naif-]+,[\d.naif-]+", " ".join(re.findall(r'points="([^"]*)"', html))):
        x, y = map(float, pair.split(","))
        assert 0 <= x <= 320 and 0 <= y <= 56


@pytest.mark.parametrize("evil", _EVIL)
def test_what_a_run_says_is_text(evil: str) -> None:
    html = run_card_as_html(
        RunCard(
            run=evil,
            headline=evil,
            state="failed",
            rows=[(evil, evil)],
            progress=evil,
            metrics={evil: 1.0},
            curve=Curve(evil, [(1, 1.0), (2, 2.0)]),
            traceback=f"{evil}\n{evil}",
            hint=evil,
            note=evil,
        )
    )
    page = Page(html)
    assert not {"script", "img", "details"} & {tag for tag, _ in page.tags}
    assert not [attributes for _, attributes in page.tags if "onerror" in attributes]
    assert "\x1b" not in html and "\x00" not in html


def test_a_secret_of_a_traceback_is_masked() -> None:
    assert "hunter2hunter2" not in html_of(traceback="KeyError\nPASSWORD=hunter2hunter2\n")


def test_it_has_the_colours_of_the_notebook_and_touches_nothing_else() -> None:
    html = html_of(fraction_done=0.5, curve=Curve("loss", [(1, 1.0), (2, 2.0)]))
    style = re.search(r"<style>(.*?)</style>", html, re.DOTALL)
    assert style is not None
    # Jupyter's own rules for tables in outputs, which align text to the right, are as specific as these.
    assert "text-align: left !important" in style[1] and "margin: .4em 0 !important" in style[1]
    for rule in re.findall(r"^([^\s{][^{]*)\{", style[1], re.MULTILINE):
        assert all(part.strip().startswith(".smlaunch-run") for part in rule.split(","))
    for colour in re.findall(r"background:\s*([^;]+);", style[1]):
        assert colour.removesuffix(" !important") == "none" or colour.startswith("rgba(128, 128, 128")
    assert not re.search(r"[^-]color:", style[1])


# ---- the curve of a long run -------------------------------------------------------------------------------


def progress(step: int | str | None, host: str = "algo-1", **values: Any) -> LogLine:
    step_value = {} if step is None else {"step": step}
    return LogLine(JOB, host, 0, format_line("progress", **step_value, **values))


def course(*lines: LogLine) -> tuple[str, list[tuple[float, float]]] | None:
    curves = MetricCurves()
    curves.add_lines(lines)
    named_course = curves.main_course()
    return None if named_course is None else named_course[:2]


def test_the_curve_of_any_length_is_short_and_has_both_ends() -> None:
    named_course = course(*(progress(step, loss=step / 100) for step in range(100_000)))
    assert named_course is not None
    points = named_course[1]
    assert 128 <= len(points) <= 257
    assert points[0][0] == 0 and points[-1][0] > 99_000
    assert points == sorted(points)
    assert points[50][1] * 100 == pytest.approx((points[50][0] + points[51][0] - 1) / 2), "means"


HUGE = "9" * 400
FIRST_HOST = ("loss", [(1, 8)])


@pytest.mark.parametrize(
    "lines, expected",
    [
        ([], None),
        ([LogLine(JOB, "algo-1", 0, "loss=3")], None),
        ([progress(1, acc=1, val_loss=2, loss=3)], ("loss", [(1, 3)])),
        ([progress(1, acc=1, val_loss=2)], ("val_loss", [(1, 2)])),
        ([progress(1, acc=1, lr=2, data_wait_share=0.5)], ("acc", [(1, 1)])),
        ([progress(1, data_wait_share=0.5)], None),
        ([progress(None, loss=1), progress(None, loss=2)], ("loss", [(1, 1), (2, 2)])),
        # Trained again from step 2 after a kill.
        ([progress(1, loss=9), progress(3, loss=8), progress(2, loss=7)], ("loss", [(1, 9), (2, 7)])),
        # Host 1 is the first writer, though its lines come later.
        ([progress(1, "algo-2", loss=9), progress(1, loss=8), progress(2, "algo-2", loss=7)], FIRST_HOST),
        ([progress(1, loss="inf"), progress(HUGE, loss=HUGE)], ("loss", [(1, math.inf), (2, math.inf)])),
    ],
)  # fmt: skip
def test_the_curve_is_the_loss_of_the_first_rank(lines: list[LogLine], expected: object) -> None:
    assert course(*lines) == expected


# ---- in a cell ---------------------------------------------------------------------------------------------


class Cell:
    """A notebook's kernel, and what it has shown."""

    def __init__(self) -> None:
        self.kernel = object()
        self.display_pub = self
        self.pages: list[str] = []
        self.updates: list[bool] = []
        self.ids: set[str] = set()
        self.error: Exception | None = None

    def publish(
        self, data: dict[str, str], metadata: object, *, transient: dict[str, str], update: bool
    ) -> None:
        if self.error is not None:
            raise self.error
        self.pages.append(data["text/html"])
        self.updates.append(update)
        self.ids.add(transient["display_id"])


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Cell:
    notebook_cell = Cell()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: notebook_cell))
    return notebook_cell


@pytest.fixture
def target() -> Target:
    return fake_target()


def run_that(target: Target, *answers: dict[str, Any], log: tuple[str, ...] = ()) -> Run:
    control: FakeControl = target.__dict__["control_plane"]
    logs: FakeLogs = target.__dict__["logs"]
    control.descriptions_by_job[JOB] = [COMPLETED]
    run = attach("demo", target)
    control.descriptions_by_job[JOB] = list(answers)
    if log:
        logs.add_lines(f"{JOB}/algo-1-5", *log)
    return run


LOSSES = tuple(format_line("progress", step=step, steps=4, loss=1 / step) for step in (1, 2, 3, 4))


def test_one_output_is_updated_and_says_how_the_run_ended(target: Target, cell: Cell) -> None:
    run = run_that(target, STARTING, RUNNING, COMPLETED, log=LOSSES)
    run.result()
    assert cell.updates[0] is False and all(cell.updates[1:]) and len(cell.updates) >= 2
    assert len(cell.ids) == 1
    last = Page(cell.pages[-1]).text
    for text in (
        "demo: completed",
        "step 4/4 (100%)",
        "loss, steps 1 to 4",
        MODEL,
        "30:00",
        "on-demand prices",
    ):
        assert text in last
    assert "$0.0575, estimated" in last, "900 billed seconds of an ml.m5.xlarge, $0.23 an hour"
    assert "so far" not in last and "as read at" not in last
    assert run.status == "Completed"
    assert run._repr_html_() == cell.pages[-1], "a later request for the status keeps the metrics"


def test_a_failed_run_says_which_process_and_shows_its_traceback(target: Target, cell: Cell) -> None:
    run = run_that(target, RUNNING, FAILED, log=LOSSES[:2])
    target.__dict__["logs"].add_lines(f"{JOB}/algo-2-5", *(f"[3] {line}" for line in TRACEBACK))
    with pytest.raises(TrainingFailed):
        run.result()
    last = Page(cell.pages[-1]).text
    assert "demo: rank 3 on algo-2 exited with code 1: ValueError: boom" in last
    assert "\n".join(TRACEBACK) in last
    assert "step 2/4 (50%)" in last and "left" not in last


@pytest.mark.parametrize(
    "last_step, expected", [(29, "step 29/30"), (12, "step 12/30 (40%)"), (30, "step 30/30 (100%)")]
)
def test_a_completed_run_that_counts_from_0_lacks_nothing(
    target: Target, cell: Cell, last_step: int, expected: str
) -> None:
    log = tuple(format_line("progress", step=step, steps=30) for step in (last_step - 1, last_step))
    run_that(target, RUNNING, COMPLETED, log=log).result()
    text = Page(cell.pages[-1]).text
    assert expected in text
    assert ("%" in text) == ("%" in expected)
    assert ("width: 100.0%" in cell.pages[-1]) == (last_step >= 29)


def test_metrics_without_a_step_have_a_curve_of_reports(target: Target, cell: Cell) -> None:
    log = tuple(format_line("metric", loss=1 / number) for number in (1, 2, 3))
    run_that(target, RUNNING, COMPLETED, log=log).result()
    assert "loss, reports 1 to 3, between" in Page(cell.pages[-1]).text


def test_a_report_that_cannot_be_read_is_a_warning_once(target: Target, cell: Cell) -> None:
    run = run_that(target, RUNNING, COMPLETED, log=tuple(f"smlaunch: metric a={n} b {n}.5" for n in range(9)))
    outcome = run.result()
    (warning,) = outcome.warnings
    assert warning.startswith("algo-1 has reported 'b 0.5', which does not count: NAME=NUMBER")
    assert outcome.metrics == {"a": 8} and Page(cell.pages[-1]).text.count("algo-1 has reported") == 1


def test_a_card_of_a_run_that_ended_elsewhere_has_its_last_figures_or_none(
    target: Target, cell: Cell
) -> None:
    """Another client has driven the chain on, while nobody has followed it here."""
    (first_job,) = driven_chain(target).jobs
    control: FakeControl = target.__dict__["control_plane"]
    logs: FakeLogs = target.__dict__["logs"]
    running, ended = control.descriptions_by_job[first_job]
    control.descriptions_by_job[first_job] = [running]
    logs.add_lines(f"{first_job}/algo-1-5", *LOSSES[:2])
    run = attach("long", target)
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.05)
    assert "step 2/4 (50%)" in Page(cell.pages[-1]).text
    control.descriptions_by_job[first_job] = [ended]
    other = attach("long", target)
    other.resume()
    other.wait(lambda event: None)
    *_, before_last, last_job = other.jobs
    logs.add_lines(f"{before_last}/algo-1-5", *LOSSES[3:])
    logs.add_lines(f"{last_job}/algo-1-5", "the training has finished before")
    outcome = run.wait()
    page = cell.pages[-1]
    assert "long: completed" in Page(page).text
    assert outcome.metrics == {"loss": 0.25}, "of the last job that has reported any"
    assert "loss0.25" in Page(page).text
    assert "step 2" not in page and "<polyline" not in page and 'class="bar"' not in page


def test_a_timeout_leaves_the_state_so_far(target: Target, cell: Cell) -> None:
    run = run_that(target, RUNNING, log=LOSSES[:2])
    with pytest.raises(TimeoutError):
        run.wait(timeout=0.01)
    last = Page(cell.pages[-1]).text
    assert "in progress (Training)" in last and "so far, estimated" in last and "as read at" in last


def test_shards_have_neither_curve_nor_metrics_and_a_cost_at_the_end(target: Target, cell: Cell) -> None:
    runs: dict[int, Run] = {}
    control: FakeControl = target.__dict__["control_plane"]
    logs: FakeLogs = target.__dict__["logs"]
    for number in (1, 2):
        job = f"demo-p{number}-s1-a1"
        ended = {**COMPLETED, "TrainingJobName": job}
        control.descriptions_by_job[job] = [{**RUNNING, "TrainingJobName": job}, ended]
        logs.add_lines(f"{job}/algo-1-5", *LOSSES)
        runs[number] = run_of_single_job(f"demo-p{number}", target, job, attached=True)
    run = run_of_shards("demo", target, runs, attached=True)
    run._observation.add_events((), run._jobs.follower(["demo-p1"], ProgressTracker()), follows_one_job=False)
    assert "costnot known" in Page(run._repr_html_()).text
    outcome = run.wait()
    assert outcome.metrics == {"loss of demo-p1": 0.25, "loss of demo-p2": 0.25}
    assert [(row["job"], row["loss"]) for row in run.metrics][3:5] == [
        ("demo-p1-s1-a1", 0.25), ("demo-p2-s1-a1", 1.0)
    ]  # fmt: skip
    last = Page(cell.pages[-1]).text
    assert "demo: completed in all 2 shards" in last and "$0.1150, estimated" in last
    assert "step 8/8 (100%)" in last and "loss" not in last


@pytest.mark.parametrize("instance", ["ml.unheard-of.xlarge", None])
def test_an_unknown_cost_is_called_so(target: Target, cell: Cell, instance: str | None) -> None:
    resources = {"InstanceCount": 1, **({"InstanceType": instance} if instance else {})}
    run = run_that(target, {**COMPLETED, "ResourceConfig": resources})
    run.wait()
    assert "costnot known" in Page(cell.pages[-1]).text


def test_an_error_of_the_display_ends_the_display_only(
    target: Target, cell: Cell, caplog: pytest.LogCaptureFixture
) -> None:
    cell.error = RuntimeError("no notebook")
    run = run_that(target, RUNNING, COMPLETED, log=LOSSES)
    with caplog.at_level(logging.WARNING, "smlaunch"):
        assert run.result().status == "Completed"
    assert caplog.messages == ["the run's card is not shown any more: no notebook"]


@pytest.mark.parametrize("place", ["terminal", "callback", "half-imported", "no shell"])
def test_elsewhere_nothing_is_shown(
    target: Target, cell: Cell, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    if place == "terminal":
        del cell.kernel
    elif place == "half-imported":
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
    elif place == "no shell":
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: None))
    run = run_that(target, RUNNING, COMPLETED)
    run.wait(list[object]().append if place == "callback" else None)
    assert cell.pages == []


def test_outside_of_notebooks_nothing_of_the_card_is_imported(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["smlaunch.runs.notebook_card", "smlaunch.render.run_card", "smlaunch.runs.metric_curve"]
    for name in [*names, "IPython"]:
        monkeypatch.delitem(sys.modules, name, raising=False)
    run_that(target, RUNNING, COMPLETED, log=LOSSES).wait()
    assert not {*names, "IPython"} & set(sys.modules)


def test_it_is_updated_once_a_second_and_seldom_in_a_long_run(target: Target, cell: Cell) -> None:
    run = run_that(target, RUNNING)
    now = 0.0
    card = NotebookCard(cell, run, run._observation, clock=lambda: now)
    follower = JobFollower(target, JOB)

    def updates(seconds: int) -> int:
        nonlocal now
        known_count = len(cell.pages)
        for _ in range(4 * seconds):
            now += 0.25
            card.show_events((), follower)
        return len(cell.pages) - known_count

    with card:
        assert updates(10) == 10
        now = 24 * 3600
        assert updates(600) == 10
    assert cell.ids == {card._display_id}


# ---- without a notebook's help -----------------------------------------------------------------------------


class ForbiddenClients:
    """Clients that must not be requested."""

    def create_client(self, *arguments: object, **keywords: object) -> object:
        raise AssertionError(f"asked for a client: {arguments}")


def test_a_run_of_which_nothing_was_read_is_shown_without_a_request() -> None:
    target = Target("aws", "us-east-1", polling=None, session=ForbiddenClients())  # type: ignore[arg-type]
    html = run_of_single_job("digits", target, "digits-<b>", attached=False)._repr_html_()
    for text in ("digits", "launched", "region us-east-1", "digits-&lt;b&gt;"):
        assert text in html
    assert "attached to it" in run_of_single_job("digits", target, "a", attached=True)._repr_html_()


def test_an_awaited_run_lets_other_tasks_go_on_and_has_the_result(target: Target) -> None:
    control: FakeControl = target.__dict__["control_plane"]

    async def end_with(answer: dict[str, Any]) -> str:
        async def end() -> None:
            control.descriptions_by_job[JOB] = [answer]

        run = run_that(target, RUNNING)  # until the other task ends it
        other_task = asyncio.create_task(end())
        outcome = await run
        await other_task
        return outcome.status

    assert asyncio.run(end_with(COMPLETED)) == "Completed"
    with pytest.raises(TrainingFailed, match="ValueError: boom"):
        asyncio.run(end_with(FAILED))


@pytest.fixture(autouse=True)
def _no_kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """These tests do not depend on what the tests' own program has imported."""
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    yield
