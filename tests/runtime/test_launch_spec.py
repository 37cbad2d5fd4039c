"""job.json 1.2: it round-trips, and an error names the path of the wrong field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from smlaunch.contract.launch_spec import (
    LEADER,
    OTHERS,
    Concat,
    LaunchSpec,
    LaunchSpecError,
    RankSpec,
    Ref,
    ServiceSpec,
)
from smlaunch.contract.launch_spec_parser import parse_launch_spec

URL = Concat(("tcp://", Ref("leader_address", suffix=":"), Ref("port", offset=4)))
SPEC = LaunchSpec(
    RankSpec(("run", URL, Ref("each_host", "<", ">")), (("URL", URL),), rendezvous=False, runs_on=LEADER),
    services=(
        ServiceSpec("head", ("serve", Ref("address")), (("A", "b"),), LEADER, URL, 12.5),
        ServiceSpec("worker", ("serve", URL), runs_on=OTHERS),
    ),
)


def test_it_comes_back_as_it_was() -> None:
    assert parse_launch_spec(SPEC.to_json()) == SPEC
    assert SPEC.needs_secret
    assert not LaunchSpec(RankSpec(("run",))).needs_secret


def test_a_job_of_before_has_none_of_it() -> None:
    document = json.loads(LaunchSpec(RankSpec(("run",))).to_json())
    del document["services"], document["ranks"]["on"], document["ranks"]["options"]
    spec = parse_launch_spec(json.dumps({**document, "version": "1.1"}))
    assert (spec.services, spec.ranks.runs_on, spec.ranks.launcher_options) == ((), "all", ())


HEAD_SERVICE = {"name": "head", "argv": ["serve"]}


@pytest.mark.parametrize(
    ("services", "message"),
    [
        ({"head": 1}, "services: a list is needed"),
        ([{**HEAD_SERVICE, "name": ""}], r"services\[0\]: an object with a name is needed"),
        (
            [HEAD_SERVICE, {**HEAD_SERVICE, "argv": []}],
            r"services\[1\].argv: a list with at least one argument is needed",
        ),
        ([{**HEAD_SERVICE, "on": "some"}], r"services\[0\].on: one of all, leader, others, not 'some'"),
        (
            [{**HEAD_SERVICE, "ready": {"ref": "nobody"}}],
            r"services\[0\].ready: neither text nor a known reference",
        ),
        ([{**HEAD_SERVICE, "env": ["A"]}], r"services\[0\].env: an object is needed"),
        ([{**HEAD_SERVICE, "ready_seconds": -1}], "ready_seconds: a number of seconds from 0 is needed"),
        ([{**HEAD_SERVICE, "argv": [{"ref": "host", "offset": 1}]}], r"services\[0\].argv\[0\]: no offset"),
    ],
)
def test_services_that_are_none(services: Any, message: str) -> None:
    document = {**json.loads(SPEC.to_json()), "services": services}
    with pytest.raises(LaunchSpecError, match=message):
        parse_launch_spec(json.dumps(document))


@pytest.mark.parametrize("launcher", ["mpi", "torchrun"])
def test_services_go_with_the_runtimes_own_ranks(launcher: str) -> None:
    document = json.loads(SPEC.to_json())
    document["ranks"].update({"launcher": launcher, "rendezvous": True, "on": "all"})
    with pytest.raises(LaunchSpecError, match="services: only with ranks that the runtime starts"):
        parse_launch_spec(json.dumps(document))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"on": "others"}, "ranks.on: one of all, leader, not 'others'"),
        ({"rendezvous": True}, "ranks.on: ranks on the leader alone join no others"),
        ({"argv": [{"join": [{"join": ["a"]}]}]}, r"ranks.argv\[0\]: neither text nor a known reference"),
    ],
)
def test_ranks_that_are_none(change: dict[str, Any], message: str) -> None:
    document = json.loads(SPEC.to_json())
    document["ranks"].update(change)
    with pytest.raises(LaunchSpecError, match=message):
        parse_launch_spec(json.dumps(document))
