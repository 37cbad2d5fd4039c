"""From a call to an ordinary plan: what is sent, and what is refused before anything starts."""

from __future__ import annotations

import dataclasses
import functools
import gzip
import hashlib
import io
import pickle
import sys
import tarfile
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import cloudpickle
import numpy
import pytest

import smlaunch
from smlaunch import Compute, Job, JobError, Limits, MachineError
from smlaunch.functions import function_job
from smlaunch.functions.call_identity import hash_of_parts
from smlaunch.functions.call_secrets import find_call_secret
from smlaunch.functions.function_job import FunctionRun, prepare_function
from smlaunch.functions.function_source import definitions_of
from smlaunch.functions.host_program import CALL_FILE, PROGRAM_FILE, SHA256_VARIABLE
from smlaunch.functions.pickled_call import names_of_main, pickle_call
from smlaunch.runs.runtime_archive import load_runtime_archive
from tests.runs.fakes import ROLE, fake_target
from tests.tables import table

PYTHON = f"py3{sys.version_info[1]}"
REGISTRY = "123456789012.dkr.ecr.us-east-1.amazonaws.com"
IMAGE = f"{REGISTRY}/own:2.6-cpu-{PYTHON}-ubuntu22.04"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    return folder


def prepare(function: Callable[..., Any], *args: Any, job: Job | None = None, **kwargs: Any) -> FunctionRun:
    stated = job or Job()
    own = {"role": ROLE} | ({} if "image" in stated.stated_fields else {"image": IMAGE})
    return prepare_function(function, args, kwargs, stated.with_changes(**own), fake_target())


def files_of(run: FunctionRun) -> dict[str, bytes]:
    assert run.prepared.source is not None
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(run.prepared.source.compressed()))) as archive:
        files = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in files.items() if file is not None}


def test_a_call_is_an_ordinary_job_whose_request_has_its_hash(source: Path) -> None:
    run = prepare(lambda x: x + 1, 1, job=Job(source=source, compute=Compute(hosts=2)))
    request = run.prepared.plan.planned_jobs[0].request
    files = files_of(run)
    assert request["Environment"][SHA256_VARIABLE] == hashlib.sha256(files[CALL_FILE]).hexdigest()
    assert files["helper.py"] == (source / "helper.py").read_bytes()
    assert ".smlaunch/library/cloudpickle/cloudpickle.py" in files
    compile(files[PROGRAM_FILE], PROGRAM_FILE, "exec")
    assert run.output_uri.endswith(f"/smlaunch/{run.prepared.plan.run}/output/")
    spec = run.prepared.plan.planned_jobs[0].launch_spec
    assert spec is not None
    assert [getattr(argument, "suffix", argument) for argument in spec.ranks.argv][1] == f"/{PROGRAM_FILE}"
    # No key of any kind: what the request has more than that of a script is this one hash.
    assert set(request["Environment"]) == {SHA256_VARIABLE}
    assert "HyperParameters" not in request or not request["HyperParameters"]


def test_the_request_states_the_hashes_of_what_a_host_starts(source: Path) -> None:
    prepared = prepare(lambda x: x, 1, job=Job(source=source)).prepared
    plan = prepared.plan
    python, option, text, runtime, *hashes = plan.planned_jobs[0].request["AlgorithmSpecification"][
        "ContainerEntrypoint"
    ]
    assert (python, option, runtime) == ("python3", "-c", "/opt/ml/input/data/smlaunch/runtime.pyz")
    assert len(text) <= 256 and "\n" not in text
    job_json = next(upload.content for upload in plan.uploads if upload.kind == "launch")
    assert job_json is not None
    assert hashes == [
        hashlib.sha256(content).hexdigest() for content in (load_runtime_archive(False), job_json.encode())
    ]
    assert prepared.source is not None
    assert prepared.source.sha256 in job_json


def test_other_files_beside_the_modules_make_no_other_run(source: Path) -> None:
    def hash_now() -> str:
        return prepare(functools.partial(max, 1, 2), job=Job(source=source)).prepared.plan.job_hash

    before = hash_now()
    (source / "log.txt").write_text("a line")
    assert hash_now() == before
    (source / "helper.py").write_text("def double(x):\n    return 3 * x\n")
    assert hash_now() != before


SCRIPT = """\
import os
try:
    import torch
except ImportError:
    torch = None

@functools.cache
def train():
    return os.environ["SM_CHANNEL_TRAIN"]
settings = os.environ["SM_CHANNEL_TEST"]
print(
    train()
)
if __name__ == "__main__":
    submit(train)
"""


def test_what_a_script_does_itself_is_no_part_of_its_functions() -> None:
    remaining = definitions_of(SCRIPT).splitlines()
    assert [line for line in remaining if line] == SCRIPT.splitlines()[:5] + SCRIPT.splitlines()[6:9]
    assert remaining[8] == '    return os.environ["SM_CHANNEL_TRAIN"]'  # on its own line, as messages name it


class Settings:
    def __init__(self) -> None:
        self.password = "Zq8!hunter2hunter2"


HF_TOKEN = "hf_" + "a1B2" * 9
API_KEY = "9a8b7c6d5e4f3a2b1c0d"
PRIVATE_KEY = "-----BEGIN PRIVATE KEY-----\n" + "Ab1+" * 30


class Client:
    key_of_api = 1
    api_key = API_KEY


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    user: str
    password: str


class Slots:
    __slots__ = ("password",)

    def __init__(self) -> None:
        self.password = "hunter2hunter2"


def by_default(data: Any = None, *, token: str = HF_TOKEN) -> None:
    pass


def takes(*args: Any, **kwargs: Any) -> type:
    return Client


def connect(host: str, password: str = API_KEY, *, port: int = 1) -> str:
    return host


def with_key(user: str, key_id: str, api_key: str) -> str:
    return user


def with_keys(user: str, *api_keys: str) -> str:
    return user


def closing_over(api_key: Any) -> Callable[[], Any]:
    def train() -> int:
        return len(api_key)

    return lambda: train()


def with_constants(kind: int) -> Any:
    if kind == 1:
        db_password = "9a8b7c6d5e4f3a2b1c0d"
        print(db_password)
    return kind


def with_keyword() -> Any:
    return max("host", port=len("abc"), password="9a8b7c6d5e4f3a2b1c0d")  # type: ignore[call-overload]


def with_dict() -> Any:
    return {"user": "u", "password": "9a8b7c6d5e4f3a2b1c0d"}, {"user": 1}


def with_key_of_dict(config: dict[str, str], client: Any) -> None:
    config["password"] = "9a8b7c6d5e4f3a2b1c0d"


def with_attribute(client: Any) -> None:
    client.password = "9a8b7c6d5e4f3a2b1c0d"


def without_secrets(config: dict[str, str], client: Any) -> Any:
    config["path"], client.token_id, token = "9a8b7c6d5e4f3a2b1c0d", "9a8b7c6d5e4f3a2b1c0d", "##ing"
    return {"name": "9a8b7c6d5e4f3a2b1c0d"}, max(path="9a8b7c6d5e4f3a2b1c0d"), token


def get_token() -> str:  # its code has the path of this file
    return "a1b2c3d4e5"


def with_function_of_that_name() -> str:
    return get_token()


class PickledAsTuple:
    def __init__(self, *, sends_password: bool) -> None:
        self.password = "".join(["hunter", "2hunter2"])
        self.sends_password = sends_password

    def __getstate__(self) -> Any:
        return (self.password if self.sends_password else None, 1)

    def __setstate__(self, state: Any) -> None:
        self.password, self.sends_password = state


class Login(NamedTuple):
    user: str
    password: str


@table(
    ("function", "args", "kwargs", "kind"),
    [
        (max, (), {"password": "Zq8!hunter2hunter2"}, "the value of password"),
        (max, (Settings(),), {}, "the value of password"),
        (max, ({"db": ["postgres://u:hunter2@host/db"]},), {}, "a value in a secret's format"),
        (max, (HF_TOKEN,), {}, "a value in a secret's format"),
        (max, ({HF_TOKEN: 1},), {}, "a value in a secret's format"),
        (max, (Path("/x") / HF_TOKEN,), {}, "a value in a secret's format"),
        (max, (numpy.array([HF_TOKEN]),), {}, "a value in a secret's format"),
        (max, (numpy.array([PRIVATE_KEY]),), {}, "a value in a secret's format"),
        (max, (b"\0" * 3_000_000 + PRIVATE_KEY.encode(),), {}, "a private key"),
        (max, (Slots(),), {}, "the value of password"),
        (functools.partial(max, api_key=API_KEY), (), {}, "the value of api_key"),
        (by_default, (), {}, "the value of token"),
        (lambda: connect("h"), (), {}, "the value of password"),
        (max, (Login("me", API_KEY),), {}, "the value of password"),
        (max, (Login("me", "word"),), {}, None),
        (closing_over(API_KEY), (), {}, "the value of api_key"),
        (closing_over([API_KEY]), (), {}, "the value of api_key"),
        (closing_over(get_token), (), {}, None),
        (with_key, ("bob", API_KEY, API_KEY), {}, "the value of api_key"),
        (with_key, ("bob", API_KEY, "word"), {}, None),
        (with_keys, ("bob", "word", API_KEY), {}, "the value of api_keys"),
        (functools.partial(with_keys, "bob", "word"), (API_KEY,), {}, "the value of api_keys"),
        (max, (functools.partial(with_keys, "bob", API_KEY),), {}, "the value of api_keys"),
        (with_keys, (API_KEY, "word"), {}, None),
        (functools.partial(with_key, "bob", "1", API_KEY), (), {}, "the value of api_key"),
        (functools.partial(with_key, "bob"), ("1", API_KEY), {}, "the value of api_key"),
        (max, (functools.partial(with_key, "h", "1", API_KEY),), {}, "the value of api_key"),
        (with_constants, (1,), {}, "the value of db_password"),
        (with_keyword, (), {}, "the value of password"),
        (with_dict, (), {}, "the value of password"),
        (with_key_of_dict, ({}, 1), {}, "the value of password"),
        (with_attribute, (1,), {}, "the value of password"),
        (without_secrets, ({}, 1), {}, None),
        (with_function_of_that_name, (), {}, None),
        (max, (), {"pwd": API_KEY}, "the value of pwd"),
        (max, (), {"pwd": "/home/user1234/project"}, None),
        (max, (), {"passwords": ["word", API_KEY]}, "the value of passwords"),
        (max, (), {"passwords": {"db": API_KEY}}, "the value of passwords"),
        (max, (), {"passwords": deque([API_KEY])}, "the value of passwords"),
        (with_key, ("bob", "1", deque([API_KEY])), {}, "the value of api_key"),
        (max, (), {"password": numpy.array([API_KEY])}, "the value of password"),
        (max, (), {"password": numpy.array(["word", "mot de passe"])}, None),
        (max, (), {"password": numpy.str_(API_KEY)}, "the value of password"),
        (max, ({b"password": API_KEY},), {}, "the value of password"),
        (max, ([("user", "me"), ("password", API_KEY)],), {}, "the value of password"),
        (max, (), {"token": ["B-12345678", "word2vec-300"]}, None),
        (max, (FrozenSlots("bob", "abc12345xyz"),), {}, "the value of password"),
        (max, ([{"db": FrozenSlots("bob", "abc12345xyz")}],), {}, "the value of password"),
        (max, (FrozenSlots("abc12345xyz", "none"),), {}, None),
        (max, (), {"token": ["Zk39xQw81LmNvB72tRsY"]}, "the value of tokens"),
        (max, (), {"api_tokens": ["Zk39xQw81LmNvB72tRsY"]}, "the value of api_tokens"),
        (max, ({"ACCESS_TOKENS": ("Zk39xQw81LmNvB72tRsY",)},), {}, "the value of ACCESS_TOKENS"),
        (max, (), {"tokens": ["##ing", "▁the", "2024-01-01", "internationalization"]}, None),
        (max, (), {"pad_tokens": ["Zk39xQw81LmNvB72tRsY"]}, None),
        (max, (PickledAsTuple(sends_password=True),), {}, "the value of password"),
        (max, (PickledAsTuple(sends_password=False),), {}, None),
        (
            max,
            (numpy.array([(1, API_KEY)], [("id", "i4"), ("password", "U40")]),),
            {},
            "the value of password",
        ),
        (max, (f"curl --password {API_KEY}",), {}, "a value with a secret's name in a text"),
        (max, (f"PASSWORD='{API_KEY}' run",), {}, "a value with a secret's name in a text"),
        (max, ("usage: f --token TOKEN password=%r, TOKEN=<your-token>",), {}, None),
        (lambda: takes(), (), {}, "the value of api_key"),
        (max, ("gpt2", 3, None, [0.5], {"tokenizer": "bert"}), {"max_tokens": 20, "password": ""}, None),
        (max, ({"password": "mot de passe", "token": "##ing", "secret": "geheim"},), {"token": "word"}, None),
        (max, (smlaunch, threading, numpy.arange(1000)), {"rate": 0.1}, None),
    ],
)
def test_secrets_of_a_call(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], kind: str | None
) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        call = pickle_call(function, args, kwargs, "f")
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert find_call_secret(call) == kind


def test_a_cell_gives_the_same_call_in_another_kernel() -> None:
    def call_of(process: int) -> str:
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile("def f(v): return v", f"/tmp/ipykernel_{process}/158.py", "exec"), names)
        return hash_of_parts(pickle_call(names["f"], (1,), {}, "f").parts)

    assert call_of(17) == call_of(4711)


def test_a_cell_that_is_run_again_gives_the_same_call(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)

    def run_cell() -> str:
        exec("class K: pass\ndef make(): return K()", vars(main))
        return hash_of_parts(pickle_call(main.make, (), {}, "make").parts)

    first_call, old_class = run_cell(), main.K
    assert run_cell() == first_call
    # Both classes in one call are told apart.
    both = pickle_call(main.make, (old_class(),), {}, "make")
    make, (old_object,), _ = pickle.loads(both.content.partition(b"\n")[2])
    assert (type(old_object), type(make())) == (old_class, main.K)
    assert run_cell() == first_call


def test_names_that_a_host_would_look_up_in_the_script() -> None:
    assert names_of_main(b"\x80\x04\x8c\x08__main__\x94\x8c\x03fib\x94\x93\x94.") == ["fib"]
    assert names_of_main(pickle.dumps([functools.partial(max, 1), "__main__", len], 5)) == []


def test_the_strategy_follows_from_what_the_function_uses(source: Path) -> None:
    torch = pytest.importorskip("torch")

    def train() -> Any:
        return torch.distributed.get_rank()

    run = prepare(train, job=Job(source=source, compute=Compute(hosts=2)))
    assert run.prepared.plan.strategy == "ddp"
    assert run.prepared.plan.run.startswith("train-")


def generate() -> Iterator[int]:
    yield 1


async def wait() -> None:
    return None


async def generate_later() -> Any:
    yield 1


@table(
    ("function", "job", "expected"),
    [
        (generate, Job(), ["function: generate is a generator"]),
        (functools.partial(generate), Job(), ["function: generate is a generator"]),
        (generate_later, Job(), ["function: generate_later is a generator"]),
        (wait, Job(), ["function: wait is a coroutine; submit a function that calls asyncio.run(wait())"]),
        (3, Job(), ["function: a function is needed, not int"]),
        (len, "job.yaml", ["job: a Job is needed, not str"]),
        (
            generate,
            Job(
                entry="train.py",
                args=("a",),
                hyperparameters={"lr": 1},
                limits=Limits(segment="1h", max_runtime="2h"),
                segments=[{"length": "1h"}],
            ),
            [
                "function: generate is a generator",
                "entry: the function is the program",
                "args: a function has no command line",
                "hyperparameters: a function has no command line",
                "segments: a function runs in one job",
                "limits.segment: a function runs in one job",
            ],
        ),
        (len, Job(algorithm="xgboost"), ["algorithm: the function is the program"]),
        (len, Job(output={"compression": "none"}), ["output.compression: what a function returns is read"]),
    ],
)
def test_what_no_function_can_have_is_refused_at_once(function: Any, job: Any, expected: list[str]) -> None:
    with pytest.raises(JobError) as caught:
        prepare_function(function, ["x"], {}, job, fake_target())
    problems = [str(problem) for problem in caught.value.problems]
    assert len(problems) == len(expected)
    assert all(problem.startswith(start) for problem, start in zip(problems, expected, strict=True)), problems


@table(
    ("job", "path", "text"),
    [
        (Job(limits=Limits(max_runtime="60d")), "limits.max_runtime", "a function runs in one job"),
        (Job(strategy="processing"), "strategy", "no training job"),
        (Job(image=f"{REGISTRY}/i:1-cpu-py38-x"), "image", "has Python 3.8, and this is Python 3."),
        (Job(image=f"{REGISTRY}/own/py38/i:1.0"), None, ""),
        (Job(image=IMAGE), None, ""),
    ],
)
def test_what_the_plan_shows_is_refused(tmp_path: Path, job: Job, path: str | None, text: str) -> None:
    try:
        prepare(lambda: 1, job=job.with_changes(source=tmp_path))
    except JobError as error:
        assert path in [problem.path for problem in error.problems]
        assert text in str(error)
    else:
        assert path is None


def test_what_cannot_be_pickled_is_named(source: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(JobError, match=r"cannot pickle '_thread\.lock' object"):
        prepare(lambda: lock, job=Job(source=source))


LOCK = threading.Lock()


class WithLock:
    shared: Any = None

    def __init__(self) -> None:
        self.lock = [threading.Lock()]


def enclosing(value: Any) -> Any:
    return lambda: [value for _ in range(3)]


@table(
    ("function", "args", "kwargs", "holder"),
    [
        (lambda: [LOCK for _ in range(3)], (), {}, "LOCK"),
        (enclosing({"a": [LOCK]}), (), {}, "value"),
        (max, (1, [LOCK]), {}, "argument 2"),
        (max, (1,), {"key": LOCK}, "key"),
        (max, (WithLock(),), {}, "WithLock.lock"),
        (functools.partial(max, LOCK), (), {}, None),
    ],
)
def test_what_holds_an_object_that_cannot_be_pickled_is_named(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], holder: str | None
) -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        with pytest.raises(JobError) as caught:
            pickle_call(function, args, kwargs, "f")
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    because = f", because of {holder}" if holder else ""
    assert f"f and its arguments cannot be sent to another process{because}: TypeError: " in str(caught.value)


def test_a_secret_is_not_sent_unless_it_is_meant(source: Path) -> None:
    key = "AKIA" + "QWERTYUIOPASDFGH", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYabcdefgh12"
    with pytest.raises(JobError, match="looks like a secret"):
        prepare(lambda: key, job=Job(source=source))
    prepare(lambda: key, job=Job(source=source, include_secrets=True))


def test_a_call_that_holds_data_is_refused(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_job, "LIMIT_BYTES", 10_000)
    with pytest.raises(JobError, match=r"at most 10,000 are sent with it; give the data as an input"):
        prepare(len, "x" * 10_000, job=Job(source=source))


def test_without_the_extra_one_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(MachineError, match=r"pip install '\.\[functions\]'"):
        prepare(len, "x")


def test_a_module_outside_of_the_source_is_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "far_module.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(str(elsewhere))
    monkeypatch.syspath_prepend(str(source))
    far_module, helper = __import__("far_module"), __import__("helper")
    warnings = prepare(
        lambda: far_module.f() + helper.double(1), job=Job(source=source)
    ).prepared.plan.warnings
    assert [text for text in warnings if "far_module" in text and str(elsewhere) in text]
    assert not [text for text in warnings if "the module helper" in text]
    # By default the folder that is sent is that of the function's module.
    run = prepare(far_module.f)
    assert "far_module.py" in files_of(run)
    assert run.prepared.plan.run.startswith("f-")


def test_at_a_prompt_the_working_directory_is_sent_but_no_home_folder(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = eval("lambda: 1", {"__name__": "__main__"})
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    monkeypatch.chdir(source)
    assert "helper.py" in files_of(prepare(function))
    monkeypatch.setenv("HOME", str(source))
    assert "helper.py" not in files_of(prepare(function))


def test_a_job_without_a_program_is_for_functions_alone() -> None:
    with pytest.raises(JobError, match="entry: it is missing"):
        smlaunch.plan(Job(compute=Compute(hosts=2)), fake_target())
    with pytest.raises(JobError, match="entry: it is missing"):
        Job.from_mapping({"compute": {"hosts": 2}})


def test_a_decorated_function_keeps_its_face_and_travels_as_itself() -> None:
    @smlaunch.remote(job=Job(compute=Compute(hosts=2)))
    def train(lr: float) -> float:
        """Train."""
        return lr * 2

    assert (train.__name__, train.__doc__, train.function(2.0)) == ("train", "Train.", 4.0)
    assert isinstance(smlaunch.remote(len), smlaunch.RemoteFunction)
    sent = pickle.loads(pickle.dumps(smlaunch.remote(len)))
    assert sent is len


def test_on_a_host_a_decorated_function_is_called_there(monkeypatch: pytest.MonkeyPatch) -> None:
    @smlaunch.remote
    def countdown(n: int) -> int:
        return 0 if n == 0 else countdown(n - 1) + 1

    class Trainer:
        rate = 3

        @smlaunch.remote
        def train(self, steps: int) -> int:
            return self.rate * steps

    monkeypatch.setenv(SHA256_VARIABLE, "0" * 64)
    assert countdown(3) == 3
    assert Trainer().train(2) == 6
