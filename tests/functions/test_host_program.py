"""The program on the host, run as a host runs it: a file among files of the source."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from smlaunch.functions import host_program, remote_function
from smlaunch.functions.function_job import VERIFIED_START
from smlaunch.functions.function_source import call_files
from smlaunch.functions.host_program import CALL_FILE, PROGRAM_FILE, SHA256_VARIABLE
from smlaunch.functions.pickled_call import PickledCall, pickle_call
from smlaunch.functions.result_decoding import decode_exception
from tests.conftest import ROOT
from tests.runtime.test_ranks import python_of
from tests.tables import table


class Host:
    """A folder with an unpacked source, and what the program writes."""

    def __init__(self, folder: Path) -> None:
        self.source, self.output = folder / "source", folder / "output"
        self.source.mkdir(parents=True)

    def unpack(self, call: PickledCall) -> None:
        for name, content in call_files(call).items():
            path = self.source / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def run(self, sha256: str, python: str = sys.executable, **environment: str) -> Any:
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        variables = {
            SHA256_VARIABLE: sha256,
            "SM_OUTPUT_DATA_DIR": str(self.output),
            **inherited,
            **environment,
        }
        command = [python, str(self.source / PROGRAM_FILE)]
        return subprocess.run(
            command, env=variables, cwd=self.source, capture_output=True, text=True, timeout=100
        )

    @property
    def files(self) -> dict[str, bytes]:
        folder = self.output / host_program.OUTPUT_FOLDER
        return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.is_dir() else {}


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


def pickled(function: Any, *args: Any) -> PickledCall:
    return pickle_call(function, args, {}, "f")


def touch_later(path: Path) -> Any:
    class Touch:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(path),)

    return Touch()


def test_rank_0_writes_and_the_others_do_not(host: Host) -> None:
    call = pickled(lambda x: {"twice": 2 * x}, 21)
    host.unpack(call)
    other = host.run(call.sha256, RANK="1")
    assert (other.returncode, other.stdout, host.files) == (0, "", {})
    first = host.run(call.sha256, RANK="0")
    assert first.returncode == 0, first.stderr
    (content,) = host.files.values()
    assert json.loads(content) == {"dict": [["twice", 42]]}
    sha256 = hashlib.sha256(content).hexdigest()
    assert first.stdout == f"smlaunch: function-result format=json bytes={len(content)} sha256={sha256}\n"


def test_what_another_rank_returns_does_not_matter(host: Host) -> None:
    call = pickled(lambda: (number for number in range(3)))
    host.unpack(call)
    other = host.run(call.sha256, RANK="1")
    assert (other.returncode, host.files) == (0, {}), other.stderr
    assert "returned a generator" in host.run(call.sha256, RANK="0").stderr


def silence_output() -> int:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 7


def test_a_result_is_announced_wherever_the_function_sends_its_output(host: Host) -> None:
    call = pickled(lambda: silence_output())
    host.unpack(call)
    (host.source / "tests" / "functions").mkdir(parents=True)
    result = host.run(call.sha256, RANK="0", PYTHONPATH=str(ROOT))
    assert result.stdout.startswith("smlaunch: function-result format=json"), result.stderr


def test_a_host_starts_no_other_runtime_than_the_one_of_the_request(tmp_path: Path) -> None:
    runtime, job_json = tmp_path / "runtime.pyz", tmp_path / "job.json"
    runtime.write_text("print('the runtime')")
    job_json.write_text("{}")
    hashes = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (runtime, job_json)]
    command = [sys.executable, "-c", VERIFIED_START, str(runtime), *hashes]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "the runtime\n"
    for path in (job_json, runtime):
        path.write_text(path.read_text() + " ")
        refused = subprocess.run(command, capture_output=True, text=True)
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr == f"smlaunch: error: {path} is not what the job was requested with\n"


def test_a_changed_call_is_refused_before_it_is_unpickled(host: Host, tmp_path: Path) -> None:
    call = pickled(lambda: 1)
    host.unpack(call)
    trace = tmp_path / "trace"
    header = call.content.partition(b"\n")[0]
    hostile = header + b"\n" + pickle.dumps(touch_later(trace))
    (host.source / CALL_FILE).write_bytes(hostile)
    for sha256 in (call.sha256, "", "0" * 64):
        result = host.run(sha256)
        assert result.returncode == 2
        assert "the call is not the one that the job was requested with" in result.stderr
        assert not trace.exists() and not host.files
    host.run(hashlib.sha256(hostile).hexdigest())
    assert trace.exists()  # so that it would have left a trace


@table(
    ("changes", "message"),
    [
        ({"python": "3.99"}, "the function comes from Python 3.99, and this host has Python 3."),
        ({"format": "2.0"}, "the call has format 2.0, this program reads 1.0"),
    ],
)
def test_a_call_of_another_release_is_refused(tmp_path: Path, changes: dict[str, str], message: str) -> None:
    host = Host(tmp_path / "-".join(changes.values()))
    call = pickled(lambda: 1)
    header, _, body = call.content.partition(b"\n")
    content = json.dumps({**json.loads(header), **changes}).encode() + b"\n" + body
    sha256 = hashlib.sha256(content).hexdigest()
    host.unpack(PickledCall(content, sha256, frozenset()))
    result = host.run(sha256)
    assert (result.returncode, message in result.stderr) == (2, True), result.stderr
    assert not host.files


def test_another_python_says_which_one_is_needed(host: Host) -> None:
    """Also the oldest one that a framework image has: the program itself runs there."""
    python = python_of("3.8")
    if python is None:
        pytest.skip("no Python 3.8 on this machine")
    call = pickled(lambda: 1)
    host.unpack(call)
    result = host.run(call.sha256, python=python)
    assert result.returncode == 2
    assert "this host has Python 3.8: functions travel as bytecode" in result.stderr


def test_the_users_modules_are_found_and_the_programs_folder_is_not(host: Host) -> None:
    def imports() -> tuple[str, bool]:
        import sys

        import call_function  # a module of the user, called like the program
        import helper

        return helper.NAME + call_function.NAME, any(path.endswith(".smlaunch") for path in sys.path)

    call = pickled(imports)
    host.unpack(call)
    (host.source / "helper.py").write_text("NAME = 'helper'\n")
    (host.source / "call_function.py").write_text("NAME = 'mine'\n")
    result = host.run(call.sha256)
    assert result.returncode == 0, result.stderr
    assert json.loads(host.files["result.json"]) == {"tuple": ["helpermine", False]}


MODULE = """
import smlaunch
from smlaunch import Compute, Job, JobError, local_target

JOB = Job(compute=Compute(hosts=2))

@smlaunch.remote(job=JOB, target=smlaunch.Target.region("eu-west-1"))
def train(n):
    return 1 if n == 0 else 2 * train(n - 1)

@smlaunch.remote
def other(n):
    try:
        return train(n)
    except JobError:
        raise
"""


def test_a_decorated_module_can_be_imported_where_smlaunch_launches_nothing(host: Host) -> None:
    """The smlaunch that the runtime brings has neither ``remote`` nor ``Job``."""

    def calls() -> int:
        import decorated

        return int(decorated.other(5))

    call = pickled(calls)
    host.unpack(call)
    (host.source / "decorated.py").write_text(MODULE)
    bare = host.source / "smlaunch"
    bare.mkdir()
    (bare / "__init__.py").write_text("")
    result = host.run(call.sha256)
    assert result.returncode == 0, result.stderr
    assert host.files["result.json"] == b"32"


def test_recursion_through_the_decorated_name(host: Host) -> None:
    @remote_function.remote
    def factorial(n: int) -> int:
        return 1 if n == 0 else n * factorial(n - 1)

    call = pickled(factorial.function, 5)
    host.unpack(call)
    result = host.run(call.sha256)
    assert result.returncode == 0, result.stderr
    assert host.files["result.json"] == b"120"


def raise_value_error() -> None:
    raise ValueError("bad")


@table(
    ("name", "message", "has_exception"),
    [
        ("generator", "returned a generator, which cannot leave its process", True),
        ("value", "bad", True),
        ("exit", "3", False),
        ("unpicklable", "cannot pickle", True),
    ],
)
def test_what_a_rank_raises_is_written_with_its_traceback(
    tmp_path: Path, name: str, message: str, has_exception: bool
) -> None:
    import threading

    def fails(kind: str) -> Any:
        if kind == "value":
            raise ValueError("bad")
        if kind == "exit":
            sys.exit(3)
        return threading.Lock() if kind == "unpicklable" else (n for n in range(3))

    host = Host(tmp_path / name)
    call = pickled(fails, name)
    host.unpack(call)
    result = host.run(call.sha256, RANK="0")
    assert result.returncode == 1
    assert "error-0" in host.files, result.stderr
    content = host.files["error-0"]
    assert f"rank=0 bytes={len(content)} sha256={hashlib.sha256(content).hexdigest()}\n" in result.stdout
    decoded = decode_exception(content)
    assert message in decoded.message
    assert (decoded.exception is not None) is has_exception
    assert decoded.traceback in result.stderr
    if name == "value":  # the frames are the user's alone
        assert decoded.traceback.count("File ") == 1


def test_a_result_of_any_size_is_not_sent(host: Host) -> None:
    call = pickled(lambda: "x" * 5000)
    host.unpack(call)
    program = host.source / PROGRAM_FILE
    program.write_text(program.read_text().replace("MAX_RESULT_BYTES = 1 << 30", "MAX_RESULT_BYTES = 4000"))
    result = host.run(call.sha256)
    assert result.returncode == 1
    assert "the result takes 5,002 bytes, and at most 4,000 are sent back" in result.stderr
    assert set(host.files) == {"error-0"}


@table(
    ("environment", "rank"),
    [
        ({}, 0),
        ({"RANK": "5", "OMPI_COMM_WORLD_RANK": "3"}, 5),
        ({"OMPI_COMM_WORLD_RANK": "3"}, 3),
        ({"PMI_RANK": "2"}, 2),
        ({"SM_CURRENT_HOST_RANK": "1"}, 1),
        ({"SMLAUNCH_HOST_RANK": "1", "SMLAUNCH_PROCESS": "1", "SMLAUNCH_PROCESSES": "4"}, 5),
    ],
)
def test_each_way_of_starting_says_which_rank_it_is(environment: dict[str, str], rank: int) -> None:
    assert host_program.find_rank(environment) == rank


PROGRAM = """
import sys
from smlaunch.functions.pickled_call import pickle_call

class Model:
    names = ("a", "b")
    def __init__(self, size): self.size = size

class Large(Model):
    pass

def train(model, *, rate=0.1):
    return Large(model.size * rate) if rate in (0.1, 0.2) else model

print(pickle_call(train, [Model(3), Large(4)], {"rate": 0.2}, "train").sha256)
"""


def test_the_same_program_makes_the_same_call_in_every_process(tmp_path: Path) -> None:
    """So that a script that is started again attaches to its run."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    hashes = {
        subprocess.run(
            [sys.executable, str(script)], check=True, capture_output=True, text=True, timeout=100
        ).stdout
        for _ in range(2)
    }
    assert len(hashes) == 1
