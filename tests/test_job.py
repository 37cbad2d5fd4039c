"""The job as Python object, mapping and YAML file, and what is said about mistakes in it."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from enum import Enum, IntEnum
from inspect import signature
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from smlaunch.api.hyperparameter_text import hyperparameter_text
from smlaunch.catalog.strategies import BUILT_IN_STRATEGIES
from smlaunch.contract.launch_spec import LAUNCHERS, MPI
from smlaunch.contract.segment import UPLOAD_MODES
from smlaunch.errors import JobError
from smlaunch.job.job_fields import JobFields
from smlaunch.job.json_schema import job_schema
from smlaunch.job.model import (
    Channel,
    Checkpoints,
    Compute,
    Entry,
    Job,
    LauncherName,
    Limits,
    SegmentChange,
    SegmentCompute,
    UploadName,
    format_duration,
    parse_duration,
)
from smlaunch.job.sections import field_names
from smlaunch.job.yaml_file import merge_mappings, parse_job_yaml
from smlaunch.strategies import load_strategy
from tests.tables import table


def problems(mapping: Any) -> list[str]:
    with pytest.raises(JobError) as caught:
        Job.from_mapping(mapping)
    return [str(problem) for problem in caught.value.problems]


def test_strategy_names_are_those_of_the_registry() -> None:
    assert {*get_args(LauncherName), MPI} == set(LAUNCHERS)
    assert get_args(UploadName) == UPLOAD_MODES
    assert all(load_strategy(name).name == name for name in BUILT_IN_STRATEGIES)


# ---- mistakes --------------------------------------------------------------------------------------------

ONE_MISTAKE: list[tuple[dict[str, Any], str]] = [
    ({"strategy": "dpp"}, "strategy: 'dpp' is unknown, did you mean 'ddp'?"),
    ({"strategy": "quantum"}, "strategy: 'quantum' is unknown; known: builtin, custom, ddp, "),
    ({"hosts": 2}, "hosts: unknown key, did you mean 'compute.hosts'?"),
    ({"max_runtime": "2h"}, "max_runtime: unknown key, did you mean 'limits.max_runtime'?"),
    ({"hyperparameter": {}}, "hyperparameter: unknown key, did you mean 'hyperparameters'?"),
    ({"compute": {"host": 2}}, "compute.host: unknown key, did you mean 'hosts'?"),
    ({"compute": {"image": "x"}}, "compute.image: unknown key, did you mean 'image' at the top of the job?"),
    ({"compute": {"hosts": 0}}, "compute.hosts: 0 is too small: at least 1"),
    ({"compute": {"hosts": "2"}}, "compute.hosts: a whole number is needed, not '2'"),
    ({"compute": {"hosts": True}}, "compute.hosts: a whole number is needed, not true"),
    ({"compute": {"hosts": None}}, "compute.hosts: a whole number is needed, not nothing"),
    ({"compute": {"spot": "yes"}}, "compute.spot: true or false is needed, not 'yes'"),
    ({"limits": {"segment": 3600}}, "limits.segment: a duration with its unit is needed, such as 3600s"),
    ({"limits": {"attempts": 0}}, "limits.attempts: 0 is too small: at least 1"),
    ({"checkpoints": {"keep": 2}}, "checkpoints.keep: 2 is too small: at least 3"),
    ({"checkpoints": {"upload": "mail"}}, "checkpoints.upload: 'mail' is unknown; known: sync, direct"),
    ({"checkpoints": {"intervall": "5m"}}, "checkpoints.intervall: unknown key, did you mean 'interval'?"),
    ({"segments": {"length": "5m"}}, "segments: a list is needed"),
    ({"segments": [{"length": "5"}]}, "segments[0].length: '5' is not a duration"),
    ({"segments": [{}, {"lenght": "5m"}]}, "segments[1].lenght: unknown key, did you mean 'length'?"),
    (
        {"segments": [{"compute": {"spot": True}}]},
        "segments[0].compute.spot: unknown key, did you mean 'compute.spot'?",
    ),
    ({"segments": [{"until_step": 0}]}, "segments[0].until_step: 0 is too small: at least 1"),
    ({"compute": 4}, "compute: a mapping is needed (keys: "),
    ({"compute": {"processes_per_host": 0}}, "compute.processes_per_host: a number from 1 or 'auto'"),
    (
        {"compute": {"instance_type": "g5.xlarge"}},
        "compute.instance_type: 'g5.xlarge' is not an instance type",
    ),
    ({"compute": {"price_per_hour": 0}}, "compute.price_per_hour: 0 is too small: more than 0"),
    (
        {"inputs": {"train": {"uri": "s3://b/x", "mode": "file"}}},
        "inputs.train.mode: 'file' is unknown, did ",
    ),
    ({"inputs": {"train": {"uri": "s3://b/x", "shard": "key"}}}, "inputs.train.shard: unknown key; known: "),
    ({"inputs": {"train": {"mode": "File"}}}, "inputs.train.uri: it is missing"),
    ({"inputs": {"train": "gs://b/x"}}, "inputs.train.uri: 'gs://b/x' is not an S3 address"),
    ({"inputs": {"train": "s3:///x"}}, "inputs.train.uri: 's3:///x' is not an S3 address"),
    ({"inputs": {"train": "file://x/y"}}, "inputs.train.uri: 'file://x/y' is no file on this machine"),
    ({"inputs": {"train": "file://"}}, "inputs.train.uri: 'file://' is no file on this machine"),
    ({"inputs": {"train": "file:///a%00b"}}, "inputs.train.uri: 'file:///a%00b' holds a zero byte"),
    ({"inputs": {"train": ""}}, "inputs.train.uri: it is empty"),
    (
        {"inputs": {"train": None}},
        "inputs.train: text or a mapping is needed (keys: uri, mode, split, split_via, ",
    ),
    ({"inputs": ["s3://b/x"]}, "inputs: a mapping is needed, not a list"),
    ({"inputs": {1: "s3://b/x"}}, "inputs: key 1 is not text; write it in quotes"),
    ({"checkpoints": "/opt/ml/checkpoints"}, "checkpoints.uri: '/opt/ml/checkpoints' is not an S3 address"),
    (
        {"limits": {"max_runtime": 3600}},
        "limits.max_runtime: a duration with its unit is needed, such as 3600s",
    ),
    (
        {"limits": {"max_runtime": "soon"}},
        "limits.max_runtime: 'soon' is not a duration; write a number with",
    ),
    ({"limits": {"max_runtime": "0h"}}, "limits.max_runtime: '0h' is zero"),
    ({"limits": {"max_cost": -1}}, "limits.max_cost: -1 is too small: more than 0"),
    ({"args": "--lr 1"}, "args: a list is needed, not '--lr 1'"),
    ({"args": ["--lr", 0.10]}, "args[1]: text is needed, not 0.1; write it in quotes: '0.1'"),
    ({"args": ["a\0b"]}, "args[0]: a NUL character cannot be passed to a process"),
    ({"args": ["\ud800"]}, "args[0]: character 0 is half of a surrogate pair"),
    (
        {"environment": {"DEBUG": True}},
        "environment.DEBUG: text is needed, not true; write it in quotes: 'true'",
    ),
    ({"hyperparameters": {"lr": math.nan}}, "hyperparameters.lr: nan is not a JSON number"),
    ({"hyperparameters": {"a": {"b": [{3: 1}]}}}, "hyperparameters.a: key 3 inside it is not text"),
    ({"hyperparameters": {"a": object}}, "hyperparameters.a: a type cannot be written as JSON"),
    ({"hyperparameters": {"a": "\0"}}, "hyperparameters.a: a NUL character"),
    ({"hyperparameters": {"": 1}}, "hyperparameters: key '' is invalid: it is empty"),
    ({"inputs": {"..": "s3://b/x"}}, "inputs: key '..' is invalid: '..' cannot name a channel"),
    ({"inputs": {"my data": "s3://b/x"}}, "inputs: key 'my data' is invalid: a channel's name is 1 to 64"),
    ({"environment": {"a-b": "x"}}, "environment: key 'a-b' is invalid: a variable's name is letters"),
    ({"tags": None}, "tags: a mapping is needed, not nothing"),
    ({"name": "My_Run"}, "name: 'My_Run' cannot name a run"),
    (
        {"entry": "train.ipynb"},
        "entry: 'train.ipynb' is a notebook, which cannot be run; `jupyter nbconvert",
    ),
    ({"entry": {"script": "train.md"}}, "entry.script: 'train.md' is no program"),
    ({"entry": 3}, "entry: text or a mapping is needed (keys: script, module, command), not 3"),
    ({"entry": {"module": "a/b.py"}}, "entry.module: 'a/b.py' is not the name of a Python module"),
    ({"entry": {"module": "-c"}}, "entry.module: '-c' is not the name of a Python module"),
    ({"entry": {"command": "bash run.sh"}}, "entry.command: a list is needed, not 'bash run.sh'"),
    ({"entry": {"command": ["", "a"]}}, "entry.command: it begins with an empty argument"),
    ({"entry": {"command": ["a", True]}}, "entry.command[1]: text is needed, not true"),
    ({"entry": {"command": []}}, "entry: it names no program; give script, module or command"),
    ({"entry": {"script": "a.py", "module": "a"}}, "entry: it names script and module; keep one of them"),
]


@table(("mistake", "message"), ONE_MISTAKE)
def test_one_mistake_is_one_line_with_its_path(mistake: dict[str, Any], message: str) -> None:
    (line,) = problems({"entry": "train.py", **mistake})
    assert line.startswith(message)


def test_five_mistakes_are_reported_at_once() -> None:
    lines = problems(
        {
            "strategy": "dpp",
            "compute": {"hosts": 0, "instance": "ml.m5.xlarge"},
            "inputs": {"train": {"uri": "s3://b/x", "split": "size"}},
            "hyperparameters": {"lr": math.inf},
        }
    )
    assert {line.split(":")[0] for line in lines} == {
        "entry",
        "strategy",
        "compute.hosts",
        "compute.instance",
        "inputs.train.split",
        "hyperparameters.lr",
    }


@pytest.mark.parametrize("value", [None, [], "train.py", 3])
def test_a_job_must_be_a_mapping(value: Any) -> None:
    (line,) = problems(value)
    assert "a mapping with the key 'entry' is needed" in line


ENTRIES: list[tuple[Any, str]] = [
    ("train.py", "train.py"),
    ({"module": "package.train"}, "package/train"),
    ({"command": ["bash", "run.sh", "--steps", "3"]}, "run.sh"),
    ({"command": ["./tool", "train"]}, "./tool"),
]


@table(("entry", "program"), ENTRIES)
def test_each_form_of_an_entry_is_written_as_it_is_read(entry: Any, program: str) -> None:
    job = Job(entry=entry)
    assert job.to_mapping() == {"entry": entry}
    assert Job.from_mapping(parse_job_yaml(job.to_yaml())) == job
    assert job.program == program
    if isinstance(entry, dict):
        assert Job(entry=Entry(**entry)) == job


def test_a_module_or_command_of_a_job_file_is_of_its_folder(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("entry: {module: package.train}\n")
    assert Job.from_file(file).source == str(tmp_path)
    file.write_text("entry: {command: [python, tool.py]}\nsource: src\n")
    job = Job.from_file(file)
    assert (job.source, job.program) == (str(tmp_path / "src"), "tool.py")
    file.write_text("entry: {script: train.py}\n")
    job = Job.from_file(file)
    assert (job.source, job.program) == (None, str(tmp_path / "train.py"))


def test_members_of_enums_are_their_values() -> None:
    class Name(str, Enum):
        A = "arn:aws:iam::123456789012:role/x"

    class Number(IntEnum):
        THREE = 3

    job = Job(entry="a.py", role=Name.A, name="r", hyperparameters={"a": Name.A, "n": Number.THREE})
    assert (job.role, job.hyperparameters) == (Name.A.value, {"a": Name.A.value, "n": 3})
    assert Job.from_mapping(parse_job_yaml(job.to_yaml())) == job


@pytest.mark.parametrize("field", ["hosts", "volume_gb", "processes_per_host"])
def test_numbers_that_no_request_can_have(field: str) -> None:
    (line,) = problems({"entry": "a.py", "compute": {field: 10**400}})
    assert line.startswith(f"compute.{field}: ") and len(line) < 200


def test_an_error_crosses_processes() -> None:
    with pytest.raises(JobError) as caught:
        Compute(hosts=0)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.problems) == (str(caught.value), caught.value.problems)


def test_values_that_multiply() -> None:
    """A kilobyte of aliases is billions of values."""
    lines = ["x0: &x0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    lines += [f"x{n}: &x{n} [{', '.join([f'*x{n - 1}'] * 9)}]" for n in range(1, 12)]
    with pytest.raises(JobError, match="its aliases make more than"):
        parse_job_yaml("\n".join(["entry: a.py", *lines]))
    value: list[Any] = [1] * 9
    for _ in range(12):
        value = [value] * 9
    (line,) = problems({"entry": "a.py", "hyperparameters": {"x": value}})
    assert line.startswith("hyperparameters.x: more than 100000 values")


def test_recursive_values_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    (line,) = problems({"entry": "a.py", "hyperparameters": {"x": loop}})
    assert line.startswith("hyperparameters.x: nested more than")


def test_python_objects_report_the_same_mistakes() -> None:
    with pytest.raises(JobError, match="mode: 'file' is unknown, did you mean 'File'"):
        Channel("s3://b/x", mode="file")  # type: ignore[arg-type]
    with pytest.raises(JobError, match="hosts: 0 is too small"):
        Compute(hosts=0)
    with pytest.raises(JobError, match="max_runtime: 'x' is not a duration"):
        Limits(max_runtime="x")
    with pytest.raises(JobError, match="entry: it is missing"):
        Job().check_program()


def test_jobs_are_frozen() -> None:
    job = Job(entry="a.py")
    with pytest.raises(FrozenInstanceError):
        job.entry = "b.py"


# ---- meaning ---------------------------------------------------------------------------------------------


def test_a_string_stands_for_a_channel_and_for_checkpoints() -> None:
    job = Job.from_mapping({"entry": "a.py", "inputs": {"t": "s3://b/x"}, "checkpoints": "s3://b/c"})
    assert job.inputs["t"] == Channel("s3://b/x", mode="File")
    assert job.checkpoints == Checkpoints("s3://b/c", local_path="/opt/ml/checkpoints")


def test_paths_may_be_path_objects() -> None:
    job = Job.from_mapping({"entry": Path("a.py"), "inputs": {"t": Path("data")}, "source": Path("src")})
    assert (job.program, job.inputs["t"].uri, job.source) == ("a.py", "data", "src")
    assert job.inputs["t"].is_local


@pytest.mark.parametrize(
    ("text", "seconds", "shortest"),
    [("90m", 5400, "90m"), ("24h", 86400, "24h"), ("60d", 5184000, "60d"), ("1h30m", 5400, "90m")]
    + [("48h", 172800, "2d"), ("1d", 86400, "24h"), ("3600s", 3600, "1h"), ("61s", 61, "61s")],
)
def test_durations(text: str, seconds: int, shortest: str) -> None:
    assert parse_duration(text) == seconds
    assert format_duration(seconds) == shortest
    assert Limits(max_runtime=text).max_runtime == shortest


@given(st.integers(1, 10**9))
def test_durations_round_trip(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@table("text", ["", "h", "5", "-5h", "5 h", "1.5h", "5H", "5m1h", "٣h", "5h\n"])
def test_invalid_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


# ---- YAML ------------------------------------------------------------------------------------------------


def test_a_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "entry: train.py\n"
        "strategy: ddp\n"
        "compute: {hosts: 2, processes_per_host: auto, instance_type: ml.g5.12xlarge}\n"
        "inputs:\n"
        "  train: {uri: s3://bucket/data/, split: key}\n"
        "  extra: data\n"
        "hyperparameters: {lr: 1e-3, decay: 0.1, name: no, when: 12:30, code: 007, nothing: null}\n"
        "environment: {OMP_NUM_THREADS: 4}\n"
    )
    job = Job.from_file(file)
    assert job.program == str(tmp_path / "train.py")
    assert job.inputs["extra"] == Channel(str(tmp_path / "data"))
    assert job.inputs["train"] == Channel("s3://bucket/data/", split="key")
    assert job.compute == Compute(hosts=2, processes_per_host="auto", instance_type="ml.g5.12xlarge")
    assert job.hyperparameters == {
        "lr": 1e-3,
        "decay": 0.1,
        "name": "no",
        "when": "12:30",
        "code": "007",
        "nothing": None,
    }
    assert job.environment == {"OMP_NUM_THREADS": "4"}


def test_changes_override_the_file_and_keep_their_paths(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("entry: train.py\ncompute: {hosts: 2, spot: true}\ninputs: {a: x, b: y}\n")
    job = Job.from_file(file, {"compute": {"hosts": 4}, "inputs": {"b": "here"}, "args": ["--fast"]})
    assert job.compute == Compute(hosts=4, spot=True)
    assert job.inputs == {"a": Channel(str(tmp_path / "x")), "b": Channel("here")}
    assert job.args == ("--fast",)


def test_an_interval_of_the_command_line_joins_the_address_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("entry: train.py\ncheckpoints: s3://b/c/\n")
    job = Job.from_file(file, {"checkpoints": {"interval": "5m"}})
    assert job.checkpoints == Checkpoints("s3://b/c/", interval="5m")


def test_merge_does_not_modify_its_arguments() -> None:
    base, changes = {"a": {"b": 1}}, {"a": {"c": 2}}
    assert merge_mappings(base, changes) == {"a": {"b": 1, "c": 2}}
    assert (base, changes) == ({"a": {"b": 1}}, {"a": {"c": 2}})


@table(
    ("text", "position", "message"),
    [
        ("entry: a.py\nargs: [a, b\n", ":3:1: ", "while parsing a flow sequence"),
        ("entry: a.py\n\tstrategy: ddp\n", ":2:1: ", "a tab; YAML is indented by spaces"),
        ("entry: a.py\ninputs:\n  t: x\n  t: y\n", ":4:3: ", "key 't' is given twice"),
        ("entry: a.py\nentry: b.py\n", ":2:1: ", "key 'entry' is given twice"),
        ("entry: !!python/object:os.system x\n", ":1:8: ", "could not determine a constructor"),
        ("entry: a.py\ndeterministic: !!bool maybe\n", ":2:16: ", "no bool of YAML 1.2's core schema"),
        ("entry: a.py\nname: !!timestamp x\n", ":2:7: ", "could not determine a constructor"),
        ("entry: a.py\nname: !!null x\n", ":2:7: ", "no null of YAML 1.2's core schema"),
        ("entry: a.py\nargs: !!int [1]\n", ":2:7: ", "no int of YAML 1.2's core schema"),
        ("entry: a.py\ncompute: {<<: {hosts: 1}, <<: {hosts: 2}}\n", ":2:27: ", "key '<<' is given twice"),
        ("", ": ", "the file is empty"),
        ("- entry\n", ": ", "a mapping such as 'entry: train.py' is needed, not a list"),
        ("train.py\n", ": ", "a mapping such as 'entry: train.py' is needed, not text"),
        ("entry: \x01\n", ": ", "not YAML text"),
        ("[" * 5000, ": ", "cannot be read"),
        ("entry: a.py\nargs: [" + "9" * 5000 + "]\n", ": ", "cannot be read"),
    ],
)
def test_yaml_errors_have_line_and_column(tmp_path: Path, text: str, position: str, message: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(JobError) as caught:
        Job.from_file(file)
    (problem,) = caught.value.problems
    assert str(problem).startswith(f"{file}{position}")
    assert message in problem.message


@table(
    ("line", "message"),
    [
        (
            "framework_version: 2.10",
            "framework_version: text is needed, not 2.10; write it in quotes: '2.10'",
        ),
        ("environment: {A: 1e3}", "environment.A: text is needed, not 1e3; write it in quotes: '1e3'"),
        ("name: 1e5", "name: text is needed, not 1e5; write it in quotes: '1e5'"),
        ("compute: {hosts: 2.50}", "compute.hosts: a whole number is needed, not 2.50"),
        (
            "limits: {segment: 1.50}",
            "limits.segment: a duration with its unit is needed, such as 90m or 24h, not 1.50",
        ),
    ],
)
def test_a_number_is_quoted_as_the_file_has_it(line: str, message: str) -> None:
    assert problems(parse_job_yaml(f"entry: a.py\n{line}\n")) == [message]


@pytest.mark.parametrize("text", ["1e2", "0.10", "1e-4", "1e16", "-2.50", ".5", "5.", "0.1"])
def test_a_number_of_a_file_is_sent_as_the_file_has_it(text: str) -> None:
    """Only smlaunch's runtime gets JSON, which has no number ``.5``. ``100.0`` is no integer for XGBoost."""
    job = Job.from_mapping(parse_job_yaml(f"entry: a.py\nhyperparameters: {{rate: {text}}}\n"))
    again = Job.from_mapping(parse_job_yaml(job.to_yaml()))
    copies = [job, again, copy.deepcopy(job), pickle.loads(pickle.dumps(job)), job.with_changes(name="x")]
    for one in copies:
        number = one.hyperparameters["rate"]
        assert hyperparameter_text(number, is_verbatim=True) == text
        assert json.loads(hyperparameter_text(number)) == number == float(text)
        assert (hyperparameter_text(number) == text) is (text not in (".5", "5."))
    assert job == again == copies[2] == copies[3]
    assert (job == Job(entry="a.py", hyperparameters={"rate": float(text)})) is (text == "0.1")


def test_numbers_of_a_file_are_ordinary_numbers() -> None:
    job = Job.from_mapping(
        parse_job_yaml("entry: a.py\nhyperparameters: {lr: 1e-3}\nlimits: {max_cost: 5.50}\n")
    )
    assert job.hyperparameters["lr"] * 2 == 0.002 and type(job.limits.max_cost) is float
    mapping = parse_job_yaml("lr: 1.50")
    assert json.dumps(pickle.loads(pickle.dumps(mapping))) == '{"lr": 1.5}'


def test_a_number_is_written_as_it_is_sent() -> None:
    numbers = {"a": 1e300, "b": 5e-324, "c": 0.1, "d": 2.0}
    job = Job(entry="t.py", hyperparameters=numbers)
    read_again = Job.from_mapping(parse_job_yaml(job.to_yaml()))
    assert {name: repr(value) for name, value in read_again.hyperparameters.items()} == {
        name: repr(value) for name, value in numbers.items()
    }


def test_a_byte_that_is_not_utf_8_is_named() -> None:
    (line,) = problems({"entry": "t.py", "args": [b"a\xffb".decode("utf-8", "surrogateescape")]})
    assert "args[0]: character 1 is byte 0xff, which is not UTF-8" in line


def test_a_character_that_json_writes_as_two_halves() -> None:
    name = chr(0x1F600)
    assert parse_job_yaml(json.dumps({"entry": f"{name}.py"})) == {"entry": f"{name}.py"}
    (line,) = problems(parse_job_yaml('{"entry": "\\ud83d.py"}'))
    assert "half of a surrogate pair" in line


def test_a_file_without_an_end(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="larger than 1 MB"):
        Job.from_file("/dev/zero")
    with pytest.raises(JobError, match="cannot be read: embedded null byte"):
        Job.from_file("a\0.yaml")


def test_a_job_written_beside_its_file_is_the_same_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "sub"
    folder.mkdir()
    text = "entry: train.py\nsource: .\ninputs: {a: data, b: s3://b/x/, c: /abs, d: {uri: e/f, mode: Pipe}}\n"
    (folder / "job.yaml").write_text(text)
    for path in (Path("sub/job.yaml"), folder / "job.yaml"):
        job = Job.from_file(path, {"inputs": {"e": "mine/data"}})
        changed_job = job.with_changes(name="other")
        for one in (job, changed_job, copy.deepcopy(job)):
            copy_file = path.with_name("copy.yaml")
            copy_file.write_text(one.to_yaml())
            read_again = Job.from_file(copy_file)
            paths = [Path(channel.uri).absolute() for channel in one.inputs.values() if channel.is_local]
            assert [
                Path(channel.uri).absolute() for channel in read_again.inputs.values() if channel.is_local
            ] == paths
            assert (read_again.entry, read_again.source) == (one.entry, one.source)
    job = Job.from_file("sub/job.yaml")
    assert "entry: train.py" in job.to_yaml()
    Path("sub/copy.yaml").write_text(job.to_yaml())
    assert Job.from_file("sub/copy.yaml") == job


@pytest.mark.parametrize("stated", [{}, {"a": "1"}], ids=["made-without", "made-with"])
@pytest.mark.parametrize("name", ["options", "hyperparameters", "environment", "tags", "inputs"])
def test_mappings_of_a_job_cannot_be_changed(name: str, stated: dict[str, str]) -> None:
    """What is set on a job that was made without the field was shown, and not sent."""
    values = dict.fromkeys(stated, "s3://b/x/") if name == "inputs" else stated
    original = Job(entry="a.py", **({name: values} if stated else {}))
    for job in (original, copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        mapping: Any = getattr(job, name)
        changes: list[Callable[[], object]] = [
            lambda mapping=mapping: mapping.__setitem__("b", "2"),
            lambda mapping=mapping: mapping.__delitem__("a"),
            lambda mapping=mapping: mapping.__ior__({"b": "2"}),
            *(getattr(mapping, method) for method in ("clear", "pop", "popitem", "setdefault", "update")),
        ]
        for change in changes:
            with pytest.raises(TypeError, match=r"read-only; its with_changes\(\.\.\.\) returns a copy"):
                change()
        assert job == original and mapping == getattr(original, name)
        changed = job.with_changes(**{name: {**mapping, "b": "s3://b/y/"}})
        assert set(getattr(changed, name)) == {*stated, "b"}


@pytest.mark.parametrize("name", ["options", "hyperparameters"])
def test_values_inside_a_mapping_of_a_job_cannot_be_changed(name: str) -> None:
    """A job changed behind the back of those that had planned it."""
    values = {"layers": [1, [2]], "cfg": {"a": {"b": [3]}}}
    original = Job(entry="a.py", **{name: values})
    for job in (original, copy.deepcopy(original), pickle.loads(pickle.dumps(original))):
        mapping: Any = getattr(job, name)
        nested_list, nested_mapping = mapping["layers"], mapping["cfg"]["a"]
        list_methods = ("append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort")
        changes: list[Callable[[], object]] = [
            *(getattr(nested_list, method) for method in list_methods),
            lambda nested_list=nested_list: nested_list.__setitem__(0, 9),
            lambda nested_list=nested_list: nested_list.__delitem__(0),
            lambda nested_list=nested_list: nested_list.__iadd__([9]),
            lambda nested_list=nested_list: nested_list.__imul__(2),
            lambda nested_list=nested_list: nested_list[1].append(9),
            lambda nested_mapping=nested_mapping: nested_mapping.__setitem__("b", 9),
            lambda nested_mapping=nested_mapping: nested_mapping["b"].append(9),
        ]
        for change in changes:
            with pytest.raises(TypeError, match=r"read-only; its with_changes\(\.\.\.\) returns a copy"):
                change()
        assert job == original and mapping == values
        copied = [*nested_list, 4]
        copied.append(5)  # a copy is an ordinary list
        changed = job.with_changes(**{name: {**mapping, "layers": copied}})
        assert getattr(changed, name) == {**values, "layers": [1, [2], 4, 5]}
        assert type(job.to_mapping()[name]["layers"]) is list and json.loads(json.dumps(mapping)) == values


def test_a_mapping_for_a_section_changes_the_members_that_it_names() -> None:
    job = Job(
        entry="a.py",
        limits=Limits(max_runtime="1h", max_cost=5),
        compute=Compute(instance_type="ml.m5.xlarge"),
        checkpoints=Checkpoints("s3://b/c/"),
        hyperparameters={"lr": 1},
    )
    changed = job.with_changes(
        limits={"max_runtime": "2h"},
        compute={"hosts": 3},
        checkpoints={"interval": "5m"},
        hyperparameters={"epochs": 2},
        workload={"kind": "training"},
    )
    assert changed.limits == Limits(max_runtime="2h", max_cost=5)
    assert changed.compute == Compute(instance_type="ml.m5.xlarge", hosts=3)
    assert changed.checkpoints == Checkpoints("s3://b/c/", interval="5m")
    assert changed.hyperparameters == {"epochs": 2}, "no section: its names are the user's"
    assert job.with_changes(limits={"max_cost": None}).limits == Limits(max_runtime="1h")
    assert job.with_changes(limits=Limits(max_runtime="2h")).limits == Limits(max_runtime="2h")
    assert job.with_changes(checkpoints="s3://b/d/").checkpoints == Checkpoints("s3://b/d/")
    assert job.with_changes(entry={"module": "a.b"}).program == "a/b"
    with pytest.raises(JobError, match=r"^limits\.max_cost: a number is needed"):
        job.with_changes(limits={"max_cost": "x"})


A, B, OWN_PRICE = "ml.m5.xlarge", "ml.p4d.24xlarge", 0.25


@table(
    ("compute", "changes", "price"),
    [
        ({"instance_type": A}, {"instance_type": B}, None),
        ({"instance_type": A}, {"instance_type": B, "price_per_hour": 30}, 30),
        ({"instance_type": A}, {"instance_type": A, "hosts": 2}, OWN_PRICE),
        ({"instance_type": A}, {"spot": True}, OWN_PRICE),
        ({"instance_type": B}, {"instance_type": None}, None),
        ({"instance_type": A}, {"instance_type": None}, OWN_PRICE),  # the default type
        ({}, {"instance_type": B}, None),
        ({}, {"instance_type": A}, OWN_PRICE),
        ({"instance_type": A}, {"instance_type": None, "instance_preferences": [B, A]}, None),
        ({"instance_type": A}, {"instance_type": None, "instance_preferences": (A, B)}, OWN_PRICE),
        ({"instance_preferences": [A, B]}, {"instance_preferences": [B, A]}, None),
        ({"instance_preferences": [A, B]}, {"instance_preferences": [A]}, OWN_PRICE),
        ({"instance_preferences": [A, B]}, {"instance_preferences": [], "instance_type": B}, None),
    ],
)
def test_a_price_is_dropped_with_the_type_that_it_was_stated_for(
    compute: dict[str, Any], changes: dict[str, Any], price: float | None, tmp_path: Path
) -> None:
    mapping = {"entry": "a.py", "compute": {**compute, "price_per_hour": OWN_PRICE}}
    file = tmp_path / "job.yaml"
    file.write_text(json.dumps(mapping))
    job = Job.from_mapping(mapping)
    assert Job.from_file(file, {"compute": changes}).compute.price_per_hour == price
    assert job.with_changes(compute=changes).compute.price_per_hour == price
    assert job.compute.with_changes(**changes).price_per_hour == price
    assert job.compute.price_per_hour == OWN_PRICE


def test_jobs_are_equal_by_what_a_script_gets() -> None:
    values = [True, 1, 1.0, "1"]
    variants = [Job(entry="a.py", hyperparameters={"a": value}) for value in values]
    assert len(set(variants)) == len(values)
    same = Job(entry="a.py", hyperparameters={"b": 2, "a": 1})
    assert same == Job(entry="a.py", hyperparameters={"a": 1, "b": 2})
    assert hash(same) == hash(copy.deepcopy(same))
    assert same != "a.py"


def test_a_class_derived_from_a_section_has_its_fields() -> None:
    class Special(Job):
        pass

    job = Special(entry="a.py", compute={"hosts": 2})
    assert (job.program, job.compute.hosts) == ("a.py", 2)
    with pytest.raises(JobError, match=r"compute\.hosts: 0 is too small"):
        Special(entry="a.py", compute={"hosts": 0})


@table(
    ("fields", "message"),
    [
        ({"compute": {"hosts": 10**5000}}, "compute.hosts: a number of more than 4,300 digits is too large"),
        ({"hyperparameters": {"a": 10**5000}}, "hyperparameters.a: a number of more than 1,800 digits"),
        ({"environment": {"A": 10**5000}}, "environment.A: text is needed, not a number of more than"),
        (
            {"limits": {"segment": 10**5000}},
            "limits.segment: a duration with its unit is needed, such as 90m",
        ),
        ({"limits": {"segment": 0}}, "limits.segment: a duration with its unit is needed, such as 90m or"),
        ({"limits": {"segment": "9" * 5000 + "d"}}, "limits.segment: '999"),
        (
            {"limits": {"max_runtime": "99999d"}},
            "limits.max_runtime: '99999d' is too long; the longest duration",
        ),
        ({"compute": {"price_per_hour": 1e308}}, "compute.price_per_hour: 1e+308 is too large: at most 1e15"),
        (
            {"limits": {"max_cost": 10**5000}},
            "limits.max_cost: a number of more than 4,300 digits is too large",
        ),
        ({"workload": {"model_memory": "9" * 400 + "GB"}}, "workload.model_memory: '999"),
        ({"workload": {"model_memory": "0GB"}}, "workload.model_memory: '0GB' is zero"),
        (
            {"compute": {"instance_type": "ml.g5"}},
            "compute.instance_type: 'ml.g5' is not an instance type such as",
        ),
        ({"entry": "x.YAML"}, "entry: 'x.YAML' is no program"),
        ({"tags": {"": "x"}}, "tags: key '' is invalid: it is empty"),
        (
            {"\ufeffname": "x"},
            "\ufeffname: unknown key '\\ufeffname', with a character that cannot be seen, did",
        ),
    ],
)
def test_values_beyond_every_bound(fields: dict[str, Any], message: str) -> None:
    (line,) = problems({"entry": "a.py", **fields})
    assert line.startswith(message)
    assert len(line) < 250
    assert "ml.ml" not in line


def test_a_missing_job_file(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="cannot be read: No such file"):
        Job.from_file(tmp_path / "job.yaml")


def test_a_job_file_in_an_unknown_encoding(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_bytes(b"entry: \xff\xfe\xff.py\n")
    with pytest.raises(JobError, match="not YAML text"):
        Job.from_file(file)


# ---- the same job back -----------------------------------------------------------------------------------

HOSTILE = [
    "no",
    "1e-3",
    "1:30",
    "0o17",
    "~",
    "null",
    "<<",
    "=",
    "",
    " x ",
    "#a",
    "- a",
    "{a",
    "\x85",
    "\u2028",
]
texts = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30),
)
filled_texts = texts.filter(str.strip)
numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=6,
)
uris = st.one_of(filled_texts.filter(lambda text: "://" not in text), st.just("s3://bucket/prefix/"))
channel_names = st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True).filter(
    lambda name: name not in (".", "..")
)
"""A channel is a folder: the two other names mean something else."""

channels = st.builds(
    Channel,
    uris,
    mode=st.sampled_from(["File", "FastFile", "Pipe"]),
    split=st.sampled_from([None, "key", "bytes"]),
    content_type=st.one_of(st.none(), filled_texts),
)
computes = st.builds(
    Compute,
    hosts=st.integers(1, 99),
    processes_per_host=st.one_of(st.none(), st.just("auto"), st.integers(1, 64)),
    instance_type=st.sampled_from([None, "ml.m5.xlarge", "ml.p6-b200.48xlarge"]),
    volume_gb=st.one_of(st.none(), st.integers(1, 9999)),
    spot=st.booleans(),
    on_demand_fallback=st.booleans(),
    price_per_hour=st.one_of(st.none(), st.floats(0.01, 99)),
)
checkpoints = st.builds(
    Checkpoints,
    st.sampled_from([None, "s3://b/c"]),
    local_path=filled_texts,
    interval=st.sampled_from([None, "5m"]),
    keep=st.integers(3, 9),
    upload=st.sampled_from([None, "sync", "direct"]),
)
segments = st.builds(
    SegmentChange,
    hyperparameters=st.dictionaries(filled_texts, json_values, max_size=2),
    compute=st.builds(SegmentCompute, hosts=st.sampled_from([None, 4])),
    until_step=st.sampled_from([None, 1000]),
    length=st.sampled_from([None, "12h"]),
)
jobs = st.builds(
    Job,
    entry=st.one_of(
        filled_texts.map(lambda text: text + ".py"),
        st.just({"module": "package.train"}),
        st.lists(filled_texts, min_size=1, max_size=3).map(lambda words: {"command": words}),
    ),
    strategy=st.sampled_from([None, "ddp", "custom"]),
    args=st.lists(texts, max_size=3),
    hyperparameters=st.dictionaries(filled_texts, json_values, max_size=4),
    compute=computes,
    inputs=st.dictionaries(channel_names, channels, max_size=2),
    environment=st.dictionaries(st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True), texts, max_size=2),
    limits=st.builds(
        Limits,
        max_runtime=st.sampled_from([None, "90m", "60d"]),
        segment=st.sampled_from([None, "24h"]),
        attempts=st.sampled_from([None, 5]),
        max_cost=st.just(5.5),
    ),
    checkpoints=st.one_of(st.none(), checkpoints),
    deterministic=st.booleans(),
    segments=st.lists(segments, max_size=3),
    tags=st.dictionaries(filled_texts, texts, max_size=2),
)


@settings(max_examples=25, deadline=None)
@given(jobs)
def test_yaml_gives_the_same_job_back(job: Job) -> None:
    text = job.to_yaml()
    assert Job.from_mapping(parse_job_yaml(text)) == job
    assert Job.from_mapping(parse_job_yaml(text.encode())) == job


@settings(max_examples=60, deadline=None)
@given(jobs)
def test_a_mapping_gives_the_same_job_back(job: Job) -> None:
    assert Job.from_mapping(job.to_mapping()) == job


def test_yaml_is_what_a_person_would_write() -> None:
    job = Job(
        entry="train.py",
        compute=Compute(hosts=2),
        inputs={"train": Channel("s3://b/data/", split="key")},
        hyperparameters={"lr": 0.1, "flag": "no"},
        limits=Limits(max_runtime="2d"),
    )
    assert job.to_yaml() == (
        "entry: train.py\n"
        "hyperparameters:\n  lr: 0.1\n  flag: 'no'\n"
        "compute:\n  hosts: 2\n"
        "inputs:\n  train:\n    uri: s3://b/data/\n    split: key\n"
        "limits:\n  max_runtime: 2d\n"
    )


def test_the_schema_can_be_printed() -> None:
    schema = job_schema()
    assert schema["additionalProperties"] is False
    assert set(schema["properties"]) == set(field_names(Job))


def test_what_may_be_given_by_position_stands_first_in_a_signature() -> None:
    """Editors and notebooks show it. A job is given by names alone, all of which are listed."""
    assert str(signature(Channel)).startswith("(uri: 'str | os.PathLike[str]', *, mode: ")
    assert str(signature(Checkpoints)).startswith("(uri: 'str | None' = None, *, local_path: ")
    assert list(signature(Job).parameters) == field_names(Job)


def test_type_checkers_know_the_fields_of_a_job() -> None:
    assert list(JobFields.__annotations__) == list(field_names(Job))
