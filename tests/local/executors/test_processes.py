"""The environment of a program on its host, and the report of its end, at every level."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from smlaunch.contract.tcp_ports import PORTS_PER_JOB
from smlaunch.local.executors import loopback
from smlaunch.local.executors.executor_interface import CannotAllocate, DirectoryMount
from smlaunch.local.executors.host_plan import HostPlan, MountPlan
from tests.local.executors.conftest import Hosts, output, read_until, wait_for_exit

needs_namespaces = pytest.mark.parametrize("level", ["full", "user"], indirect=True)


@needs_namespaces
def test_hosts_have_their_own_name_processes_and_directories(hosts: Hosts) -> None:
    script = """
    hostname; echo pid $$; ls -d /proc/[0-9]* | wc -l; pwd; id -u
    test -e /tmp/mine && echo leaked; touch /tmp/mine /opt/ml/model/of-$(hostname); ls /opt/ml
    getent hosts algo-1 algo-2 | awk '{print $2}'; readlink /proc/self/ns/pid
    """
    (first, one), (second, two) = hosts.run(
        script.replace("touch", "mkdir -p /opt/ml/model; touch"),
        script.replace("touch", "mkdir -p /opt/ml/model; touch"),
    )
    assert (first.code, second.code) == (0, 0), one + two
    lines = one.splitlines()
    assert lines[:2] == ["algo-1", "pid 1"]
    assert int(lines[2]) < 10  # the host's processes, not the machine's
    assert lines[3:5] == ["/opt/ml/code", "0"]
    assert "leaked" not in one + two
    assert lines[5:7] == ["code", "model"]
    assert lines[7:9] == ["algo-1", "algo-2"]
    assert lines[9] != os.readlink("/proc/self/ns/pid")
    assert two.splitlines()[0] == "algo-2"
    assert not Path("/opt/ml").exists()
    assert not Path("/tmp/mine").exists()
    assert {host.ml_path_on_host for host in hosts.allocations[0].hosts} == {"/opt/ml"}
    trees = [host.opt_ml_folder for host in hosts.allocations[0].hosts]
    assert [sorted(os.listdir(tree / "model")) for tree in trees] == [["of-algo-1"], ["of-algo-2"]]


@pytest.mark.parametrize("level", ["plain"], indirect=True)
def test_plain_hosts_are_told_where_their_tree_is(hosts: Hosts) -> None:
    script = "echo $SMLAUNCH_ML_ROOT; pwd; touch $TMPDIR/mine; echo ${#TMPDIR}"
    ((exit_, text),) = hosts.run(script)
    (host,) = hosts.allocations[0].hosts
    assert exit_.code == 0
    assert text.splitlines()[:2] == [str(host.opt_ml_folder), str(host.opt_ml_folder / "code")]
    assert int(text.splitlines()[2]) <= 50
    assert host.network_name == host.address
    assert host.ml_path_on_host == str(host.opt_ml_folder)
    assert (host.opt_ml_folder.parent / "tmp" / "mine").exists()
    assert any("hard-codes /opt/ml" in note for note in hosts.allocations[0].info.notes)


@pytest.mark.parametrize("level", ["plain"], indirect=True)
def test_plain_moves_words_that_name_the_contracts_places(hosts: Hosts) -> None:
    argv = ["echo", "/opt/ml/input/x", "--y=/opt/ml/z", "/opt/mlx"]
    ((_, text),) = hosts.run("", argv=argv)
    (host,) = hosts.allocations[0].hosts
    assert text.split() == [f"{host.opt_ml_folder}/input/x", "--y=/opt/ml/z", "/opt/mlx"]


def test_words_and_variables_arrive_byte_for_byte(hosts: Hosts) -> None:
    hostile = ["", " ", "a b", "'", '"', "$HOME", "`id`", "; rm -rf /nothing", "\n", "ünï 🚀", "\udcff", "--"]
    program = "import os, sys; print(ascii((sys.argv[1:], os.environ['MINE'])))"
    argv = [sys.executable, "-c", program, *hostile]
    ((exit_, text),) = hosts.run("", argv=argv, environment={"MINE": "\n".join(hostile)})
    assert exit_.code == 0
    assert text.strip() == ascii((hostile, "\n".join(hostile)))


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("sh -c 'kill -KILL $$'", 137)])
def test_exit_codes_are_true(hosts: Hosts, script: str, code: int) -> None:
    ((exit_, _),) = hosts.run(script)
    assert (exit_.code, exit_.kind) == (code, "exited")


def test_a_program_that_cannot_be_started(hosts: Hosts, tmp_path: Path) -> None:
    ((exit_, _),) = hosts.run("", argv=["no-such-program-anywhere"])
    assert (exit_.code, exit_.kind) == (127, "not_started")
    assert "No such file" in exit_.message
    ((exit_, _),) = hosts.run("", argv=["/etc/passwd"], job="second")
    assert (exit_.code, exit_.kind) == (126, "not_started")


def test_sigterm_reaches_the_first_process_only_and_its_answer_counts(hosts: Hosts) -> None:
    script = "trap 'echo told; exit 9' TERM; sh -c 'echo child; sleep 1000' & echo ready; wait"
    (host,) = hosts.start(script)
    read_until(host, "ready")
    host.terminate()
    assert wait_for_exit(host).code == 9
    assert "told" in output(host)
    assert hosts.remaining_pids() == []


@needs_namespaces
def test_pid_1_without_a_handler_ignores_sigterm_as_in_a_container(hosts: Hosts) -> None:
    (host,) = hosts.start("echo ready; exec sleep 1000")
    read_until(host, "ready")
    host.terminate()
    host.kill()
    assert wait_for_exit(host).code == 137  # the kill; the default of SIGTERM would be 143


ESCAPING_CHILDREN = """
setsid sleep 1001 & nohup sleep 1002 >/dev/null 2>&1 &
sh -c 'setsid sh -c "sleep 1003 & sleep 1004" &' & (sleep 1005 &)
sleep 0.2; echo ready; """


@pytest.mark.parametrize("ending", ["exits", "killed"])
def test_nothing_outlives_the_first_process(hosts: Hosts, ending: str) -> None:
    (host,) = hosts.start(ESCAPING_CHILDREN + ("exit 3" if ending == "exits" else "wait"))
    read_until(host, "ready")
    if ending == "killed":
        host.kill()
    assert wait_for_exit(host).code == (3 if ending == "exits" else 137)
    assert hosts.remaining_pids() == []


def test_a_supervisor_that_is_killed_takes_its_host_along(hosts: Hosts) -> None:
    (host,) = hosts.start(ESCAPING_CHILDREN + "wait")
    read_until(host, "ready")
    os.kill(host.pid, 9)  # type: ignore[attr-defined]
    assert wait_for_exit(host).kind == "lost"
    hosts.release()
    assert hosts.remaining_pids() == []


def test_hosts_that_never_got_a_program_are_given_back(hosts: Hosts) -> None:
    allocation = hosts.allocate("early", ["algo-1", "algo-2"], False)
    allocation.release()
    allocation.release()
    assert not allocation.hosts[0].opt_ml_folder.exists()


@needs_namespaces
def test_a_writable_view_keeps_the_source_as_it_is(hosts: Hosts, tmp_path: Path) -> None:
    source = tmp_path / "so,me:odd\\ name"
    (source / "deep").mkdir(parents=True)
    (source / "file").write_text("original\n")
    (source / "deep" / "file").write_text("original\n")
    script = """
    set -e; cd /opt/ml/input/data/x; cat file; echo changed > file; rm deep/file; touch new
    rm -r deep; mkdir deep; ls deep; cat file; ls
    """
    mounts = [DirectoryMount(source, "input/data/x")]
    for exit_, text in hosts.run(script, script, mounts=mounts):
        assert exit_.code == 0, text
        assert text.split() == ["original", "changed", "deep", "file", "new"]
    assert (source / "file").read_text() == (source / "deep" / "file").read_text() == "original\n"
    assert not (source / "new").exists()


@needs_namespaces
def test_a_read_only_view_refuses_writes(hosts: Hosts, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("original\n")
    script = (
        "cd /opt/ml/x && cat file && (echo changed > file || rm file || ln file ../y) 2>/dev/null; echo $?"
    )
    ((_, text),) = hosts.run(script, mounts=[DirectoryMount(tmp_path / "source", "x", read_only=True)])
    assert text.split() == ["original", "1"]
    assert (tmp_path / "source" / "file").read_text() == "original\n"


OTHER_DIRECTORIES = ("/sml-ckpt", "/sml/ckpt/deep", "/srv/sml-ckpt", "/tmp/ckpt", "/dev/shm/ckpt", "/var/tmp")


@needs_namespaces
@pytest.mark.parametrize("target", OTHER_DIRECTORIES)
def test_a_shared_view_may_be_anywhere(hosts: Hosts, tmp_path: Path, target: str) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "before").write_text("before\n")
    host_directories = sorted(os.listdir("/")), sorted(os.listdir("/srv"))
    script = f"cd {target} && cat before && echo after > after && ls /opt/ml && hostname && ls -A / | wc -l"
    ((exit_, text),) = hosts.run(script, mounts=[DirectoryMount(source, target, shared=True)])
    assert exit_.code == 0, text
    top = len(host_directories[0]) + target.startswith("/sml")
    assert text.split() == ["before", "code", "algo-1", str(top)]
    assert (source / "after").read_text() == "after\n"
    assert (sorted(os.listdir("/")), sorted(os.listdir("/srv"))) == host_directories


@pytest.mark.root
def test_where_an_overlay_is_refused_opt_is_rebuilt_from_binds(tmp_path: Path) -> None:
    program = """
import os, sys
from smlaunch.local.executors import namespaces
stage, parent = sys.argv[1:]
namespaces._mount("tmpfs", stage, "tmpfs", 0)
namespaces._replace_by_bind_mounts(parent, "ml", os.path.join(stage, "again"))
namespaces._mount("tmpfs", os.path.join(parent, "ml"), "tmpfs", 0)
print(sorted(os.listdir(parent)), open(parent + "/file").read(), os.readlink(parent + "/link"))
print(os.listdir(parent + "/folder"))
"""
    parent, stage = tmp_path / "opt", tmp_path / "stage"
    (parent / "folder" / "inner").mkdir(parents=True)
    (parent / "file").write_text("text")
    (parent / "link").symlink_to("file")
    stage.mkdir()
    command = ["unshare", "--mount", "--propagation=private", sys.executable, "-c", program]
    result = subprocess.run([*command, str(stage), str(parent)], capture_output=True, text=True)
    assert result.stdout.splitlines() == ["['file', 'folder', 'link', 'ml'] text file", "['inner']"], (
        result.stderr
    )
    assert sorted(os.listdir(parent)) == ["file", "folder", "link"]


EXCHANGE_SCRIPT = """
import socket, sys
side, port = sys.argv[1], 5000
if side == "algo-1":
    server = socket.create_server(("algo-1", port)); print("up", flush=True)
    print(server.accept()[0].recv(5).decode())
else:
    while True:
        try:
            socket.create_connection(("algo-1", port)).sendall(b"hello"); break
        except ConnectionRefusedError: pass
try: socket.create_connection(("127.0.0.1", int(sys.argv[2])), 2); print("outside reached")
except OSError: print("outside closed")
"""


@needs_namespaces
@pytest.mark.parametrize("isolated", [True, False])
def test_network_isolation_leaves_the_hosts_each_other(hosts: Hosts, tmp_path: Path, isolated: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as outside:
        port = outside.getsockname()[1]
        command = f"exec {sys.executable} -c '{EXCHANGE_SCRIPT}' $(hostname) {port}"
        (first, one), (second, two) = hosts.run(command, command, isolated_network=isolated)
    assert (first.code, second.code) == (0, 0), one + two
    expected = "outside closed" if isolated else "outside reached"
    assert "hello" in one
    assert expected in one
    assert expected in two


def test_jobs_have_addresses_and_ports_of_their_own(hosts: Hosts) -> None:
    first, second = (hosts.allocate(job, ["algo-1", "algo-2"], False) for job in ("one", "two"))
    hosts.allocations += [first, second]
    addresses = [host.address for allocation in (first, second) for host in allocation.hosts]
    assert len(set(addresses)) == 4
    ports = [int(allocation.info.environment["SMLAUNCH_PORT"]) for allocation in (first, second)]
    assert abs(ports[0] - ports[1]) >= PORTS_PER_JOB
    for offset in range(PORTS_PER_JOB):
        with socket.create_server((addresses[0], ports[0] + offset)):
            pass


def test_a_block_of_ports_that_somebody_listens_in_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    first = loopback.reserve_addresses(1)
    port = first.port
    monkeypatch.setattr(loopback, "_PORT_RANGE_START", port)
    monkeypatch.setattr(loopback, "_PORT_RANGE_END", port + PORTS_PER_JOB)
    with pytest.raises(CannotAllocate, match="64 free ports in a row"):
        loopback.reserve_addresses(1)
    first.release()
    server = socket.create_server(("127.0.0.1", port + PORTS_PER_JOB - 1))
    with server, pytest.raises(CannotAllocate, match="64 free ports in a row"):
        loopback.reserve_addresses(1)
    new_reservation = loopback.reserve_addresses(1)
    assert new_reservation.port == port
    new_reservation.release()


def test_a_reservation_ends_when_it_is_released() -> None:
    first = loopback.reserve_addresses(3)
    assert len(first.addresses) == 3
    second = loopback.reserve_addresses(1)
    assert not set(first.addresses) & set(second.addresses)
    first.release()
    second.release()
    with pytest.raises(CannotAllocate, match="253 at most"):
        loopback.reserve_addresses(400)


def test_a_plan_survives_its_journey() -> None:
    plan = HostPlan(
        **{
            name: f"{name} \n'"
            for name in (
                *("isolation_level", "working_directory", "hostname", "ml_folder", "ml_path_on_host"),
                *("staging_folder", "tmp_folder"),
            )
        },
        hosts_file="",
        network="",
        argv=["a", "", "\udcff"],
        environment={"X": "", "Y": "="},
        visible_folders=[],
        mounts=[MountPlan("s", "t", "overlay", "u", "w"), MountPlan("s2", "/t2", "shared", "", "")],
    )
    read = HostPlan.decode(plan.encode())
    assert {**vars(read), "mounts": [vars(mount) for mount in read.mounts]} == {
        **vars(plan),
        "mounts": [vars(mount) for mount in plan.mounts],
    }
    plan.argv = ["a\0b"]
    with pytest.raises(ValueError, match="zero byte"):
        plan.encode()
