"""What a rank finds when it starts: words, variables, folders; on every Python that can be had here."""

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
from tests.runtime.host import Host

MakeHost = Callable[..., Host]

TELL = """
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
    found = shutil.which(f"python{version}")
    # pyenv puts a name on the PATH for versions that it then refuses to run.
    works = found is not None and subprocess.run([found, "-c", ""], capture_output=True).returncode == 0
    return found if works else None


@pytest.mark.parametrize("version", VERSIONS)
def test_two_ranks_start_on_each_python(host: MakeHost, version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    result = host(TELL, python=python, hyperparameters={"lr": "0.10"}).run(per_host=2)
    assert result.exit_code == 0, result.stderr
    told = result.documents()
    assert [document["version"] for document in told] == [[int(part) for part in version.split(".")]] * 2
    assert [document["env"]["RANK"] for document in told] == ["0", "1"]
    assert [document["argv"] for document in told] == [["--lr", "0.10"]] * 2


def test_the_variables_torchrun_sets(host: MakeHost) -> None:
    """Names and values as torch 2.13's local_elastic_agent sets them, for the second of two hosts."""
    made = host(
        TELL, hosts=["127.0.0.1", "127.0.0.2"], current="127.0.0.2", environ={"TRAINING_JOB_NAME": "job-7"}
    )
    told = made.run(per_host=2, port=29511).documents()[1]["env"]
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
    assert {name: told.get(name) for name in expected} == expected


def test_what_the_user_has_set_stays(host: MakeHost) -> None:
    mine = {"OMP_NUM_THREADS": "7", "NCCL_SOCKET_IFNAME": "^lo", "PYTHONUNBUFFERED": "x", "PYTHONPATH": "/a"}
    made = host(TELL, environ=mine)
    told = made.run(per_host=2, env={"FROM_SPEC": Ref("rank", prefix="r", suffix="!")}).documents()
    for name in ("OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "PYTHONUNBUFFERED"):
        assert told[0]["env"][name] == mine[name]
    ours = f"{made.root}/smlaunch/importable"
    assert told[0]["env"]["PYTHONPATH"] == os.pathsep.join([made.paths.code, "/a", ours])
    assert [document["env"]["FROM_SPEC"] for document in told] == ["r0!", "r1!"]


def test_one_process_sets_no_threads_as_torchrun_does(host: MakeHost) -> None:
    assert "OMP_NUM_THREADS" not in host(TELL).run().documents()[0]["env"]


def test_without_rendezvous_there_is_no_rank_and_no_prefix(host: MakeHost) -> None:
    result = host(TELL, hosts=["algo-1", "algo-2"]).run(rendezvous=False)
    told = json.loads(result.stdout)
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR"} & set(told["env"])
    assert told["env"]["SM_CURRENT_HOST"] == "algo-1"


def test_the_port_may_come_from_the_host(host: MakeHost) -> None:
    assert host(TELL, environ={"SMLAUNCH_PORT": "4711"}).run().documents()[0]["env"]["MASTER_PORT"] == "4711"
    refused = host(TELL, name="other", environ={"SMLAUNCH_PORT": "http"}).run()
    assert (refused.exit_code, "SMLAUNCH_PORT" in refused.stderr) == (2, True)


def test_ranks_do_not_see_the_runtime_and_find_their_source(host: MakeHost) -> None:
    """Only what gives way to an installed smlaunch (test_importable)."""
    made = host(TELL, source={"package/helper.py": "", "package/__init__.py": ""})
    told = made.run().documents()[0]
    assert not [path for path in told["path"] if "runtime.pyz" in path]
    assert [path for path in told["path"] if "importable" in path] == [f"{made.root}/smlaunch/importable"]
    assert told["cwd"] == made.paths.code


def test_a_module_and_a_script_in_a_folder_import_from_the_source(host: MakeHost) -> None:
    source = {"pkg/__init__.py": "", "pkg/go.py": "import pkg.other\n", "pkg/other.py": "print('here')\n"}
    module = host(source=source).run(argv=(Ref("python"), "-m", "pkg.go"))
    script = host(name="other", source=source).run(argv=(Ref("python"), Ref("source", suffix="/pkg/go.py")))
    assert module.stdout == script.stdout == "[0] here\n"


def test_any_program_can_be_a_rank(host: MakeHost) -> None:
    """No shell: what looks like one is words."""
    result = host().run(argv=("printf", "%s|", "$HOME", "; rm -rf /", "a  b", "*"))
    assert result.stdout == "[0] $HOME|; rm -rf /|a  b|*|\n"


def test_references_are_filled_in(host: MakeHost) -> None:
    names = ("host", "leader", "host_rank", "hosts", "rank", "local_rank", "world_size", "per_host", "port")
    made = host(hosts=["127.0.0.10", "127.0.0.9"], current="127.0.0.10")
    result = made.run(per_host=2, argv=("echo", *(Ref(name) for name in names), Ref("ml", suffix="/model")))
    assert sorted(result.lines) == [
        f"[{rank}] 127.0.0.10 127.0.0.9 1 2 {rank} {rank - 2} 4 2 29500 {made.root}/model" for rank in (2, 3)
    ]


def test_auto_is_one_rank_where_there_is_no_accelerator(host: MakeHost) -> None:
    visible = {"CUDA_VISIBLE_DEVICES": ""}
    assert [d["env"]["WORLD_SIZE"] for d in host(TELL, environ=visible).run(per_host="auto").documents()] == [
        "1"
    ]
