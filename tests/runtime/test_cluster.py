"""The cluster that is read from any resourceconfig.json a platform may write."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smlaunch.runtime.cluster import natural_sort_key
from smlaunch.runtime.cluster.training import parse_cluster
from tests.runtime.host import Host, finish

MakeHost = Callable[..., Host]


def groups(**hosts: list[str]) -> list[dict[str, Any]]:
    return [
        {"instance_group_name": name, "instance_type": f"ml.{name}.xlarge", "hosts": names}
        for name, names in hosts.items()
    ]


@given(st.permutations([f"algo-{number}" for number in range(1, 13)]), st.integers(1, 12))
def test_all_hosts_agree_in_whatever_order_they_are_told(order: list[str], number: int) -> None:
    cluster = parse_cluster({"current_host": f"algo-{number}", "hosts": order})
    assert cluster.hosts == tuple(f"algo-{index}" for index in range(1, 13))
    assert (cluster.host_rank, cluster.leader) == (number - 1, "algo-1")
    assert cluster.all_hosts == tuple(order)


def test_a_group_without_algo_1_leads_itself() -> None:
    """The developer guide's own example has the hosts of its group as algo-3, algo-1; ours lacks algo-1."""
    document = {
        "current_host": "algo-10",
        "hosts": ["algo-1", "algo-10", "algo-2", "algo-3"],
        "current_group_name": "gpu",
        "current_instance_type": "ml.p4d.24xlarge",
        "instance_groups": groups(cpu=["algo-1"], gpu=["algo-10", "algo-3", "algo-2"]),
        "network_interface_name": "eth0",
    }
    cluster = parse_cluster(document)
    assert cluster.hosts == ("algo-2", "algo-3", "algo-10")
    assert (cluster.host_rank, cluster.leader, cluster.group_name) == (2, "algo-2", "gpu")
    assert (cluster.instance_type, cluster.network_interface) == ("ml.p4d.24xlarge", "eth0")
    assert [group.name for group in cluster.groups] == ["cpu", "gpu"]


def test_group_keys_may_be_missing() -> None:
    cluster = parse_cluster({"current_host": "algo-2", "hosts": ["algo-2", "algo-1"]})
    assert cluster.group_name == "homogeneousCluster"
    assert (cluster.network_interface, cluster.instance_type, cluster.groups) == ("eth0", "local", ())
    assert cluster.hosts == ("algo-1", "algo-2")


def test_the_group_is_found_by_its_hosts_without_its_name() -> None:
    document = {
        "current_host": "algo-2",
        "hosts": ["algo-1", "algo-2"],
        "instance_groups": groups(a=["algo-1"], b=["algo-2"]),
    }
    cluster = parse_cluster(document)
    assert (cluster.group_name, cluster.hosts, cluster.instance_type) == ("b", ("algo-2",), "ml.b.xlarge")


@given(st.lists(st.text(max_size=6), max_size=8))
def test_any_names_can_be_sorted(names: list[str]) -> None:
    shuffled = random.Random(0).sample(names, len(names))
    assert sorted(shuffled, key=natural_sort_key) == sorted(sorted(names), key=natural_sort_key) or len(
        set(names)
    ) < len(names)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"hosts": ["algo-1"]}', "'current_host' is missing"),
        ('{"current_host": "algo-1"}', "'hosts' is missing"),
        ('{"current_host": "algo-3", "hosts": ["algo-1"]}', "'algo-3' is not among the hosts algo-1"),
        ('{"current_host": "algo-1", "hosts": "algo-1"}', "a list of names is needed"),
    ],
)
def test_a_broken_file_is_named(make_host: MakeHost, document: str, message: str) -> None:
    host = make_host()
    with open(host.paths.resource_config, "w") as file:
        file.write(document)
    result = host.run()
    assert result.exit_code == 2
    assert message in result.stderr
    assert "resourceconfig.json" in result.stderr
    assert message in host.failure


def test_no_platform_at_all_is_told_as_such(make_host: MakeHost, tmp_path: Any) -> None:
    host = make_host(environ={"SMLAUNCH_ML_ROOT": str(tmp_path / "nowhere")})
    result = host.run()
    assert result.exit_code == 2
    assert "resourceconfig.json: No such file" in result.stderr
    assert len(result.stderr.splitlines()) == 1


MEET_PEERS = """
import json, os, socket
env = os.environ
world, rank = int(env["WORLD_SIZE"]), int(env["RANK"])
address = (env["MASTER_ADDR"], int(env["MASTER_PORT"]))
if rank == 0:
    with socket.create_server(address) as server:
        said = [rank] + [int(server.accept()[0].recv(9)) for _ in range(world - 1)]
    print(json.dumps({"met": sorted(said), "group": env["SM_CURRENT_INSTANCE_GROUP"]}))
else:
    while True:
        try:
            peer = socket.create_connection(address)
            break
        except ConnectionRefusedError:
            pass
    peer.sendall(b"%d" % rank)
"""


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)])
def test_each_group_meets_on_its_own(make_host: MakeHost, order: tuple[int, ...]) -> None:
    """Three hosts in two groups, listed in any order; the second group does not have the first host."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
    names = ["127.0.0.1", "127.0.0.2", "127.0.0.10"]
    shuffled = [names[index] for index in order]
    config = {"instance_groups": groups(cpu=names[:1], gpu=[name for name in shuffled if name != names[0]])}
    hosts = [
        make_host(MEET_PEERS, name=f"host-{name}", hosts=shuffled, current=name, resource_config=config)
        for name in names
    ]
    started = [host.start(per_host=2, port=port) for host in hosts]
    results = [finish(process) for process in started]
    assert [result.exit_code for result in results] == [0, 0, 0], [result.stderr for result in results]
    documents = [json.loads(line.partition("] ")[2]) for result in results for line in result.lines]
    assert sorted(documents, key=lambda document: str(document["group"])) == [
        {"met": [0, 1], "group": "cpu"},
        {"met": [0, 1, 2, 3], "group": "gpu"},
    ]
