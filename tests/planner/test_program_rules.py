"""What a plan reports about a program as it is started: a package's file as a script, a mistyped command, the
arguments of the script that a command runs, the channels of a shell script."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from smlaunch.discovery.gather_facts import gather_script_facts
from smlaunch.discovery.requirements_file import find_requirements_mistake
from smlaunch.errors import JobError
from smlaunch.facts.discovered_facts import DiscoveredFacts, EndpointFacts, InputFacts
from smlaunch.facts.requirements_choice import choose_requirements
from smlaunch.job.model import Job
from smlaunch.planner.plan_context import fact_needs
from smlaunch.planner.script_launch import script_arguments
from smlaunch.render.plan import Plan
from smlaunch.runs.plan_job import pack_job_source
from tests.planner.fixtures import local, make_plan
from tests.tables import table

ARGPARSE = "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--y')\n"
ARGPARSE += "parser.add_argument('places', nargs='?')\nparser.parse_args()\n"


def facts_of(job: Job, *, is_here: bool = True) -> DiscoveredFacts:
    """The facts of a job with its source in the working directory; inputs are not looked for."""
    source, _ = pack_job_source(job)
    endpoint = EndpointFacts(hosts="isolation full", same_python=is_here)
    requirements = choose_requirements(job, source).installed_file
    script = gather_script_facts(job, source, requirements, endpoint, fact_needs(job))
    if requirements is not None:
        mistake = find_requirements_mistake(Path(), requirements, source.files)
        source = dataclasses.replace(source, requirements_mistake=mistake)
    inputs = {
        name: InputFacts(channel.uri, "local" if channel.is_local else "s3", objects=1, bytes=1, sha256="ab")
        for name, channel in job.inputs.items()
    }
    return local(source=source, script=script, inputs=inputs, endpoint=endpoint)


def plan_here(mapping: dict[str, Any], *, is_here: bool = True) -> Plan:
    job = Job.from_mapping(mapping)
    return make_plan(job, facts_of(job, is_here=is_here), "digits")


def write_files(files: dict[str, str]) -> None:
    for path in Path().iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


PACKAGE = {"churn/__init__.py": "", "churn/data.py": "", "churn/train.py": "from . import data\n"}
LACKS = "train.py:1 imports churn.b, which the package 'churn' lacks (if"
IGNORES_B = {"churn/b.py": "", ".gitignore": "b.py\n"}
NOT_SENT = (
    "train.py:1 imports churn.b, and churn/b.py is not sent: it is left out of the source by an ignore file; "
    "add a line '!churn/b.py' to .smlaunchignore (if"
)
ARGUMENT_X = "the script has no argument --x (train.py:5)"


@table(
    ("files", "job", "expected"),
    [
        # a package's file as a script
        (PACKAGE, {"entry": "churn/train.py"}, "run it as a module: smlaunch run -m churn.train (if"),
        (PACKAGE, {"entry": {"command": ["python", "churn/train.py"]}}, "smlaunch run -m churn.train (if"),
        (PACKAGE, {"entry": {"module": "churn.train"}}, ""),
        (PACKAGE, {"entry": {"command": ["python", "-m", "churn.train"]}}, ""),
        (
            {**PACKAGE, "churn/train.py": "try:\n  from . import data\nexcept ImportError:\n  import data\n"},
            {"entry": "churn/train.py"},
            "",
        ),
        (
            {"lib/churn/__init__.py": "", "lib/churn/__main__.py": "from .data import load\n"},
            {"entry": "lib/churn/__main__.py"},
            "smlaunch run -m churn --source {here}/lib",
        ),
        ({"train.py": "from .data import load"}, {"entry": "train.py"}, "write 'from data import load' (if"),
        ({"train.py": "from . import data"}, {"entry": "train.py"}, "write 'import data' (if"),
        # a module of a package that is missing, or not sent
        ({**PACKAGE, "train.py": "import churn.b"}, {"entry": "train.py"}, LACKS),
        ({**PACKAGE, "train.py": "from churn.b import x"}, {"entry": "train.py"}, LACKS),
        ({**PACKAGE, "train.py": "class A: import churn.b"}, {"entry": "train.py"}, LACKS),
        ({**PACKAGE, "train.py": "import churn.data\nfrom churn import data, x"}, {"entry": "train.py"}, ""),
        ({**PACKAGE, **IGNORES_B, "train.py": "import churn.b"}, {"entry": "train.py"}, NOT_SENT),
        ({**PACKAGE, **IGNORES_B, "train.py": "from churn import b"}, {"entry": "train.py"}, NOT_SENT),
        (
            {**PACKAGE, **IGNORES_B, "churn/__init__.py": "b = 1", "train.py": "from churn import b"},
            {"entry": "train.py"},
            "",
        ),
        (
            {**PACKAGE, **IGNORES_B, "train.py": "import churn.data", "churn/data.py": "from . import b"},
            {"entry": "train.py"},
            "churn/data.py:1 imports b, and churn/b.py is not sent",
        ),
        (
            {"train.py": "import data.m", "data/m.py": ""},
            {"entry": "train.py", "inputs": {"all": "data"}},
            "data/m.py is not sent: it is part of the input 'all', which the hosts have in /opt/ml/input/",
        ),
        # the arguments of the script that a command runs
        ({"train.py": ARGPARSE}, {"entry": {"command": ["python", "train.py", "--x", "1"]}}, ARGUMENT_X),
        ({"train.py": ARGPARSE}, {"entry": {"command": ["python", "-u", "train.py", "--y=1"]}}, ""),
        ({"train.py": ARGPARSE}, {"entry": {"command": ["python3", "-m", "train", "--x=1"]}}, ARGUMENT_X),
        ({"train.py": ARGPARSE}, {"entry": {"command": ["env", "A=1", "./train.py", "--x=1"]}}, ""),
        (
            {"train.py": ARGPARSE},
            {"entry": {"command": ["python", "train.py"]}, "hyperparameters": {"xx": 1}},
            "hyperparameters.xx: the script has no argument --xx",
        ),
        (
            {"train.py": ARGPARSE},
            {"entry": "train.py", "hyperparameters": {"places": 1}},
            "places is given by its place: put its value after --",
        ),
        ({"train.py": "#!/bin/env python"}, {"entry": {"command": ["./train.py"]}}, "command with python"),
        # a mistyped command
        ({"run.sh": ""}, {"entry": {"command": ["ran.sh"]}}, "PATH of the hosts, did you mean bash run.sh?"),
        ({"run.sh": ""}, {"entry": {"command": ["run.sh"]}}, "of the source: write bash run.sh"),
        ({"run.sh": ""}, {"entry": {"command": ["nosuchtool", "--a"]}}, "no program 'nosuchtool'"),
        ({"run.sh": ""}, {"entry": {"command": ["env", "A=1"]}}, ""),
        ({"run.sh": ""}, {"entry": {"command": ["x"]}, "environment": {"PATH": "/opt/x"}}, ""),
        ({"a": ""}, {"entry": {"command": [Path(sys.executable).name, "-V"]}}, ""),
        ({"a": ""}, {"entry": {"command": ["coverage", "--help"]}}, ""),  # beside this Python
        ({"requirements.txt": "x"}, {"entry": {"command": ["nosuchtool", "--a"]}}, ""),
    ],
)  # fmt: skip
def test_a_program_that_cannot_start_is_refused(
    files: dict[str, str], job: dict[str, Any], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    write_files(files)
    problems = []
    try:
        plan_here(job)
    except JobError as error:
        problems = [str(problem) for problem in error.problems]
    assert expected.format(here=tmp_path) in "".join(problems) if expected else problems == []


def test_a_text_that_is_true_stays_a_text_and_a_boolean_is_pythons() -> None:
    job = Job.from_mapping({"entry": "train.py", "hyperparameters": {"a": "true", "bb": True, "cc": "0.10"}})
    assert script_arguments(job, {}) == ["-a", "true", "--bb", "True", "--cc", "0.10"]  # docs/scripts.md


GROUP = "import argparse, sys\np = argparse.ArgumentParser()\ng = p.add_mutually_exclusive_group({})\n"
GROUP += "g.add_argument('--a', type=int{})\ng.add_argument('--b', action='store_true')\np.parse_args()\n"
MAIN = "import argparse, sys\ndef main({}):\n  p = argparse.ArgumentParser()\n"
MAIN += "  p.add_argument('--x', required=True)\n  p.parse_args(argv)\nmain({})\n"


@table(
    ("text", "args", "expected"),
    [
        (GROUP.format("", ""), ["--a", "1", "--b"], "argument --b: not allowed with argument --a"),
        (GROUP.format("", ""), ["--a", "1"], ""),
        (GROUP.format("", ""), [], ""),
        (GROUP.format("", ", default=1"), ["--a", "1", "--b"], ""),  # the default does not count
        (GROUP.format("required=True", ""), [], "one of the arguments --a --b is required"),
        (GROUP.format("required=True", ""), ["--b"], ""),
        (GROUP.format("required=True", ", default=1"), [], ""),
        (GROUP.format("required=needed", ""), [], ""),
        (MAIN.format("argv", "sys.argv[1:]"), [], "the following arguments are required: --x"),
        (MAIN.format("argv=None", ""), [], "the following arguments are required: --x"),
        (MAIN.format("argv=None", "argv=sys.argv[1:]"), [], "the following arguments are required: --x"),
        (MAIN.format("argv", "['--x', '1']"), [], ""),
        (MAIN.format("argv=None", "words"), [], ""),
    ],
)
def test_more_that_argparse_rejects(text: str, args: list[str], expected: str) -> None:
    write_files({"train.py": text})
    problems = []
    try:
        plan_here({"entry": "train.py", "args": args})
    except JobError as error:
        problems = [problem.message for problem in error.problems]
    assert expected in "".join(problems) if expected else problems == []


def test_the_file_of_a_function_is_no_script() -> None:
    write_files({**PACKAGE, "call.py": ""})
    job = Job(entry="call.py")
    source, _ = pack_job_source(job)
    needs, endpoint = fact_needs(job), EndpointFacts()
    for file, is_refused in ((Path("churn/train.py"), False), (None, True)):
        entry = job if file is not None else Job(entry="churn/train.py")
        script = gather_script_facts(entry, source, None, endpoint, needs, file)
        assert (script.program.relative_import is not None) is is_refused


@table(
    ("text", "mistake"),
    [
        ("# a\n\ntorch>=2,<3  # b\nnumpy\nx[a,b] ~= 1.0 ; os_name == 'nt'\ny==1.0 --hash=sha256:ab\n", None),
        ("-i https://x/simple\n--pre\n./wheels/a.whl\ngit+https://x/y@v1\nz @ https://x/z.zip\na==1;b", None),
        ("a (>=1.0)\nb==1.*\nc===whatever\n${NAME}\nd >= 1, \\\n  < 2\n-c more.txt\n-r https://x/r", None),
        ("numpy\nnot a valid === line !!", "requirements.txt:2: 'not a valid === line !!' is no"),
        ("numpy=1.0", "requirements.txt:1: 'numpy=1.0' is no"),
        ("import numpy", "requirements.txt:1: 'import numpy' is no"),
        ("a\x00b\x00", "is no requirement"),
        ("-r nofile.txt", "requirements.txt:1 names nofile.txt, and nofile.txt is not sent with the source"),
        ("-r sub/../../out.txt", "requirements.txt:1 names sub/../../out.txt, which is outside of the"),
        ("--requirement=bad.txt", "bad.txt:1: '!!' is no requirement"),
        ("\xe9", "requirements.txt is not UTF-8 (byte 0)"),
    ],
)  # fmt: skip
def test_requirements_that_pip_cannot_read(text: str, mistake: str | None) -> None:
    write_files({"train.py": "", "more.txt": "", "bad.txt": "!!"})
    Path("requirements.txt").write_bytes(text.encode("latin-1"))
    problems = []
    try:
        plan_here({"entry": "train.py"})
    except JobError as error:
        problems = [problem.message for problem in error.problems]
    assert (mistake in problems[0]) if mistake else problems == []


@table(
    ("text", "inputs", "expected"),
    [
        (
            "python fit.py ${SM_CHANNEL_TRAINING:-./data}\n",
            {"train": "s3://b/d/"},
            "inputs: run.sh:1 reads SM_CHANNEL_TRAINING, and no input is called training; call 'train', if "
            "nothing else reads it, so: --input training=s3://b/d/.",
        ),
        ("ls\n", {"train": "s3://b/d/"}, "inputs: fit.py:2 reads SM_CHANNEL_TEST, and no input is called "),
        ("ls\n", {"test": "s3://b/d/"}, ""),
        ("# $SM_CHANNEL_TRAINING\n", {"test": "s3://b/d/"}, ""),
        (": ${SM_CHANNEL_TRAINING:=data}\nls $SM_CHANNEL_TRAINING\n", {"test": "s3://b/d/"}, ""),
        ("ls $SM_CHANNEL_TRAINING\n", {}, ""),
    ],
)
def test_a_channel_that_a_shell_script_reads_by_another_name(
    text: str, inputs: dict[str, str], expected: str
) -> None:
    fit = "import os\nos.environ['SM_CHANNEL_TEST']\n"
    write_files({"run.sh": text + "python fit.py\n", "fit.py": fit})
    warnings = [
        each for each in plan_here({"entry": "run.sh", "inputs": inputs}).warnings if "inputs" in each
    ]
    assert any(warning.startswith(expected) for warning in warnings) if expected else warnings == []


def test_an_input_of_the_source_is_no_longer_in_it() -> None:
    write_files({"train.py": "open('data/a.csv')", "data/a.csv": ""})
    plan = plan_here({"entry": "train.py", "inputs": {"all": "data"}})
    assert any(
        "/opt/ml/input/data/all, where the data is (data is not sent with the source)" in each
        for each in plan.warnings
    )


@pytest.mark.parametrize(
    ("script", "has_warning"),
    [
        ("import os\nos.listdir('/opt/ml/processing/input/x')", False),
        ("import os\nos.environ['SM_CHANNEL_X']", False),
        ("print('nothing')", True),
    ],
)
def test_the_folder_of_an_input_is_that_of_the_kind_of_job(script: str, has_warning: bool) -> None:
    write_files({"proc.py": script})
    plan = plan_here({"entry": "proc.py", "strategy": "processing", "inputs": {"x": "s3://b/d/"}})
    texts = [each for each in plan.warnings if each.startswith("inputs.x: nothing in proc.py reads")]
    assert ["/opt/ml/processing/input/x, where the data is" in each for each in texts] == [True] * has_warning


def test_a_named_group_of_pythons_is_not_javas() -> None:
    write_files({"train.py": "print('loss=1')"})
    metrics = [{"name": "a", "regex": "loss=(?P<v>.+)"}, {"name": "b", "regex": "loss=(?<v>.+)"}]
    job = Job.from_mapping({"entry": "train.py", "metrics": metrics})
    here = facts_of(job, is_here=True)
    assert [each for each in make_plan(job, here, "digits").warnings if "Java" in each] == []
    account = dataclasses.replace(here, target="aws")
    (warning,) = (each for each in make_plan(job, account, "digits").warnings if "Java" in each)
    assert warning.startswith("metrics[0].regex: ") and "(?<name>...)" in warning


def test_more_hosts_than_this_machine_can_serve() -> None:
    def warnings(hosts: int, cpus: int | None) -> list[str]:
        job = Job.from_mapping({"entry": "train.py", "compute": {"hosts": hosts}})
        facts = local(endpoint=EndpointFacts(hosts="isolation full", cpus=cpus))
        return [each for each in make_plan(job, facts, "digits").warnings if "CPU cores" in each]

    assert warnings(64, 2) == [
        "compute.hosts: 64 hosts with 64 ranks together share this machine's 2 CPU cores and its memory; to "
        "try the job, take fewer, such as --hosts 2."
    ]
    assert [warnings(8, 1), warnings(64, 16), warnings(64, None)] == [[], [], []]


def test_a_command_of_an_image_is_only_suspect() -> None:
    write_files({"run.sh": ""})
    plan = plan_here({"entry": {"command": ["ran.sh"]}}, is_here=False)
    assert (
        "entry: 'ran.sh' is a program of the image, if it has one, did you mean bash run.sh?" in plan.warnings
    )
    plan = plan_here({"entry": {"command": ["nosuchtool"]}}, is_here=False)
    assert not [warning for warning in plan.warnings if "nosuchtool" in warning]
