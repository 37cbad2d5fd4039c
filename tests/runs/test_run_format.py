"""A run of another release's format is listed, and refused by name wherever it would be read or changed."""

from __future__ import annotations

import pytest

from smlaunch.contract.run_names import TAG_FORMAT
from smlaunch.errors import JobError
from smlaunch.job.model import Job
from smlaunch.runs.attach_run import attach
from smlaunch.runs.launch_plan import launch
from smlaunch.runs.launch_target import Target
from smlaunch.runs.run_list import list_runs
from tests.runs.fakes import FakeControl, fake_target
from tests.runs.test_api import job  # noqa: F401  (a fixture)

OTHERS = {
    "2.0": "demo: this run has version 2.0, and this smlaunch reads up to 1.x: use the release that wrote it",
    None: "demo: this run has no version: it was written before format 1.0",
}


@pytest.fixture
def target(job: Job) -> Target:  # noqa: F811
    """Returns a target with a run of another format."""
    new_target = fake_target()
    launch(job, new_target)
    return new_target


def tag_with_version(target: Target, version: str | None) -> FakeControl:
    control: FakeControl = target.__dict__["control_plane"]
    (tags,) = control.tags_of.values()
    tags.pop(TAG_FORMAT)
    if version is not None:
        tags[TAG_FORMAT] = version
    return control


@pytest.mark.parametrize("version", OTHERS)
def test_it_is_neither_shown_nor_resumed_nor_stopped(target: Target, version: str | None) -> None:
    control = tag_with_version(target, version)
    with pytest.raises(JobError, match=OTHERS[version].replace(".", r"\.")):
        attach("demo", target)
    assert control.stopped == []


@pytest.mark.parametrize("version", OTHERS)
def test_the_same_job_is_not_launched_into_it(
    job: Job,  # noqa: F811
    target: Target,
    version: str | None,
) -> None:
    control = tag_with_version(target, version)
    with pytest.raises(JobError, match=OTHERS[version].replace(".", r"\.")):
        launch(job, target)
    assert len(control.created) == 1


@pytest.mark.parametrize(("version", "other_format"), [("2.0", "2.0"), (None, "none"), ("1.9", None)])
def test_it_is_listed_as_of_another_format(
    target: Target, version: str | None, other_format: str | None
) -> None:
    tag_with_version(target, version)
    (row,) = list_runs(target, 20)
    assert (row.run, row.other_format) == ("demo", other_format)


def test_a_later_minor_version_is_read(target: Target) -> None:
    tag_with_version(target, "1.9")
    assert attach("demo", target).name == "demo"
