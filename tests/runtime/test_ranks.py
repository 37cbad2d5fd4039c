"""Arguments, variables and directories of a rank at its start, with every Python of this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from smlaunch.contract.launch_spec import Ref
from smlaunch.runtime.cluster import Cluster
from smlaunch.runtime.rendezvous import thread_limit
from tests.runtime.host import Host

MakeHost = Callable[..., Host]

PRINT_PROCESS_STATE = """
import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "env": dict(os.environ), "cwd": os.getcwd(), "path": sys.path,
                  "version": list(sys.version_info[:2])}), flush=True)
"""
VERSIONS = ("3.8", "3.9", "3.10", "3.11", "3.12", "3.13")


def python_of(version: str) -> str | None:
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = sorted((pyenv / "versions").glob(f"{version}.*/bin/python"))
    if installed:
        return str(installed[0])
    interpreter = shutil.which(f"python{version}")
    # pyenv puts a name on the PATH for versions that it then refuses to run.
    works = (
        interpreter is not None
        and subprocess.run([interpreter, "-c", ""], capture_output=True).returncode == 0
    )
    return interpreter if works else None


@pytest.mark.parametrize("version", VERSIONS)
def test_two_ranks_start_on_each_python(make_host: MakeHost, version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    result = make_host(PRINT_PROCESS_STATE, python=python, hyperparameters={"lr": "0.10"}).run(per_host=2)
    assert result.exit_code == 0, result.stderr
    documents = result.documents()
    assert [document["version"] for document in documents] == [[int(part) for part in version.split(".")]] * 2
    assert [document["env"]["RANK"] for document in documents] == ["0", "1"]
    assert [document["argv"] for document in documents] == [["--lr", "0.10"]] * 2


def test_the_variables_torchrun_sets(make_host: MakeHost) -> None:
    """Names and values as torch 2.13's local_elastic_agent sets them, for the second of two hosts."""
    host = make_host(
        PRINT_PROCESS_STATE,
        hosts=["127.0.0.1", "127.0.0.2"],
        current="127.0.0.2",
        environ={"TRAINING_JOB_NAME": "job-7"},
    )
    environment = host.run(per_host=2, port=29511).documents()[1]["env"]
    expected = {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "ROLE_RANK": "3",
        "GROUP_RANK": "1",
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": "2",
        "WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "job-7",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    assert {name: environment.get(name) for name in expected} == expected


def test_what_the_user_has_set_stays(make_host: MakeHost) -> None:
    user_environment = {
        "OMP_NUM_THREADS": "7",
        "NCCL_SOCKET_IFNAME": "^lo",
        "PYTHONUNBUFFERED": "x",
        "PYTHONPATH": "/a",
    }
    host = make_host(PRINT_PROCESS_STATE, environ=user_environment)
    documents = host.run(per_host=2, env={"FROM_SPEC": Ref("rank", prefix="r", suffix="!")}).documents()
    for name in ("OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "PYTHONUNBUFFERED"):
        assert documents[0]["env"][name] == user_environment[name]
    importable_dir = f"{host.root}/smlaunch/importable"
    assert documents[0]["env"]["PYTHONPATH"] == os.pathsep.join([host.paths.code, "/a", importable_dir])
    assert [document["env"]["FROM_SPEC"] for document in documents] == ["r0!", "r1!"]


def test_one_process_sets_no_threads_as_torchrun_does(make_host: MakeHost) -> None:
    assert "OMP_NUM_THREADS" not in make_host(PRINT_PROCESS_STATE).run().documents()[0]["env"]


def test_hosts_on_one_machine_share_its_processors() -> None:
    names = ("algo-1", "algo-2")
    two_hosts = Cluster(names, "algo-1", "lo", "default", "ml.m5.xlarge", names, ())
    one_machine = {"SMLAUNCH_SHARED_PYTHON": "1"}
    share = str(max(1, (os.cpu_count() or 1) // 2))
    assert thread_limit(two_hosts, 1, one_machine) == {"OMP_NUM_THREADS": share}
    assert thread_limit(two_hosts, 2, one_machine) == {"OMP_NUM_THREADS": "1"}
    assert thread_limit(two_hosts, 1, {}) == {}
    assert thread_limit(two_hosts, 1, {**one_machine, "OMP_NUM_THREADS": "7"}) == {}


def test_without_rendezvous_there_is_no_rank_and_no_prefix(make_host: MakeHost) -> None:
    result = make_host(PRINT_PROCESS_STATE, hosts=["algo-1", "algo-2"]).run(rendezvous=False)
    document = json.loads(result.stdout)
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(document["env"])
    assert document["env"]["SM_CURRENT_HOST"] == "algo-1"


def test_the_port_may_come_from_the_host(make_host: MakeHost) -> None:
    assert (
        make_host(PRINT_PROCESS_STATE, environ={"SMLAUNCH_PORT": "4711"})
        .run()
        .documents()[0]["env"]["MASTER_PORT"]
        == "4711"
    )
    refused = make_host(PRINT_PROCESS_STATE, name="other", environ={"SMLAUNCH_PORT": "http"}).run()
    assert (refused.exit_code, "SMLAUNCH_PORT" in refused.stderr) == (2, True)


def test_ranks_do_not_see_the_runtime_and_find_their_source(make_host: MakeHost) -> None:
    """sys.path has only the folder that an installed smlaunch precedes (test_importable)."""
    host = make_host(PRINT_PROCESS_STATE, source={"package/helper.py": "", "package/__init__.py": ""})
    document = host.run().documents()[0]
    assert not [path for path in document["path"] if "runtime.pyz" in path]
    assert [path for path in document["path"] if "importable" in path] == [f"{host.root}/smlaunch/importable"]
    assert document["cwd"] == host.paths.code


def test_a_module_and_a_script_in_a_folder_import_from_the_source(make_host: MakeHost) -> None:
    source = {"pkg/__init__.py": "", "pkg/go.py": "import pkg.other\n", "pkg/other.py": "print('here')\n"}
    module = make_host(source=source).run(argv=(Ref("python"), "-m", "pkg.go"))
    script = make_host(name="other", source=source).run(
        argv=(Ref("python"), Ref("source", suffix="/pkg/go.py"))
    )
    assert module.stdout == script.stdout == "[0] here\n"


def test_any_program_can_be_a_rank(make_host: MakeHost) -> None:
    """No shell runs: its special characters are plain arguments."""
    result = make_host().run(argv=("printf", "%s|", "$HOME", "; rm -rf /", "a  b", "*"))
    assert result.stdout == "[0] $HOME|; rm -rf /|a  b|*|\n"


def test_references_are_filled_in(make_host: MakeHost) -> None:
    names = ("host", "leader", "host_rank", "hosts", "rank", "local_rank", "world_size", "per_host", "port")
    host = make_host(hosts=["127.0.0.10", "127.0.0.9"], current="127.0.0.10")
    result = host.run(per_host=2, argv=("echo", *(Ref(name) for name in names), Ref("ml", suffix="/model")))
    assert sorted(result.lines) == [
        f"[{rank}] 127.0.0.10 127.0.0.9 1 2 {rank} {rank - 2} 4 2 29500 {host.root}/model" for rank in (2, 3)
    ]


def test_auto_is_one_rank_where_there_is_no_accelerator(make_host: MakeHost) -> None:
    visible = {"CUDA_VISIBLE_DEVICES": ""}
    assert [
        d["env"]["WORLD_SIZE"]
        for d in make_host(PRINT_PROCESS_STATE, environ=visible).run(per_host="auto").documents()
    ] == ["1"]
