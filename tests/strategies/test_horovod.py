"""strategy: horovod: on MPI as any MPI program; by gloo with the variables that horovodrun sets, written by
hand from Horovod 0.28.1 (horovod/runner/gloo_run.py). Its meeting place is asked as common/gloo/http_store.cc
asks it."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from smlaunch.contract.launch_spec import LEADER, MPI, RUNTIME, Concat, Ref, ServiceSpec
from smlaunch.facts.discovered_facts import ScriptFacts
from smlaunch.render.plan import Plan
from smlaunch.runtime.horovod_rendezvous import serve
from tests.planner.fixtures import region
from tests.strategies.launch_specs import SHELL, spec_of
from tests.strategies.requests import plan_job, refusals

HOROVOD = ScriptFacts(imports=frozenset({"horovod.torch", "horovod", "torch"}))
COMPUTE = {"hosts": 2, "processes_per_host": 2, "instance_type": "ml.m5.xlarge"}
PORT = Ref("port", offset=4)


def plan_horovod(**job: Any) -> Plan:
    return plan_job({"compute": COMPUTE, **job}, region(script=HOROVOD))


def test_on_mpi() -> None:
    plan = plan_horovod()
    assert plan.strategy == "horovod"
    spec = spec_of(plan)
    assert (spec.ranks.launcher, spec.services) == (MPI, ())
    assert spec.ranks.argv == (Ref("python"), Ref("source", suffix="/train.py"), Ref("hyperparameters"))
    assert not any(name.startswith("HOROVOD_") for name, _ in spec.ranks.env)
    assert [upload.kind for upload in plan.uploads].count("secret") == 1
    assert any("does not build unpatched" in line for line in plan.warnings)


def test_by_gloo() -> None:
    plan = plan_horovod(options={"controller": "gloo"})
    spec = spec_of(plan)
    assert (spec.ranks.launcher, spec.ranks.per_host, spec.ranks.launcher_options) == (RUNTIME, 2, ())
    assert {name: word for name, word in spec.ranks.env if name.startswith("HOROVOD_")} == {
        "HOROVOD_HOSTNAME": Ref("host"),
        "HOROVOD_RANK": Ref("rank"),
        "HOROVOD_SIZE": Ref("world_size"),
        "HOROVOD_LOCAL_RANK": Ref("local_rank"),
        "HOROVOD_LOCAL_SIZE": Ref("per_host"),
        "HOROVOD_CROSS_RANK": Ref("host_rank"),
        "HOROVOD_CROSS_SIZE": Ref("hosts"),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": Ref("leader_address"),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": PORT,
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    rendezvous_command = (Ref("python"), "-c", "from smlaunch.runtime.horovod_rendezvous import main; main()")
    assert spec.services == (
        ServiceSpec(
            "horovod-rendezvous",
            (*rendezvous_command, PORT, Ref("world_size"), Ref("hosts")),
            runs_on=LEADER,
            ready_address=Concat((Ref("leader_address", suffix=":"), PORT)),
        ),
    )
    assert not [upload for upload in plan.uploads if upload.kind == "secret"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"controller": "nccl"}, "options.controller: one of mpi, gloo, not 'nccl'"),
        (
            {"controller": "gloo", "mpirun_options": "--map-by node"},
            "options.mpirun_options: with controller: gloo there is no mpirun; leave one of them out",
        ),
    ],
)
def test_refusals(options: dict[str, str], message: str) -> None:
    assert refusals({"compute": COMPUTE, "options": options}, region(script=HOROVOD)) == [message]


def test_a_script_that_is_none() -> None:
    messages = refusals(
        {"entry": "src/train.sh", "strategy": "horovod", "compute": COMPUTE},
        region(script=HOROVOD, source=SHELL),
    )
    assert messages == [
        "strategy: horovod starts Python scripts; train.sh needs strategy: custom, or a .py around it"
    ]


# ---- where ranks meet ------------------------------------------------------------------------------------


@pytest.fixture
def port() -> Iterator[int]:
    server = serve(0, ranks=4, hosts=2)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


def send_request(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request(method, path, body)
    answer = connection.getresponse()
    status_and_body = answer.status, answer.read()
    connection.close()
    return status_and_body


def test_values_by_scope_and_key(port: int) -> None:
    value = bytes(range(256)) * 40
    assert send_request(port, "GET", "/global/0") == (404, b"")
    assert send_request(port, "PUT", "/global/0", value) == (200, b"")
    assert send_request(port, "PUT", "/local_algo-1/0", b"other") == (200, b"")
    assert send_request(port, "GET", "/global/0") == (200, value)
    assert send_request(port, "GET", "/local_algo-1/0") == (200, b"other")
    assert send_request(port, "PUT", "/global", b"")[0] == 400


@pytest.mark.parametrize(("scope", "size"), [("global", 4), ("local_algo-2", 2), ("cross_1", 2)])
def test_the_last_rank_that_leaves_clears_the_scope(port: int, scope: str, size: int) -> None:
    """Ranks that shut down and start again must not meet those of the time before."""
    for _ in range(2):
        send_request(port, "PUT", f"/{scope}/key", b"value")
        for rank in range(size):
            assert send_request(port, "GET", f"/{scope}/key") == (200, b"value")
            assert send_request(port, "DELETE", f"/{scope}/{rank}") == (200, b"")
        assert send_request(port, "GET", f"/{scope}/key") == (404, b"")


def test_another_scopes_key_is_deleted_itself(port: int) -> None:
    send_request(port, "PUT", "/global_1/0", b"a")
    send_request(port, "PUT", "/global_1/1", b"b")
    send_request(port, "DELETE", "/global_1/0")
    assert [send_request(port, "GET", f"/global_1/{rank}")[0] for rank in (0, 1)] == [404, 200]
