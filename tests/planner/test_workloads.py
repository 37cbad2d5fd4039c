"""Described workloads, and the choice that each was to get before there was a planner (workloads/*.yaml).

Every file holds the description, the sentences that it rests on, a job, what reading its script and its data
shows, and what is expected.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from smlaunch.discovery.script_analysis import read_script_facts
from smlaunch.facts.discovered_facts import NO_SOURCE, InputFacts, ScriptFacts, SourceFacts
from smlaunch.job.model import Job, parse_duration
from smlaunch.render.plan import Plan
from tests.planner.fixtures import make_plan, region

FOLDER = Path(__file__).parent / "workloads"
WORKLOADS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in FOLDER.glob("*.yaml")}


def plan_workload(workload: dict[str, Any], folder: Path) -> Plan:
    """Returns the plan in a region that has everything; the script is written to ``folder`` and analysed as
    usual."""
    job = workload["job"]
    script, source = ScriptFacts(), NO_SOURCE
    if "script" in workload:
        path = folder / job["entry"]
        path.write_text(workload["script"], encoding="utf-8")
        script = read_script_facts(path)
        source = SourceFacts(str(folder), job["entry"], "ab" * 32, file_count=1, bytes=path.stat().st_size)
    parsed_job = Job.from_mapping(job)
    inputs = {
        name: InputFacts(parsed_job.inputs[name].uri, "s3", objects=data["files"], bytes=int(data["bytes"]))
        for name, data in workload.get("data", {}).items()
    }
    longest = workload.get("max_runtime_quota")
    known_facts = region(
        script=script,
        source=source,
        inputs=inputs,
        max_runtime_quota=None if longest is None else parse_duration(longest),
    )
    return make_plan(parsed_job, known_facts, "work")


def test_there_are_ten_and_each_rests_on_a_sentence() -> None:
    assert len(WORKLOADS) >= 10
    for workload in WORKLOADS.values():
        assert workload["described"]
        assert all(row["quote"] and row["source"] for row in workload["because"])


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_each_gets_what_was_expected(name: str, tmp_path: Path) -> None:
    expected = WORKLOADS[name]["expected"]
    job_plan = plan_workload(WORKLOADS[name], tmp_path)
    assert job_plan.strategy == expected["strategy"]
    assert job_plan.hosts == expected["hosts"]
    assert [job_plan.instance_type] == expected["instance_types"]
    if "processes_per_host" in expected:
        assert job_plan.processes_per_host == expected["processes_per_host"]
    assert len(job_plan.segments) == expected.get("segments", 1)
    assert job_plan.planned_jobs[0].operation == expected.get("operation", "CreateTrainingJob")
    rules = [reason.rule for reason in job_plan.reasons]
    assert [rule for rule in expected.get("rules", []) if rule not in rules] == []
    explanations = " ".join([*(reason.explanation for reason in job_plan.reasons), *job_plan.warnings])
    assert [text for text in expected.get("says", []) if text not in explanations] == []
    rejections = {
        (candidate.rule, candidate.instance_type)
        for candidate in job_plan.candidates
        if not candidate.is_feasible
    }
    assert [pair for pair in expected.get("rejected", {}).items() if pair not in rejections] == []
    channels = {row["ChannelName"]: row for row in job_plan.requests[0].get("InputDataConfig", [])}
    for channel, mode in expected.get("modes", {}).items():
        assert channels[channel].get("InputMode", "File") == mode
    for channel, split in expected.get("split", {}).items():
        assert channels[channel]["DataSource"]["S3DataSource"]["S3DataDistributionType"] == split
